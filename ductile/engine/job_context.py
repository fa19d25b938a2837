"""The dependencies that all jobs of one service share."""

from collections.abc import Awaitable, Callable, Mapping
from math import inf

from attrs import define, field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.core.logs import Log
from ductile.core.metrics import Metrics
from ductile.core.model import Completion
from ductile.engine.durable_jobs import DurableJobs
from ductile.engine.preflight import PreflightCache
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.running_jobs import Attempt, RunningJobs
from ductile.ledger.queue.waits import Hold
from ductile.ledger.storage.async_ledger import Ledger
from ductile.plugin.checked_files import CheckedFiles

ProcesslessRun = Callable[["JobContext", Attempt], Awaitable[Completion | None]]
"""Runs one attempt of a job that needs no process. Returns its completion, or None if the job was queued again."""

LEDGER_RETRY_INTERVAL = 0.5
"""Seconds until a write is repeated after the ledger was busy or full."""


@define
class DriftedPlugins:
    """The plugins whose files differ from the loaded ones, as last reported, and when that was last checked."""

    files: dict[str, CheckedFiles] = field(factory=dict)
    checked_at: float = -inf


@frozen(kw_only=True, eq=False)
class JobContext:
    """The dependencies of a job: ledger, hub, log, configuration, and the state that running jobs share."""

    ledger: Ledger
    hub: Hub
    log: Log
    clock: Clock
    instance: str
    run_id: str
    snapshot: Callable[[], Snapshot]
    processless: Mapping[str, ProcesslessRun]
    """How to run the jobs of the core's own plugins, such as relays."""
    blocked_plugins: Callable[[], Mapping[str, str]] = dict
    """Returns the plugins whose jobs must not start now, each with a code of the reason; `*` stands for all of them."""
    holds: dict[str, Hold] = field(factory=dict)
    """What last kept the jobs of each plugin from starting. The dispatcher updates it, and the claim records it."""
    metrics: Metrics = field(factory=Metrics)
    running: RunningJobs = field(factory=RunningJobs)
    processes: ProcessTable = field(factory=ProcessTable)
    durable_jobs: DurableJobs = field(factory=DurableJobs)
    preflight_cache: PreflightCache = field(factory=PreflightCache)
    drifted: DriftedPlugins = field(factory=DriftedPlugins)

    @property
    def is_strict(self) -> bool:
        """True if plugins may run only with their sealed files."""
        return self.snapshot().config.settings.service.strict_mode

    def held_plugins(self) -> Mapping[str, str]:
        """Return `blocked_plugins` and, under `strict_mode`, the plugins whose files have changed."""
        blocked = self.blocked_plugins()
        drifted = self.drifted.files
        return {**dict.fromkeys(drifted, "drifted"), **blocked} if drifted and self.is_strict else blocked
