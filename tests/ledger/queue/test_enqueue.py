"""The door into the queue: what becomes a new row and what is recognised as one that exists."""

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
from ductile.ledger.queue.enqueue import _NOTHING_RARE, _RARE, Enqueued, enqueue, enqueue_all
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import journal
from tests.ledger.conftest import Driver

HOUR = timedelta(hours=1)


def test_a_new_job_is_its_own_root_with_one_open_job(drive: Any) -> None:
    """Counters of a tree live on its root, from the first row on."""
    job = drive.row(drive.enqueue(payload='{"a":1}').job_id)
    assert (job["status"], job["attempt"], job["max_attempts"], job["payload"]) == ("queued", 1, 4, '{"a":1}')
    assert (job["root_job_id"], job["open_jobs"], job["tree_jobs"]) == (job["id"], 1, 1)
    assert job["created_at"] == "2026-02-08T09:30:00.000000Z"
    assert drive.kinds() == ["job.enqueued"]


def test_order_of_arrival_is_the_sequence_not_the_clock(drive: Any) -> None:
    """A clock that goes back does not let a later job overtake."""
    first = drive.enqueue()
    drive.later(hours=-5)
    second = drive.enqueue()
    assert [job.id for job in drive.claim().jobs] == [first.job_id, second.job_id]


@pytest.mark.parametrize(
    ("seconds_later", "deduplicated"), [(0, True), (86_399, True), (86_400, False), (-3600, True), (-90_000, False)]
)
def test_a_success_within_the_window_wins(drive: Any, seconds_later: int, deduplicated: bool) -> None:
    """Success within the TTL drops a duplicate; a clock set far back does not hold the key for ever."""
    first = drive.enqueue(dedupe_key="k")
    drive.end(drive.claim_one())
    drive.later(seconds=seconds_later)
    second = drive.enqueue(dedupe_key="k")
    assert second.deduplicated is deduplicated
    assert (second.job_id == first.job_id) is deduplicated


@pytest.mark.parametrize("difference", [{"plugin": "other"}, {"command": "handle"}, {"dedupe_key": "j"}])
def test_a_key_counts_for_one_command_of_one_plugin(drive: Any, difference: dict[str, str]) -> None:
    """Scope is (plugin, command, key): siblings with the same key do not starve each other."""
    drive.enqueue(dedupe_key="k")
    drive.end(drive.claim_one())
    assert drive.enqueue(**{"dedupe_key": "k", **difference}).is_new


def test_a_twin_in_flight_wins_only_against_a_producer_with_its_own_window(drive: Any) -> None:
    """Without a TTL of its own a producer only loses against a success."""
    first = drive.enqueue(dedupe_key="k")
    assert drive.enqueue(dedupe_key="k").is_new
    drive.claim(1)
    third = drive.enqueue(dedupe_key="k", dedupe_ttl=HOUR)
    assert third.deduplicated
    assert third.job_id == first.job_id


def test_a_producers_own_window_may_be_shorter_than_the_default(drive: Any) -> None:
    """The asker's window decides, not the one the earlier job was asked with."""
    drive.enqueue(dedupe_key="k")
    drive.end(drive.claim_one())
    drive.later(hours=2)
    assert drive.enqueue(dedupe_key="k", dedupe_ttl=HOUR).is_new
    assert drive.enqueue(dedupe_key="k", dedupe_ttl=timedelta(0)).deduplicated, "the new twin is in flight"


def test_what_follows_from_a_replay_is_outside_of_dedupe(drive: Any) -> None:
    """A replayed run happens again as a whole: its steps do not lose against those of the run it repeats."""
    first = drive.enqueue()
    drive.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=first.job_id)
    for job in drive.claim(echo=1, next=1).jobs:
        drive.end(job)
    again = drive.enqueue(replay_of=first.job_id)
    step = drive.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=again.job_id)
    below = drive.enqueue(plugin="next", dedupe_key="delivery 1", parent_job_id=step.job_id)
    assert step.is_new
    assert below.is_new
    assert drive.enqueue(plugin="next", dedupe_key="delivery 1").deduplicated


def test_failed_and_dead_jobs_block_nobody(drive: Any) -> None:
    """Only a success, or a twin in flight, makes a job unnecessary."""
    drive.enqueue(dedupe_key="k", dedupe_ttl=HOUR)
    drive.end(drive.claim_one(), Failed("no"))
    assert drive.enqueue(dedupe_key="k", dedupe_ttl=HOUR).is_new


