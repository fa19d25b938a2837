"""The circuit breaker: what finished jobs make of it, and who may start."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.config.sections.settings import CircuitBreaker
from ductile.core.model import Breaker, BreakerChange, BreakerState, Held, Job, JobStatus, NewJob
from ductile.engine import breaker as room
from ductile.engine.breaker import Allowed, Probe, concerns, may_start, probing, reset, rule
from tests.engine.builders import NOW, a_job

CONFIG = CircuitBreaker(threshold=3, reset_after=timedelta(minutes=30))
CLOSED = Breaker(plugin="echo", command="poll")
OPEN = evolve(CLOSED, state=BreakerState.OPEN, failure_count=3, opened_at=NOW, last_failure_at=NOW, last_job_id="c")
HALF_OPEN = evolve(OPEN, state=BreakerState.HALF_OPEN, probe_job_id="probe")
LATER = NOW + timedelta(minutes=31)
GOOD, BAD, GONE, NONE = JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.DEAD, JobStatus.SKIPPED


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
    return rule(config)(breaker, job or scheduled(), status, now)


def after(breaker: Breaker, *statuses: JobStatus) -> Breaker:
    """The breaker after jobs that ended like this, one after the other."""
    for number, status in enumerate(statuses):
        change = ended(breaker, status, scheduled(f"job {number}"))
        breaker = change.breaker if change else breaker
    return breaker


# Counting


@pytest.mark.parametrize("failure", [BAD, GONE])
def test_failures_in_a_row_open_it(failure: JobStatus) -> None:
    """At the threshold, with the time and the reason; failed and dead are the same to it."""
    two = after(CLOSED, failure, failure)
    assert (two.state, two.failure_count, two.last_job_id) == (BreakerState.CLOSED, 2, "job 1")
    change = ended(two, failure)
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count) == (BreakerState.OPEN, 3)
    assert (change.breaker.opened_at, change.reason) == (LATER, "failure_threshold")


def test_every_failure_counts_once_however_close_they_come() -> None:
    """Three jobs that end together open it, no matter who looks when."""
    assert after(CLOSED, BAD, BAD, BAD).state is BreakerState.OPEN
    assert after(CLOSED, *[BAD] * 7).failure_count == 7


def test_a_success_ends_the_row() -> None:
    """Two failures, a success, two failures: closed."""
    assert after(CLOSED, BAD, BAD, GOOD) == evolve(CLOSED, last_failure_at=LATER, last_job_id="job 2")
    assert after(CLOSED, BAD, BAD, GOOD, BAD, BAD).state is BreakerState.CLOSED


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_attempts_do_not_count(status: JobStatus) -> None:
    """A job that is tried again is not finished."""
    assert ended(CLOSED, status) is None


def test_what_was_cancelled_or_skipped_does_not_count() -> None:
    """It says nothing about the command, neither good nor bad."""
    cancelled = scheduled(cancel_requested_at=NOW)
    two = after(CLOSED, BAD, BAD)
    for status, job in ((NONE, scheduled()), (GONE, cancelled), (BAD, cancelled)):
        assert ended(two, status, job) is None


def test_a_success_with_nothing_to_forget_changes_nothing() -> None:
    """The usual case costs no write."""
    assert ended(CLOSED, GOOD) is None


def test_only_jobs_of_schedules_count_unless_all_do() -> None:
    """`applies_to`: webhooks and pipelines are neither counted nor held by default."""
    everything = evolve(CONFIG, applies_to="all")
    assert ended(CLOSED, BAD, a_job()) is None
    assert ended(CLOSED, BAD, a_job(), config=everything) is not None
    asked = NewJob(plugin="echo", command="poll", submitted_by="api")
    assert [concerns(config, asked) for config in (CONFIG, everything)] == [False, True]
    assert concerns(CONFIG, evolve(asked, schedule_id="default"))


# Starting


@pytest.mark.parametrize(
    ("breaker", "now", "probe_status", "answer"),
    [
        (CLOSED, NOW, None, Allowed),
        (evolve(CLOSED, failure_count=2), NOW, None, Allowed),
        (OPEN, NOW, None, Held),
        (OPEN, NOW + timedelta(minutes=30) - timedelta.resolution, None, Held),
        (OPEN, NOW + timedelta(minutes=30), None, Probe),
        (HALF_OPEN, LATER, JobStatus.QUEUED, Held),
        (HALF_OPEN, LATER, JobStatus.RUNNING, Held),
        (HALF_OPEN, LATER, GOOD, Probe),
        (HALF_OPEN, LATER, BAD, Probe),
        (HALF_OPEN, LATER, GONE, Probe),
        (HALF_OPEN, LATER, NONE, Probe),
        (HALF_OPEN, LATER, None, Probe),
        (evolve(HALF_OPEN, probe_job_id=None), LATER, None, Probe),
        (evolve(OPEN, opened_at=None), NOW, None, Probe),
        (OPEN, NOW - timedelta(seconds=59), None, Held),
        (OPEN, NOW - timedelta(days=3652), None, Probe),
    ],
)
def test_who_may_start(breaker: Breaker, now: datetime, probe_status: JobStatus | None, answer: type) -> None:
    """Closed: all. Open: nobody, until it has cooled down; then one probe, and no other until that has ended.

    A probe that is over without a verdict, or gone, was lost: the next job probes. A clock that was set back does not
    hold a breaker open for years.
    """
    assert isinstance(may_start(breaker, CONFIG, now, probe_status=probe_status), answer)


def test_a_held_start_says_until_when_and_why() -> None:
    """Until it has cooled down, or until its probe has ended."""
    assert may_start(OPEN, CONFIG, NOW) == Held(NOW + timedelta(minutes=30), "open after 3 failures in a row")
    assert may_start(HALF_OPEN, CONFIG, LATER, probe_status=JobStatus.RUNNING) == Held(
        None, "its probe probe has not ended"
    )


# Half-open


def test_a_probe_makes_it_half_open() -> None:
    """With the job that decides."""
    change = probing(OPEN, "probe")
    assert (change.breaker, change.reason) == (HALF_OPEN, "cooldown_elapsed")


def test_a_probe_that_succeeds_closes_it() -> None:
    """And the count begins anew."""
    change = ended(HALF_OPEN, GOOD, scheduled("probe"))
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (BreakerState.CLOSED, 0, "success")
    assert (change.breaker.opened_at, change.breaker.probe_job_id) == (None, None)


def test_a_probe_that_fails_opens_it_again() -> None:
    """For another full cooldown."""
    change = ended(HALF_OPEN, BAD, scheduled("probe"))
    assert change is not None
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (
        BreakerState.OPEN,
        4,
        "failure_threshold",
    )
    assert (change.breaker.opened_at, change.breaker.probe_job_id) == (LATER, None)


@pytest.mark.parametrize(
    ("status", "job"), [(NONE, scheduled("probe")), (GONE, scheduled("probe", cancel_requested_at=NOW))]
)
def test_a_probe_that_is_lost_frees_its_place(status: JobStatus, job: Job) -> None:
    """Cancelled or skipped: still half-open, and the next job probes."""
    change = ended(HALF_OPEN, status, job)
    assert change is not None
    assert change.breaker.state is BreakerState.HALF_OPEN
    assert isinstance(may_start(change.breaker, CONFIG, LATER), Probe)


@pytest.mark.parametrize("breaker", [OPEN, HALF_OPEN])
def test_a_straggler_that_fails_neither_opens_it_nor_keeps_it_open(breaker: Breaker) -> None:
    """A job from before is counted, but only the probe decides."""
    change = ended(breaker, BAD, scheduled("straggler"))
    assert change is not None
    assert change.breaker == evolve(breaker, failure_count=4, last_failure_at=LATER, last_job_id="straggler")


@pytest.mark.parametrize("breaker", [OPEN, HALF_OPEN])
def test_any_success_closes_it(breaker: Breaker) -> None:
    """A job that the operator had tried again proves as much as a probe."""
    change = ended(breaker, GOOD, scheduled("straggler"))
    assert change is not None
    assert (change.breaker.state, change.reason) == (BreakerState.CLOSED, "success")


def test_the_operator_can_reset_it_while_the_probe_runs() -> None:
    """The probe is an ordinary job then: its failure is the first of a new row."""
    change = reset(HALF_OPEN)
    assert (change.breaker.state, change.breaker.failure_count, change.reason) == (
        BreakerState.CLOSED,
        0,
        "manual_reset",
    )
    late = ended(change.breaker, BAD, scheduled("probe"))
    assert late is not None
    assert (late.breaker.state, late.breaker.failure_count) == (BreakerState.CLOSED, 1)


# Every sequence


@define
class Plugin:
    """A scheduler and its ledger in small: starts jobs as the breaker allows, and ends them as it is told."""

    breaker: Breaker = CLOSED
    now: datetime = NOW
    jobs: dict[str, JobStatus] = field(factory=dict)
    failures_in_a_row: int = 0

    def start(self) -> None:
        probe = self.jobs.get(self.breaker.probe_job_id or "")
        answer = may_start(self.breaker, CONFIG, self.now, probe_status=probe)
        if isinstance(answer, Held):
            return
        job_id = f"job {len(self.jobs)}"
        self.jobs[job_id] = JobStatus.QUEUED
        if isinstance(answer, Probe):
            assert probe is None or probe.is_final, "two probes at once"
            self.breaker = probing(self.breaker, job_id).breaker

    def reset(self) -> None:
        self.breaker, self.failures_in_a_row = reset(self.breaker).breaker, 0

    def end(self, how: str) -> None:
        job_id = next((name for name, status in self.jobs.items() if not status.is_final), None)
        if job_id is None:
            return
        if how == "pruned":
            del self.jobs[job_id]
            self.jobs[f"was {job_id}"] = GONE
            return
        self.jobs[job_id] = status = JobStatus(how.removeprefix("cancelled "))
        was_cancelled = how.startswith("cancelled")
        if status in (GOOD, BAD) or (status is GONE and not was_cancelled):
            self.failures_in_a_row = 0 if status is GOOD else self.failures_in_a_row + 1
        job = scheduled(job_id, cancel_requested_at=NOW if was_cancelled else None)
        change = rule(CONFIG)(self.breaker, job, status, self.now)
        if change is None:
            return
        if change.breaker.state is not self.breaker.state:
            closed = change.breaker.state is BreakerState.CLOSED
            assert change.reason == (room.SUCCESS if closed else room.FAILURE_THRESHOLD)
            assert not closed or status is GOOD, "closed without a success"
        self.breaker = change.breaker


DEEDS = st.sampled_from(
    ["start", "start", "wait", "succeeded", "failed", "failed", "dead", "skipped", "cancelled dead", "pruned", "reset"]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(DEEDS, max_size=60))
def test_it_is_never_stuck_and_never_closed_without_a_success(deeds: list[str]) -> None:
    """Whatever jobs and operators do: one probe at most, every failure counted, and a way back from every state."""
    plugin = Plugin()
    for deed in deeds:
        if deed == "start":
            plugin.start()
        elif deed == "wait":
            plugin.now += timedelta(minutes=20)
        elif deed == "reset":
            plugin.reset()
        else:
            plugin.end(deed)
        assert plugin.breaker.failure_count == plugin.failures_in_a_row
        assert plugin.breaker.state is not BreakerState.CLOSED or plugin.breaker.failure_count < CONFIG.threshold
    for _ in plugin.jobs.copy():
        plugin.end("succeeded")
    plugin.now += timedelta(minutes=30)
    plugin.start()
    plugin.end("succeeded")
    assert plugin.breaker.state is BreakerState.CLOSED
