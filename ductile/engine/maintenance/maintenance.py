"""What is done from time to time: old finished work leaves the ledger in small portions, stranded work ends."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import trio

from ductile.config.sections.settings import Service
from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError
from ductile.core.logs import Log
from ductile.engine.maintenance.retention_clock import RetentionClock
from ductile.engine.maintenance.unrunnable_jobs import end_unrunnable_jobs
from ductile.ledger.admin import retention
from ductile.ledger.storage.writer import Ledger


async def keep_house(
    ledger: Ledger, snapshot: Callable[[], Snapshot], log: Log, clock: Clock, past: RetentionClock
) -> None:
    """Tidies after every `tick_interval`. What goes wrong in one round is told and tried again in the next."""
    while True:
        await trio.sleep(snapshot().config.settings.service.tick_interval.total_seconds())
        try:
            await end_unrunnable_jobs(ledger, snapshot, log, now=clock.now())
            policy = retention_policy(snapshot().config.settings.service)
            reach = await past.reach(ledger, policy, clock)
            # Nearly always nothing is old: an idle service does not write.
            while await ledger.read(retention.anything_old, policy, now=past.now(clock)):
                prune = partial(retention.prune, policy=policy, now=past.now(clock), reach=reach)
                if not (await ledger.transact(prune, in_thread=True)).total:
                    break
        except DuctileError as error:
            log.warn("housekeeping", f"not everything is tidy: {error}")
        except Exception as error:
            log.error("housekeeping", f"internal error: {error!r}")


def retention_policy(service: Service) -> retention.RetentionPolicy:
    """How long each kind of row is kept; zero means for ever."""
    return retention.RetentionPolicy(
        job_queue=_keep(service.job_queue_retention),
        job_log=_keep(service.job_log_retention, service.job_attempts_retention),
        journal=_keep(service.job_transitions_retention),
        breaker_transitions=_keep(service.breaker_transitions_retention),
        facts=_keep(service.facts_retention),
    )


def _keep(*spans: timedelta) -> timedelta | None:
    return min((span for span in spans if span), default=None)
