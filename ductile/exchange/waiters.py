"""Workers that wait for messages: one ready message wakes one of them, the one that has waited longest.

A wake-up is a hint: the worker then claims from the ledger, and another one may have been faster. Does not know HTTP.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf

import trio
from attrs import define, field


@define(eq=False)
class Waiter:
    """A waiting worker. `unused` are the topics that it was woken for, until it has claimed.

    Until then, further messages wake other workers: this one may claim only one.
    """

    topics: tuple[str, ...]
    unused: set[str] = field(factory=set)
    _event: trio.Event = field(factory=trio.Event)

    @property
    def is_woken(self) -> bool:
        return bool(self.unused) or self._event.is_set()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Wait until the worker is woken."""
        await self._event.wait()
        self._event = trio.Event()

    def use(self, claimed_topics: Collection[str]) -> None:
        """Note that the worker has claimed from these topics. If from none, no message is left for its wake-ups."""
        self.unused = self.unused.difference(claimed_topics) if claimed_topics else set()


@define(eq=False)
class TopicWaiters:
    """The waiting workers of each topic, in the order in which they came."""

    _by_topic: dict[str, dict[Waiter, None]] = field(factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str) -> int:
        """Return how many workers wait for this topic."""
        return len(self._by_topic.get(topic, ()))

    @contextmanager
    def waiting(self, topics: Sequence[str]) -> Iterator[Waiter]:
        """Add a worker. Add it first, then read the ledger.

        A wake-up that it leaves unused, for example because its client has disconnected, wakes the next worker.
        """
        waiter = Waiter(tuple(dict.fromkeys(topics)))
        for topic in waiter.topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        self._count += 1
        try:
            yield waiter
        finally:
            self._count -= 1
            for topic in waiter.topics:
                queue = self._by_topic[topic]
                del queue[waiter]
                if not queue:
                    del self._by_topic[topic]
            for topic in waiter.unused:
                self.wake(topic)

    def wake(self, topic: str, count: float = 1) -> None:
        """Wake the first `count` workers of the topic that are not woken yet."""
        for waiter in self._by_topic.get(topic, ()):
            if count < 1:
                return
            if not waiter.is_woken:
                waiter.unused.add(topic)
                waiter.wake()
                count -= 1

    def wake_topic(self, topic: str) -> None:
        """Wake every worker of the topic: it was resumed."""
        self.wake(topic, inf)

    def wake_all(self) -> None:
        """Wake every worker: the service is stopping."""
        for queue in self._by_topic.values():
            for waiter in queue:
                waiter.wake()
