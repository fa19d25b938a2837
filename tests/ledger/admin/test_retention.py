"""What is forgotten and what must not be."""

from datetime import timedelta
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
from ductile.ledger.admin.operate import cancel
from ductile.ledger.admin.retention import Pruned, RetentionPolicy, anything_old, prune
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.reports import job_details, trees
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import contexts, receipts, snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot

DAY = timedelta(days=1)


def pruned(drive: Any, policy: RetentionPolicy | None = None, limit: int = 500) -> Pruned:
    policy = policy or RetentionPolicy()
    is_old = anything_old(drive.db, policy, now=drive.now, limit=limit)
    with transaction(drive.db):
        gone = prune(drive.db, policy, now=drive.now, limit=limit)
    assert is_old or not gone.total, "whoever looks first misses nothing"
    return gone


def test_whole_finished_trees_leave_the_queue(drive: Any) -> None:
    """A tree goes a day after its last job ended, not its root; one open job keeps all of it."""
    root = drive.enqueue()
    drive.end(drive.claim_one(), children=(drive.new(plugin="next", child_key="1"),))
    drive.later(days=2)
    assert pruned(drive).jobs == 0
    drive.end(drive.claim_one("next"))
    drive.later(hours=23)
    assert pruned(drive).jobs == 0
    drive.later(hours=2)
    assert pruned(drive).jobs == 2
    assert drive.statuses() == []
    assert job_details.job(drive.db, root.job_id).attempts[0].status == "succeeded", "the log has it for longer"


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "inside"])
def test_what_arrived_at_a_join_goes_with_its_tree(drive: Any, is_root: bool) -> None:
    """Not before, and nothing that arrived in another tree."""

    def start(join: str, *before: NewJob) -> None:
        arrivals = (BranchResult(join_id=join, payload="1"), BranchResult(join_id=join, payload="2"))
        with transaction(drive.db):
            start_run(drive.db, FollowUps(children=(*before, drive.join(join)), arrivals=arrivals), now=drive.now)

    start("open", drive.new(join_id="open"))
    start("over", *(() if is_root else (drive.new(settled=Prefinished(status=JobStatus.SUCCEEDED)),)))
    drive.later(days=2)
    assert pruned(drive).arrivals == 0
    drive.settle()
    drive.later(days=2)
    assert (pruned(drive).arrivals, pruned(drive).arrivals) == (2, 0)
    assert drive.db.execute("SELECT DISTINCT join_id FROM arrivals").fetchall() == [("open",)]


def test_a_job_is_inspectable_for_as_long_as_the_log_has_it(drive: Any) -> None:
    """After the queue forgot it: from its attempts; after the log did: not found."""
    drive.enqueue(pipeline="p", step_id="s")
    job = drive.claim_one()
    drive.end(job, Failed("exit 78"), children=(drive.new(plugin="next", child_key="1"),))
    kid = drive.claim_one("next")
    drive.end(kid)
    drive.later(days=2)
    pruned(drive)
    report = job_details.job(drive.db, job.id)
    assert (report.in_queue, report.job.status, report.job.step_id, report.job.last_error) == (
        False,
        "failed",
        "s",
        "exit 78",
    )
    assert [node.job.id for node in trees.tree(drive.db, kid.id)] == [job.id, kid.id]
    with pytest.raises(WrongState, match="no longer in the queue"), transaction(drive.db):
        cancel(drive.db, job.id, "late", now=drive.now)
    drive.later(days=30)
    assert pruned(drive).attempts == 2
    with pytest.raises(NotFound):
        job_details.job(drive.db, job.id)


def test_pruning_a_job_does_not_reopen_its_dedupe_window(drive: Any) -> None:
    """The window stands on its receipt, not on the row."""
    drive.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY)
    drive.end(drive.claim_one())
    drive.later(days=3)
    assert pruned(drive).jobs == 1
    assert drive.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY).deduplicated
    drive.later(days=8)
    assert pruned(drive).receipts == 1
    assert drive.enqueue(dedupe_key="k", dedupe_ttl=10 * DAY).is_new


def test_portions_are_small_and_repeatable(drive: Any) -> None:
    """One call stays short; a tree larger than the portion still goes whole."""
    for _ in range(5):
        drive.enqueue()
    for job in drive.claim().jobs:
        drive.end(job)
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, children=tuple(drive.new(child_key=str(number)) for number in range(6)))
    for kid in drive.claim().jobs:
        drive.end(kid)
    drive.later(days=2)
    counts = [pruned(drive, limit=3).jobs for _ in range(4)]
    assert counts == [3, 2, 7, 0]


