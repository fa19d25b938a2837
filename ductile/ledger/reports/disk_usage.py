"""Disk usage of a ledger: bytes and rows by table, growth rates, and the largest jobs.

Reads every page once, so the duration grows with the file. Only `compact` writes; it needs the instance lock. Forecasts
are made in `ops.storage`.
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

TIME_COLUMNS = {
    "job_queue": "created_at",
    "job_log": "completed_at",
    "journal": "at",
    "event_context": "created_at",
    "plugin_facts": "created_at",
    "circuit_breaker_transitions": "created_at",
    "messages": "created_at",
    "claims": "claimed_at",
}
"""Tables that grow with the work → the column with the time of a row."""
SEARCH_INDEX = "job_log_words"
RATE_WINDOW = timedelta(days=7)


@frozen(kw_only=True)
class TableSize:
    """The size of a table and its indexes. `per_day` is the number of new rows per day; None if it does not grow."""

    name: str
    rows: int
    bytes: int
    index_bytes: int
    used_bytes: int
    """Of table and indexes, without free space in their pages."""
    per_day: float | None

    @property
    def bytes_per_row(self) -> float:
        return self.used_bytes / self.rows if self.rows else 0.0


@frozen(kw_only=True)
class DiskUsage:
    """The size of the file. If `estimated`, this SQLite has no `dbstat`, and bytes are divided by rows."""

    page_bytes: int
    pages: int
    free_pages: int
    tables: tuple[TableSize, ...]
    estimated: bool
    measured: timedelta
    """The period that `per_day` was measured over."""


def measure(db: Db, retention: Mapping[str, timedelta], *, now: datetime) -> DiskUsage:
    """Measure the file. Growth is measured over a week, or over the age of the ledger, at least over an hour.

    A table with a shorter retention is measured over that time.
    """
    free, pages, page_bytes = free_pages(db)
    rows = {name: db.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in _tables(db)}
    measured = min(RATE_WINDOW, max(now - _oldest(db, now), timedelta(hours=1)))
    usage = _page_usage(db)
    tables = [
        _table_size(name, count, usage, (pages - free) * page_bytes * count // (sum(rows.values()) or 1))
        for name, count in rows.items()
    ]
    spans = {name: min(measured, retention.get(name, measured)) for name in rows}
    tables = [evolve(table, per_day=_per_day(db, table.name, spans[table.name], now)) for table in tables]
    return DiskUsage(
        page_bytes=page_bytes,
        pages=pages,
        free_pages=free,
        tables=tuple(sorted(tables, key=lambda table: -(table.bytes + table.index_bytes))),
        estimated=usage is None,
        measured=measured,
    )


def free_pages(db: Db) -> tuple[int, int, int]:
    """Return the number of free pages, of all pages, and the bytes per page."""
    free, pages, page_bytes = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count", "page_size")
    )
    return free, pages, page_bytes


TABLES = """
    SELECT name FROM sqlite_schema
     WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'job_log_words_%' ORDER BY name
"""


def _tables(db: Db) -> list[str]:
    """List the tables. The parts of the search index count as one."""
    return [name for (name,) in db.execute(TABLES)]


PAGE_USAGE = """
    SELECT object.tbl_name, object.name = object.tbl_name, SUM(stat.pgsize), SUM(stat.pgsize - stat.unused)
      FROM dbstat AS stat JOIN sqlite_schema AS object ON object.name = stat.name
     GROUP BY 1, 2
"""


def _page_usage(db: Db) -> dict[tuple[str, bool], tuple[int, int]] | None:
    """Return bytes and used bytes by (table, is_table); False stands for its indexes. None without `dbstat`."""
    usage: dict[tuple[str, bool], tuple[int, int]] = {}
    try:
        for name, is_table, size, used in db.execute(PAGE_USAGE):
            key = (SEARCH_INDEX if name.startswith(f"{SEARCH_INDEX}_") else name, bool(is_table))
            total, total_used = usage.get(key, (0, 0))
            usage[key] = total + size, total_used + used
    except sqlite3.OperationalError:
        return None
    return usage


def _table_size(name: str, rows: int, usage: dict[tuple[str, bool], tuple[int, int]] | None, share: int) -> TableSize:
    if usage is None:
        return TableSize(name=name, rows=rows, bytes=share, index_bytes=0, used_bytes=share, per_day=None)
    (own, own_used), (indexes, indexes_used) = usage.get((name, True), (0, 0)), usage.get((name, False), (0, 0))
    used = own_used + indexes_used
    return TableSize(name=name, rows=rows, bytes=own, index_bytes=indexes, used_bytes=used, per_day=None)


def _oldest(db: Db, now: datetime) -> datetime:
    """Return the time of the oldest row."""
    found = [db.execute(f"SELECT MIN({column}) FROM {name}").fetchone()[0] for name, column in TIME_COLUMNS.items()]
    return min((from_text(text) for text in found if text), default=now)


def _per_day(db: Db, name: str, span: timedelta, now: datetime) -> float | None:
    if name not in TIME_COLUMNS:
        return None
    statement = f"SELECT COUNT(*) FROM {name} WHERE {TIME_COLUMNS[name]} >= ?"
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
    """Return the jobs with the most bytes of payload, results and stderr."""
    names = ("job_id", "plugin", "command", "bytes")
    return [dict(zip(names, row, strict=True)) for row in db.execute(LARGEST, (limit,)) if row[3]]


def compact(path: Path) -> None:
    """Remove free pages and the log. The caller holds the instance lock. Needs disk space for a second copy."""
    with contextlib.closing(open_writer(path)) as db, translating(path):
        db.execute("VACUUM")
        connections.checkpoint_and_truncate(db)


def file_bytes(path: Path) -> tuple[int, int]:
    """Return the bytes of the ledger and of its log."""
    log = path.with_name(path.name + "-wal")
    return path.stat().st_size, log.stat().st_size if log.exists() else 0


def free_disk_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize
