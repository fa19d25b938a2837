"""How large the ledger is and why: bytes and rows by table, how fast they come, and which jobs are the heaviest.

Reads every page once, so it takes as long as the file is large. `compact` is the one function that writes: for whoever
holds the instance lock. What sizes mean for the disk is `care.storage`'s work.
"""

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import from_text, to_text
from ductile.ledger.storage import connections
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.storage.sqlite_errors import translating

MOMENTS = {
    "job_queue": "created_at",
    "job_log": "completed_at",
    "journal": "at",
    "event_context": "created_at",
    "plugin_facts": "created_at",
    "circuit_breaker_transitions": "created_at",
}
"""Tables that grow with what happens → the column that tells when a row came."""
WORDS = "job_log_words"
LATELY = timedelta(days=7)


@frozen(kw_only=True)
class TableSize:
    """One table with its indexes; `per_day` is how many rows came a day lately, None for those that do not grow so."""

    name: str
    rows: int
    bytes: int
    index_bytes: int
    used_bytes: int
    """Of both, without what is still empty in their pages."""
    per_day: float | None

    @property
    def bytes_per_row(self) -> float:
        return self.used_bytes / self.rows if self.rows else 0.0


@frozen(kw_only=True)
class Sizes:
    """The file as it is now. `estimated`: this SQLite cannot tell pages apart, so bytes are shared out by rows."""

    page_bytes: int
    pages: int
    free_pages: int
    tables: tuple[TableSize, ...]
    estimated: bool
    measured: timedelta
    """How far back `per_day` looks."""


def measure(db: Db, kept: Mapping[str, timedelta], *, now: datetime) -> Sizes:
    """What the file holds. A young ledger is measured over its age, at least over an hour.

    So is a table whose rows are `kept` for less than a week: older ones that came are gone.
    """
    free, pages, page_bytes = free_pages(db)
    rows = {name: db.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in _tables(db)}
    measured = min(LATELY, max(now - _oldest(db, now), timedelta(hours=1)))
    room = _room(db)
    tables = [
        _table_size(name, count, room, (pages - free) * page_bytes * count // (sum(rows.values()) or 1))
        for name, count in rows.items()
    ]
    spans = {name: min(measured, kept.get(name, measured)) for name in rows}
    tables = [evolve(table, per_day=_per_day(db, table.name, spans[table.name], now)) for table in tables]
    return Sizes(
        page_bytes=page_bytes,
        pages=pages,
        free_pages=free,
        tables=tuple(sorted(tables, key=lambda table: -(table.bytes + table.index_bytes))),
        estimated=room is None,
        measured=measured,
    )


def free_pages(db: Db) -> tuple[int, int, int]:
    """Pages that hold nothing, all pages, and the bytes of one."""
    free, pages, page_bytes = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count", "page_size")
    )
    return free, pages, page_bytes


TABLES = """
    SELECT name FROM sqlite_schema
     WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'job_log_words_%' ORDER BY name
"""


def _tables(db: Db) -> list[str]:
    """Every table; the parts of the word index are one."""
    return [name for (name,) in db.execute(TABLES)]


ROOM = """
    SELECT object.tbl_name, object.name = object.tbl_name, SUM(stat.pgsize), SUM(stat.pgsize - stat.unused)
      FROM dbstat AS stat JOIN sqlite_schema AS object ON object.name = stat.name
     GROUP BY 1, 2
"""


def _room(db: Db) -> dict[tuple[str, bool], tuple[int, int]] | None:
    """Table, itself or its indexes → bytes and how many of them are used; None where SQLite has no `dbstat`."""
    room: dict[tuple[str, bool], tuple[int, int]] = {}
    try:
        for name, is_table, size, used in db.execute(ROOM):
            key = (WORDS if name.startswith(f"{WORDS}_") else name, bool(is_table))
            before = room.get(key, (0, 0))
            room[key] = before[0] + size, before[1] + used
    except sqlite3.OperationalError:
        return None
    return room


def _table_size(name: str, rows: int, room: dict[tuple[str, bool], tuple[int, int]] | None, share: int) -> TableSize:
    if room is None:
        return TableSize(name=name, rows=rows, bytes=share, index_bytes=0, used_bytes=share, per_day=None)
    (own, own_used), (indexes, indexes_used) = room.get((name, True), (0, 0)), room.get((name, False), (0, 0))
    used = own_used + indexes_used
    return TableSize(name=name, rows=rows, bytes=own, index_bytes=indexes, used_bytes=used, per_day=None)


def _oldest(db: Db, now: datetime) -> datetime:
    """When the first row came that is still there."""
    found = [db.execute(f"SELECT MIN({moment}) FROM {name}").fetchone()[0] for name, moment in MOMENTS.items()]
    return min((from_text(text) for text in found if text), default=now)


def _per_day(db: Db, name: str, span: timedelta, now: datetime) -> float | None:
    if name not in MOMENTS:
        return None
    statement = f"SELECT COUNT(*) FROM {name} WHERE {MOMENTS[name]} >= ?"
    count: int = db.execute(statement, (to_text(now - span),)).fetchone()[0]
    return count / (span / timedelta(days=1))


LARGEST = """
    SELECT id, plugin, command, SUM(bytes) AS bytes FROM (
        SELECT id, plugin, command, length(CAST(COALESCE(payload, '') AS BLOB)) AS bytes FROM job_queue
        UNION ALL
        SELECT job_id, plugin, command,
               length(CAST(COALESCE(result, '') AS BLOB)) + length(CAST(COALESCE(stderr, '') AS BLOB))
          FROM job_log)
     GROUP BY id ORDER BY bytes DESC LIMIT ?
"""


def largest_jobs(db: Db, limit: int) -> list[dict[str, Any]]:
    """The jobs whose payload, results and stderr take most room."""
    names = ("job_id", "plugin", "command", "bytes")
    return [dict(zip(names, row, strict=True)) for row in db.execute(LARGEST, (limit,)) if row[3]]


def compact(path: Path) -> None:
    """The file has no free pages and no log. The caller holds the instance lock; needs the room of a second copy."""
    with contextlib.closing(open_writer(path)) as db, translating(path):
        db.execute("VACUUM")
        connections.fold_log(db)


def file_bytes(path: Path) -> tuple[int, int]:
    """Bytes of the ledger and of its log."""
    log = path.with_name(path.name + "-wal")
    return path.stat().st_size, log.stat().st_size if log.exists() else 0


def free_disk_bytes(path: Path) -> int:
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize
