"""In-process notifications: work is queued, a job has finished, a tree is done.

Notifications are hints; the ledger is authoritative. A waiting caller gets a memory channel, reads the ledger after
every message, and again after a timeout without one.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import trio
from attrs import define, field, frozen

SCHEDULES = "schedules"
"""Announced when an operator changes a schedule or a breaker, and when a probe job has finished."""
JOURNAL = "journal"
"""Announced when the journal may have more rows."""
CONFIGURATION = "configuration"
"""Announced with `announce_all` only: a reload, or the service is stopping."""


@frozen
class Announcement:
    """A job has finished or its tree is done. Durable as soon as `commit` is."""

    job_id: str
    commit: int


Hint: TypeAlias = Announcement | None
"""The message that a waiting caller receives; None means: read the ledger again."""


@define(eq=False)
class Hub:
    """The waiting callers of this process. Announcing never blocks and never fails."""

    _work: trio.Event = field(factory=trio.Event)
    _watchers: dict[str, set[trio.MemorySendChannel[Hint]]] = field(factory=dict)

    def announce_work(self) -> None:
        """Wake the dispatcher."""
        self._work.set()

    async def wait_for_work(self, *, max_seconds: float = math.inf) -> None:
        """Wait until work is announced after the last call, or for `max_seconds` seconds. For one task only."""
        with trio.move_on_after(max_seconds):
            await self._work.wait()
        self._work = trio.Event()

    @contextmanager
    def watch(self, topic: str) -> Iterator[trio.MemoryReceiveChannel[Hint]]:
        """Open a channel that receives the announcements of `topic`. Watch first, then read the ledger."""
        send, receive = trio.open_memory_channel[Hint](1)
        self._watchers.setdefault(topic, set()).add(send)
        try:
            yield receive
        finally:
            watchers = self._watchers[topic]
            watchers.discard(send)
            if not watchers:
                del self._watchers[topic]
            send.close()
            receive.close()

    def announce(self, topic: str, hint: Hint = None) -> None:
        """Send `hint` to every watcher of `topic`."""
        for watcher in tuple(self._watchers.get(topic, ())):
            with suppress(trio.WouldBlock):  # one unread hint is enough
                watcher.send_nowait(hint)

    def announce_end(self, job_id: str, *, tree: str | None, commit: int = 0) -> None:
        """Announce that the job has finished, and that `tree`, if given, is done. `commit` is 0 if it is durable."""
        completion = Announcement(job_id, commit)
        self.announce(job_topic(job_id), completion)
        if tree is not None:
            self.announce(tree_topic(tree), completion)

    def announce_all(self) -> None:
        """Make every waiting caller read the ledger again: a reload, or the service is stopping."""
        self.announce_work()
        for topic in tuple(self._watchers):
            self.announce(topic)


def job_topic(job_id: str) -> str:
    return f"job {job_id}"


def tree_topic(root_job_id: str) -> str:
    return f"tree {root_job_id}"
