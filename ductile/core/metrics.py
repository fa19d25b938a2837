"""What this process has counted and measured since its start: numbers for whoever watches many services.

Counting is a dictionary and an addition; nothing is kept of single jobs. The rooms that do the work count, the web
shows it.
"""

from bisect import bisect_left
from collections import Counter

from attrs import define, field

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper ends of the buckets, in seconds: from a commit to a long job."""


@define(eq=False)
class Histogram:
    """How many measurements fell into which bucket; the last bucket has no end."""

    buckets: list[int] = field(factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.buckets)


@define(eq=False)
class Meters:
    """Everything that is counted. Names that come from outside are few: plugins, commands, endpoints, routes."""

    jobs: Counter[tuple[str, str, str]] = field(factory=Counter)
    """Ended jobs by plugin, command and status."""
    retries: Counter[str] = field(factory=Counter)
    """Attempts that are tried again, by plugin."""
    running: dict[str, Histogram] = field(factory=dict)
    """How long attempts took, by plugin."""
    waiting: dict[str, Histogram] = field(factory=dict)
    """How long jobs waited for their first attempt, by plugin."""
    deliveries: Counter[tuple[str, str]] = field(factory=Counter)
    """Webhook deliveries by endpoint and what became of them: accepted, repeated, refused."""
    requests: Counter[tuple[str, str, int]] = field(factory=Counter)
    """Answered requests by method, route and status."""

    def ran(self, plugin: str, seconds: float) -> None:
        _of(self.running, plugin).observe(seconds)

    def waited(self, plugin: str, seconds: float) -> None:
        _of(self.waiting, plugin).observe(max(seconds, 0.0))


def _of(histograms: dict[str, Histogram], name: str) -> Histogram:
    found = histograms.get(name)
    if found is None:
        found = histograms[name] = Histogram()
    return found
