"""Periodic maintenance: prune expired rows in small batches and end jobs that cannot run."""

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
from ductile.ledger.storage.async_ledger import Ledger


async def run_maintenance(
    ledger: Ledger, snapshot: Callable[[], Snapshot], log: Log, clock: Clock, retention_clock: RetentionClock
) -> None:
    """Run maintenance every `tick_interval`, forever. An error is logged and the next round tries again."""
    while True:
        await trio.sleep(snapshot().config.settings.service.tick_interval.total_seconds())
        try:
            await end_unrunnable_jobs(ledger, snapshot, log, now=clock.now())
            policy = retention_policy(snapshot().config.settings.service)
            watermarks = await retention_clock.update_watermarks(ledger, policy, clock)
            # Read first: usually no row has expired, and an idle service must not write.
            while await ledger.read(retention.has_expired_rows, policy, now=retention_clock.now(clock)):
                prune = partial(retention.prune, policy=policy, now=retention_clock.now(clock), watermarks=watermarks)
                if not (await ledger.transact(prune, in_thread=True)).total:
                    break
        except DuctileError as error:
            log.warn("housekeeping", f"maintenance is incomplete: {error}")
        except Exception as error:
            log.error("housekeeping", f"internal error: {error!r}")


def retention_policy(service: Service) -> retention.RetentionPolicy:
    """Return how long each kind of row is retained. A configured zero means forever, which is None here."""
    return retention.RetentionPolicy(
        job_queue=_shortest(service.job_queue_retention),
        job_log=_shortest(service.job_log_retention, service.job_attempts_retention),
        journal=_shortest(service.job_transitions_retention),
        breaker_transitions=_shortest(service.breaker_transitions_retention),
        facts=_shortest(service.facts_retention),
        deliveries=_shortest(service.webhook_deliveries_retention),
        dedupe=max(service.dedupe_ttl, service.job_log_retention) if service.job_log_retention else None,
    )


def _shortest(*spans: timedelta) -> timedelta | None:
    return min((span for span in spans if span), default=None)
