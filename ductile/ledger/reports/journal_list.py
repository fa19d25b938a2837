"""Pages of the journal, and of its entries with an actor (the audit trail): newest first, filtered. Read-only."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from ductile.core.clock import to_text
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
from ductile.ledger.storage.dialect import using
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


# `uid:1000` also selects `uid:1000(alice)`.
ACTS = f"""
    SELECT {COLUMNS} FROM journal {using("journal_acts")}
     WHERE actor IS NOT NULL AND seq < :before AND (:since IS NULL OR at >= :since)
       AND (:actor IS NULL OR actor = :actor OR substr(actor, 1, length(:actor) + 1) = :actor || '(')
     ORDER BY seq DESC LIMIT :limit
"""


def list_acts(
    db: Db, *, since: datetime | None = None, actor: str | None = None, before: int = NEWEST, limit: int = 50
) -> list[JournalEntry]:
    """Return the newest entries with an actor before position `before`, of one actor or of all (None)."""
    values = {"before": before, "since": to_text(since) if since else None, "actor": actor, "limit": limit}
    return entries(db.execute(ACTS, values))
