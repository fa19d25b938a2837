"""Read-only answers: one job, trees, lists, the queue; and the journal as a stream."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.errors import NotFound
from ductile.core.model import Dead, Failed, NewContext, Outcome, Retried, Skipped
from ductile.ledger.queue import tree_counters
from ductile.ledger.queue.block_reasons import note_blocked
from ductile.ledger.reports import job_details, queue_status, run_status, trees
from ductile.ledger.reports.run_status import Standing
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal

MINUTE = timedelta(minutes=1)


def test_a_job_tells_its_story(drive: Any) -> None:
    """Attempts, children, journal and baggage in one answer."""
    drive.enqueue()
    first = drive.claim_one()
    drive.end(first, Retried("exit 1", MINUTE, drive.evidence(stderr="boom")))
    drive.later(minutes=1)
    context = NewContext(id="c", accumulated_json='{"a":1}')
    drive.end(
        drive.claim_one(),
        children=(drive.new(plugin="next", child_key="1", event_context_id="c"),),
        contexts=(context,),
    )
    report = job_details.job(drive.db, first.id)
    assert [(attempt.status, attempt.stderr) for attempt in report.attempts] == [
        ("failed", "boom"),
        ("succeeded", None),
    ]
    assert (report.result, report.open_jobs, len(report.children)) == ("{}", 1, 1)
    assert [entry.kind for entry in report.journal] == [
        "job.enqueued",
        "job.started",
        "job.retry_scheduled",
        "job.started",
        "job.completed",
    ]
    assert job_details.job(drive.db, report.children[0].id).contexts[0].accumulated_json == '{"a":1}'


def test_an_unknown_job_is_not_found(drive: Any) -> None:
    """404 for a job, in short or in full, and for its tree."""
    for ask in (job_details.job, job_details.brief, trees.tree, trees.tree_outcome):
        with pytest.raises(NotFound):
            ask(drive.db, "nobody")


def test_the_result_is_that_of_the_last_attempt(drive: Any) -> None:
    """An attempt that left nothing has no result, whatever an earlier one had."""
    drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", timedelta(0), drive.evidence(result='{"first":1}')))
    job = drive.claim_one()
    drive.end(job, Failed("no", drive.evidence()))
    assert job_details.job(drive.db, job.id).result is None
    assert job_details.brief(drive.db, job.id).result is None


def test_in_short_a_job_is_itself_and_its_result(drive: Any) -> None:
    """The same as the full report says, while the job is in the queue and when only the log has it."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job)
    for _ in ("in the queue", "in the log"):
        brief, full = job_details.brief(drive.db, job.id), job_details.job(drive.db, job.id)
        assert (brief.job, brief.result) == (full.job, "{}")
        drive.db.execute("DELETE FROM job_queue")


def test_a_job_that_may_not_start_says_why(drive: Any) -> None:
    """What keeps its plugin from running is part of the report, until the job starts."""
    job_id = drive.enqueue().job_id
    assert job_details.job(drive.db, job_id).blocked_reason is None
    with transaction(drive.db):
        note_blocked(drive.db, "echo", "did not load")
    assert job_details.job(drive.db, job_id).blocked_reason == "did not load"
    drive.claim_one()
    assert job_details.job(drive.db, job_id).blocked_reason is None


