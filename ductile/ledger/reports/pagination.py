"""How a long table is listed: newest first, filtered, page by page.

Every page and every count goes through an index and looks at a bounded number of rows, however long the history is; a
page may therefore be short although more follows. Which tables there are is known to `listed` and `history`.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from ductile.core.clock import to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

T = TypeVar("T")
NEWEST = 1 << 62
MOST_COUNTED = 10_000
"""Rows of an index that one count reads."""
MOST_LOOKED_AT = 5_000
"""Rows of a table that one page reads, to find those that fit."""
MOST_COUNTED_AMONG = 2_000
"""Rows of a table that one count reads, to find those that fit."""
CLOCK_SLACK = timedelta(minutes=1)
"""How far a clock may have gone back without hiding a row from a list that is bounded in time."""


class ListFilter(NamedTuple):
    """Which jobs or attempts a list shows; None lets everything through. `root` is the first job of a tree."""

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


EVERYTHING = ListFilter()


class Page(NamedTuple, Generic[T]):
    """Some of what fits. `total` is how many fit in all, or how many were counted if it `is_exact` no more.

    `next_before` is where the next page begins; None at the end.
    """

    items: list[T]
    total: int
    is_exact: bool
    next_before: int | None


class SqlFilter(NamedTuple):
    """A question as SQL: what an index answers, what each row must be asked, and the values of both."""

    indexed: str = ""
    using: str = ""
    asked: str = ""
    values: tuple[Any, ...] = ()
    asked_values: tuple[Any, ...] = ()
    seq: str = "seq"
    """`+seq` keeps the planner from walking along it."""
    after: int = 0
    """No row up to this `seq` fits."""
    before: int = NEWEST
    """No row from this `seq` on fits."""
    counting: Callable[[Db, int], int | None] | None = None
    """How many rows after a `seq` fit, where indexes know it without asking each row; None if they do not just now."""

    @property
    def hint(self) -> str:
        # Without statistics the planner may think that a range of `seq` is the narrower way.
        return f" {using(self.using)}" if self.using else ""


class Listing(NamedTuple, Generic[T]):
    """One table as it is listed."""

    table: str
    columns: str
    time_column: str
    id_column: str
    searched: tuple[str, ...]
    read: Callable[[tuple[Any, ...]], T]
    seq_of: Callable[[T], int]


# ── the question ──────────────────────────────────────────────────────────────────────────────────────────────────────


def of_one(listing: Listing[Any], wanted: ListFilter) -> SqlFilter:
    """One job or one tree: few rows, found by id."""
    own = listing.id_column
    if wanted.job_id:
        return SqlFilter(indexed=f"{own} = ?", seq="+seq", values=(wanted.job_id,))
    tree = f"({own} = ? OR (root_job_id = ? AND root_job_id <> {own}))"
    return SqlFilter(indexed=tree, seq="+seq", values=(wanted.root, wanted.root))


def asking(db: Db, listing: Listing[Any], wanted: ListFilter, known: SqlFilter) -> SqlFilter:
    """`known` and what each row must be asked besides."""
    plain = {
        "plugin": wanted.plugin,
        "command": wanted.command,
        "status": wanted.status,
        "submitted_by": wanted.submitted_by,
        "schedule_id": wanted.schedule_id,
        "pipeline": wanted.pipeline,
    }
    asked: list[tuple[str, tuple[str, ...]]] = [
        (f"{name} = ?", (value,)) for name, value in plain.items() if value and f"{name} = ?" not in known.indexed
    ]
    if wanted.root and wanted.job_id:
        asked.append((f"(root_job_id = ? OR {listing.id_column} = ?)", (wanted.root, wanted.root)))
    if wanted.words:
        asked += [_has_word(listing, word) for word in wanted.words.split()]
    moments = ((">=", wanted.since), ("<", wanted.until))
    asked += [(f"{listing.time_column} {sign} ?", (to_text(moment),)) for sign, moment in moments if moment]
    return SqlFilter(
        indexed=known.indexed,
        using=known.using,
        seq=known.seq,
        values=known.values,
        asked=" AND ".join(term for term, _ in asked),
        asked_values=tuple(value for _, values in asked for value in values),
        after=seq_at(db, listing, wanted.since, -CLOCK_SLACK) - 1 if wanted.since else 0,
        before=seq_at(db, listing, wanted.until, CLOCK_SLACK) if wanted.until else NEWEST,
    )


def _has_word(listing: Listing[Any], word: str) -> tuple[str, tuple[str, ...]]:
    pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    terms = [f"{column} LIKE ? ESCAPE '\\'" for column in listing.searched]
    return f"({' OR '.join(terms)})", (pattern,) * len(terms)


def seq_at(db: Db, listing: Listing[Any], moment: datetime, slack: timedelta) -> int:
    """The `seq` of the first row of that moment or later; found by halving, because rows come in order of time."""
    try:
        text = to_text(moment + slack)
    except OverflowError:
        text = to_text(moment)
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


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


def page(db: Db, listing: Listing[T], terms: SqlFilter, *, before: int, limit: int) -> Page[T]:
    """At most `limit` rows that fit, the newest before `before`."""
    start = min(before, terms.before)
    # Most pages are full after a few rows; only the others need to know where the last row is that may be looked at.
    few = min(4 * (limit + 1), MOST_LOOKED_AT)
    found, floor = _found(db, listing, terms, start, limit + 1, few if terms.asked else None)
    if len(found) <= limit and floor is not None:
        found, floor = _found(db, listing, terms, start, limit + 1, MOST_LOOKED_AT)
    total, is_exact = _total(db, listing, terms)
    total = max(total, len(found))  # a page may look further than a count
    if len(found) > limit:
        return Page(found[:limit], total, is_exact, listing.seq_of(found[limit - 1]))
    return Page(found, total, is_exact, floor)


def _found(
    db: Db, listing: Listing[T], terms: SqlFilter, start: int, limit: int, most: int | None
) -> tuple[list[T], int | None]:
    """The newest that fit among `most` rows (None: among all), and the `seq` down to which that is; None at the end."""
    floor = _floor(db, listing, terms, start, most) if most else None
    where, values = _where(terms, start=start, after=terms.after if floor is None else floor - 1)
    statement = f"SELECT {listing.columns} FROM {listing.table}{terms.hint}{where} ORDER BY {terms.seq} DESC LIMIT ?"
    return [listing.read(row) for row in db.execute(statement, (*values, limit))], floor


def _where(terms: SqlFilter, *, start: int, after: int) -> tuple[str, tuple[Any, ...]]:
    parts = [
        (terms.indexed, terms.values),
        # A bound that bounds nothing would keep a count from the smallest index.
        (f"{terms.seq} < ?" if start < NEWEST else "", (start,)),
        (f"{terms.seq} > ?" if after else "", (after,)),
        (terms.asked, terms.asked_values),
    ]
    told = [(term, values) for term, values in parts if term]
    where = f" WHERE {' AND '.join(term for term, _ in told)}" if told else ""
    return where, tuple(value for _, values in told for value in values)


def _floor(db: Db, listing: Listing[Any], terms: SqlFilter, start: int, most: int) -> int | None:
    """The `seq` down to which `most` rows can be looked at, counted from `start`; None if the rows end before."""
    if not terms.indexed:  # every row counts, so the numbers tell without looking
        floor = min(start, _newest(db, listing) + 1) - most
        return floor if floor > terms.after + 1 else None
    statement = f"""
        SELECT seq FROM {listing.table}{terms.hint} WHERE {terms.indexed} AND {terms.seq} < ? AND {terms.seq} > ?
         ORDER BY {terms.seq} DESC LIMIT 1 OFFSET ?
    """
    row = db.execute(statement, (*terms.values, start, terms.after, most)).fetchone()
    return row[0] + 1 if row else None


def _total(db: Db, listing: Listing[Any], terms: SqlFilter) -> tuple[int, bool]:
    """How many rows fit and whether that is all, or only those among the newest that were looked at."""
    floor = _floor(db, listing, terms, terms.before, MOST_COUNTED_AMONG) if terms.asked else None
    after = terms.after if floor is None else floor - 1
    if terms.counting is not None and (known := terms.counting(db, after)) is not None:
        return min(known, MOST_COUNTED), floor is None and known <= MOST_COUNTED
    where, values = _where(terms, start=terms.before, after=after)
    statement = f"SELECT COUNT(*) FROM (SELECT 1 FROM {listing.table}{terms.hint}{where} LIMIT ?)"
    count: int = db.execute(statement, (*values, MOST_COUNTED + 1)).fetchone()[0]
    return min(count, MOST_COUNTED), floor is None and count <= MOST_COUNTED
