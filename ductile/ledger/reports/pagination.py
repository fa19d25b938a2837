"""Keyset pagination of long tables: newest first, filtered.

Every page and every count uses an index and reads a bounded number of rows, however long the history is. A page may
therefore be short although more rows follow. Does not know the tables.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from attrs import frozen

from ductile.core.clock import to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

T = TypeVar("T")
NEWEST = 1 << 62
MAX_COUNTED = 10_000
"""Index rows that one count reads."""
MAX_SCANNED = 5_000
"""Table rows that one page reads to find matches."""
MAX_SCANNED_FOR_COUNT = 2_000
"""Table rows that one count reads to find matches."""
CLOCK_SLACK = timedelta(minutes=1)
"""How far the clock may go back without hiding rows from a list with a time range."""


@frozen
class ListFilter:
    """The filters of a list; None matches everything. `root` is the root job of a tree."""

    plugin: str | None = None
    command: str | None = None
    status: str | None = None
    submitted_by: str | None = None
    schedule_id: str | None = None
    pipeline: str | None = None
    job_id: str | None = None
    root: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    words: str | None = None


NO_FILTER = ListFilter()


@frozen
class Page(Generic[T]):
    """A page of matching rows. `total` counts all matches; if not `is_exact`, there may be more.

    `next_before` is the position of the next page; None at the end.
    """

    items: list[T]
    total: int
    is_exact: bool
    next_before: int | None


@frozen
class SqlFilter:
    """A filter as SQL: the condition that an index covers, the condition to check on each row, and their values."""

    index_condition: str = ""
    index_name: str = ""
    row_condition: str = ""
    values: tuple[Any, ...] = ()
    row_values: tuple[Any, ...] = ()
    seq: str = "seq"
    """`+seq` keeps the planner from scanning by `seq`."""
    after: int = 0
    """No row up to this `seq` matches."""
    before: int = NEWEST
    """No row from this `seq` on matches."""
    count_from_indexes: Callable[[Db, int], int | None] | None = None
    """Counts the matches after a `seq` from indexes alone; returns None if that is not possible now."""

    @property
    def hint(self) -> str:
        # Without statistics the planner may choose a range of `seq` instead.
        return f" {using(self.index_name)}" if self.index_name else ""


@frozen
class Listing(Generic[T]):
    """A table that can be listed."""

    table: str
    columns: str
    time_column: str
    id_column: str
    search_columns: tuple[str, ...]
    read: Callable[[tuple[Any, ...]], T]
    seq_of: Callable[[T], int]


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def id_filter(listing: Listing[Any], wanted: ListFilter) -> SqlFilter:
    """Return the filter for one job or one tree: few rows, found by id."""
    own = listing.id_column
    if wanted.job_id:
        return SqlFilter(index_condition=f"{own} = ?", seq="+seq", values=(wanted.job_id,))
    tree = f"({own} = ? OR (root_job_id = ? AND root_job_id <> {own}))"
    return SqlFilter(index_condition=tree, seq="+seq", values=(wanted.root, wanted.root))


def complete_filter(db: Db, listing: Listing[Any], wanted: ListFilter, indexed: SqlFilter) -> SqlFilter:
    """Add the conditions of `wanted` that the index condition of `indexed` does not cover."""
    plain = {
        "plugin": wanted.plugin,
        "command": wanted.command,
        "status": wanted.status,
        "submitted_by": wanted.submitted_by,
        "schedule_id": wanted.schedule_id,
        "pipeline": wanted.pipeline,
    }
    conditions: list[tuple[str, tuple[str, ...]]] = [
        (f"{name} = ?", (value,))
        for name, value in plain.items()
        if value and f"{name} = ?" not in indexed.index_condition
    ]
    if wanted.root and wanted.job_id:
        conditions.append((f"(root_job_id = ? OR {listing.id_column} = ?)", (wanted.root, wanted.root)))
    if wanted.words:
        conditions += [_has_word(listing, word) for word in wanted.words.split()]
    bounds = ((">=", wanted.since), ("<", wanted.until))
    conditions += [(f"{listing.time_column} {sign} ?", (to_text(time),)) for sign, time in bounds if time]
    return SqlFilter(
        index_condition=indexed.index_condition,
        index_name=indexed.index_name,
        seq=indexed.seq,
        values=indexed.values,
        row_condition=" AND ".join(term for term, _ in conditions),
        row_values=tuple(value for _, values in conditions for value in values),
        after=find_seq(db, listing, wanted.since, -CLOCK_SLACK) - 1 if wanted.since else 0,
        before=find_seq(db, listing, wanted.until, CLOCK_SLACK) if wanted.until else NEWEST,
    )


def _has_word(listing: Listing[Any], word: str) -> tuple[str, tuple[str, ...]]:
    pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    terms = [f"{column} LIKE ? ESCAPE '\\'" for column in listing.search_columns]
    return f"({' OR '.join(terms)})", (pattern,) * len(terms)


def find_seq(db: Db, listing: Listing[Any], time: datetime, slack: timedelta) -> int:
    """Return the `seq` of the first row at that time or later, by binary search: rows are in order of time."""
    try:
        text = to_text(time + slack)
    except OverflowError:
        text = to_text(time)
    low, high = 1, _newest(db, listing) + 1
    while low < high:
        middle = (low + high) // 2
        row = db.execute(
            f"SELECT seq, {listing.time_column} FROM {listing.table} WHERE seq >= ? ORDER BY seq LIMIT 1", (middle,)
        ).fetchone()
        if row is None or row[0] >= high or row[1] >= text:
            high = middle
        else:
            low = row[0] + 1
    return low


def _newest(db: Db, listing: Listing[Any]) -> int:
    newest: int | None = db.execute(f"SELECT MAX(seq) FROM {listing.table}").fetchone()[0]
    return newest or 0


# ── pages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def page(db: Db, listing: Listing[T], terms: SqlFilter, *, before: int, limit: int) -> Page[T]:
    """Return the newest matching rows before `before`, at most `limit`."""
    start = min(before, terms.before)
    # Most pages are full after a few rows. Only the others need the position of the last row to read.
    first_scan = min(4 * (limit + 1), MAX_SCANNED)
    found, floor = _found(db, listing, terms, start, limit + 1, first_scan if terms.row_condition else None)
    if len(found) <= limit and floor is not None:
        found, floor = _found(db, listing, terms, start, limit + 1, MAX_SCANNED)
    total, is_exact = _total(db, listing, terms)
    total = max(total, len(found))  # a page may read more rows than a count
    if len(found) > limit:
        return Page(found[:limit], total, is_exact, listing.seq_of(found[limit - 1]))
    return Page(found, total, is_exact, floor)


def _found(
    db: Db, listing: Listing[T], terms: SqlFilter, start: int, limit: int, max_rows: int | None
) -> tuple[list[T], int | None]:
    """Return the newest matches among `max_rows` rows (None: all), and the last `seq` read; None at the end."""
    floor = _floor(db, listing, terms, start, max_rows) if max_rows else None
    where, values = _where(terms, start=start, after=terms.after if floor is None else floor - 1)
    statement = f"SELECT {listing.columns} FROM {listing.table}{terms.hint}{where} ORDER BY {terms.seq} DESC LIMIT ?"
    return [listing.read(row) for row in db.execute(statement, (*values, limit))], floor


def _where(terms: SqlFilter, *, start: int, after: int) -> tuple[str, tuple[Any, ...]]:
    parts = [
        (terms.index_condition, terms.values),
        # A bound without effect would keep a count from using the smallest index.
        (f"{terms.seq} < ?" if start < NEWEST else "", (start,)),
        (f"{terms.seq} > ?" if after else "", (after,)),
        (terms.row_condition, terms.row_values),
    ]
    used = [(term, values) for term, values in parts if term]
    where = f" WHERE {' AND '.join(term for term, _ in used)}" if used else ""
    return where, tuple(value for _, values in used for value in values)


def _floor(db: Db, listing: Listing[Any], terms: SqlFilter, start: int, max_rows: int) -> int | None:
    """Return the `seq` of the last of `max_rows` rows before `start`; None if there are fewer."""
    if not terms.index_condition:  # every row counts, so the `seq` can be computed
        floor = min(start, _newest(db, listing) + 1) - max_rows
        return floor if floor > terms.after + 1 else None
    statement = f"""
        SELECT seq FROM {listing.table}{terms.hint}
         WHERE {terms.index_condition} AND {terms.seq} < ? AND {terms.seq} > ?
         ORDER BY {terms.seq} DESC LIMIT 1 OFFSET ?
    """
    row = db.execute(statement, (*terms.values, start, terms.after, max_rows)).fetchone()
    return row[0] + 1 if row else None


def _total(db: Db, listing: Listing[Any], terms: SqlFilter) -> tuple[int, bool]:
    """Count the matches. False as second value if only the newest rows were counted."""
    floor = _floor(db, listing, terms, terms.before, MAX_SCANNED_FOR_COUNT) if terms.row_condition else None
    after = terms.after if floor is None else floor - 1
    if terms.count_from_indexes is not None and (known := terms.count_from_indexes(db, after)) is not None:
        return min(known, MAX_COUNTED), floor is None and known <= MAX_COUNTED
    where, values = _where(terms, start=terms.before, after=after)
    statement = f"SELECT COUNT(*) FROM (SELECT 1 FROM {listing.table}{terms.hint}{where} LIMIT ?)"
    count: int = db.execute(statement, (*values, MAX_COUNTED + 1)).fetchone()[0]
    return min(count, MAX_COUNTED), floor is None and count <= MAX_COUNTED
