"""Converters from marked YAML nodes to values: texts, numbers, lists, mappings.

Knows types and value rules, not sections. A hook returns the value or raises ValueError; a hook for a list or mapping
raises `MemberErrors`. `structure` dispatches by type and provides the hook for classes.
"""

import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from attrs import fields

from ductile.core.errors import did_you_mean
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.formats.yaml_fields import YAML_NAME, ExternalSchema, SingleOrList, TextType, ValueRule
from ductile.core.secret import Secret
from ductile.core.units import DURATION_HELP, parse_duration, quote_text

_TRUE = {"true", "yes", "on", "y"}
_FALSE = {"false", "no", "off", "n"}

Hook = Callable[[Any, Any], Any]
"""Node and type → value."""
HookLookup = Callable[[Any], Hook]
"""Type → hook."""


class MemberErrors(ExceptionGroup[Exception]):
    """The errors in the members of a list or mapping."""


class MemberError(ValueError):
    """An error in one member of a list or mapping."""

    def __init__(self, member: str | int, problem: Exception) -> None:
        super().__init__(str(problem))
        self.member, self.problem = member, problem


def yaml_names(cls: type) -> dict[str, str]:
    """Map each attribute name to its YAML key."""
    return {field.name: field.metadata.get(YAML_NAME, field.name) for field in fields(cls)}


def members_of(node: YamlNode) -> dict[str, YamlNode]:
    """Return the members of a mapping. A key without a value counts as absent, so an empty section has its defaults."""
    return {name: member for name, member in _mapping_of(node).items() if member.value is not None}


# ── containers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _mapping_hook(kind: Any, hook_of: HookLookup) -> Hook:
    key_type, value_type = get_args(kind)
    if value_type is Any:
        return lambda node, _: _mapping_of(node) and node.data()
    structure_key = hook_of(key_type)
    structure_value = hook_of(value_type)

    def build(node: YamlNode, _: Any) -> dict[str, Any]:
        built, problems = {}, []
        for name, member in _mapping_of(node).items():
            try:
                structure_key(YamlNode(name, member.mark, text=name), key_type)
                built[name] = structure_value(member, value_type)
            except (ExceptionGroup, ValueError) as problem:
                problems.append(MemberError(name, problem))
        if problems:
            raise MemberErrors("mapping", problems)
        return built

    return build


def _tuple_hook(kind: Any, hook_of: HookLookup) -> Hook:
    item_type = get_args(kind)[0]
    structure_item = hook_of(item_type) if item_type is not Any else None
    plain_items = _is_mapping(item_type) and get_args(item_type)[1] is Any

    def build(node: YamlNode, _: Any) -> tuple[Any, ...]:
        if not isinstance(node.value, tuple):
            dash = "; begin each item with '- '" if isinstance(node.value, dict) else ""
            raise ValueError(f"expected a list, got {_kind_of(node)}{dash}")
        built, problems = [], []
        for index, item in enumerate(node.value):
            try:
                if plain_items:
                    _mapping_of(item)
                built.append(structure_item(item, item_type) if structure_item else item.data())
            except (ExceptionGroup, ValueError) as problem:
                problems.append(MemberError(index, problem))
        if problems:
            raise MemberErrors("list", problems)
        return tuple(built)

    return build


def _optional_hook(kind: Any, hook_of: HookLookup) -> Hook:
    (inner,) = [option for option in get_args(kind) if option is not types.NoneType]
    return hook_of(inner)


