"""The circuit breaker of one command: closed, open, half-open. Pure: what a finished job makes of it, who may start.

A failing command is held after `threshold` failures in a row, then one probe decides. Counts jobs, not attempts. Where
the breaker is kept, and in which transaction it changes, is the ledger's matter; the scheduler asks before it fires.
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

RECHECK_PROBE = timedelta(seconds=30)
"""How soon to look again whether a probe was lost."""
CLOCK_SLACK = timedelta(seconds=60)
"""A breaker that opened further in the future than this was written before the clock was set back."""

FAILURE_THRESHOLD = "failure_threshold"
SUCCESS = "success"
COOLDOWN_ELAPSED = "cooldown_elapsed"
MANUAL_RESET = "manual_reset"


@frozen
class Allowed:
    """The breaker is closed, or does not concern this job."""


@frozen
class Probe:
    """One job may start to find out; `probing` is stored with it."""


def concerns(config: CircuitBreaker, job: Job | NewJob) -> bool:
    """Whether the job counts for the breaker, and is held by it."""
    return config.applies_to == "all" or job.schedule_id is not None


def may_start(
    breaker: Breaker, config: CircuitBreaker, now: datetime, *, probe_status: JobStatus | None = None
) -> Allowed | Probe | Held:
    """Whether a job that the breaker concerns may start now.

    `probe_status` is the status of `probe_job_id` in the ledger, None if it is gone. A probe that is over and has left
    the breaker half-open was lost (cancelled, skipped, deduplicated, pruned): its place is free.
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


def probing(breaker: Breaker, job_id: str) -> BreakerChange:
    """The breaker is half-open, and this job alone decides."""
    return BreakerChange(evolve(breaker, state=BreakerState.HALF_OPEN, probe_job_id=job_id), COOLDOWN_ELAPSED)


def gate(config: CircuitBreaker) -> GateRule | None:
    """What the claim asks before a job starts; None where the breaker concerns schedules alone, which ask earlier."""
    if config.applies_to != "all":
        return None

    def decide(
        breaker: Breaker, job: Job, probe_status: JobStatus | None, now: datetime
    ) -> Held | BreakerChange | None:
        if breaker.probe_job_id == job.id:
            return None
        match may_start(breaker, config, now, probe_status=probe_status):
            case Probe():
                return probing(breaker, job.id)
            case Held() as held:
                return evolve(held, until=held.until or now + RECHECK_PROBE)
            case Allowed():
                return None

    return decide


def reset(breaker: Breaker) -> BreakerChange:
    """The operator has closed the breaker; a probe that still runs is an ordinary job again."""
    return BreakerChange(_closed(breaker), MANUAL_RESET)


def rule(config: CircuitBreaker) -> BreakerRule:
    """What `Ending.breaker` wants: from the breaker and a job that just ended to what the breaker becomes."""

    def decide(breaker: Breaker, job: Job, status: JobStatus, now: datetime) -> BreakerChange | None:
        if not status.is_final or not concerns(config, job):
            return None
        if status is JobStatus.SUCCEEDED:
            return _after_success(breaker, job)
        if status is JobStatus.SKIPPED or job.cancel_requested_at is not None:
            return _after_nothing(breaker, job)
        return _after_failure(breaker, config, job, now)

    return decide


def _after_cooldown(breaker: Breaker, config: CircuitBreaker, now: datetime) -> Probe | Held:
    if breaker.opened_at is None or breaker.opened_at > now + CLOCK_SLACK:
        return Probe()
    until = breaker.opened_at + config.reset_after
    return Probe() if now >= until else Held(until, f"open after {breaker.failure_count} failures in a row")


def _after_success(breaker: Breaker, job: Job) -> BreakerChange | None:
    """Whoever succeeded, the command works again."""
    if breaker.state is BreakerState.CLOSED and breaker.failure_count == 0:
        return None
    return BreakerChange(evolve(_closed(breaker), last_job_id=job.id), SUCCESS)


def _after_nothing(breaker: Breaker, job: Job) -> BreakerChange | None:
    """A job that was cancelled or skipped says nothing about the command; a probe makes room for the next one."""
    if breaker.probe_job_id != job.id:
        return None
    return BreakerChange(evolve(breaker, probe_job_id=None, last_job_id=job.id), COOLDOWN_ELAPSED)


def _after_failure(breaker: Breaker, config: CircuitBreaker, job: Job, now: datetime) -> BreakerChange:
    """Counted, whatever the state. Only the probe opens a half-open breaker; an open one is open no longer for it."""
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
