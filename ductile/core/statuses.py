"""The states that jobs, attempts and breakers can be in, as they are stored and shown."""

from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job is. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class AttemptStatus(StrEnum):
    """How one attempt ended; `interrupted` does not count against `max_attempts`, the last two never ran a plugin."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"
    DEAD = "dead"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
