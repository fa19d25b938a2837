"""A disk that fails: from some write, sync or truncation on, each of them gives EIO, in the middle of a load.

The core must not believe anything it writes after that: it ends at once, with the exit code that is promised, and the
next one finds everything that was acknowledged.
"""

import random
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import Arena, Core, build_actor
from scripts.tortures.case import Case
from scripts.tortures.checker import INVARIANTS, check
from scripts.tortures.clients import Acknowledged, Clients
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture, reap_adopted, spread
from scripts.tortures.recording import Change, Kind, read_changes
from scripts.tortures.shim import Shim
from scripts.tortures.telling import tell, tell_violations

MOST_SECONDS = 1.0
"""From the first failure to the end of the process."""
EXIT_CODES = {"at work": 1, "on its way up": 78}
EARLY = {"sync": 24, "pwrite": 500, "truncate": 4}
"""About so many calls a core makes until it is ready, with a new ledger."""
LATEST = {"sync": 250, "pwrite": 12_000, "truncate": 5}
"""Under this load it comes to its so-manieth call within a few seconds."""
FOR_EVER = 1 << 30
FILE, LOG = "state.db", "state.db-wal"
A_MOMENT = 50
"""Calls of which one, during a checkpoint, writes to the file."""
FRAME_HEAD = struct.Struct(">II16x")
PATIENCE = 30.0
RULES = (
    "it ends at once",
    "it ends as promised",
    "nothing is begun after it",
    "the failure comes",
    "no answer is 500",
)


@frozen
class Options:
    """`runs` failures, each of a new core."""

    runs: int
    seed: int
    leniency: float = 1.0
    workers: int = 4
    jobs_per_second: float = 60.0


@frozen
class Fault:
    """From its `number`-th on, so many calls of this kind fail."""

    call: str
    number: int
    times: int
    """A kernel that could not write says so once, and then forgets it: the next sync succeeds."""

    @classmethod
    def drawn(cls, run: int, dice: random.Random) -> "Fault":
        """Syncs, which nobody may try again, more often than the others; every third on the way up."""
        call = ("sync", "pwrite", "sync", "truncate")[run % 4]
        first, last = (1, EARLY[call]) if run % 3 == 2 else (EARLY[call] + 1, LATEST[call])
        return cls(call, dice.randint(first, last), dice.choice((1, FOR_EVER)))

    def __str__(self) -> str:
        return f"{self.call} {self.number}{' and all later ones' if self.times == FOR_EVER else ''}"


@define
class Failures:
    """The runs and what was wrong."""

    directory: Path
    options: Options
    actor: Path
    violations: dict[str, list[str]] = field(factory=dict)
    seconds: list[float] = field(factory=list)
    on_the_way_up: int = 0
    acknowledged: int = 0

    def run(self, number: int) -> None:
        """One core has failed and the next one has worked off what it left."""
        fault = Fault.drawn(number, random.Random(f"{self.options.seed}/{number}"))
        arena = Arena(self.directory / f"run-{number}", workers=self.options.workers, actor=self.actor)
        arena.path.mkdir(mode=0o700)
        arena.build()
        torture = Torture(arena, KillOptions(1, self.options.seed))
        acknowledged = self.fail(arena, torture, fault)
        torture.come_to_rest()
        seen = {"stuck": torture.stuck, "orphans": torture.orphans, "miscounted": torture.miscounted}
        case = Case.of(arena, acknowledged, deaths=torture.deaths, faults=torture.faults, **seen)
        for rule, found in check(case).items():
            self.violations.setdefault(rule, []).extend(f"{fault}: {one}" for one in found)
        self.acknowledged += len(acknowledged)

    def fail(self, arena: Arena, torture: Torture, fault: Fault) -> list[Acknowledged]:
        """The core is gone; what it had acknowledged."""
        log, options = arena.path / "failure", self.options
        shim = Shim.build(arena.path, arena.path / "data")
        core = arena.launch(shim.failing(log, fault.call, fault.number, times=fault.times))
        clients = Clients(
            arena.roles, options.jobs_per_second, options.seed, arena.path / "client", scripts=arena.scripts
        )
        clients.start()
        core.wait_until_ready()
        clients.serve_from(core.url)
        if fault.call == "truncate":
            core.wait_until_gone(2.0)
            core.process.terminate()  # the log is cut at the end of a life
        core.wait_until_gone(PATIENCE)
        ended = time.monotonic_ns()
        clients.serve_from(None)
        clients.stop()
        torture.deaths.append(core.kill())
        reap_adopted()
        self.judge(fault, core, read_changes(log), ended)
        for answer in clients.refused:
            if answer.startswith("500"):
                self._note("no answer is 500", f"{fault}: {answer}")
        return clients.acknowledged

    def judge(self, fault: Fault, core: Core, changes: Sequence[Change], ended: int) -> None:
        """What the core did after its disk had failed is what is promised."""
        first = next((number for number, change in enumerate(changes) if change.kind is Kind.FAILED), None)
        if first is None:
            self._note("the failure comes", f"{fault} never came; the core ended with {core.process.returncode}")
            return
        was_ready = core.url is not None
        self.on_the_way_up += not was_ready
        self.seconds.append((ended - changes[first].begun) / 1e9)
        if self.seconds[-1] > MOST_SECONDS * self.options.leniency:
            self._note("it ends at once", f"{fault}: the core went on for {self.seconds[-1]:.2f} s")
        expected = EXIT_CODES["at work" if was_ready else "on its way up"]
        if core.process.returncode != expected:
            self._note("it ends as promised", f"{fault}: {core.process.returncode}, not {expected}: {core.said[-3:]}")
        if was_ready and (begun := begun_after(changes, first)):
            self._note("nothing is begun after it", f"{fault}: {begun}")

    def _note(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


def begun_after(changes: Sequence[Change], failed: int) -> str | None:
    """What was begun after the disk had failed. The disk is waited for beside the writer: one commit may be under way
    in that moment, or a checkpoint: that is brought to its end, and not believed."""
    later = changes[failed:]
    if (commits := sum(map(ends_commit, later))) > 1:
        return f"{commits} commits"
    just_before = changes[max(0, failed - A_MOMENT) : failed]
    if any(map(is_of_file, later)) and not any(map(is_of_file, just_before)):
        return "a checkpoint"
    return None


def ends_commit(change: Change) -> bool:
    """Whether it is the head of the last page of a commit, in a log of SQLite's."""
    return change.name == LOG and len(change.data) == FRAME_HEAD.size and FRAME_HEAD.unpack(change.data)[1] != 0


def is_of_file(change: Change) -> bool:
    return change.kind is Kind.WRITE and change.name == FILE


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """So many failures; the summary, with the number of violations of each rule."""
    become_subreaper()
    failures = Failures(directory, options, build_actor(directory))
    for number in range(options.runs):
        failures.run(number)
        tell(f"run {number + 1}: {sum(map(len, failures.violations.values()))} violations")
    tell_violations(failures.violations)
    return {
        "torture": "io",
        "runs": options.runs,
        "seed": options.seed,
        "acknowledged": failures.acknowledged,
        "on_the_way_up": failures.on_the_way_up,
        "exit_seconds": spread(failures.seconds),
        "violations": {rule: len(failures.violations.get(rule, ())) for rule in (*RULES, *INVARIANTS)},
    }
