"""Retention: which rows are deleted and which are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.errors import NotFound, WrongState
from ductile.core.model import (
    BranchResult,
    Failed,
    FollowUps,
    JobStatus,
    NewContext,
    NewFact,
    NewJob,
    Prefinished,
    Retried,
)
from ductile.ledger.admin import service_log
from ductile.ledger.admin.job_actions import cancel
from ductile.ledger.admin.retention import Pruned, RetentionPolicy, has_expired_rows, prune
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.reports import job_details, trees
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import contexts, receipts, snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot

DAY = timedelta(days=1)


def pruned(ledger: Any, policy: RetentionPolicy | None = None, limit: int = 500) -> Pruned:
    policy = policy or RetentionPolicy()
    is_old = has_expired_rows(ledger.db, policy, now=ledger.now, limit=limit)
    with transaction(ledger.db):
        deleted = prune(ledger.db, policy, now=ledger.now, limit=limit)
    assert is_old or not deleted.total, "the check before finds everything that is deleted"
    return deleted


def test_finished_trees_leave_the_queue_as_a_whole(ledger: Any) -> None:
    """A day after their last job ended. One open job keeps the whole tree."""
    root = ledger.enqueue()
    ledger.end(ledger.claim_one(), children=(ledger.new(plugin="next", child_key="1"),))
    ledger.advance(days=2)
    assert pruned(ledger).jobs == 0
    ledger.end(ledger.claim_one("next"))
    ledger.advance(hours=23)
    assert pruned(ledger).jobs == 0
    ledger.advance(hours=2)
    assert pruned(ledger).jobs == 2
    assert ledger.statuses() == []
    assert job_details.job(ledger.db, root.job_id).attempts[0].status == "succeeded", "the log has it for longer"


def test_a_service_that_runs_longer_than_the_retention_is_still_found_to_be_killed(ledger: Any) -> None:
    """Its start stays in the journal; older starts are deleted."""
    with transaction(ledger.db):
        for run_id in ("run-1", "run-2"):
            service_log.journal_start(
                ledger.db, run_id=run_id, version="1", pid=1, config_hash="a", actor="uid:0", now=ledger.now
            )
    ledger.enqueue()
    ledger.advance(days=40)
    for _ in range(2):
        ledger.enqueue()
    assert pruned(ledger).journal == 2
    assert not has_expired_rows(ledger.db, RetentionPolicy(), now=ledger.now)

    unclean = service_log.find_unclean_stop(ledger.db)
    assert unclean is not None
    assert unclean["run_id"] == "run-2"
    assert ledger.journal_kinds() == ["system.started", "job.enqueued", "job.enqueued"]


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "inside"])
def test_arrivals_are_deleted_with_their_tree(ledger: Any, is_root: bool) -> None:
    """Not earlier, and not those of other trees."""

    def start(join: str, *before: NewJob) -> None:
        arrivals = (BranchResult(join_id=join, payload="1"), BranchResult(join_id=join, payload="2"))
        with transaction(ledger.db):
            start_run(ledger.db, FollowUps(children=(*before, ledger.join(join)), arrivals=arrivals), now=ledger.now)

    start("open", ledger.new(join_id="open"))
    start("over", *(() if is_root else (ledger.new(prefinished=Prefinished(status=JobStatus.SUCCEEDED)),)))
    ledger.advance(days=2)
    assert pruned(ledger).arrivals == 0
    ledger.resolve_joins()
    ledger.advance(days=2)
    assert (pruned(ledger).arrivals, pruned(ledger).arrivals) == (2, 0)
    assert ledger.db.execute("SELECT DISTINCT join_id FROM arrivals").fetchall() == [("open",)]


def test_a_job_can_be_inspected_while_the_log_has_it(ledger: Any) -> None:
    """After it left the queue, from its attempts. After its attempts are deleted, it is not found."""
    ledger.enqueue(pipeline="p", step_id="s")
    job = ledger.claim_one()
    ledger.end(job, Failed("exit 78"), children=(ledger.new(plugin="next", child_key="1"),))
    kid = ledger.claim_one("next")
    ledger.end(kid)
    ledger.advance(days=2)
    pruned(ledger)
    report = job_details.job(ledger.db, job.id)
    assert (report.in_queue, report.job.status, report.job.step_id, report.job.last_error) == (
        False,
        "failed",
        "s",
        "exit 78",
    )
    assert [node.job.id for node in trees.tree(ledger.db, kid.id)] == [job.id, kid.id]
    with pytest.raises(WrongState, match="no longer in the queue"), transaction(ledger.db):
        cancel(ledger.db, job.id, "late", now=ledger.now)
    ledger.advance(days=30)
    assert pruned(ledger).attempts == 2
    with pytest.raises(NotFound):
        job_details.job(ledger.db, job.id)


def test_pruning_a_job_does_not_reopen_its_dedupe_window(ledger: Any) -> None:
    """The window depends on the receipt, not on the job."""
    ledger.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY)
    ledger.end(ledger.claim_one())
    ledger.advance(days=3)
    assert pruned(ledger).jobs == 1
    assert ledger.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY).deduplicated
    ledger.advance(days=8)
    assert ledger.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY).is_new


def test_rows_are_deleted_in_batches(ledger: Any) -> None:
    """One call stays short. A tree larger than the batch is deleted as a whole."""
    for _ in range(5):
        ledger.enqueue()
    for job in ledger.claim().jobs:
        ledger.end(job)
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, children=tuple(ledger.new(child_key=str(number)) for number in range(6)))
    for kid in ledger.claim().jobs:
        ledger.end(kid)
    ledger.advance(days=2)
    counts = [pruned(ledger, limit=3).jobs for _ in range(4)]
    assert counts == [3, 2, 7, 0]


def test_attempts_of_a_job_still_in_the_queue_are_kept(ledger: Any) -> None:
    """They are the history of the job."""
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", 60 * DAY))
    ledger.advance(days=40)
    assert pruned(ledger).attempts == 0


def test_the_oldest_journal_entries_are_deleted(ledger: Any) -> None:
    """The positions of the others do not change."""
    ledger.enqueue()
    ledger.advance(days=31)
    ledger.enqueue()
    assert pruned(ledger).journal == 1
    assert ledger.db.execute("SELECT seq FROM journal").fetchall() == [(2,)]


def test_contexts_are_deleted_when_nothing_refers_to_them(ledger: Any) -> None:
    """A job, an attempt or a child context keeps a context."""
    ledger.enqueue()
    context = NewContext(id="root-ctx")
    hop = NewContext(id="hop-ctx", parent_id="root-ctx")
    child = ledger.new(plugin="next", child_key="1", event_context_id="hop-ctx")
    ledger.end(ledger.claim_one(), contexts=(context, hop), children=(child,))
    ledger.advance(days=20)
    ledger.end(ledger.claim_one("next"))
    ledger.advance(days=25)
    pruned(ledger)
    assert [context.id for context in contexts.lineage(ledger.db, "hop-ctx")] == ["root-ctx", "hop-ctx"]
    ledger.advance(days=10)
    pruned(ledger)
    pruned(ledger)
    assert contexts.get(ledger.db, "root-ctx") is None


def test_facts_are_kept_unless_a_retention_is_set(ledger: Any) -> None:
    """By default they are kept forever."""
    ledger.enqueue()
    ledger.end(ledger.claim_one(), facts=(NewFact(fact_type="t", fact_json="{}"),))
    ledger.advance(days=1000)
    assert pruned(ledger).facts == 0
    assert pruned(ledger, RetentionPolicy(facts=DAY)).facts == 1


def test_snapshots_are_deleted_when_every_job_is_newer(ledger: Any) -> None:
    """The newest one always stays. Older ones stay while a job or attempt may refer to them."""
    first = StoredSnapshot(id="cfg_1", config_hash="a", loaded_at=ledger.now, reason="startup")
    with transaction(ledger.db):
        snapshots.put(ledger.db, first)
    ledger.enqueue(snapshot_id="cfg_1")
    ledger.advance(hours=1)
    with transaction(ledger.db):
        snapshots.put(ledger.db, evolve(first, id="cfg_2", loaded_at=ledger.now, reason="reload"))
    ledger.end(ledger.claim_one())
    ledger.advance(days=2)
    assert pruned(ledger).snapshots == 0
    ledger.advance(days=40)
    assert [pruned(ledger).snapshots for _ in range(2)] == [1, 0]
    newest = snapshots.newest(ledger.db)
    assert newest is not None
    assert (newest.id, snapshots.get(ledger.db, "cfg_1")) == ("cfg_2", None)


def test_a_policy_of_none_keeps_rows_forever(ledger: Any) -> None:
    """For each kind of row."""
    ledger.enqueue()
    ledger.end(ledger.claim_one())
    ledger.advance(days=4000)
    keep = RetentionPolicy(job_queue=None, job_log=None, journal=None, breaker_transitions=None)
    assert pruned(ledger, keep).total == 0


def test_a_receipt_keeps_the_first_response_until_it_is_pruned(ledger: Any) -> None:
    """One job per delivery. Another body with the same key can be detected."""
    with transaction(ledger.db):
        assert receipts.put(ledger.db, "webhook:/gh", "d-1", now=ledger.now, ttl=DAY, job_id="j", body_hash="h")
        assert not receipts.put(ledger.db, "webhook:/gh", "d-1", now=ledger.now, ttl=DAY, job_id="other")
        assert receipts.put(ledger.db, "webhook:/other", "d-1", now=ledger.now, ttl=DAY)
    found = receipts.get(ledger.db, "webhook:/gh", "d-1")
    assert found is not None
    assert (found.job_id, found.body_hash) == ("j", "h")
    ledger.advance(days=1)
    assert pruned(ledger).receipts == 0
    ledger.advance(seconds=1)
    assert pruned(ledger).receipts == 2
    with transaction(ledger.db):
        assert receipts.put(ledger.db, "webhook:/gh", "d-1", now=ledger.now, ttl=DAY, job_id="second")


def test_a_success_is_remembered_for_the_window_of_the_job_that_asks(ledger: Any) -> None:
    """Which can be longer than the window under which the success was recorded, after a change of `dedupe_ttl`."""
    first = ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    ledger.advance(days=6)
    assert pruned(ledger).receipts == 0
    again = ledger.enqueue(dedupe_key="k", dedupe_ttl=7 * DAY)
    assert (again.deduplicated, again.job_id) == (True, first.job_id)
    ledger.advance(days=30)
    assert pruned(ledger).receipts == 1


def test_a_receipt_from_before_the_clock_was_set_lives_for_its_full_lifetime_from_then(ledger: Any) -> None:
    """A host without a battery-backed clock starts in 1970, also if the service restarts when the clock is set."""
    with transaction(ledger.db):
        receipts.put(ledger.db, "webhook:/gh", "d-1", now=datetime(1970, 1, 1, tzinfo=UTC), ttl=DAY)
    assert pruned(ledger).receipts == 0
    ledger.advance(days=7)
    assert pruned(ledger).receipts == 0
    ledger.advance(seconds=1)
    assert pruned(ledger).receipts == 1
