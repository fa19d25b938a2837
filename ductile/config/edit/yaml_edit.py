"""Edit one YAML text: set a value, append a list item, remove a list item.

All characters outside the change are preserved: comments, key order, blank lines, indentation, quotes, line endings. No
library does this: a ruamel.yaml round trip re-indents blocks, moves or drops comments, and rewrites nulls and CRLF.
Each result is parsed again and must contain exactly the intended data. Knows texts and paths, not files or sections.
"""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

from attrs import frozen

from ductile.config.edit.yaml_spans import MappingEntry, Span, SpanKind, parse_spans
from ductile.core.errors import Complaint, ConfigInvalid, Mark, Unreadable
from ductile.core.formats import strict_yaml

MAX_FLOW_LENGTH = 100
_PLAIN_IN_FLOW = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)

# ── paths ───────────────────────────────────────────────────────────────────────────────────────────────────────────

YamlPath = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


def format_path(path: YamlPath) -> str:
    """Format a path as in `api.auth.tokens[0].token`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def value_at(data: Any, path: YamlPath) -> Any:
    """Return the value at `path` in plain data; None if there is none."""
    for part in path:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return None
    return data


# ── edits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_value(content: bytes, path: YamlPath, value: Any, *, source: str) -> bytes:
    """Return `content` with `value` at `path`. Missing sections on the path are created."""
    return _edit(content, path, source, lambda edit: edit.set(value), lambda _: value)


def with_item(content: bytes, path: YamlPath, item: Any, *, source: str) -> bytes:
    """Return `content` with `item` appended to the list at `path`. A missing list is created."""
    return _edit(content, path, source, lambda edit: edit.append(item), lambda items: [*(items or []), item])


def without_item(content: bytes, path: YamlPath, index: int, *, source: str) -> bytes:
    """Return `content` without item `index` of the list at `path`."""

    def without_index(items: list[Any]) -> list[Any]:
        return [item for number, item in enumerate(items) if number != index]

    return _edit(content, path, source, lambda edit: edit.remove(index), without_index)


def is_same_data(left: Any, right: Any) -> bool:
    """True if both values are equal and of equal types: 1 is neither true nor 1.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _edit(
    content: bytes, path: YamlPath, source: str, change: Callable[["TextEdit"], str], intended: Callable[[Any], Any]
) -> bytes:
    """Return the changed text. Raises ConfigInvalid unless exactly the value at `path` becomes the intended one."""
    before = strict_yaml.load(content, source=source).data()
    edit = TextEdit.of(content.decode(), source, path)
    try:
        result = change(edit).encode()
        after = strict_yaml.load(result, source=source).data()
    except Unreadable as error:
        raise edit.error(f"cannot be changed here ({error.reason}); edit the file manually") from error
    except ValueError as error:
        raise edit.error(f"cannot be written: {error}") from error
    if not is_same_data(after, _replace_at(before, path, intended(value_at(before, path)))):
        raise edit.error("cannot be changed here without changing another value; edit the file manually")
    return result


