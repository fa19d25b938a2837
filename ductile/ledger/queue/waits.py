"""How long a claimed job was queued and what held it, for the journal row of its start. Pure.

Uses only what the claim has read and what the dispatcher keeps in memory, because every job takes this path.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text
from ductile.core.model import RELAY
from ductile.ledger.tables.blocked_jobs import BREAKER_OPEN

ALL_PLUGINS = "*"
"""Stands for the whole queue where a plugin is named."""
MIN_EXPLAINED_WAIT = timedelta(milliseconds=100)
"""A shorter wait has no reason worth recording."""
MIN_BUSY_AFTER_START = timedelta(seconds=5)
"""A start can take this long until its first claim. A job that waited longer after it also waited for a worker."""
SERVICE_DOWN, BREAKER, BLOCKED, RETRY_TIME, HELD_KEY, BUSY = (
    "service_down",
    "breaker",
    "blocked",
    "retry_time",
    "held_key",
    "busy",
)
_MILLISECOND = timedelta(milliseconds=1)


@frozen
class Hold:
    """What kept all jobs of a plugin from starting, and when that was last so."""

    code: str
    seen_at: datetime


Holds = Mapping[str, Hold]
"""The last hold of each plugin; `*` stands for all plugins."""
NO_HOLDS: Holds = MappingProxyType({})


@frozen(kw_only=True)
class QueuedTime:
    """When a job was enqueued and when it last failed or was blocked, as text; and what blocks it."""

    asked_at: str
    failed_at: str | None
    blocked_reason: str | None
    is_retry: bool
    waited_for_key: bool = False

    @property
    def since(self) -> datetime:
        """The moment from which this attempt waited."""
        return from_text(max(self.asked_at, self.failed_at or "") if self.is_retry else self.asked_at)


def wait_data(queued: QueuedTime, plugin: str, holds: Holds, *, now: datetime) -> dict[str, Any]:
    """Return `waited_ms` and, unless the wait was short, the codes of what held the job as `waited_for`."""
    since = queued.since
    waited = max(now - since, timedelta())
    data: dict[str, Any] = {"waited_ms": waited // _MILLISECOND}
    if waited >= MIN_EXPLAINED_WAIT:
        codes = _codes(queued, plugin, holds, since)
        is_busy = not codes or (codes == [SERVICE_DOWN] and now - holds[ALL_PLUGINS].seen_at >= MIN_BUSY_AFTER_START)
        data["waited_for"] = [*codes, BUSY] if is_busy else codes
    return data


def _codes(queued: QueuedTime, plugin: str, holds: Holds, since: datetime) -> list[str]:
    held = [hold.code for name in (ALL_PLUGINS, plugin) if (hold := holds.get(name)) and hold.seen_at >= since]
    was_delayed = queued.failed_at is not None and queued.failed_at >= queued.asked_at
    was_blocked = was_delayed and not queued.is_retry
    found = []
    if queued.is_retry and was_delayed and SERVICE_DOWN not in held:
        found.append(RETRY_TIME)
    if queued.blocked_reason == BREAKER_OPEN or (was_blocked and plugin != RELAY):
        found.append(BREAKER)
    elif was_blocked or (queued.blocked_reason is not None and not held):
        found.append(BLOCKED)
    if queued.waited_for_key:
        found.append(HELD_KEY)
    return found + held
