"""The core dies at every named place, once; the next one finds nothing lost, doubled or half done there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ductile.failpoints import NAMES
from scripts.tortures.arena import Arena, Core, Role, build_actor
from scripts.tortures.checker import Case, check
from scripts.tortures.clients import Clients

ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("keep"),
    Role("flaky", trouble=50, timeout="400ms", notifies=True, weight=1),
    Role("tick", every="200ms"),
    Role("order", emits="order.placed", weight=1),
    Role("pick", emits="order.picked", items=3, notifies=True),
    Role("press"),
    Role("twin", emits="half.done", count=2),
    Role("brittle", trouble=20, timeout="400ms"),
)
PRUNES_AT_ONCE = ", tick_interval: 100ms, job_queue_retention: 1ms, dedupe_ttl: 1ms"
PLACES = [
    *((name, 1) for name in sorted(NAMES)),
    ("enqueue.after_insert", 4),  # among the children of a fan-out
    ("record.after_status", 5),  # with retries among the endings
    ("record.after_children", 6),
    ("claim.after_commit", 7),
    ("schedule.after_insert", 3),  # with jobs of earlier slots in the queue
    ("schedule.after_commit", 3),
]


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_actor(tmp_path_factory.mktemp("actor"))


def load(arena: Arena, core: Core) -> Clients:
    """Callers who go on until the core is gone."""
    clients = Clients(arena.roles, per_second=60, seed=1, ledger=arena.path / "client", count=3, scripts=arena.scripts)
    clients.start()
    clients.serve_from(core.url)
    return clients


def leave_orphans(arena: Arena) -> tuple[Clients, str]:
    """A core was killed with several jobs running; what it had acknowledged, and when it was dead."""
    core = arena.launch()
    assert core.wait_until_ready()
    clients = load(arena, core)
    while running(arena) < 2:
        assert not core.wait_until_gone(0.005)
    death = core.kill()
    clients.stop()
    return clients, death


def running(arena: Arena) -> int:
    with arena.read_ledger() as db:
        count: int = db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'running'").fetchone()[0]
        return count


def come_to_rest(arena: Arena) -> None:
    """A core without a failpoint has worked off everything and ended well."""
    arena.configure(scheduled=False)
    core = arena.launch()
    assert core.wait_until_ready(), core.said
    deadline = time.monotonic() + 60
    with arena.read_ledger() as db:
        while db.execute("SELECT COUNT(*) FROM job_queue WHERE status IN ('queued', 'running')").fetchone()[0]:
            assert time.monotonic() < deadline, "the queue never became empty"
            assert not core.wait_until_gone(0.02), core.said
    assert core.stop() == 0


@pytest.mark.parametrize(("name", "count"), PLACES)
def test_a_core_that_dies_there_loses_nothing_and_doubles_nothing(
    name: str, count: int, tmp_path: Path, actor: Path
) -> None:
    """Whatever was going on at this place is wholly there after the next start, or not at all."""
    slow = tuple(Role("slow", nap_ms=5000, weight=5) for _ in range(name == "recover.after_first"))
    service = PRUNES_AT_ONCE if name == "prune.half_way" else ""
    arena = Arena(tmp_path, roles=(*ROLES, *slow), service=service, actor=actor)
    arena.build()
    acknowledged, deaths = [], []
    if name == "recover.after_first":
        clients, death = leave_orphans(arena)
        acknowledged += clients.acknowledged
        deaths.append(death)

    core = arena.launch({"DUCTILE_FAILPOINT": f"{name}:{count}"})
    if core.wait_until_ready():
        clients = load(arena, core)
        if name == "drain.started":
            core.process.send_signal(signal.SIGTERM)
        reached = core.wait_until_gone(30)
        clients.stop()
        acknowledged += clients.acknowledged
    else:
        reached = core.wait_until_gone(30)
    deaths.append(core.kill())
    assert reached, f"the core never came to {name}"
    assert core.process.returncode == -signal.SIGKILL, core.said
    come_to_rest(arena)

    violations = check(Case.of(arena, acknowledged, deaths=deaths))
    assert {rule: found for rule, found in violations.items() if found} == {}


def test_a_failpoint_that_does_not_exist_is_refused() -> None:
    """A misspelt name must not look like a place that was survived."""
    environ = {**os.environ, "DUCTILE_FAILPOINT": "enqueue.after_lunch"}
    done = subprocess.run(
        [sys.executable, "-c", "import ductile.failpoints"], env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode != 0
    assert "there is no failpoint 'enqueue.after_lunch'" in done.stderr
