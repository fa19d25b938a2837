"""Why a job ended, from the outcome that the ledger stores with its last attempt; and where a running one stands.

Reads no sentences: the place that decided stored a code and its data.
"""

from collections import Counter
from typing import Any

from attrs import asdict, evolve

from ductile.core.clock import to_text
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import AttemptStatus, Dead, Job, Retried
from ductile.explain.reason import Reason
from ductile.ledger.jobs import duplicates
from ductile.ledger.queue.recover import recovery_outcome
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.storage.db import Db

MAX_DROPPED = 20
"""Follow-up jobs that were not created, and types of events without a job, that are shown for one job."""
DECISION_FIELDS = ("pipeline", "reason", "predicates")


def outcome_reason(report: JobReport) -> Reason:
    """Return why a job ended. A row without a code, as in an adopted database, is `unexplained`."""
    job, last = report.job, report.attempts[-1] if report.attempts else None
    if last is None or last.outcome_code is None:
        return Reason("unexplained", {"status": str(job.status), "error": job.last_error})
    facts = {**_attempt_facts(job, last), **load_stored_object(last.outcome_data)}
    return Reason(last.outcome_code, {name: value for name, value in facts.items() if value is not None})


def with_actor(reason: Reason, report: JobReport) -> Reason:
    """Return the reason of a cancelled job with the actor of the cancellation."""
    actors = [entry.actor for entry in report.journal if entry.kind == "job.cancel_requested" and entry.actor]
    return evolve(reason, data={**reason.data, "actor": actors[-1]}) if actors else reason


def _attempt_facts(job: Job, last: LoggedAttempt) -> dict[str, Any]:
    """Return the facts in the row of the attempt itself; the data of the code takes precedence."""
    return {
        "error": job.last_error,
        "attempt": last.attempt,
        "max_attempts": job.max_attempts,
        "exit_code": last.exit_code,
        "timed_out": True if last.status is AttemptStatus.TIMED_OUT else None,
        "ran": last.started_at is not None,
        "step_id": job.step_id,
    }


def own_error(attempt: LoggedAttempt) -> str | None:
    """Return the error of an attempt, without the sentence about used-up attempts around it."""
    return load_stored_object(attempt.outcome_data).get("error") or attempt.last_error


def with_limit(reason: Reason, report: JobReport) -> Reason:
    """Return the reason with the configuration key of the limit that ended the last attempt, if one did."""
    data = load_stored_object(report.attempts[-1].outcome_data) if report.attempts else {}
    return evolve(reason, data={**reason.data, "limit_key": data["limit_key"]}) if "limit_key" in data else reason


def past_waits(report: JobReport) -> list[Reason]:
    """Return how long each attempt was queued and what held it, as its claim recorded; nothing for short waits."""
    names = ("attempt", "waited_ms", "waited_for")
    started = [entry.data for entry in report.journal if entry.kind == "job.started"]
    return [Reason("waited", {name: data[name] for name in names}) for data in started if data.get("waited_for")]


def operator_acts(report: JobReport) -> list[Reason]:
    """Return the replay that created a job, and its retries by an operator, as the journal has them."""
    created = next((entry for entry in report.journal if entry.kind == "job.enqueued"), None)
    found = []
    if report.job.replay_of:
        actor = created.actor if created else report.job.actor
        found.append(Reason("replayed", {"replay_of": report.job.replay_of, "actor": actor}))
    for entry in report.journal:
        if entry.kind == "job.requeued" and entry.actor:
            data = {"attempt": entry.data.get("attempt"), "actor": entry.actor, "requeued_at": to_text(entry.at)}
            found.append(Reason("retried", data))
    return found


def dropped_follow_ups(db: Db, job: Job) -> list[Reason]:
    """Return the follow-up jobs of a job that were not created because of their dedupe key, the first of them."""
    found = duplicates.dropped_behind(db, job.id) if job.status.is_final else []
    return [
        Reason("dropped_duplicate", asdict(one, filter=lambda field, _: field.name != "producer"))
        for one in found[:MAX_DROPPED]
    ]


def events_without_jobs(report: JobReport) -> list[Reason]:
    """Return the events of a job that led to no job, with the decision against each: one for each type."""
    skipped = {row.data.get("event_id"): row for row in report.journal if row.kind == "pipeline.skipped"}
    unmatched = [row for row in report.journal if row.kind == "event.unmatched"]
    counts = Counter(row.data.get("type") for row in unmatched)
    first = {row.data.get("type"): row for row in reversed(unmatched)}
    found = []
    for event_type, count in list(counts.items())[:MAX_DROPPED]:
        row = first[event_type]
        decision = skipped.get(row.data.get("event_id"), row)
        data = {name: decision.data[name] for name in DECISION_FIELDS if name in decision.data}
        about = {"event_id": row.data.get("event_id"), "event_type": event_type, "count": count}
        found.append(Reason("event_without_job", {**about, "decision": decision.kind, **data}))
    return found


def early_responses(report: JobReport) -> list[Reason]:
    """Return the 202 responses that callers of a synchronous pipeline got before its run had ended."""
    return [Reason("run_still_open", entry.data) for entry in report.journal if entry.kind == "run.still_open"]


def running(job: Job) -> Reason:
    """Return the reason of a job that runs, or whose process is being stopped."""
    data: dict[str, Any] = {"started_at": to_text(job.started_at) if job.started_at else None}
    if job.cancel_requested_at:
        requested_at = to_text(job.cancel_requested_at)
        return Reason("ending", {**data, "reason": job.cancel_reason, "cancel_requested_at": requested_at})
    return Reason("running", {**data, "attempt": job.attempt, "max_attempts": job.max_attempts})


def orphaned(job: Job) -> Reason:
    """Return the reason of a job that was running when the service died, with what the next start does."""
    data: dict[str, Any] = {"started_at": to_text(job.started_at) if job.started_at else None}
    match recovery_outcome(job):
        case Retried(delay=delay):
            data |= {"is_retried": True, "delay_seconds": delay.total_seconds()}
        case Dead() if job.cancel_requested_at:
            data |= {"is_retried": False, "cancel_reason": job.cancel_reason}
        case _:
            data |= {"is_retried": False}
    return Reason("service_died", data)
