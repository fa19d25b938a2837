"""The circuit breaker: how finished jobs change it, and which jobs may start."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.config.sections.settings import CircuitBreaker
from ductile.core.model import Breaker, BreakerChange, BreakerState, Held, Job, JobStatus, NewJob
from ductile.engine import breaker as breaker_module
from ductile.engine.breaker import Allowed, Probe, applies_to_job, check_start, completion_rule, reset, start_probe
from tests.engine.builders import NOW, a_job

CONFIG = CircuitBreaker(threshold=3, reset_after=timedelta(minutes=30))
CLOSED = Breaker(plugin="echo", command="poll")
OPEN = evolve(CLOSED, state=BreakerState.OPEN, failure_count=3, opened_at=NOW, last_failure_at=NOW, last_job_id="c")
HALF_OPEN = evolve(OPEN, state=BreakerState.HALF_OPEN, probe_job_id="probe")
LATER = NOW + timedelta(minutes=31)
SUCCEEDED, FAILED, DEAD, SKIPPED = JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.DEAD, JobStatus.SKIPPED


def scheduled(job_id: str = "job", **values: Any) -> Job:
    return a_job(id=job_id, schedule_id="default", **values)


def ended(
    breaker: Breaker,
    status: JobStatus,
    job: Job | None = None,
    *,
    config: CircuitBreaker = CONFIG,
    now: datetime = LATER,
) -> BreakerChange | None:
    return completion_rule(config)(breaker, job or scheduled(), status, now)


def after(breaker: Breaker, *statuses: JobStatus) -> Breaker:
    """Return the breaker after jobs with these statuses, one after the other."""
    for number, status in enumerate(statuses):
        change = ended(breaker, status, scheduled(f"job {number}"))
        breaker = change.breaker if change else breaker
    return breaker


# Counting


@pytest.mark.parametrize("failure", [FAILED, DEAD])
def test_consecutive_failures_open_the_breaker(failure: JobStatus) -> None:
    """At the threshold, with the time and the reason. Failed and dead jobs count alike."""
    two = after(CLOSED, failure, failure)
    assert (two.state, two.failure_count, two.last_job_id) == (BreakerState.CLOSED, 2, "job 1")
    change = ended(two, failure)
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count) == (BreakerState.OPEN, 3)
    assert (change.breaker.opened_at, change.reason) == (LATER, "failure_threshold")


def test_every_failure_counts_once() -> None:
    """Three jobs that end at the same time open the breaker."""
    assert after(CLOSED, FAILED, FAILED, FAILED).state is BreakerState.OPEN
    assert after(CLOSED, *[FAILED] * 7).failure_count == 7


def test_a_success_resets_the_count() -> None:
    """Two failures, a success and two failures leave it closed."""
    assert after(CLOSED, FAILED, FAILED, SUCCEEDED) == evolve(CLOSED, last_failure_at=LATER, last_job_id="job 2")
    assert after(CLOSED, FAILED, FAILED, SUCCEEDED, FAILED, FAILED).state is BreakerState.CLOSED


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_attempts_do_not_count(status: JobStatus) -> None:
    """A job that is retried has not ended."""
    assert ended(CLOSED, status) is None


def test_cancelled_and_skipped_jobs_do_not_count() -> None:
    """They prove nothing about the command."""
    cancelled = scheduled(cancel_requested_at=NOW)
    two = after(CLOSED, FAILED, FAILED)
    for status, job in ((SKIPPED, scheduled()), (DEAD, cancelled), (FAILED, cancelled)):
        assert ended(two, status, job) is None


def test_a_success_without_earlier_failures_changes_nothing() -> None:
    """The usual case needs no write."""
    assert ended(CLOSED, SUCCEEDED) is None


def test_only_scheduled_jobs_count_unless_the_breaker_applies_to_all() -> None:
    """By default jobs of webhooks and pipelines are neither counted nor blocked."""
    everything = evolve(CONFIG, applies_to="all")
    assert ended(CLOSED, FAILED, a_job()) is None
    assert ended(CLOSED, FAILED, a_job(), config=everything) is not None
    new_job = NewJob(plugin="echo", command="poll", submitted_by="api")
    assert [applies_to_job(config, new_job) for config in (CONFIG, everything)] == [False, True]
    assert applies_to_job(CONFIG, evolve(new_job, schedule_id="default"))


# Starting


STARTS: list[tuple[Breaker, datetime, JobStatus | None, type]] = [
    (CLOSED, NOW, None, Allowed),
    (evolve(CLOSED, failure_count=2), NOW, None, Allowed),
    (OPEN, NOW, None, Held),
    (OPEN, NOW + timedelta(minutes=30) - timedelta.resolution, None, Held),
    (OPEN, NOW + timedelta(minutes=30), None, Probe),
    (HALF_OPEN, LATER, JobStatus.QUEUED, Held),
    (HALF_OPEN, LATER, JobStatus.RUNNING, Held),
    (HALF_OPEN, LATER, SUCCEEDED, Probe),
    (HALF_OPEN, LATER, FAILED, Probe),
    (HALF_OPEN, LATER, DEAD, Probe),
    (HALF_OPEN, LATER, SKIPPED, Probe),
    (HALF_OPEN, LATER, None, Probe),
    (evolve(HALF_OPEN, probe_job_id=None), LATER, None, Probe),
    (evolve(OPEN, opened_at=None), NOW, None, Probe),
    (OPEN, NOW - timedelta(seconds=59), None, Held),
    (OPEN, NOW - timedelta(days=3652), None, Probe),
]


def test_a_job_may_start_if_the_breaker_is_closed_or_needs_a_probe() -> None:
    """Closed: every job. Open: none until the cooldown is over; then one probe, and no other until that has ended.

    A probe that ended without a result, or no longer exists, was lost: the next job is the probe. A clock that was set
    back does not keep a breaker open for years.
    """
    failures = []
    for breaker, now, probe_status, expected in STARTS:
        result = check_start(breaker, CONFIG, now, probe_status=probe_status)
        if not isinstance(result, expected):
            failures.append(f"{breaker} at {now}, probe {probe_status}: {result}, not {expected.__name__}")
    assert failures == []


def test_a_blocked_start_has_a_time_and_a_reason() -> None:
    """The end of the cooldown, or None while the probe runs."""
    assert check_start(OPEN, CONFIG, NOW) == Held(NOW + timedelta(minutes=30), "open after 3 failures in a row")
    assert check_start(HALF_OPEN, CONFIG, LATER, probe_status=JobStatus.RUNNING) == Held(
        None, "its probe probe has not ended"
    )


# Half-open


def test_a_probe_makes_the_breaker_half_open() -> None:
    """The breaker stores the job of the probe."""
    change = start_probe(OPEN, "probe")
    assert (change.breaker, change.reason) == (HALF_OPEN, "cooldown_elapsed")


def test_a_probe_that_succeeds_closes_the_breaker() -> None:
    """The count is reset."""
    change = ended(HALF_OPEN, SUCCEEDED, scheduled("probe"))
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (BreakerState.CLOSED, 0, "success")
    assert (change.breaker.opened_at, change.breaker.probe_job_id) == (None, None)


def test_a_probe_that_fails_opens_the_breaker_again() -> None:
    """For another full cooldown."""
    change = ended(HALF_OPEN, FAILED, scheduled("probe"))
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (
        BreakerState.OPEN,
        4,
        "failure_threshold",
    )
    assert (change.breaker.opened_at, change.breaker.probe_job_id) == (LATER, None)


@pytest.mark.parametrize(
    ("status", "job"), [(SKIPPED, scheduled("probe")), (DEAD, scheduled("probe", cancel_requested_at=NOW))]
)
def test_the_job_after_a_lost_probe_becomes_the_probe(status: JobStatus, job: Job) -> None:
    """A cancelled or skipped probe leaves the breaker half-open."""
    change = ended(HALF_OPEN, status, job)
    assert change is not None
    assert change.breaker.state is BreakerState.HALF_OPEN
    assert isinstance(check_start(change.breaker, CONFIG, LATER), Probe)


@pytest.mark.parametrize("breaker", [OPEN, HALF_OPEN])
def test_a_late_failure_neither_opens_the_breaker_nor_extends_the_cooldown(breaker: Breaker) -> None:
    """It is counted, but only the probe decides."""
    change = ended(breaker, FAILED, scheduled("late"))
    assert change is not None
    assert change.breaker == evolve(breaker, failure_count=4, last_failure_at=LATER, last_job_id="late")


@pytest.mark.parametrize("breaker", [OPEN, HALF_OPEN])
def test_any_success_closes_the_breaker(breaker: Breaker) -> None:
    """A job that an operator retried proves as much as a probe."""
    change = ended(breaker, SUCCEEDED, scheduled("late"))
    assert change is not None
    assert (change.breaker.state, change.reason) == (BreakerState.CLOSED, "success")


def test_an_operator_can_reset_the_breaker_while_the_probe_runs() -> None:
    """The probe becomes an ordinary job, and its failure counts as the first."""
    change = reset(HALF_OPEN)
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (
        BreakerState.CLOSED,
        0,
        "manual_reset",
    )
    late = ended(change.breaker, FAILED, scheduled("probe"))
    assert late is not None
    assert (late.breaker.state, late.breaker.failure_count) == (BreakerState.CLOSED, 1)


# Every sequence


@define
class BreakerModel:
    """A model of the scheduler and the ledger: starts jobs that the breaker allows, and ends them."""

    breaker: Breaker = CLOSED
    now: datetime = NOW
    jobs: dict[str, JobStatus] = field(factory=dict)
    consecutive_failures: int = 0

    def start(self) -> None:
        probe = self.jobs.get(self.breaker.probe_job_id or "")
        result = check_start(self.breaker, CONFIG, self.now, probe_status=probe)
        if isinstance(result, Held):
            return
        job_id = f"job {len(self.jobs)}"
        self.jobs[job_id] = JobStatus.QUEUED
        if isinstance(result, Probe):
            assert probe is None or probe.is_final, "two probes at once"
            self.breaker = start_probe(self.breaker, job_id).breaker

    def reset(self) -> None:
        self.breaker, self.consecutive_failures = reset(self.breaker).breaker, 0

    def end(self, how: str) -> None:
        job_id = next((name for name, status in self.jobs.items() if not status.is_final), None)
        if job_id is None:
            return
        if how == "pruned":
            del self.jobs[job_id]
            self.jobs[f"was {job_id}"] = DEAD
            return
        self.jobs[job_id] = status = JobStatus(how.removeprefix("cancelled "))
        was_cancelled = how.startswith("cancelled")
        if status in (SUCCEEDED, FAILED) or (status is DEAD and not was_cancelled):
            self.consecutive_failures = 0 if status is SUCCEEDED else self.consecutive_failures + 1
        job = scheduled(job_id, cancel_requested_at=NOW if was_cancelled else None)
        change = completion_rule(CONFIG)(self.breaker, job, status, self.now)
        if change is None:
            return
        if change.breaker.state is not self.breaker.state:
            closed = change.breaker.state is BreakerState.CLOSED
            assert change.reason == (breaker_module.SUCCESS if closed else breaker_module.FAILURE_THRESHOLD)
            assert not closed or status is SUCCEEDED, "closed without a success"
        self.breaker = change.breaker


ACTIONS = st.sampled_from(
    ["start", "start", "wait", "succeeded", "failed", "failed", "dead", "skipped", "cancelled dead", "pruned", "reset"]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(ACTIONS, max_size=60))
def test_the_breaker_is_never_stuck_and_never_closes_without_a_success(actions: list[str]) -> None:
    """In every sequence: at most one probe, every failure counted, and a way to close from every state."""
    model = BreakerModel()
    for action in actions:
        if action == "start":
            model.start()
        elif action == "wait":
            model.now += timedelta(minutes=20)
        elif action == "reset":
            model.reset()
        else:
            model.end(action)
        assert model.breaker.failure_count == model.consecutive_failures
        assert model.breaker.state is not BreakerState.CLOSED or model.breaker.failure_count < CONFIG.threshold
    for _ in model.jobs.copy():
        model.end("succeeded")
    model.now += timedelta(minutes=30)
    model.start()
    model.end("succeeded")
    assert model.breaker.state is BreakerState.CLOSED
