"""Details of a job, trees, the status of the queue, and the journal as a stream."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.errors import NotFound
from ductile.core.model import Dead, Failed, NewContext, Outcome, Retried, Skipped
from ductile.ledger.jobs import tree_counters
from ductile.ledger.reports import job_details, queue_status, trees
from ductile.ledger.reports.runs import progress
from ductile.ledger.reports.runs.progress import TreeProgress
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from ductile.ledger.tables.blocked_jobs import set_block_reason

MINUTE = timedelta(minutes=1)


def test_the_details_of_a_job_have_its_whole_history(ledger: Any) -> None:
    """Attempts, children, journal and baggage."""
    ledger.enqueue()
    first = ledger.claim_one()
    ledger.end(first, Retried("exit 1", MINUTE, ledger.evidence(stderr="boom")))
    ledger.advance(minutes=1)
    context = NewContext(id="c", accumulated_json='{"a":1}')
    ledger.end(
        ledger.claim_one(),
        children=(ledger.new(plugin="next", child_key="1", event_context_id="c"),),
        contexts=(context,),
    )
    report = job_details.job(ledger.db, first.id)
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
    assert job_details.job(ledger.db, report.children[0].id).contexts[0].accumulated_json == '{"a":1}'


def test_an_unknown_job_is_not_found(ledger: Any) -> None:
    """For its details, its summary, its tree and the outcome of its tree."""
    for ask in (job_details.job, job_details.brief, trees.tree, trees.tree_outcome):
        with pytest.raises(NotFound):
            ask(ledger.db, "unknown")


def test_the_result_is_that_of_the_last_attempt(ledger: Any) -> None:
    """Results of earlier attempts are not shown."""
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", timedelta(0), ledger.evidence(result='{"first":1}')))
    job = ledger.claim_one()
    ledger.end(job, Failed("no", ledger.evidence()))
    assert job_details.job(ledger.db, job.id).result is None
    assert job_details.brief(ledger.db, job.id).result is None


def test_the_brief_has_the_job_and_its_result(ledger: Any) -> None:
    """The same as the details, from the queue and from the log."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job)
    for _ in ("in the queue", "in the log"):
        brief, full = job_details.brief(ledger.db, job.id), job_details.job(ledger.db, job.id)
        assert (brief.job, brief.result) == (full.job, "{}")
        ledger.db.execute("DELETE FROM job_queue")


def test_the_details_of_a_blocked_job_have_the_reason(ledger: Any) -> None:
    """Until the job starts."""
    job_id = ledger.enqueue().job_id
    assert job_details.job(ledger.db, job_id).blocked_reason is None
    with transaction(ledger.db):
        set_block_reason(ledger.db, "echo", "did not load")
    assert job_details.job(ledger.db, job_id).blocked_reason == "did not load"
    ledger.claim_one()
    assert job_details.job(ledger.db, job_id).blocked_reason is None


