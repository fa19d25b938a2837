"""Where everything in a YAML text stands: each value with its first and last character.

`strict_yaml` says what a text means; this says which characters of it say so, for `tree_edit` to change them. Takes
only texts that `strict_yaml` has accepted, so nothing here is deep, large or surprising.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import yaml
from attrs import define, field

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class SpanKind(StrEnum):
    """What a value is made of."""

    SCALAR = "scalar"
    LIST = "list"
    MAPPING = "mapping"
    ALIAS = "alias"


@define
class Span:
    """One value: `text[start:end]`. Neither blank lines nor comments after it belong to it.

    `column` is where it begins; the keys of a block mapping and the dashes of a block list all stand in theirs.
    """

    kind: SpanKind
    start: int
    end: int
    column: int
    line: int
    flow: bool = False
    members: "dict[str, MappingEntry]" = field(factory=dict)
    items: "list[Span]" = field(factory=list)
    last: int | None = None
    """Where the last entry of a mapping ends, `<<` counted; None if it has none."""

    @property
    def is_block(self) -> bool:
        """True for a list or mapping that is written line by line."""
        return self.kind in (SpanKind.LIST, SpanKind.MAPPING) and not self.flow

    @property
    def is_empty(self) -> bool:
        """True for a key or a dash that nothing follows."""
        return self.kind is SpanKind.SCALAR and self.start == self.end


@define
class MappingEntry:
    """A key of a mapping and its value. What `<<` brings in is not written here and not a member."""

    key: Span
    value: Span


def layout(text: str) -> Span | None:
    """The value of the only document; None if it has none."""
    events = (event for event in yaml.parse(text, Loader=_PARSER) if not isinstance(event, yaml.StreamStartEvent))
    if not isinstance(next(events), yaml.DocumentStartEvent):
        return None
    root = _spot(next(events), events, text)
    return None if root.is_empty else root


def _spot(event: Any, events: Iterator[Any], text: str) -> Span:
    if isinstance(event, yaml.SequenceStartEvent):
        return _list(event, events, text)
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(event, events, text)
    kind = SpanKind.ALIAS if isinstance(event, yaml.AliasEvent) else SpanKind.SCALAR
    spot = _begun(kind, event)
    spot.end = event.end_mark.index
    if kind is SpanKind.SCALAR and event.style in ("|", ">"):
        spot.end = _end_of_block(text, spot)
    return spot


def _list(event: Any, events: Iterator[Any], text: str) -> Span:
    spot = _begun(SpanKind.LIST, event)
    for inner in events:
        if isinstance(inner, yaml.SequenceEndEvent):
            spot.end = _index(inner.end_mark) if spot.flow else spot.items[-1].end
            break
        spot.items.append(_spot(inner, events, text))
    return spot


def _mapping(event: Any, events: Iterator[Any], text: str) -> Span:
    spot = _begun(SpanKind.MAPPING, event)
    for inner in events:
        if isinstance(inner, yaml.MappingEndEvent):
            spot.end = _index(inner.end_mark) if spot.flow or spot.last is None else spot.last
            break
        key, value = _spot(inner, events, text), _spot(next(events), events, text)
        spot.last = value.end
        name = str(getattr(inner, "value", ""))
        if name != "<<" or not inner.implicit[0]:
            spot.members[name] = MappingEntry(key, value)
    return spot


def _begun(kind: SpanKind, event: Any) -> Span:
    mark = event.start_mark
    is_flow = bool(getattr(event, "flow_style", False))
    return Span(kind, mark.index, mark.index, mark.column, mark.line + 1, flow=is_flow)


def _end_of_block(text: str, spot: Span) -> int:
    """Behind the last line of a `|` or `>` text. Blank lines below count only for one that keeps them (`+`)."""
    written = text[spot.start : spot.end]
    if "+" in written.partition("\n")[0].partition("#")[0]:
        return spot.end - (written.endswith("\n"))
    return spot.start + len(written.rstrip())


def _index(mark: Any) -> int:
    return int(mark.index)
