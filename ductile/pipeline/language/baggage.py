"""`baggage:` claims: which values of a run become durable, and that they never change afterwards.

Makes the context of a step out of the inherited one; nothing is written here, so a refused claim leaves no trace.
Unchanged parts are shared between contexts, never copied.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import frozen

from ductile.core.errors import Complaint
from ductile.core.formats import strict_json
from ductile.core.units import shown
from ductile.pipeline.language.paths import (
    ABSENT,
    MAX_SEGMENTS,
    LanguageError,
    Path,
    PathAbsent,
    Scope,
    kind_of,
    parse_path,
    same,
)

MOST_BYTES = 1 << 20
CONTROL = "ductile"
"""The core's own place in every context; nobody claims into it."""
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_BULK_KEYS = ("from", "namespace")


class ClaimsInvalid(LanguageError):
    """A `baggage` mapping cannot be read."""


class BaggageRefused(Exception):
    """A claim cannot be met; the message is the reason."""


@frozen
class BaggageClaim:
    """The value at `source` is to be durable at `target`; in bulk, the members of the object that is there."""

    target: tuple[str, ...]
    source: Path
    in_bulk: bool = False

    def __str__(self) -> str:
        return ".".join(self.target)


@frozen
class Claims:
    """Everything that one step claims."""

    claims: tuple[BaggageClaim, ...] = ()

    def paths(self) -> tuple[Path, ...]:
        """Every path that is read, in the order they are written."""
        return tuple(claim.source for claim in self.claims)


@frozen
class Accumulated:
    """The context of a step: its values, and the JSON text of them that is stored."""

    values: dict[str, Any]
    text: str


def claim(
    claims: Claims,
    scope: Scope,
    inherited: Mapping[str, Any],
    *,
    control: Mapping[str, Any] | None = None,
    most_bytes: int = MOST_BYTES,
) -> Accumulated:
    """`inherited` plus what `claims` take from `scope`; BaggageRefused when one cannot be met or it is too much.

    All claims read `scope` as it is, none sees another. `control` replaces what the core keeps in the context.
    """
    claimed: dict[str, Any] = {}
    for one in claims.claims:
        claimed = _merged(claimed, _nested(one.target, _source_value(one, scope)), _TWICE)
    values = _merged(inherited, claimed, _IMMUTABLE)
    if control is not None:
        claimed[CONTROL] = values[CONTROL] = dict(control)
    text = strict_json.dumps(values)
    _require_small(text, most_bytes)
    _require_readable(text, claimed)
    return Accumulated(values, text)


