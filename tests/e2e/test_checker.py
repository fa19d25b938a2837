"""The checker of the tortures can fail: for every promise, a ledger that breaks it is found out."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from attrs import evolve, frozen

from scripts.tortures.arena import CANARY, Arena, Role
from scripts.tortures.checker import INVARIANTS, Case, check
from scripts.tortures.clients import Acknowledged, Clients

ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("flaky", trouble=50, timeout="400ms", weight=1),
)


@frozen
class Played:
    """A short run in which every promise was kept."""

    arena: Arena
    acknowledged: tuple[Acknowledged, ...]

    def copy(self, to: Path) -> Case:
        shutil.copytree(self.arena.path / "data", to / "data", ignore=shutil.ignore_patterns("*.sock"))
        for file in (self.arena.effects, self.arena.log):
            shutil.copy(file, to)
        return Case.of(evolve(self.arena, path=to), self.acknowledged)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    arena = Arena(tmp_path_factory.mktemp("arena"), roles=ROLES)
    arena.build()
    core = arena.launch()
    assert core.wait_until_ready(), core.said
    clients = Clients(ROLES, per_second=100, seed=1, ledger=arena.path / "client")
    clients.start()
    clients.serve_from(core.url)
    with arena.read_ledger() as db:
        for wanted in (ENOUGH, NOTHING_OPEN):
            while not db.execute(wanted).fetchone()[0]:
                assert not core.wait_until_gone(0.02), core.said
            clients.stop()
    assert core.stop() == 0
    return Played(arena, tuple(clients.acknowledged))


ENOUGH = """
    SELECT (SELECT COUNT(*) FROM job_queue WHERE plugin = 'refine' AND status = 'succeeded') > 3
       AND (SELECT COUNT(*) FROM job_log WHERE attempt = 2) > 0
"""
NOTHING_OPEN = "SELECT COUNT(*) = 0 FROM job_queue WHERE status IN ('queued', 'running')"


@contextmanager
def ledger(case: Case) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(case.ledger)) as db, db:
        yield db


def change(*statements: str) -> Callable[[Case], Case]:
    def spoil(case: Case) -> Case:
        with ledger(case) as db:
            for statement in statements:
                assert db.execute(statement).rowcount, statement
        return case

    return spoil


def forget_an_effect(case: Case) -> Case:
    job_id = case.acknowledged[0].job_id
    return evolve(case, effects=[effect for effect in case.effects if effect.job_id != job_id])


def repeat_an_effect(case: Case) -> Case:
    return evolve(case, effects=[*case.effects, case.effects[0]])


def add_a_line_to_the_log(text: str) -> Callable[[Case], Case]:
    def spoil(case: Case) -> Case:
        with case.logs[0].open("a") as log:
            log.write(text + "\n")
        return case

    return spoil


A_ROOT = "(SELECT id FROM job_queue WHERE plugin = 'flaky' AND parent_job_id IS NULL LIMIT 1)"
A_CHILD = "(SELECT MIN(seq) FROM job_queue WHERE plugin = 'refine')"
SPOILED = [
    ("I1", change(f"DELETE FROM job_log WHERE job_id = {A_ROOT}", f"DELETE FROM job_queue WHERE id = {A_ROOT}")),
    ("I1", change("UPDATE job_queue SET status = 'queued', completed_at = NULL, lane = plugin WHERE seq = 1")),
    ("I2", forget_an_effect),
    ("I3", repeat_an_effect),
    ("I3", change("UPDATE job_log SET attempt = attempt + 1 WHERE seq = 1")),
    ("I4", change("UPDATE job_log SET status = 'succeeded' WHERE attempt = 1 AND status <> 'succeeded'")),
    ("I4", change("INSERT INTO journal (at, kind, job_id, data) SELECT at, 'job.recovered', job_id, '{\"attempt\":1}'"
                  " FROM journal WHERE kind = 'job.started' LIMIT 1")),
    ("I5", change(f"DELETE FROM job_queue WHERE seq = {A_CHILD}")),
    ("I5", change(f"UPDATE job_queue SET plugin = 'flaky' WHERE seq = {A_CHILD}")),
    ("I5", change("INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, fact_json, created_at)"
                  " SELECT 9999, plugin_name, fact_type, job_id, fact_json, created_at FROM plugin_facts LIMIT 1")),
    ("I6", change("UPDATE job_queue SET status = 'running', completed_at = NULL, claimed_by = 'x' WHERE seq = 1")),
    ("I7", lambda case: evolve(case, orphans=["process 1"])),
    ("I8", change("UPDATE job_queue SET status = 'dead' WHERE seq = 1")),
    ("I8", change("DELETE FROM journal WHERE kind = 'job.started'")),
    ("I8", change("UPDATE job_queue SET tree_jobs = tree_jobs + 1 WHERE seq = 1")),
    ("I9", change("PRAGMA user_version = 7")),
    ("I10", add_a_line_to_the_log("Traceback (most recent call last):")),
    ("I10", add_a_line_to_the_log(f"the key is {CANARY}")),
]  # fmt: skip


def test_a_clean_run_has_no_violations(played: Played, tmp_path: Path) -> None:
    """Otherwise the cases below would prove nothing."""
    assert {name: found for name, found in check(played.copy(tmp_path)).items() if found} == {}


@pytest.mark.parametrize(("invariant", "spoil"), SPOILED)
def test_a_broken_promise_is_found(
    played: Played, tmp_path: Path, invariant: str, spoil: Callable[[Case], Case]
) -> None:
    """Each invariant notices what it is there for."""
    violations = check(spoil(played.copy(tmp_path)))

    assert [name for name, found in violations.items() if found and name.split()[0] == invariant]


def test_every_invariant_has_a_case_that_breaks_it() -> None:
    """A new promise comes with its own proof."""
    assert {name.split()[0] for name in INVARIANTS} == {invariant for invariant, _ in SPOILED}


def test_a_plugin_process_that_lives_is_seen(tmp_path: Path) -> None:
    """Orphans are found by what the arena gave them, not by what Ductile did."""
    arena = Arena(tmp_path)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "ACTOR_EFFECTS": str(arena.effects)}) as process:
        found = arena.processes()
        process.kill()

    assert list(found) == [process.pid]
