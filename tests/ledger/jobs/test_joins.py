"""Joins: their members, when they are ready, how they are resolved, and retries."""

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
from ductile.ledger.admin.job_actions import cancel, end_queued_jobs, retry
from ductile.ledger.completion.record import Recorded
from ductile.ledger.jobs.enqueue import enqueue_all
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.reports import job_details, job_list, queue_status, trees
from ductile.ledger.storage.connections import transaction
from tests.ledger.conftest import LedgerDriver, fail_on_any_failure, result_of
from tests.ledger.recording import record_and_claim


def state(ledger: LedgerDriver, join: str = "J") -> tuple[str, int, str | None]:
    row = ledger.row(join)
    return row["status"], row["waits_for"], row["lane"]


READY = ("queued", 0, "core.join")


def members(ledger: LedgerDriver, count: int, join: str = "J", **values: Any) -> list[NewJob]:
    return [
        ledger.new(id=f"{join}-{number}", plugin="work", join_id=join, step_id=f"s{number}", **values)
        for number in range(count)
    ]


def arrival(join: str = "J", payload: str = "{}", **place: int) -> BranchResult:
    return BranchResult(join_id=join, payload=payload, **place)


def success(ledger: LedgerDriver, job: Job, **more: Any) -> Completion:
    return Completion(job_id=job.id, attempt=job.attempt, outcome=Succeeded(ledger.evidence(result="{}")), **more)


def test_a_join_counts_its_members_and_is_ready_when_all_have_ended(ledger: LedgerDriver) -> None:
    """It is queued but not ready while a member is open."""
    ledger.fan_out(*members(ledger, 2), ledger.join())
    assert state(ledger) == ("queued", 2, None)
    ledger.end(ledger.claim_one("work"))
    assert state(ledger) == ("queued", 1, None)
    assert ledger.resolve_joins() == []
    ledger.end(ledger.claim_one("work"))
    assert state(ledger) == READY
    (resolved,) = ledger.resolve_joins()
    assert (resolved.job_id, resolved.status, resolved.tree_is_done) == ("J", JobStatus.SUCCEEDED, True)
    assert ledger.row("J")["status"] == "succeeded"


def test_a_join_is_never_claimed(ledger: LedgerDriver) -> None:
    """Not even if its plugin is free. It is not listed as a plugin with ready jobs."""
    ledger.fan_out(ledger.join())
    assert state(ledger) == READY
    assert ledger.claim(5, **{"core.join": 5}).jobs == ()
    queue = queue_status.queue(ledger.db, claimable=())
    assert (queue.queued, queue.waiting_joins, queue.plugins, queue.unclaimable) == (1, 1, [], [])


def test_the_follow_up_of_a_join_is_claimed_with_the_completion_of_its_last_member(ledger: LedgerDriver) -> None:
    """Completion, join and claim are one transaction. The resolved join comes after the completions."""
    after = ledger.new(plugin="after", child_key="after")
    ledger.fan_out(*members(ledger, 1), ledger.join())
    last = ledger.claim_one("work")
    rule = fail_on_any_failure(lambda joined: FollowUps(children=(after,)))
    recorded, claimed = ledger.record_and_claim(success(ledger, last), rule=rule, after=9)
    assert [job.job_id for job in recorded] == ["J-0", "J"]
    (next_job,) = claimed.jobs
    assert (next_job.plugin, next_job.parent_job_id) == ("after", "J")
    assert isinstance(recorded[1], Recorded)
    assert not recorded[1].tree_is_done


def test_arrivals_are_ordered_by_item_branch_and_time(ledger: LedgerDriver) -> None:
    """The order in which members end does not matter."""
    ledger.fan_out(*members(ledger, 3), ledger.join())
    first, second, third = ledger.claim(9, work=9).jobs
    ledger.end(
        third, arrivals=(arrival(payload='"b2"', item=1, branch=1), arrival(payload='"b2 again"', item=1, branch=1))
    )
    ledger.end(second, arrivals=(arrival(payload='"b1"', item=1),))
    ledger.end(first, arrivals=(arrival(payload='"a"', item=0, branch=7),))
    ledger.resolve_joins()
    assert result_of(ledger, "J") == ["a", "b1", "b2", "b2 again"]