def test_attempts_of_a_job_still_in_the_queue_are_kept(drive: Any) -> None:
    """They tell how it came to where it is."""
    drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", 60 * DAY))
    drive.later(days=40)
    assert pruned(drive).attempts == 0


def test_the_journal_is_cut_at_its_old_end(drive: Any) -> None:
    """Positions that remain keep their number."""
    drive.enqueue()
    drive.later(days=31)
    drive.enqueue()
    assert pruned(drive).journal == 1
    assert drive.db.execute("SELECT seq FROM journal").fetchall() == [(2,)]


def test_contexts_go_when_nothing_refers_to_them(drive: Any) -> None:
    """A context lives as long as a job, a log row or a younger context needs it."""
    drive.enqueue()
    context = NewContext(id="root-ctx")
    hop = NewContext(id="hop-ctx", parent_id="root-ctx")
    child = drive.new(plugin="next", child_key="1", event_context_id="hop-ctx")
    drive.end(drive.claim_one(), contexts=(context, hop), children=(child,))
    drive.later(days=20)
    drive.end(drive.claim_one("next"))
    drive.later(days=25)
    pruned(drive)
    assert [one.id for one in contexts.lineage(drive.db, "hop-ctx")] == ["root-ctx", "hop-ctx"]
    drive.later(days=10)
    pruned(drive)
    pruned(drive)
    assert contexts.get(drive.db, "root-ctx") is None


def test_facts_are_kept_unless_the_operator_says_otherwise(drive: Any) -> None:
    """Facts are for good by default."""
    drive.enqueue()
    drive.end(drive.claim_one(), facts=(NewFact(fact_type="t", fact_json="{}"),))
    drive.later(days=1000)
    assert pruned(drive).facts == 0
    assert pruned(drive, RetentionPolicy(facts=DAY)).facts == 1


def test_snapshots_go_when_every_job_is_younger(drive: Any) -> None:
    """The newest stays always, older ones as long as a job or attempt may point at them."""
    first = StoredSnapshot(id="cfg_1", config_hash="a", loaded_at=drive.now, reason="startup")
    with transaction(drive.db):
        snapshots.put(drive.db, first)
    drive.enqueue(snapshot_id="cfg_1")
    drive.later(hours=1)
    with transaction(drive.db):
        snapshots.put(drive.db, evolve(first, id="cfg_2", loaded_at=drive.now, reason="reload"))
    drive.end(drive.claim_one())
    drive.later(days=2)
    assert pruned(drive).snapshots == 0
    drive.later(days=40)
    assert [pruned(drive).snapshots for _ in range(2)] == [1, 0]
    newest = snapshots.newest(drive.db)
    assert newest is not None
    assert (newest.id, snapshots.get(drive.db, "cfg_1")) == ("cfg_2", None)


def test_nothing_is_pruned_when_the_policy_keeps_it(drive: Any) -> None:
    """None keeps a kind of row for good."""
    drive.enqueue()
    drive.end(drive.claim_one())
    drive.later(days=4000)
    keep = RetentionPolicy(job_queue=None, job_log=None, journal=None, breaker_transitions=None)
    assert pruned(drive, keep).total == 0


def test_a_receipt_gives_the_first_answer_until_it_expires(drive: Any) -> None:
    """One job per delivery; another body under the same key can be told apart."""
    with transaction(drive.db):
        assert receipts.put(drive.db, "webhook:/gh", "d-1", now=drive.now, keep=DAY, job_id="j", body_hash="h")
        assert not receipts.put(drive.db, "webhook:/gh", "d-1", now=drive.now, keep=DAY, job_id="other")
        assert receipts.put(drive.db, "webhook:/other", "d-1", now=drive.now, keep=DAY)
    found = receipts.get(drive.db, "webhook:/gh", "d-1", now=drive.now)
    assert found is not None
    assert (found.job_id, found.body_hash) == ("j", "h")
    drive.later(days=1)
    assert receipts.get(drive.db, "webhook:/gh", "d-1", now=drive.now) is None
    with transaction(drive.db):
        assert receipts.put(drive.db, "webhook:/gh", "d-1", now=drive.now, keep=DAY, job_id="second")
    drive.later(days=2)
    assert pruned(drive).receipts == 2
