"""The attempts that run in this process: what each is, how to stop it, and how much capacity is left.

Knows nothing of the ledger or of tasks; the dispatcher adds attempts and `run_job` removes them.
"""

from collections.abc import Collection, Iterator, Mapping

import trio
from attrs import define, field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import RELAY, RELAY_SLOTS, Job
from ductile.engine.process.run import Finished, ProcessControl
from ductile.engine.process.start import Process, SpawnFailed
from ductile.ledger.admin.pauses import EVERYTHING


@define(eq=False)
class Attempt:
    """A running attempt of a job."""

    job: Job
    snapshot: Snapshot
    state: str = "{}"
    """The state of its plugin when it was claimed, as JSON text."""
    queued_in: int = 0
    """The commit that must be durable before the attempt starts."""
    control: ProcessControl = field(factory=ProcessControl)
    pid: int | None = None
    """The process it ran as, also after the end."""
    has_run: bool = False
    """The plugin has run to its end: an internal error must not run it again."""
    is_noted: bool = False
    """The ledger has its process id."""
    since: float = field(factory=trio.current_time)

    def __attrs_post_init__(self) -> None:
        self.control.on_start = self._note_start

    @property
    def input_bytes(self) -> int:
        return len(self.job.payload or "") + len(self.job.context or "")

    def _note_start(self, process: Process) -> None:
        self.pid = process.pid
        failpoint("spawn.after")

    def note_end(self, run: Finished | SpawnFailed) -> None:
        self.has_run = isinstance(run, Finished)
        failpoint("plugin.exited")


@define(eq=False)
class RunningJobs:
    """The running attempts of one service, by job and attempt number."""

    _attempts: dict[tuple[str, int], Attempt] = field(factory=dict)
    _stop_all: str | None = None

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts.values())

    def add(self, attempts: Collection[Attempt]) -> None:
        """Add the attempts of one claim. After `stop_all` they end before they start."""
        for attempt in attempts:
            self._attempts[attempt.job.id, attempt.job.attempt] = attempt
            if self._stop_all is not None:
                attempt.control.stop.request(self._stop_all)

    def remove(self, attempt: Attempt) -> None:
        """Free the slot of an attempt; does nothing if it is free already, or taken by a new claim of the attempt."""
        key = attempt.job.id, attempt.job.attempt
        if self._attempts.get(key) is attempt:
            del self._attempts[key]

    def of_job(self, job_id: str) -> Attempt | None:
        return next((attempt for attempt in self if attempt.job.id == job_id), None)

    def stop_job(self, job_id: str, reason: str) -> None:
        """End the process of a running job: SIGTERM, the grace period, SIGKILL. Does nothing if it has ended."""
        if attempt := self.of_job(job_id):
            attempt.control.stop.request(reason)

    def stop_all(self, reason: str) -> None:
        """End every running attempt, and every attempt that is added later."""
        self._stop_all = reason
        for attempt in self:
            attempt.control.stop.request(reason)

    def live_stderr(self, job_id: str) -> str | None:
        """Return what a running job has written to stderr so far, with known secrets masked."""
        attempt = self.of_job(job_id)
        if attempt is None:
            return None
        stderr, mask = attempt.control.stderr, attempt.snapshot.config.mask
        text = stderr.read()
        hide = mask.of_tail if stderr.total > len(text) else mask
        return hide(text.decode("utf-8", "backslashreplace"))

    def capacity(self, snapshot: Snapshot) -> "Capacity":
        """Return the worker slots that are free under this configuration."""
        taken = [attempt.job.plugin for attempt in self]
        workers = snapshot.max_workers - sum(plugin != RELAY for plugin in taken)
        free = _free_slots(snapshot.slots, taken) if workers > 0 else {}
        # Relays that a reload left behind without any instance are claimed when a worker is free.
        has_relays = workers > 0 or snapshot.config.settings.instances
        relays = _free_slots({RELAY: RELAY_SLOTS}, taken) if has_relays else {}
        return Capacity(free, workers if free else 0, relays)


@frozen(eq=False)
class Capacity:
    """Free slots by plugin, how many of them can be filled at once, and free slots of relays, which need no worker."""

    free: Mapping[str, int]
    limit: int
    relays: Mapping[str, int]

    def without(self, held: Collection[str]) -> "Capacity":
        """Leave out the plugins that must not start jobs now; `*` stands for all of them."""
        if not held:
            return self
        free = _not_held(self.free, held)
        return Capacity(free, self.limit if free else 0, _not_held(self.relays, held))


def _free_slots(slots: Mapping[str, int], taken: Collection[str]) -> Mapping[str, int]:
    left = dict(slots)
    for plugin in taken:
        if plugin in left:
            left[plugin] -= 1
    return {plugin: count for plugin, count in left.items() if count > 0}


def _not_held(slots: Mapping[str, int], held: Collection[str]) -> Mapping[str, int]:
    return {} if EVERYTHING in held else {plugin: count for plugin, count in slots.items() if plugin not in held}
