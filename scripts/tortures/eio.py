"""A failing disk: under load, a write, sync or truncation and possibly all later ones fail with EIO.

The content of the disk is then unknown. The service must exit at once with the documented code, and the next one must
have everything that was acknowledged.
"""

import random
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import INVARIANTS, check
from scripts.tortures.lib.clients import Acknowledgement, WorkloadClients
from scripts.tortures.lib.disk_images import Change, ChangeKind, read_changes
from scripts.tortures.lib.fault_library import FaultLibrary
from scripts.tortures.lib.harness import Harness
from scripts.tortures.lib.instance import Instance, ServiceProcess, build_plugin_program
from scripts.tortures.lib.report import print_progress, print_violations, spread

MAX_EXIT_SECONDS = 1.0
"""From the first failure to the exit of the process."""
EXIT_CODE, START_EXIT_CODE = 1, 78
CALLS_AT_START = {"sync": 24, "pwrite": 500, "truncate": 4}
"""The approximate number of calls until a service with a new ledger is ready."""
MAX_CALLS = {"sync": 250, "pwrite": 12_000, "truncate": 5}
"""Under this load the service makes so many calls within a few seconds."""
ALL_LATER = 1 << 30
DATABASE, WAL = "state.db", "state.db-wal"
CHECKPOINT_WINDOW = 50
"""During a checkpoint at least one of so many calls writes to the database."""
WAL_FRAME_HEADER = struct.Struct(">II16x")
EXIT_TIMEOUT = 30.0
EXITS_AT_ONCE = "the service exits at once"
EXIT_CODE_IS_RIGHT = "the exit code is right"
NO_NEW_TRANSACTION = "no transaction starts after the failure"
FAILURE_HAPPENS = "the failure happens"
NO_RESPONSE_500 = "no response is 500"
RULES = (EXITS_AT_ONCE, EXIT_CODE_IS_RIGHT, NO_NEW_TRANSACTION, FAILURE_HAPPENS, NO_RESPONSE_500)


@frozen
class EioOptions:
    """`runs` failures, each of a new service."""

    runs: int
    seed: int
    leniency: float = 1.0
    workers: int = 4
    jobs_per_second: float = 60.0


@frozen
class DiskFault:
    """The `number`-th call of this kind and the next ones fail, `times` in all."""

    call: str
    number: int
    times: int
    """After a failed write the kernel reports one error and drops the page: the next sync succeeds."""

    @classmethod
    def drawn(cls, run: int, rng: random.Random) -> "DiskFault":
        """Draw a fault: half are syncs, which must not be retried, and every third is during the start."""
        call = ("sync", "pwrite", "sync", "truncate")[run % 4]
        first, last = (1, CALLS_AT_START[call]) if run % 3 == 2 else (CALLS_AT_START[call] + 1, MAX_CALLS[call])
        return cls(call, rng.randint(first, last), rng.choice((1, ALL_LATER)))

    def __str__(self) -> str:
        return f"{self.call} {self.number}{' and all later ones' if self.times == ALL_LATER else ''}"


