"""The breaker of each instance, in front of the outbox: who may be sent now, and what an attempt makes of it.

Runs inside the writer's transaction. The breaker of instance `lab` is that of the command `lab` of `core.relay`. It
counts attempts: while nobody answers, one job at a time finds out, and the others wait without using up theirs.
"""

from datetime import datetime, timedelta

from ductile.config.relay import BREAKER
from ductile.engine import breaker
from ductile.engine.breaker import Allowed, Probe
from ductile.ledger import breakers, outbox
from ductile.ledger.connections import Connection
from ductile.ledger.rows import get_job
from ductile.model import Breaker, BreakerState, Held, Job, JobStatus
from ductile.pipeline.plan import RELAY

PROBE_IS_SOON_OVER = timedelta(seconds=15)
LONGEST_SPREAD = timedelta(minutes=30)


def is_untroubled(known: Breaker) -> bool:
    """Nothing speaks against sending, and a success would change nothing."""
    return known.state is BreakerState.CLOSED and known.failure_count == 0


def held_back(db: Connection, instance: str, job: Job, *, now: datetime, chance: float) -> bool:
    """True, and the job waits again, while the instance does not answer; one job at a time is let through."""
    known = breakers.get(db, RELAY, instance)
    if known.state is BreakerState.HALF_OPEN and known.probe_job_id == job.id:
        return False
    probe = get_job(db, known.probe_job_id) if known.probe_job_id else None
    match breaker.may_start(known, BREAKER, now, probe_status=probe.status if probe else None):
        case Allowed():
            return False
        case Probe():
            breakers.put(db, breaker.probing(known, job.id), now=now, job_id=job.id)
            return False
        case Held(until):
            reason = f"instance {instance} does not answer: {known.failure_count} attempts in a row failed"
            until = (until or now + PROBE_IS_SOON_OVER) + _spread(known.failure_count, chance)
            return outbox.hold(db, job.id, job.attempt, reason, until=until, now=now)


def note_attempt(db: Connection, instance: str, job: Job, *, is_answered: bool, now: datetime) -> None:
    """The breaker has counted the attempt; when an instance answers again, everything that waits may go."""
    rule = breaker.rule(BREAKER)
    status = JobStatus.SUCCEEDED if is_answered else JobStatus.FAILED
    change = rule(breakers.get(db, RELAY, instance), job, status, now)
    if change is None:
        return
    breakers.put(db, change, now=now, job_id=job.id)
    if is_answered:
        outbox.wake(db, RELAY)


def _spread(failures: int, chance: float) -> timedelta:
    """The longer nobody answers, the more seldom each job asks; a wake ends the wait of all of them anyway."""
    doublings = min(max(failures - BREAKER.threshold, 0), 10)
    return min(BREAKER.reset_after * (1 << doublings), LONGEST_SPREAD) * chance
