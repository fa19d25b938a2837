"""Which characters of a YAML text to replace for a change at one path.

Works on positions (`layout`), so that all other characters stay. Whether the result says what was meant is for its
caller, `tree_edit`, to find out: some texts have forms that cannot be changed here.
"""

import re
from typing import Any

from attrs import frozen

from ductile.config.edit.spans import MappingEntry, Span, SpanKind, layout
from ductile.config.edit.yaml_emit import Lines, flow, indented, lines_of, member_text
from ductile.config.edit.yaml_path import YamlPath, spelled
from ductile.core.errors import Complaint, ConfigInvalid, Mark
from ductile.core.formats import strict_yaml


@frozen
class TextEdit:
    """One text, and the way into it: the spots that are there and the names that are not."""

    text: str
    source: str
    path: YamlPath
    root: Span | None
    way: tuple[Span, ...]
    """The root, then each value on the path as far as it is written."""
    member: MappingEntry | None
    """What holds the last of them, if that is a mapping."""

    @classmethod
    def of(cls, text: str, source: str, path: YamlPath) -> "TextEdit":
        """The way along `path` into a text that `strict_yaml` has accepted."""
        root = layout(text)
        way, member = [root] if root else [], None
        for part in path if root else ():
            here = way[-1]
            if here.kind is SpanKind.MAPPING and part in here.members:
                member = here.members[str(part)]
                way.append(member.value)
            elif here.kind is SpanKind.LIST and isinstance(part, int) and part < len(here.items):
                member = None
                way.append(here.items[part])
            else:
                break
        return cls(text, source, path, root, tuple(way), member)

    def set(self, value: Any) -> str:
        """The text with `value` at the path."""
        rest = self._rest()
        if not rest:
            return self._replaced(value)
        for name in reversed(rest[1:]):
            value = {name: value}
        return self._with_member(str(rest[0]), value)

    def append(self, item: Any) -> str:
        """The text with one more item in the list at the path."""
        if self._rest():
            return self.set([item])
        spot = self.way[-1]
        if spot.kind is not SpanKind.LIST:
            self._require_nothing(spot, "a list")
            return self._replaced([item])
        if not spot.items:
            return self._replaced([item])
        end = spot.items[-1].end
        if spot.flow:
            return self._cut(end, end, f", {flow(item)}")
        return self._below(end, indented(strict_yaml.dump([item]), spot.column))

    def remove(self, index: int) -> str:
        """The text with one item less in the list at the path."""
        if self._rest() or self.way[-1].kind is not SpanKind.LIST:
            raise self.refusal("is not a list that is written out here")
        spot = self.way[-1]
        if len(spot.items) == 1:
            return self._replaced([])
        if spot.flow:
            if index:
                return self._cut(spot.items[index - 1].end, spot.items[index].end, "")
            return self._cut(spot.items[0].start, spot.items[1].start, "")
        start = self._dash(spot, index)
        if self.text[self._line_start(start) : start].strip():
            raise self.refusal("begins inside another line; change it by hand")
        return self._cut(self._line_start(start), self._line_end(spot.items[index].end), "")

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rest(self) -> YamlPath:
        """The part of the path that is not written yet: names only."""
        rest = self.path[max(len(self.way) - 1, 0) :]
        if rest and self.way and self.way[-1].kind is SpanKind.ALIAS:
            raise self.refusal("is an alias of something written elsewhere; change it by hand")
        if any(isinstance(part, int) for part in rest):
            raise self.refusal("there is no such item in the list")
        return rest

    def _replaced(self, value: Any) -> str:
        """The last spot of the way says `value`."""
        spot = self.way[-1]
        if self._inside_flow():
            return self._cut(spot.start, spot.end, flow(value))
        lines = lines_of(value, as_flow=spot.flow and bool(spot.last is not None or spot.items))
        if spot.is_block and self.member is not None:
            return self._block_replaced(spot, self.member, value, lines)
        if lines.block and not spot.is_block:
            return self._opened(spot, lines.text)
        end = self._end_of_line(spot.end) if spot.is_block else spot.end
        column = spot.column if lines.block else self._base(spot)
        shown = indented(lines.text.rstrip("\n"), column, first=False) if self._fits(lines, end) else flow(value)
        return self._cut(spot.start, end, self._gap(spot) + shown)

    def _block_replaced(self, spot: Span, member: MappingEntry, value: Any, lines: Lines) -> str:
        """The lines below the key go, with the comments among them; the new value stands there or behind the key."""
        colon = self._colon()
        first, last = self._line_start(spot.start), self._line_end(spot.end)
        if first < colon:
            raise self.refusal("begins on the line of its key; change it by hand")
        if lines.block:
            column = spot.column if spot.column > member.key.column else member.key.column + self._step()
            return self._cut(first, last, indented(lines.text, column))
        shown = indented(lines.text, member.key.column, first=False) if self._fits(lines, colon) else flow(value)
        return f"{self.text[:colon]} {self._native(shown)}{self.text[colon:first]}{self.text[last:]}"

    def _opened(self, spot: Span, block: str) -> str:
        """Lines below the key take the place of what stands behind it."""
        if self.member is None:
            gap = self._gap(spot)
            shown = indented(block, spot.column + len(gap), first=False).rstrip()
            return self._cut(spot.start, spot.end, gap + shown)
        colon = self._colon()
        kept = self.text[:colon] + self.text[spot.end :]
        below = indented(block, self.member.key.column + self._step())
        return self._below(colon, below, text=kept)

    def _with_member(self, name: str, value: Any) -> str:
        """The last spot of the way, or the whole text, has one more member."""
        if not self.way:
            return self._below(len(self.text), strict_yaml.dump({name: value}))
        spot = self.way[-1]
        if spot.last is None:
            self._require_nothing(spot, "a section")
            return self._replaced({name: value})
        if spot.flow:
            return self._cut(spot.last, spot.last, f", {flow({name: value})[1:-1]}")
        added = indented(member_text(name, value), spot.column)
        if spot is not self.root:
            return self._below(spot.last, added)
        spaced = "\n" if re.search(r"\n\r?\n", self.text) and added.count("\n") > 1 else ""
        return self._below(len(self.text), spaced + added)

    def _require_nothing(self, spot: Span, wanted: str) -> None:
        written = self.text[spot.start : spot.end]
        if spot.kind is SpanKind.SCALAR and written not in ("", "~", "null", "Null", "NULL"):
            raise self.refusal(f"is a single value here, not {wanted}")
        if (spot.kind is SpanKind.LIST and wanted != "a list") or (
            spot.kind is SpanKind.MAPPING and spot.last is not None
        ):
            raise self.refusal(f"is {'a list' if spot.kind is SpanKind.LIST else 'a section'} here, not {wanted}")

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _inside_flow(self) -> bool:
        return any(spot.flow for spot in self.way[:-1])

    def _base(self, spot: Span) -> int:
        """The column that lines of a text below must exceed."""
        return self.member.key.column if self.member else max(spot.column - 2, 0)

    def _gap(self, spot: Span) -> str:
        """What separates a new value from its key or dash."""
        return " " if spot.is_empty and not self.text[: spot.start].endswith((" ", "\n")) else ""

    def _colon(self) -> int:
        """Just behind the colon of the key that holds the last spot."""
        assert self.member is not None
        found = re.compile(r"[ \t]*:").match(self.text, self.member.key.end)
        if found is None:
            raise self.refusal("has a key of an unusual form; change it by hand")
        return found.end()

    def _step(self) -> int:
        """How far this text indents."""
        for outer in self.root.members.values() if self.root and self.root.is_block else ():
            if outer.value.is_block and outer.value.kind is SpanKind.MAPPING:
                return outer.value.column - outer.key.column
        return 2

    def _dash(self, spot: Span, index: int) -> int:
        if index == 0:
            return spot.start
        after = self._line_end(spot.items[index - 1].end)
        found = re.compile(rf"^ {{{spot.column}}}-(?=\s)", re.MULTILINE).search(self.text, after)
        if found is None:
            raise self.refusal("has a form that cannot be changed here; change it by hand")
        return found.end() - 1

    def _fits(self, lines: Lines, place: int) -> bool:
        """True unless something, be it a comment, would follow on the first of several lines."""
        return "\n" not in lines.text or not self.text[place : self._line_end(place)].strip()

    def _end_of_line(self, place: int) -> int:
        return place + len(self.text[place : self._line_end(place)].rstrip())

    def _line_start(self, place: int) -> int:
        return self.text.rfind("\n", 0, place) + 1

    def _line_end(self, place: int) -> int:
        end = self.text.find("\n", place)
        return len(self.text) if end < 0 else end + 1

    # ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut(self, start: int, end: int, between: str) -> str:
        return self.text[:start] + self._native(between) + self.text[end:]

    def _below(self, place: int, lines: str, *, text: str | None = None) -> str:
        """`lines` below the line that `place` is in."""
        text = self.text if text is None else text
        end = text.find("\n", place)
        head, tail = (text, "") if end < 0 else (text[: end + 1], text[end + 1 :])
        missing = "\n" if head and not head.endswith("\n") else ""
        return head + self._native(missing + lines) + tail

    def _native(self, lines: str) -> str:
        """With the line ends this text has."""
        return lines.replace("\n", "\r\n") if "\r\n" in self.text else lines

    def refusal(self, message: str) -> ConfigInvalid:
        """A complaint about the place that was to be changed."""
        line = self.way[-1].line if self.way else 1
        return ConfigInvalid([Complaint(message, spelled(self.path), Mark(self.source, line), "edit")])
