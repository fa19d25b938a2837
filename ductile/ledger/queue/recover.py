"""After a crash: rows that say `running` although nobody runs them.

Only rows of another run are orphans, so this is safe at any time; it is done once, before the first claim, when the
leftover processes are gone. Every row has its own savepoint: a bad one is set apart, the rest go on. A disk that
fails is no row's fault: then nothing is recovered and the caller hears of it.
"""

from datetime import datetime, timedelta
from functools import partial

from attrs import frozen

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import BreakerRule, Budget, Completion, Dead, FollowRule, Job, Retried
from ductile.ledger.admin.quarantine import quarantine
from ductile.ledger.completion.follow_ups import ending_instead
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.queue import dedupe
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.rows import get_job
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db, RowFault, written_or_fault
from ductile.ledger.tables import journal

FIRST_BACKOFF = timedelta(seconds=30)
LONGEST_BACKOFF = timedelta(hours=1)
REASON = "core restart"


@frozen
class Quarantined:
    """A row that could not be recovered, with what was wrong with it: dead, unless it takes no change at all."""

    job_id: str
    reason: str


def recover_orphans(
    db: Db,
    *,
    run_id: str,
    now: datetime,
    rule: FollowRule | None = None,
    breaker: BreakerRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> list[Recorded | Quarantined]:
    """No row of another run is `running`: each is queued for its next attempt, or dead, or set apart.

    `rule` says what follows from those that end dead; it is in the same savepoint.
    """
    dedupe.release_all(db)
    recovered: list[Recorded | Quarantined] = []
    for job_id, attempt, owner in db.execute(ORPHANS, (run_id,)).fetchall():
        ended = written_or_fault(
            db, partial(_recover, db, job_id, owner, rule, breaker, now=now, default_ttl=default_ttl, budget=budget)
        )
        recovered.append(
            _quarantined(db, job_id, attempt, owner, ended, now=now) if isinstance(ended, RowFault) else ended
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
    assert job is not None, "the row was there a moment ago in this transaction"
    outcome = outcome_of(job)
    told = {"recovery": True}
    ending = Completion(job_id=job.id, attempt=job.attempt, outcome=outcome, breaker=breaker, rule=rule, told=told)
    if isinstance(outcome, Dead):
        ending = ending_instead(db, ending, outcome, now=now)
    db.execute(COUNT_RECOVERY, (job.id, job.attempt))
    ended = record(db, ending, now=now, default_ttl=default_ttl, budget=budget, run_id=owner)
    assert not isinstance(ended, Stale), "the row was running a moment ago in this transaction"
    data = {"attempt": job.attempt, "status": ended.status, "reason": REASON, "recoveries": job.recoveries + 1}
    journal.append(
        db, "job.recovered", now=now, plugin=job.plugin, job_id=job.id, root_job_id=job.root_job_id, data=data
    )
    return ended


def _quarantined(db: Db, job_id: str, attempt: int, owner: str, fault: RowFault, *, now: datetime) -> Quarantined:
    reason = f"cannot be recovered: {fault.reason}"
    quarantine(db, job_id, attempt, reason, now=now, run_id=owner)
    return Quarantined(job_id, reason)


NOTED = "SELECT pid, pid_started, boot_id FROM job_queue WHERE status = 'running' AND pid IS NOT NULL"


def noted_processes(db: Db) -> list[tuple[int, int, str]]:
    """Pid, start time and boot id of every process that a running attempt has named."""
    return [(pid, started, boot_id) for pid, started, boot_id in db.execute(NOTED)]


def outcome_of(job: Job) -> Retried | Dead:
    """What becomes of a job that nobody runs any more.

    A lost attempt counts; a job that takes the core down with it waits longer each time, then is given up.
    """
    if job.cancel_requested_at:
        return Dead(f"cancelled: {job.cancel_reason}")
    if job.tries >= job.max_attempts:
        return Dead(f"{REASON}: the core died {job.recoveries + 1} times while it ran; attempts used up")
    return Retried(REASON, _backoff(job.recoveries))


def _backoff(recoveries: int) -> timedelta:
    """None after the first crash, then 30 s, doubled each time, up to an hour."""
    if recoveries == 0:
        return timedelta()
    doublings = min(recoveries - 1, 10)
    return min(FIRST_BACKOFF * (1 << doublings), LONGEST_BACKOFF)
