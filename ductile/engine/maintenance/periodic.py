"""Periodic maintenance: prune expired rows in small batches and end jobs that cannot run."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import trio

from ductile.config.sections.exchange import ExchangeSettings
from ductile.config.sections.settings import Service
from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError
from ductile.core.logs import Log
from ductile.engine.maintenance.retention_clock import RetentionClock
from ductile.engine.maintenance.unrunnable_jobs import end_unrunnable_jobs
from ductile.ledger.admin import retention
from ductile.ledger.exchange.operate import unclaimed_messages, warn_unclaimed
from ductile.ledger.exchange.retention import OLDEST, AgePosition, delete_conversations, expired_conversations
from ductile.ledger.storage.async_ledger import Ledger


async def run_maintenance(
    ledger: Ledger, snapshot: Callable[[], Snapshot], log: Log, clock: Clock, retention_clock: RetentionClock
) -> None:
    """Run maintenance every `tick_interval`, forever. An error is logged and the next round tries again."""
    position = OLDEST
    while True:
        await trio.sleep(snapshot().config.settings.service.tick_interval.total_seconds())
        try:
            await end_unrunnable_jobs(ledger, snapshot, log, now=clock.now())
            settings = snapshot().config.settings
            policy = retention_policy(settings.service, settings.exchange)
            watermarks = await retention_clock.update_watermarks(ledger, policy, clock)
            # Read first: usually no row has expired, and an idle service must not write.
            while await ledger.read(retention.has_expired_rows, policy, now=retention_clock.now(clock)):
                prune = partial(retention.prune, policy=policy, now=retention_clock.now(clock), watermarks=watermarks)
                if not (await ledger.transact(prune, in_thread=True)).total:
                    break
            if unclaimed := await ledger.read(unclaimed_messages, now=clock.now(), rules=settings.exchange.rules_of):
                await ledger.transact(partial(warn_unclaimed, messages=unclaimed, now=clock.now()))
            expire = partial(_prune_messages, ledger, settings.exchange, policy, watermarks)
            position = await expire(now=retention_clock.now(clock), position=position)
        except DuctileError as error:
            log.warn("housekeeping", f"maintenance is incomplete: {error}")
        except Exception as error:
            log.error("housekeeping", f"internal error: {error!r}")


async def _prune_messages(
    ledger: Ledger,
    exchange: ExchangeSettings,
    policy: retention.RetentionPolicy,
    watermarks: retention.Watermarks,
    *,
    now: datetime,
    position: AgePosition,
) -> AgePosition:
    """Delete the expired conversations that one read finds. Return where the next read continues."""
    if policy.messages is None:
        return OLDEST
    rules, last = exchange.rules_of, watermarks.messages
    find = partial(expired_conversations, rules=rules, shortest=policy.messages, now=now, last=last, position=position)
    found = await ledger.read(find)
    delete = partial(delete_conversations, ids=found.ids, rules=rules, now=now, last=last)
    while found.ids:
        if not await ledger.transact(delete, in_thread=True):
            break
    return found.position


def retention_policy(service: Service, exchange: ExchangeSettings) -> retention.RetentionPolicy:
    """Return how long each kind of row is retained. A configured zero means forever, which is None here."""
    return retention.RetentionPolicy(
        job_queue=_shortest(service.job_queue_retention),
        job_log=_shortest(service.job_log_retention, service.job_attempts_retention),
        journal=_shortest(service.job_transitions_retention),
        breaker_transitions=_shortest(service.breaker_transitions_retention),
        facts=_shortest(service.facts_retention),
        deliveries=_shortest(service.webhook_deliveries_retention),
        messages=_shortest(
            exchange.retention, *(topic.retention for topic in exchange.topics.values() if topic.retention is not None)
        ),
        dedupe=max(service.dedupe_ttl, service.job_log_retention) if service.job_log_retention else None,
    )


def _shortest(*spans: timedelta) -> timedelta | None:
    return min((span for span in spans if span), default=None)
