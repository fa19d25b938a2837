"""Classify the response to a relayed event: delivered, retry, or failed. Pure.

The retry rule is that of all jobs; the random number for the backoff is a parameter.
"""

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from attrs import evolve, field, frozen

from ductile.config.sections.relay import BACKOFF_BASE
from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.model import (
    Evidence,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    Note,
    Outcome,
    OutcomeCode,
    Retried,
    Succeeded,
    attempts_used_up,
    cancelled,
)
from ductile.engine.follow_up_rules import ended_of, follow_up_rule_of
from ductile.engine.judge import DRAIN, MAX_BACKOFF, MAX_ERROR_CHARS, backoff
from ductile.pipeline.compile.plan import STEP_SUCCEEDED
from ductile.pipeline.run.events import Event, event_id, input_payload
from ductile.pipeline.run.route import TooManyFollowUps, compute_follow_ups
from ductile.relay.client import HttpResponse, NoResponse
from ductile.relay.message import RelayMessage
from ductile.relay.protocol import Reply, read_error, read_reply

RETRYABLE_STATUSES = frozenset({401, 403, 404, 408, 425, 429})
"""Errors that may be temporary: a wrong clock, a secret in rotation, a proxy without its service. 5xx are as well."""


@frozen(kw_only=True)
class SendResult:
    """The result of one request. `response` is None if the request was stopped."""

    response: HttpResponse | NoResponse | None = None
    timed_out: bool = False
    stopped: str | None = None

    @property
    def is_reachable(self) -> bool:
        """True if the instance responded and the error, if any, is not temporary."""
        return isinstance(self.response, HttpResponse) and not _is_temporary(self.response.status)


@frozen(kw_only=True)
class RelayCompletion:
    """The outcome of an attempt and its follow-ups."""

    outcome: Outcome
    follow_ups: FollowUps = field(factory=FollowUps)
    is_unrouted: bool = False
    """The event was delivered, but the receiver has no route for it."""


def judge_response(
    job: Job,
    message: RelayMessage,
    sent: SendResult,
    evidence: Evidence,
    snapshot: Snapshot,
    *,
    now: datetime,
    chance: float,
) -> RelayCompletion:
    """Decide the outcome of an attempt. `chance` in [0, 1) spreads the retry."""
    response = sent.response
    reply = read_reply(response.body) if isinstance(response, HttpResponse) and response.status // 100 == 2 else None
    if reply is not None:
        return _delivered(job, message, reply, evidence, snapshot, now)
    if response is None:
        return without_delivery(job, _stopped(sent.stopped, evidence), snapshot, now)
    error = snapshot.config.mask(f"instance {message.instance.name}: {_error_message(response)}")[:MAX_ERROR_CHARS]
    if isinstance(response, HttpResponse) and response.status // 100 != 2 and not _is_temporary(response.status):
        return without_delivery(job, Failed(error, evidence, OutcomeCode.RELAY_REFUSED), snapshot, now)
    if job.tries >= job.max_attempts:
        return without_delivery(job, attempts_used_up(job, error, evidence), snapshot, now)
    # Never less than the backoff: a short Retry-After would use up the attempts within minutes.
    delay = max(backoff(BACKOFF_BASE, job.tries, chance), _retry_after(response, now))
    return RelayCompletion(outcome=Retried(error, delay, evidence))


def without_delivery(job: Job, outcome: Outcome, snapshot: Snapshot, now: datetime) -> RelayCompletion:
    """Complete an attempt that delivered nothing, with follow-ups if the outcome is final."""
    if isinstance(outcome, Retried | Interrupted):
        return RelayCompletion(outcome=outcome)
    return RelayCompletion(outcome=outcome, follow_ups=follow_up_rule_of(snapshot)(job, outcome, now))


def _is_temporary(status: int) -> bool:
    return status >= 500 or status in RETRYABLE_STATUSES


def _stopped(reason: str | None, evidence: Evidence) -> Outcome:
    if reason in (None, DRAIN):
        return Interrupted("the service was stopping", evidence)
    return cancelled(reason, evidence)


def _error_message(response: HttpResponse | NoResponse) -> str:
    if isinstance(response, NoResponse):
        return str(response)
    if response.status // 100 == 2:
        return f"responded with {response.status}, but not like a Ductile instance; check base_url"
    if response.status // 100 == 3:
        return f"responded with {response.status}; redirects are not followed, check base_url"
    error = read_error(response.body)
    return f"responded with {response.status}: {error}" if error else f"responded with {response.status}"


def _retry_after(response: HttpResponse | NoResponse, now: datetime) -> timedelta:
    """Return the delay of the Retry-After header, at most an hour."""
    text = response.headers.get("retry-after", "") if isinstance(response, HttpResponse) else ""
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), MAX_BACKOFF)
    try:
        return min(parsedate_to_datetime(text) - now, MAX_BACKOFF)
    except (ValueError, TypeError):
        return timedelta()


def _delivered(
    job: Job, message: RelayMessage, reply: Reply, evidence: Evidence, snapshot: Snapshot, now: datetime
) -> RelayCompletion:
    """Complete a delivered event. An event without a route at the receiver is a journal entry, not a failure."""
    fields = {
        "status": "relayed",
        "to": message.instance.name,
        "event": message.envelope.type,
        "accepted": reply.accepted,
        "receiver_event_id": reply.receiver_event_id,
        "peer": reply.peer,
        "job_id": reply.job_id,
        "reason": reply.reason,
    }
    result = strict_json.dumps({name: value for name, value in fields.items() if value is not None})
    relayed = {name: fields[name] for name in ("to", "accepted", "reason")}
    outcome = Succeeded(evolve(evidence, result=result), OutcomeCode.RELAYED, relayed)
    summary = f"relayed {message.label}" + ("" if reply.accepted else f", but not accepted there ({reply.reason})")
    events = (_relayed_event(job, message, reply, summary, now),) if job.pipeline is not None else ()
    try:
        follow_ups = compute_follow_ups(job, ended_of(outcome, summary), events, snapshot.routing, now=now)
    except TooManyFollowUps as error:
        failed = without_delivery(
            job, Failed(str(error), outcome.evidence, OutcomeCode.TOO_MANY_FOLLOW_UPS), snapshot, now
        )
        return evolve(failed, follow_ups=evolve(failed.follow_ups, tolerated=False))
    if not reply.accepted:
        data = {name: fields[name] for name in ("to", "event", "receiver_event_id", "reason")}
        follow_ups = evolve(follow_ups, notes=(*follow_ups.notes, Note(kind="event.no_route", data=data)))
    return RelayCompletion(outcome=outcome, follow_ups=follow_ups, is_unrouted=not reply.accepted)


def _relayed_event(job: Job, message: RelayMessage, reply: Reply, summary: str, now: datetime) -> Event:
    """Build the event with which the steps after a relay start."""
    fields = {
        "relay_to": message.instance.name,
        "relay_event_type": message.envelope.type,
        "relay_accepted": reply.accepted,
        "relay_acceptance_status": "accepted" if reply.accepted else reply.reason or "refused",
        "relay_acceptance_event_id": reply.receiver_event_id,
        "relay_receiver_event_id": reply.receiver_event_id,
        "relay_receiver_peer": reply.peer,
        "relay_receiver_job_id": reply.job_id,
    }
    payload = {**input_payload(job), "result": summary, **fields}
    return Event(event_id(job.id, job.attempt, "relayed"), STEP_SUCCEEDED, payload, job.plugin, now)