def _replace_at(data: Any, path: YamlPath, value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(data) if data is not None else {}
    changed[path[0]] = _replace_at(value_at(data, path[:1]), path[1:], value)
    return changed


@frozen
class TextEdit:
    """A text and the spans along one path into it."""

    text: str
    source: str
    path: YamlPath
    root: Span | None
    spans: tuple[Span, ...]
    """The root, then each value on the path that exists."""
    entry: MappingEntry | None
    """The entry that contains the last span, if its parent is a mapping."""

    @classmethod
    def of(cls, text: str, source: str, path: YamlPath) -> "TextEdit":
        """Follow `path` into a text that `strict_yaml` has parsed."""
        root = parse_spans(text)
        spans, entry = [root] if root else [], None
        for part in path if root else ():
            parent = spans[-1]
            if parent.kind is SpanKind.MAPPING and part in parent.members:
                entry = parent.members[str(part)]
                spans.append(entry.value)
            elif parent.kind is SpanKind.LIST and isinstance(part, int) and part < len(parent.items):
                entry = None
                spans.append(parent.items[part])
            else:
                break
        return cls(text, source, path, root, tuple(spans), entry)

    def set(self, value: Any) -> str:
        """Return the text with `value` at the path."""
        missing = self._missing_path()
        if not missing:
            return self._replace_value(value)
        for name in reversed(missing[1:]):
            value = {name: value}
        return self._add_member(str(missing[0]), value)

    def append(self, item: Any) -> str:
        """Return the text with `item` appended to the list at the path."""
        if self._missing_path():
            return self.set([item])
        span = self.spans[-1]
        if span.kind is not SpanKind.LIST:
            self._require_null(span, "a list")
            return self._replace_value([item])
        if not span.items:
            return self._replace_value([item])
        end = span.items[-1].end
        if span.flow:
            return self._splice(end, end, f", {render_flow(item)}")
        return self._insert_below(end, _indent(strict_yaml.dump([item]), span.column))

    def remove(self, index: int) -> str:
        """Return the text without item `index` of the list at the path."""
        if self._missing_path() or self.spans[-1].kind is not SpanKind.LIST:
            raise self.error("is not a list in this file")
        span = self.spans[-1]
        if len(span.items) == 1:
            return self._replace_value([])
        if span.flow:
            if index:
                return self._splice(span.items[index - 1].end, span.items[index].end, "")
            return self._splice(span.items[0].start, span.items[1].start, "")
        start = self._dash(span, index)
        if self.text[self._line_start(start) : start].strip():
            raise self.error("does not start on its own line; edit the file manually")
        return self._splice(self._line_start(start), self._line_end(span.items[index].end), "")

    def error(self, message: str) -> ConfigInvalid:
        """Return an error at the line of the change."""
        line = self.spans[-1].line if self.spans else 1
        return ConfigInvalid([Complaint(message, format_path(self.path), Mark(self.source, line), "edit")])

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _missing_path(self) -> YamlPath:
        """Return the part of the path that does not exist yet. It contains only names."""
        missing = self.path[max(len(self.spans) - 1, 0) :]
        if missing and self.spans and self.spans[-1].kind is SpanKind.ALIAS:
            raise self.error("is an alias of another value; edit the file manually")
        if any(isinstance(part, int) for part in missing):
            raise self.error("the list has no such item")
        return missing

    def _replace_value(self, value: Any) -> str:
        span = self.spans[-1]
        if self._is_in_flow():
            return self._splice(span.start, span.end, render_flow(value))
        rendered = _render(value, as_flow=span.flow and bool(span.last is not None or span.items))
        if span.is_block and self.entry is not None:
            return self._replace_block(span, self.entry, value, rendered)
        if rendered.block and not span.is_block:
            return self._open_block(span, rendered.text)
        end = self._end_of_line(span.end) if span.is_block else span.end
        column = span.column if rendered.block else self._parent_column(span)
        if self._fits(rendered, end):
            written = _indent(rendered.text.rstrip("\n"), column, first=False)
        else:
            written = render_flow(value)
        return self._splice(span.start, end, self._separator(span) + written)

    def _replace_block(self, span: Span, entry: MappingEntry, value: Any, rendered: "_Rendered") -> str:
        """Replace the lines below a key, comments included, with a block below it or a value on its line."""
        colon = self._after_colon()
        first, last = self._line_start(span.start), self._line_end(span.end)
        if first < colon:
            raise self.error("starts on the line of its key; edit the file manually")
        if rendered.block:
            column = span.column if span.column > entry.key.column else entry.key.column + self._indent_width()
            return self._splice(first, last, _indent(rendered.text, column))
        if self._fits(rendered, colon):
            written = _indent(rendered.text, entry.key.column, first=False)
        else:
            written = render_flow(value)
        return f"{self.text[:colon]} {self._with_line_endings(written)}{self.text[colon:first]}{self.text[last:]}"

    def _open_block(self, span: Span, block: str) -> str:
        """Replace the value on the line of a key with a block below it."""
        if self.entry is None:
            separator = self._separator(span)
            written = _indent(block, span.column + len(separator), first=False).rstrip()
            return self._splice(span.start, span.end, separator + written)
        colon = self._after_colon()
        without_value = self.text[:colon] + self.text[span.end :]
        indented = _indent(block, self.entry.key.column + self._indent_width())
        return self._insert_below(colon, indented, text=without_value)

    def _add_member(self, name: str, value: Any) -> str:
        """Add a member to the last span, or to the document if there is none."""
        if not self.spans:
            return self._insert_below(len(self.text), strict_yaml.dump({name: value}))
        span = self.spans[-1]
        if span.last is None:
            self._require_null(span, "a section")
            return self._replace_value({name: value})
        if span.flow:
            return self._splice(span.last, span.last, f", {render_flow({name: value})[1:-1]}")
        added = _indent(_render_member(name, value), span.column)
        if span is not self.root:
            return self._insert_below(span.last, added)
        blank_line = "\n" if re.search(r"\n\r?\n", self.text) and added.count("\n") > 1 else ""
        return self._insert_below(len(self.text), blank_line + added)

    def _require_null(self, span: Span, wanted: str) -> None:
        written = self.text[span.start : span.end]
        if span.kind is SpanKind.SCALAR and written not in ("", "~", "null", "Null", "NULL"):
            raise self.error(f"is a single value here, not {wanted}")
        if (span.kind is SpanKind.LIST and wanted != "a list") or (
            span.kind is SpanKind.MAPPING and span.last is not None
        ):
            raise self.error(f"is {'a list' if span.kind is SpanKind.LIST else 'a section'} here, not {wanted}")

    # ── positions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_in_flow(self) -> bool:
        return any(span.flow for span in self.spans[:-1])

    def _parent_column(self, span: Span) -> int:
        """Return the column that continuation lines must exceed."""
        return self.entry.key.column if self.entry else max(span.column - 2, 0)

    def _separator(self, span: Span) -> str:
        """Return the space between a key or dash and a new value, if the text has none."""
        return " " if span.is_empty and not self.text[: span.start].endswith((" ", "\n")) else ""

    def _after_colon(self) -> int:
        """Return the position after the colon of the last key."""
        assert self.entry is not None
        found = re.compile(r"[ \t]*:").match(self.text, self.entry.key.end)
        if found is None:
            raise self.error("has a key in an unsupported form; edit the file manually")
        return found.end()

    def _indent_width(self) -> int:
        """Return the number of columns by which this text indents."""
        for outer in self.root.members.values() if self.root and self.root.is_block else ():
            if outer.value.is_block and outer.value.kind is SpanKind.MAPPING:
                return outer.value.column - outer.key.column
        return 2

    def _dash(self, span: Span, index: int) -> int:
        if index == 0:
            return span.start
        after = self._line_end(span.items[index - 1].end)
        found = re.compile(rf"^ {{{span.column}}}-(?=\s)", re.MULTILINE).search(self.text, after)
        if found is None:
            raise self.error("has a form that cannot be changed here; edit the file manually")
        return found.end() - 1

    def _fits(self, rendered: "_Rendered", position: int) -> bool:
        """False if the value has several lines and other text, such as a comment, follows on the first."""
        return "\n" not in rendered.text or not self.text[position : self._line_end(position)].strip()

    def _end_of_line(self, position: int) -> int:
        return position + len(self.text[position : self._line_end(position)].rstrip())

    def _line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def _line_end(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end + 1

    # ── splicing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _splice(self, start: int, end: int, inserted: str) -> str:
        return self.text[:start] + self._with_line_endings(inserted) + self.text[end:]

    def _insert_below(self, position: int, lines: str, *, text: str | None = None) -> str:
        """Insert `lines` below the line that contains `position`."""
        text = self.text if text is None else text
        end = text.find("\n", position)
        head, tail = (text, "") if end < 0 else (text[: end + 1], text[end + 1 :])
        missing = "\n" if head and not head.endswith("\n") else ""
        return head + self._with_line_endings(missing + lines) + tail

    def _with_line_endings(self, lines: str) -> str:
        """Use CRLF if the text uses it."""
        return lines.replace("\n", "\r\n") if "\r\n" in self.text else lines


# ── rendering ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _Rendered:
    """A value as YAML text; `block` if it occupies lines below its key."""

    text: str
    block: bool


def _render(value: Any, *, as_flow: bool) -> _Rendered:
    """Render a value for a position after or below a key. Short lists stay on one line."""
    if not isinstance(value, dict | list):
        return _Rendered(strict_yaml.dump(value).removesuffix("\n"), block=False)
    is_flat = isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)
    if not value or as_flow or (is_flat and len(render_flow(value)) <= MAX_FLOW_LENGTH):
        return _Rendered(render_flow(value), block=False)
    return _Rendered(strict_yaml.dump(value), block=True)


def _render_member(name: str, value: Any) -> str:
    rendered = _render(value, as_flow=False)
    if isinstance(value, list) and not rendered.block:
        return strict_yaml.dump({name: None}).removesuffix("null\n") + rendered.text + "\n"
    return strict_yaml.dump({name: value})


def render_flow(value: Any) -> str:
    """Render a value in flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{render_flow(str(key))}: {render_flow(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(render_flow, value)) + "]"
    written = strict_yaml.dump(value).removesuffix("\n")
    if not isinstance(value, str) or written.startswith('"') or _PLAIN_IN_FLOW.fullmatch(written):
        return written
    return json.dumps(value, ensure_ascii=False)


def _indent(text: str, column: int, *, first: bool = True) -> str:
    """Indent every line of `text`; with `first=False`, every line but the first."""
    pad = " " * column
    lines = enumerate(text.split("\n"))
    return "\n".join(pad + line if line and (first or number) else line for number, line in lines)