def test_a_drop_is_in_the_journal_with_its_winner(drive: Any) -> None:
    """Decisions not to run are rows, with the inputs that decided them."""
    winner = drive.enqueue(dedupe_key="k")
    drive.end(drive.claim_one())
    drive.enqueue(dedupe_key="k", submitted_by="api")
    kind, job_id, data = drive.db.execute("SELECT kind, job_id, data FROM journal ORDER BY seq DESC").fetchone()
    assert (kind, job_id) == ("job.deduplicated", winner.job_id)
    assert '"reason":"recent_success"' in data
    assert '"submitted_by":"api"' in data


def test_the_same_child_is_made_once(drive: Any) -> None:
    """A replayed routing finds the child that exists; it is not an error and not a twin."""
    parent = drive.enqueue()
    first = drive.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/step")
    again = drive.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/step")
    other = drive.enqueue(parent_job_id=parent.job_id, child_key="event-1/run/other")
    assert (again.job_id, again.existed) == (first.job_id, True)
    assert other.is_new
    assert drive.row(parent.job_id)["open_jobs"] == 3


def test_a_slot_fires_once(drive: Any) -> None:
    """(plugin, schedule, slot) is unique, whoever asks again."""
    first = drive.enqueue(schedule_id="hourly", slot_at=drive.now)
    again = drive.enqueue(schedule_id="hourly", slot_at=drive.now)
    assert (again.job_id, again.existed) == (first.job_id, True)
    assert drive.enqueue(schedule_id="other", slot_at=drive.now).is_new


def test_a_hook_run_is_a_tree_of_its_own(drive: Any) -> None:
    """A hook names its cause as parent, but nobody who waits for that tree waits for the hook."""
    parent = drive.enqueue()
    hook = drive.enqueue(parent_job_id=parent.job_id, child_key="hook", own_tree=True)
    assert hook.root_job_id == hook.job_id
    assert drive.row(parent.job_id)["open_jobs"] == 1


def test_a_settled_job_is_over_at_once_and_in_the_log(drive: Any) -> None:
    """A decided switch is a row of the tree without a place in the queue."""
    parent = drive.enqueue()
    switch = drive.enqueue(
        parent_job_id=parent.job_id,
        id=f"{parent.job_id}__switch",
        plugin="core.switch",
        settled=Prefinished(status=JobStatus.SUCCEEDED, result='{"matched":true}'),
    )
    assert switch.status is JobStatus.SUCCEEDED
    assert (drive.row(parent.job_id)["open_jobs"], drive.row(parent.job_id)["tree_jobs"]) == (1, 2)
    assert drive.claim(1, **{"core.switch": 5}).jobs == ()
    logged = drive.db.execute("SELECT status, result FROM job_log WHERE job_id = ?", (switch.job_id,)).fetchone()
    assert logged == ("succeeded", '{"matched":true}')


@pytest.mark.parametrize(
    ("new", "reason"), [({"hops": 3}, "chain of more than 2 hops"), ({}, "tree of more than 3 jobs")]
)
def test_a_job_beyond_its_budget_is_dead_and_says_so(drive: Any, new: dict[str, int], reason: str) -> None:
    """Over budget nothing starts and nothing is silently missing."""
    root = drive.enqueue()
    news = [drive.new(parent_job_id=root.job_id, **new) for _ in range(3)]
    with transaction(drive.db):
        made = enqueue_all(drive.db, news, now=drive.now, budget=Budget(hops=2, tree_jobs=3))
    assert made[-1].status is JobStatus.DEAD
    assert drive.row(made[-1].job_id)["last_error"] == reason
    assert drive.row(root.job_id)["open_jobs"] == 1 + sum(job.status is JobStatus.QUEUED for job in made)


def test_all_entry_jobs_are_there_or_none(drive: Any) -> None:
    """A failure half way leaves nothing behind."""
    news = [drive.new(), drive.new(max_attempts=0)]
    with pytest.raises(Exception, match="CHECK"), transaction(drive.db):
        enqueue_all(drive.db, news, now=drive.now)
    assert drive.statuses() == []


def test_the_schema_itself_refuses_impossible_states(db: sqlite3.Connection, drive: Any) -> None:
    """CHECK constraints guard the state machine below every function."""
    job = drive.enqueue()
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


