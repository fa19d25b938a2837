"""Death at every named place of the core: alone, the first time it gets there; and amid a load, some later time.

The places are those that the core itself names. Each death has a new ledger; the next core works off what is left,
and the checker of all tortures runs. A place that is never reached counts as a violation, too.
"""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.instance.failpoints import NAMES
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import Arena, Core, build_actor
from scripts.tortures.case import Case
from scripts.tortures.checker import INVARIANTS, check
from scripts.tortures.clients import Clients
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture
from scripts.tortures.play import Role
from scripts.tortures.telling import tell, tell_violations

ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("keep"),
    Role("flaky", trouble=50, timeout="400ms", notifies=True, weight=1),
    Role("tick", every="200ms"),
    Role("tock", every="300ms", trouble=90, timeout="400ms"),
    Role("order", emits="order.placed", weight=1),
    Role("pick", emits="order.picked", items=3, notifies=True),
    Role("press"),
    Role("twin", emits="half.done", count=2),
    Role("brittle", trouble=20, timeout="400ms"),
)
SLOW = Role("slow", nap_ms=1200, weight=5)
"""For places that only an attempt of some length comes to."""
NEEDS_SLOW = frozenset({"recover.after_first", "process.after_commit"})
SIGNALS = {
    "drain.started": signal.SIGTERM,
    "reload.before_commit": signal.SIGHUP,
    "reload.after_swap": signal.SIGHUP,
}
"""Places that a core comes to only when it is told to."""
SERVICE = {"prune.half_way": ", tick_interval: 100ms, job_queue_retention: 1ms, dedupe_ttl: 1ms"}
REACHED_ONCE = frozenset({"recover.after_first", "drain.started"})
PATIENCE = 30.0
LATEST_PASSAGE = 12
NEVER_REACHED = "the place is reached"


@frozen
class Options:
    """Every place, or `only` some; `runs` deaths at each."""

    runs: int
    seed: int
    only: tuple[str, ...] = ()
    workers: int = 4


@frozen
class Passage:
    """The core dies when it comes to the place for the `count`-th time."""

    place: str
    count: int = 1
    jobs_per_second: float = 60.0
    seed: int = 1

    @classmethod
    def drawn(cls, place: str, run: int, dice: random.Random) -> "Passage":
        """The first run is alone, with few callers and at the first passage; the others are in the thick of it."""
        if run == 0:
            return cls(place, jobs_per_second=8.0)
        count = 1 if place in REACHED_ONCE else dice.randint(1, LATEST_PASSAGE)
        if place in SIGNALS or place.startswith("checkpoint"):
            count = min(count, 2)  # it takes a while to get there once
        return cls(place, count, seed=dice.randrange(1 << 30))

    def __str__(self) -> str:
        return f"{self.place}:{self.count}"


def die(directory: Path, passage: Passage, actor: Path, *, workers: int = 4) -> dict[str, list[str]]:
    """A core has died at the place and the next one has worked off what it left; the violations of each invariant."""
    roles = (*ROLES, SLOW) if passage.place in NEEDS_SLOW else ROLES
    arena = Arena(directory, workers=workers, roles=roles, service=SERVICE.get(passage.place, ""), actor=actor)
    arena.build()
    torture, acknowledged, never = Torture(arena, KillOptions(1, passage.seed)), [], []
    if passage.place == "recover.after_first":
        core = arena.launch()
        core.wait_until_ready()
        clients = load(arena, core, passage)
        wait_for_orphans(arena, core)
        torture.deaths.append(core.kill())
        clients.stop()
        acknowledged += clients.acknowledged
    core = arena.launch({"DUCTILE_FAILPOINT": str(passage)})
    if core.wait_until_ready():
        clients = load(arena, core, passage)
        fell = wait_for_the_end(core, passage)
        clients.stop()
        acknowledged += clients.acknowledged
    else:
        fell = core.wait_until_gone(PATIENCE)
    torture.deaths.append(core.kill())
    if not fell or core.process.returncode != -signal.SIGKILL:
        never.append(f"{passage}: the core never got there; it ended with {core.process.returncode}")
    torture.come_to_rest()
    seen = {"stuck": torture.stuck, "orphans": torture.orphans, "miscounted": torture.miscounted}
    case = Case.of(arena, acknowledged, deaths=torture.deaths, faults=torture.faults, **seen)
    return {**check(case), NEVER_REACHED: never}


def load(arena: Arena, core: Core, passage: Passage) -> Clients:
    """Callers who go on until the core is gone."""
    clients = Clients(
        arena.roles, passage.jobs_per_second, passage.seed, arena.path / "client", count=3, scripts=arena.scripts
    )
    clients.start()
    clients.serve_from(core.url)
    return clients


def wait_for_orphans(arena: Arena, core: Core) -> None:
    """A core that dies now leaves several jobs running."""
    with arena.read_ledger() as db:
        while db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'running'").fetchone()[0] < 2:
            if core.wait_until_gone(0.005):
                raise AssertionError(f"the core ended by itself: {core.said[-3:]}")


def wait_for_the_end(core: Core, passage: Passage) -> bool:
    """True if the core fell; it was told what it must be told to get to the place, as often as need be."""
    told, deadline = SIGNALS.get(passage.place), time.monotonic() + PATIENCE
    if told is None:
        return core.wait_until_gone(PATIENCE)
    while not core.wait_until_gone(0.3) and time.monotonic() < deadline:
        core.process.send_signal(told)
        if told is signal.SIGTERM:  # a second one would end it at once
            return core.wait_until_gone(PATIENCE)
    return core.process.returncode is not None


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Every place, so many times; the summary, with the number of violations of each invariant."""
    become_subreaper()
    places, actor = sorted(options.only or NAMES), build_actor(directory)
    violations: dict[str, list[str]] = {name: [] for name in (*INVARIANTS, NEVER_REACHED)}
    faulty: dict[str, int] = dict.fromkeys(places, 0)
    for place in places:
        for run in range(options.runs):
            passage = Passage.drawn(place, run, random.Random(f"{options.seed}/{place}/{run}"))
            path = directory / f"{place}-{run}"
            path.mkdir(mode=0o700)
            found = die(path, passage, actor, workers=options.workers)
            for rule, faults in found.items():
                violations[rule] += [f"{passage} (seed {passage.seed}): {fault}" for fault in faults]
                faulty[place] += len(faults)
        tell(json.dumps({"failpoint": place, "runs": options.runs, "violations": faulty[place]}))
    tell_violations(violations)
    return {
        "torture": "failpoints",
        "seed": options.seed,
        "failpoints": len(places),
        "runs": len(places) * options.runs,
        "points": faulty,
        "violations": {rule: len(found) for rule, found in violations.items()},
    }
