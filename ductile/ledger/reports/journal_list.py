"""Pages of the journal: newest first, filtered. Read-only."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from ductile.ledger.reports.pagination import (
    NEWEST,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    complete_filter,
    page,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.journal import COLUMNS, JournalEntry, entries

JOURNAL = Listing[JournalEntry](
    table="journal",
    columns=COLUMNS,
    time_column="at",
    id_column="job_id",
    search_columns=(),
    read=lambda row: entries([row])[0],
    seq_of=lambda entry: entry.seq,
)


def list_journal(
    db: Db,
    *,
    kinds: Sequence[str] = (),
    plugin: str | None = None,
    job_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int = NEWEST,
    limit: int = 50,
) -> Page[JournalEntry]:
    """Return a page of the matching rows. A kind that ends with `*` matches every kind that begins so."""
    indexed = SqlFilter()
    if job_id:
        indexed = SqlFilter(index_condition="job_id = ?", index_name="journal_by_job", values=(job_id,))
    terms = complete_filter(db, JOURNAL, ListFilter(plugin=plugin, since=since, until=until), indexed)
    return page(db, JOURNAL, _with_kinds(terms, kinds), before=before, limit=limit)


def _with_kinds(terms: SqlFilter, kinds: Sequence[str]) -> SqlFilter:
    if not kinds:
        return terms
    matches = " OR ".join(f"kind {'LIKE' if kind.endswith('*') else '='} ?" for kind in kinds)
    values: tuple[Any, ...] = tuple(f"{kind[:-1]}%" if kind.endswith("*") else kind for kind in kinds)
    conditions = [*filter(None, [terms.row_condition]), f"({matches})"]
    return evolve(terms, row_condition=" AND ".join(conditions), row_values=(*terms.row_values, *values))