@pytest.mark.parametrize("case", ["no member", "prefinished members", "a duplicate"])
def test_a_join_without_open_members_is_ready_at_once(ledger: LedgerDriver, case: str) -> None:
    """Prefinished and duplicate members do not count."""
    news: list[NewJob] = []
    if case == "prefinished members":
        news = members(ledger, 2, prefinished=Prefinished(status=JobStatus.SUCCEEDED))
    if case == "a duplicate":
        ledger.enqueue(plugin="work", dedupe_key="k")
        ledger.end(ledger.claim_one("work"))
        news = members(ledger, 1, dedupe_key="k")
    ledger.fan_out(*news, ledger.join())
    assert state(ledger) == READY


def test_the_children_of_a_member_become_members(ledger: LedgerDriver) -> None:
    """They are added before their parent is removed, so the join is never ready in between."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    children = tuple(ledger.new(plugin="work", join_id="J", child_key=str(number)) for number in range(3))
    ledger.end(ledger.claim_one("work"), children=children)
    assert state(ledger) == ("queued", 3, None)
    for job in ledger.claim(9, work=9).jobs:
        assert state(ledger) != READY
        ledger.end(job)
    assert state(ledger) == READY


def test_an_inner_and_its_outer_join_are_resolved_in_one_call(ledger: LedgerDriver) -> None:
    """The arrival from the inner join is stored before the outer one is resolved."""
    inner = (*members(ledger, 2, "I"), ledger.join("I", join_id="O"))
    ledger.fan_out(*inner, ledger.new(id="side", plugin="side", join_id="O"), ledger.join("O"))
    assert (state(ledger, "I")[1], state(ledger, "O")[1]) == (2, 2)
    for job in ledger.claim(9, work=9, side=9).jobs:
        ledger.end(job)

    def arrive(joined: JoinInput) -> FollowUps:
        return FollowUps(arrivals=(arrival("O", '"inner"'),) if joined.job.id == "I" else ())

    assert [job.job_id for job in ledger.resolve_joins(fail_on_any_failure(arrive))] == ["I", "O"]
    assert result_of(ledger, "O") == ["inner"]


def test_the_follow_up_of_an_inner_join_is_a_member_of_the_outer_one(ledger: LedgerDriver) -> None:
    """The outer join waits for it."""
    ledger.fan_out(*members(ledger, 1, "I"), ledger.join("I", join_id="O"), ledger.join("O"))
    ledger.end(ledger.claim_one("work"))
    after = ledger.new(plugin="after", join_id="O", child_key="after")
    assert [
        job.job_id for job in ledger.resolve_joins(fail_on_any_failure(lambda _: FollowUps(children=(after,))))
    ] == ["I"]
    assert state(ledger, "O") == ("queued", 1, None)
    ledger.end(ledger.claim_one("after"))
    assert state(ledger, "O") == READY


def fails(ledger: LedgerDriver) -> None:
    ledger.end(ledger.claim_one("work"), Failed("no"))


def dies(ledger: LedgerDriver) -> None:
    ledger.end(ledger.claim_one("work"), Dead("no"))


def is_skipped(ledger: LedgerDriver) -> None:
    ledger.end(ledger.claim_one("work"), Skipped("no"))


def has_no_attempt_left(ledger: LedgerDriver) -> None:
    ledger.end(ledger.claim_one("work"), Retried("no", timedelta(0)))


def is_cancelled_while_it_waits(ledger: LedgerDriver) -> None:
    with transaction(ledger.db):
        cancel(ledger.db, "J-0", "no", now=ledger.now)


def is_cancelled_while_it_runs(ledger: LedgerDriver) -> None:
    job = ledger.claim_one("work")
    is_cancelled_while_it_waits(ledger)
    ledger.end(job, Interrupted("killed"))


def has_its_plugin_removed(ledger: LedgerDriver) -> None:
    with transaction(ledger.db):
        end_queued_jobs(ledger.db, "work", "plugin work is gone", now=ledger.now)


def has_become_a_duplicate(ledger: LedgerDriver) -> None:
    ledger.db.execute("UPDATE job_queue SET dedupe_key = 'k' WHERE id = 'J-0'")
    ledger.enqueue(plugin="twin", dedupe_key="k")
    ledger.db.execute(
        "INSERT INTO dedupe_receipts VALUES ('work', 'poll', 'k', 'twin', '2026-02-08T09:30:00.000000Z', '2027')"
    )
    assert [job.job_id for job in ledger.claim(9, work=9).skipped] == ["J-0"]


def is_orphaned_by_a_crash(ledger: LedgerDriver) -> None:
    ledger.claim_one("work")
    with transaction(ledger.db):
        recover_orphans(ledger.db, run_id="run-2", now=ledger.now)


def is_quarantined(ledger: LedgerDriver) -> None:
    ledger.claim_one("work")
    ledger.db.execute("UPDATE job_queue SET created_at = 'yesterday' WHERE id = 'J-0'")
    with transaction(ledger.db):
        recover_orphans(ledger.db, run_id="run-2", now=ledger.now)


def cannot_be_recorded(ledger: LedgerDriver) -> None:
    ledger.record_and_claim(success(ledger, ledger.claim_one("work"), children=(ledger.new(max_attempts=0),)))


@pytest.mark.parametrize(
    ("ends", "status", "failed"),
    [
        (fails, "failed", 1),
        (dies, "dead", 1),
        (is_skipped, "skipped", 0),
        (has_no_attempt_left, "dead", 1),
        (is_cancelled_while_it_waits, "dead", 1),
        (is_cancelled_while_it_runs, "dead", 1),
        (has_its_plugin_removed, "dead", 1),
        (has_become_a_duplicate, "skipped", 0),
        (is_orphaned_by_a_crash, "dead", 1),
        (is_quarantined, "dead", 1),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_member_stops_counting_however_it_ends(
    ledger: LedgerDriver, ends: Callable[[LedgerDriver], None], status: str, failed: int
) -> None:
    """The join fails exactly if a member ended failed or dead."""
    ledger.fan_out(*members(ledger, 1, max_attempts=1), ledger.join())
    ends(ledger)
    assert (ledger.row("J-0")["status"], state(ledger)) == (status, READY)
    (resolved,) = ledger.resolve_joins()
    assert resolved.status == ("failed" if failed else "succeeded")


def test_a_quarantined_member_is_not_tolerated(ledger: LedgerDriver) -> None:
    """It has no follow-up that could replace its result."""
    ledger.fan_out(*members(ledger, 1, tolerated=True), ledger.join())
    is_quarantined(ledger)
    assert ledger.resolve_joins()[0].status is JobStatus.FAILED


def test_a_member_that_cannot_be_recorded_fails_its_join_in_the_same_transaction(ledger: LedgerDriver) -> None:
    """The member ends dead."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    cannot_be_recorded(ledger)
    assert ledger.row("J")["last_error"].startswith("1 failed: s0: cannot be recorded: IntegrityError")


