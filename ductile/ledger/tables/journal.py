"""The journal: every event and every decision not to act, written in the transaction it belongs to. Append-only.

`seq` is the position in the event stream. Does not know the kinds of entries.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import orjson
from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.bulk_insert import batch_statements, insert_rows
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import members

NEWEST = 1 << 62
"""After the newest position."""


@frozen(kw_only=True)
class JournalEntry:
    """A row of the journal."""

    seq: int
    at: datetime
    kind: str
    plugin: str | None
    job_id: str | None
    root_job_id: str | None
    data: dict[str, Any]
    actor: str | None = None
    message_id: str | None = None


COLUMNS = "seq, at, kind, plugin, job_id, root_job_id, data, actor, message_id"
APPEND_ALL = batch_statements(
    "INSERT INTO journal (at, kind, plugin, job_id, root_job_id, data, actor, message_id)", "(?, ?, ?, ?, ?, ?, ?, ?)"
)
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
    actor: str | None = None,
    message_id: str | None = None,
) -> None:
    """Append an entry. `actor` caused it; None for what Ductile decided itself."""
    now_text = now if isinstance(now, str) else to_text(now)
    db.execute(APPEND, (now_text, kind, plugin, job_id, root_job_id, _dumps(data), actor, message_id))


def append_all(
    db: Db,
    kind: str,
    new_entries: Iterable[tuple[str, str, str, Mapping[str, Any]]],
    *,
    now: datetime,
) -> None:
    """Append entries of one kind, in this order: plugin, job id, root job id and data of each."""
    now_text = to_text(now)
    rows = [
        (now_text, kind, plugin, job_id, root_job_id, _dumps(data), None, None)
        for plugin, job_id, root_job_id, data in new_entries
    ]
    insert_rows(db, APPEND_ALL, rows)


READ_SINCE = f"SELECT {COLUMNS} FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"


def read_since(db: Db, seq: int, *, limit: int = 500) -> list[JournalEntry]:
    """Return the entries after position `seq`, oldest first."""
    return [_entry(row) for row in db.execute(READ_SINCE, (seq, limit))]


OF_KINDS = f"""
    SELECT {COLUMNS} FROM journal
     WHERE seq > :after AND seq <= :up_to AND kind IN {members(":kinds")} ORDER BY seq LIMIT :limit
"""


def of_kinds(db: Db, kinds: Iterable[str], *, after: int, up_to: int, limit: int) -> list[JournalEntry]:
    """Return the entries of these kinds between two positions, oldest first."""
    values = {"kinds": json.dumps(list(kinds)), "after": after, "up_to": up_to, "limit": limit}
    return [_entry(row) for row in db.execute(OF_KINDS, values)]


OF_JOB = f"""
    SELECT {COLUMNS} FROM journal WHERE job_id = ? ORDER BY seq LIMIT ?
"""


def of_job(db: Db, job_id: str, *, limit: int = 1000) -> list[JournalEntry]:
    """Return the entries of a job, oldest first."""
    return [_entry(row) for row in db.execute(OF_JOB, (job_id, limit))]


MessageEntry: TypeAlias = tuple[str, str | None, Mapping[str, Any]]
"""The id of a message, the job that caused the entry, and its data."""


def append_of_messages(
    db: Db, kind: str, new_entries: Iterable[MessageEntry], *, now: datetime, actor: str | None
) -> None:
    """Append entries of one kind about messages, in this order."""
    now_text = to_text(now)
    rows = [
        (now_text, kind, None, job_id, None, _dumps(data), actor, message_id)
        for message_id, job_id, data in new_entries
    ]
    insert_rows(db, APPEND_ALL, rows)


OF_MESSAGE = f"SELECT {COLUMNS} FROM journal WHERE message_id = ? ORDER BY seq LIMIT ?"


def of_message(db: Db, message_id: str, *, limit: int = 1000) -> list[JournalEntry]:
    """Return the entries of a message, oldest first."""
    return [_entry(row) for row in db.execute(OF_MESSAGE, (message_id, limit))]


OF_PLUGIN = f"""
    SELECT {COLUMNS} FROM journal
     WHERE plugin = ? AND job_id IS NULL AND seq < ? ORDER BY seq DESC LIMIT ?
"""


def of_plugin(db: Db, plugin: str, *, before: int = NEWEST, limit: int = 200) -> list[JournalEntry]:
    """Return the entries of a plugin that belong to no job, such as held slots and breakers; newest first."""
    return [_entry(row) for row in db.execute(OF_PLUGIN, (plugin, before, limit))]


LATEST = f"""
    SELECT {COLUMNS} FROM journal
     WHERE (:plugin IS NULL OR plugin = :plugin) AND kind NOT IN {members(":exclude")}
       AND (:since IS NULL OR at >= :since) AND (:until IS NULL OR at < :until) AND seq < :before
     ORDER BY seq DESC LIMIT :limit
"""
LATEST_OF_JOB = LATEST.replace("WHERE", "WHERE job_id = :job_id AND")


def latest(
    db: Db,
    *,
    limit: int,
    plugin: str | None = None,
    job_id: str | None = None,
    exclude: Iterable[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    before: int = NEWEST,
) -> list[JournalEntry]:
    """Return the newest entries of a plugin and job (None: any) before position `before`, oldest first.

    Leaves out the kinds in `exclude` and what was written before `since` or from `until` on.
    """
    values = {
        "plugin": plugin,
        "job_id": job_id,
        "exclude": json.dumps(list(exclude)),
        "since": to_text(since) if since else None,
        "until": to_text(until) if until else None,
        "before": before,
        "limit": limit,
    }
    statement = LATEST if job_id is None else LATEST_OF_JOB
    return [_entry(row) for row in db.execute(statement, values).fetchall()][::-1]


LAST_SEQ = "SELECT COALESCE(MAX(seq), 0) FROM journal"
FIRST_SEQ = "SELECT COALESCE(MIN(seq), 0) FROM journal"


def bounds(db: Db) -> tuple[int, int]:
    """Return the first and the last position; (0, 0) if the journal is empty."""
    return db.execute(FIRST_SEQ).fetchone()[0], db.execute(LAST_SEQ).fetchone()[0]


def position(db: Db) -> int:
    """Return the position of the newest entry, which retention never deletes; 0 if the journal is empty."""
    last: int = db.execute(LAST_SEQ).fetchone()[0]
    return last


NEWEST_TIME = "SELECT at FROM journal ORDER BY seq DESC LIMIT 1"


def newest_time(db: Db) -> datetime | None:
    """Return when the newest entry was written. A system time far before it is wrong."""
    row = db.execute(NEWEST_TIME).fetchone()
    return from_text(row[0]) if row else None


def entries(rows: Iterable[tuple[Any, ...]]) -> list[JournalEntry]:
    """Build entries from rows of COLUMNS."""
    return [_entry(row) for row in rows]


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    seq, at, kind, plugin, job_id, root_job_id, data, actor, message_id = row
    return JournalEntry(
        seq=seq,
        at=from_text(at),
        kind=kind,
        plugin=plugin,
        job_id=job_id,
        root_job_id=root_job_id,
        data=json.loads(data),
        actor=actor,
        message_id=message_id,
    )


def _dumps(data: Mapping[str, Any] | None) -> str:
    """Encode as JSON. Every job writes at least three entries, so the fast encoder is tried first."""
    if not data:
        return "{}"
    try:
        return orjson.dumps(data).decode()
    except TypeError:
        return strict_json.dumps(data)