def steps(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """Count the instructions that SQLite runs for `work`."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    db.set_progress_handler(tick, 1)
    work()
    db.set_progress_handler(None, 1)
    return count


def test_the_cost_of_the_queue_status_does_not_depend_on_its_length(ledger: Any) -> None:
    """The oldest job is one of the first in the index; the depth is counted up to a limit."""

    def read_status() -> None:
        queue_status.oldest_ready_job(ledger.db, {"echo"}, now=ledger.now)
        assert queue_status.depth(ledger.db, at_most=5) == 5

    for _ in range(queue_status.MAX_HEADS + 1):
        ledger.enqueue()
    short = steps(ledger.db, read_status)
    for _ in range(100):
        ledger.enqueue()
    ledger.claim(1)
    assert steps(ledger.db, read_status) == short
    assert queue_status.depth(ledger.db) == queue_status.MAX_HEADS + 101, "queued and running"


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
def test_a_tree_is_failed_if_a_job_failed_and_is_not_tolerated(
    ledger: Any, outcome: Outcome | None, tolerated: bool, status: str, is_root: bool
) -> None:
    """It is open until its last job ends. The outcome is the same for every member, and from the log."""
    root = ledger.enqueue(tolerated=tolerated and is_root)
    ledger.advance(seconds=2)
    child = ledger.new(plugin="next", child_key="1", tolerated=tolerated)
    ledger.end(ledger.claim_one(), outcome if is_root else None, children=(child,))
    seen = trees.tree_outcome(ledger.db, root.job_id)
    assert (seen.status, seen.duration, progress.tree_progress(ledger.db, root.job_id)) == (
        "open",
        None,
        TreeProgress(1, 2),
    )
    ledger.advance(seconds=3)
    ended = ledger.end(ledger.claim_one("next"), None if is_root else outcome)
    assert progress.tree_progress(ledger.db, root.job_id) == TreeProgress(0, 2)
    assert TreeProgress(0, 2).is_over
    assert progress.tree_progress(ledger.db, "unknown") is None
    for _ in ("in the queue", "in the log"):
        for member in (root.job_id, ended.job_id):
            seen = trees.tree_outcome(ledger.db, member)
            assert (seen.status, seen.duration) == (status, timedelta(seconds=5))
        ledger.db.execute("DELETE FROM job_queue")


def test_the_tree_is_the_same_for_every_member(ledger: Any) -> None:
    """In order of arrival, with results, without hook runs."""
    ledger.enqueue()
    root = ledger.claim_one()
    children = (ledger.new(plugin="a", child_key="1"), ledger.new(plugin="b", child_key="2"))
    hook = ledger.new(plugin="hook", child_key="h", own_tree=True)
    ledger.end(root, children=(*children, hook))
    kid = ledger.claim_one("b")
    ledger.end(kid, Failed("no"))
    for member in (root.id, kid.id):
        nodes = trees.tree(ledger.db, member)
        assert [(node.job.plugin, node.job.status, node.result) for node in nodes] == [
            ("echo", "succeeded", "{}"),
            ("a", "queued", None),
            ("b", "failed", None),
        ]
    assert tree_counters.open_jobs(ledger.db, root.id) == 1


def test_a_finished_tree_is_returned_with_its_jobs(ledger: Any) -> None:
    """Not while it is open, and not if it has more than `max_jobs`."""
    root = ledger.enqueue().job_id
    ledger.end(ledger.claim_one(), children=(ledger.new(plugin="next", child_key="1"),))
    assert progress.finished_tree(ledger.db, root, max_jobs=2) == TreeProgress(1, 2)
    ledger.end(ledger.claim_one("next"), Failed("no"))
    nodes = tuple(trees.tree(ledger.db, root))
    assert [(node.job.plugin, node.job.last_error, node.result) for node in nodes] == [
        ("echo", None, "{}"),
        ("next", "no", None),
    ]
    assert progress.finished_tree(ledger.db, root, max_jobs=2) == TreeProgress(0, 2, nodes)
    assert progress.finished_tree(ledger.db, root, max_jobs=1) == TreeProgress(0, 2)
    assert progress.finished_tree(ledger.db, "unknown", max_jobs=2) is None


def test_a_tree_is_finished_by_the_counter_of_its_root(ledger: Any) -> None:
    """In an adopted ledger a child can have a lower `seq` than its root."""
    root = ledger.enqueue().job_id
    ledger.end(ledger.claim_one(), children=(ledger.new(plugin="next", child_key="1"),))
    ledger.db.execute("UPDATE job_queue SET seq = -1 WHERE plugin = 'next'")
    assert progress.finished_tree(ledger.db, root, max_jobs=2) == TreeProgress(1, 2)
    ledger.end(ledger.claim_one("next"))
    over = progress.finished_tree(ledger.db, root, max_jobs=2)
    assert over
    assert (over.is_over, [node.job.plugin for node in over.nodes]) == (True, ["next", "echo"])


def test_the_queue_status_counts_jobs_by_status_and_plugin(ledger: Any) -> None:
    """And lists plugins with ready jobs that may not start."""
    for plugin in ("a", "a", "b", "ghost"):
        ledger.enqueue(plugin=plugin)
    ledger.enqueue(plugin="k", dedupe_key="k")
    ledger.enqueue(plugin="k", dedupe_key="k")
    ledger.claim(9, k=9)
    ledger.end(ledger.claim_one("b"), Retried("no", MINUTE))
    ledger.end(ledger.claim_one("a"), Failed("no"))
    seen = queue_status.queue(ledger.db, claimable={"a", "b", "k"})
    assert (seen.queued, seen.running, seen.delayed, seen.waiting_for_key, seen.dead) == (4, 1, 1, 1, 0)
    assert [(plugin.plugin, plugin.ready, plugin.running) for plugin in seen.plugins] == [
        ("a", 1, 0),
        ("ghost", 1, 0),
        ("k", 0, 1),
    ]
    assert seen.unclaimable == ["ghost"]
    oldest = queue_status.oldest_ready_job(ledger.db, {"a"}, now=ledger.now)
    assert oldest is not None
    assert (oldest.plugin, oldest.ready_at) == ("a", ledger.now)
    assert queue_status.oldest_ready_job(ledger.db, {"b"}, now=ledger.now) is None


def test_the_journal_is_a_stream_that_can_be_resumed(ledger: Any) -> None:
    """By position, oldest first, without gaps."""
    assert journal.newest_time(ledger.db) is None
    for _ in range(3):
        ledger.enqueue()
    with transaction(ledger.db):
        journal.append(ledger.db, "scheduler.skipped", now=ledger.now, plugin="echo", data={"reason": "window"})
    first = journal.read_since(ledger.db, 0, limit=2)
    rest = journal.read_since(ledger.db, first[-1].seq)
    assert [entry.seq for entry in first + rest] == [1, 2, 3, 4]
    assert journal.bounds(ledger.db) == (1, 4)
    assert journal.newest_time(ledger.db) == ledger.now
    assert [entry.data for entry in journal.of_plugin(ledger.db, "echo")] == [{"reason": "window"}]


@pytest.mark.parametrize("data", [{"big": 1 << 80}, {"text": "\ud800 half a character"}, {"deep": [[{"x": "é"}]]}])
def test_any_json_value_can_be_journalled(ledger: Any, data: dict[str, Any]) -> None:
    """Also large integers and lone surrogates."""
    with transaction(ledger.db):
        journal.append(ledger.db, "note", now=ledger.now, data=data)
    (entry,) = journal.read_since(ledger.db, 0)
    assert entry.data.keys() == data.keys()
