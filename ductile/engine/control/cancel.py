"""Jobs that somebody does not want any more: dead at once while they wait, told to end while they run."""

from collections.abc import Callable
from functools import partial

from attrs import frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.engine.follow_up_rules import rule_of
from ductile.ledger.admin.operate import CancelRequested, cancel
from ductile.ledger.admin.purge import purge
from ductile.ledger.completion.record import Recorded
from ductile.ledger.storage.writer import Ledger


@frozen(eq=False)
class Cancelling:
    """Whoever can end jobs of this process."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    snapshot: Callable[[], Snapshot]
    stop_job: Callable[[str, str], None]

    async def cancel(self, job_id: str, reason: str) -> bool:
        """True: the job is dead, and what follows from that has begun. False: it runs, and its process is ending."""
        snapshot = self.snapshot()
        work = partial(
            cancel,
            job_id=job_id,
            reason=reason,
            now=self.clock.now(),
            rule=rule_of(snapshot),
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
        )
        result = await self.ledger.transact(work, wait=False)
        if isinstance(result, CancelRequested):
            self.stop_job(job_id, reason)  # at the commit: a slow disk does not keep the process alive
        await self.ledger.until_durable()
        if isinstance(result, CancelRequested):
            return False
        self._announce(result)
        self.hub.announce_work()
        return True

    async def purge(self, plugin: str | None, up_to: int, reason: str) -> int:
        """A portion of the plugin's waiting jobs, of everybody's without one, is dead; how many that were."""
        snapshot = self.snapshot()
        end_portion = partial(
            purge,
            plugin=plugin,
            up_to=up_to,
            reason=reason,
            now=self.clock.now(),
            rule=rule_of(snapshot),
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
        )
        ended = await self.ledger.transact(end_portion, in_thread=True)
        for one in ended:
            self._announce(one)
        self.hub.announce_work()
        return len(ended)

    def _announce(self, ended: Recorded) -> None:
        self.hub.announce_end(ended.job_id, tree=ended.root_job_id if ended.tree_is_done else None)
