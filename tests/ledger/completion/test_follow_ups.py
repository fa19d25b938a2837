"""What follows from an ending that the ledger decided itself, and how a run is started."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import (
    BranchResult,
    Completion,
    Dead,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    JobStatus,
    NewContext,
    Note,
    Outcome,
    Prefinished,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.ledger.admin.operate import cancel, end_queued_jobs_of
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.queue.enqueue import Enqueued
from ductile.ledger.queue.recover import Quarantined, recover_orphans
from ductile.ledger.reports import job_details, trees
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import contexts
from tests.ledger.conftest import Driver, result_of


class Rescue:
    """A rule that answers every ending with one job, and remembers what it was asked."""

    def __init__(self, drive: Driver, **values: Any) -> None:
        self.drive, self.values, self.asked = drive, values, list[tuple[Job, Outcome]]()

    def __call__(self, job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        assert now == self.drive.now
        self.asked.append((job, outcome))
        child = self.drive.new(plugin="rescue", child_key="rescue", event_context_id="hop", **self.values)
        return FollowUps(
            contexts=(NewContext(id="hop", accumulated_json='{"a":1}'),),
            children=(child,),
            notes=(Note(kind="event.unmatched", data={}),),
        )


def refuse(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
    raise KeyError("no such place")


def brought(drive: Driver) -> dict[str, Any]:
    """What an ending brings for the outcome it expected."""
    return {
        "children": (drive.new(plugin="brought", child_key="brought"),),
        "notes": (Note(kind="event.withheld", data={}),),
    }


def test_an_ending_that_stands_keeps_what_it_brought(drive: Driver) -> None:
    """The rule is only for endings nobody knew before the transaction."""
    rule = Rescue(drive)
    drive.enqueue()
    ended = drive.end(drive.claim_one(), Failed("no"), rule=rule, **brought(drive))
    assert isinstance(ended, Recorded)
    assert (rule.asked, len(ended.children)) == ([], 1)
    assert drive.claim_one("brought").parent_job_id == ended.job_id


def used_up(drive: Driver) -> Outcome:
    return Retried("exit 1", timedelta(0), drive.evidence(exit_code=1))


def cancelled(drive: Driver) -> Outcome:
    (job_id,) = drive.db.execute("SELECT id FROM job_queue").fetchone()
    with transaction(drive.db):
        cancel(drive.db, job_id, "no", now=drive.now)
    return Interrupted("killed", drive.evidence(signal=15))


@pytest.mark.parametrize(
    ("make", "error"), [(used_up, "attempts used up (1 of 1): exit 1"), (cancelled, "cancelled: no")]
)
def test_another_final_ending_asks_the_rule(drive: Driver, make: Any, error: str) -> None:
    """What follows is what the rule says about the death; the notes of the attempt stay, its children do not."""
    rule = Rescue(drive)
    drive.enqueue(max_attempts=1)
    job = drive.claim_one()
    ended = drive.end(job, make(drive), rule=rule, **brought(drive))
    assert isinstance(ended, Recorded)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, False)
    ((asked, outcome),) = rule.asked
    assert (asked.id, asked.status) == (job.id, JobStatus.RUNNING)
    assert isinstance(outcome, Dead)
    assert (outcome.error, outcome.evidence is not None) == (error, True)
    child = drive.claim_one("rescue")
    assert (child.parent_job_id, child.context) == (job.id, '{"a":1}')
    assert drive.claim(9, brought=9).jobs == ()
    assert drive.kinds()[-3:] == ["event.withheld", "event.unmatched", "job.started"]


def test_a_state_that_cannot_be_kept_asks_the_rule(drive: Driver) -> None:
    """A success that turned into a failure is followed by what follows a failure, and by nothing it brought."""
    rule = Rescue(drive)
    drive.enqueue()
    updates = json.dumps({"a": "x" * 100})
    ended = drive.end(drive.claim_one(), state_updates=updates, state_limit=50, rule=rule, **brought(drive))
    assert isinstance(ended, Recorded)
    assert ended.status is JobStatus.FAILED
    assert isinstance(rule.asked[0][1], Failed)
    assert drive.claim_one("rescue").parent_job_id == ended.job_id
    assert drive.claim(9, brought=9).jobs == ()
    assert "event.withheld" not in drive.kinds()


def test_an_attempt_that_is_tried_again_asks_nobody(drive: Driver) -> None:
    """It is not over."""
    rule = Rescue(drive)
    drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", timedelta(0)), rule=rule)
    assert rule.asked == []


def bad_ending(drive: Driver, job: Job, **more: Any) -> Completion:
    outcome = Succeeded(drive.evidence(stderr="noise"))
    return Completion(job_id=job.id, attempt=1, outcome=outcome, children=(drive.new(max_attempts=0),), **more)


def test_a_refused_ending_is_followed_by_what_follows_a_death(drive: Driver) -> None:
    """The tree of a job that cannot be recorded is rescued like that of any dead job."""
    rule = Rescue(drive)
    drive.enqueue(tolerated=True)
    job = drive.claim_one()
    (ended,), claimed = drive.turn(bad_ending(drive, job, rule=rule), rescue=1)
    assert isinstance(ended, Recorded)
    assert (ended.status, len(ended.children), [one.plugin for one in claimed.jobs]) == ("dead", 1, ["rescue"])
    assert drive.row(job.id)["tolerated"] == 1
    ((_, outcome),) = rule.asked
    assert isinstance(outcome, Dead)
    assert outcome.error.startswith("cannot be recorded: IntegrityError")


@pytest.mark.parametrize("values", [{"max_attempts": 0}, None], ids=["cannot be written", "raises"])
def test_a_refusal_whose_followers_are_bad_too_goes_without_and_is_not_tolerated(drive: Driver, values: Any) -> None:
    """Evidence and breaker come before what follows; but then nothing stands for the failure, so the tree fails."""
    rule = Rescue(drive, **values) if values else refuse
    heard: list[JobStatus] = []

    def breaker(_: Any, job: Job, status: JobStatus, now: datetime) -> None:
        heard.append(status)

    root = drive.enqueue(tolerated=True)
    drive.turn(bad_ending(drive, drive.claim_one(), rule=rule, breaker=breaker))
    report = job_details.job(drive.db, root.job_id)
    assert (report.job.status, report.job.tolerated, report.children) == (JobStatus.DEAD, False, [])
    assert (report.attempts[0].stderr, heard[-1]) == ("noise", JobStatus.DEAD)
    assert contexts.get(drive.db, "hop") is None
    assert trees.tree_outcome(drive.db, root.job_id).status == "failed"


def cancel_one(drive: Driver, job_id: str, rule: Any) -> Any:
    return cancel(drive.db, job_id, "no", now=drive.now, rule=rule)


def remove_plugin(drive: Driver, job_id: str, rule: Any) -> Any:
    (ended,) = end_queued_jobs_of(drive.db, "echo", "plugin echo is gone", now=drive.now, rule=rule)
    return ended


@pytest.mark.parametrize(
    ("end", "error"), [(cancel_one, "cancelled: no"), (remove_plugin, "plugin echo is gone")], ids=["cancel", "removed"]
)
def test_a_job_that_ends_in_the_queue_is_followed_too(drive: Driver, end: Any, error: str) -> None:
    """In the same transaction; the tree is not done in between."""
    rule = Rescue(drive)
    job = drive.enqueue()
    with transaction(drive.db):
        ended = end(drive, job.job_id, rule)
    assert (ended.status, ended.tree_is_done, len(ended.children)) == (JobStatus.DEAD, False, 1)
    ((asked, outcome),) = rule.asked
    assert (asked.status, outcome) == (JobStatus.QUEUED, Dead(error))
    assert drive.row(job.job_id)["open_jobs"] == 1
    assert drive.claim_one("rescue").parent_job_id == job.job_id


@pytest.mark.parametrize("end", [cancel_one, remove_plugin], ids=["cancel", "removed"])
def test_a_bad_follower_does_not_keep_a_job_in_the_queue(drive: Driver, end: Any) -> None:
    """It ends without it, says so, and its failure counts."""
    job = drive.enqueue(tolerated=True)
    with transaction(drive.db):
        ended = end(drive, job.job_id, refuse)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, True)
    row = drive.row(job.job_id)
    assert row["last_error"].endswith("; what follows cannot be recorded: KeyError: 'no such place'")
    assert row["tolerated"] == 0


def test_a_skipped_job_never_asks(drive: Driver) -> None:
    """A duplicate was decided not to run; nothing went wrong that somebody could answer."""
    job = drive.enqueue()
    with transaction(drive.db):
        ended = end_queued(drive.db, job.job_id, 1, Skipped("twin"), now=drive.now, rule=refuse)
    assert ended is not None
    assert ended.status is JobStatus.SKIPPED


def test_recovery_asks_about_those_it_gives_up(drive: Driver) -> None:
    """What follows is in the savepoint of the row; a rule that fails sets that row apart and no other."""
    rule = Rescue(drive)
    for _ in range(3):
        drive.enqueue(max_attempts=1)
    drive.enqueue()
    lost = drive.claim().jobs

    def picky(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        return refuse(job, outcome, now) if job.id == lost[1].id else rule(job, outcome, now)

    with transaction(drive.db):
        ended = recover_orphans(drive.db, run_id="run-2", now=drive.now, rule=picky)
    assert [isinstance(one, Quarantined) for one in ended] == [False, True, False, False]
    assert [job.id for job, _ in rule.asked] == [lost[0].id, lost[2].id]
    assert drive.statuses()[:4] == ["dead", "dead", "dead", "queued"]
    assert len(drive.claim(9, rescue=9).jobs) == 2


def test_recovery_sets_a_row_apart_that_has_no_text_where_there_should_be_some(drive: Driver) -> None:
    """SQLite does not give it as a whole; all others are recovered."""
    for _ in range(2):
        drive.enqueue()
    lost = drive.claim().jobs
    drive.db.execute("UPDATE job_queue SET payload = CAST(x'ff' AS TEXT) WHERE id = ?", (lost[0].id,))
    with transaction(drive.db):
        ended = recover_orphans(drive.db, run_id="run-2", now=drive.now)
    assert [isinstance(one, Quarantined) for one in ended] == [True, False]
    assert drive.statuses() == ["dead", "queued"]


def started(drive: Driver, following: FollowUps) -> list[Enqueued]:
    with transaction(drive.db):
        return start_run(drive.db, following, now=drive.now)


def test_the_first_job_of_a_run_is_its_root(drive: Driver) -> None:
    """The others are its children, with their contexts, arrivals and notes: all of it or nothing."""
    context = NewContext(id="c", accumulated_json='{"a":1}')
    work = drive.new(plugin="work", id="w", join_id="J", event_context_id="c")
    following = FollowUps(
        contexts=(context,),
        children=(drive.new(plugin="core.switch", settled=Prefinished(status=JobStatus.SUCCEEDED)), work, drive.join()),
        arrivals=(BranchResult(join_id="J", branch=1, payload='"bypassed"'),),
        notes=(Note(kind="event.unmatched", data={}),),
    )
    root, job, join = started(drive, following)
    assert {root.job_id} == {root.root_job_id, job.root_job_id, join.root_job_id}
    assert (drive.row(root.job_id)["open_jobs"], drive.row("J")["waits_for"]) == (2, 1)
    claimed = drive.claim_one("work")
    assert (claimed.parent_job_id, claimed.context) == (root.job_id, '{"a":1}')
    assert [entry.kind for entry in job_details.job(drive.db, root.job_id).journal] == [
        "job.completed",
        "event.unmatched",
    ]
    drive.end(claimed, arrivals=(BranchResult(join_id="J", payload='"done"'),))
    assert drive.settle()[0].tree_is_done
    assert result_of(drive, "J") == ["done", "bypassed"]


def test_a_run_that_cannot_be_written_leaves_nothing(drive: Driver) -> None:
    """One transaction for all of it."""
    with pytest.raises(Exception, match="CHECK"):
        started(drive, FollowUps(children=(drive.new(), drive.new(max_attempts=0))))
    assert drive.statuses() == []


@pytest.mark.parametrize("case", ["duplicate", "exists"])
def test_a_run_whose_first_job_is_there_already_is_not_started(drive: Driver, case: str) -> None:
    """The answer is the job that stands for it, and nothing is added to that job's tree."""
    first = drive.new(dedupe_key="k") if case == "duplicate" else drive.new(id="root")
    (before,) = started(drive, FollowUps(children=(first,)))
    drive.end(drive.claim_one())
    second = FollowUps(contexts=(NewContext(id="c"),), children=(first, drive.new(plugin="other")))
    (again,) = started(drive, second)
    assert (again.job_id, again.is_new) == (before.job_id, False)
    assert (len(drive.statuses()), contexts.get(drive.db, "c")) == (1, None)


def test_a_run_without_jobs_leaves_its_notes(drive: Driver) -> None:
    """Why nothing was entered is a row of the journal."""
    assert started(drive, FollowUps(notes=(Note(kind="event.unmatched", data={"why": "empty"}),))) == []
    assert drive.kinds() == ["event.unmatched"]