@define
class EioTorture:
    """All runs and their violations."""

    directory: Path
    options: EioOptions
    plugin_program: Path
    violations: dict[str, list[str]] = field(factory=dict)
    exit_seconds: list[float] = field(factory=list)
    failed_at_start: int = 0
    acknowledged: int = 0

    def run(self, number: int) -> None:
        """Make the disk of one service fail, run what is left with the next one, and check."""
        fault = DiskFault.drawn(number, random.Random(f"{self.options.seed}/{number}"))
        path, workers = self.directory / f"run-{number}", self.options.workers
        instance = Instance(path, workers=workers, plugin_program=self.plugin_program)
        instance.path.mkdir(mode=0o700)
        instance.build()
        harness = Harness(instance)
        acknowledged = self._run_service(harness, fault)
        harness.finish_all_jobs()
        for rule, found in check(harness.history(acknowledged)).items():
            self.violations.setdefault(rule, []).extend(f"{fault}: {one}" for one in found)
        self.acknowledged += len(acknowledged)

    def _run_service(self, harness: Harness, fault: DiskFault) -> list[Acknowledgement]:
        """Run a service until its disk fails; return what it acknowledged."""
        instance, log = harness.instance, harness.instance.path / "changes"
        library = FaultLibrary.build(instance.path, instance.path / "data")
        service = instance.launch(library.failing(log, fault.call, fault.number, times=fault.times))
        options, record = self.options, instance.path / "acknowledged"
        clients = WorkloadClients(instance, options.jobs_per_second, options.seed, record)
        clients.start()
        service.wait_until_ready()
        clients.use_url(service.url)
        if fault.call == "truncate":
            service.wait_for_exit(2.0)
            service.process.terminate()  # the write-ahead log is truncated at a regular exit
        service.wait_for_exit(EXIT_TIMEOUT)
        ended = time.monotonic_ns()
        clients.use_url(None)
        clients.stop()
        harness.kill(service)
        self.check_service(fault, service, read_changes(log), ended)
        for response in clients.refused:
            if response.startswith("500"):
                self._report(NO_RESPONSE_500, f"{fault}: {response}")
        return clients.acknowledged

    def check_service(self, fault: DiskFault, service: ServiceProcess, changes: Sequence[Change], ended: int) -> None:
        """Check the behaviour of a service after its disk failed."""
        first = next((number for number, change in enumerate(changes) if change.kind is ChangeKind.FAILED), None)
        code = service.process.returncode
        if first is None:
            self._report(FAILURE_HAPPENS, f"{fault} did not happen; the service exited with {code}")
            return
        was_ready = service.url is not None
        self.failed_at_start += not was_ready
        self.exit_seconds.append((ended - changes[first].started) / 1e9)
        if self.exit_seconds[-1] > MAX_EXIT_SECONDS * self.options.leniency:
            self._report(EXITS_AT_ONCE, f"{fault}: the service exited after {self.exit_seconds[-1]:.2f} s")
        expected = EXIT_CODE if was_ready else START_EXIT_CODE
        if code != expected:
            self._report(EXIT_CODE_IS_RIGHT, f"{fault}: {code}, not {expected}: {service.stderr[-3:]}")
        if was_ready and (started := started_after(changes, first)):
            self._report(NO_NEW_TRANSACTION, f"{fault}: {started}")

    def _report(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


def started_after(changes: Sequence[Change], failed: int) -> str | None:
    """Return what was started after the failure.

    Syncs run in a thread, so one commit or checkpoint may be in progress. It completes and is not acknowledged.
    """
    later = changes[failed:]
    if (commits := sum(map(ends_commit, later))) > 1:
        return f"{commits} commits"
    just_before = changes[max(0, failed - CHECKPOINT_WINDOW) : failed]
    if any(map(is_database_write, later)) and not any(map(is_database_write, just_before)):
        return "a checkpoint"
    return None


def ends_commit(change: Change) -> bool:
    """Return whether this is the header of the last frame of a commit in the write-ahead log."""
    is_header = change.name == WAL and len(change.data) == WAL_FRAME_HEADER.size
    return is_header and WAL_FRAME_HEADER.unpack(change.data)[1] != 0


def is_database_write(change: Change) -> bool:
    return change.kind is ChangeKind.WRITE and change.name == DATABASE


def torture(directory: Path, options: EioOptions) -> dict[str, Any]:
    """Run all failures; return the summary with the number of violations of each rule."""
    become_subreaper()
    test = EioTorture(directory, options, build_plugin_program(directory))
    for number in range(options.runs):
        test.run(number)
        print_progress(f"run {number + 1}: {sum(map(len, test.violations.values()))} violations")
    print_violations(test.violations)
    return {
        "torture": "io",
        "runs": options.runs,
        "seed": options.seed,
        "acknowledged": test.acknowledged,
        "on_the_way_up": test.failed_at_start,
        "exit_seconds": spread(test.exit_seconds),
        "violations": {rule: len(test.violations.get(rule, ())) for rule in (*RULES, *INVARIANTS)},
    }