def _mapping_of(node: YamlNode) -> dict[str, YamlNode]:
    if isinstance(node.value, dict):
        return node.value
    if node.value is None:
        return {}
    colon = "; check for a missing ':'" if isinstance(node.value, str) else ""
    raise ValueError(f"expected a mapping of keys to values, got {_kind_of(node)}{colon}")


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and types.NoneType in get_args(kind)


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _annotated_hook(kind: Any, hook_of: HookLookup) -> Hook:
    inner, *notes = get_args(kind)
    readers = [note for note in notes if isinstance(note, TextType)]
    rules = [note for note in notes if isinstance(note, ValueRule)]
    examples = [note.example for note in notes if isinstance(note, ExternalSchema)]
    alone_allowed = any(isinstance(note, SingleOrList) for note in notes)
    structure_inner = hook_of(inner) if not readers else None

    def build(node: YamlNode, _: Any) -> Any:
        if alone_allowed and not isinstance(node.value, tuple):
            node = YamlNode((node,), node.mark)
        if examples and not isinstance(node.value, dict):
            raise ValueError(f"expected a mapping such as {examples[0]}, got {_kind_of(node)}")
        value = structure_inner(node, inner) if structure_inner else _parsed(readers[0].parse, node)
        for rule in rules:
            if not rule.allows(value):
                raise ValueError(f"{_quoted(node)} is not allowed here: it must be {rule.allowed}")
        return value

    return build


def _literal_hook(kind: Any, _: HookLookup) -> Hook:
    allowed = get_args(kind)

    def build(node: YamlNode, _: Any) -> str:
        text = _text(node)
        if text not in allowed:
            hint = did_you_mean(node.text, allowed)
            raise ValueError(f"{_quoted(node)} is not one of {', '.join(allowed)}{hint}")
        return text

    return build


def _bool(node: YamlNode, _: Any) -> bool:
    word = _text(node).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{_quoted(node)} is not true or false")
    return word in _TRUE


def _int(node: YamlNode, _: Any) -> int:
    text = str(node.value) if type(node.value) is int else _text(node)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise ValueError(f"{_quoted(node)} is not a whole number of at most 18 digits")
    return int(text)


def _str(node: YamlNode, _: Any) -> str:
    return _text(node)


def _with_unit(node: YamlNode) -> YamlNode:
    if type(node.value) in (int, float) and node.value:
        raise ValueError(f"{_quoted(node)} has no unit; use {DURATION_HELP}")
    return node


def _parsed(parse: Callable[[str], Any], node: YamlNode) -> Any:
    """Parse the value. An error quotes the text as written, because `${NAME}` may refer to a secret."""
    text = _text(node)
    try:
        return parse(text)
    except ValueError as problem:
        raise ValueError(str(problem).replace(quote_text(text), _quoted(node))) from None


def _path(node: YamlNode, _: Any) -> Path:
    """Resolve a path relative to the file that contains it; `~` is the home directory of the current user."""
    text = _text(node)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{_quoted(node)} is not a path")
    if text == "~" or text.startswith("~/"):
        return Path.home() / text[2:]
    return Path(node.mark.source).parent / text


def _secret(node: YamlNode, _: Any) -> Secret:
    text = _text(node)
    if not text.strip():
        raise ValueError("is empty; a secret must have a value")
    return Secret(text)


def _text(node: YamlNode) -> str:
    """Return a scalar as written, so that text fields keep `1.10` and `yes` unchanged."""
    if node.value is None or isinstance(node.value, tuple | dict):
        raise ValueError(f"expected a single value, got {_kind_of(node)}")
    return node.value if isinstance(node.value, str) else node.text


def _kind_of(node: YamlNode) -> str:
    """Describe the node type without its value, which may be a secret in the wrong position."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, tuple):
        return "a list"
    return "nothing" if node.value is None else "a single value"


def _quoted(node: YamlNode) -> str:
    """Quote a scalar as written, without the value of its `${NAME}`."""
    if node.value == ():
        return "an empty list"
    return _kind_of(node) if node.value is None or isinstance(node.value, tuple | dict) else quote_text(node.text)


# ── by kind ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SCALARS: Mapping[Any, Hook] = {
    bool: _bool,
    int: _int,
    str: _str,
    timedelta: lambda node, _: _parsed(parse_duration, _with_unit(node)),
    Path: _path,
    Secret: _secret,
}
FACTORIES: tuple[tuple[Callable[[Any], bool], Callable[[Any, HookLookup], Hook]], ...] = (
    (_is_mapping, _mapping_hook),
    (_is_tuple, _tuple_hook),
    (_is_optional, _optional_hook),
    (lambda kind: get_origin(kind) is Literal, _literal_hook),
    (lambda kind: get_origin(kind) is Annotated, _annotated_hook),
)
