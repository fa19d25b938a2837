"""By which rule a job ended: the decision table of the engine, read backwards from what the ledger has kept.

Pure, but for a look at the journal of the job above a switch. Knows how endings are worded, not how they come about.
"""

import re

from ductile.core.clock import to_text
from ductile.core.format_time import told
from ductile.core.formats.stored_json import kept_object
from ductile.core.model import AttemptStatus, Dead, Job, JobStatus, Retried, runs_nothing
from ductile.core.units import format_duration
from ductile.explain.conditions import predicate_words
from ductile.explain.waiting import Reason
from ductile.ledger.queue.recover import outcome_of
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

CONFIG_ERROR = 78
_USED_UP = re.compile(r"attempts used up \((\d+) of (\d+)\): (.*)", re.DOTALL)
_WINNER = re.compile(r"deduplicated: (\S+) succeeded meanwhile")
_BUDGET = re.compile(r"(?:chain|tree) of more than \d+ (?:hops|jobs)")


def ended_by(db: Db, report: JobReport) -> Reason:
    """The rule, in words, with what it was applied to."""
    job, last = report.job, report.attempts[-1] if report.attempts else None
    match job.status:
        case JobStatus.SUCCEEDED:
            return _success(db, job, last)
        case JobStatus.SKIPPED:
            return _skipped(job)
        case JobStatus.DEAD:
            return _dead(report, last)
        case _:
            return _failed(job, last)


def running(job: Job) -> Reason:
    """A job that has not ended yet and does not wait."""
    since = told(to_text(job.started_at)) if job.started_at else "a moment ago"
    facts = {"started_at": to_text(job.started_at) if job.started_at else None}
    if job.cancel_requested_at:
        when = told(to_text(job.cancel_requested_at))
        words = f"it was cancelled {when}: {job.cancel_reason}; its process is ending"
        return Reason("ending", words, facts | {"reason": job.cancel_reason})
    return Reason("running", f"attempt {job.attempt} of {job.max_attempts} started {since} and runs", facts)


def orphaned(job: Job) -> Reason:
    """A job that was running when the service died: what the next start does with it."""
    facts = {"started_at": to_text(job.started_at) if job.started_at else None}
    match outcome_of(job):
        case Retried(delay=delay):
            when = f"{format_duration(delay)} after" if delay else "after"
            then = f"; it runs again {when} the next start"
        case Dead(error=error) if job.cancel_requested_at:
            then = f"; {error}; the next start ends it"
        case _:
            then = ", in its last attempt; the next start gives it up"
    return Reason("service_died", f"it was running when the service died{then}", facts)


def _success(db: Db, job: Job, last: LoggedAttempt | None) -> Reason:
    if job.plugin == "core.switch":
        return _switch(db, job, last)
    if runs_nothing(job.plugin) or last is None:
        return Reason("decided", "the core decided it by itself; no plugin ran")
    if last.exit_code:
        words = f"its answer has status ok; exit code {last.exit_code} does not count (ignore_exit_code)"
        return Reason("answered_ok", words, {"exit_code": last.exit_code})
    words = f"attempt {last.attempt} of {job.max_attempts} answered status ok and ended with exit code 0"
    return Reason("answered_ok", words, {"exit_code": last.exit_code, "attempt": last.attempt})


def _switch(db: Db, job: Job, last: LoggedAttempt | None) -> Reason:
    """A condition of a pipeline: which predicates said no is noted with the job that led to it."""
    if kept_object(last.result if last else None).get("matched"):
        return Reason("condition_true", f"the condition of step {job.step_id} is true: the step runs")
    for above in filter(None, (job.parent_job_id, job.id)):
        for entry in journal.of_job(db, above):
            is_ours = entry.data.get("step_id") == job.step_id and entry.data.get("event_id") == job.source_event_id
            # The items of a list are decided about one by one, for the same step and event.
            is_ours = is_ours and entry.data.get("switch_id", job.id) == job.id
            if entry.kind == "step.bypassed" and is_ours:
                predicates = entry.data.get("predicates", [])
                words = f"the condition of step {job.step_id} is false: {predicate_words(predicates)}"
                return Reason("condition_false", words, {"predicates": predicates})
    return Reason("condition_false", f"the condition of step {job.step_id} is false: the step does not run")


def _skipped(job: Job) -> Reason:
    error = job.last_error or ""
    if match := _WINNER.match(error):
        words = f"job {match[1]} with the same dedupe key {job.dedupe_key!r} succeeded while it waited"
        return Reason("deduplicated", words, {"winner": match[1], "dedupe_key": job.dedupe_key})
    return Reason("skipped", f"it was decided not to run it: {error or 'no reason on record'}")


def _dead(report: JobReport, last: LoggedAttempt | None) -> Reason:
    job, error = report.job, report.job.last_error or ""
    if error.startswith("cancelled: "):
        reason, ran = error.removeprefix("cancelled: "), last is not None and last.started_at is not None
        words = f"it was cancelled {'while it ran' if ran else 'before it ran'}: {reason}"
        return Reason("cancelled", words, {"reason": reason, "ran": ran})
    if match := _USED_UP.match(error):
        how = "timed out" if last and last.status is AttemptStatus.TIMED_OUT else "failed"
        words = f"all {match[2]} attempts are used up (retry.max_attempts); the last one {how}: {match[3]}"
        return Reason("attempts_used_up", words, {"attempts": int(match[1]), "max_attempts": int(match[2])})
    if _BUDGET.match(error):
        return Reason("over_budget", f"it is beyond what one run may become: {error} (service.limits)")
    if any(entry.kind == "job.quarantined" for entry in report.journal):
        return Reason("quarantined", f"its row could not be handled, so it was set apart: {error}")
    if job.recoveries and "the core died" in error:
        return Reason("core_died", error, {"recoveries": job.recoveries})
    if last is None or last.started_at is None:
        return Reason("never_started", f"it was given up before it ran: {error or 'no reason on record'}")
    return Reason("given_up", error or "no reason on record")


def _failed(job: Job, last: LoggedAttempt | None) -> Reason:
    error = job.last_error or "no reason on record"
    if error.startswith("not joined: "):
        return Reason("not_joined", f"jobs that it joins failed: {error.removeprefix('not joined: ')}")
    if last is None or last.started_at is None:
        return Reason("refused", f"it could not be run, now or later: {error}")
    if last.exit_code == CONFIG_ERROR:
        words = f"exit code 78 says that its configuration is wrong, so it is not tried again: {error}"
        return Reason("exit_78", words, {"exit_code": CONFIG_ERROR})
    if kept_object(last.result).get("retry") is False:
        words = f"its answer says error with `retry: false`, so it is not tried again: {error}"
        return Reason("retry_false", words, {"exit_code": last.exit_code})
    if error.startswith("internal error"):
        return Reason("internal_error", f"Ductile itself failed after the plugin had run: {error}")
    return Reason("final", f"trying again would not help: {error}", {"exit_code": last.exit_code})
