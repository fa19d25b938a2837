"""Signal ended runs: read the result of a run whose last job has just ended, and write what a rule derives from it.

In the transaction that ends the last job, so that each end of a run is signalled exactly once.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from ductile.core.model import Budget, EndedRun, FailedJob, JobStatus, OutcomeCode, RunRule
from ductile.ledger.completion.follow_ups import write_follow_ups
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.storage.dialect import using
from ductile.ledger.tables import journal

MAX_FAILURES = 10
"""Failed jobs that a signal lists."""


def signal_ended_runs(
    db: Db,
    root_ids: Iterable[str],
    rule: RunRule,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> None:
    """Signal the end of these runs. A run whose signals cannot be written is journalled as `run.ended`."""
    for root_id in dict.fromkeys(root_ids):
        signal = partial(_signal, db, root_id, rule, now=now, default_ttl=default_ttl, budget=budget)
        if isinstance(fault := try_in_savepoint(db, signal), RowFault):
            data = {"reason": f"its hooks cannot be recorded: {fault.reason}"}
            journal.append(db, "run.ended", now=now, job_id=root_id, root_job_id=root_id, data=data)


def _signal(db: Db, root_id: str, rule: RunRule, *, now: datetime, default_ttl: timedelta, budget: Budget) -> None:
    if not (rule.on_success or _has_failed(db, root_id)):
        return
    run = ended_run(db, root_id, now=now)
    if run is not None:
        follow_ups, root = rule.decide(run), run.root
        write_follow_ups(db, follow_ups, root.id, root.plugin, root.id, now=now, default_ttl=default_ttl, budget=budget)


_IS_FAILED = "status IN ('failed', 'dead') AND tolerated = 0"
_IS_BELOW = "root_job_id = :root AND root_job_id <> id"
HAS_FAILED = f"""
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE id = :root AND {_IS_FAILED})
        OR EXISTS (SELECT 1 FROM job_queue {using("job_queue_by_root")} WHERE {_IS_BELOW} AND {_IS_FAILED})
"""


def _has_failed(db: Db, root_id: str) -> bool:
    return bool(db.execute(HAS_FAILED, {"root": root_id}).fetchone()[0])


TREE_JOBS = "SELECT tree_jobs FROM job_queue WHERE id = ?"
_COLUMNS = "id, plugin, command, step_id, status, last_error, outcome_code, completed_at, seq"
# A join fails because of its members, which are listed themselves.
FAILURES = f"""
    WITH failed AS (
        SELECT {_COLUMNS} FROM job_queue WHERE id = :root AND {_IS_FAILED}
        UNION ALL
        SELECT {_COLUMNS} FROM job_queue {using("job_queue_by_root")} WHERE {_IS_BELOW} AND {_IS_FAILED}
    ), listed AS (
        SELECT failed.*,
               COALESCE(outcome_code IN ('{OutcomeCode.CANCELLED}', '{OutcomeCode.PURGED}'), 0) AS is_cancelled
          FROM failed
         WHERE COALESCE(outcome_code, '') <> '{OutcomeCode.NOT_JOINED}'
    )
    SELECT id, plugin, command, step_id, status, last_error, outcome_code,
           COUNT(*) OVER (), SUM(is_cancelled) OVER ()
      FROM listed ORDER BY is_cancelled, completed_at, seq LIMIT :limit
"""


def ended_run(db: Db, root_id: str, *, now: datetime) -> EndedRun | None:
    """Return the result of the run; None if the queue does not have its root."""
    root = get_job(db, root_id)
    if root is None:
        return None
    rows = db.execute(FAILURES, {"root": root_id, "limit": MAX_FAILURES}).fetchall()
    failed, cancelled = rows[0][7:] if rows else (0, 0)
    return EndedRun(
        root=root,
        jobs=db.execute(TREE_JOBS, (root_id,)).fetchone()[0],
        ended_at=now,
        failures=tuple(_failed_job(row) for row in rows),
        failed=failed,
        cancelled=cancelled,
    )


def _failed_job(row: tuple[Any, ...]) -> FailedJob:
    return FailedJob(
        id=row[0], plugin=row[1], command=row[2], step_id=row[3], status=JobStatus(row[4]), error=row[5], code=row[6]
    )
