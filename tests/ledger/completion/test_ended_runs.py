"""The signal of an ended run: which failures it lists, and that a run without an open job has one."""

from ductile.core.model import (
    Budget,
    EndedRun,
    Failed,
    FollowUps,
    JobStatus,
    NewJob,
    Note,
    OutcomeCode,
    Prefinished,
    RunRule,
    cancelled,
)
from ductile.ledger.completion.ended_runs import MAX_FAILURES, signal_ended_runs
from ductile.ledger.completion.record import end_waiting
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.storage.connections import transaction
from tests.ledger.conftest import LedgerDriver


def note_run(seen: list[EndedRun], *, on_success: bool = False) -> RunRule:
    def decide(run: EndedRun) -> FollowUps:
        seen.append(run)
        return FollowUps(notes=(Note(kind="run.failed", data={"failed": run.failed}),))

    return RunRule(decide=decide, on_success=on_success)


def dead_job(ledger: LedgerDriver, **values: object) -> NewJob:
    prefinished = Prefinished(status=JobStatus.DEAD, error="off", code=OutcomeCode.PLUGIN_UNAVAILABLE)
    return ledger.new(prefinished=prefinished, **values)


def test_a_run_that_is_dead_on_arrival_is_signalled(ledger: LedgerDriver) -> None:
    """A run with an open job is not."""
    seen: list[EndedRun] = []
    for children in ((dead_job(ledger),), (dead_job(ledger), ledger.new()), (ledger.new(),)):
        with transaction(ledger.db) as db:
            start_run(db, FollowUps(children=children), now=ledger.now, run_rule=note_run(seen))
    (run,) = seen
    (failure,) = run.failures
    assert (failure.error, failure.code, failure.status) == ("off", "plugin_unavailable", JobStatus.DEAD)


def test_a_signal_lists_the_first_failures_and_counts_all(ledger: LedgerDriver) -> None:
    """Cancelled jobs are counted separately and come last. Tolerated ones are no failures."""
    seen: list[EndedRun] = []
    root = ledger.enqueue().job_id
    failing = [ledger.enqueue(parent_job_id=root, child_key=str(n)).job_id for n in range(MAX_FAILURES + 2)]
    tolerated = ledger.enqueue(parent_job_id=root, child_key="tolerated", tolerated=True).job_id
    with transaction(ledger.db) as db:
        for number, job_id in enumerate((root, *failing, tolerated)):
            outcome = cancelled("test") if number == 1 else Failed(f"error {number}")
            end_waiting(db, job_id, 1, outcome, FollowUps(), now=ledger.now, default_ttl=DEFAULT_TTL, budget=Budget())
        signal_ended_runs(db, [root, root], note_run(seen), now=ledger.now, default_ttl=DEFAULT_TTL, budget=Budget())
    (run,) = seen
    assert (run.jobs, run.failed, run.cancelled) == (MAX_FAILURES + 4, MAX_FAILURES + 3, 1)
    assert [failure.error for failure in run.failures][:2] == ["error 0", "error 2"]
    assert len(run.failures) == MAX_FAILURES


def test_a_successful_run_is_signalled_only_on_request(ledger: LedgerDriver) -> None:
    """Without a hook for `run.completed`, a success costs one lookup."""
    seen: list[EndedRun] = []
    prefinished = Prefinished(status=JobStatus.SUCCEEDED)
    for on_success in (False, True):
        with transaction(ledger.db) as db:
            run = FollowUps(children=(ledger.new(prefinished=prefinished),))
            start_run(db, run, now=ledger.now, run_rule=note_run(seen, on_success=on_success))
    (ended,) = seen
    assert (ended.failed, ended.failures) == (0, ())
