"""event_context: the baggage of a run, one row per hop. Rows never change.

The pipeline package decides the content.
"""

from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.model import NewContext
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class Context:
    """A stored row of baggage."""

    id: str
    parent_id: str | None
    pipeline_name: str | None
    step_id: str | None
    accumulated_json: str
    created_at: datetime


# Ids are derived from the cause of the row, so a repeated delivery writes the same row.
PUT = """
    INSERT INTO event_context (id, parent_id, pipeline_name, step_id, accumulated_json, created_at)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""


def put_all(db: Db, contexts: Iterable[NewContext], *, now: datetime) -> None:
    """Store the contexts. Existing ids stay unchanged."""
    now_text = to_text(now)
    rows = ((new.id, new.parent_id, new.pipeline_name, new.step_id, new.accumulated_json, now_text) for new in contexts)
    db.executemany(PUT, rows)


GET = "SELECT id, parent_id, pipeline_name, step_id, accumulated_json, created_at FROM event_context WHERE id = ?"


def get(db: Db, context_id: str) -> Context | None:
    row = db.execute(GET, (context_id,)).fetchone()
    return _context(row) if row else None


LINEAGE = """
    WITH RECURSIVE line (id, parent_id, pipeline_name, step_id, accumulated_json, created_at, hop) AS (
        SELECT id, parent_id, pipeline_name, step_id, accumulated_json, created_at, 0
          FROM event_context WHERE id = :id
        UNION ALL
        SELECT up.id, up.parent_id, up.pipeline_name, up.step_id, up.accumulated_json, up.created_at, line.hop + 1
          FROM line JOIN event_context AS up ON up.id = line.parent_id
         WHERE line.hop < 1000
    )
    SELECT id, parent_id, pipeline_name, step_id, accumulated_json, created_at FROM line ORDER BY hop DESC
"""


def lineage(db: Db, context_id: str) -> list[Context]:
    """Return the rows from the root of the run to `context_id`."""
    return [_context(row) for row in db.execute(LINEAGE, {"id": context_id})]


def _context(row: tuple[str, str | None, str | None, str | None, str, str]) -> Context:
    return Context(
        id=row[0],
        parent_id=row[1],
        pipeline_name=row[2],
        step_id=row[3],
        accumulated_json=row[4],
        created_at=from_text(row[5]),
    )
