"""A full disk: the ledger lies on a small file system of its own, which is filled while jobs run and callers call.

Nothing may be acknowledged that is not kept; every refusal says when to come again; when there is room again the
service goes on by itself. In every other round it is killed while the disk is full.
"""

import http.client
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import Arena, Core
from scripts.tortures.case import Case
from scripts.tortures.checker import INVARIANTS, check
from scripts.tortures.clients import Acknowledged, Caller
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture, reap_adopted, spread
from scripts.tortures.play import Role
from scripts.tortures.shim import Unavailable
from scripts.tortures.telling import tell, tell_violations

MEGABYTES = 24
MOST_SECONDS = 5.0
"""From the moment there is room again to the next acknowledgement."""
ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("keep", weight=3),
    Role("flaky", trouble=40, timeout="400ms", notifies=True, weight=2),
    Role("slow", nap_ms=700, weight=2),
)
BEFORE = 20
"""Requests with room on the disk at the beginning of a round, so that jobs run when it is full."""
PATIENCE = 30.0
REFUSALS = (503, 507)
RULES = (
    "refusals say when to come again",
    "the service lives on",
    "it comes back in time",
    "the disk was full",
)


@frozen
class Options:
    """`requests` while the disk is full, in `rounds`."""

    requests: int
    seed: int
    rounds: int = 4
    leniency: float = 1.0
    workers: int = 4


@define
class FullDisk:
    """The rounds and what was answered."""

    arena: Arena
    options: Options
    dice: random.Random
    torture: Torture
    acknowledged: list[Acknowledged] = field(factory=list)
    answers: Counter[int] = field(factory=Counter)
    back_seconds: list[float] = field(factory=list)
    violations: dict[str, list[str]] = field(factory=dict)

    @property
    def filler(self) -> Path:
        return self.arena.path / "data" / "filler"

    def run(self) -> None:
        """All rounds, and the last core has worked off what is left."""
        core = self._start()
        for number in range(self.options.rounds):
            core = self.round(core, is_killed=number % 2 == 1)
            tell(f"round {number + 1}: {dict(self.answers)}, back after {self.back_seconds[-1]:.2f} s")
        if core.stop() != 0:
            self._note("the service lives on", f"it ended with {core.process.returncode}: {core.said[-3:]}")
        self.torture.cut_delays_short()
        self.torture.come_to_rest()

    def round(self, core: Core, *, is_killed: bool) -> Core:
        """The disk was full and is not any more; the core that runs now."""
        caller = Caller.to(core.url)
        for _ in range(BEFORE):
            self._call(caller, Counter())
        self._fill()
        full = Counter[int]()
        for _ in range(self.options.requests // self.options.rounds):
            self._call(caller, full)
            if not full.total() % 25:
                self._fill()  # a checkpoint may have given something back
        self.answers.update(full)
        if not sum(full[status] for status in REFUSALS):
            self._note("the disk was full", f"nothing was refused: {dict(full)}")
        if core.wait_until_gone(0):
            self._note("the service lives on", f"it ended with {core.process.returncode}: {core.said[-3:]}")
        if is_killed:
            self.torture.deaths.append(core.kill())
            reap_adopted()
        self.filler.unlink()
        begun = time.monotonic()
        if is_killed:
            core = self._start()
            begun = time.monotonic()
        self._wait_until_back(Caller.to(core.url), begun)
        return core

    def _start(self) -> Core:
        core = self.arena.launch()
        if not core.wait_until_ready():
            raise AssertionError(f"the core did not become ready: {core.said[-3:]}")
        return core

    def _fill(self) -> None:
        """There is not a byte left."""
        block = b"\0" * 4096
        file = os.open(self.filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            while os.write(file, block):
                pass
        os.close(file)

    def _call(self, caller: Caller, answers: Counter[int]) -> int:
        role = self.dice.choice([role for role in self.arena.roles for _ in range(role.weight)])
        try:
            status, headers, told = caller.post(role.name, self.dice.randrange(1 << 30))
        except (OSError, http.client.HTTPException) as error:
            self._note("the service lives on", f"no answer: {error!r}")
            caller.connection.close()
            return 0
        answers[status] += 1
        if status in (200, 202):
            self.acknowledged.append(Acknowledged(told["job_id"], role.name, time.monotonic_ns()))
        elif status not in REFUSALS or not headers.get("retry-after", "").isdecimal():
            self._note("refusals say when to come again", f"{status} {headers.get('retry-after')} {told}")
        return status

    def _wait_until_back(self, caller: Caller, since: float) -> None:
        while self._call(caller, Counter()) != 202 and time.monotonic() - since < PATIENCE:
            time.sleep(0.02)
        self.back_seconds.append(time.monotonic() - since)
        if self.back_seconds[-1] > MOST_SECONDS * self.options.leniency:
            self._note("it comes back in time", f"it took {self.back_seconds[-1]:.1f} s")

    def _note(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of a few megabytes is at `path` for as long as the block lasts. Raises Unavailable without root."""
    path.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m,mode=0700", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unavailable("there is no `mount` on this host") from error
    if done.returncode != 0:
        raise Unavailable(f"a small file system cannot be mounted (needs root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """All rounds; the summary, with the number of violations of each rule."""
    become_subreaper()
    arena = Arena(directory, workers=options.workers, roles=ROLES)
    arena.build()
    with small_disk(directory / "data"):
        disk = FullDisk(arena, options, random.Random(options.seed), Torture(arena, KillOptions(1, options.seed)))
        disk.run()
        found = disk.torture
        seen = {"stuck": found.stuck, "orphans": found.orphans, "miscounted": found.miscounted}
        case = Case.of(arena, disk.acknowledged, deaths=found.deaths, faults=found.faults, **seen)
        violations = {**{rule: [] for rule in RULES}, **disk.violations, **check(case)}
        jobs = len(case.jobs)
    tell_violations(violations)
    return {
        "torture": "disk",
        "requests": options.requests,
        "seed": options.seed,
        "answers_while_full": {str(status): count for status, count in sorted(disk.answers.items())},
        "acknowledged": len(disk.acknowledged),
        "jobs": jobs,
        "back_seconds": spread(disk.back_seconds),
        "violations": {rule: len(violations[rule]) for rule in (*RULES, *INVARIANTS)},
    }
