"""What all jobs of one service share: the ledger, the hub, the log, the running attempts and their processes."""

from collections.abc import Callable

from attrs import field, frozen

from ductile.clock import Clock
from ductile.config.snapshot import Snapshot
from ductile.engine.durable_jobs import DurableJobs
from ductile.engine.preflight import Memory
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.running_jobs import RunningJobs
from ductile.hub import Hub
from ductile.ledger.writer import Ledger
from ductile.logs import Log
from ductile.meters import Meters


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
    held: Callable[[], frozenset[str]] = frozenset
    """The plugins whose jobs must not start now; `*` stands for all of them."""
    meters: Meters = field(factory=Meters)
    running: RunningJobs = field(factory=RunningJobs)
    processes: ProcessTable = field(factory=ProcessTable)
    durable_jobs: DurableJobs = field(factory=DurableJobs)
    preflight_cache: Memory = field(factory=Memory)
