"""Character positions of the values in a YAML text.

`strict_yaml` returns what a text means; this module returns which characters express each value. Accepts only texts
that `strict_yaml` has parsed, so depth, size and structure are already checked.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import yaml
from attrs import define, field

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class SpanKind(StrEnum):
    """The node type of a value."""

    SCALAR = "scalar"
    LIST = "list"
    MAPPING = "mapping"
    ALIAS = "alias"


@define
class Span:
    """The position of one value: `text[start:end]`, without the blank lines and comments that follow it.

    `column` is the column of the first character. All keys of a block mapping and all dashes of a block list share it.
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
    """End of the last entry of a mapping, `<<` included; None if the mapping is empty."""

    @property
    def is_block(self) -> bool:
        """True for a list or mapping in block style."""
        return self.kind in (SpanKind.LIST, SpanKind.MAPPING) and not self.flow

    @property
    def is_empty(self) -> bool:
        """True if no characters follow the key or dash."""
        return self.kind is SpanKind.SCALAR and self.start == self.end


@define
class MappingEntry:
    """A key of a mapping and its value. Keys merged by `<<` have no entry."""

    key: Span
    value: Span


def parse_spans(text: str) -> Span | None:
    """Return the root value of a text with one document; None if the document is empty."""
    events = (event for event in yaml.parse(text, Loader=_PARSER) if not isinstance(event, yaml.StreamStartEvent))
    if not isinstance(next(events), yaml.DocumentStartEvent):
        return None
    root = _value(next(events), events, text)
    return None if root.is_empty else root


def _value(event: Any, events: Iterator[Any], text: str) -> Span:
    if isinstance(event, yaml.SequenceStartEvent):
        return _list(event, events, text)
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(event, events, text)
    kind = SpanKind.ALIAS if isinstance(event, yaml.AliasEvent) else SpanKind.SCALAR
    span = _start_span(kind, event)
    span.end = event.end_mark.index
    if kind is SpanKind.SCALAR and event.style in ("|", ">"):
        span.end = _end_of_block_scalar(text, span)
    return span


def _list(event: Any, events: Iterator[Any], text: str) -> Span:
    span = _start_span(SpanKind.LIST, event)
    for inner in events:
        if isinstance(inner, yaml.SequenceEndEvent):
            span.end = _index(inner.end_mark) if span.flow else span.items[-1].end
            break
        span.items.append(_value(inner, events, text))
    return span


def _mapping(event: Any, events: Iterator[Any], text: str) -> Span:
    span = _start_span(SpanKind.MAPPING, event)
    for inner in events:
        if isinstance(inner, yaml.MappingEndEvent):
            span.end = _index(inner.end_mark) if span.flow or span.last is None else span.last
            break
        key, value = _value(inner, events, text), _value(next(events), events, text)
        span.last = value.end
        name = str(getattr(inner, "value", ""))
        if name != "<<" or not inner.implicit[0]:
            span.members[name] = MappingEntry(key, value)
    return span


def _start_span(kind: SpanKind, event: Any) -> Span:
    mark = event.start_mark
    is_flow = bool(getattr(event, "flow_style", False))
    return Span(kind, mark.index, mark.index, mark.column, mark.line + 1, flow=is_flow)


def _end_of_block_scalar(text: str, span: Span) -> int:
    """Return the end of the last line of a `|` or `>` scalar. Trailing blank lines belong to it only with `+`."""
    written = text[span.start : span.end]
    if "+" in written.partition("\n")[0].partition("#")[0]:
        return span.end - (written.endswith("\n"))
    return span.start + len(written.rstrip())


def _index(mark: Any) -> int:
    return int(mark.index)
