"""Suggestions for an unknown key: a similar key of its section, or the section that has the key.

Knows the section classes by their types only.
"""

import re
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs

from ductile.config.load.converters import yaml_names
from ductile.config.sections.settings import Settings
from ductile.core.errors import did_you_mean

Place = tuple[str, ...]
"""The keys on the way to a value: `NAME` stands for a name that the operator chose, `ITEM` for an item of a list."""
NAME, ITEM = "<name>", "[]"
FREE = (Mapping[str, Any], Mapping[str, Any] | None)
"""The types of mappings whose keys the operator chooses."""
MAX_SUGGESTED_PLACES = 2
_PART = re.compile(r"\[\d+\]|[^.\[\]]+")


def suggest_key(name: str, cls: type, path: str) -> str:
    """Return the end of the message about the unknown key `name` in the section `cls` at `path`."""
    known = sorted(yaml_names(cls).values())
    shared, place = _suggest_place(name, tuple(_PART.findall(path)))
    if hint := (shared and place) or did_you_mean(name, known) or place:
        return hint
    free = next((key for key, kind in _kinds(cls).items() if kind in FREE), None)
    values = f"; values of your own belong below {free}" if free else ""
    return f"; known here: {', '.join(known)}{values}"


def _suggest_place(name: str, section: Place) -> tuple[int, str]:
    """Suggest the places of the key that share most of their way with `section`. Returns how many parts they share."""
    found = [(_shared(place, section), place) for place in _places() if place[-1] == name]
    if not found:
        return 0, ""
    closest = max((shared, -len(place)) for shared, place in found)
    best = [(shared, place) for shared, place in found if (shared, -len(place)) == closest]
    if len(best) > MAX_SUGGESTED_PLACES:
        return 0, ""
    names = (repr(_joined(section[:shared] + place[shared:])) for shared, place in best)
    return closest[0], f" (did you mean {' or '.join(names)}?)"


@cache
def _places() -> tuple[Place, ...]:
    return tuple(_below(Settings, (), ()))


def _below(cls: type, prefix: Place, above: tuple[type, ...]) -> Iterator[Place]:
    for name, kind in _kinds(cls).items():
        inner, place = _unwrapped(kind), (*prefix, name)
        yield place
        if get_origin(inner) is tuple:
            inner, place = _unwrapped(get_args(inner)[0]), (*place, ITEM)
        elif get_origin(inner) is not None and len(get_args(inner)) == 2:
            inner, place = _unwrapped(get_args(inner)[1]), (*place, NAME)
        if attrs.has(inner) and inner not in above:
            yield from _below(inner, place, (*above, cls))


def _kinds(cls: type) -> dict[str, Any]:
    """Map each key of a section to its type."""
    kinds = get_type_hints(cls, include_extras=True)
    return {key: kinds[attribute] for attribute, key in yaml_names(cls).items()}


def _unwrapped(kind: Any) -> Any:
    """Return the type without `None` and annotations."""
    if get_origin(kind) is Annotated:
        return _unwrapped(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _unwrapped(next(option for option in get_args(kind) if option is not types.NoneType))
    return kind


def _shared(place: Place, section: Place) -> int:
    """Return how many parts of the two ways agree."""
    count = 0
    for part, actual in zip(place[:-1], section, strict=False):
        is_item = actual.startswith("[")
        if not (part == actual or (part == NAME and not is_item) or (part == ITEM and is_item)):
            break
        count += 1
    return count


def _joined(place: Place) -> str:
    return "".join(part if part.startswith("[") else f".{part}" for part in place).removeprefix(".")
