"""The running attempts of this service: how to stop them, and how many worker slots are free.

Does not know the ledger or tasks. The dispatcher adds attempts, `run_job` removes them.
"""

from collections.abc import Collection, Iterator, Mapping

import trio
from attrs import define, field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import PROCESSLESS_SLOTS, RELAY, Job
from ductile.engine.process.run import Finished, ProcessControl
from ductile.engine.process.start import Process, SpawnFailed
from ductile.ledger.admin.pauses import ALL_PLUGINS


@define(eq=False)
class Attempt:
    """A running attempt of a job."""

    job: Job
    snapshot: Snapshot
    state: str = "{}"
    """The state of the plugin at the time of the claim, as JSON text."""
    queued_by_commit: int = 0
    """The commit that must be durable before the attempt starts."""
    control: ProcessControl = field(factory=ProcessControl)
    pid: int | None = None
    """The process id of the plugin. Stays set after the process has exited."""
    has_run: bool = False
    """The plugin has exited, so an internal error must not run it again."""
    has_stored_pid: bool = False
    """The ledger has the process id."""
    started: float = field(factory=trio.current_time)

    def __attrs_post_init__(self) -> None:
        self.control.on_start = self._mark_started

    @property
    def input_bytes(self) -> int:
        """The size of the payload and the baggage."""
        return len(self.job.payload or "") + len(self.job.context or "")

    def _mark_started(self, process: Process) -> None:
        self.pid = process.pid
        failpoint("spawn.after")

    def mark_finished(self, run: Finished | SpawnFailed) -> None:
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
        """Add the attempts of one claim. After `stop_all` they end without starting a process."""
        for attempt in attempts:
            self._attempts[attempt.job.id, attempt.job.attempt] = attempt
            if self._stop_all is not None:
                attempt.control.stop.request(self._stop_all)

    def remove(self, attempt: Attempt) -> None:
        """Free the slot of an attempt. Does nothing if it is free or if the same attempt was claimed again."""
        key = attempt.job.id, attempt.job.attempt
        if self._attempts.get(key) is attempt:
            del self._attempts[key]

    def find(self, job_id: str) -> Attempt | None:
        return next((attempt for attempt in self if attempt.job.id == job_id), None)

    def stop_job(self, job_id: str, reason: str) -> None:
        """Terminate the process of a running job: SIGTERM, grace period, SIGKILL. Does nothing if it has ended."""
        if attempt := self.find(job_id):
            attempt.control.stop.request(reason)

    def stop_all(self, reason: str) -> None:
        """Stop every running attempt and every attempt that is added later."""
        self._stop_all = reason
        for attempt in self:
            attempt.control.stop.request(reason)

    def live_stderr(self, job_id: str) -> str | None:
        """Return the stderr of a running job so far, with known secrets masked. None if it does not run."""
        attempt = self.find(job_id)
        if attempt is None:
            return None
        stderr, mask = attempt.control.stderr, attempt.snapshot.config.mask
        text = stderr.read()
        hide = mask.mask_tail if stderr.total > len(text) else mask
        return hide(text.decode("utf-8", "backslashreplace"))

    def capacity(self, snapshot: Snapshot) -> "Capacity":
        """Return the worker slots that are free under this configuration."""
        taken = [attempt.job.plugin for attempt in self]
        workers = snapshot.max_workers - sum(plugin not in PROCESSLESS_SLOTS for plugin in taken)
        free = _free_slots(snapshot.slots, taken) if workers > 0 else {}
        processless = _free_slots(PROCESSLESS_SLOTS, taken)
        if workers <= 0 and not snapshot.config.settings.instances:
            # Relay jobs whose instances a reload has removed are claimed only when a worker is free.
            processless = _exclude(processless, [RELAY])
        return Capacity(free, workers if free else 0, processless)


@frozen(eq=False)
class Capacity:
    """Free slots by plugin, the number of free workers, and free slots of jobs that need no worker, such as relays."""

    free: Mapping[str, int]
    limit: int
    processless: Mapping[str, int]

    def exclude(self, plugins: Collection[str]) -> "Capacity":
        """Return the capacity without these plugins; `*` stands for all of them."""
        if not plugins:
            return self
        free = _exclude(self.free, plugins)
        return Capacity(free, self.limit if free else 0, _exclude(self.processless, plugins))


def _free_slots(slots: Mapping[str, int], taken: Collection[str]) -> Mapping[str, int]:
    left = dict(slots)
    for plugin in taken:
        if plugin in left:
            left[plugin] -= 1
    return {plugin: count for plugin, count in left.items() if count > 0}


def _exclude(slots: Mapping[str, int], plugins: Collection[str]) -> Mapping[str, int]:
    return {} if ALL_PLUGINS in plugins else {plugin: free for plugin, free in slots.items() if plugin not in plugins}
