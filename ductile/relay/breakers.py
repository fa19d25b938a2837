"""One circuit breaker per instance: while an instance does not respond, one job at a time probes it.

The other jobs wait without using up attempts. Runs inside the writer's transaction. The breaker of instance `lab` is
stored as that of the command `lab` of `core.relay`.
"""

from datetime import datetime, timedelta

from ductile.config.sections.relay import BREAKER
from ductile.core.model import BreakerState, Held, Job, JobStatus
from ductile.engine import breaker
from ductile.engine.breaker import Allowed, Probe
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue import outbox
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.pipeline.compile.plan import RELAY

PROBE_WAIT = timedelta(seconds=15)
WAIT_BEHIND_PROBE = timedelta(minutes=30)


def hold_if_unreachable(db: Db, instance: str, job: Job, *, run_id: str, now: datetime, chance: float) -> bool:
    """Postpone the job and return True while the instance does not respond. One job at a time may probe it."""
    known = breakers.get(db, RELAY, instance)
    if known.state is BreakerState.HALF_OPEN and known.probe_job_id == job.id:
        return False
    probe = get_job(db, known.probe_job_id) if known.probe_job_id else None
    match breaker.check_start(known, BREAKER, now, probe_status=probe.status if probe else None):
        case Allowed():
            return False
        case Probe():
            breakers.put(db, breaker.start_probe(known, job.id), now=now, job_id=job.id)
            return False
        case Held(until):
            soon = until or now + PROBE_WAIT
            if outbox.has_job_due_by(db, instance, soon):
                # One probe is enough; a response ends the wait of all jobs.
                soon = now + WAIT_BEHIND_PROBE * (1 + chance)
            reason = outbox.block_reason(instance)
            return outbox.postpone(db, job.id, job.attempt, reason, run_id=run_id, until=soon, now=now)


def count_attempt(db: Db, instance: str, job: Job, *, is_reachable: bool, now: datetime) -> None:
    """Count the attempt. When the instance responds again, its postponed jobs become due."""
    rule, known = breaker.completion_rule(BREAKER), breakers.get(db, RELAY, instance)
    change = rule(known, job, JobStatus.SUCCEEDED if is_reachable else JobStatus.FAILED, now)
    if change is None:
        return
    breakers.put(db, change, now=now, job_id=job.id)
    if is_reachable and known.state is not BreakerState.CLOSED:
        outbox.wake(db, instance)
