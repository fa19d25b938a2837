"""The breaker of each instance, in front of the outbox: who may be sent now, and what an attempt makes of it.

Runs inside the writer's transaction. The breaker of instance `lab` is that of the command `lab` of `core.relay`. It
counts attempts: while nobody answers, one job at a time finds out, and the others wait without using up theirs.
"""

from datetime import datetime, timedelta

from ductile.config.sections.relay import BREAKER
from ductile.core.model import BreakerState, Held, Job, JobStatus
from ductile.engine import breaker
from ductile.engine.breaker import Allowed, Probe
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, outbox
from ductile.pipeline.compile.plan import RELAY

PROBE_IS_SOON_OVER = timedelta(seconds=15)
LONG_WAIT = timedelta(minutes=30)


def held_back(db: Db, instance: str, job: Job, *, run_id: str, now: datetime, chance: float) -> bool:
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
            soon = until or now + PROBE_IS_SOON_OVER
            if outbox.somebody_asks_by(db, instance, soon):
                # One that finds out is enough; an answer ends the wait of all of them.
                soon = now + LONG_WAIT * (1 + chance)
            reason = outbox.reason_of(instance)
            return outbox.hold(db, job.id, job.attempt, reason, run_id=run_id, until=soon, now=now)


def note_attempt(db: Db, instance: str, job: Job, *, is_answered: bool, now: datetime) -> None:
    """The breaker has counted the attempt; when an instance answers again, everything that waits may go."""
    rule, known = breaker.rule(BREAKER), breakers.get(db, RELAY, instance)
    change = rule(known, job, JobStatus.SUCCEEDED if is_answered else JobStatus.FAILED, now)
    if change is None:
        return
    breakers.put(db, change, now=now, job_id=job.id)
    if is_answered and known.state is not BreakerState.CLOSED:
        outbox.wake(db, instance)
