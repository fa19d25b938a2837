"""`scripts/torture schedule` at a small size; violations of its invariants are detected."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from attrs import evolve, frozen

from scripts.tortures.lib.history import CANCELLED, History
from scripts.tortures.lib.instance import Instance
from scripts.tortures.schedule import PLUGINS, SCHEDULE_INVARIANTS, inconsistent_schedules
from tests.e2e.torture_runs import TortureRun, run_torture


@frozen
class ScheduleRun:
    """A run with 24 deaths, and its files."""

    result: TortureRun
    path: Path

    def copy_history(self, to: Path) -> History:
        copytree(self.path, to, ignore=ignore_patterns("*.sock", "plugins"))
        return History.of(Instance(to, plugins=PLUGINS), ())


@pytest.fixture(scope="module")
def schedule_run(tmp_path_factory: pytest.TempPathFactory) -> ScheduleRun:
    path = tmp_path_factory.mktemp("schedules")
    return ScheduleRun(run_torture("schedule", "--runs", "24", "--seed", "10", "--keep", str(path)), path)


@pytest.mark.timeout(300)
def test_24_deaths_while_schedules_fire_repeat_nothing(schedule_run: ScheduleRun) -> None:
    """At every failpoint of the scheduler and at random moments, with every kind of `if_running` at once."""
    summary = schedule_run.result.summary
    assert schedule_run.result.violations == {}, schedule_run.result.stderr
    assert set(summary["died"].values()) == {6}
    assert min(sum(jobs.values()) for jobs in summary["jobs"].values()) > 0
    assert summary["cancelled_while_running"] > 0, "nothing was cancelled: the test tests nothing"


def change(*statements: str) -> Callable[[History], History]:
    def apply(history: History) -> History:
        with closing(sqlite3.connect(history.ledger)) as db, db:
            for statement in statements:
                db.execute(statement)
        return history

    return apply


def add_overlap(history: History) -> History:
    return evolve(history, effects=[*history.effects, evolve(history.effects[0], what="overlap")])


def delay_process_ends(history: History) -> History:
    """Move the ends of all cancelled processes by a tenth of a second."""
    later = [
        evolve(effect, at=effect.at + 100_000_000) if effect.what == "stopped" else effect for effect in history.effects
    ]
    return evolve(history, effects=later)


VIOLATIONS = [
    ("slots have one job", change("DROP INDEX job_queue_slot", "UPDATE job_queue SET slot_at = '2026'")),
    ("exclusive jobs do not overlap", add_overlap),
    ("processes end before their jobs", delay_process_ends),
]


@pytest.mark.parametrize(("invariant", "violate"), VIOLATIONS)
def test_a_violation_is_detected(
    schedule_run: ScheduleRun, tmp_path: Path, invariant: str, violate: Callable[[History], History]
) -> None:
    """Each invariant on its own; without the change there is no violation."""
    rule, history = SCHEDULE_INVARIANTS[f"S8 {invariant}"], schedule_run.copy_history(tmp_path / "copy")

    assert list(rule(history)) == []
    assert list(rule(violate(schedule_run.copy_history(tmp_path / "changed"))))


ENTRY = """
    INSERT INTO schedule_entries (plugin, schedule_id, command, last_slot_at, last_job_id, updated_at)
    SELECT plugin, schedule_id, command, slot_at, id, slot_at FROM job_queue WHERE plugin = 'skips' ORDER BY slot_at
"""


@pytest.mark.parametrize(
    ("statement", "is_consistent"),
    [
        (f"{ENTRY} DESC LIMIT 1", True),
        (f"{ENTRY} LIMIT 1", False),
        ("UPDATE job_queue SET status = 'queued', lane = plugin, completed_at = NULL WHERE plugin = 'cancels'", False),
    ],
)
def test_an_inconsistent_ledger_of_a_dead_service_is_detected(
    schedule_run: ScheduleRun, tmp_path: Path, statement: str, is_consistent: bool
) -> None:
    """Entries point at their last job, and no schedule has too many unfinished jobs."""
    history = change("DELETE FROM schedule_entries", statement)(schedule_run.copy_history(tmp_path / "changed"))
    with closing(sqlite3.connect(history.ledger)) as db:
        assert (list(inconsistent_schedules(db)) == []) is is_consistent


def test_every_schedule_invariant_has_a_case_that_violates_it() -> None:
    """A new invariant needs a new case."""
    assert {name.removeprefix("S8 ") for name in SCHEDULE_INVARIANTS} == {invariant for invariant, _ in VIOLATIONS}


def test_a_cancelled_job_has_its_reason(schedule_run: ScheduleRun, tmp_path: Path) -> None:
    """Only the schedule with `if_running: cancel` cancels jobs."""
    history = schedule_run.copy_history(tmp_path / "copy")
    cancelled = [job for job in history.jobs.values() if str(job["last_error"]).startswith("cancelled")]

    assert {(job["plugin"], job["status"], job["last_error"]) for job in cancelled} == {("cancels", "dead", CANCELLED)}
