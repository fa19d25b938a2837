"""The checker of the tortures can fail: for every promise, a ledger that breaks it is found out."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from attrs import evolve, frozen

from scripts.tortures.arena import CANARY, Arena
from scripts.tortures.case import Case
from scripts.tortures.checker import INVARIANTS, check
from scripts.tortures.clients import Acknowledged, Clients
from scripts.tortures.play import Role
from scripts.tortures.runs import story_of

ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=1),
    Role("refine", emits="item.refined", keeps_facts=True),
    Role("keep"),
    Role("flaky", trouble=50, timeout="400ms", notifies=True, weight=2),
    Role("order", emits="order.placed", weight=1),
    Role("pick", emits="order.picked", items=3, notifies=True),
    Role("press", keeps_facts=True),
    Role("twin", emits="half.done", count=2),
    Role("brittle", trouble=30, timeout="200ms"),
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
    clients = Clients(ROLES, per_second=8, seed=1, ledger=arena.path / "client", scripts=arena.scripts)
    clients.start()
    clients.serve_from(core.url)
    with arena.read_ledger() as db:
        try:
            while not (db.execute(ENOUGH).fetchone()[0] and {"deliver", "quote"} <= heard(clients)):
                assert not core.wait_until_gone(0.02), core.said
        finally:
            clients.stop()
        while not db.execute(NOTHING_OPEN).fetchone()[0]:
            assert not core.wait_until_gone(0.02), core.said
    assert core.stop() == 0
    return Played(arena, tuple(clients.acknowledged))


def heard(clients: Clients) -> set[str]:
    """The pipelines whose callers were told the end of a run."""
    return {one.plugin for one in clients.acknowledged if one.answer is not None}


ENOUGH = """
    SELECT (SELECT COUNT(*) FROM job_queue WHERE plugin = 'refine' AND status = 'succeeded') > 3
       AND (SELECT COUNT(*) FROM job_log WHERE attempt = 2) > 0
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'patch')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'wrap__join' AND status = 'failed')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'inspect')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'ring')
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


def lose_the_claims_from(moment: int) -> Callable[[Case], Case]:
    """A power cut, and the first attempt of the first job once more behind it."""

    def cut(case: Case) -> Case:
        first = next(effect for effect in case.effects if effect.what == "start" and effect.attempt == 1)
        again = evolve(case, effects=[*case.effects, first], claims_kept_until=first.at + moment)
        assert again.run_again == ([first.job_id] if moment < 0 else [])
        return again

    return cut


def test_a_power_cut_may_take_back_a_claim_that_no_sync_had_covered(played: Played, tmp_path: Path) -> None:
    """The attempt may then start once more under its number, as docs/reliability.md says."""
    case = lose_the_claims_from(-1)(played.copy(tmp_path))
    assert not any(check(case).values())


def forget_what_successes_did(case: Case) -> Case:
    return evolve(case, effects=[effect for effect in case.effects if effect.what == "start"])


def tell_a_step_the_wrong_part(case: Case) -> Case:
    return evolve(case, effects=[evolve(effect, part="999") for effect in case.effects])


def turn_the_results_around(case: Case) -> Case:
    """The step after a join has everything it should have, in the wrong order."""
    with ledger(case) as db:
        rows = db.execute("SELECT id, payload FROM job_queue WHERE step_id = 'ship'").fetchall()
        for job_id, payload in rows:
            event = json.loads(payload)
            event["payload"]["results"].reverse()
            db.execute("UPDATE job_queue SET payload = ? WHERE id = ?", (json.dumps(event), job_id))
    return case


def claim_another_number(case: Case) -> Case:
    return evolve(case, acknowledged=[evolve(one, number=-1) for one in case.acknowledged])


