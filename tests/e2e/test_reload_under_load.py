"""Reloads while jobs come in, run and are waited for: nobody notices."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from attrs import evolve, frozen

from scripts.tortures.arena import CANARY, TOKEN, Arena
from scripts.tortures.callers import Answer
from scripts.tortures.case import Case
from scripts.tortures.reload import ROLES, no_slot_is_missed, runs_fit_their_editions
from scripts.tortures.turnover import MISTAKES, ROUND, Edition, secret, text_of, token


@frozen
class Played:
    """A dozen reloads, and what is left of them."""

    summary: dict[str, Any]
    said: str
    path: Path

    def copy(self, to: Path) -> Case:
        copytree(self.path, to, ignore=ignore_patterns("*.sock", "plugins"))
        return Case.of(Arena(to, roles=ROLES), ())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    path = tmp_path_factory.mktemp("played")
    command = [
        sys.executable,
        "-m",
        "scripts.tortures",
        "reload",
        "--reloads",
        "12",
        "--seed",
        "10",
        "--keep",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return Played(json.loads(done.stdout), done.stderr, path)


@pytest.mark.timeout(120)
def test_a_dozen_reloads_under_load_lose_nothing_and_fail_nobody(played: Played) -> None:
    """Plugins, schedules, keys, pipelines change; mistakes are refused. Every request is answered, every acknowledged
    job ends once, every slot fires, every run has the steps of its edition, and a stream that is open all the time has
    every event.
    """
    summary = played.summary
    assert {name for name, count in summary["violations"].items() if count} == set(), played.said
    assert summary["taken"]["refused"] == 2
    assert sum(summary["taken"].values()) == 12
    assert min(summary[part] for part in ("acknowledged", "waited", "slots", "events_heard")) > 0


def slots(case: Case) -> Iterator[str]:
    return no_slot_is_missed(case, "tick", "200ms")


def runs(case: Case) -> Iterator[str]:
    return runs_fit_their_editions(case, ())


def liar(case: Case) -> Iterator[str]:
    """Somebody was told of a run without its steps."""
    root = next(job["id"] for job in case.jobs.values() if job["pipeline"] == "turn")
    return runs_fit_their_editions(case, [Answer(200, {"job_id": root, "status": "succeeded", "tree": []}, 0.1)])


A_TICK = "(SELECT id FROM job_queue WHERE plugin = 'tick' ORDER BY slot_at LIMIT 1 OFFSET 2)"
SPOILED = [
    (slots, f"DELETE FROM job_queue WHERE id = {A_TICK}"),
    (slots, f"UPDATE job_queue SET slot_at = substr(slot_at, 1, 19) || '.000007Z' WHERE id = {A_TICK}"),
    (runs, "DELETE FROM job_queue WHERE pipeline = 'turn' AND step_id = 'b'"),
    (runs, "UPDATE job_queue SET status = 'failed' WHERE pipeline = 'turn' AND step_id = 'a'"),
    (liar, "SELECT 1"),
]


@pytest.mark.parametrize(("rule", "statement"), SPOILED)
def test_a_broken_promise_is_found(
    played: Played, tmp_path: Path, rule: Callable[[Case], Iterator[str]], statement: str
) -> None:
    """Each rule notices what it is there for."""
    case = played.copy(tmp_path / "spoiled")
    with closing(sqlite3.connect(case.ledger)) as db, db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement).fetchall()

    assert list(rule(case))


def test_every_edition_differs_from_the_one_before(tmp_path: Path) -> None:
    """Otherwise the torture would reload nothing; and every mistake is one."""
    arena, edition = Arena(tmp_path, roles=ROLES), Edition()
    texts = [text_of(arena, edition)]
    for _, change in ROUND:
        if change is not None:
            edition = change(edition)
            texts.append(text_of(arena, edition))

    assert len(set(texts)) == len(texts) == len(ROUND)
    assert all(mistake(text) != text for mistake in MISTAKES for text in texts)
    assert (token(1) in texts[-1], token(0) in texts[-1]) == (True, False)
    assert text_of(arena, evolve(edition, keys=(0,))) != texts[-1]


def test_keys_that_change_are_found_wherever_the_checker_looks_for_secrets() -> None:
    """They contain the canaries, so that a key in a log or in the ledger does not go unnoticed."""
    assert TOKEN in token(7)
    assert CANARY in secret(7)
