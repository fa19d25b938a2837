"""The core dies while schedules fire, skip, queue and cancel: one job for a slot, and nobody works beside another."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from attrs import evolve, frozen

from scripts.tortures.arena import Arena
from scripts.tortures.case import CANCELLED, Case
from scripts.tortures.schedule import PROMISES, ROLES, unsettled_schedules


@frozen
class Played:
    """Two dozen deaths, and what is left of them."""

    summary: dict[str, Any]
    said: str
    path: Path

    def copy(self, to: Path) -> Case:
        copytree(self.path, to, ignore=ignore_patterns("*.sock", "plugins"))
        return Case.of(Arena(to, roles=ROLES), ())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """In a process of its own, because it adopts and reaps what the dead cores leave behind."""
    path = tmp_path_factory.mktemp("played")
    command = [
        sys.executable,
        "-m",
        "scripts.tortures",
        "schedule",
        "--runs",
        "24",
        "--seed",
        "10",
        "--keep",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return Played(json.loads(done.stdout), done.stderr, path)


@pytest.mark.timeout(300)
def test_two_dozen_deaths_while_schedules_fire_double_nothing(played: Played) -> None:
    """At every failpoint of the scheduler and at random moments, with every kind of `if_running` at once."""
    summary = played.summary
    assert {name for name, count in summary["violations"].items() if count} == set(), played.said
    assert set(summary["died"].values()) == {6}
    assert min(sum(jobs.values()) for jobs in summary["jobs"].values()) > 0
    assert summary["cancelled_while_running"] > 0, "nothing was cancelled: the torture does not torture"


def change(*statements: str) -> Callable[[Case], Case]:
    def spoil(case: Case) -> Case:
        with closing(sqlite3.connect(case.ledger)) as db, db:
            for statement in statements:
                db.execute(statement)
        return case

    return spoil


def meet(case: Case) -> Case:
    return evolve(case, effects=[*case.effects, evolve(case.effects[0], what="crowd")])


def stay(case: Case) -> Case:
    """Processes were gone a tenth of a second later than they said."""
    later = [evolve(effect, at=effect.at + 100_000_000) if effect.what == "gone" else effect for effect in case.effects]
    return evolve(case, effects=later)


SPOILED = [
    ("slots have one job", change("DROP INDEX job_queue_slot", "UPDATE job_queue SET slot_at = '2026'")),
    ("nobody met another", meet),
    ("processes are gone before it is said", stay),
]


@pytest.mark.parametrize(("promise", "spoil"), SPOILED)
def test_a_broken_promise_is_found(played: Played, tmp_path: Path, promise: str, spoil: Callable[[Case], Case]) -> None:
    """Each rule notices what it is there for, and nothing where all is well."""
    rule, case = PROMISES[f"S8 {promise}"], played.copy(tmp_path / "copy")

    assert list(rule(case)) == []
    assert list(rule(spoil(played.copy(tmp_path / "spoiled"))))


ENTRY = """
    INSERT INTO schedule_entries (plugin, schedule_id, command, last_slot_at, last_job_id, updated_at)
    SELECT plugin, schedule_id, command, slot_at, id, slot_at FROM job_queue WHERE plugin = 'skips' ORDER BY slot_at
"""


@pytest.mark.parametrize(
    ("statement", "is_settled"),
    [
        (f"{ENTRY} DESC LIMIT 1", True),
        (f"{ENTRY} LIMIT 1", False),
        ("UPDATE job_queue SET status = 'queued', lane = plugin, completed_at = NULL WHERE plugin = 'cancels'", False),
    ],
)
def test_a_ledger_that_a_dead_core_left_unsettled_is_noticed(
    played: Played, tmp_path: Path, statement: str, is_settled: bool
) -> None:
    """Entries point at their last job, and no schedule has more unfinished jobs than it may."""
    case = change("DELETE FROM schedule_entries", statement)(played.copy(tmp_path / "spoiled"))
    with closing(sqlite3.connect(case.ledger)) as db:
        assert (list(unsettled_schedules(db)) == []) is is_settled


def test_every_promise_has_a_case_that_breaks_it() -> None:
    """A new one comes with its own proof."""
    assert {name.removeprefix("S8 ") for name in PROMISES} == {promise for promise, _ in SPOILED}


def test_whoever_was_cancelled_says_why(played: Played, tmp_path: Path) -> None:
    """Only jobs of the schedule that cancels, and only for that reason."""
    case = played.copy(tmp_path / "copy")
    cancelled = [job for job in case.jobs.values() if str(job["last_error"]).startswith("cancelled")]

    assert {(job["plugin"], job["status"], job["last_error"]) for job in cancelled} == {("cancels", "dead", CANCELLED)}
