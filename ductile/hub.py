"""In-process announcements: "work is waiting", "this job has ended", "this tree is done". Hints, never truth.

Whoever waits looks into the ledger after every hint, and again after a while without one.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

SCHEDULES = "schedules"
"""The topic of whoever changes a schedule or a breaker by hand."""
JOURNAL = "journal"
"""Something was committed, so the journal may have more rows."""
CONFIGURATION = "configuration"
"""Only told to everyone: another configuration is in use, or the service is stopping."""


class Hub:
    """Who waits for what in this process. Announcing never blocks and never fails."""

    def __init__(self) -> None:
        self._work = trio.Event()
        self._is_coming = False
        self._watchers: dict[str, set[trio.MemorySendChannel[None]]] = {}

    def announce_work(self) -> None:
        self._work.set()

    async def announce_coming_work(self) -> None:
        """For whoever is about to write a job: a dispatcher that waits asks for its claim in the same moment, so that
        one commit does both. Announce it again afterwards, for a dispatcher that was busy."""
        self._is_coming = True
        self._work.set()
        await trio.lowlevel.checkpoint()

    async def work_waiting(self, *, at_most: float) -> bool:
        """Returns when work was announced since the last call, or after `at_most` seconds.

        True if it is being written in this moment: who looks does not see it yet, who asks to claim gets it.
        """
        if not self._work.is_set():
            with trio.CancelScope(deadline=trio.current_time() + at_most):
                await self._work.wait()
        else:
            await trio.lowlevel.checkpoint()
        is_coming, self._is_coming = self._is_coming, False
        self._work = trio.Event()
        return is_coming

    @contextmanager
    def watch(self, topic: str) -> Iterator[trio.MemoryReceiveChannel[None]]:
        """A channel that gets something whenever `topic` is announced. Watch first, then read the ledger."""
        send, receive = trio.open_memory_channel[None](1)
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

    def announce(self, topic: str) -> None:
        for watcher in tuple(self._watchers.get(topic, ())):
            with suppress(trio.WouldBlock):  # it has not read the last hint yet; one is enough
                watcher.send_nowait(None)

    def announce_end(self, job_id: str, *, tree: str | None) -> None:
        """The job has ended, and `tree`, if it is given, is done with it."""
        self.announce(job_topic(job_id))
        if tree is not None:
            self.announce(tree_topic(tree))

    def announce_everyone(self) -> None:
        """Whoever waits for anything looks again: the service is stopping."""
        self.announce_work()
        for topic in tuple(self._watchers):
            self.announce(topic)


def job_topic(job_id: str) -> str:
    return f"job {job_id}"


def tree_topic(root_job_id: str) -> str:
    return f"tree {root_job_id}"
