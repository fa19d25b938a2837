"""Recover orphans after a crash: rows that are still `running` but belong to another run.

Called once at start, before the first claim and after leftover processes have ended. Each row has its own savepoint: a
row that cannot be recovered is quarantined and does not stop the others. A disk error is raised instead.
"""

from datetime import datetime, timedelta
from functools import partial

from attrs import frozen

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import BreakerRule, Budget, Completion, Dead, FollowRule, Job, OutcomeCode, Retried, cancelled
from ductile.ledger.completion.follow_ups import replace_outcome
from ductile.ledger.completion.quarantine import quarantine
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.jobs import dedupe
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.tables import journal

FIRST_BACKOFF = timedelta(seconds=30)
MAX_BACKOFF = timedelta(hours=1)
REASON = "core restart"


@frozen
class Quarantined:
    """A job that could not be recovered, with the reason. It is dead, unless its row cannot be changed at all."""

    job_id: str
    reason: str
    ended: Recorded | None = None


def recover_orphans(
    db: Db,
    *,
    run_id: str,
    now: datetime,
    rule: FollowRule | None = None,
    breaker: BreakerRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> list[Recorded | Quarantined]:
    """Queue every orphan for its next attempt, or end it dead, or quarantine it.

    `rule` decides the follow-up jobs of those that end dead, in the same savepoint.
    """
    dedupe.release_all(db)
    recovered: list[Recorded | Quarantined] = []
    for job_id, attempt, owner in db.execute(ORPHANS, (run_id,)).fetchall():
        ended = try_in_savepoint(
            db, partial(_recover, db, job_id, owner, rule, breaker, now=now, default_ttl=default_ttl, budget=budget)
        )
        recovered.append(
            _quarantine(db, job_id, attempt, owner, ended, now=now) if isinstance(ended, RowFault) else ended
        )
        failpoint("recover.after_first")
    return recovered


ORPHANS = "SELECT id, attempt, claimed_by FROM job_queue WHERE claimed_by > '' AND claimed_by <> ? ORDER BY +seq"
COUNT_RECOVERY = "UPDATE job_queue SET recoveries = recoveries + 1 WHERE id = ? AND status = 'running' AND attempt = ?"


def _recover(
    db: Db,
    job_id: str,
    owner: str,
    rule: FollowRule | None,
    breaker: BreakerRule | None,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> Recorded:
    job = get_job(db, job_id)
    assert job is not None, "this transaction has just read the row"
    outcome = recovery_outcome(job)
    journal_data = {"recovery": True}
    ending = Completion(
        job_id=job.id, attempt=job.attempt, outcome=outcome, breaker=breaker, rule=rule, journal_data=journal_data
    )
    if isinstance(outcome, Dead):
        ending = replace_outcome(db, ending, outcome, now=now)
    db.execute(COUNT_RECOVERY, (job.id, job.attempt))
    ended = record(db, ending, now=now, default_ttl=default_ttl, budget=budget, run_id=owner)
    assert not isinstance(ended, Stale), "this transaction has just read the running row"
    data = {"attempt": job.attempt, "status": ended.status, "reason": REASON, "recoveries": job.recoveries + 1}
    journal.append(
        db, "job.recovered", now=now, plugin=job.plugin, job_id=job.id, root_job_id=job.root_job_id, data=data
    )
    return ended


def _quarantine(db: Db, job_id: str, attempt: int, owner: str, fault: RowFault, *, now: datetime) -> Quarantined:
    reason = f"cannot be recovered: {fault.reason}"
    return Quarantined(job_id, reason, quarantine(db, job_id, attempt, reason, now=now, run_id=owner))


RUNNING_PROCESSES = "SELECT pid, pid_started, boot_id FROM job_queue WHERE status = 'running' AND pid IS NOT NULL"


def running_processes(db: Db) -> list[tuple[int, int, str]]:
    """Return pid, start ticks and boot id of the process of every running attempt."""
    return [(pid, started, boot_id) for pid, started, boot_id in db.execute(RUNNING_PROCESSES)]


def recovery_outcome(job: Job) -> Retried | Dead:
    """Decide the outcome of an orphaned job.

    The lost attempt counts. The delay grows with every crash, until the attempts are used up.
    """
    if job.cancel_requested_at:
        return cancelled(job.cancel_reason)
    if job.tries >= job.max_attempts:
        died = job.recoveries + 1
        data = {"recoveries": died, "attempts": job.tries, "max_attempts": job.max_attempts}
        error = f"{REASON}: the core died {died} times while it ran; attempts used up"
        return Dead(error, code=OutcomeCode.CORE_DIED, data=data)
    return Retried(REASON, _delay_after_crash(job.recoveries))


def _delay_after_crash(recoveries: int) -> timedelta:
    """Return no delay after the first crash, then 30 s, doubled each time, up to an hour."""
    if recoveries == 0:
        return timedelta()
    doublings = min(recoveries - 1, 10)
    return min(FIRST_BACKOFF * (1 << doublings), MAX_BACKOFF)
