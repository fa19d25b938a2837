"""Terminal output: escape control characters, fit tables to the width, colour states.

Lines carry colour as Unicode noncharacters, which become escape sequences only for a terminal. `rich` lays out tables
and is imported only for them. Used by `output`.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

GOOD, BAD, BUSY, WAITING, DIM, HEAD, END = map(chr, range(0xFDD0, 0xFDD7))
"""Colour marks. Noncharacters: Unicode reserves them for internal use."""
ROW, BREAK = map(chr, range(0xFDD7, 0xFDD9))
"""The start of a table row, and a line break inside it."""
_ESCAPES = {GOOD: "32", BAD: "31", BUSY: "34", WAITING: "33", DIM: "2", HEAD: "1", END: "0"}
_MARKS = "[\ufdd0-\ufddf]"
# Control characters except tab and line feed, bidirectional controls, surrogates.
_CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_CONTROLS_IN_JSON = "[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"

_STATES = {
    GOOD: "succeeded ok well healthy closed enabled ready usable accepted holds pass passed sent scheduled yes",
    BAD: "failed dead timed_out error open unhealthy unwell ill rejected refused unusable missing damaged fail invalid",
    BUSY: "running",
    WAITING: "queued waiting paused held skipped interrupted half_open disabled warning warn pending exhausted unknown "
    "orphaned cancelled purged attention",
}
COLOUR_OF = {word: mark for mark, words in _STATES.items() for word in words.split()}
_MOMENT = r"(?:.*\()?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z?\)?|-"
_ID = r"(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9a-f]{32})(?:-[0-9]+)?"

MIN_COLUMN_WIDTH = 14
"""Minimum column width. If the columns do not fit, each row is printed as a block of lines."""
GAP = 2
INDENT = 4
"""Columns reserved for the indentation that callers add."""


def escape_controls(text: str) -> str:
    """Escape control characters: `\\x1b`."""
    return text if text.isprintable() else re.sub(_CONTROLS, _escaped, text)


def escape_json_controls(text: str) -> str:
    """Escape terminal control characters in JSON: `\\u009b`. The decoded value stays the same."""
    return re.sub(_CONTROLS_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def state(word: str) -> str:
    """Colour the word if it is a state."""
    mark = COLOUR_OF.get(word.lower().partition(" (")[0])
    return f"{mark}{word}{END}" if mark else word


def render(line: str, *, coloured: bool) -> str:
    """Return the line as it is written: control characters escaped, colour marks replaced or removed."""
    if line.isprintable():
        return line
    before, begins, row = line.partition(ROW)
    parts = (before + row).split(BREAK)
    lines = escape_controls(f"\n{' ' * len(before)}".join(parts) if begins else line)
    coloured_text = re.sub(_MARKS, lambda mark: _escape(mark[0]) if coloured else "", lines)
    return coloured_text + (
        _escape(END) if "\x1b" in coloured_text else ""
    )  # an unclosed colour must not reach the next line


def _escape(mark: str) -> str:
    return f"\x1b[{_ESCAPES[mark]}m" if mark in _ESCAPES else ""


def wants_colour(stream: IO[Any]) -> bool:
    """True for a terminal with colours, unless NO_COLOR is set; FORCE_COLOR forces it."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def width() -> int | None:
    """Return the width of stdout in columns; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    try:
        return int(columns) if columns.isdigit() and int(columns) else os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 80


def align_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format each row as one line, with aligned columns."""
    tidy = [tuple(map(_on_one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*tidy, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in tidy]


def fit_table(rows: Sequence[tuple[str, ...]], columns: int) -> list[str]:
    """Format each row as one text, wrapped to at most `columns`. Ids are never broken."""
    from rich.cells import cell_len
    from rich.console import Console

    tidy = [tuple(map(_on_one_line, row)) for row in rows]
    has_head = len(tidy) > 1 and any(tidy[0]) and all(cell == cell.upper() for cell in tidy[0])
    console = Console(width=max(columns - INDENT, MIN_COLUMN_WIDTH), color_system=None, legacy_windows=False)
    by_column = list(zip(*tidy, strict=True))
    widths = _widths([max(map(cell_len, column)) for column in by_column], by_column, console.width)
    if widths is None:
        names = [name.lower() for name in tidy[0]] if has_head else [""] * len(by_column)
        return [_as_block(row, names, console) for row in tidy[has_head:]]
    return [_in_columns(row, widths, console, is_head=has_head and not number) for number, row in enumerate(tidy)]


def _on_one_line(cell: str) -> str:
    return re.sub(r"[\t\n]", " ", re.sub(_MARKS, "", escape_controls(cell)))


def _widths(sizes: list[int], by_column: Sequence[tuple[str, ...]], available: int) -> list[int] | None:
    """Return the column widths: the widest shrinks first, columns with ids never. None if they do not fit."""
    available -= GAP * (len(sizes) - 1)
    holds_ids = [any(re.fullmatch(_ID, cell) for cell in column) for column in by_column]
    least = [size if has_ids else min(size, MIN_COLUMN_WIDTH) for size, has_ids in zip(sizes, holds_ids, strict=True)]
    if sum(least) > available:
        return None
    widths = [max(floor, min(size, available)) for floor, size in zip(least, sizes, strict=True)]
    while sum(widths) > available:
        widths[max(_shrinkable(widths, least), key=widths.__getitem__)] -= 1
    return widths


def _shrinkable(widths: list[int], least: list[int]) -> list[int]:
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


def _as_block(row: tuple[str, ...], names: Sequence[str], console: "Console") -> str:
    """Format a row that does not fit one line: its first cell, and below it the other cells with their labels."""
    from rich.cells import cell_len

    lines, used = _folded(row[0], "", console, console.width), console.width
    for name, cell in zip(names[1:], row[1:], strict=True):
        if cell.strip() in ("", "-"):
            continue
        label = f"{name}: " if name and not re.fullmatch(_ID, cell) else ""
        size = cell_len(label + cell) + GAP
        if used + size <= console.width:
            lines[-1] += f"  {label}{_coloured(cell)}"
            used += size
        else:
            lines += [f"  {line}" for line in _folded(cell, label, console, console.width - GAP)]
            used = size if size <= console.width else console.width
    return ROW + BREAK.join(lines)


def _folded(cell: str, label: str, console: "Console", width: int) -> list[str]:
    """Wrap the cell with its label to `width` columns; keep an id on one line."""
    from rich.text import Text

    lines = [part.plain.rstrip() for part in Text(label + cell).wrap(console, width)]
    return [label + _coloured(cell)] if len(lines) == 1 or re.fullmatch(_ID, cell) else lines


def _coloured(cell: str) -> str:
    mark = _mark_of(cell)
    return f"{mark}{cell}{END}" if mark else cell
