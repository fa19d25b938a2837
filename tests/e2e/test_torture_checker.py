"""The checker of the torture tests: for each invariant, a history that violates it is detected."""

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

from scripts.tortures.lib.checker import INVARIANTS, check
from scripts.tortures.lib.clients import Acknowledgement, WorkloadClients
from scripts.tortures.lib.expected_runs import expected_rows_of
from scripts.tortures.lib.history import History
from scripts.tortures.lib.instance import CANARY, Instance
from scripts.tortures.lib.workload import WorkloadPlugin

PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=3, records_facts=True, weight=1),
    WorkloadPlugin("refine", emits="item.refined", records_facts=True),
    WorkloadPlugin("keep"),
    WorkloadPlugin("flaky", failure_percent=50, timeout="400ms", notifies=True, weight=2),
    WorkloadPlugin("order", emits="order.placed", weight=1),
    WorkloadPlugin("pick", emits="order.picked", max_items=3, notifies=True),
    WorkloadPlugin("press", records_facts=True),
    WorkloadPlugin("twin", emits="half.done", event_count=2),
    WorkloadPlugin("brittle", failure_percent=30, timeout="200ms"),
)


@frozen
class CleanRun:
    """A short run without violations."""

    instance: Instance
    acknowledged: tuple[Acknowledgement, ...]

    def copy_history(self, to: Path) -> History:
        shutil.copytree(self.instance.path / "data", to / "data", ignore=shutil.ignore_patterns("*.sock"))
        for file in (self.instance.effects_log, self.instance.service_log):
            shutil.copy(file, to)
        return History.of(evolve(self.instance, path=to), self.acknowledged)


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> CleanRun:
    """Run a service until its ledger has a row of every kind that the cases below change."""
    instance = Instance(tmp_path_factory.mktemp("instance"), plugins=PLUGINS)
    instance.build()
    service = instance.launch()
    assert service.wait_until_ready(), service.stderr
    clients = WorkloadClients(instance, per_second=8, seed=1, record=instance.path / "acknowledged")
    clients.start()
    with instance.read_ledger() as db:
        try:
            while not (db.execute(HAS_ENOUGH_ROWS).fetchone()[0] and {"deliver", "quote"} <= completed_runs(clients)):
                clients.use_url(service.url)  # a request that timed out has paused all clients
                assert not service.wait_for_exit(0.02), service.stderr
        finally:
            clients.stop()
        while not db.execute(NO_OPEN_JOBS).fetchone()[0]:
            assert not service.wait_for_exit(0.02), service.stderr
    assert service.stop() == 0
    return CleanRun(instance, tuple(clients.acknowledged))


def completed_runs(clients: WorkloadClients) -> set[str]:
    """Return the pipelines of which a waiting client got the end of a run."""
    return {one.target for one in clients.acknowledged if one.response is not None}


HAS_ENOUGH_ROWS = """
    SELECT (SELECT COUNT(*) FROM job_queue WHERE plugin = 'refine' AND status = 'succeeded') > 3
       AND (SELECT COUNT(*) FROM job_log WHERE attempt = 2) > 0
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'patch')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'wrap__join' AND status = 'failed')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'inspect')
       AND EXISTS (SELECT 1 FROM job_queue WHERE step_id = 'alert')
"""
NO_OPEN_JOBS = "SELECT COUNT(*) = 0 FROM job_queue WHERE status IN ('queued', 'running')"


# ── changes of a history ──────────────────────────────────────────────────────────────────────────────────────────────

Change = Callable[[History], History]


@contextmanager
def open_ledger(history: History) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(history.ledger)) as db, db:
        yield db


def change(*statements: str) -> Change:
    def apply(history: History) -> History:
        with open_ledger(history) as db:
            for statement in statements:
                assert db.execute(statement).rowcount, statement
        return history

    return apply


def remove_effects_of_one_job(history: History) -> History:
    job_id = history.acknowledged[0].job_id
    return evolve(history, effects=[effect for effect in history.effects if effect.job_id != job_id])


def repeat_first_effect(history: History) -> History:
    return evolve(history, effects=[*history.effects, history.effects[0]])


def claims_durable_until(offset: int) -> Change:
    """Add a power cut this long after the first start of the first job, and a second start of its first attempt."""

    def apply(history: History) -> History:
        first = next(effect for effect in history.effects if effect.what == "start" and effect.attempt == 1)
        changed = evolve(history, effects=[*history.effects, first], claims_durable_until=first.at + offset)
        assert changed.run_again == ([first.job_id] if offset < 0 else [])
        return changed

    return apply


