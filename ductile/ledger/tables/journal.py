"""The journal: everything that happened or was decided not to happen, in the transaction that made it so.

Rows are only appended; `seq` is the position of the event stream. Who decides writes; this room only knows the shape.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import orjson
from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.bulk_insert import in_portions, insert_all
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import members


@frozen(kw_only=True)
class JournalEntry:
    """One row of the journal."""

    seq: int
    at: datetime
    kind: str
    plugin: str | None
    job_id: str | None
    root_job_id: str | None
    data: dict[str, Any]


APPEND_ALL = in_portions("INSERT INTO journal (at, kind, plugin, job_id, root_job_id, data)", "(?, ?, ?, ?, ?, ?)")
APPEND = APPEND_ALL[1]


def append(
    db: Db,
    kind: str,
    *,
    now: datetime | str,
    data: Mapping[str, Any] | None = None,
    plugin: str | None = None,
    job_id: str | None = None,
    root_job_id: str | None = None,
) -> None:
    """The journal ends with this row."""
    moment = now if isinstance(now, str) else to_text(now)
    db.execute(APPEND, (moment, kind, plugin, job_id, root_job_id, _dumps(data)))


def append_all(
    db: Db,
    kind: str,
    told: Iterable[tuple[str, str, str, Mapping[str, Any]]],
    *,
    now: datetime,
) -> None:
    """The journal ends with a row of this kind for each plugin, job, root and what is told of it, in this order."""
    moment = to_text(now)
    rows = [(moment, kind, plugin, job_id, root_job_id, _dumps(data)) for plugin, job_id, root_job_id, data in told]
    insert_all(db, APPEND_ALL, rows)


READ_SINCE = "SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"


def read_since(db: Db, seq: int, *, limit: int = 500) -> list[JournalEntry]:
    """The rows after position `seq`, oldest first."""
    return [_entry(row) for row in db.execute(READ_SINCE, (seq, limit))]


OF_JOB = """
    SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal WHERE job_id = ? ORDER BY seq LIMIT ?
"""


def of_job(db: Db, job_id: str, *, limit: int = 1000) -> list[JournalEntry]:
    """What the journal says about one job, oldest first."""
    return [_entry(row) for row in db.execute(OF_JOB, (job_id, limit))]


OF_PLUGIN = """
    SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal
     WHERE plugin = ? AND job_id IS NULL AND seq < ? ORDER BY seq DESC LIMIT ?
"""


def of_plugin(db: Db, plugin: str, *, before: int = 1 << 62, limit: int = 200) -> list[JournalEntry]:
    """What was decided about a plugin and belongs to no job (held slots, breakers), newest first."""
    return [_entry(row) for row in db.execute(OF_PLUGIN, (plugin, before, limit))]


LATEST = f"""
    SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal
     WHERE (:plugin IS NULL OR plugin = :plugin) AND kind NOT IN {members(":but")}
     ORDER BY seq DESC LIMIT :limit
"""
LATEST_OF_JOB = LATEST.replace("WHERE", "WHERE job_id = :job_id AND")


def latest(db: Db, *, plugin: str | None, job_id: str | None, but: Iterable[str], limit: int) -> list[JournalEntry]:
    """The newest rows of that plugin and job (None: of any), without those of the kinds in `but`; oldest first."""
    asked = {"plugin": plugin, "job_id": job_id, "but": json.dumps(list(but)), "limit": limit}
    statement = LATEST if job_id is None else LATEST_OF_JOB
    return [_entry(row) for row in db.execute(statement, asked).fetchall()][::-1]


LAST_SEQ = "SELECT COALESCE(MAX(seq), 0) FROM journal"
FIRST_SEQ = "SELECT COALESCE(MIN(seq), 0) FROM journal"


def bounds(db: Db) -> tuple[int, int]:
    """The first and last position that exist; (0, 0) in an empty journal."""
    return db.execute(FIRST_SEQ).fetchone()[0], db.execute(LAST_SEQ).fetchone()[0]


def position(db: Db) -> int:
    """Return the position of the newest row, which retention always keeps; 0 before the first."""
    last: int = db.execute(LAST_SEQ).fetchone()[0]
    return last


NEWEST_MOMENT = "SELECT at FROM journal ORDER BY seq DESC LIMIT 1"


def newest_moment(db: Db) -> datetime | None:
    """When the last row was written; a wall clock far before it is wrong."""
    row = db.execute(NEWEST_MOMENT).fetchone()
    return from_text(row[0]) if row else None


def entries(rows: Iterable[tuple[Any, ...]]) -> list[JournalEntry]:
    """Rows of all columns, in the order of the table."""
    return [_entry(row) for row in rows]


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    seq, at, kind, plugin, job_id, root_job_id, data = row
    return JournalEntry(
        seq=seq,
        at=from_text(at),
        kind=kind,
        plugin=plugin,
        job_id=job_id,
        root_job_id=root_job_id,
        data=json.loads(data),
    )


def _dumps(data: Mapping[str, Any] | None) -> str:
    """Every job writes at least three of these, so the fast encoder first; what it refuses is rare."""
    if not data:
        return "{}"
    try:
        return orjson.dumps(data).decode()
    except TypeError:
        return strict_json.dumps(data)
