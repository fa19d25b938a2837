"""Jobs as lists show them: rows of the queue, straight into the members that the API and the command line print.

Knows no `Job`: whoever lists a page of jobs pays for reading it and for nothing else. Reads only.
"""

from datetime import datetime, timedelta
from typing import Any

from ductile.core.clock import from_text, to_text
from ductile.ledger.reports.pagination import (
    EVERYTHING,
    NEWEST,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    asking,
    of_one,
    page,
    seq_at,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

UNUSUAL = ("failed", "dead", "skipped")
IS_UNUSUAL = f"status IN {UNUSUAL} AND status NOT IN ('queued', 'running') AND status <> 'succeeded'"
"""In the words of the index, which are the first half in older ledgers: SQLite concludes neither from the other."""
_NAMES = ("plugin", "command", "status", "attempt", "max_attempts", "submitted_by", "parent_job_id", "root_job_id")
_PLACES = ("pipeline", "step_id", "schedule_id")
_MOMENTS = ("slot_at", "created_at", "started_at", "completed_at", "next_retry_at")
SHOWN = ("id", *_NAMES, *_PLACES, *_MOMENTS, "last_error")
"""Neither payload nor baggage: each may be a mebibyte per job."""

MOST_OPEN = 500
"""Open jobs that a count of successes looks at, to leave out those of the plugin."""

Listed = dict[str, Any]


def jobs(db: Db, wanted: ListFilter = EVERYTHING, *, before: int = NEWEST, limit: int = 50) -> Page[Listed]:
    """The jobs in the queue that fit; `before` is `next_before` of the page before."""
    found = page(db, JOBS, _of_jobs(db, wanted), before=before, limit=limit)
    return Page([_shown(row) for row in found.items], found.total, found.is_exact, found.next_before)


def _shown(row: tuple[Any, ...]) -> Listed:
    """What is known of the job, under the names of the API."""
    job = {name: value for name, value in zip(("job_id", *SHOWN[1:]), row[1:], strict=True) if value is not None}
    for name in _MOMENTS:
        if name in job:
            job[name] = to_text(from_text(job[name]))
    return job


# Pages are cut by `seq`, which nobody is shown.
JOBS = Listing[tuple[Any, ...]](
    table="job_queue",
    columns=f"seq, {', '.join(SHOWN)}",
    time_column="created_at",
    id_column="id",
    searched=("plugin", "command", "pipeline", "step_id", "last_error"),
    read=lambda row: row,
    seq_of=lambda row: int(row[0]),
)


def _of_jobs(db: Db, wanted: ListFilter) -> SqlFilter:
    status, plugin = wanted.status, wanted.plugin
    if wanted.root or wanted.job_id:
        return asking(db, JOBS, wanted, of_one(JOBS, wanted))
    if plugin and status in UNUSUAL:
        only = f"plugin = ? AND status = ? AND {IS_UNUSUAL}"
        known = SqlFilter(indexed=only, using="job_queue_unusual", values=(plugin, status))
    elif status and (not plugin or status != "succeeded"):
        known = SqlFilter(indexed="status = ?", using="job_queue_by_status", values=(status,))
    elif plugin:
        known = SqlFilter(indexed="plugin = ?", using="job_queue_by_plugin", values=(plugin,))
    else:
        known = SqlFilter()
    terms = asking(db, JOBS, wanted, known)
    if plugin and wanted == ListFilter(plugin=plugin, status="succeeded"):
        return terms._replace(counting=lambda db, after: _succeeded(db, plugin, after))
    return terms


# No index has the successes of a plugin, but indexes have everything else: the rows themselves stay unread.
ALL_OF_PLUGIN = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_plugin')} WHERE plugin = ? AND seq > ?"
UNUSUAL_OF_PLUGIN = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_unusual")} WHERE plugin = ? AND {IS_UNUSUAL} AND seq > ?
"""
OPEN_OF_PLUGIN = f"""
    SELECT COUNT(*), COALESCE(SUM(CASE WHEN plugin = ? THEN 1 ELSE 0 END), 0)
      FROM (SELECT plugin FROM job_queue {using("job_queue_by_status")}
             WHERE status IN ('queued', 'running') AND seq > ? LIMIT ?)
"""


def _succeeded(db: Db, plugin: str, after: int) -> int | None:
    """How many jobs of the plugin after that `seq` succeeded; None if too many jobs are open to look at them."""
    looked_at, open_ones = db.execute(OPEN_OF_PLUGIN, (plugin, after, MOST_OPEN + 1)).fetchone()
    if looked_at > MOST_OPEN:
        return None
    (every,), (unusual,) = (db.execute(one, (plugin, after)).fetchone() for one in (ALL_OF_PLUGIN, UNUSUAL_OF_PLUGIN))
    return int(every - unusual - open_ones)


def first_since(db: Db, since: datetime) -> int:
    """The `seq` from which on jobs were asked for at that moment or later, give or take `CLOCK_SLACK`."""
    return seq_at(db, JOBS, since, timedelta())
