"""Power cuts: record all writes of a service under load, and build disk images that a cut may leave.

Each image is opened as the service opens its ledger and must have everything that was acknowledged before the cut. On
some of them a service is started, runs what is left, and the checker runs.
"""

import random
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import to_text
from ductile.core.errors import LedgerError
from ductile.engine.process.procfs import become_subreaper
from ductile.ledger.storage.open_file import open_writer
from scripts.tortures.lib.checker import INVARIANTS, check, database_is_intact, transitions_replay
from scripts.tortures.lib.clients import Acknowledgement, WorkloadClients
from scripts.tortures.lib.disk_images import Change, ChangeKind, RecordedDisk, read_changes
from scripts.tortures.lib.fault_library import FaultLibrary
from scripts.tortures.lib.harness import Harness, reap_children
from scripts.tortures.lib.history import History, read_effects
from scripts.tortures.lib.instance import Instance
from scripts.tortures.lib.report import print_progress, print_violations

LEDGER = "state.db"
WAL = f"{LEDGER}-wal"
MIN_CHANGES, MAX_CHANGES = 300, 6000
"""All services but the last are killed before a change between these two."""
PROGRESS_INTERVAL = 250
"""Images between two lines of progress."""
SHM_BYTES = 32_768
ACKNOWLEDGED_MISSING = "acknowledged missing"
CORRUPT = "corrupt"
INCOMPLETE = "incomplete transactions"
RULES = (ACKNOWLEDGED_MISSING, CORRUPT, INCOMPLETE)


@frozen
class PowerOptions:
    """`images` of one recording; a service is started on `starts` of them."""

    images: int
    seed: int
    seconds: float = 20.0
    """The duration of the recording, over all services."""
    services: int = 4
    starts: int = 2
    synchronous: str = "full"
    workers: int = 4
    jobs_per_second: float = 30.0


@frozen
class ServiceEnd:
    """The end of a service by the monotonic and the wall clock, read together: the wall clock may be set later."""

    at: int
    wall: str

    @classmethod
    def now(cls) -> "ServiceEnd":
        return cls(time.monotonic_ns(), to_text(datetime.now(UTC)))


@define
class Recording:
    """All changes of several services under load, and what they acknowledged."""

    instance: Instance
    changes: list[Change]
    acknowledged: list[Acknowledgement] = field(factory=list)
    ends: list[ServiceEnd] = field(factory=list)

    def acknowledged_before(self, moment: int) -> "list[Acknowledgement]":
        return [one for one in self.acknowledged if one.at <= moment]

    def durable_until(self, moment: int) -> int:
        """Return the start of the last sync of the write-ahead log that was complete at this moment."""
        syncs = (change for change in self.changes if change.kind is ChangeKind.SYNC and change.name == WAL)
        return max((sync.started for sync in syncs if sync.ended <= moment), default=0)


def record(directory: Path, options: PowerOptions) -> Recording:
    """Run several services under load and record their writes. All but the last are killed just before a write."""
    settings = "" if options.synchronous == "full" else f", synchronous: {options.synchronous}"
    instance = Instance(directory / "recorded", workers=options.workers, service_settings=settings)
    instance.path.mkdir(mode=0o700)
    instance.build()
    library, log = FaultLibrary.build(directory, instance.path / "data"), directory / "changes"
    rng, recording = random.Random(options.seed), Recording(instance, [])
    for number in range(options.services):
        kill_before = rng.randint(MIN_CHANGES, MAX_CHANGES) if number < options.services - 1 else None
        service = instance.launch(library.recording(log, kill_before=kill_before))
        clients = WorkloadClients(instance, options.jobs_per_second, options.seed + number, directory / "acknowledged")
        clients.start()
        if service.wait_until_ready():
            clients.use_url(service.url)
        service.wait_for_exit(options.seconds / options.services)
        clients.use_url(None)
        clients.stop()
        code = service.stop()
        assert code in (0, -9), service.stderr
        recording.ends.append(ServiceEnd.now())
        recording.acknowledged += clients.acknowledged
        reap_children()
    recording.changes = read_changes(log)
    recording.acknowledged.sort(key=lambda one: one.at)
    _require_exact(recording)
    return recording


def _require_exact(recording: Recording) -> None:
    """Raise AssertionError unless the recording leads to the exact bytes on the disk."""
    disk = RecordedDisk()
    for change in recording.changes:
        disk.apply(change)
    for name, content in disk.current().items():
        if name.startswith(LEDGER) and content != (recording.instance.path / "data" / name).read_bytes():
            raise AssertionError(f"the recording is not exact: {name} has other bytes on the disk")


