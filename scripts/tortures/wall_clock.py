"""A wall clock that jumps while a whole service works: hours, days, decades, ahead and back, as after a long sleep.

The service runs on a clock that is turned from outside; plugins and we ourselves keep the true one. Besides, one that
lives through the two nights of the year on which the clocks of Berlin change.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import from_text
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import Arena, Core, build_actor
from scripts.tortures.case import Case, read_effects
from scripts.tortures.checker import INVARIANTS, check
from scripts.tortures.clients import Clients
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture
from scripts.tortures.play import Role
from scripts.tortures.shim import Shim, Unavailable, turn
from scripts.tortures.siege import MOST_PATIENCE
from scripts.tortures.telling import tell, tell_violations

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400
JUMPS = (0.4, -0.4, HOUR, -HOUR, 8 * HOUR, DAY, -DAY, 10 * YEAR, -10 * YEAR, -56 * YEAR)
"""Where the clock stands beside the true one. A host that slept sees the same as after a jump ahead."""
TIDIES = ", tick_interval: 1s"
"""Often, so that it meets every stand of the clock: what is forgotten too early is missing in the end."""
INTERVAL = 0.3
WATCHED_SECONDS = 2.4
SLACK = 1.2
ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("keep"),
    Role("flaky", trouble=50, timeout="400ms", notifies=True, weight=2),
    Role("slow", nap_ms=700, timeout="20s", weight=2),
    Role("tick", every="300ms"),
)
STEADY = frozenset({"gather", "refine", "keep", "slow", "tick"})
"""Whoever fails of these was failed by the clock."""
RULES = (
    "schedules go on",
    "no slots are made up",
    "deadlines are not fooled",
    "a night has its job",
)
NOT_BY_THE_CLOCK = "I8 transitions replay"
"""Compares moments within a tree, which are not in order when the clock is not."""


@frozen
class Options:
    """`jumps` of the clock under load, then so many `nights`."""

    jumps: int
    seed: int
    nights: int = 3
    leniency: float = 1.0
    workers: int = 4
    jobs_per_second: float = 8.0


@define
class Jumps:
    """One service, and its clock in our hands."""

    arena: Arena
    clock: Path
    options: Options
    violations: dict[str, list[str]] = field(factory=dict)

    def live(self, core: Core, jumps: Sequence[float]) -> None:
        """The clock has jumped so often, and each time the schedule was watched for a while."""
        for stand in jumps:
            turn(self.clock, stand)
            begun, patience = time.monotonic_ns(), WATCHED_SECONDS * min(self.options.leniency, MOST_PATIENCE)
            while True:
                if core.wait_until_gone(WATCHED_SECONDS):
                    raise AssertionError(f"the core ended by itself: {core.said[-3:]}")
                if self._runs(begun) or time.monotonic_ns() - begun >= patience * 1e9:
                    break
            self._watch(stand, begun, time.monotonic_ns())
        turn(self.clock, 0.0)

    def _watch(self, stand: float, begun: int, ended: int) -> None:
        """The interval schedule did not stop and did not hurry."""
        runs = [second for second in self._runs(begun) if second <= (ended - begun) / 1e9]
        slack, seconds = SLACK * self.options.leniency, (ended - begun) / 1e9
        if not runs or runs[0] > INTERVAL + slack:
            self.note("schedules go on", f"clock at {stand:+.1f} s: first run after {runs[:1]} of {seconds:.1f} s")
        if len(runs) > (seconds + slack) / INTERVAL + 1:
            self.note("no slots are made up", f"clock at {stand:+.1f} s: {len(runs)} runs in {seconds:.1f} s")

    def _runs(self, begun: int) -> list[float]:
        """How many seconds after `begun` each run of the schedule was."""
        with self.arena.read_ledger() as db:
            ticks = {job_id for (job_id,) in db.execute("SELECT id FROM job_queue WHERE plugin = 'tick'")}
        return [
            (effect.at - begun) / 1e9
            for effect in read_effects(self.arena.effects)
            if effect.what == "start" and effect.job_id in ticks and begun <= effect.at
        ]

    def note(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


def steady_jobs_succeed(case: Case) -> Iterator[str]:
    """No deadline of a healthy plugin was moved by a jump."""
    for job in case.jobs.values():
        if job["plugin"] in STEADY and job["status"] != "succeeded":
            yield f"{job['id']} ({job['plugin']}) is {job['status']}: {job['last_error']}"


@frozen
class Night:
    """A night on which the clocks change, and how many jobs a daily schedule has had after each moment of it."""

    name: str
    cron: str
    begins: str
    moments: tuple[tuple[str, int], ...]


MARCH, OCTOBER = "2026-03-29T", "2026-10-25T"
NIGHTS = (
    Night("gap", "30 2 * * *", f"{MARCH}00:50Z", ((f"{MARCH}00:59:59Z", 1), (f"{MARCH}01:29:59Z", 1))),
    Night("twice", "30 2 * * *", f"{OCTOBER}00:20Z", ((f"{OCTOBER}00:29:59Z", 1), (f"{OCTOBER}01:29:59Z", 1))),
    Night("hourly", "30 * * * *", f"{OCTOBER}00:20Z", ((f"{OCTOBER}00:29:59Z", 1), (f"{OCTOBER}01:29:59Z", 2))),
)
"""02:30 is not there in March: the job comes when the clocks have changed. In October it is there twice, one job."""
PAST_THE_MOMENT, NIGHT_PATIENCE = 2.5, 10.0
"""Seconds after a clock was set to the last second before a moment."""
LOOKS_OFTEN = ", tick_interval: 200ms"
"""A jump while nothing is due is noticed after this time."""


class Calendar(Arena):
    """An arena whose one schedule follows the clocks of Berlin."""

    cron: str = "30 2 * * *"

    def text(self, *, scheduled: bool = True) -> str:
        return (
            super().text(scheduled=scheduled).replace("every: night", f'cron: "{self.cron}", timezone: Europe/Berlin')
        )


def faults_of(nights: Sequence[Night], directory: Path, actor: Path) -> Iterator[str]:
    """What did not happen, or happened too often, while the clocks changed."""
    for number, night in enumerate(nights):
        roles = (Role("sweep", every="night"),)
        arena = Calendar(directory / f"night-{number}", service=LOOKS_OFTEN, roles=roles, actor=actor)
        arena.cron = night.cron
        arena.path.mkdir(mode=0o700)
        arena.build()
        clock = arena.path / "clock"
        with serving(arena, clock, night.begins) as core:
            for moment, expected in night.moments:
                set_to(clock, moment)
                if (count := jobs_soon(arena, core, expected)) != expected:
                    yield f"{night.name}: {count} jobs at {moment}, not {expected}"


@contextmanager
def serving(arena: Arena, clock: Path, moment: str) -> Iterator[Core]:
    """A ready core that believes it is this moment."""
    set_to(clock, moment)
    shim = Shim.build(arena.path, arena.path / "data")
    core = arena.launch(shim.turning(clock))
    try:
        assert core.wait_until_ready(), core.said
        yield core
    finally:
        core.stop()


def set_to(clock: Path, moment: str) -> None:
    turn(clock, (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds())


def jobs_soon(arena: Arena, core: Core, expected: int) -> int:
    """How many jobs there are when there should be so many, and for a while after that."""
    begun, count = time.monotonic(), -1
    while (since := time.monotonic() - begun) < (PAST_THE_MOMENT if count == expected else NIGHT_PATIENCE):
        if core.wait_until_gone(0.05):
            raise AssertionError(f"the core ended by itself after {since:.1f} s: {core.said[-3:]}")
        with arena.read_ledger() as db:
            count = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
        if count > expected:
            break
    return count


def require_turned(case: Case) -> None:
    """Some job was made at another time than ours; else the library did not get between the core and its clock."""
    now = datetime.now(UTC)
    if all(abs((from_text(job["created_at"]) - now).total_seconds()) < HOUR / 2 for job in case.jobs.values()):
        raise Unavailable("the clock of a process cannot be turned on this host")


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """The jumps and the nights; the summary, with the number of violations of each rule."""
    become_subreaper()
    dice, actor = random.Random(options.seed), build_actor(directory)
    arena = Arena(directory / "jumps", workers=options.workers, roles=ROLES, actor=actor, service=TIDIES)
    arena.path.mkdir(mode=0o700)
    arena.build()
    stands = [stand for _ in range(options.jumps // len(JUMPS) + 1) for stand in dice.sample(JUMPS, len(JUMPS))]
    jumps = Jumps(arena, arena.path / "clock", options)
    clients = Clients(arena.roles, options.jobs_per_second, options.seed, arena.path / "client", scripts=arena.scripts)
    clients.start()
    try:
        with serving(arena, jumps.clock, datetime.now(UTC).isoformat()) as core:
            clients.serve_from(core.url)
            jumps.live(core, stands[: options.jumps])
            clients.serve_from(None)
    finally:
        clients.stop()
    tell(f"{options.jumps} jumps, {len(clients.acknowledged)} jobs acknowledged")
    service = Torture(arena, KillOptions(1, options.seed))
    service.come_to_rest()
    seen = {"stuck": service.stuck, "orphans": service.orphans, "miscounted": service.miscounted}
    case = Case.of(arena, clients.acknowledged, deaths=service.deaths, faults=service.faults, **seen)
    if any(abs(stand) >= HOUR for stand in stands[: options.jumps]):
        require_turned(case)
    violations = {**{rule: [] for rule in RULES}, **jumps.violations, **check(case)}
    violations["deadlines are not fooled"] = list(steady_jobs_succeed(case))
    violations["a night has its job"] = list(faults_of(NIGHTS[: options.nights], directory, actor))
    del violations[NOT_BY_THE_CLOCK]
    tell_violations(violations)
    return {
        "torture": "clock",
        "jumps": options.jumps,
        "seed": options.seed,
        "nights": options.nights,
        "acknowledged": len(clients.acknowledged),
        "jobs": len(case.jobs),
        "violations": {rule: len(violations[rule]) for rule in (*RULES, *INVARIANTS) if rule in violations},
    }
