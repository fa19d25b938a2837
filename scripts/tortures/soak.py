"""The long run: very many real plugin runs on one service, and whether it is afterwards as it was after the first ones.

It is looked at while nothing runs: memory, descriptors, threads, and the size of its log. Old jobs are pruned on the
way, so that the ledger is the same all the time, too.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import TOKEN, Arena, Core
from scripts.tortures.case import read_effects
from scripts.tortures.clients import Caller
from scripts.tortures.play import Role
from scripts.tortures.telling import tell, tell_violations

ROLES = (Role("keep"),)
KEEPS_LITTLE = ", tick_interval: 2s, job_queue_retention: 5s, job_log_retention: 5s, dedupe_ttl: 1s"
LOOKS = 20
WARM_UP_SHARE = 0.05
MOST_WAITING = 200
MOST_GROWTH = 0.10
MOST_WAL_BYTES = 64 << 20
SETTLES_WITHIN = 20.0
"""Threads that nobody needs any more end after ten seconds."""
STALL_SECONDS = 120.0
RULES = ("memory", "descriptors", "threads", "log", "every run once", "it ends in order")


@frozen
class Options:
    """`runs` of a plugin."""

    runs: int
    seed: int
    workers: int = 4


@frozen
class Look:
    """The core while nothing runs."""

    runs: int
    resident_kilobytes: int
    descriptors: int
    threads: int
    wal_bytes: int
    ledger_bytes: int

    @classmethod
    def at(cls, core: Core, arena: Arena, runs: int) -> "Look":
        status = Path(f"/proc/{core.process.pid}/status").read_text()
        wal = arena.ledger.with_name(arena.ledger.name + "-wal")
        return cls(
            runs,
            int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]),
            descriptors(core.process.pid),
            int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            wal.stat().st_size if wal.exists() else 0,
            arena.ledger.stat().st_size,
        )

    def holds_more_than(self, other: "Look") -> bool:
        return self.descriptors > other.descriptors or self.threads > other.threads


def descriptors(pid: int) -> int:
    """How many are open; 0 where the core hides them from us."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0


@define
class Soak:
    """One service and what was seen of it."""

    arena: Arena
    core: Core
    caller: Caller
    asked: list[str] = field(factory=list)
    looks: list[Look] = field(factory=list)
    largest_wal: int = 0

    def load_everything(self) -> None:
        """What the core loads only once somebody asks for it, or when it has nothing to do, is no growth."""
        self.caller.connection.request("GET", "/openapi.json", headers={"authorization": f"Bearer {TOKEN}"})
        answer = self.caller.connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()

    def run(self, runs: int) -> None:
        """So many jobs are over, and the core was looked at on the way."""
        warm_up = max(50, round(runs * WARM_UP_SHARE))
        looks = min(LOOKS, runs // warm_up)
        goals = [warm_up, *(warm_up + (runs - warm_up) * (look + 1) // looks for look in range(looks))]
        for goal in goals:
            while len(self.asked) < goal:
                self._ask(min(MOST_WAITING, goal - len(self.asked)))
            self.looks.append(self._settled(goal))
            seen = self.looks[-1]
            tell(
                f"{goal}/{runs}: {seen.resident_kilobytes / 1024:.1f} MiB, {seen.descriptors} descriptors, "
                f"{seen.threads} threads, log {self.largest_wal / 1e6:.1f} MB, ledger {seen.ledger_bytes / 1e6:.1f} MB"
            )

    def _ask(self, count: int) -> None:
        for number in range(count):
            status, _, told = self.caller.post("keep", number)
            assert status == 202, told
            self.asked.append(told["job_id"])
        self._wait_until_idle()

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + STALL_SECONDS
        with self.arena.read_ledger() as db:
            while db.execute(OPEN_JOBS).fetchone()[0]:
                assert time.monotonic() < deadline, "the queue never became empty"
                time.sleep(0.01)
                self._look_at_the_log()

    def _look_at_the_log(self) -> None:
        wal = self.arena.ledger.with_name(self.arena.ledger.name + "-wal")
        self.largest_wal = max(self.largest_wal, wal.stat().st_size if wal.exists() else 0)

    def _settled(self, runs: int) -> Look:
        """The core as it is when what is still open has had its time to close."""
        deadline = time.monotonic() + SETTLES_WITHIN
        look = Look.at(self.core, self.arena, runs)
        while self.looks and look.holds_more_than(self.looks[0]) and time.monotonic() < deadline:
            time.sleep(0.1)
            look = Look.at(self.core, self.arena, runs)
        return look


OPEN_JOBS = "SELECT EXISTS (SELECT 1 FROM job_queue WHERE status IN ('queued', 'running'))"


def violations_of(soak: Soak, code: int) -> dict[str, list[str]]:
    """What is not as it was after the warm-up."""
    first, last = soak.looks[0], soak.looks[-1]
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    if last.resident_kilobytes > first.resident_kilobytes * (1 + MOST_GROWTH):
        found["memory"].append(f"{first.resident_kilobytes} kB became {last.resident_kilobytes} kB")
    if last.descriptors > first.descriptors:
        found["descriptors"].append(f"{first.descriptors} became {last.descriptors}")
    if last.threads > first.threads:
        found["threads"].append(f"{first.threads} became {last.threads}")
    if soak.largest_wal > MOST_WAL_BYTES:
        found["log"].append(f"{soak.largest_wal} bytes")
    ran = Counter(effect.job_id for effect in read_effects(soak.arena.effects) if effect.what == "end")
    found["every run once"] += [f"{job_id} ran {ran[job_id]} times" for job_id in soak.asked if ran[job_id] != 1]
    if code != 0:
        found["it ends in order"].append(f"it ended with {code}: {soak.core.said[-3:]}")
    return found


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """All runs; the summary, with the number of violations of each rule."""
    become_subreaper()
    arena = Arena(directory, workers=options.workers, roles=ROLES, service=KEEPS_LITTLE)
    arena.build()
    core = arena.launch()
    assert core.wait_until_ready(), core.said
    soak, begun = Soak(arena, core, Caller.to(core.url)), time.monotonic()
    try:
        soak.load_everything()
        soak.run(options.runs)
    finally:
        seconds, code = time.monotonic() - begun, core.stop()
    violations = violations_of(soak, code)
    tell_violations(violations)
    first, last = soak.looks[0], soak.looks[-1]
    return {
        "torture": "soak",
        "runs": len(soak.asked),
        "seed": options.seed,
        "runs_per_second": round(len(soak.asked) / seconds, 1),
        "warm_up_runs": first.runs,
        "resident_mebibytes": [round(look.resident_kilobytes / 1024, 1) for look in (first, last)],
        "growth_percent": round((last.resident_kilobytes / first.resident_kilobytes - 1) * 100, 1),
        "descriptors": [first.descriptors, last.descriptors],
        "threads": [first.threads, last.threads],
        "largest_log_megabytes": round(soak.largest_wal / 1e6, 1),
        "ledger_megabytes": [round(look.ledger_bytes / 1e6, 1) for look in (first, last)],
        "violations": {rule: len(found) for rule, found in violations.items()},
    }