def lie(**lies: object) -> Callable[[Case], Case]:
    """Callers were told something else."""

    def spoil(case: Case) -> Case:
        told = [evolve(one, answer={**one.answer, **lies}) for one in case.acknowledged if one.answer]
        assert told, "nobody waited for a run"
        return evolve(case, acknowledged=told)

    return spoil


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
    ("I2", forget_what_successes_did),
    ("I3", repeat_an_effect),
    ("I3", lose_the_claims_from(+1)),
    ("I3", change("UPDATE job_log SET attempt = attempt + 1 WHERE seq = 1")),
    ("I4", change("UPDATE job_log SET status = 'succeeded' WHERE attempt = 1 AND status <> 'succeeded'")),
    ("I4", change("INSERT INTO journal (at, kind, job_id, data) SELECT at, 'job.recovered', job_id, '{\"attempt\":1}'"
                  " FROM journal WHERE kind = 'job.started' LIMIT 1")),
    ("I5", change(f"DELETE FROM job_queue WHERE seq = {A_CHILD}")),
    ("I5", change(f"UPDATE job_queue SET plugin = 'flaky' WHERE seq = {A_CHILD}")),
    ("I5", change("INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, fact_json, created_at)"
                  " SELECT 9999, plugin_name, fact_type, job_id, fact_json, created_at FROM plugin_facts LIMIT 1")),
    ("I5", change("DROP INDEX job_queue_child",
                  "UPDATE job_queue SET child_key = (SELECT MIN(child_key) FROM job_queue AS twin"
                  " WHERE twin.parent_job_id = job_queue.parent_job_id) WHERE plugin = 'refine'")),
    ("I5", change("DROP INDEX job_queue_slot", "UPDATE job_queue SET slot_at = 'noon' WHERE plugin = 'keep'")),
    ("I6", change("UPDATE job_queue SET status = 'running', completed_at = NULL, claimed_by = 'x' WHERE seq = 1")),
    ("I7", lambda case: evolve(case, orphans=["process 1"])),
    ("I8", change("UPDATE job_queue SET status = CASE status WHEN 'dead' THEN 'failed' ELSE 'dead' END WHERE seq = 1")),
    ("I8", change("DELETE FROM journal WHERE kind = 'job.started'")),
    ("I8", change("UPDATE job_queue SET tree_jobs = tree_jobs + 1 WHERE seq = 1")),
    ("I8", change("UPDATE job_queue SET tree_completed_at = created_at WHERE root_job_id = id")),
    ("I8", change("PRAGMA ignore_check_constraints = ON", "UPDATE job_queue SET waits_for = 1 WHERE is_join = 1")),
    ("I8", lambda case: evolve(case, miscounted=["a join"])),
    ("I9", change("PRAGMA user_version = 7")),
    ("I10", add_a_line_to_the_log("Traceback (most recent call last):")),
    ("I10", add_a_line_to_the_log(f"the key is {CANARY}")),
    ("I11", change("DELETE FROM job_queue WHERE step_id = 'ship'")),
    ("I11", change("DELETE FROM job_queue WHERE step_id = 'inspect__switch'")),
    ("I11", change("UPDATE job_queue SET step_id = 'patch' WHERE step_id = 'inspect'")),
    ("I11", change("UPDATE job_queue SET payload = json_set(payload, '$.payload.n', 7) WHERE step_id = 'invoice'")),
    ("I11", change("UPDATE job_queue SET tolerated = 1 WHERE step_id = 'around/ribbon'")),
    ("I11", change("UPDATE event_context SET accumulated_json = json_set(accumulated_json, '$.part', 7)"
                   " WHERE step_id = 'around/paper'")),
    ("I11", change("UPDATE event_context SET accumulated_json = json_set(accumulated_json, '$.ductile.indexes', '[9]')"
                   " WHERE step_id = 'cut'")),
    ("I11", tell_a_step_the_wrong_part),
    ("I11", claim_another_number),
    ("I12", change("DELETE FROM job_queue WHERE step_id = 'sides__join'")),
    ("I12", change("UPDATE job_queue SET status = 'failed' WHERE is_join = 1 AND status = 'succeeded'")),
    ("I12", change("UPDATE job_queue SET status = 'succeeded' WHERE is_join = 1 AND status = 'failed'")),
    ("I12", change("DELETE FROM arrivals")),
    ("I12", turn_the_results_around),
    ("I13", change("DELETE FROM job_queue WHERE pipeline = 'note'")),
    ("I13", change("UPDATE job_queue SET pipeline = 'alarm', step_id = 'ring' WHERE pipeline = 'note'")),
    ("I13", change("UPDATE job_queue SET payload = json_set(payload, '$.payload.status', 'dead')"
                   " WHERE pipeline = 'note'")),
    ("I14", lie(status="running")),
    ("I14", lie(result={"status": "ok", "result": "something else"})),
    ("I14", lie(tree=[])),
]  # fmt: skip


def test_a_clean_run_has_no_violations(played: Played, tmp_path: Path) -> None:
    """Otherwise the cases below would prove nothing."""
    case = played.copy(tmp_path)

    assert {name: found for name, found in check(case).items() if found} == {}
    assert all(story_of(case).told[part] for part in ("runs", "steps", "joins", "hooks"))
    assert case.excused == []


def test_a_job_that_never_ran_is_excused_only_by_the_deaths_of_its_cores(played: Played, tmp_path: Path) -> None:
    """It is counted apart, and is no violation, when every attempt was lost with a core."""
    case = forget_an_effect(played.copy(tmp_path))
    job_id = case.acknowledged[0].job_id
    with ledger(case) as db:
        db.execute("UPDATE job_log SET last_error = 'core restart' WHERE job_id = ?", (job_id,))

    assert case.excused == [job_id]
    assert check(case)["I2 jobs ran"] == []


@pytest.mark.parametrize(("invariant", "spoil"), SPOILED)
def test_a_broken_promise_is_found(
    played: Played, tmp_path: Path, invariant: str, spoil: Callable[[Case], Case]
) -> None:
    """Each invariant notices what it is there for."""
    (rule,) = [rule for name, rule in INVARIANTS.items() if name.split()[0] == invariant]

    assert list(rule(spoil(played.copy(tmp_path))))


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
