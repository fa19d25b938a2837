"""What all jobs of one service share: the ledger, the hub, the log, the running attempts and their processes."""

from collections.abc import Awaitable, Callable

from attrs import field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.core.logs import Log
from ductile.core.metrics import Meters
from ductile.core.model import Completion
from ductile.engine.durable_jobs import DurableJobs
from ductile.engine.preflight import PreflightCache
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.running_jobs import Attempt, RunningJobs
from ductile.ledger.storage.writer import Ledger

RelaySender = Callable[["JobContext", Attempt], Awaitable[Completion | None]]
"""Send the event of one relay job. Returns its completion, or None if it waits for its instance."""


@frozen(kw_only=True, eq=False)
class JobContext:
    """What all jobs of one service share."""

    ledger: Ledger
    hub: Hub
    log: Log
    clock: Clock
    instance: str
    run_id: str
    snapshot: Callable[[], Snapshot]
    send_relay: RelaySender
    held: Callable[[], frozenset[str]] = frozenset
    """The plugins whose jobs must not start now; `*` stands for all of them."""
    meters: Meters = field(factory=Meters)
    running: RunningJobs = field(factory=RunningJobs)
    processes: ProcessTable = field(factory=ProcessTable)
    durable_jobs: DurableJobs = field(factory=DurableJobs)
    preflight_cache: PreflightCache = field(factory=PreflightCache)
