"""The workload: the plugins, routes and pipelines that the torture tests run.

An instance builds its configuration from them. `expected_runs` describes independently what their runs must lead to.
"""

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen


@frozen
class WorkloadPlugin:
    """One plugin: what it emits, how it fails, and how often clients request it."""

    name: str
    emits: str | None = None
    event_count: int = 1
    max_items: int = 0
    """Its events carry a list of up to this many items, and a flag `even`."""
    failure_percent: int = 0
    sleep_ms: int = 0
    leaves_daemon: bool = False
    records_facts: bool = False
    notifies: bool = False
    every: str | None = None
    """Interval of its schedule."""
    if_running: str = "queue"
    """Policy of its schedule while an earlier job is not finished."""
    sigterm_delay_ms: int = 0
    """Time from SIGTERM to its exit, which it writes to the effects log."""
    is_exclusive: bool = False
    """Only one of its processes may run at a time; it writes a conflict to the effects log."""
    weight: int = 0
    """Relative frequency of the requests for it."""
    timeout: str = "30s"

    def environ(self, effects_log: Path) -> dict[str, str]:
        """Return the environment that configures the plugin program."""
        variables = {
            "WORKLOAD_EFFECTS_LOG": str(effects_log),
            "WORKLOAD_EMITS": self.emits,
            "WORKLOAD_EVENT_COUNT": str(self.event_count),
            "WORKLOAD_MAX_ITEMS": str(self.max_items),
            "WORKLOAD_FAILURE_PERCENT": str(self.failure_percent),
            "WORKLOAD_SLEEP_MS": str(self.sleep_ms),
            "WORKLOAD_LEAVES_DAEMON": "1" if self.leaves_daemon else None,
            "WORKLOAD_SIGTERM_DELAY_MS": str(self.sigterm_delay_ms) if self.sigterm_delay_ms else None,
            "WORKLOAD_LOCK_FILE": f"{effects_log}.{self.name}" if self.is_exclusive else None,
        }
        return {name: value for name, value in variables.items() if value is not None}


@frozen
class WorkloadPipeline:
    """One pipeline: its YAML, and how often clients start it without waiting."""

    name: str
    yaml: str
    uses: frozenset[str]
    """The plugins that it needs."""
    calls: frozenset[str] = frozenset()
    weight: int = 0

    @property
    def is_synchronous(self) -> bool:
        return "execution_mode: synchronous" in self.yaml


PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=3, records_facts=True, weight=2),
    WorkloadPlugin("refine", emits="item.refined", sleep_ms=20, records_facts=True),
    WorkloadPlugin("keep", weight=4),
    WorkloadPlugin("flaky", failure_percent=35, sleep_ms=10, timeout="400ms", notifies=True, weight=8),
    WorkloadPlugin("slow", sleep_ms=700, weight=1),
    WorkloadPlugin("daemon", leaves_daemon=True, sleep_ms=30, weight=2),
    WorkloadPlugin("tick", every="400ms"),
    WorkloadPlugin("order", emits="order.placed", weight=1),
    WorkloadPlugin("pick", emits="order.picked", max_items=3, notifies=True),
    WorkloadPlugin("press", sleep_ms=20, records_facts=True),
    WorkloadPlugin("twin", emits="half.done", event_count=2),
    WorkloadPlugin("brittle", failure_percent=25, timeout="400ms"),
)
ROUTES = (
    ("gather", "item.found", "refine"),
    ("gather", "item.found", "flaky"),
    ("refine", "item.refined", "keep"),
)
PIPELINES = (
    WorkloadPipeline(
        "deliver",
        """
  - name: deliver
    on: order.placed
    from_plugin: order
    execution_mode: synchronous
    timeout: 2s
    steps:
      - {id: pick, uses: pick}
      - id: wrap
        foreach: payload.items
        join: true
        steps:
          - {id: cut, uses: press, baggage: {part: item}, with: {part: "{item}"}}
          - {id: around, call: bundle}
      - id: inspect
        if: {path: payload.even, op: eq, value: true}
        uses: keep
      - id: sides
        join: true
        split:
          - {id: invoice, uses: press}
          - id: label
            steps:
              - {id: print, uses: twin}
              - {id: glue, uses: brittle, continue: true, on_error: [{id: patch, uses: keep}]}
      - {id: ship, uses: keep}
""",
        uses=frozenset({"order", "pick", "press", "keep", "twin", "brittle"}),
        calls=frozenset({"bundle"}),
        weight=1,
    ),
    WorkloadPipeline(
        "bundle",
        """
  - name: bundle
    on: bundle.asked
    steps:
      - id: both
        join: true
        split:
          - {id: paper, uses: press}
          - {id: ribbon, uses: brittle}
""",
        uses=frozenset({"press", "brittle"}),
    ),
    WorkloadPipeline(
        "quote",
        """
  - name: quote
    on: quote.asked
    execution_mode: synchronous
    timeout: 2s
    steps:
      - {id: pick, uses: pick}
      - {id: prices, foreach: payload.items, join: true, uses: press, with: {part: "{item}"}}
""",
        uses=frozenset({"pick", "press"}),
    ),
    WorkloadPipeline(
        "on-completed",
        """
  - name: on-completed
    on-hook: job.completed
    steps: [{id: record, uses: keep}]
""",
        uses=frozenset({"keep"}),
    ),
    WorkloadPipeline(
        "on-failed",
        """
  - name: on-failed
    on-hook: job.failed
    from_plugin: flaky
    steps: [{id: alert, uses: keep}]
""",
        uses=frozenset({"keep", "flaky"}),
    ),
    WorkloadPipeline(
        "on-dead",
        """
  - name: on-dead
    on-hook: job.dead
    steps: [{id: report, uses: keep}]
""",
        uses=frozenset({"keep"}),
    ),
)


def routes_between(plugins: Iterable[WorkloadPlugin]) -> tuple[tuple[str, str, str], ...]:
    """Return the routes whose source and target are both present."""
    names = {plugin.name for plugin in plugins}
    return tuple(route for route in ROUTES if route[0] in names and route[2] in names)


def pipelines_between(plugins: Iterable[WorkloadPlugin]) -> tuple[WorkloadPipeline, ...]:
    """Return the pipelines whose plugins are all present, and those of the pipelines that they call."""
    names = {plugin.name for plugin in plugins}
    found = {pipeline.name: pipeline for pipeline in PIPELINES if pipeline.uses <= names}
    return tuple(pipeline for pipeline in found.values() if pipeline.calls <= found.keys())
