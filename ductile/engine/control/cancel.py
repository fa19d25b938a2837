"""Cancel jobs: a queued job ends immediately, the process of a running job is terminated."""

from collections.abc import Callable
from functools import partial

from attrs import frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.core.metrics import Metrics
from ductile.engine.follow_up_rules import follow_up_rule_of, signal_runs
from ductile.ledger.admin.job_actions import CancelRequested, cancel, purge
from ductile.ledger.completion.record import Recorded
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db


@frozen(eq=False)
class JobCanceller:
    """Cancels jobs of this service on behalf of API callers."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    snapshot: Callable[[], Snapshot]
    stop_job: Callable[[str, str], None]
    metrics: Metrics

    async def cancel(self, job_id: str, reason: str, actor: str) -> bool:
        """Cancel a job. Returns True if it has ended, False if its process is being terminated.

        Raises DuctileError if the job does not exist or has already ended.
        """
        snapshot, now = self.snapshot(), self.clock.now()
        work = partial(
            cancel,
            job_id=job_id,
            reason=reason,
            actor=actor,
            now=now,
            rule=follow_up_rule_of(snapshot),
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
        )

        def cancel_and_signal(db: Db) -> Recorded | CancelRequested:
            cancelled = work(db)
            signal_runs(db, (cancelled,), snapshot, now=now)
            return cancelled

        result = await self.ledger.transact(cancel_and_signal, wait=False)
        if isinstance(result, CancelRequested):
            self.stop_job(job_id, reason)  # before the commit is durable: a slow disk must not delay the stop
        await self.ledger.until_durable()
        if isinstance(result, CancelRequested):
            return False
        self._announce(result)
        self.hub.announce_work()
        return True

    async def purge(self, plugin: str | None, up_to: int, reason: str, actor: str) -> int:
        """Cancel a batch of queued jobs of one plugin, or of all plugins. Returns the number of cancelled jobs."""
        snapshot, now = self.snapshot(), self.clock.now()
        purge_batch = partial(
            purge,
            plugin=plugin,
            up_to=up_to,
            reason=reason,
            actor=actor,
            now=now,
            rule=follow_up_rule_of(snapshot),
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
        )

        def purge_and_signal(db: Db) -> list[Recorded]:
            purged = purge_batch(db)
            signal_runs(db, purged, snapshot, now=now)
            return purged

        ended = await self.ledger.transact(purge_and_signal, in_thread=True)
        for job in ended:
            self._announce(job)
        self.hub.announce_work()
        return len(ended)

    def _announce(self, ended: Recorded) -> None:
        self.metrics.jobs[ended.plugin, ended.command, ended.status, str(ended.outcome_code)] += 1
        self.hub.announce_end(ended.job_id, tree=ended.root_job_id if ended.tree_is_done else None)