def remove_ends(history: History) -> History:
    return evolve(history, effects=[effect for effect in history.effects if effect.what == "start"])


def change_list_items(history: History) -> History:
    return evolve(history, effects=[evolve(effect, part="999") for effect in history.effects])


def reverse_join_results(history: History) -> History:
    """Give the step after a join all results in the wrong order."""
    with open_ledger(history) as db:
        rows = db.execute("SELECT id, payload FROM job_queue WHERE step_id = 'ship'").fetchall()
        for job_id, payload in rows:
            event = json.loads(payload)
            event["payload"]["results"].reverse()
            db.execute("UPDATE job_queue SET payload = ? WHERE id = ?", (json.dumps(event), job_id))
    return history


def change_request_numbers(history: History) -> History:
    return evolve(history, acknowledged=[evolve(one, number=-1) for one in history.acknowledged])


def change_responses(**changes: object) -> Change:
    """Change the responses to waiting clients."""

    def apply(history: History) -> History:
        changed = [evolve(one, response={**one.response, **changes}) for one in history.acknowledged if one.response]
        assert changed, "no client waited for a run"
        return evolve(history, acknowledged=changed)

    return apply


def add_log_line(text: str) -> Change:
    def apply(history: History) -> History:
        with history.logs[0].open("a") as log:
            log.write(text + "\n")
        return history

    return apply


A_ROOT = "(SELECT id FROM job_queue WHERE plugin = 'flaky' AND parent_job_id IS NULL LIMIT 1)"
A_CHILD = "(SELECT MIN(seq) FROM job_queue WHERE plugin = 'refine')"
VIOLATIONS = [
    ("I1", change(f"DELETE FROM job_log WHERE job_id = {A_ROOT}", f"DELETE FROM job_queue WHERE id = {A_ROOT}")),
    ("I1", change("UPDATE job_queue SET status = 'queued', completed_at = NULL, lane = plugin WHERE seq = 1")),
    ("I2", remove_effects_of_one_job),
    ("I2", remove_ends),
    ("I3", repeat_first_effect),
    ("I3", claims_durable_until(+1)),
    ("I3", change("UPDATE job_log SET attempt = attempt + 1 WHERE seq = 1")),
    ("I4", change("UPDATE job_log SET status = 'succeeded' WHERE attempt = 1 AND status <> 'succeeded'")),
    ("I4", change("INSERT INTO journal (at, kind, job_id, data) SELECT at, 'job.recovered', job_id, '{\"attempt\":1}'"
                  " FROM journal WHERE kind = 'job.started' LIMIT 1")),
    ("I5", change(f"DELETE FROM job_queue WHERE seq = {A_CHILD}")),
    ("I5", change(f"UPDATE job_queue SET plugin = 'flaky' WHERE seq = {A_CHILD}")),
    ("I5", change("INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, fact_json, created_at)"
                  " SELECT 9999, plugin_name, fact_type, job_id, fact_json, created_at FROM plugin_facts LIMIT 1")),
    ("I5", change("DROP INDEX job_queue_child",
                  "UPDATE job_queue SET child_key = (SELECT MIN(child_key) FROM job_queue AS other"
                  " WHERE other.parent_job_id = job_queue.parent_job_id) WHERE plugin = 'refine'")),
    ("I5", change("DROP INDEX job_queue_slot", "UPDATE job_queue SET slot_at = 'noon' WHERE plugin = 'keep'")),
    ("I6", change("UPDATE job_queue SET status = 'running', completed_at = NULL, claimed_by = 'x' WHERE seq = 1")),
    ("I7", lambda history: evolve(history, orphans=["process 1"])),
    ("I8", change("UPDATE job_queue SET status = CASE status WHEN 'dead' THEN 'failed' ELSE 'dead' END WHERE seq = 1")),
    ("I8", change("DELETE FROM journal WHERE kind = 'job.started'")),
    ("I8", change("UPDATE job_queue SET tree_jobs = tree_jobs + 1 WHERE seq = 1")),
    ("I8", change("UPDATE job_queue SET tree_completed_at = created_at WHERE root_job_id = id")),
    ("I8", change("PRAGMA ignore_check_constraints = ON", "UPDATE job_queue SET waits_for = 1 WHERE is_join = 1")),
    ("I8", lambda history: evolve(history, wrong_counters=["a join"])),
    ("I9", change("PRAGMA user_version = 7")),
    ("I10", add_log_line("Traceback (most recent call last):")),
    ("I10", add_log_line(f"the key is {CANARY}")),
    ("I11", change("DELETE FROM job_queue WHERE step_id = 'ship'")),
    ("I11", change("DELETE FROM job_queue WHERE step_id = 'inspect__switch'")),
    ("I11", change("UPDATE job_queue SET step_id = 'patch' WHERE step_id = 'inspect'")),
    ("I11", change("UPDATE job_queue SET payload = json_set(payload, '$.payload.n', 7) WHERE step_id = 'invoice'")),
    ("I11", change("UPDATE job_queue SET tolerated = 1 WHERE step_id = 'around/ribbon'")),
    ("I11", change("UPDATE event_context SET accumulated_json = json_set(accumulated_json, '$.part', 7)"
                   " WHERE step_id = 'around/paper'")),
    ("I11", change("UPDATE event_context SET accumulated_json = json_set(accumulated_json, '$.ductile.indexes', '[9]')"
                   " WHERE step_id = 'cut'")),
    ("I11", change_list_items),
    ("I11", change_request_numbers),
    ("I12", change("DELETE FROM job_queue WHERE step_id = 'sides__join'")),
    ("I12", change("UPDATE job_queue SET status = 'failed' WHERE is_join = 1 AND status = 'succeeded'")),
    ("I12", change("UPDATE job_queue SET status = 'succeeded' WHERE is_join = 1 AND status = 'failed'")),
    ("I12", change("DELETE FROM arrivals")),
    ("I12", reverse_join_results),
    ("I13", change("DELETE FROM job_queue WHERE pipeline = 'on-completed'")),
    ("I13", change("UPDATE job_queue SET pipeline = 'on-failed', step_id = 'alert' WHERE pipeline = 'on-completed'")),
    ("I13", change("UPDATE job_queue SET payload = json_set(payload, '$.payload.status', 'dead')"
                   " WHERE pipeline = 'on-completed'")),
    ("I14", change_responses(status="running")),
    ("I14", change_responses(result={"status": "ok", "result": "something else"})),
    ("I14", change_responses(tree=[])),
]  # fmt: skip


