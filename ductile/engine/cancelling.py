"""A job that somebody does not want any more: dead at once while it waits, told to end while it runs."""

from collections.abc import Callable

from attrs import frozen

from ductile.clock import Clock
from ductile.config.snapshot import Snapshot
from ductile.engine.follow import budget_of, rule_of
from ductile.hub import Hub, job_topic, tree_topic
from ductile.ledger.operate import CancelRequested, cancel
from ductile.ledger.writer import Ledger


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
        result = await self.ledger.write(
            cancel,
            job_id,
            reason,
            now=self.clock.now(),
            rule=rule_of(snapshot),
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=budget_of(snapshot),
        )
        if isinstance(result, CancelRequested):
            self.stop_job(job_id, reason)
            return False
        self.hub.announce(job_topic(result.job_id))
        if result.tree_is_done:
            self.hub.announce(tree_topic(result.root_job_id))
        self.hub.announce_work()
        return True
