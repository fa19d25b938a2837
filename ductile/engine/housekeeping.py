"""What is done from time to time: old finished work leaves the ledger in small portions, stranded work ends."""

from collections.abc import Callable
from datetime import datetime, timedelta

import trio

from ductile.clock import Clock
from ductile.config.sections import Service
from ductile.config.snapshot import Snapshot
from ductile.engine.stranded import settle_stranded
from ductile.errors import DuctileError
from ductile.ledger import retention
from ductile.ledger.journal import newest_moment
from ductile.ledger.writer import Ledger
from ductile.logs import Log
from ductile.values import frozen

CATCHES_UP = 24
"""How much faster than time itself the past is believed to go by, where the clock says that much of it has."""
ONE_DAY = timedelta(days=1)


@frozen
class Past:
    """How much of the past may be forgotten, whatever the clock says: one that jumps ahead must not empty the ledger.

    `believed_at` is the moment of the start that nothing speaks against: the clock's, but at most a day after the
    newest row of the journal.
    """

    believed_at: datetime
    started: float

    @classmethod
    def of(cls, ledger: Ledger, clock: Clock) -> "Past":
        newest = ledger.look_up(newest_moment)
        now = clock.now()
        return cls(min(now, newest + ONE_DAY) if newest else now, clock.monotonic())

    def now(self, clock: Clock) -> datetime:
        """The clock's time, or the latest that can be believed: a long stop is caught up with, a day in each hour."""
        uptime = timedelta(seconds=clock.monotonic() - self.started)
        return min(clock.now(), self.believed_at + uptime * CATCHES_UP)


async def keep_house(ledger: Ledger, snapshot: Callable[[], Snapshot], log: Log, clock: Clock, past: Past) -> None:
    """Tidies after every `tick_interval`. What goes wrong in one round is told and tried again in the next."""
    while True:
        service = snapshot().config.settings.service
        await trio.sleep(service.tick_interval.total_seconds())
        try:
            await settle_stranded(ledger, snapshot(), log, now=clock.now())
            while (await ledger.write(retention.prune, retention_policy(service), now=past.now(clock))).total:
                await trio.lowlevel.checkpoint()
        except DuctileError as error:
            log.warn("housekeeping", f"not everything is tidy: {error}")
        except Exception as error:
            log.error("housekeeping", f"internal error: {error!r}")


def retention_policy(service: Service) -> retention.Policy:
    """How long each kind of row is kept; zero means for ever."""
    return retention.Policy(
        job_queue=_keep(service.job_queue_retention),
        job_log=_keep(service.job_log_retention, service.job_attempts_retention),
        journal=_keep(service.job_transitions_retention),
        breaker_transitions=_keep(service.breaker_transitions_retention),
        facts=_keep(service.facts_retention),
    )


def _keep(*spans: timedelta) -> timedelta | None:
    return min((span for span in spans if span), default=None)
