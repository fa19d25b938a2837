"""In-memory counters and histograms of this process, exported in Prometheus format by `web.metrics`.

Holds aggregates only, nothing per job. The engine and the web server update it.
"""

from bisect import bisect_left
from collections import Counter

from attrs import define, field

BUCKET_BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)
"""Upper bounds of the buckets, in seconds: from a commit to a long job."""


@define(eq=False)
class Histogram:
    """A histogram of durations. The last bucket has no upper bound."""

    buckets: list[int] = field(factory=lambda: [0] * (len(BUCKET_BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.buckets)


@define(eq=False)
class Metrics:
    """All metrics. Label values are bounded sets: plugins, commands, endpoints, routes."""

    jobs: Counter[tuple[str, str, str, str]] = field(factory=Counter)
    """Finished jobs by plugin, command, status and outcome code."""
    retries: Counter[str] = field(factory=Counter)
    """Retried attempts by plugin."""
    running: dict[str, Histogram] = field(factory=dict)
    """Attempt durations by plugin."""
    waiting: dict[str, Histogram] = field(factory=dict)
    """Queue time before the first attempt, by plugin."""
    deliveries: Counter[tuple[str, str]] = field(factory=Counter)
    """Webhook deliveries by endpoint and result: accepted, repeated, refused."""
    requests: Counter[tuple[str, str, int]] = field(factory=Counter)
    """HTTP responses by method, route and status."""

    def observe_run(self, plugin: str, seconds: float) -> None:
        _histogram(self.running, plugin).observe(seconds)

    def observe_wait(self, plugin: str, seconds: float) -> None:
        _histogram(self.waiting, plugin).observe(max(seconds, 0.0))


def _histogram(histograms: dict[str, Histogram], name: str) -> Histogram:
    found = histograms.get(name)
    if found is None:
        found = histograms[name] = Histogram()
    return found
