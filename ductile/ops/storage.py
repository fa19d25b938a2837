"""What the ledger takes on disk, how it grows, and where that leads: size in 30 days, days until the disk is full.

Retention comes from the configuration that a service loaded last, which the ledger keeps; nothing else is read.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.errors import LedgerFull
from ductile.core.instance.lock import instance_lock, require_free
from ductile.core.units import format_size, parse_duration
from ductile.ledger.reports import disk_usage
from ductile.ledger.reports.disk_usage import Sizes, TableSize
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import snapshots

AHEAD = timedelta(days=30)
LARGEST_JOBS = 5
RETENTION = {
    "job_queue": ("job_queue_retention",),
    "job_log": ("job_log_retention",),
    "journal": ("job_transitions_retention",),
    "event_context": ("job_queue_retention", "job_log_retention"),
    "plugin_facts": ("facts_retention",),
    "circuit_breaker_transitions": ("breaker_transitions_retention",),
}
"""Table → the settings of `service` that say how long its rows are kept; the longest counts."""


@frozen(kw_only=True)
class Forecast:
    """Where the ledger is heading, if everything goes on as lately."""

    bytes: int
    growth_per_day: float
    days_until_full: float | None


def report(path: Path, *, now: datetime) -> dict[str, Any]:
    """Everything about the room that the ledger at `path` takes."""
    with open_reader(path) as db:
        kept = kept_for(db)
        measured = disk_usage.measure(db, kept, now=now)
        largest = disk_usage.largest_jobs(db, LARGEST_JOBS)
    file, log = disk_usage.file_bytes(path)
    disk = disk_usage.free_disk_bytes(path)
    ahead = forecast(measured, kept, file, disk)
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
        "tables": [_table(table, kept.get(table.name)) for table in measured.tables],
        "forecast": {
            "days": AHEAD.days,
            "bytes": ahead.bytes,
            "growth_bytes_per_day": round(ahead.growth_per_day),
            "days_until_disk_full": None if ahead.days_until_full is None else round(ahead.days_until_full, 1),
        },
        "largest_jobs": largest,
    }


def _table(table: TableSize, kept: timedelta | None) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "bytes": table.bytes,
        "index_bytes": table.index_bytes,
        "rows_per_day": None if table.per_day is None else round(table.per_day, 1),
        "kept_days": None if kept is None else round(kept / timedelta(days=1), 2),
    }


def kept_for(db: Db) -> dict[str, timedelta]:
    """How long rows are kept, by table; a table that is not named is never pruned by age."""
    last = snapshots.newest(db)
    try:
        config = json.loads(last.sanitized_config or "{}") if last else {}
    except ValueError:
        config = {}
    service: Mapping[str, Any] = config.get("service") or {}
    kept = {}
    for table, names in RETENTION.items():
        spans = [_span(service.get(name)) for name in names]
        if all(spans):
            kept[table] = max(span for span in spans if span)
    return kept


def _span(written: Any) -> timedelta | None:
    """A retention as it was written; None for one that keeps for ever or cannot be read."""
    try:
        return parse_duration(str(written)) or None
    except ValueError:
        return None


def forecast(measured: Sizes, kept: Mapping[str, timedelta], file: int, disk: int) -> Forecast:
    """Rows come as fast as lately and go when they are too old; free pages are used first."""
    more = sum(_growth(table, kept.get(table.name)) for table in measured.tables)
    free = measured.free_pages * measured.page_bytes
    grown = max(0.0, more - free)  # a file does not shrink by itself
    per_day = grown / AHEAD.days
    return Forecast(
        bytes=round(file + grown),
        growth_per_day=per_day,
        days_until_full=disk / per_day if per_day > 0 else None,
    )


def _growth(table: TableSize, kept: timedelta | None) -> float:
    """Bytes that a table will have more than now."""
    if not table.per_day:
        return 0.0
    rows = table.rows + table.per_day * AHEAD.days
    if kept is not None:
        rows = min(rows, max(table.per_day * (kept / timedelta(days=1)), 0.0))
    return (rows - table.rows) * table.bytes_per_row


@frozen(kw_only=True)
class Compacted:
    """The file before and after; `after` is what is expected where nothing was done."""

    path: Path
    before: int
    after: int


def compact(path: Path, *, now: datetime, dry_run: bool) -> Compacted:
    """The file is as small as its content allows. Raises AlreadyRunning while a service has it open."""
    require_free(path.parent, path)
    before, expected = sum(disk_usage.file_bytes(path)), expected_bytes(path)
    require_room(path)
    if not dry_run:
        with instance_lock(path.parent, path, now=now):
            rewrite(path)
    return Compacted(path=path, before=before, after=expected if dry_run else sum(disk_usage.file_bytes(path)))


def rewrite(path: Path) -> None:
    """The same for whoever holds the instance lock."""
    require_room(path)
    disk_usage.compact(path)


def require_room(path: Path) -> None:
    """Raises LedgerFull unless a second copy of the content, and the log of writing it, fit on the disk."""
    needed = 2 * expected_bytes(path)
    if disk_usage.free_disk_bytes(path) < needed:
        raise LedgerFull(
            f"{path}: compacting needs {format_size(needed)} free on its disk",
            hint="free some space first; nothing was changed",
        )


def expected_bytes(path: Path) -> int:
    """How large the file is without its free pages."""
    with open_reader(path) as db:
        free, pages, page_bytes = disk_usage.free_pages(db)
    return (pages - free) * page_bytes