def test_a_clean_run_has_no_violations(clean_run: CleanRun, tmp_path: Path) -> None:
    """Otherwise the cases above would prove nothing."""
    history = clean_run.copy_history(tmp_path)

    assert {name: found for name, found in check(history).items() if found} == {}
    assert all(expected_rows_of(history).counts[part] for part in ("runs", "steps", "joins", "hooks"))
    assert history.excused == []


def test_a_power_cut_may_lose_a_claim_that_no_sync_covered(clean_run: CleanRun, tmp_path: Path) -> None:
    """The attempt may start again with the same number, as docs/reliability.md says."""
    history = claims_durable_until(-1)(clean_run.copy_history(tmp_path))
    assert not any(check(history).values())


def test_a_job_that_never_ran_is_excused_if_its_services_died(clean_run: CleanRun, tmp_path: Path) -> None:
    """It is counted and is no violation if every attempt was lost with a service."""
    history = remove_effects_of_one_job(clean_run.copy_history(tmp_path))
    job_id = history.acknowledged[0].job_id
    with open_ledger(history) as db:
        db.execute("UPDATE job_log SET last_error = 'core restart' WHERE job_id = ?", (job_id,))

    assert history.excused == [job_id]
    assert check(history)["I2 jobs ran"] == []


@pytest.mark.parametrize(("invariant", "violate"), VIOLATIONS)
def test_a_violation_is_detected(clean_run: CleanRun, tmp_path: Path, invariant: str, violate: Change) -> None:
    """Each invariant on its own."""
    (rule,) = [rule for name, rule in INVARIANTS.items() if name.split()[0] == invariant]

    assert list(rule(violate(clean_run.copy_history(tmp_path))))


def test_every_invariant_has_a_case_that_violates_it() -> None:
    """A new invariant needs a new case."""
    assert {name.split()[0] for name in INVARIANTS} == {invariant for invariant, _ in VIOLATIONS}


def test_a_live_plugin_process_is_found(tmp_path: Path) -> None:
    """Orphans are found by a variable of the test, not by Ductile's marker."""
    instance = Instance(tmp_path)
    environ = {**os.environ, "WORKLOAD_EFFECTS_LOG": str(instance.effects_log)}
    with subprocess.Popen(["sleep", "600"], env=environ) as process:
        found = instance.plugin_processes()
        process.kill()

    assert list(found) == [process.pid]
