"""What an outcome means for a job and for its attempt: statuses, code, error text, evidence. Pure."""

from collections.abc import Mapping
from typing import Any

from ductile.core.model import (
    NO_DATA,
    AttemptStatus,
    Dead,
    Evidence,
    Failed,
    Interrupted,
    JobStatus,
    Outcome,
    OutcomeCode,
    Retried,
    Skipped,
    Succeeded,
)


def job_status(outcome: Outcome) -> JobStatus:
    match outcome:
        case Succeeded():
            return JobStatus.SUCCEEDED
        case Failed():
            return JobStatus.FAILED
        case Dead():
            return JobStatus.DEAD
        case Skipped():
            return JobStatus.SKIPPED
        case Retried() | Interrupted():
            return JobStatus.QUEUED


def attempt_status(outcome: Outcome, *, ran: bool) -> AttemptStatus:
    match outcome:
        case Succeeded():
            return AttemptStatus.SUCCEEDED
        case Skipped():
            return AttemptStatus.SKIPPED
        case Interrupted():
            return AttemptStatus.INTERRUPTED
        case Retried() | Failed() | Dead() if outcome.evidence and outcome.evidence.timed_out:
            return AttemptStatus.TIMED_OUT
        case Dead() if not ran:
            return AttemptStatus.DEAD
        case _:
            return AttemptStatus.FAILED


def error_of(outcome: Outcome) -> str | None:
    match outcome:
        case Succeeded():
            return None
        case Skipped() | Interrupted():
            return outcome.reason
        case Retried() | Failed() | Dead():
            return outcome.error


def evidence_of(outcome: Outcome) -> Evidence | None:
    return None if isinstance(outcome, Skipped) else outcome.evidence


def code_of(outcome: Outcome) -> OutcomeCode | None:
    """Return why the job ended; None for an outcome after which it is queued again."""
    return None if isinstance(outcome, Retried | Interrupted) else outcome.code


def data_of(outcome: Outcome) -> Mapping[str, Any]:
    """Return the values that belong to the outcome."""
    return NO_DATA if isinstance(outcome, Interrupted) else outcome.data