@define
class PowerTorture:
    """The images of one recording, and their violations."""

    recording: Recording
    options: PowerOptions
    directory: Path
    violations: dict[str, list[str]] = field(factory=dict)
    without_ledger: int = 0
    required: int = 0
    """Acknowledgements that had to be present, over all images."""
    run_again: int = 0
    """First attempts that started twice because the cut lost their claim."""

    def run(self) -> None:
        rng = random.Random(f"{self.options.seed}/cuts")
        moments = sorted(drawn_moments(self.recording, self.options.images, rng))
        started = set(rng.sample(range(len(moments)), min(self.options.starts, len(moments))))
        changes, disk, applied = self.recording.changes, RecordedDisk(), 0
        ends = [change.ended for change in changes]
        for number, moment in enumerate(moments):
            completed = bisect_right(ends, moment)
            for change in changes[applied:completed]:
                disk.apply(change)
            applied = completed
            image, path = disk.image_after_cut(rng), self.directory / f"image-{number}"
            write_image(image, path / "data", shm=rng.randbytes(SHM_BYTES) if rng.random() < 0.5 else None)
            check_image = self.start_service if number in started else self.check_ledger
            found = list(check_image(path, moment))
            for rule, violation in found:
                self.violations.setdefault(rule, []).append(f"image {number}: {violation}")
            if not found:
                shutil.rmtree(path)  # keep only images with violations
            if (number + 1) % PROGRESS_INTERVAL == 0:
                print_progress(f"{number + 1} images, {sum(map(len, self.violations.values()))} violations")

    def check_ledger(self, path: Path, moment: int) -> Iterator[tuple[str, str]]:
        """Open the ledger of an image and yield its violations."""
        ledger, required = path / "data" / LEDGER, self.recording.acknowledged_before(moment)
        self.required += len(required)
        if not ledger.exists():
            self.without_ledger += 1
            yield from ((ACKNOWLEDGED_MISSING, f"{one.job_id}: the cut left no ledger") for one in required)
            return
        try:
            with closing(open_writer(ledger)):
                history = History(ledger, required, [])
                yield from ((ACKNOWLEDGED_MISSING, violation) for violation in missing_jobs(history))
                yield from ((CORRUPT, violation) for violation in database_is_intact(history))
                yield from ((INCOMPLETE, violation) for violation in transitions_replay(history))
        except LedgerError as error:
            yield CORRUPT, f"refused: {error}"

    def start_service(self, path: Path, moment: int) -> Iterator[tuple[str, str]]:
        """Start a service on an image, run what is left, and yield the violations of all invariants."""
        harness = Harness(self._restore_instance(path, moment))
        ends = [end for end in self.recording.ends if end.at <= moment]
        harness.deaths = [end.wall for end in (*ends, ServiceEnd.now())]
        harness.clear_backoffs()
        harness.finish_all_jobs()
        history = harness.history(
            self.recording.acknowledged_before(moment), claims_durable_until=self.recording.durable_until(moment)
        )
        self.run_again += len(history.run_again)
        for rule, found in check(history).items():
            yield from ((rule, violation) for violation in found)

    def _restore_instance(self, path: Path, moment: int) -> Instance:
        """Add the configuration of the recorded instance and its effects before the cut to an image."""
        recorded = self.recording.instance
        instance = Instance(
            path,
            workers=recorded.workers,
            service_settings=recorded.service_settings,
            plugin_program=recorded.path / "plugins" / recorded.plugins[0].name / "run",
        )
        instance.build()
        lines = recorded.effects_log.read_text().splitlines(keepends=True)
        effects = read_effects(recorded.effects_log)
        instance.effects_log.write_text(
            "".join(line for line, effect in zip(lines, effects, strict=True) if effect.at <= moment)
        )
        return instance


def missing_jobs(history: History) -> Iterator[str]:
    """Find acknowledged jobs that are missing, and runs that have not ended although a client got their end."""
    for one in history.acknowledged:
        job = history.jobs.get(one.job_id)
        if job is None:
            yield f"{one.job_id} ({one.target}) was acknowledged and is not in the ledger"
        elif one.response is not None and job["tree_completed_at"] is None:
            yield f"{one.job_id} ({one.target}) has not ended, but a client got its end"


def drawn_moments(recording: Recording, count: int, rng: random.Random) -> Iterator[int]:
    """Draw cuts: a third each just after an acknowledgement, during a write, and during a rarer change."""
    rare = {kind: found for kind in ChangeKind if (found := [one for one in recording.changes if one.kind is kind])}
    writes = rare.pop(ChangeKind.WRITE)
    for number in range(count):
        if number % 3 == 0 and recording.acknowledged:
            yield rng.choice(recording.acknowledged).at + rng.randrange(200_000)
        else:
            change = rng.choice(writes if number % 3 == 1 else rare[rng.choice(list(rare))])
            yield rng.randint(change.started, change.ended)


def write_image(image: dict[str, bytes], folder: Path, *, shm: bytes | None) -> None:
    """Write the files of the ledger. `shm` is the content of the shared memory file; None omits the file."""
    folder.mkdir(mode=0o700, parents=True)
    files = {name: content for name, content in image.items() if name.startswith(LEDGER)}
    if shm is not None and WAL in files:
        files[f"{LEDGER}-shm"] = shm
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


def torture(directory: Path, options: PowerOptions) -> dict[str, Any]:
    """Record, cut and check; return the summary with the number of violations of each rule."""
    become_subreaper()
    recording = record(directory, options)
    print_progress(f"{len(recording.changes)} changes recorded, {len(recording.acknowledged)} jobs acknowledged")
    test = PowerTorture(recording, options, directory)
    test.run()
    print_violations(test.violations)
    kinds = [change.kind.name.lower() for change in recording.changes]
    return {
        "torture": "power",
        "images": options.images,
        "seed": options.seed,
        "synchronous": options.synchronous,
        "acknowledged": len(recording.acknowledged),
        "ends_reported": sum(one.response is not None for one in recording.acknowledged),
        "required": test.required,
        "changes": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "without_ledger": test.without_ledger,
        "started": options.starts,
        "run_again": test.run_again,
        "violations": {rule: len(test.violations.get(rule, ())) for rule in (*RULES, *INVARIANTS)},
    }