def test_enqueue_takes_the_moment_it_is_given(drive: Any) -> None:
    """Time is passed in; two calls with one `now` are one moment."""
    with transaction(drive.db):
        job = enqueue(drive.db, drive.new(), now=drive.now + HOUR)
    assert drive.row(job.job_id)["created_at"] == "2026-02-08T10:30:00.000000Z"


def test_jobs_that_are_written_together_are_what_they_are_one_by_one(tmp_path: Path) -> None:
    """Rows, tree, joins, journal and answers are the same, however many siblings share a statement."""
    together, one_by_one = (_fan_out(tmp_path / f"{door.__name__}.db", door) for door in (enqueue_all, _each_alone))
    assert together == one_by_one
    assert together["tree"] == (44, 42), "three were there, 41 are new, and two of those are over"


def _each_alone(db: sqlite3.Connection, news: list[NewJob], *, now: datetime) -> list[Enqueued]:
    return [enqueue(db, new, now=now) for new in news]


def _fan_out(path: Path, door: Callable[..., list[Enqueued]]) -> dict[str, Any]:
    """What a ledger has after one door let many children in, ids aside: each job is called by its place."""
    with closing(open_writer(path)) as db:
        drive = Driver(db)
        root, parent = drive.enqueue(), {"parent_job_id": drive.enqueue(id="parent").job_id}
        drive.enqueue(**parent, child_key="k7")
        drive.enqueue(id="J", plugin="core.join", is_join=True, **parent)
        plain = [drive.new(**parent, child_key=f"k{n}", payload=f'"{n}"', pipeline="p", step_id="s") for n in range(32)]
        members = [drive.new(**parent, join_id="J", event_context_id=f"c{n}") for n in range(7)]
        news = [
            *plain,
            drive.new(**parent, child_key="k3"),
            drive.new(**parent, dedupe_key="key", dedupe_ttl=HOUR),
            drive.new(**parent, dedupe_key="key", dedupe_ttl=HOUR),
            drive.new(**parent, settled=Prefinished(status=JobStatus.SUCCEEDED, result="{}")),
            *members,
            drive.new(parent_job_id=root.job_id, own_tree=True),
            drive.new(**parent, hops=99),
        ]
        with transaction(db):
            made = door(db, news, now=drive.now)
        places = dict(db.execute("SELECT id, seq FROM job_queue"))
        rows = [
            {name: places.get(value, value) for name, value in drive.row(job_id).items()}
            for job_id in sorted(places, key=lambda job_id: places[job_id])
        ]
        entries = [
            [entry.kind, entry.plugin, *(places.get(one or "") for one in (entry.job_id, entry.root_job_id))]
            + [(name, places.get(value, value)) for name, value in entry.data.items()]
            for entry in journal.read_since(db, 0)
        ]
        answers = [(places[one.job_id], places[one.root_job_id], one.status, one.is_new) for one in made]
        counters = drive.row("parent")["tree_jobs"], drive.row("parent")["open_jobs"]
        return {"rows": rows, "journal": entries, "answers": answers, "tree": counters}


def test_a_job_among_many_that_cannot_be_written_takes_all_of_them_along(drive: Any) -> None:
    """The caller's transaction has all of them or none, also when they share a statement."""
    parent = drive.enqueue().job_id
    news = [drive.new(parent_job_id=parent, max_attempts=int(n != 20)) for n in range(30)]
    with pytest.raises(Exception, match="CHECK"), transaction(drive.db):
        enqueue_all(drive.db, news, now=drive.now)
    assert (drive.statuses(), drive.row(parent)["tree_jobs"]) == (["queued"], 1)


FORKS = """
import os
from datetime import UTC, datetime
from ductile.ledger.queue.enqueue import new_id
now = datetime.now(UTC)
print(new_id(now), flush=True)
if os.fork():
    os.wait()
print(new_id(now), flush=True)
"""


def test_a_forked_process_makes_ids_of_its_own() -> None:
    """Chance that was fetched in advance is not used twice."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    ids = done.stdout.split()
    assert len(ids) == len(set(ids)) == 3


def test_what_a_plain_job_is_written_without_is_what_its_columns_have_anyway(drive: Any) -> None:
    defaults = {name: default for _, name, _, _, default, _ in drive.db.execute("PRAGMA table_info(job_queue)")}
    rare = [defaults[name.strip()] for name in _RARE.split(",")]
    assert tuple(None if default is None else int(default) for default in rare) == _NOTHING_RARE
