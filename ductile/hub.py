"""In-process announcements: "work is waiting", "this job has ended", "this tree is done". Hints, never truth.

Whoever waits looks into the ledger after every hint, and again after a while without one.
"""

import math
from contextlib import suppress

import trio

SCHEDULES = "schedules"
"""The topic of whoever changes a schedule or a breaker by hand, and of probes that have ended."""
JOURNAL = "journal"
"""Something was committed, so the journal may have more rows."""
CONFIGURATION = "configuration"
"""Only told to everyone: another configuration is in use, or the service is stopping."""


class Hub:
    """Who waits for what in this process. Announcing never blocks and never fails.

    There is one worker. That it waits is no hint: whoever hears so may rely on its next turn.
    """

    def __init__(self) -> None:
        self._work = trio.Event()
        self._worker_is_waiting = False
        self._watchers: dict[str, set[trio.MemorySendChannel[None]]] = {}

    def announce_work(self) -> None:
        self._work.set()

    def call_worker(self) -> bool:
        """Work is announced; True if the worker waits for just that: then its turn is in the next pass of the loop."""
        self.announce_work()
        return self._worker_is_waiting

    async def work_waiting(self, *, at_most: float = math.inf) -> None:
        """Returns when work was announced since the last call, or after `at_most` seconds."""
        assert not self._worker_is_waiting, "there is one worker"
        self._worker_is_waiting = True
        try:
            if self._work.is_set():
                await trio.lowlevel.checkpoint()
            elif at_most == math.inf:
                await self._work.wait()
            else:
                with trio.CancelScope(deadline=trio.current_time() + at_most):
                    await self._work.wait()
        finally:
            self._worker_is_waiting = False
        self._work = trio.Event()

    def watch(self, topic: str) -> "Watch":
        """A channel that gets something whenever `topic` is announced. Watch first, then read the ledger."""
        return Watch(self._watchers, topic)

    def is_awaited(self, job_id: str, *, tree: str | None) -> bool:
        """Whether anybody waits for what `announce_end` would tell."""
        watched = self._watchers
        return bool(watched) and (job_topic(job_id) in watched or (tree is not None and tree_topic(tree) in watched))

    def announce(self, topic: str) -> None:
        for watcher in tuple(self._watchers.get(topic, ())):
            with suppress(trio.WouldBlock):  # it has not read the last hint yet; one is enough
                watcher.send_nowait(None)

    def announce_end(self, job_id: str, *, tree: str | None) -> None:
        """The job has ended, and `tree`, if it is given, is done with it."""
        if not self._watchers:
            return
        self.announce(job_topic(job_id))
        if tree is not None:
            self.announce(tree_topic(tree))

    def announce_everyone(self) -> None:
        """Whoever waits for anything looks again: the service is stopping, or has another configuration."""
        self.announce_work()
        for topic in tuple(self._watchers):
            self.announce(topic)


class Watch:
    """Inside, the channel hears of the topic."""

    # A class and no generator: every waiting caller has one, and it is a few calls less.
    __slots__ = ("_receive", "_send", "_topic", "_watchers")

    def __init__(self, watchers: dict[str, set[trio.MemorySendChannel[None]]], topic: str) -> None:
        self._watchers, self._topic = watchers, topic

    def __enter__(self) -> trio.MemoryReceiveChannel[None]:
        self._send, self._receive = trio.open_memory_channel[None](1)
        self._watchers.setdefault(self._topic, set()).add(self._send)
        return self._receive

    def __exit__(self, *_: object) -> None:
        watchers = self._watchers[self._topic]
        watchers.discard(self._send)
        if not watchers:
            del self._watchers[self._topic]
        self._send.close()
        self._receive.close()


def job_topic(job_id: str) -> str:
    return f"job {job_id}"


def tree_topic(root_job_id: str) -> str:
    return f"tree {root_job_id}"
