"""Lists of jobs: rows of the queue as the JSON objects of the API and the command line. Read-only.

Builds no `Job`, so that a page costs no more than its rows.
"""

from datetime import datetime, timedelta
from typing import Any

from attrs import evolve

from ductile.core.clock import from_text, to_text
from ductile.ledger.reports.pagination import (
    NEWEST,
    NO_FILTER,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    complete_filter,
    find_seq,
    id_filter,
    page,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

UNUSUAL = ("failed", "dead", "skipped")
IS_UNUSUAL = f"status IN {UNUSUAL} AND status NOT IN ('queued', 'running') AND status <> 'succeeded'"
"""The conditions of the index of new and of older ledgers. SQLite does not derive one from the other."""
_NAMES = ("plugin", "command", "status", "attempt", "max_attempts", "submitted_by", "actor")
_PLACES = ("parent_job_id", "root_job_id", "pipeline", "step_id", "schedule_id")
_MOMENTS = ("slot_at", "created_at", "started_at", "completed_at", "next_retry_at")
COLUMNS = ("id", *_NAMES, *_PLACES, *_MOMENTS, "outcome_code", "last_error")
"""Without payload and baggage, each of which may take 1 MiB per job."""

MAX_OPEN_JOBS = 500
"""Open jobs that a count of successes may read, to subtract those of the plugin."""

JobRow = dict[str, Any]


def jobs(db: Db, wanted: ListFilter = NO_FILTER, *, before: int = NEWEST, limit: int = 50) -> Page[JobRow]:
    """Return a page of the matching jobs in the queue. `before` is `next_before` of the previous page."""
    found = page(db, JOBS, _job_filter(db, wanted), before=before, limit=limit)
    return Page([_job_row(row) for row in found.items], found.total, found.is_exact, found.next_before)


def _job_row(row: tuple[Any, ...]) -> JobRow:
    """Return the columns that are not null, under the names of the API."""
    job = {name: value for name, value in zip(("job_id", *COLUMNS[1:]), row[1:], strict=True) if value is not None}
    for name in _MOMENTS:
        if name in job:
            job[name] = to_text(from_text(job[name]))
    return job


# Pages are divided by `seq`, which is not shown.
JOBS = Listing[tuple[Any, ...]](
    table="job_queue",
    columns=f"seq, {', '.join(COLUMNS)}",
    time_column="created_at",
    id_column="id",
    search_columns=("plugin", "command", "pipeline", "step_id", "last_error"),
    read=lambda row: row,
    seq_of=lambda row: int(row[0]),
)


def _job_filter(db: Db, wanted: ListFilter) -> SqlFilter:
    status, plugin = wanted.status, wanted.plugin
    if wanted.root or wanted.job_id:
        return complete_filter(db, JOBS, wanted, id_filter(JOBS, wanted))
    if plugin and status in UNUSUAL:
        only = f"plugin = ? AND status = ? AND {IS_UNUSUAL}"
        indexed = SqlFilter(index_condition=only, index_name="job_queue_unusual", values=(plugin, status))
    elif status and (not plugin or status != "succeeded"):
        indexed = SqlFilter(index_condition="status = ?", index_name="job_queue_by_status", values=(status,))
    elif plugin:
        indexed = SqlFilter(index_condition="plugin = ?", index_name="job_queue_by_plugin", values=(plugin,))
    else:
        indexed = SqlFilter()
    terms = complete_filter(db, JOBS, wanted, indexed)
    if plugin and wanted == ListFilter(plugin=plugin, status="succeeded"):
        return evolve(terms, count_from_indexes=lambda db, after: _count_succeeded(db, plugin, after))
    return terms


# No index has the successes of a plugin, but indexes have all other jobs. The rows themselves are not read.
ALL_OF_PLUGIN = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_plugin')} WHERE plugin = ? AND seq > ?"
UNUSUAL_OF_PLUGIN = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_unusual")} WHERE plugin = ? AND {IS_UNUSUAL} AND seq > ?
"""
OPEN_OF_PLUGIN = f"""
    SELECT COUNT(*), COALESCE(SUM(CASE WHEN plugin = ? THEN 1 ELSE 0 END), 0)
      FROM (SELECT plugin FROM job_queue {using("job_queue_by_status")}
             WHERE status IN ('queued', 'running') AND seq > ? LIMIT ?)
"""


def _count_succeeded(db: Db, plugin: str, after: int) -> int | None:
    """Count the succeeded jobs of the plugin after that `seq`; None if more than MAX_OPEN_JOBS are open."""
    open_jobs, open_of_plugin = db.execute(OPEN_OF_PLUGIN, (plugin, after, MAX_OPEN_JOBS + 1)).fetchone()
    if open_jobs > MAX_OPEN_JOBS:
        return None
    (total,), (unusual,) = (
        db.execute(statement, (plugin, after)).fetchone() for statement in (ALL_OF_PLUGIN, UNUSUAL_OF_PLUGIN)
    )
    return int(total - unusual - open_of_plugin)


def first_seq_since(db: Db, since: datetime) -> int:
    """Return the first `seq` enqueued at `since` or later, within the clock tolerance."""
    return find_seq(db, JOBS, since, timedelta())
