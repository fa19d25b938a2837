"""Recover from a crash: kill the processes of the dead service, then requeue or end its running jobs.

Runs once per start, under the instance lock and before the first claim, so every running job is an orphan.
"""

from datetime import datetime
from functools import partial

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.core.model import JobStatus
from ductile.engine.follow_up_rules import breaker_rule_of, follow_up_rule_of, signal_runs
from ductile.engine.process.procfs import ProcessId, kill_marked
from ductile.ledger.admin import service_log
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.recover import Quarantined, recover_orphans, running_processes
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db

LEFTOVERS_TIMEOUT = 10.0


async def recover(ledger: Ledger, snapshot: Snapshot, log: Log, *, instance: str, run_id: str, now: datetime) -> None:
    """Kill plugin processes of an earlier run and recover its running jobs. Logs each process and job."""
    stored = [ProcessId(*process) for process in await ledger.read(running_processes)]
    leftovers = await kill_marked(instance, stored, timeout_seconds=LEFTOVERS_TIMEOUT)
    for process in leftovers.killed:
        log.warn("recovery", "killed a plugin process of an earlier run", pid=process.pid)
    for process in leftovers.survivors:
        log.error(
            "recovery",
            "a plugin process of an earlier run cannot be killed; its job is retried while it still runs",
            pid=process.pid,
        )
    recover_jobs = partial(
        recover_orphans,
        run_id=run_id,
        now=now,
        rule=follow_up_rule_of(snapshot),
        breaker=breaker_rule_of(snapshot),
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
    )

    def recover_all(db: Db) -> list[Recorded | Quarantined]:
        unclean = service_log.find_unclean_stop(db)  # before this run writes anything
        recovered = recover_jobs(db)
        ended = (job.ended if isinstance(job, Quarantined) else job for job in recovered)
        signal_runs(db, ended, snapshot, now=now)
        if unclean is not None:
            service_log.journal_recovery(db, unclean, job_ids=[job.job_id for job in recovered], now=now)
        return recovered

    for job in await ledger.transact(recover_all, in_thread=True):
        _log_recovered(log, job)


def _log_recovered(log: Log, job: Recorded | Quarantined) -> None:
    if isinstance(job, Quarantined):
        log.error("recovery", f"job quarantined: {job.reason}", job_id=job.job_id)
        return
    result = "requeued" if job.status is JobStatus.QUEUED else "not retried"
    message = f"job was running when the service died: {result}"
    log.warn("recovery", message, plugin=job.plugin, job_id=job.job_id, attempt=job.attempt)
