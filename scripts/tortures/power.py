"""Power cuts: everything that a loaded core does to its files is recorded, and many disks are made that a cut leaves.

Each is opened as the service opens its ledger. Whatever a caller had been told before the cut must be there; on some of
them a whole service is started, works off what is left, and the checker of all tortures runs.
"""

import random
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import to_text
from ductile.core.errors import LedgerError
from ductile.engine.process.procfs import become_subreaper
from ductile.ledger.storage.open_file import open_writer
from scripts.tortures.arena import Arena
from scripts.tortures.case import Case, read_effects
from scripts.tortures.checker import INVARIANTS, check, database_is_whole, transitions_replay
from scripts.tortures.clients import Acknowledged, Clients
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture, reap_adopted
from scripts.tortures.recording import Change, Disk, Kind, read_changes
from scripts.tortures.shim import Shim
from scripts.tortures.telling import tell, tell_violations

LEDGER = "state.db"
LOG = f"{LEDGER}-wal"
FIRST_CHANGES, LAST_CHANGES = 300, 6000
"""A life ends before some change between these two, but for the last, which ends in order."""
PROGRESS_EVERY = 250
SHM_BYTES = 32_768
NEVER_WRITTEN = "the cut left no ledger"


@frozen
class Options:
    """`images` disks of one recording; on `starts` of them a whole service goes on."""

    images: int
    seed: int
    seconds: float = 20.0
    """How long the core is under load, all its lives together."""
    lives: int = 4
    starts: int = 2
    synchronous: str = "full"
    workers: int = 4
    jobs_per_second: float = 30.0


@frozen
class Death:
    """When a life was over, by both clocks: one may be set against the other before anybody asks."""

    at: int
    wall: str

    @classmethod
    def now(cls) -> "Death":
        return cls(time.monotonic_ns(), to_text(datetime.now(UTC)))


@define
class Recorded:
    """A core lived several times, each time with callers, and this is all that is known of it."""

    arena: Arena
    changes: list[Change]
    acknowledged: list[Acknowledged] = field(factory=list)
    deaths: list[Death] = field(factory=list)

    def before(self, moment: int) -> "list[Acknowledged]":
        """What callers had been told."""
        return [one for one in self.acknowledged if one.at <= moment]

    def synced_before(self, moment: int) -> int:
        """Whatever was written before this was on the disk at that moment: a sync that was over had begun after it."""
        syncs = (one.begun for one in self.changes if one.kind is Kind.SYNC and one.name == LOG and one.ended <= moment)
        return max(syncs, default=0)


def record(directory: Path, options: Options) -> Recorded:
    """The core has lived several times under load; all lives but the last ended in the middle of its writing."""
    service = "" if options.synchronous == "full" else f", synchronous: {options.synchronous}"
    arena = Arena(directory / "recorded", workers=options.workers, service=service)
    arena.path.mkdir(mode=0o700)
    arena.build()
    shim, log = Shim.build(directory, arena.path / "data"), directory / "changes"
    dice, told = random.Random(options.seed), Recorded(arena, [])
    for life in range(options.lives):
        die = dice.randint(FIRST_CHANGES, LAST_CHANGES) if life < options.lives - 1 else None
        core = arena.launch(shim.recording(log, die=die))
        clients = Clients(
            arena.roles, options.jobs_per_second, options.seed + life, directory / "client", scripts=arena.scripts
        )
        clients.start()
        if core.wait_until_ready():
            clients.serve_from(core.url)
        core.wait_until_gone(options.seconds / options.lives)
        clients.serve_from(None)
        clients.stop()
        code = core.stop()
        assert code in (0, -9), core.said
        told.deaths.append(Death.now())
        told.acknowledged += clients.acknowledged
        reap_adopted()
    told.changes = read_changes(log)
    told.acknowledged.sort(key=lambda one: one.at)
    _require_exact(told)
    return told


def _require_exact(told: Recorded) -> None:
    """What the recording leads to is what the disk has: nothing was written past the record."""
    disk = Disk()
    for change in told.changes:
        disk.follow(change)
    for name, content in disk.whole().items():
        if name.startswith(LEDGER) and content != (told.arena.path / "data" / name).read_bytes():
            raise AssertionError(f"the recording is not exact: {name} has other bytes on the disk")


