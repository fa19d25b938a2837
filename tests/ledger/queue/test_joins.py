"""Joins: whom they wait for, when they are ready, how they are decided, what a retry does to them."""

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import (
    BranchResult,
    Budget,
    Completion,
    Dead,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    JobStatus,
    JoinInput,
    NewContext,
    NewJob,
    Outcome,
    Prefinished,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.ledger.admin.operate import cancel, end_queued_jobs_of, retry
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.enqueue import enqueue_all
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.queue.rows import get_job
from ductile.ledger.reports import job_details, job_list, queue_status, trees
from ductile.ledger.storage.connections import transaction
from tests.ledger.conftest import Driver, all_or_nothing, result_of
from tests.ledger.recording import record_and_claim


def state(drive: Driver, join: str = "J") -> tuple[str, int, str | None]:
    row = drive.row(join)
    return row["status"], row["waits_for"], row["lane"]


READY = ("queued", 0, "core.join")


def members(drive: Driver, count: int, join: str = "J", **values: Any) -> list[NewJob]:
    return [
        drive.new(id=f"{join}-{number}", plugin="work", join_id=join, step_id=f"s{number}", **values)
        for number in range(count)
    ]


def arrival(join: str = "J", payload: str = "{}", **place: int) -> BranchResult:
    return BranchResult(join_id=join, payload=payload, **place)


def success(drive: Driver, job: Job, **more: Any) -> Completion:
    return Completion(job_id=job.id, attempt=job.attempt, outcome=Succeeded(drive.evidence(result="{}")), **more)


def test_a_join_counts_its_members_and_is_ready_when_all_are_over(drive: Driver) -> None:
    """It waits in the queue, in no lane; at zero it stands in its own."""
    drive.fan(*members(drive, 2), drive.join())
    assert state(drive) == ("queued", 2, None)
    drive.end(drive.claim_one("work"))
    assert state(drive) == ("queued", 1, None)
    assert drive.settle() == []
    drive.end(drive.claim_one("work"))
    assert state(drive) == READY
    (settled,) = drive.settle()
    assert (settled.job_id, settled.status, settled.tree_is_done) == ("J", JobStatus.SUCCEEDED, True)
    assert drive.row("J")["status"] == "succeeded"


def test_nobody_can_claim_a_join(drive: Driver) -> None:
    """Not even somebody who names its lane; and it is no plugin with work."""
    drive.fan(drive.join())
    assert state(drive) == READY
    assert drive.claim(5, **{"core.join": 5}).jobs == ()
    queue = queue_status.queue(drive.db, claimable=())
    assert (queue.queued, queue.waiting_joins, queue.lanes, queue.unclaimable) == (1, 1, [], [])


def test_what_follows_a_join_is_claimed_in_the_transaction_of_its_last_member(drive: Driver) -> None:
    """Ending, decision and next claim are one step; the answer has the join behind the endings."""
    after = drive.new(plugin="after", child_key="after")
    drive.fan(*members(drive, 1), drive.join())
    last = drive.claim_one("work")
    rule = all_or_nothing(lambda joined: FollowUps(children=(after,)))
    recorded, claimed = drive.turn(success(drive, last), rule=rule, after=9)
    assert [one.job_id for one in recorded] == ["J-0", "J"]
    (next_job,) = claimed.jobs
    assert (next_job.plugin, next_job.parent_job_id) == ("after", "J")
    assert isinstance(recorded[1], Recorded)
    assert not recorded[1].tree_is_done


def test_arrivals_come_in_order_of_item_branch_and_time(drive: Driver) -> None:
    """Whoever is first to arrive: results stand in the order the author wrote, then as they came."""
    drive.fan(*members(drive, 3), drive.join())
    first, second, third = drive.claim(9, work=9).jobs
    drive.end(
        third, arrivals=(arrival(payload='"b2"', item=1, branch=1), arrival(payload='"b2 again"', item=1, branch=1))
    )
    drive.end(second, arrivals=(arrival(payload='"b1"', item=1),))
    drive.end(first, arrivals=(arrival(payload='"a"', item=0, branch=7),))
    drive.settle()
    assert result_of(drive, "J") == ["a", "b1", "b2", "b2 again"]


@pytest.mark.parametrize("case", ["no member", "settled members", "a duplicate"])
def test_a_join_that_has_nothing_to_wait_for_is_ready_at_once(drive: Driver, case: str) -> None:
    """Members that are over, or were dropped, when they are written do not hold it up."""
    news: list[NewJob] = []
    if case == "settled members":
        news = members(drive, 2, settled=Prefinished(status=JobStatus.SUCCEEDED))
    if case == "a duplicate":
        drive.enqueue(plugin="work", dedupe_key="k")
        drive.end(drive.claim_one("work"))
        news = members(drive, 1, dedupe_key="k")
    drive.fan(*news, drive.join())
    assert state(drive) == READY


def test_a_member_that_fans_out_hands_its_place_to_its_children(drive: Driver) -> None:
    """Children are counted in before their parent is counted out, so the join is never ready in between."""
    drive.fan(*members(drive, 1), drive.join())
    children = tuple(drive.new(plugin="work", join_id="J", child_key=str(number)) for number in range(3))
    drive.end(drive.claim_one("work"), children=children)
    assert state(drive) == ("queued", 3, None)
    for job in drive.claim(9, work=9).jobs:
        assert state(drive) != READY
        drive.end(job)
    assert state(drive) == READY


def test_the_end_of_an_inner_join_can_be_the_end_of_the_outer_one(drive: Driver) -> None:
    """One call decides both; what the inner one brings is there when the outer one is decided."""
    inner = (*members(drive, 2, "I"), drive.join("I", join_id="O"))
    drive.fan(*inner, drive.new(id="side", plugin="side", join_id="O"), drive.join("O"))
    assert (state(drive, "I")[1], state(drive, "O")[1]) == (2, 2)
    for job in drive.claim(9, work=9, side=9).jobs:
        drive.end(job)

    def arrive(joined: JoinInput) -> FollowUps:
        return FollowUps(arrivals=(arrival("O", '"inner"'),) if joined.job.id == "I" else ())

    assert [one.job_id for one in drive.settle(all_or_nothing(arrive))] == ["I", "O"]
    assert result_of(drive, "O") == ["inner"]


def test_what_follows_an_inner_join_keeps_the_outer_one_waiting(drive: Driver) -> None:
    """The successor of a join inside a branch is a member of the join around it."""
    drive.fan(*members(drive, 1, "I"), drive.join("I", join_id="O"), drive.join("O"))
    drive.end(drive.claim_one("work"))
    after = drive.new(plugin="after", join_id="O", child_key="after")
    assert [one.job_id for one in drive.settle(all_or_nothing(lambda _: FollowUps(children=(after,))))] == ["I"]
    assert state(drive, "O") == ("queued", 1, None)
    drive.end(drive.claim_one("after"))
    assert state(drive, "O") == READY


def fails(drive: Driver) -> None:
    drive.end(drive.claim_one("work"), Failed("no"))


def dies(drive: Driver) -> None:
    drive.end(drive.claim_one("work"), Dead("no"))


def is_not_needed(drive: Driver) -> None:
    drive.end(drive.claim_one("work"), Skipped("no"))


def has_no_attempt_left(drive: Driver) -> None:
    drive.end(drive.claim_one("work"), Retried("no", timedelta(0)))


def is_cancelled_while_it_waits(drive: Driver) -> None:
    with transaction(drive.db):
        cancel(drive.db, "J-0", "no", now=drive.now)


def is_cancelled_while_it_runs(drive: Driver) -> None:
    job = drive.claim_one("work")
    is_cancelled_while_it_waits(drive)
    drive.end(job, Interrupted("killed"))


def loses_its_plugin(drive: Driver) -> None:
    with transaction(drive.db):
        end_queued_jobs_of(drive.db, "work", "plugin work is gone", now=drive.now)


def is_a_duplicate_by_now(drive: Driver) -> None:
    drive.db.execute("UPDATE job_queue SET dedupe_key = 'k' WHERE id = 'J-0'")
    drive.enqueue(plugin="twin", dedupe_key="k")
    drive.db.execute(
        "INSERT INTO dedupe_receipts VALUES ('work', 'poll', 'k', 'twin', '2026-02-08T09:30:00.000000Z', '2027')"
    )
    assert [one.job_id for one in drive.claim(9, work=9).skipped] == ["J-0"]


def dies_with_the_core(drive: Driver) -> None:
    drive.claim_one("work")
    with transaction(drive.db):
        recover_orphans(drive.db, run_id="run-2", now=drive.now)


def is_set_apart(drive: Driver) -> None:
    drive.claim_one("work")
    drive.db.execute("UPDATE job_queue SET created_at = 'yesterday' WHERE id = 'J-0'")
    with transaction(drive.db):
        recover_orphans(drive.db, run_id="run-2", now=drive.now)


def cannot_be_recorded(drive: Driver) -> None:
    drive.turn(success(drive, drive.claim_one("work"), children=(drive.new(max_attempts=0),)))


@pytest.mark.parametrize(
    ("ends", "status", "failed"),
    [
        (fails, "failed", 1),
        (dies, "dead", 1),
        (is_not_needed, "skipped", 0),
        (has_no_attempt_left, "dead", 1),
        (is_cancelled_while_it_waits, "dead", 1),
        (is_cancelled_while_it_runs, "dead", 1),
        (loses_its_plugin, "dead", 1),
        (is_a_duplicate_by_now, "skipped", 0),
        (dies_with_the_core, "dead", 1),
        (is_set_apart, "dead", 1),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_whatever_ends_a_member_it_is_counted_out(
    drive: Driver, ends: Callable[[Driver], None], status: str, failed: int
) -> None:
    """A join never waits for a job that is over, and it fails exactly if a member ended failed or dead."""
    drive.fan(*members(drive, 1, max_attempts=1), drive.join())
    ends(drive)
    assert (drive.row("J-0")["status"], state(drive)) == (status, READY)
    (settled,) = drive.settle()
    assert settled.status == ("failed" if failed else "succeeded")


def test_what_was_set_apart_is_not_tolerated(drive: Driver) -> None:
    """Nothing followed from it that could stand for a success."""
    drive.fan(*members(drive, 1, tolerated=True), drive.join())
    is_set_apart(drive)
    assert drive.settle()[0].status is JobStatus.FAILED


def test_a_member_whose_ending_cannot_be_recorded_fails_its_join_in_the_same_turn(drive: Driver) -> None:
    """The refusal is a death like any other."""
    drive.fan(*members(drive, 1), drive.join())
    cannot_be_recorded(drive)
    assert drive.row("J")["last_error"].startswith("1 failed: s0: cannot be recorded: IntegrityError")


@pytest.mark.parametrize("outcome", [Retried("no", timedelta(0)), Retried("no", timedelta(hours=1)), Interrupted("no")])
def test_a_member_that_is_tried_again_is_still_waited_for(drive: Driver, outcome: Outcome) -> None:
    """An attempt is not an ending."""
    drive.fan(*members(drive, 1), drive.join())
    drive.end(drive.claim_one("work"), outcome)
    assert state(drive) == ("queued", 1, None)


def test_a_claim_that_skips_the_last_member_asks_for_another_turn(drive: Driver) -> None:
    """The join became ready behind the decision of this turn; nobody has to wait for the next hint."""
    drive.fan(*members(drive, 1), drive.join())
    drive.db.execute("UPDATE job_queue SET dedupe_key = 'k' WHERE id = 'J-0'")
    drive.db.execute(
        "INSERT INTO dedupe_receipts VALUES ('work', 'poll', 'k', 'twin', '2026-02-08T09:30:00.000000Z', '2027')"
    )
    recorded, claimed = drive.turn(work=9)
    assert (recorded, len(claimed.skipped), claimed.more) == ([], 1, True)
    recorded, claimed = drive.turn(work=9)
    assert ([one.job_id for one in recorded], claimed.more) == (["J"], False)


def test_a_join_names_a_few_of_its_failures(drive: Driver) -> None:
    """Up to five, each short; and how many there were."""
    drive.fan(*members(drive, 7), drive.join())
    for job in drive.claim(9, work=9).jobs:
        drive.end(job, Failed("x" * 1000))
    seen: list[JoinInput] = []

    def look(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        seen.append(joined)
        return Failed("no"), FollowUps()

    drive.settle(look)
    (joined,) = seen
    assert (joined.failed, len(joined.failures), joined.arrivals) == (7, 5, ())
    assert joined.failures[0] == "s0: " + "x" * 200


def test_a_tolerated_failure_does_not_fail_the_join(drive: Driver) -> None:
    """The author said `continue`: what arrives stands for it."""
    drive.fan(*members(drive, 1, tolerated=True), drive.join())
    drive.end(drive.claim_one("work"), Failed("no"), arrivals=(arrival(payload='"failed, but told"'),))
    (settled,) = drive.settle()
    assert (settled.status, result_of(drive, "J")) == (JobStatus.SUCCEEDED, ["failed, but told"])


@pytest.mark.parametrize("tolerated", [True, False])
def test_a_member_beyond_the_budget_fails_the_join(drive: Driver, tolerated: bool) -> None:
    """It is dead when it is written and was never entered, so nothing of it can be tolerated."""
    root = drive.enqueue(plugin="root")
    news = [*members(drive, 2, parent_job_id=root.job_id, tolerated=tolerated), drive.join(parent_job_id=root.job_id)]
    with transaction(drive.db):
        first, second, join = enqueue_all(drive.db, news, now=drive.now, budget=Budget(tree_jobs=2))
    assert (first.status, second.status, join.status) == (JobStatus.QUEUED, JobStatus.DEAD, JobStatus.DEAD)
    assert drive.row("J-1")["tolerated"] == 0
    drive.end(drive.claim_one("work"))
    assert drive.settle() == [], "a join beyond the budget is dead from the start"
    drive.end(drive.claim_one("root"))
    assert trees.tree_outcome(drive.db, root.job_id).status == "failed"


def test_an_over_budget_member_is_among_the_failures(drive: Driver) -> None:
    """The join that was written before still knows of it."""
    root = drive.enqueue(plugin="root")
    news = [drive.join(parent_job_id=root.job_id), *members(drive, 1, parent_job_id=root.job_id, hops=99)]
    with transaction(drive.db):
        enqueue_all(drive.db, news, now=drive.now)
    (settled,) = drive.settle()
    assert (settled.status, drive.row("J")["last_error"]) == (
        JobStatus.FAILED,
        "1 failed: s0: chain of more than 20 hops",
    )


def raising(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
    if joined.job.id == "bad":
        raise KeyError("no such place in the plan")
    return all_or_nothing()(joined, now)


def retrying(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
    return (Retried("later", timedelta(0)) if joined.job.id == "bad" else Failed("no")), FollowUps()


def impossible(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
    child = NewJob(plugin="a", command="b", submitted_by="c", max_attempts=0 if joined.job.id == "bad" else 1)
    return Failed("no"), FollowUps(contexts=(NewContext(id=f"of {joined.job.id}"),), children=(child,))


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (raising, "cannot be decided: KeyError: 'no such place in the plan'"),
        (retrying, "cannot be decided: TypeError: a join runs nothing and cannot be retried"),
        (impossible, "cannot be decided: IntegrityError: CHECK constraint failed: max_attempts >= 1"),
    ],
)
def test_a_join_that_cannot_be_decided_is_dead_and_the_others_go_on(drive: Driver, rule: Any, error: str) -> None:
    """With its reason, without anything that should have followed."""
    drive.fan(drive.join("bad"), drive.join("good"))
    ended = drive.settle(rule)
    assert [(one.job_id, one.status is JobStatus.DEAD) for one in ended] == [("bad", True), ("good", False)]
    assert drive.row("bad")["last_error"] == error
    assert drive.db.execute("SELECT id FROM event_context WHERE id = 'of bad'").fetchall() == []
    assert ended[-1].tree_is_done is (rule is not impossible)


def test_a_join_whose_row_cannot_be_read_is_set_apart(drive: Driver) -> None:
    """Odd data in its row costs nobody else a decision, and the join around it hears of the death."""
    drive.fan(drive.join("I", join_id="O"), drive.join("O"))
    drive.db.execute("UPDATE job_queue SET created_at = 'yesterday' WHERE id = 'I'")
    drive.settle()
    assert (drive.row("I")["status"], drive.row("O")["status"]) == ("dead", "failed")


def test_a_join_that_takes_no_change_does_not_stop_the_others(drive: Driver) -> None:
    """It stays as it is, and the journal says so."""
    drive.fan(drive.join("stuck"), drive.join("good"))
    drive.db.execute(
        "CREATE TRIGGER stuck BEFORE UPDATE ON job_queue WHEN OLD.id = 'stuck' BEGIN SELECT RAISE(ABORT, 'stuck'); END"
    )
    assert [one.job_id for one in drive.settle()] == ["good"]
    (entry,) = (entry for entry in job_details.job(drive.db, "stuck").journal if entry.kind == "job.quarantined")
    assert entry.data["left"] == "as it is: IntegrityError: stuck"


def test_a_disk_that_fails_is_no_joins_fault(drive: Driver) -> None:
    """Nothing is decided, and the caller hears of it."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        raise error

    drive.fan(drive.join())
    with pytest.raises(Exception, match="no space left"):
        drive.settle(fail)
    assert state(drive) == READY


def test_one_call_decides_a_bounded_number(drive: Driver) -> None:
    """The rest is decided by the next call."""
    drive.fan(*(drive.join(f"J{number}") for number in range(5)))
    assert [len(drive.settle(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_more_joins_than_one_turn_decides_ask_for_another(drive: Driver) -> None:
    """So that a wide fan never makes one long transaction."""
    drive.fan(*(drive.join(f"J{number}") for number in range(501)))
    recorded, claimed = drive.turn()
    assert (len(recorded), claimed.more) == (500, True)
    recorded, claimed = drive.turn()
    assert (len(recorded), claimed.more) == (1, False)


def test_what_was_rolled_back_was_never_counted(drive: Driver) -> None:
    """A crash between ending and commit leaves the join waiting for exactly what is open."""
    drive.fan(*members(drive, 2), drive.join())
    job = drive.claim_one("work")
    before = list(drive.db.iterdump())
    child = drive.new(plugin="work", join_id="J", child_key="c")
    drive.db.execute("BEGIN IMMEDIATE")
    ending = success(drive, job, children=(child,), arrivals=(arrival(),))
    record_and_claim(drive.db, [ending], now=drive.now, run_id="run-1", free={"work": 9}, limit=9)
    drive.db.execute("ROLLBACK")
    assert list(drive.db.iterdump()) == before
    drive.end(job)
    assert state(drive) == ("queued", 1, None)


def test_an_arrival_at_something_that_is_no_join_is_refused(drive: Driver) -> None:
    """A result that nobody would ever read is not lost in silence: its bringer is dead and says why."""
    drive.fan(*members(drive, 1), drive.join())
    drive.turn(success(drive, drive.claim_one("work"), arrivals=(arrival("J-0"),)))
    assert drive.row("J-0")["last_error"] == "cannot be recorded: ValueError: arrival at J-0: there is no such join"


def test_a_cancelled_join_is_dead_and_its_members_go_on(drive: Driver) -> None:
    """Nothing follows from it; members that end, come or arrive later find it over, which is no error."""
    drive.fan(*members(drive, 2), drive.join())
    with transaction(drive.db):
        ended = cancel(drive.db, "J", "no", now=drive.now, rule=lambda *_: FollowUps(children=(drive.new(),)))
    assert isinstance(ended, Recorded)
    assert (ended.status, ended.children, state(drive)) == (JobStatus.DEAD, (), ("dead", 0, None))
    first, second = drive.claim(9, work=9).jobs
    drive.end(first, arrivals=(arrival(),), children=(drive.new(plugin="work", join_id="J", child_key="c"),))
    drive.end(second)
    assert drive.settle() == []
    assert drive.end(drive.claim_one("work")).tree_is_done  # type: ignore[union-attr]


def test_a_failed_member_that_is_tried_again_is_waited_for_again(drive: Driver) -> None:
    """While the join still waits for others, the retry is one more."""
    drive.fan(*members(drive, 2), drive.join())
    drive.end(drive.claim_one("work"), Failed("no"))
    assert state(drive)[1] == 1
    with transaction(drive.db):
        retry(drive.db, "J-0", now=drive.now)
    assert state(drive) == ("queued", 2, None)
    for job in drive.claim(9, work=9).jobs:
        drive.end(job)
    assert drive.settle()[0].status is JobStatus.SUCCEEDED


def test_the_joins_around_a_member_that_is_tried_again_open_again(drive: Driver) -> None:
    """Failed joins are queued for another attempt, outwards, keep what had arrived, and the tree is open."""
    inner = (*members(drive, 2, "I"), drive.join("I", join_id="O"))
    root = drive.fan(*inner, drive.join("O"))
    good, bad = drive.claim(9, work=9).jobs
    drive.end(good, arrivals=(arrival("I", '"good"', branch=1),))
    drive.end(bad, Failed("no"))
    assert [one.status for one in drive.settle()] == [JobStatus.FAILED, JobStatus.FAILED]
    assert trees.tree_outcome(drive.db, root.id).status == "failed"
    with transaction(drive.db):
        retry(drive.db, bad.id, now=drive.now)
    assert (state(drive, "I"), state(drive, "O")) == (("queued", 1, None), ("queued", 1, None))
    assert (drive.row("I")["attempt"], drive.row("O")["attempt"], drive.row(root.id)["open_jobs"]) == (2, 2, 3)
    drive.end(drive.claim_one("work"), arrivals=(arrival("I", '"late"'),))
    assert [one.status for one in drive.settle()] == [JobStatus.SUCCEEDED, JobStatus.SUCCEEDED]
    assert result_of(drive, "I") == ["late", "good"]
    assert trees.tree_outcome(drive.db, root.id).status == "succeeded"
    assert [
        entry.data.get("reason") for entry in job_details.job(drive.db, "O").journal if entry.kind == "job.requeued"
    ] == ["a member is tried again"]


def test_a_cancelled_join_that_opens_again_waits_for_all_that_is_open(drive: Driver) -> None:
    """Not only for the member that is tried again."""
    drive.fan(*members(drive, 3), drive.join())
    drive.end(drive.claim_one("work"), Failed("no"))
    drive.claim_one("work")
    with transaction(drive.db):
        cancel(drive.db, "J", "no", now=drive.now)
        retry(drive.db, "J-0", now=drive.now)
    assert state(drive) == ("queued", 3, None)


def test_a_join_can_be_tried_again_by_itself(drive: Driver) -> None:
    """It waits for what is open, or is decided anew at once."""
    drive.fan(*members(drive, 1), drive.join())
    with transaction(drive.db):
        cancel(drive.db, "J", "no", now=drive.now)
        assert retry(drive.db, "J", now=drive.now).attempt == 2
    assert state(drive) == ("queued", 1, None)
    drive.end(drive.claim_one("work"), Failed("no"))
    drive.settle()
    with transaction(drive.db):
        retry(drive.db, "J", now=drive.now)
    assert state(drive) == READY
    assert drive.settle()[0].status is JobStatus.FAILED


def test_a_retry_inside_a_join_that_succeeded_does_not_touch_it(drive: Driver) -> None:
    """The tolerated failure is tried again on its own; the run has gone on long ago."""
    root = drive.fan(*members(drive, 1, tolerated=True), drive.join())
    drive.end(drive.claim_one("work"), Failed("no"), arrivals=(arrival(payload='"told"'),))
    drive.settle()
    before = drive.row("J")
    with transaction(drive.db):
        retry(drive.db, "J-0", now=drive.now)
    assert drive.row("J") == before
    drive.end(drive.claim_one("work"))
    assert (drive.row("J"), drive.row(root.id)["open_jobs"]) == (before, 0)
    assert drive.db.execute("SELECT payload FROM arrivals").fetchall() == [('"told"',)]


def test_a_member_brings_its_arrivals_once(drive: Driver) -> None:
    """What a tolerated failure brought is taken back when it is tried again while the join still waits."""
    drive.fan(*members(drive, 2, tolerated=True), drive.join())
    first, second = drive.claim(9, work=9).jobs
    drive.end(first, Failed("no"), arrivals=(arrival(payload='"failed"'),))
    drive.end(second, arrivals=(arrival(payload='"other"', branch=1),))
    with transaction(drive.db):
        retry(drive.db, first.id, now=drive.now)
    drive.end(drive.claim_one("work"), arrivals=(arrival(payload='"better"'),))
    drive.settle()
    assert result_of(drive, "J") == ["better", "other"]


def test_a_join_tells_whom_it_waits_for(drive: Driver) -> None:
    """Inspecting it shows how many, and the rows of the tree show where they stand."""
    drive.fan(*members(drive, 2, tolerated=True, pipeline="p"), drive.join(step_id="fan__join"))
    report = job_details.job(drive.db, "J")
    assert (report.waits_for, report.job.is_join, report.job.step_id) == (2, True, "fan__join")
    shown = [(node.job.pipeline, node.job.step_id, node.job.tolerated) for node in trees.tree(drive.db, "J")]
    assert shown[1:] == [("p", "s0", True), ("p", "s1", True), (None, "fan__join", False)]


def test_a_job_carries_its_baggage(drive: Driver) -> None:
    """Claimed, looked up, recovered or joined, a job is read together with its context; lists do without."""
    context = NewContext(id="c", accumulated_json='{"x":1}')
    seen: list[str | None] = []

    def follow(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        seen.append(job.context)
        return FollowUps()

    def look(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        seen.append(joined.job.context)
        return Failed("no"), FollowUps()

    drive.enqueue(plugin="root")
    children = (*members(drive, 1, event_context_id="c", max_attempts=1), drive.join(event_context_id="c"))
    drive.end(drive.claim_one("root"), contexts=(context,), children=children)
    claimed = drive.claim_one("work")
    found = get_job(drive.db, claimed.id)
    assert found is not None
    assert (claimed.context, found.context) == ('{"x":1}', '{"x":1}')
    with transaction(drive.db):
        recover_orphans(drive.db, run_id="run-2", now=drive.now, rule=follow)
    drive.settle(look)
    assert seen == ['{"x":1}', '{"x":1}']
    assert all("context" not in job for job in job_list.jobs(drive.db).items)
    assert drive.claim(0).jobs == ()


def test_the_schema_refuses_joins_that_cannot_be(drive: Driver) -> None:
    """Nothing else waits for members; a join runs nothing and has its own plugin."""
    root = drive.fan(*members(drive, 1), drive.join())
    for job_id, change in (
        ("J", "waits_for = -1"),
        ("J", "waits_for = 0"),
        ("J", "lane = 'core.join'"),
        ("J", "plugin = 'work'"),
        ("J", "status = 'running', claimed_by = 'me', waits_for = 0"),
        ("J-0", "waits_for = 1, lane = NULL"),
        (root.id, "tolerated = 2"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            drive.db.execute(f"UPDATE job_queue SET {change} WHERE id = ?", (job_id,))


def test_a_job_outside_of_joins_pays_nothing_for_them(drive: Driver) -> None:
    """Enqueue, claim and every ending run the statements they always ran."""
    asked: list[str] = []
    drive.db.set_trace_callback(asked.append)
    for outcome in (None, Failed("no"), Retried("no", timedelta(0))):
        drive.enqueue()
        drive.end(drive.claim_one(), outcome)
    drive.db.set_trace_callback(None)
    assert [statement for statement in asked if "waits_for +" in statement or "waits_for -" in statement] == []
    assert [statement for statement in asked if "arrivals" in statement or "by_join" in statement] == []
