"""`scripts/torture reload` at a small size; violations of its invariants are detected."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from attrs import evolve, frozen

from scripts.tortures.lib.history import History
from scripts.tortures.lib.instance import CANARY, TOKEN, Instance
from scripts.tortures.reload.clients import TimedResponse
from scripts.tortures.reload.editions import CHANGES, ERRORS, PIPELINE, Edition, edition_text, secret, token
from scripts.tortures.reload.torture import PLUGINS, no_slot_is_missed, runs_match_their_edition
from tests.e2e.torture_runs import TortureRun, run_torture


@frozen
class ReloadRun:
    """A run with twelve reloads, and its files."""

    result: TortureRun
    path: Path

    def copy_history(self, to: Path) -> History:
        copytree(self.path, to, ignore=ignore_patterns("*.sock", "plugins"))
        return History.of(Instance(to, plugins=PLUGINS), ())


@pytest.fixture(scope="module")
def reload_run(tmp_path_factory: pytest.TempPathFactory) -> ReloadRun:
    path = tmp_path_factory.mktemp("reloads")
    return ReloadRun(run_torture("reload", "--reloads", "12", "--seed", "10", "--keep", str(path)), path)


@pytest.mark.timeout(120)
def test_twelve_reloads_under_load_lose_nothing_and_fail_no_request(reload_run: ReloadRun) -> None:
    """Plugins, schedules, keys and pipelines change; invalid configurations are refused.

    Every request gets a response, every acknowledged job ends once, every slot fires, every run has the steps of its
    edition, and a stream that is open all the time has every event.
    """
    summary = reload_run.result.summary
    assert reload_run.result.violations == {}, reload_run.result.stderr
    assert summary["taken"]["refused"] == 2
    assert sum(summary["taken"].values()) == 12
    assert min(summary[part] for part in ("acknowledged", "waited", "slots", "events_heard")) > 0


def check_slots(history: History) -> Iterator[str]:
    return no_slot_is_missed(history, "tick", "200ms")


def check_runs(history: History) -> Iterator[str]:
    return runs_match_their_edition(history, ())


def check_wrong_response(history: History) -> Iterator[str]:
    """Check a response that has none of the steps of its run."""
    root = next(job["id"] for job in history.jobs.values() if job["pipeline"] == PIPELINE)
    return runs_match_their_edition(
        history, [TimedResponse(200, {"job_id": root, "status": "succeeded", "tree": []}, 0.1)]
    )


A_TICK = "(SELECT id FROM job_queue WHERE plugin = 'tick' ORDER BY slot_at LIMIT 1 OFFSET 2)"
VIOLATIONS = [
    (check_slots, f"DELETE FROM job_queue WHERE id = {A_TICK}"),
    (check_slots, f"UPDATE job_queue SET slot_at = substr(slot_at, 1, 19) || '.000007Z' WHERE id = {A_TICK}"),
    (check_runs, f"DELETE FROM job_queue WHERE pipeline = '{PIPELINE}' AND step_id = 'b'"),
    (check_runs, f"UPDATE job_queue SET status = 'failed' WHERE pipeline = '{PIPELINE}' AND step_id = 'a'"),
    (check_wrong_response, "SELECT 1"),
]


@pytest.mark.parametrize(("rule", "statement"), VIOLATIONS)
def test_a_violation_is_detected(
    reload_run: ReloadRun, tmp_path: Path, rule: Callable[[History], Iterator[str]], statement: str
) -> None:
    """Each rule on its own."""
    history = reload_run.copy_history(tmp_path / "changed")
    with closing(sqlite3.connect(history.ledger)) as db, db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement).fetchall()

    assert list(rule(history))


def test_every_edition_differs_from_the_one_before(tmp_path: Path) -> None:
    """Every reload changes something, and every error changes the text."""
    instance, edition = Instance(tmp_path, plugins=PLUGINS), Edition()
    texts = [edition_text(instance, edition)]
    for _, next_edition in CHANGES:
        if next_edition is not None:
            edition = next_edition(edition)
            texts.append(edition_text(instance, edition))

    assert len(set(texts)) == len(texts) == len(CHANGES)
    assert all(error(text) != text for error in ERRORS for text in texts)
    assert (token(1) in texts[-1], token(0) in texts[-1]) == (True, False)
    assert edition_text(instance, evolve(edition, keys=(0,))) != texts[-1]


def test_every_key_contains_a_text_that_the_checker_searches_for() -> None:
    """A key in a log or in the ledger is detected."""
    assert TOKEN in token(7)
    assert CANARY in secret(7)
