"""Text on its way to people: what it says is harmless to a terminal, tables fit, states have colours.

Colour is put into lines as marks that no text may have, and becomes escapes only where there is a terminal to take
them. `rich` lays tables out and is imported only for one. Called by `output`.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

GOOD, BAD, BUSY, WAITING, DIM, HEAD, END = map(chr, range(0xFDD0, 0xFDD7))
"""Noncharacters: Unicode keeps them for use inside a program."""
ROW, BREAK = map(chr, range(0xFDD7, 0xFDD9))
"""Where a row of a table begins, and where it goes on in the next line."""
_ESCAPES = {GOOD: "32", BAD: "31", BUSY: "34", WAITING: "33", DIM: "2", HEAD: "1", END: "0"}
_MARKS = "[\ufdd0-\ufddf]"
# Controls but tabs and the ends of lines, and what turns the order of letters around: nothing to look at.
_UNSEEN = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_UNSEEN_IN_JSON = "[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"

_STATES = {
    GOOD: "succeeded ok well healthy closed enabled ready usable accepted holds pass passed sent scheduled yes",
    BAD: "failed dead timed_out error open unhealthy unwell ill rejected refused unusable missing damaged fail invalid",
    BUSY: "running",
    WAITING: "queued waiting paused held skipped interrupted half_open disabled warning warn pending exhausted unknown "
    "orphaned",
}
COLOUR_OF = {word: mark for mark, words in _STATES.items() for word in words.split()}
_MOMENT = r"(?:.*\()?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z?\)?|-"
_ID = r"(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9a-f]{32})(?:-[0-9]+)?"

NARROW = 14
"""No column becomes narrower than this; where not all of them fit, each row is told line by line."""
GAP = 2
INDENT = 4
"""Room for what callers put before a row."""


def cleaned(text: str) -> str:
    """The text with everything that is not for the eye written out: `\\x1b`."""
    return text if text.isprintable() else re.sub(_UNSEEN, _written_out, text)


def cleaned_json(text: str) -> str:
    """The same JSON, with what a terminal could obey written as `\\u009b`."""
    return re.sub(_UNSEEN_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def state(word: str) -> str:
    """The word in the colour of what it says; as it is if that is no state."""
    mark = COLOUR_OF.get(word.lower().partition(" (")[0])
    return f"{mark}{word}{END}" if mark else word


def printed(line: str, *, coloured: bool) -> str:
    """The line as it goes out: clean, with colours or without."""
    if line.isprintable():
        return line
    before, begins, row = line.partition(ROW)
    parts = (before + row).split(BREAK)
    lines = cleaned(f"\n{' ' * len(before)}".join(parts) if begins else line)
    inked = re.sub(_MARKS, lambda mark: _escape(mark[0]) if coloured else "", lines)
    return inked + (_escape(END) if "\x1b" in inked else "")  # whatever a text holds, the next line begins afresh


def _escape(mark: str) -> str:
    return f"\x1b[{_ESCAPES[mark]}m" if mark in _ESCAPES else ""


def wants_colour(stream: IO[Any]) -> bool:
    """True for a terminal that can show colours to somebody who did not say no."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def width() -> int | None:
    """How many columns stdout has; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    try:
        return int(columns) if columns.isdigit() and int(columns) else os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 80


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """One line for each row, its columns below each other."""
    tidy = [tuple(map(_on_one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*tidy, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in tidy]


def fitted(rows: Sequence[tuple[str, ...]], columns: int) -> list[str]:
    """One text for each row, of as many lines as it takes to stay within `columns`. Ids are never broken."""
    from rich.cells import cell_len
    from rich.console import Console

    tidy = [tuple(map(_on_one_line, row)) for row in rows]
    has_head = len(tidy) > 1 and any(tidy[0]) and all(cell == cell.upper() for cell in tidy[0])
    console = Console(width=max(columns - INDENT, NARROW), color_system=None, legacy_windows=False)
    by_column = list(zip(*tidy, strict=True))
    widths = _widths([max(map(cell_len, column)) for column in by_column], by_column, console.width)
    if widths is None:
        names = [name.lower() for name in tidy[0]] if has_head else [""] * len(by_column)
        return [_told(row, names, console) for row in tidy[has_head:]]
    return [_in_columns(row, widths, console, is_head=has_head and not number) for number, row in enumerate(tidy)]


def _on_one_line(cell: str) -> str:
    return re.sub(r"[\t\n]", " ", re.sub(_MARKS, "", cleaned(cell)))


def _widths(sizes: list[int], by_column: Sequence[tuple[str, ...]], room: int) -> list[int] | None:
    """How wide each column becomes: the widest gives way first, one with ids never. None if not all of them fit."""
    room -= GAP * (len(sizes) - 1)
    holds_ids = [any(re.fullmatch(_ID, cell) for cell in column) for column in by_column]
    least = [size if keeps else min(size, NARROW) for size, keeps in zip(sizes, holds_ids, strict=True)]
    if sum(least) > room:
        return None
    widths = [max(floor, min(size, room)) for floor, size in zip(least, sizes, strict=True)]
    while sum(widths) > room:
        widths[max(_where_above(widths, least), key=widths.__getitem__)] -= 1
    return widths


def _where_above(widths: list[int], least: list[int]) -> list[int]:
    return [index for index, floor in enumerate(least) if widths[index] > floor]


def _in_columns(row: tuple[str, ...], widths: list[int], console: "Console", *, is_head: bool) -> str:
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, GAP, 0, 0))
    for width in widths:
        grid.add_column(width=width, overflow="fold")
    marks = [HEAD if is_head else _mark_of(cell) for cell in row]
    grid.add_row(*(Text(cell, Style(meta={"mark": mark})) for cell, mark in zip(row, marks, strict=True)))
    lines = []
    for segments in console.render_lines(grid, pad=False):
        parts = [(part.text, part.style.meta.get("mark") if part.style else None) for part in segments]
        lines.append("".join(f"{mark}{text}{END}" if mark and text.strip() else text for text, mark in parts).rstrip())
    return ROW + BREAK.join(lines)


def _mark_of(cell: str) -> str:
    if mark := COLOUR_OF.get(cell.lower().partition(" (")[0]):
        return mark
    return DIM if re.fullmatch(_MOMENT, cell) else ""


def _told(row: tuple[str, ...], names: Sequence[str], console: "Console") -> str:
    """A row that is too long for a line: its first cell, and below it the others, as many beside each other as fit."""
    from rich.cells import cell_len

    lines, used = _folded(row[0], "", console, console.width), console.width
    for name, cell in zip(names[1:], row[1:], strict=True):
        if cell.strip() in ("", "-"):
            continue
        label = f"{name}: " if name and not re.fullmatch(_ID, cell) else ""
        size = cell_len(label + cell) + GAP
        if used + size <= console.width:
            lines[-1] += f"  {label}{_inked(cell)}"
            used += size
        else:
            lines += [f"  {line}" for line in _folded(cell, label, console, console.width - GAP)]
            used = size if size <= console.width else console.width
    return ROW + BREAK.join(lines)


def _folded(cell: str, label: str, console: "Console", room: int) -> list[str]:
    """The cell after its label, in lines of `room` columns; an id in one line."""
    from rich.text import Text

    lines = [part.plain.rstrip() for part in Text(label + cell).wrap(console, room)]
    return [label + _inked(cell)] if len(lines) == 1 or re.fullmatch(_ID, cell) else lines


def _inked(cell: str) -> str:
    mark = _mark_of(cell)
    return f"{mark}{cell}{END}" if mark else cell