def steps(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """How many instructions SQLite runs for `work`."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    db.set_progress_handler(tick, 1)
    work()
    db.set_progress_handler(None, 1)
    return count


def test_a_look_at_the_queue_costs_the_same_however_long_it_is(drive: Any) -> None:
    """The oldest job is found at the head of each lane; the depth is counted up to a limit."""

    def look() -> None:
        queue_status.oldest_claimable(drive.db, {"echo"})
        assert queue_status.depth(drive.db, at_most=5) == 5

    for _ in range(10):
        drive.enqueue()
    short = steps(drive.db, look)
    for _ in range(100):
        drive.enqueue()
    drive.claim(1)
    assert steps(drive.db, look) == short
    assert queue_status.depth(drive.db) == 110, "what waits and what runs"


@pytest.mark.parametrize(
    ("outcome", "tolerated", "status"),
    [
        (None, False, "succeeded"),
        (Failed("no"), False, "failed"),
        (Dead("no"), False, "failed"),
        (Failed("no"), True, "succeeded"),
        (Skipped("no"), False, "succeeded"),
    ],
)
@pytest.mark.parametrize("is_root", [True, False], ids=["root", "child"])
def test_a_tree_is_failed_if_a_job_in_it_is_and_nobody_tolerates_that(
    drive: Any, outcome: Outcome | None, tolerated: bool, status: str, is_root: bool
) -> None:
    """Open until the last job is over; the same from every member, and when only the log has it."""
    root = drive.enqueue(tolerated=tolerated and is_root)
    drive.later(seconds=2)
    child = drive.new(plugin="next", child_key="1", tolerated=tolerated)
    drive.end(drive.claim_one(), outcome if is_root else None, children=(child,))
    seen = trees.tree_outcome(drive.db, root.job_id)
    assert (seen.status, seen.duration, run_status.standing(drive.db, root.job_id)) == ("open", None, Standing(1, 2))
    drive.later(seconds=3)
    ended = drive.end(drive.claim_one("next"), None if is_root else outcome)
    assert run_status.standing(drive.db, root.job_id) == Standing(0, 2)
    assert Standing(0, 2).is_over
    assert run_status.standing(drive.db, "unknown") is None
    for _ in ("in the queue", "in the log"):
        for member in (root.job_id, ended.job_id):
            seen = trees.tree_outcome(drive.db, member)
            assert (seen.status, seen.duration) == (status, timedelta(seconds=5))
        drive.db.execute("DELETE FROM job_queue")


def test_a_tree_is_the_same_from_every_member(drive: Any) -> None:
    """In order of arrival, with results; a hook run is not part of it."""
    drive.enqueue()
    root = drive.claim_one()
    children = (drive.new(plugin="a", child_key="1"), drive.new(plugin="b", child_key="2"))
    hook = drive.new(plugin="hook", child_key="h", own_tree=True)
    drive.end(root, children=(*children, hook))
    kid = drive.claim_one("b")
    drive.end(kid, Failed("no"))
    for member in (root.id, kid.id):
        nodes = trees.tree(drive.db, member)
        assert [(node.job.plugin, node.job.status, node.result) for node in nodes] == [
            ("echo", "succeeded", "{}"),
            ("a", "queued", None),
            ("b", "failed", None),
        ]
    assert tree_counters.open_jobs(drive.db, root.id) == 1


def test_who_waits_for_a_tree_gets_its_jobs_when_it_is_over(drive: Any) -> None:
    """As the tree shows them; not while it is open, and not of one with more than can be told at once."""
    root = drive.enqueue().job_id
    drive.end(drive.claim_one(), children=(drive.new(plugin="next", child_key="1"),))
    assert run_status.ended(drive.db, root, most=2) == Standing(1, 2)
    drive.end(drive.claim_one("next"), Failed("no"))
    nodes = tuple(trees.tree(drive.db, root))
    assert [(node.job.plugin, node.job.last_error, node.result) for node in nodes] == [
        ("echo", None, "{}"),
        ("next", "no", None),
    ]
    assert run_status.ended(drive.db, root, most=2) == Standing(0, 2, nodes)
    assert run_status.ended(drive.db, root, most=1) == Standing(0, 2)
    assert run_status.ended(drive.db, "unknown", most=2) is None


def test_a_tree_is_over_when_its_root_says_so_whoever_comes_first(drive: Any) -> None:
    """In an adopted ledger a child can stand before its root, if the clock was set back meanwhile."""
    root = drive.enqueue().job_id
    drive.end(drive.claim_one(), children=(drive.new(plugin="next", child_key="1"),))
    drive.db.execute("UPDATE job_queue SET seq = -1 WHERE plugin = 'next'")
    assert run_status.ended(drive.db, root, most=2) == Standing(1, 2)
    drive.end(drive.claim_one("next"))
    over = run_status.ended(drive.db, root, most=2)
    assert over
    assert (over.is_over, [node.job.plugin for node in over.nodes]) == (True, ["next", "echo"])


def test_the_queue_at_a_glance(drive: Any) -> None:
    """Open work by kind and by lane, and what nobody may claim."""
    for plugin in ("a", "a", "b", "ghost"):
        drive.enqueue(plugin=plugin)
    drive.enqueue(plugin="k", dedupe_key="k")
    drive.enqueue(plugin="k", dedupe_key="k")
    drive.claim(9, k=9)
    drive.end(drive.claim_one("b"), Retried("no", MINUTE))
    drive.end(drive.claim_one("a"), Failed("no"))
    seen = queue_status.queue(drive.db, claimable={"a", "b", "k"})
    assert (seen.queued, seen.running, seen.delayed, seen.waiting_for_key, seen.dead) == (4, 1, 1, 1, 0)
    assert [(lane.plugin, lane.ready, lane.running) for lane in seen.lanes] == [
        ("a", 1, 0),
        ("ghost", 1, 0),
        ("k", 0, 1),
    ]
    assert seen.unclaimable == ["ghost"]
    assert queue_status.oldest_claimable(drive.db, {"a"}) == drive.now
    assert queue_status.oldest_claimable(drive.db, {"b"}) is None


def test_the_journal_is_a_stream_that_can_be_resumed(drive: Any) -> None:
    """By position, oldest first, nothing skipped; it also knows when the last thing happened."""
    assert journal.newest_moment(drive.db) is None
    for _ in range(3):
        drive.enqueue()
    with transaction(drive.db):
        journal.append(drive.db, "scheduler.skipped", now=drive.now, plugin="echo", data={"reason": "window"})
    first = journal.read_since(drive.db, 0, limit=2)
    rest = journal.read_since(drive.db, first[-1].seq)
    assert [entry.seq for entry in first + rest] == [1, 2, 3, 4]
    assert journal.bounds(drive.db) == (1, 4)
    assert journal.newest_moment(drive.db) == drive.now
    assert [entry.data for entry in journal.of_plugin(drive.db, "echo")] == [{"reason": "window"}]


@pytest.mark.parametrize("data", [{"big": 1 << 80}, {"text": "\ud800 half a character"}, {"deep": [[{"x": "é"}]]}])
def test_whatever_was_decided_can_be_journalled(drive: Any, data: dict[str, Any]) -> None:
    """Numbers of any size and text that is not quite text do not stop a transaction."""
    with transaction(drive.db):
        journal.append(drive.db, "note", now=drive.now, data=data)
    (entry,) = journal.read_since(drive.db, 0)
    assert entry.data.keys() == data.keys()
