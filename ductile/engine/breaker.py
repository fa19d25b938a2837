"""The circuit breaker of one command: closed, open or half-open. Pure.

It opens after `threshold` failed jobs in a row. After the cooldown one probe decides. It counts jobs, not attempts.
The ledger stores breakers; the scheduler and the claim check them before a job starts.
"""

from datetime import datetime, timedelta

from attrs import evolve, frozen

from ductile.config.sections.settings import CircuitBreaker
from ductile.core.model import (
    Breaker,
    BreakerChange,
    BreakerRule,
    BreakerState,
    GateRule,
    Held,
    Job,
    JobStatus,
    NewJob,
)

PROBE_RECHECK_INTERVAL = timedelta(seconds=30)
"""Time until a job that waits for a probe checks again whether the probe was lost."""
MAX_CLOCK_SKEW = timedelta(seconds=60)
"""An `opened_at` further in the future than this means that the clock was set back."""

FAILURE_THRESHOLD = "failure_threshold"
SUCCESS = "success"
COOLDOWN_ELAPSED = "cooldown_elapsed"
MANUAL_RESET = "manual_reset"


@frozen
class Allowed:
    """The breaker is closed: the job may start."""


@frozen
class Probe:
    """The job may start as the probe. `start_probe` returns the breaker to store with it."""


def applies_to_job(config: CircuitBreaker, job: Job | NewJob) -> bool:
    """True if the breaker counts the job and can block it."""
    return config.applies_to == "all" or job.schedule_id is not None


def check_start(
    breaker: Breaker, config: CircuitBreaker, now: datetime, *, probe_status: JobStatus | None = None
) -> Allowed | Probe | Held:
    """Decide whether a job that the breaker applies to may start now.

    `probe_status` is the status of `probe_job_id`, None if the job no longer exists. A probe that has ended and left
    the breaker half-open was lost (cancelled, skipped, deduplicated, pruned), so the next job becomes the probe.
    """
    match breaker.state:
        case BreakerState.CLOSED:
            return Allowed()
        case BreakerState.OPEN:
            return _after_cooldown(breaker, config, now)
        case BreakerState.HALF_OPEN:
            if breaker.probe_job_id is None or probe_status is None or probe_status.is_final:
                return Probe()
            return Held(None, f"its probe {breaker.probe_job_id} has not ended")


def start_probe(breaker: Breaker, job_id: str) -> BreakerChange:
    """Return the half-open breaker with this job as its probe."""
    return BreakerChange(evolve(breaker, state=BreakerState.HALF_OPEN, probe_job_id=job_id), COOLDOWN_ELAPSED)


def gate(config: CircuitBreaker) -> GateRule | None:
    """Return the rule that the claim applies before a job starts.

    None if the breaker applies to schedules only: the scheduler checks it before it creates the job.
    """
    if config.applies_to != "all":
        return None

    def decide(
        breaker: Breaker, job: Job, probe_status: JobStatus | None, now: datetime
    ) -> Held | BreakerChange | None:
        if breaker.probe_job_id == job.id:
            return None
        match check_start(breaker, config, now, probe_status=probe_status):
            case Probe():
                return start_probe(breaker, job.id)
            case Held() as held:
                return evolve(held, until=held.until or now + PROBE_RECHECK_INTERVAL)
            case Allowed():
                return None

    return decide


def reset(breaker: Breaker) -> BreakerChange:
    """Return the breaker closed by an operator. A running probe becomes an ordinary job."""
    return BreakerChange(_closed(breaker), MANUAL_RESET)


def completion_rule(config: CircuitBreaker) -> BreakerRule:
    """Return the rule that computes the breaker after a job has ended."""

    def decide(breaker: Breaker, job: Job, status: JobStatus, now: datetime) -> BreakerChange | None:
        if not status.is_final or not applies_to_job(config, job):
            return None
        if status is JobStatus.SUCCEEDED:
            return _after_success(breaker, job)
        if status is JobStatus.SKIPPED or job.cancel_requested_at is not None:
            return _after_no_result(breaker, job)
        return _after_failure(breaker, config, job, now)

    return decide


def _after_cooldown(breaker: Breaker, config: CircuitBreaker, now: datetime) -> Probe | Held:
    if breaker.opened_at is None or breaker.opened_at > now + MAX_CLOCK_SKEW:
        return Probe()
    until = breaker.opened_at + config.reset_after
    return Probe() if now >= until else Held(until, f"open after {breaker.failure_count} failures in a row")


def _after_success(breaker: Breaker, job: Job) -> BreakerChange | None:
    """Close the breaker: the success of any job proves that the command works."""
    if breaker.state is BreakerState.CLOSED and breaker.failure_count == 0:
        return None
    return BreakerChange(evolve(_closed(breaker), last_job_id=job.id), SUCCESS)


def _after_no_result(breaker: Breaker, job: Job) -> BreakerChange | None:
    """Ignore a cancelled or skipped job. If it was the probe, the next job becomes the probe."""
    if breaker.probe_job_id != job.id:
        return None
    return BreakerChange(evolve(breaker, probe_job_id=None, last_job_id=job.id), COOLDOWN_ELAPSED)


def _after_failure(breaker: Breaker, config: CircuitBreaker, job: Job, now: datetime) -> BreakerChange:
    """Count the failure. Only the probe opens a half-open breaker; an open breaker keeps its `opened_at`."""
    failed = evolve(breaker, failure_count=breaker.failure_count + 1, last_failure_at=now, last_job_id=job.id)
    opens = {
        BreakerState.CLOSED: failed.failure_count >= config.threshold,
        BreakerState.HALF_OPEN: breaker.probe_job_id == job.id,
        BreakerState.OPEN: False,
    }
    if opens[breaker.state]:
        failed = evolve(failed, state=BreakerState.OPEN, opened_at=now, probe_job_id=None)
    return BreakerChange(failed, FAILURE_THRESHOLD)


def _closed(breaker: Breaker) -> Breaker:
    return evolve(breaker, state=BreakerState.CLOSED, failure_count=0, opened_at=None, probe_job_id=None)
