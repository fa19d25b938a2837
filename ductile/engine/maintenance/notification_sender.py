"""Send notifications: read new signals from the journal, and create one job per message in the rate of `notify.every`.

The journal is the outbox: a signal is in it since the transaction that made it true. Jobs, groups and the position in
the journal change in one transaction, so that no signal is lost or sent twice.
"""

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

import trio
from attrs import define, evolve, frozen

from ductile.config.sections.monitoring import Notify
from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.errors import LedgerError
from ductile.core.hub import CONFIGURATION, JOURNAL, Hub
from ductile.core.logs import Log
from ductile.engine.maintenance.notification_messages import (
    KINDS,
    QUEUE_STUCK,
    notification_of,
    stuck_queue_data,
    summary_of,
    why_skipped,
)
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.reports.queue_status import OldestJob, oldest_ready_job
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, notifications
from ductile.ledger.tables.journal import JournalEntry
from ductile.ledger.tables.notifications import NotificationGroup
from ductile.pipeline.run.notifications import HELD, SKIPPED, Notification, notification_run

T = TypeVar("T")
ROUND_INTERVAL = 0.5
"""Minimum seconds between two reads of the journal."""
IDLE_INTERVAL = 30.0
"""Seconds after which the queue is checked although the journal has no new entries."""
MAX_ENTRIES = 500
MAX_UNSTORED_ENTRIES = 50_000
"""Journal entries that a restart reads again because the position after them was not stored."""


@frozen(kw_only=True)
class Unread:
    """The new signals in the journal, and the position after them."""

    entries: tuple[JournalEntry, ...]
    position: int
    stored_position: int | None
    oldest_message_at: datetime | None
    """The oldest message whose group holds signals."""


@define(eq=False)
class NotificationSender:
    """Sends the notifications of one service."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    log: Log
    snapshot: Callable[[], Snapshot]
    _position: int | None = None
    """Everything up to here was read. The stored position can be older, because an idle service writes nothing."""
    _is_stuck: bool = False

    async def run(self) -> None:
        """Send notifications until cancelled. An error is logged, and the next round tries again."""
        while True:
            await self._until_configured()
            with self.hub.watch(JOURNAL) as hints:
                while self._config is not None:
                    pause = await self._try(self._round)
                    await trio.sleep(ROUND_INTERVAL)
                    with trio.move_on_after(IDLE_INTERVAL if pause is None else pause):
                        await hints.receive()

    @property
    def _config(self) -> Notify | None:
        return self.snapshot().config.settings.notify

    async def _until_configured(self) -> None:
        """Wait for a configuration with `notify`. Does not read the journal until then."""
        with self.hub.watch(CONFIGURATION) as reloads:
            while self._config is None:
                is_forgotten = await self._try(self._forget)
                with trio.move_on_after(math.inf if is_forgotten else IDLE_INTERVAL):
                    await reloads.receive()

    async def _try(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `work()`; None after an error, which is logged."""
        try:
            return await work()
        except LedgerError as error:
            self.log.warn("notify", f"notifications are delayed: {error}")
        except Exception as error:
            self.log.error("notify", f"internal error: {error!r}")
        return None

    async def _round(self) -> float:
        """Send what is due. Return the seconds until the next summary is due, at most IDLE_INTERVAL."""
        snapshot = self.snapshot()
        config = snapshot.config.settings.notify
        if config is None:
            return 0.0
        await self._check_queue(snapshot, config)
        unread = await self.ledger.read(read_signals, self._position)
        now = self.clock.now()
        if _has_work(unread, config, now=now):
            jobs = await self.ledger.transact(partial(send, unread=unread, snapshot=snapshot, config=config, now=now))
            if jobs:
                self.hub.announce_work()
                self.log.info("notify", "notifications queued", jobs=jobs, plugin=config.to)
        self._position = unread.position
        if len(unread.entries) == MAX_ENTRIES:
            return 0.0
        due_at = await self.ledger.read(notifications.oldest_with_held)
        return IDLE_INTERVAL if due_at is None else _seconds_until(due_at + config.every, now)

    async def _forget(self) -> bool:
        """Forget groups and position while nothing is configured, so that old signals are not sent later."""
        self._position = None
        if await self.ledger.read(notifications.position) is not None:
            await self.ledger.transact(notifications.forget)
        return True

    async def _check_queue(self, snapshot: Snapshot, config: Notify) -> None:
        """Journal `queue.stuck` once, until a ready job starts in time again.

        Jobs of the plugin that sends messages do not count: they would be about themselves.
        """
        now, plugins = self.clock.now(), [name for name in snapshot.slots if name != config.to]
        job = await self.ledger.read(oldest_ready_job, plugins, now=now)
        is_stuck = job is not None and now - job.ready_at > config.queue_stuck_after
        if job is not None and is_stuck and not self._is_stuck and "queue.stuck" in config.on:
            await self.ledger.transact(partial(_journal_stuck_queue, job=job, config=config, now=now))
        self._is_stuck = is_stuck


