"""Enqueueing jobs: which become new rows, and which are matched with existing ones."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.model import Budget, Failed, JobStatus, NewJob, Prefinished
from ductile.ledger.jobs.enqueue import RARE_COLUMNS, RARE_DEFAULTS, Enqueued, enqueue, enqueue_all
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import journal
from tests.ledger.conftest import LedgerDriver

HOUR = timedelta(hours=1)


def test_a_new_job_is_its_own_root_with_one_open_job(ledger: Any) -> None:
    """The counters of a tree are on its root from the first row on."""
    job = ledger.row(ledger.enqueue(payload='{"a":1}').job_id)
    assert (job["status"], job["attempt"], job["max_attempts"], job["payload"]) == ("queued", 1, 4, '{"a":1}')
    assert (job["root_job_id"], job["open_jobs"], job["tree_jobs"]) == (job["id"], 1, 1)
    assert job["created_at"] == "2026-02-08T09:30:00.000000Z"
    assert ledger.journal_kinds() == ["job.enqueued"]


def test_order_of_arrival_is_the_sequence_not_the_clock(ledger: Any) -> None:
    """A clock that goes back does not change the order."""
    first = ledger.enqueue()
    ledger.advance(hours=-5)
    second = ledger.enqueue()
    assert [job.id for job in ledger.claim().jobs] == [first.job_id, second.job_id]


@pytest.mark.parametrize(
    ("seconds_later", "deduplicated"), [(0, True), (86_399, True), (86_400, False), (-3600, True), (-90_000, False)]
)
def test_a_success_within_the_window_makes_a_duplicate(ledger: Any, seconds_later: int, deduplicated: bool) -> None:
    """A clock that was set far back does not block the key forever."""
    first = ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    ledger.advance(seconds=seconds_later)
    second = ledger.enqueue(dedupe_key="k")
    assert second.deduplicated is deduplicated
    assert (second.job_id == first.job_id) is deduplicated


@pytest.mark.parametrize("difference", [{"plugin": "other"}, {"command": "handle"}, {"dedupe_key": "j"}])
def test_the_scope_of_a_key_is_one_command_of_one_plugin(ledger: Any, difference: dict[str, str]) -> None:
    """Jobs of other plugins or commands with the same key are not duplicates."""
    ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    assert ledger.enqueue(**{"dedupe_key": "k", **difference}).is_new


def test_an_open_job_makes_a_duplicate_only_for_a_producer_with_its_own_window(ledger: Any) -> None:
    """Without a TTL of its own, a producer only loses against a success."""
    first = ledger.enqueue(dedupe_key="k")
    assert ledger.enqueue(dedupe_key="k").is_new
    ledger.claim(1)
    third = ledger.enqueue(dedupe_key="k", dedupe_ttl=HOUR)
    assert third.deduplicated
    assert third.job_id == first.job_id


def test_a_producers_own_window_may_be_shorter_than_the_default(ledger: Any) -> None:
    """The window of the new job decides, not that of the earlier one."""
    ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    ledger.advance(hours=2)
    assert ledger.enqueue(dedupe_key="k", dedupe_ttl=HOUR).is_new
    assert ledger.enqueue(dedupe_key="k", dedupe_ttl=timedelta(0)).deduplicated, "the new job with this key is open"


def test_follow_up_jobs_of_a_replay_ignore_dedupe(ledger: Any) -> None:
    """A replayed run executes all of its steps again."""
    first = ledger.enqueue()
    ledger.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=first.job_id)
    for job in ledger.claim(echo=1, next=1).jobs:
        ledger.end(job)
    again = ledger.enqueue(replay_of=first.job_id)
    step = ledger.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=again.job_id)
    below = ledger.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=step.job_id)
    assert step.is_new
    assert below.is_new
    assert ledger.enqueue(plugin="next", dedupe_key="delivery 1").deduplicated


def test_failed_and_dead_jobs_make_no_duplicates(ledger: Any) -> None:
    """Only a success or an open job does."""
    ledger.enqueue(dedupe_key="k", dedupe_ttl=HOUR)
    ledger.end(ledger.claim_one(), Failed("no"))
    assert ledger.enqueue(dedupe_key="k", dedupe_ttl=HOUR).is_new


def test_a_duplicate_is_journalled_with_its_winner(ledger: Any) -> None:
    """With the inputs of the decision."""
    winner = ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    ledger.enqueue(dedupe_key="k", submitted_by="api")
    kind, job_id, data = ledger.db.execute("SELECT kind, job_id, data FROM journal ORDER BY seq DESC").fetchone()
    assert (kind, job_id) == ("job.deduplicated", winner.job_id)
    assert '"reason":"recent_success"' in data
    assert '"submitted_by":"api"' in data


def test_the_same_child_is_created_once(ledger: Any) -> None:
    """Routing an event again finds the existing child. That is neither an error nor a duplicate."""
    parent = ledger.enqueue()
    first = ledger.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/step")
    again = ledger.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/step")
    other = ledger.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/other")
    assert (again.job_id, again.existed) == (first.job_id, True)
    assert other.is_new
    assert ledger.row(parent.job_id)["open_jobs"] == 3


def test_a_slot_fires_once(ledger: Any) -> None:
    """(plugin, schedule, slot) is unique."""
    first = ledger.enqueue(schedule_id="hourly", slot_at=ledger.now)
    again = ledger.enqueue(schedule_id="hourly", slot_at=ledger.now)
    assert (again.job_id, again.existed) == (first.job_id, True)
    assert ledger.enqueue(schedule_id="other", slot_at=ledger.now).is_new


def test_a_hook_run_is_a_tree_of_its_own(ledger: Any) -> None:
    """A hook has its cause as parent, but callers that wait for that tree do not wait for the hook."""
    parent = ledger.enqueue()
    hook = ledger.enqueue(parent_job_id=parent.job_id, child_key="hook", own_tree=True)
    assert hook.root_job_id == hook.job_id
    assert ledger.row(parent.job_id)["open_jobs"] == 1


def test_a_prefinished_job_is_logged_and_never_queued(ledger: Any) -> None:
    """A decided switch is a finished row of the tree."""
    parent = ledger.enqueue()
    switch = ledger.enqueue(
        parent_job_id=parent.job_id,
        id=f"{parent.job_id}__switch",
        plugin="core.switch",
        prefinished=Prefinished(status=JobStatus.SUCCEEDED, result='{"matched":true}'),
    )
    assert switch.status is JobStatus.SUCCEEDED
    assert (ledger.row(parent.job_id)["open_jobs"], ledger.row(parent.job_id)["tree_jobs"]) == (1, 2)
    assert ledger.claim(1, **{"core.switch": 5}).jobs == ()
    logged = ledger.db.execute("SELECT status, result FROM job_log WHERE job_id = ?", (switch.job_id,)).fetchone()
    assert logged == ("succeeded", '{"matched":true}')


@pytest.mark.parametrize(
    ("new", "reason"), [({"hops": 3}, "chain of more than 2 hops"), ({}, "tree of more than 3 jobs")]
)
def test_a_job_beyond_its_budget_is_dead_with_the_reason(ledger: Any, new: dict[str, int], reason: str) -> None:
    """It has a row but never starts."""
    root = ledger.enqueue()
    news = [ledger.new(parent_job_id=root.job_id, **new) for _ in range(3)]
    with transaction(ledger.db):
        made = enqueue_all(ledger.db, news, now=ledger.now, budget=Budget(hops=2, tree_jobs=3))
    assert made[-1].status is JobStatus.DEAD
    assert ledger.row(made[-1].job_id)["last_error"] == reason
    assert ledger.row(root.job_id)["open_jobs"] == 1 + sum(job.status is JobStatus.QUEUED for job in made)


def test_all_jobs_of_an_enqueue_are_written_or_none(ledger: Any) -> None:
    """An error in one of them leaves nothing."""
    news = [ledger.new(), ledger.new(max_attempts=0)]
    with pytest.raises(Exception, match="CHECK"), transaction(ledger.db):
        enqueue_all(ledger.db, news, now=ledger.now)
    assert ledger.statuses() == []


def test_the_schema_rejects_impossible_states(db: sqlite3.Connection, ledger: Any) -> None:
    """CHECK constraints guard the state machine."""
    job = ledger.enqueue()
    for change in (
        "status = 'sleeping'",
        "status = 'running'",
        "status = 'succeeded'",
        "open_jobs = -1",
        "lane = NULL",
        "waits_for_key = 1",
        "attempt = 0",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            db.execute(f"UPDATE job_queue SET {change} WHERE id = ?", (job.job_id,))


def test_enqueue_uses_the_time_it_is_given(ledger: Any) -> None:
    """Time is a parameter."""
    with transaction(ledger.db):
        job = enqueue(ledger.db, ledger.new(), now=ledger.now + HOUR)
    assert ledger.row(job.job_id)["created_at"] == "2026-02-08T10:30:00.000000Z"


def test_a_batch_of_jobs_is_the_same_as_single_jobs(tmp_path: Path) -> None:
    """Rows, tree counters, joins, journal and results are the same with and without batching."""
    together, one_by_one = (
        _fan_out(tmp_path / f"{function.__name__}.db", function) for function in (enqueue_all, _enqueue_each)
    )
    assert together == one_by_one
    assert together["tree"] == (44, 42), "three existed, 41 are new, and two of those are finished"


def _enqueue_each(db: sqlite3.Connection, news: list[NewJob], *, now: datetime) -> list[Enqueued]:
    return [enqueue(db, new, now=now) for new in news]


def _fan_out(path: Path, function: Callable[..., list[Enqueued]]) -> dict[str, Any]:
    """Return the content of a ledger after many children were enqueued. Ids are replaced by `seq`."""
    with closing(open_writer(path)) as db:
        ledger = LedgerDriver(db)
        root, parent = ledger.enqueue(), {"parent_job_id": ledger.enqueue(id="parent").job_id}
        ledger.enqueue(**parent, child_key="k7")
        ledger.enqueue(id="J", plugin="core.join", is_join=True, **parent)
        plain = [
            ledger.new(**parent, child_key=f"k{n}", payload=f'"{n}"', pipeline="p", step_id="s") for n in range(32)
        ]
        members = [ledger.new(**parent, join_id="J", event_context_id=f"c{n}") for n in range(7)]
        news = [
            *plain,
            ledger.new(**parent, child_key="k3"),
            ledger.new(**parent, dedupe_key="key", dedupe_ttl=HOUR),
            ledger.new(**parent, dedupe_key="key", dedupe_ttl=HOUR),
            ledger.new(**parent, prefinished=Prefinished(status=JobStatus.SUCCEEDED, result="{}")),
            *members,
            ledger.new(parent_job_id=root.job_id, own_tree=True),
            ledger.new(**parent, hops=99),
        ]
        with transaction(db):
            made = function(db, news, now=ledger.now)
        places = dict(db.execute("SELECT id, seq FROM job_queue"))
        rows = [
            {name: places.get(value, value) for name, value in ledger.row(job_id).items()}
            for job_id in sorted(places, key=lambda job_id: places[job_id])
        ]
        entries = [
            [entry.kind, entry.plugin, *(places.get(job_id or "") for job_id in (entry.job_id, entry.root_job_id))]
            + [(name, places.get(value, value)) for name, value in entry.data.items()]
            for entry in journal.read_since(db, 0)
        ]
        results = [(places[job.job_id], places[job.root_job_id], job.status, job.is_new) for job in made]
        counters = ledger.row("parent")["tree_jobs"], ledger.row("parent")["open_jobs"]
        return {"rows": rows, "journal": entries, "results": results, "tree": counters}


def test_one_invalid_job_of_a_batch_fails_the_whole_batch(ledger: Any) -> None:
    """The caller's transaction writes all of them or none, also in one statement."""
    parent = ledger.enqueue().job_id
    news = [ledger.new(parent_job_id=parent, max_attempts=int(n != 20)) for n in range(30)]
    with pytest.raises(Exception, match="CHECK"), transaction(ledger.db):
        enqueue_all(ledger.db, news, now=ledger.now)
    assert (ledger.statuses(), ledger.row(parent)["tree_jobs"]) == (["queued"], 1)


FORKS = """
import os
from datetime import UTC, datetime
from ductile.ledger.jobs.enqueue import new_id
now = datetime.now(UTC)
print(new_id(now), flush=True)
if os.fork():
    os.wait()
print(new_id(now), flush=True)
"""


@pytest.mark.process
def test_a_forked_process_creates_different_ids() -> None:
    """Random bytes are not shared with the parent process."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    ids = done.stdout.split()
    assert len(ids) == len(set(ids)) == 3


def test_the_rare_columns_have_the_expected_defaults(ledger: Any) -> None:
    """A plain job is inserted without them."""
    defaults = {name: default for _, name, _, _, default, _ in ledger.db.execute("PRAGMA table_info(job_queue)")}
    rare = [defaults[name.strip()] for name in RARE_COLUMNS.split(",")]
    assert tuple(None if default is None else int(default) for default in rare) == RARE_DEFAULTS
