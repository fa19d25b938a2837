"""What the answer to a relayed event means for its job: delivered, try again, or never. Pure.

Knows nothing of sockets beyond what `post` reports. The retry rule is the one of all jobs; randomness comes in as a
number. Called by `relay`.
"""

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from attrs import evolve, field, frozen

from ductile.config.sections.relay import BACKOFF
from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.model import (
    Dead,
    Evidence,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    Note,
    Outcome,
    Retried,
    Succeeded,
)
from ductile.engine.follow_up_rules import ended_of, rule_of
from ductile.engine.judge import DRAIN, LONGEST_DELAY, LONGEST_ERROR, backoff
from ductile.pipeline.compile.plan import STEP_SUCCEEDED
from ductile.pipeline.run.events import Event, entered_with, event_id
from ductile.pipeline.run.route import TooManyFollowUps, after
from ductile.relay.client import HttpAnswer, Unanswered
from ductile.relay.message import RelayMessage
from ductile.relay.protocol import Reply, read_refusal, read_reply

AGAIN = frozenset({401, 403, 404, 408, 425, 429})
"""Refusals that need not last: a clock that is off, a secret in rotation, a proxy without its service. So are 5xx."""


@frozen(kw_only=True)
class Sent:
    """What one request came to; no answer at all if it was stopped before."""

    answer: HttpAnswer | Unanswered | None = None
    is_late: bool = False
    stopped: str | None = None

    @property
    def is_answered(self) -> bool:
        """Whether somebody is there who could take an event."""
        return isinstance(self.answer, HttpAnswer) and not _passes(self.answer.status)


@frozen(kw_only=True)
class Judged:
    """How the attempt ended, and what follows from it."""

    outcome: Outcome
    following: FollowUps = field(factory=FollowUps)
    is_unrouted: bool = False
    """The event has arrived, and nobody there waits for it."""


def judge_reply(
    job: Job, parcel: RelayMessage, sent: Sent, evidence: Evidence, snapshot: Snapshot, *, now: datetime, chance: float
) -> Judged:
    """What the attempt came to. `chance` in [0, 1) spreads the retry."""
    answer = sent.answer
    reply = read_reply(answer.body) if isinstance(answer, HttpAnswer) and answer.status // 100 == 2 else None
    if reply is not None:
        return _delivered(job, parcel, reply, evidence, snapshot, now)
    if answer is None:
        return ended(job, _stopped(sent.stopped, evidence), snapshot, now)
    error = snapshot.config.mask(f"instance {parcel.instance.name}: {_words(answer)}")[:LONGEST_ERROR]
    if isinstance(answer, HttpAnswer) and answer.status // 100 != 2 and not _passes(answer.status):
        return ended(job, Failed(error, evidence), snapshot, now)
    if job.tries >= job.max_attempts:
        used_up = f"attempts used up ({job.tries} of {job.max_attempts}): {error}"
        return ended(job, Dead(used_up, evidence), snapshot, now)
    # Never sooner than the backoff: a short Retry-After would use up the attempts within minutes.
    delay = max(backoff(BACKOFF, job.tries, chance), _asked_delay(answer, now))
    return Judged(outcome=Retried(error, delay, evidence))


def ended(job: Job, outcome: Outcome, snapshot: Snapshot, now: datetime) -> Judged:
    """An ending without a delivery, and what follows from it if it is final."""
    if isinstance(outcome, Retried | Interrupted):
        return Judged(outcome=outcome)
    return Judged(outcome=outcome, following=rule_of(snapshot)(job, outcome, now))


def _passes(status: int) -> bool:
    return status >= 500 or status in AGAIN


def _stopped(reason: str | None, evidence: Evidence) -> Outcome:
    if reason in (None, DRAIN):
        return Interrupted("the service was stopping", evidence)
    return Dead(f"cancelled: {reason}", evidence)


def _words(answer: HttpAnswer | Unanswered) -> str:
    if isinstance(answer, Unanswered):
        return str(answer)
    if answer.status // 100 == 2:
        return f"answered {answer.status}, but not as a Ductile does; is base_url right?"
    if answer.status // 100 == 3:
        return f"answered {answer.status}; redirects are not followed, correct base_url"
    said = read_refusal(answer.body)
    return f"answered {answer.status}: {said}" if said else f"answered {answer.status}"


def _asked_delay(answer: HttpAnswer | Unanswered, now: datetime) -> timedelta:
    """What Retry-After asks for, at most an hour."""
    text = answer.headers.get("retry-after", "") if isinstance(answer, HttpAnswer) else ""
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_DELAY)
    try:
        return min(parsedate_to_datetime(text) - now, LONGEST_DELAY)
    except (ValueError, TypeError):
        return timedelta()


def _delivered(
    job: Job, parcel: RelayMessage, reply: Reply, evidence: Evidence, snapshot: Snapshot, now: datetime
) -> Judged:
    """The event is in the other ledger and the run goes on. That nobody there waits for it is told, and no failure."""
    told = {
        "status": "relayed",
        "to": parcel.instance.name,
        "event": parcel.envelope.type,
        "accepted": reply.accepted,
        "receiver_event_id": reply.receiver_event_id,
        "peer": reply.peer,
        "job_id": reply.job_id,
        "reason": reply.reason,
    }
    result = strict_json.dumps({name: value for name, value in told.items() if value is not None})
    outcome = Succeeded(evolve(evidence, result=result))
    said = f"relayed {parcel.words}" + ("" if reply.accepted else f", where nobody takes it ({reply.reason})")
    events = (_relayed(job, parcel, reply, said, now),) if job.pipeline is not None else ()
    try:
        following = after(job, ended_of(outcome, said), events, snapshot.world, now=now)
    except TooManyFollowUps as error:
        failed = ended(job, Failed(str(error), outcome.evidence), snapshot, now)
        return evolve(failed, following=evolve(failed.following, tolerated=False))
    if not reply.accepted:
        about = {name: told[name] for name in ("to", "event", "receiver_event_id", "reason")}
        following = evolve(following, notes=(*following.notes, Note(kind="event.no_route", data=about)))
    return Judged(outcome=outcome, following=following, is_unrouted=not reply.accepted)


def _relayed(job: Job, parcel: RelayMessage, reply: Reply, said: str, now: datetime) -> Event:
    """What the steps behind a relay are entered with."""
    told = {
        "relay_to": parcel.instance.name,
        "relay_event_type": parcel.envelope.type,
        "relay_accepted": reply.accepted,
        "relay_acceptance_status": "accepted" if reply.accepted else reply.reason or "refused",
        "relay_acceptance_event_id": reply.receiver_event_id,
        "relay_receiver_event_id": reply.receiver_event_id,
        "relay_receiver_peer": reply.peer,
        "relay_receiver_job_id": reply.job_id,
    }
    payload = {**entered_with(job), "result": said, **told}
    return Event(event_id(job.id, job.attempt, "relayed"), STEP_SUCCEEDED, payload, job.plugin, now)