@pytest.mark.parametrize("outcome", [Retried("no", timedelta(0)), Retried("no", timedelta(hours=1)), Interrupted("no")])
def test_a_join_waits_for_a_member_that_is_retried(ledger: LedgerDriver, outcome: Outcome) -> None:
    """The end of an attempt is not the end of the job."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    ledger.end(ledger.claim_one("work"), outcome)
    assert state(ledger) == ("queued", 1, None)


def test_a_claim_that_skips_the_last_member_asks_for_another_claim(ledger: LedgerDriver) -> None:
    """The join becomes ready after the joins of this transaction were resolved."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    ledger.db.execute("UPDATE job_queue SET dedupe_key = 'k' WHERE id = 'J-0'")
    ledger.db.execute(
        "INSERT INTO dedupe_receipts VALUES ('work', 'poll', 'k', 'twin', '2026-02-08T09:30:00.000000Z', '2027')"
    )
    recorded, claimed = ledger.record_and_claim(work=9)
    assert (recorded, len(claimed.skipped), claimed.more) == ([], 1, True)
    recorded, claimed = ledger.record_and_claim(work=9)
    assert ([job.job_id for job in recorded], claimed.more) == (["J"], False)


def test_a_join_lists_at_most_five_failures(ledger: LedgerDriver) -> None:
    """Each error is shortened. The count includes all failures."""
    ledger.fan_out(*members(ledger, 7), ledger.join())
    for job in ledger.claim(9, work=9).jobs:
        ledger.end(job, Failed("x" * 1000))
    seen: list[JoinInput] = []

    def collect(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        seen.append(joined)
        return Failed("no"), FollowUps()

    ledger.resolve_joins(collect)
    (joined,) = seen
    assert (joined.failed, len(joined.failures), joined.arrivals) == (7, 5, ())
    assert joined.failures[0] == "s0: " + "x" * 200


def test_a_tolerated_failure_does_not_fail_the_join(ledger: LedgerDriver) -> None:
    """With `on_error: continue`, the arrival replaces the result."""
    ledger.fan_out(*members(ledger, 1, tolerated=True), ledger.join())
    ledger.end(ledger.claim_one("work"), Failed("no"), arrivals=(arrival(payload='"failed, but reported"'),))
    (resolved,) = ledger.resolve_joins()
    assert (resolved.status, result_of(ledger, "J")) == (JobStatus.SUCCEEDED, ["failed, but reported"])


@pytest.mark.parametrize("tolerated", [True, False])
def test_a_member_beyond_the_budget_fails_the_join(ledger: LedgerDriver, tolerated: bool) -> None:
    """It is dead when it is enqueued and is never tolerated."""
    root = ledger.enqueue(plugin="root")
    news = [*members(ledger, 2, parent_job_id=root.job_id, tolerated=tolerated), ledger.join(parent_job_id=root.job_id)]
    with transaction(ledger.db):
        first, second, join = enqueue_all(ledger.db, news, now=ledger.now, budget=Budget(tree_jobs=2))
    assert (first.status, second.status, join.status) == (JobStatus.QUEUED, JobStatus.DEAD, JobStatus.DEAD)
    assert ledger.row("J-1")["tolerated"] == 0
    ledger.end(ledger.claim_one("work"))
    assert ledger.resolve_joins() == [], "a join beyond the budget is dead when it is enqueued"
    ledger.end(ledger.claim_one("root"))
    assert trees.tree_outcome(ledger.db, root.job_id).status == "failed"


def test_a_member_beyond_the_budget_is_among_the_failures(ledger: LedgerDriver) -> None:
    """Also if the join was enqueued before it."""
    root = ledger.enqueue(plugin="root")
    news = [ledger.join(parent_job_id=root.job_id), *members(ledger, 1, parent_job_id=root.job_id, hops=99)]
    with transaction(ledger.db):
        enqueue_all(ledger.db, news, now=ledger.now)
    (resolved,) = ledger.resolve_joins()
    assert (resolved.status, ledger.row("J")["last_error"]) == (
        JobStatus.FAILED,
        "1 failed: s0: chain of more than 20 hops",
    )


def raising(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
    if joined.job.id == "bad":
        raise KeyError("no such place in the plan")
    return fail_on_any_failure()(joined, now)


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
def test_a_join_that_cannot_be_resolved_is_dead_and_does_not_stop_the_others(
    ledger: LedgerDriver, rule: Any, error: str
) -> None:
    """It has the reason and no follow-up jobs."""
    ledger.fan_out(ledger.join("bad"), ledger.join("good"))
    ended = ledger.resolve_joins(rule)
    assert [(job.job_id, job.status is JobStatus.DEAD) for job in ended] == [("bad", True), ("good", False)]
    assert ledger.row("bad")["last_error"] == error
    assert ledger.db.execute("SELECT id FROM event_context WHERE id = 'of bad'").fetchall() == []
    assert ended[-1].tree_is_done is (rule is not impossible)


def test_a_join_with_an_unreadable_row_is_quarantined(ledger: LedgerDriver) -> None:
    """The other joins are resolved. The enclosing join fails."""
    ledger.fan_out(ledger.join("I", join_id="O"), ledger.join("O"))
    ledger.db.execute("UPDATE job_queue SET created_at = 'yesterday' WHERE id = 'I'")
    ledger.resolve_joins()
    assert (ledger.row("I")["status"], ledger.row("O")["status"]) == ("dead", "failed")


def test_a_join_whose_row_cannot_be_changed_does_not_stop_the_others(ledger: LedgerDriver) -> None:
    """It stays queued, and the reason is journalled."""
    ledger.fan_out(ledger.join("stuck"), ledger.join("good"))
    ledger.db.execute(
        "CREATE TRIGGER stuck BEFORE UPDATE ON job_queue WHEN OLD.id = 'stuck' BEGIN SELECT RAISE(ABORT, 'stuck'); END"
    )
    assert [job.job_id for job in ledger.resolve_joins()] == ["good"]
    (entry,) = (entry for entry in job_details.job(ledger.db, "stuck").journal if entry.kind == "job.quarantined")
    assert entry.data["left"] == "as it is: IntegrityError: stuck"


def test_a_disk_error_ends_no_join(ledger: LedgerDriver) -> None:
    """The error is raised to the caller."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        raise error

    ledger.fan_out(ledger.join())
    with pytest.raises(Exception, match="no space left"):
        ledger.resolve_joins(fail)
    assert state(ledger) == READY


def test_one_call_resolves_a_limited_number_of_joins(ledger: LedgerDriver) -> None:
    """The next call resolves the rest."""
    ledger.fan_out(*(ledger.join(f"J{number}") for number in range(5)))
    assert [len(ledger.resolve_joins(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_more_joins_than_the_limit_ask_for_another_claim(ledger: LedgerDriver) -> None:
    """A wide fan-out never makes one long transaction."""
    ledger.fan_out(*(ledger.join(f"J{number}") for number in range(501)))
    recorded, claimed = ledger.record_and_claim()
    assert (len(recorded), claimed.more) == (500, True)
    recorded, claimed = ledger.record_and_claim()
    assert (len(recorded), claimed.more) == (1, False)


def test_a_rollback_restores_the_member_count(ledger: LedgerDriver) -> None:
    """A crash before the commit leaves the count unchanged."""
    ledger.fan_out(*members(ledger, 2), ledger.join())
    job = ledger.claim_one("work")
    before = list(ledger.db.iterdump())
    child = ledger.new(plugin="work", join_id="J", child_key="c")
    ledger.db.execute("BEGIN IMMEDIATE")
    ending = success(ledger, job, children=(child,), arrivals=(arrival(),))
    record_and_claim(ledger.db, [ending], now=ledger.now, run_id="run-1", free={"work": 9}, limit=9)
    ledger.db.execute("ROLLBACK")
    assert list(ledger.db.iterdump()) == before
    ledger.end(job)
    assert state(ledger) == ("queued", 1, None)


def test_an_arrival_at_a_job_that_is_not_a_join_is_an_error(ledger: LedgerDriver) -> None:
    """The result is not lost silently: its job ends dead with the reason."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    ledger.record_and_claim(success(ledger, ledger.claim_one("work"), arrivals=(arrival("J-0"),)))
    assert ledger.row("J-0")["last_error"] == "cannot be recorded: ValueError: arrival at J-0: there is no such join"


def test_the_members_of_a_cancelled_join_still_run(ledger: LedgerDriver) -> None:
    """The join has no follow-up jobs. Members that end or are added later cause no error."""
    ledger.fan_out(*members(ledger, 2), ledger.join())
    with transaction(ledger.db):
        ended = cancel(ledger.db, "J", "no", now=ledger.now, rule=lambda *_: FollowUps(children=(ledger.new(),)))
    assert isinstance(ended, Recorded)
    assert (ended.status, ended.children, state(ledger)) == (JobStatus.DEAD, (), ("dead", 0, None))
    first, second = ledger.claim(9, work=9).jobs
    ledger.end(first, arrivals=(arrival(),), children=(ledger.new(plugin="work", join_id="J", child_key="c"),))
    ledger.end(second)
    assert ledger.resolve_joins() == []
    assert ledger.end(ledger.claim_one("work")).tree_is_done  # type: ignore[union-attr]


def test_a_retried_member_is_counted_again(ledger: LedgerDriver) -> None:
    """While the join is still queued, the retry adds an open member."""
    ledger.fan_out(*members(ledger, 2), ledger.join())
    ledger.end(ledger.claim_one("work"), Failed("no"))
    assert state(ledger)[1] == 1
    with transaction(ledger.db):
        retry(ledger.db, "J-0", now=ledger.now)
    assert state(ledger) == ("queued", 2, None)
    for job in ledger.claim(9, work=9).jobs:
        ledger.end(job)
    assert ledger.resolve_joins()[0].status is JobStatus.SUCCEEDED


def test_a_retry_reopens_the_enclosing_joins(ledger: LedgerDriver) -> None:
    """Failed enclosing joins are queued for another attempt and keep their arrivals. The tree is open again."""
    inner = (*members(ledger, 2, "I"), ledger.join("I", join_id="O"))
    root = ledger.fan_out(*inner, ledger.join("O"))
    good, bad = ledger.claim(9, work=9).jobs
    ledger.end(good, arrivals=(arrival("I", '"good"', branch=1),))
    ledger.end(bad, Failed("no"))
    assert [job.status for job in ledger.resolve_joins()] == [JobStatus.FAILED, JobStatus.FAILED]
    assert trees.tree_outcome(ledger.db, root.id).status == "failed"
    with transaction(ledger.db):
        retry(ledger.db, bad.id, now=ledger.now)
    assert (state(ledger, "I"), state(ledger, "O")) == (("queued", 1, None), ("queued", 1, None))
    assert (ledger.row("I")["attempt"], ledger.row("O")["attempt"], ledger.row(root.id)["open_jobs"]) == (2, 2, 3)
    ledger.end(ledger.claim_one("work"), arrivals=(arrival("I", '"late"'),))
    assert [job.status for job in ledger.resolve_joins()] == [JobStatus.SUCCEEDED, JobStatus.SUCCEEDED]
    assert result_of(ledger, "I") == ["late", "good"]
    assert trees.tree_outcome(ledger.db, root.id).status == "succeeded"
    assert [
        entry.data.get("reason") for entry in job_details.job(ledger.db, "O").journal if entry.kind == "job.requeued"
    ] == ["a member was retried"]


def test_a_reopened_join_waits_for_all_open_members(ledger: LedgerDriver) -> None:
    """Not only for the retried one."""
    ledger.fan_out(*members(ledger, 3), ledger.join())
    ledger.end(ledger.claim_one("work"), Failed("no"))
    ledger.claim_one("work")
    with transaction(ledger.db):
        cancel(ledger.db, "J", "no", now=ledger.now)
        retry(ledger.db, "J-0", now=ledger.now)
    assert state(ledger) == ("queued", 3, None)


def test_a_join_can_be_retried(ledger: LedgerDriver) -> None:
    """It waits for its open members, or is resolved again at once."""
    ledger.fan_out(*members(ledger, 1), ledger.join())
    with transaction(ledger.db):
        cancel(ledger.db, "J", "no", now=ledger.now)
        assert retry(ledger.db, "J", now=ledger.now).attempt == 2
    assert state(ledger) == ("queued", 1, None)
    ledger.end(ledger.claim_one("work"), Failed("no"))
    ledger.resolve_joins()
    with transaction(ledger.db):
        retry(ledger.db, "J", now=ledger.now)
    assert state(ledger) == READY
    assert ledger.resolve_joins()[0].status is JobStatus.FAILED


def test_a_retry_does_not_change_a_join_that_succeeded(ledger: LedgerDriver) -> None:
    """The retried job runs alone, because its run has continued."""
    root = ledger.fan_out(*members(ledger, 1, tolerated=True), ledger.join())
    ledger.end(ledger.claim_one("work"), Failed("no"), arrivals=(arrival(payload='"reported"'),))
    ledger.resolve_joins()
    before = ledger.row("J")
    with transaction(ledger.db):
        retry(ledger.db, "J-0", now=ledger.now)
    assert ledger.row("J") == before
    ledger.end(ledger.claim_one("work"))
    assert (ledger.row("J"), ledger.row(root.id)["open_jobs"]) == (before, 0)
    assert ledger.db.execute("SELECT payload FROM arrivals").fetchall() == [('"reported"',)]


def test_the_arrivals_of_a_retried_member_are_replaced(ledger: LedgerDriver) -> None:
    """While the join is still queued."""
    ledger.fan_out(*members(ledger, 2, tolerated=True), ledger.join())
    first, second = ledger.claim(9, work=9).jobs
    ledger.end(first, Failed("no"), arrivals=(arrival(payload='"failed"'),))
    ledger.end(second, arrivals=(arrival(payload='"other"', branch=1),))
    with transaction(ledger.db):
        retry(ledger.db, first.id, now=ledger.now)
    ledger.end(ledger.claim_one("work"), arrivals=(arrival(payload='"better"'),))
    ledger.resolve_joins()
    assert result_of(ledger, "J") == ["better", "other"]


def test_the_details_of_a_join_show_its_open_members(ledger: LedgerDriver) -> None:
    """The count is in the details, the members in the tree."""
    ledger.fan_out(*members(ledger, 2, tolerated=True, pipeline="p"), ledger.join(step_id="fan__join"))
    report = job_details.job(ledger.db, "J")
    assert (report.waits_for, report.job.is_join, report.job.step_id) == (2, True, "fan__join")
    shown = [(node.job.pipeline, node.job.step_id, node.job.tolerated) for node in trees.tree(ledger.db, "J")]
    assert shown[1:] == [("p", "s0", True), ("p", "s1", True), (None, "fan__join", False)]


def test_a_job_is_read_with_its_baggage(ledger: LedgerDriver) -> None:
    """When claimed, looked up, recovered or joined. Lists leave it out."""
    context = NewContext(id="c", accumulated_json='{"x":1}')
    seen: list[str | None] = []

    def follow(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        seen.append(job.context)
        return FollowUps()

    def collect(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        seen.append(joined.job.context)
        return Failed("no"), FollowUps()

    ledger.enqueue(plugin="root")
    children = (*members(ledger, 1, event_context_id="c", max_attempts=1), ledger.join(event_context_id="c"))
    ledger.end(ledger.claim_one("root"), contexts=(context,), children=children)
    claimed = ledger.claim_one("work")
    found = get_job(ledger.db, claimed.id)
    assert found is not None
    assert (claimed.context, found.context) == ('{"x":1}', '{"x":1}')
    with transaction(ledger.db):
        recover_orphans(ledger.db, run_id="run-2", now=ledger.now, rule=follow)
    ledger.resolve_joins(collect)
    assert seen == ['{"x":1}', '{"x":1}']
    assert all("context" not in job for job in job_list.jobs(ledger.db).items)
    assert ledger.claim(0).jobs == ()


def test_the_schema_rejects_impossible_joins(ledger: LedgerDriver) -> None:
    """Only a join has members, and it never runs."""
    root = ledger.fan_out(*members(ledger, 1), ledger.join())
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
            ledger.db.execute(f"UPDATE job_queue SET {change} WHERE id = ?", (job_id,))


def test_a_job_without_a_join_runs_no_join_statements(ledger: LedgerDriver) -> None:
    """Neither when it is enqueued or claimed, nor when it ends."""
    asked: list[str] = []
    ledger.db.set_trace_callback(asked.append)
    for outcome in (None, Failed("no"), Retried("no", timedelta(0))):
        ledger.enqueue()
        ledger.end(ledger.claim_one(), outcome)
    ledger.db.set_trace_callback(None)
    assert [statement for statement in asked if "waits_for +" in statement or "waits_for -" in statement] == []
    assert [statement for statement in asked if "arrivals" in statement or "by_join" in statement] == []