@define
class Cuts:
    """The disks, one after the other, and what is wrong with them."""

    told: Recorded
    options: Options
    directory: Path
    violations: dict[str, list[str]] = field(factory=dict)
    empty: int = 0
    required: int = 0
    """Acknowledgements that had to be there, over all disks."""
    run_again: int = 0
    """Attempts that began before a cut which took back their claim, and began again under their number."""

    def run(self) -> None:
        dice = random.Random(f"{self.options.seed}/cuts")
        moments = sorted(drawn_moments(self.told, self.options.images, dice))
        started = set(dice.sample(range(len(moments)), min(self.options.starts, len(moments))))
        disk, ends, done = Disk(), [change.ended for change in self.told.changes], 0
        for number, moment in enumerate(moments):
            over = bisect_right(ends, moment)
            for change in self.told.changes[done:over]:
                disk.follow(change)
            done = over
            image = disk.image(dice)
            path = self.directory / f"image-{number}"
            lay_out(image, path / "data", shm=dice.randbytes(SHM_BYTES) if dice.random() < 0.5 else None)
            found = list(self.go_on(path, moment) if number in started else self.faults(path, moment))
            for rule, fault in found:
                self.violations.setdefault(rule, []).append(f"image {number}: {fault}")
            if not found:
                shutil.rmtree(path)  # the others can be looked at, with --keep
            if (number + 1) % PROGRESS_EVERY == 0:
                tell(f"{number + 1} images, {sum(map(len, self.violations.values()))} violations")

    def faults(self, path: Path, moment: int) -> Iterator[tuple[str, str]]:
        """What a service would find, or miss, on this disk."""
        ledger, due = path / "data" / LEDGER, self.told.before(moment)
        self.required += len(due)
        if not ledger.exists():
            self.empty += 1
            yield from (("acknowledged missing", f"{one.job_id}: {NEVER_WRITTEN}") for one in due)
            return
        try:
            with closing(open_writer(ledger)):
                case = Case(ledger, due, [])
                yield from (("acknowledged missing", fault) for fault in missing(case))
                yield from (("corrupt", fault) for fault in database_is_whole(case))
                yield from (("half done", fault) for fault in transitions_replay(case))
        except LedgerError as error:
            yield "corrupt", f"refused: {error}"

    def go_on(self, path: Path, moment: int) -> Iterator[tuple[str, str]]:
        """A service starts on this disk and works off what is left; whatever the checker finds."""
        arena, lives = self._arena(path, moment), [death for death in self.told.deaths if death.at <= moment]
        service = Torture(arena, KillOptions(1, 0, workers=self.options.workers))
        service.deaths = [death.wall for death in (*lives, Death.now())]
        service.cut_delays_short()
        service.come_to_rest()
        seen = {"stuck": service.stuck, "orphans": service.orphans, "miscounted": service.miscounted}
        case = Case.of(
            arena,
            self.told.before(moment),
            deaths=service.deaths,
            faults=service.faults,
            claims_kept_until=self.told.synced_before(moment),
            **seen,
        )
        self.run_again += len(case.run_again)
        for rule, found in check(case).items():
            yield from ((rule, fault) for fault in found)

    def _arena(self, path: Path, moment: int) -> Arena:
        """The disk with the configuration of the recorded core, and what plugins had done before the cut."""
        recorded = self.told.arena
        arena = Arena(path, workers=recorded.workers, service=recorded.service, actor=recorded.path / "actor")
        arena.build()
        lines = recorded.effects.read_text().splitlines(keepends=True)
        effects = read_effects(recorded.effects)
        arena.effects.write_text(
            "".join(line for line, effect in zip(lines, effects, strict=True) if effect.at <= moment)
        )
        return arena


def missing(case: Case) -> Iterator[str]:
    """Jobs that callers were told of and that are not there; runs they were told the end of and that have none."""
    for one in case.acknowledged:
        job = case.jobs.get(one.job_id)
        if job is None:
            yield f"{one.job_id} ({one.plugin}) was acknowledged and is not in the ledger"
        elif one.answer is not None and job["tree_completed_at"] is None:
            yield f"{one.job_id} ({one.plugin}) was told to be over and is not"


def drawn_moments(told: Recorded, count: int, dice: random.Random) -> Iterator[int]:
    """By turns in the moment after an acknowledgement, in the middle of a write, and of anything rarer."""
    rare = {kind: found for kind in Kind if (found := [one for one in told.changes if one.kind is kind])}
    writes = rare.pop(Kind.WRITE)
    for number in range(count):
        if number % 3 == 0 and told.acknowledged:
            yield dice.choice(told.acknowledged).at + dice.randrange(200_000)
        else:
            change = dice.choice(writes if number % 3 == 1 else rare[dice.choice(list(rare))])
            yield dice.randint(change.begun, change.ended)


def lay_out(image: dict[str, bytes], folder: Path, *, shm: bytes | None) -> None:
    """The directory as the next start finds it. What was shared in memory is gone, or was never anything but noise."""
    folder.mkdir(mode=0o700, parents=True)
    files = {name: content for name, content in image.items() if name.startswith(LEDGER)}
    if shm is not None and LOG in files:
        files[f"{LEDGER}-shm"] = shm
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


RULES = ("acknowledged missing", "corrupt", "half done")


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Record, cut, look; the summary, with the number of violations of each rule."""
    become_subreaper()
    told = record(directory, options)
    tell(f"{len(told.changes)} changes recorded, {len(told.acknowledged)} jobs acknowledged")
    cuts = Cuts(told, options, directory)
    cuts.run()
    tell_violations(cuts.violations)
    kinds = [change.kind.name.lower() for change in told.changes]
    return {
        "torture": "power",
        "images": options.images,
        "seed": options.seed,
        "synchronous": options.synchronous,
        "acknowledged": len(told.acknowledged),
        "told_the_end": sum(one.answer is not None for one in told.acknowledged),
        "had_to_be_there": cuts.required,
        "changes": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "without_ledger": cuts.empty,
        "started": options.starts,
        "run_again": cuts.run_again,
        "violations": counted(cuts.violations, (*RULES, *INVARIANTS)),
    }


def counted(violations: dict[str, list[str]], rules: Sequence[str]) -> dict[str, int]:
    return {rule: len(violations.get(rule, ())) for rule in (*rules, *(violations.keys() - set(rules)))}
