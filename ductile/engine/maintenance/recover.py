"""After a crash: first the processes that the dead service left behind, then the rows that say `running`.

Done once per start, under the lock, before the first claim: nobody else can own what is found here.
"""

from datetime import datetime
from functools import partial

from attrs import frozen

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.core.model import JobStatus
from ductile.engine.follow_up_rules import breaker_rule_of, rule_of
from ductile.engine.process.procfs import Leftovers, ProcessId, kill_marked
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.recover import Quarantined, noted_processes, recover_orphans
from ductile.ledger.storage.writer import Ledger

PATIENCE_SECONDS = 10.0


@frozen
class Recovery:
    """What a start found and put right."""

    leftovers: Leftovers
    jobs: tuple[Recorded | Quarantined, ...]


async def recover(
    ledger: Ledger, snapshot: Snapshot, log: Log, *, instance: str, run_id: str, now: datetime
) -> Recovery:
    """No plugin process of an earlier run is alive and no job is `running`. What is found is told, one line each."""
    stored = [ProcessId(*process) for process in await ledger.read(noted_processes)]
    leftovers = await kill_marked(instance, stored, patience=PATIENCE_SECONDS)
    for process in leftovers.killed:
        log.warn("recovery", "a plugin process of an earlier run was still alive and was ended", pid=process.pid)
    for process in leftovers.survivors:
        log.error(
            "recovery",
            "a plugin process of an earlier run cannot be ended; its job runs again beside it",
            pid=process.pid,
        )
    recover_all = partial(
        recover_orphans,
        run_id=run_id,
        now=now,
        rule=rule_of(snapshot),
        breaker=breaker_rule_of(snapshot),
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
    )
    jobs = await ledger.transact(recover_all, in_thread=True)
    for job in jobs:
        _tell(log, job)
    return Recovery(leftovers, tuple(jobs))


def _tell(log: Log, job: Recorded | Quarantined) -> None:
    if isinstance(job, Quarantined):
        log.error("recovery", f"job set apart: {job.reason}", job_id=job.job_id)
        return
    again = job.status is JobStatus.QUEUED
    what = (
        "was running when the service died and is queued again"
        if again
        else "was running when the service died; given up"
    )
    log.warn("recovery", f"job {what}", plugin=job.plugin, job_id=job.job_id, attempt=job.attempt)
