"""Convert marked YAML nodes to section classes with cattrs, and report all errors with file and line.

Knows types and the rules of single values. Rules that span several values are in `rules`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from ductile.config.load.converters import (
    FACTORIES,
    SCALARS,
    Hook,
    HookLookup,
    MemberError,
    MemberErrors,
    members_of,
    yaml_names,
)
from ductile.config.load.suggestions import suggest_key
from ductile.config.sections.settings import Settings
from ductile.core.errors import Complaint, ConfigInvalid
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.units import quote_text

MAX_COMPLAINTS = 500
"""Searching for similar names of unknown keys is slow."""
MAX_SHOWN_NAME = 128


def structure(root: YamlNode) -> Settings:
    """Return the settings in `root`. Raises ConfigInvalid with all errors."""
    try:
        return make_converter().structure(root, Settings)
    except (ExceptionGroup, ValueError) as error:
        complaints = list(islice(_complaints(error, root, ""), MAX_COMPLAINTS + 1))
        if len(complaints) > MAX_COMPLAINTS:
            complaints[-1] = Complaint(f"only the first {MAX_COMPLAINTS} errors are shown", mark=root.mark)
        raise ConfigInvalid(complaints) from None


@cache
def make_converter() -> Converter:
    """Return the converter from nodes to section classes. It is strict, because YAML has already typed the scalars."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    for predicate, factory in FACTORIES:
        converter.register_structure_hook_factory(predicate, _with_lookup(factory))
    for kind, hook in SCALARS.items():
        converter.register_structure_hook(kind, hook)
    return converter


def _with_lookup(factory: Callable[[Any, HookLookup], Hook]) -> Callable[[Any, Converter], Hook]:
    return lambda kind, converter: factory(kind, converter.get_structure_hook)


def _class_hook(cls: Any, converter: Converter) -> Hook:
    @cache
    def builder() -> Hook:  # generated on first use: most configurations use few sections
        renamed: dict[str, Any] = {name: override(rename=key) for name, key in yaml_names(cls).items() if name != key}
        return make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **renamed
        )

    return lambda node, _: builder()(members_of(node), cls)


def _complaints(problem: BaseException, node: YamlNode, path: str) -> Iterator[Complaint]:
    """Yield the complaints in a tree of exceptions, each with the position of its value."""
    if isinstance(problem, ClassValidationError):
        names = yaml_names(problem.cl)
        noted, bare = problem.group_exceptions()
        for inner, note in noted:
            name = names[note.name]
            if isinstance(inner, KeyError):
                yield Complaint(_missing(problem.cl, note.name), _join(path, name), node.mark)
            else:
                yield from _complaints(inner, _child(node, name), _join(path, name))
        for inner in bare:
            yield from _complaints(inner, node, path)
    elif isinstance(problem, MemberErrors):
        for inner in problem.exceptions:
            yield from _complaints(inner, node, path)
    elif isinstance(problem, MemberError):
        yield from _complaints(problem.problem, _child(node, problem.member), _join(path, problem.member))
    elif isinstance(problem, ForbiddenExtraKeysError):
        for name in sorted(problem.extra_fields):
            hint = suggest_key(name, problem.cl, path)
            yield Complaint(f"unknown key{hint}", _join(path, name), _child(node, name).mark)
    else:
        yield Complaint(str(problem), path, node.mark)


def _missing(cls: type, name: str) -> str:
    return f"is missing: {getattr(attrs.fields(cls), name).metadata['doc']}"


def _child(node: YamlNode, member: str | int) -> YamlNode:
    if isinstance(node.value, dict) and isinstance(member, str):
        child: YamlNode = node.value.get(member, node)
    elif isinstance(node.value, tuple) and isinstance(member, int):
        child = node.value[member]
    else:
        child = node
    return child


def _join(path: str, member: str | int) -> str:
    if isinstance(member, int):
        return f"{path}[{member}]"
    name = member if member.isprintable() and len(member) <= MAX_SHOWN_NAME else quote_text(member, MAX_SHOWN_NAME)
    return f"{path}.{name}" if path else name