def _seconds_until(at: datetime, now: datetime) -> float:
    return min(max((at - now).total_seconds(), 0.0), IDLE_INTERVAL)


def _has_work(unread: Unread, config: Notify, *, now: datetime) -> bool:
    if unread.entries or unread.stored_position is None:
        return True
    oldest = unread.oldest_message_at
    is_due = oldest is not None and not now - config.every < oldest <= now
    return is_due or unread.position - unread.stored_position > MAX_UNSTORED_ENTRIES


def read_signals(db: Db, after: int | None) -> Unread:
    """Read the signals after this position; None continues after the stored position, or after the newest entry."""
    newest, stored = journal.position(db), notifications.position(db)
    start = stored if after is None else after
    entries = [] if start is None else journal.of_kinds(db, KINDS, after=start, up_to=newest, limit=MAX_ENTRIES)
    return Unread(
        entries=tuple(entries),
        position=entries[-1].seq if len(entries) == MAX_ENTRIES else newest,
        stored_position=stored,
        oldest_message_at=notifications.oldest_with_held(db),
    )


def send(db: Db, *, unread: Unread, snapshot: Snapshot, config: Notify, now: datetime) -> int:
    """Send or hold each signal, send the summaries that are due, and store the position. Return the number of jobs."""
    notifications.delete_old(db, now=now, every=config.every)
    jobs = 0
    for entry in unread.entries:
        notification = notification_of(entry) if KINDS[entry.kind] in config.on else None
        if notification is not None and (reason := why_skipped(entry, config)):
            _journal(db, SKIPPED, notification, now=now, reason=reason)
        elif notification is not None:
            jobs += _send_or_hold(db, notification, entry.seq, snapshot, config, now=now)
    for group in notifications.due_groups(db, now=now, every=config.every):
        _send(db, summary_of(group, now=now), now, snapshot, config, now=now)
        jobs += 1
    notifications.set_position(db, unread.position)
    return jobs


def _send_or_hold(
    db: Db, notification: Notification, seq: int, snapshot: Snapshot, config: Notify, *, now: datetime
) -> int:
    """Send the first message of a group; count the others until its interval has passed."""
    group = notifications.get(db, notification.signal, notification.subject)
    if group is None:
        _send(db, notification, seq, snapshot, config, now=now)
        return 1
    notifications.put(db, evolve(group, held=group.held + 1, last=notification.payload))
    _journal(db, HELD, notification, now=now)
    return 0


def _send(
    db: Db, notification: Notification, key: object, snapshot: Snapshot, config: Notify, *, now: datetime
) -> None:
    run = notification_run(notification, config.to, snapshot.routing, key=key)
    ttl = snapshot.config.settings.service.dedupe_ttl
    start_run(db, run, now=now, default_ttl=ttl, budget=snapshot.budget)
    sent = NotificationGroup(signal=notification.signal, subject=notification.subject, sent_at=now, last={})
    notifications.put(db, sent)


def _journal(db: Db, kind: str, notification: Notification, *, now: datetime, reason: str | None = None) -> None:
    data = notification.journal_data() | ({"reason": reason} if reason is not None else {})
    journal.append(db, kind, now=now, data=data)


def _journal_stuck_queue(db: Db, *, job: OldestJob, config: Notify, now: datetime) -> None:
    data = stuck_queue_data(job, config.queue_stuck_after, now=now)
    journal.append(db, QUEUE_STUCK, now=now, plugin=job.plugin, job_id=job.id, root_job_id=job.root_job_id, data=data)