def accrete(inherited: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`inherited` with `value` at `path`; every path that was there before has the value it had."""
    return _merged(inherited, _nested(path, value), _IMMUTABLE)


_IMMUTABLE = "baggage path {path} is immutable: it came here as {old}, and this step claims {new}"
_TWICE = "baggage path {path} is claimed twice by this step, as {old} and as {new}"


def _merged(
    inherited: Mapping[str, Any], claimed: Mapping[str, Any], refusal: str, at: tuple[str, ...] = ()
) -> dict[str, Any]:
    merged = dict(inherited)
    for name, value in claimed.items():
        known = merged.get(name, ABSENT)
        if known is ABSENT:
            merged[name] = value
        elif isinstance(known, dict) and isinstance(value, dict):
            merged[name] = _merged(known, value, refusal, (*at, name))
        elif not same(known, value):
            old, new = kind_of(known), kind_of(value)
            path = shown(".".join((*at, name)))
            raise BaggageRefused(refusal.format(path=path, old=old, new=new if new != old else "another one"))
    return merged


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def _source_value(one: BaggageClaim, scope: Scope) -> Any:
    try:
        value = scope.require(one.source)
    except PathAbsent as absent:
        raise BaggageRefused(f"baggage {one}: {absent}") from None
    if one.in_bulk and not isinstance(value, dict):
        raise BaggageRefused(f"baggage {one}: `from` takes an object, and {one.source} is {kind_of(value)}")
    return value


def _require_small(text: str, most_bytes: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > most_bytes:
        advice = "claim less of it, or the name of a file that holds it"
        raise BaggageRefused(f"the context would have {size:,} bytes of JSON, at most {most_bytes:,} fit; {advice}")


def _require_readable(text: str, added: Mapping[str, Any]) -> None:
    """The next step can read `text` again: what was inherited was read once, so only what is new can be too deep."""
    most = strict_json.MAX_DEPTH
    if text.count("{") + text.count("[") > most and height(added) > most:
        raise BaggageRefused(f"the context would be nested deeper than {most}; claim the inner values by their names")


def height(value: Any) -> int:
    """How deep a JSON value is nested: 1 for an object of plain values."""
    members = value.values() if isinstance(value, Mapping) else value
    return 1 + max((height(member) for member in members if isinstance(member, dict | list)), default=0)


# --- reading what an author wrote -------------------------------------------------------------------------------------


def parse_claims(raw: Any, *, roots: Collection[str]) -> Claims:
    """The claims that `raw` (plain YAML data) spells out; ClaimsInvalid tells everything wrong with them."""
    if not isinstance(raw, dict):
        raise ClaimsInvalid(Complaint(f"expected durable paths with their sources, got {kind_of(raw)}"))
    if complaints := tuple(_complaints(raw, roots)):
        raise ClaimsInvalid(*complaints)
    single = [
        BaggageClaim(_target(key), _source(source, roots)) for key, source in raw.items() if key not in _BULK_KEYS
    ]
    bulk = (
        [BaggageClaim(_target(raw["namespace"]), _bulk_source(raw["from"], roots), in_bulk=True)]
        if "from" in raw
        else []
    )
    return Claims((*single, *bulk))


def _complaints(raw: Mapping[str, Any], roots: Collection[str]) -> Iterator[Complaint]:
    if "from" in raw and "namespace" not in raw:
        yield Complaint("`namespace` is missing: name the durable path that takes what `from` brings", "from")
    if "namespace" in raw and "from" not in raw:
        yield Complaint("`from` is missing: name the object to import, such as payload.metadata", "namespace")
    for key, value in raw.items():
        try:
            match key:
                case "from":
                    _bulk_source(value, roots)
                case "namespace":
                    _target(value)
                case _:
                    _target(key)
                    _source(value, roots)
        except LanguageError as error:
            yield Complaint(str(error), key)


def _target(text: Any) -> tuple[str, ...]:
    """The durable path that `text` writes."""
    if not isinstance(text, str):
        raise _refused(f"expected a durable path such as web.url, got {kind_of(text)}")
    names = tuple(text.split("."))
    if not all(re.fullmatch(_NAME, name) for name in names):
        rule = "names of letters, digits and _, joined by dots, none beginning with a digit"
        raise _refused(f"{shown(text)} is not a durable path: it must be {rule}")
    if names[0] == CONTROL:
        raise _refused(f"{shown(text)} cannot be claimed: `{CONTROL}` belongs to the core; choose another first name")
    if len(names) > MAX_SEGMENTS:
        raise _refused(f"{shown(text)} has more than {MAX_SEGMENTS} names")
    return names


def _source(text: Any, roots: Collection[str]) -> Path:
    """A value to claim: always one with a name, so that nobody makes a whole payload durable by accident."""
    path = parse_path(text, roots=roots, allow_whole=True)
    if not path.segments and path.root != "item":
        raise _refused(f"{shown(text)} is all of it; name a value in it, or use `from` with `namespace`")
    return path


def _bulk_source(text: Any, roots: Collection[str]) -> Path:
    path = parse_path(text, roots=roots, allow_whole=True)
    if path.root == "context":
        raise _refused(f"{shown(text)} is durable already; `from` takes payload or item")
    return path


def _refused(message: str) -> ClaimsInvalid:
    return ClaimsInvalid(Complaint(message))
