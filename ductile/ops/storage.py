"""Report the disk usage of the ledger, forecast its growth, and compact it.

Reads the retention settings from the last configuration snapshot in the ledger, not from the configuration files.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.errors import LedgerFull
from ductile.core.instance.lock import instance_lock, require_unlocked
from ductile.core.units import format_size, parse_duration
from ductile.ledger.reports import disk_usage
from ductile.ledger.reports.disk_usage import DiskUsage, TableSize
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import snapshots

FORECAST_PERIOD = timedelta(days=30)
MAX_LARGEST_JOBS = 5
RETENTION_SETTINGS = {
    "job_queue": ("job_queue_retention",),
    "job_log": ("job_log_retention",),
    "journal": ("job_transitions_retention",),
    "event_context": ("job_queue_retention", "job_log_retention"),
    "plugin_facts": ("facts_retention",),
    "circuit_breaker_transitions": ("breaker_transitions_retention",),
    "webhook_deliveries": ("webhook_deliveries_retention",),
}
"""Retention settings of `service` by table. The longest one applies."""
EXCHANGE_TABLES = ("messages", "claims")
"""Tables that `exchange.retention` applies to, and the retention of a topic if that is longer."""


@frozen(kw_only=True)
class Forecast:
    """The expected size of the ledger after `FORECAST_PERIOD`, at the recent growth rate."""

    bytes: int
    growth_per_day: float
    days_until_full: float | None


def report(path: Path, *, now: datetime) -> dict[str, Any]:
    """Return the disk usage and forecast of the ledger at `path`."""
    with open_reader(path) as db:
        retention = read_retention(db)
        measured = disk_usage.measure(db, retention, now=now)
        largest = disk_usage.largest_jobs(db, MAX_LARGEST_JOBS)
    file, log = disk_usage.file_bytes(path)
    disk = disk_usage.free_disk_bytes(path)
    expected = forecast(measured, retention, file, disk)
    return {
        "path": str(path),
        "bytes": file,
        "wal_bytes": log,
        "page_bytes": measured.page_bytes,
        "pages": measured.pages,
        "free_pages": measured.free_pages,
        "free_bytes": measured.free_pages * measured.page_bytes,
        "disk_free_bytes": disk,
        "estimated": measured.estimated,
        "measured_days": round(measured.measured / timedelta(days=1), 2),
        "tables": [_table(table, retention.get(table.name)) for table in measured.tables],
        "forecast": {
            "days": FORECAST_PERIOD.days,
            "bytes": expected.bytes,
            "growth_bytes_per_day": round(expected.growth_per_day),
            "days_until_disk_full": None if expected.days_until_full is None else round(expected.days_until_full, 1),
        },
        "largest_jobs": largest,
    }


def _table(table: TableSize, retention: timedelta | None) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "bytes": table.bytes,
        "index_bytes": table.index_bytes,
        "rows_per_day": None if table.per_day is None else round(table.per_day, 1),
        "kept_days": None if retention is None else round(retention / timedelta(days=1), 2),
    }


def read_retention(db: Db) -> dict[str, timedelta]:
    """Return the retention by table. Other tables are not pruned by age."""
    snapshot = snapshots.newest(db)
    try:
        config = json.loads(snapshot.sanitized_config or "{}") if snapshot else {}
    except ValueError:
        config = {}
    service: Mapping[str, Any] = config.get("service") or {}
    settings = {table: [service.get(name) for name in names] for table, names in RETENTION_SETTINGS.items()}
    settings |= dict.fromkeys(EXCHANGE_TABLES, _exchange_retentions(config.get("exchange") or {}))
    retention = {}
    for table, texts in settings.items():
        values = [_parse_retention(text) for text in texts]
        if all(values):
            retention[table] = max(value for value in values if value)
    return retention


def _exchange_retentions(exchange: Mapping[str, Any]) -> list[Any]:
    topics: Mapping[str, Any] = exchange.get("topics") or {}
    own = [topic.get("retention") for topic in topics.values()]
    return [exchange.get("retention"), *(value for value in own if value is not None)]


def _parse_retention(value: Any) -> timedelta | None:
    """Parse a retention setting. Returns None if it is unlimited or invalid."""
    try:
        return parse_duration(str(value)) or None
    except ValueError:
        return None


def forecast(measured: DiskUsage, retention: Mapping[str, timedelta], file: int, disk: int) -> Forecast:
    """Forecast the size: rows arrive at the recent rate, expire by retention, and fill free pages first."""
    growth = sum(_growth(table, retention.get(table.name)) for table in measured.tables)
    free = measured.free_pages * measured.page_bytes
    grown = max(0.0, growth - free)  # SQLite does not shrink a file
    per_day = grown / FORECAST_PERIOD.days
    return Forecast(
        bytes=round(file + grown),
        growth_per_day=per_day,
        days_until_full=disk / per_day if per_day > 0 else None,
    )


def _growth(table: TableSize, retention: timedelta | None) -> float:
    """Return the expected growth of a table in bytes; negative if it shrinks."""
    if not table.per_day:
        return 0.0
    rows = table.rows + table.per_day * FORECAST_PERIOD.days
    if retention is not None:
        rows = min(rows, max(table.per_day * (retention / timedelta(days=1)), 0.0))
    return (rows - table.rows) * table.bytes_per_row


@frozen(kw_only=True)
class Compacted:
    """The size of the file before and after compaction. In a dry run `after` is an estimate."""

    path: Path
    before: int
    after: int


def compact(path: Path, *, now: datetime, dry_run: bool) -> Compacted:
    """Remove the free pages from the file. Raises AlreadyRunning if a service uses it, and LedgerFull."""
    require_unlocked(path.parent, path)
    before, expected = sum(disk_usage.file_bytes(path)), expected_bytes(path)
    require_disk_space(path)
    if not dry_run:
        with instance_lock(path.parent, path, now=now):
            compact_locked(path)
    return Compacted(path=path, before=before, after=expected if dry_run else sum(disk_usage.file_bytes(path)))


def compact_locked(path: Path) -> None:
    """Compact the file. The caller must hold the instance lock."""
    require_disk_space(path)
    disk_usage.compact(path)


def require_disk_space(path: Path) -> None:
    """Raise LedgerFull unless the disk has space for a copy of the content and for its log."""
    needed = 2 * expected_bytes(path)
    if disk_usage.free_disk_bytes(path) < needed:
        raise LedgerFull(
            f"compaction needs {format_size(needed)} of free disk space",
            path=path,
            hint="Free some disk space. Nothing was changed.",
        )


def expected_bytes(path: Path) -> int:
    """Return the size of the file without its free pages."""
    with open_reader(path) as db:
        free, pages, page_bytes = disk_usage.free_pages(db)
    return (pages - free) * page_bytes
