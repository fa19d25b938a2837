"""Why a message of the exchange is not handled, who has it, how it ended, and what a late worker brought.

Takes facts of the ledger and returns a value. Only a running service knows which workers wait; it passes their number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

from attrs import evolve, frozen

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.errors import closest_name
from ductile.core.formats.json_schema import Count, Ordinal, Timestamp
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.message import Claim, ClaimStatus, MessageState, MessageUnknown
from ductile.explain.orphaned import has_service
from ductile.explain.reason import AnyReasonView, Reason
from ductile.ledger.exchange.message_facts import MAX_AHEAD, RECENT_CLAIMS, MessageFacts, claimed_topics, message_facts
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, snapshots
from ductile.ledger.tables.journal import JournalEntry

PURGED, DEAD, REQUEUED = "message.purged", "message.dead", "message.requeued"
LATE, REFUSED = "message.late", "message.refused"
DECIDED = {
    MessageState.COMPLETED: "completed",
    MessageState.FAILED: "failed",
    MessageState.TIMED_OUT: "timed_out",
}
"""State → code of the reason."""


class MessageDeliveryView(TypedDict):
    """A claim of the message."""

    delivery: Ordinal
    claim_id: str
    worker_group: str
    worker_instance_id: str
    claimed_at: Timestamp
    status: ClaimStatus
    ended_at: Timestamp | None
    reason: str | None
    job_id: Annotated[str, "The first job of the run, for a claim of a consumer"] | None


class MessageWhyView(TypedDict):
    """Why a message is not handled, who has it, or how it ended."""

    message_id: str
    topic: str | None
    conversation_id: str | None
    state: Annotated[MessageState, "null if retention has deleted the message"] | None
    deliveries: Count
    words: Annotated[str, "The most important reason as a sentence"]
    reasons: Annotated[list[AnyReasonView], "The most important reason first"]
    claims: Annotated[list[MessageDeliveryView], "The newest claims, oldest first"]
    next: Annotated[list[str], "Commands that help, the most likely first"]


@frozen(kw_only=True)
class MessageExplanation:
    """Why a message is as it is, with the commands that help."""

    message_id: str
    topic: str | None
    conversation_id: str | None
    state: MessageState | None
    """None if the message was deleted."""
    reasons: tuple[Reason, ...]
    """The most important one first."""
    claims: tuple[Claim, ...] = ()
    next_commands: tuple[str, ...] = ()

    def as_data(self) -> MessageWhyView:
        """Return the JSON view of `ductile exchange why` and `GET /exchange/messages/{id}/why`."""
        return {
            "message_id": self.message_id,
            "topic": self.topic,
            "conversation_id": self.conversation_id,
            "state": self.state,
            "deliveries": self.claims[-1].delivery if self.claims else 0,
            "words": self.reasons[0].words,
            "reasons": [reason.as_data() for reason in self.reasons],
            "claims": [_delivery_view(claim) for claim in self.claims],
            "next": list(self.next_commands),
        }


def message_why(
    db: Db,
    ledger: Path,
    message_id: str,
    *,
    waiting_workers: int | None = None,
    may_name: Callable[[str], bool] = lambda _topic: True,
) -> MessageWhyView:
    """Explain one message as JSON data. Raises MessageUnknown for an id that the ledger does not know."""
    return explain_message(db, ledger, message_id, waiting_workers=waiting_workers, may_name=may_name).as_data()


def explain_message(
    db: Db,
    ledger: Path,
    message_id: str,
    *,
    waiting_workers: int | None = None,
    may_name: Callable[[str], bool] = lambda _topic: True,
    now: datetime | None = None,
) -> MessageExplanation:
    """Explain one message. `waiting_workers` is how many wait on its topic; None if that is not known.

    Only topics for which `may_name` is true are named: as that of the follow-up, and instead of a misspelled one.
    Raises MessageUnknown for an id that the ledger does not know.
    """
    moment = now or datetime.now(UTC)
    try:
        facts = message_facts(db, message_id)
    except MessageUnknown:
        return _pruned(db, message_id, moment)
    if facts.follow_up_topic is not None and not may_name(facts.follow_up_topic):
        facts = evolve(facts, follow_up_topic=None)
    topics = filter(may_name, claimed_topics(db)) if facts.topic.last_claim is None else ()
    found = [
        *([] if has_service(ledger) or not facts.state.is_open else [Reason("service_down")]),
        *message_reasons(
            facts,
            waiting_workers=waiting_workers,
            claimed_topics=topics,
            consumer=_consumer_of(db, facts.message.topic),
        ),
    ]
    return MessageExplanation(
        message_id=facts.message.id,
        topic=facts.message.topic,
        conversation_id=facts.message.conversation_id,
        state=facts.state,
        reasons=tuple(evolve(reason, at=moment) for reason in found),
        claims=facts.claims,
        next_commands=tuple(_next_commands(facts, found[0])),
    )


def message_reasons(
    facts: MessageFacts,
    *,
    waiting_workers: int | None,
    claimed_topics: Iterable[str] = (),
    consumer: Mapping[str, Any] | None = None,
) -> list[Reason]:
    """Return why the message is in its state, the most important reason first; at least one.

    `claimed_topics` are other topics that have workers, to find a misspelled one. `consumer` is the configured consumer
    of the topic.
    """
    match facts.state:
        case MessageState.READY if consumer and facts.topic.paused_at is None:
            found = [_consumer_reason(facts, consumer)]
        case MessageState.READY:
            found = _ready_reasons(facts, waiting_workers, claimed_topics)
        case MessageState.DELAYED:
            found = [_delayed(facts)]
        case MessageState.WAITING:
            key = {"ordering_key": facts.message.ordering_key, "holder": facts.key_holder}
            found = [Reason("waits_for_key", key)]
        case MessageState.CLAIMED:
            found = [_claimed(facts)]
        case MessageState.DEAD:
            found = [_dead(facts)]
        case _:
            found = [_decided(facts)]
    return [*found, *_returned(facts), *_from_journal(facts)]


# ── open ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ready_reasons(facts: MessageFacts, waiting_workers: int | None, claimed_topics: Iterable[str]) -> list[Reason]:
    topic, last = facts.topic, facts.topic.last_claim
    name = facts.message.topic
    if topic.paused_at is not None:
        pause = {"topic": name, "paused_at": to_text(topic.paused_at), "reason": topic.pause_reason}
        return [Reason("topic_paused", pause)]
    has_workers = bool(waiting_workers or topic.active_claims)
    if last is None and not has_workers:
        return [Reason("topic_unknown_to_workers", {"topic": name, "similar": closest_name(name, claimed_topics)})]
    found = []
    if last is not None and not has_workers:
        data = {"topic": name, "last_claimed_at": to_text(last.claimed_at), **_worker(last)}
        found.append(Reason("ready_no_worker", data))
    if has_workers or facts.ahead:
        found.append(Reason("ready_behind", _place(facts, waiting_workers, has_workers=has_workers)))
    return found


def _consumer_reason(facts: MessageFacts, consumer: Mapping[str, Any]) -> Reason:
    kind = next((kind for kind in ("plugin", "pipeline", "event") if consumer.get(kind)), "")
    runs, limit = facts.topic.active_claims, consumer.get("max_open")
    data = {"topic": facts.message.topic, "ahead": facts.ahead, "open_runs": runs, "max_open": limit}
    is_full = isinstance(limit, int) and runs >= min(limit, RECENT_CLAIMS)
    is_loaded = consumer.get("is_loaded", True)
    code = "consumer_unavailable" if not is_loaded else "consumer_full" if is_full else "ready_for_consumer"
    return Reason(code, {**data, "starts": f"{kind} {consumer.get(kind)}"})


def _consumer_of(db: Db, topic: str) -> Mapping[str, Any] | None:
    """Return the consumer of the topic in the configuration that was loaded last, and whether its plugin was loaded."""
    last = snapshots.newest(db)
    section = load_stored_object(last.sanitized_config if last else None).get("exchange") or {}
    consumers = section.get("consumers") or () if section.get("enabled", True) else ()
    consumer = next((one for one in consumers if one.get("topic") == topic), None)
    if consumer is None or not consumer.get("plugin"):
        return consumer
    return {
        **consumer,
        "is_loaded": consumer["plugin"] in load_stored_object(last.plugin_fingerprints if last else None),
    }


def _place(facts: MessageFacts, waiting_workers: int | None, *, has_workers: bool) -> dict[str, Any]:
    rate = facts.topic.claims_per_second if has_workers else None
    return {
        "topic": facts.message.topic,
        "ahead": facts.ahead,
        "is_capped": facts.ahead >= MAX_AHEAD,
        "active_claims": facts.topic.active_claims,
        "waiting_workers": waiting_workers,
        "claims_per_minute": None if rate is None else round(rate * 60, 1),
        "estimate_seconds": None if rate is None else round((facts.ahead + 1) / rate, 1),
    }


def _delayed(facts: MessageFacts) -> Reason:
    """The sender, or the worker that released the message, has delayed it."""
    last, delivery = facts.last_claim, facts.delivery
    is_released = last is not None and last.status is ClaimStatus.RELEASED
    until = to_text_or_none(delivery.available_at if delivery else None)
    by = last.claimed_by if last is not None and is_released else facts.message.published_by
    return Reason("delayed", {"until": until, "by": by, "is_released": is_released})


def _claimed(facts: MessageFacts) -> Reason:
    claim = facts.last_claim
    if claim is None:
        return Reason("claimed")
    data = {"delivery": claim.delivery, "claimed_at": to_text(claim.claimed_at), "claim_id": claim.id}
    if claim.job_id is not None:
        return Reason("claimed_by_run", {**data, "job_id": claim.job_id})
    lease = {"lease_until": to_text_or_none(claim.lease_until), "extensions": claim.extensions}
    return Reason("claimed", {**data, **lease, "claimed_by": claim.claimed_by, **_worker(claim)})


# ── ended ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _decided(facts: MessageFacts) -> Reason:
    claim, code = facts.last_claim, DECIDED[facts.state]
    if claim is None:
        return Reason(code)
    data = {
        "delivery": claim.delivery,
        "ended_at": to_text_or_none(claim.completed_at),
        "reason": claim.reason,
        "job_id": claim.job_id,
        "follow_up_id": claim.follow_up_id if facts.follow_up_topic else None,
        "follow_up_topic": facts.follow_up_topic,
        **_worker(claim),
    }
    return Reason(code, data)


def _dead(facts: MessageFacts) -> Reason:
    end, last = _last_entry(facts, PURGED, DEAD), facts.last_claim
    if last is None or (end is not None and end.kind == PURGED):
        about = {"at": to_text(end.at), "by": end.actor} if end else {"at": None, "by": None}
        return Reason("message_purged", {**about, "topic": facts.message.topic})
    letter_id = last.follow_up_id if facts.follow_up_topic else None
    letter = {"dead_letter_id": letter_id, "dead_letter_topic": facts.follow_up_topic}
    return Reason("dead", {"deliveries": last.delivery, **letter})


def _returned(facts: MessageFacts) -> Iterator[Reason]:
    """Yield what happened to an open message before, and each delivery of a dead message."""
    requeued = _last_entry(facts, REQUEUED)
    if requeued is not None and facts.state.is_open:
        yield Reason("requeued", {"at": to_text(requeued.at), "by": requeued.actor, "was": requeued.data.get("from")})
    returned = [claim for claim in facts.claims if claim.status in (ClaimStatus.EXPIRED, ClaimStatus.RELEASED)]
    if facts.state is not MessageState.DEAD:
        returned = returned[-1:] if facts.state.is_open else []
    for claim in returned:
        about = {"delivery": claim.delivery, "ended_at": to_text_or_none(claim.completed_at), "reason": claim.reason}
        yield Reason("returned", {**about, "status": claim.status, **_worker(claim)})


def _last_entry(facts: MessageFacts, *kinds: str) -> JournalEntry | None:
    return next((row for row in reversed(facts.journal) if row.kind in kinds), None)


def _from_journal(facts: MessageFacts) -> Iterator[Reason]:
    """Yield what was refused: results of late workers, and follow-ups beyond the hop limit."""
    for row in facts.journal:
        if row.kind == LATE:
            names = ("claim_id", "worker_group", "worker_instance_id", "status", "claim_status", "late_ms")
            yield Reason("late", {"at": to_text(row.at), **{name: row.data.get(name) for name in names}})
        elif row.kind == REFUSED:
            data = {"topic": row.data.get("topic"), "refused": row.data.get("code")}
            yield Reason("follow_up_refused", {"at": to_text(row.at), **data})


def _pruned(db: Db, message_id: str, moment: datetime) -> MessageExplanation:
    """Explain a message of which only the journal has rows. Raises MessageUnknown if it has none."""
    rows = journal.of_message(db, message_id)
    if not rows:
        raise MessageUnknown(f"message {message_id[:80]} does not exist")
    about = {name: value for row in rows for name, value in row.data.items() if name in ("topic", "conversation_id")}
    return MessageExplanation(
        message_id=message_id,
        topic=about.get("topic"),
        conversation_id=about.get("conversation_id"),
        state=None,
        reasons=(Reason("pruned", {"last": rows[-1].kind, "last_at": to_text(rows[-1].at)}, moment),),
    )


# ── shared ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _worker(claim: Claim) -> dict[str, str]:
    return {"worker_group": claim.worker_group, "worker_instance_id": claim.worker_instance_id}


def _delivery_view(claim: Claim) -> MessageDeliveryView:
    return {
        "delivery": claim.delivery,
        "claim_id": claim.id,
        "worker_group": claim.worker_group,
        "worker_instance_id": claim.worker_instance_id,
        "claimed_at": to_text(claim.claimed_at),
        "status": claim.status,
        "ended_at": to_text_or_none(claim.completed_at),
        "reason": claim.reason,
        "job_id": claim.job_id,
    }


def _next_commands(facts: MessageFacts, reason: Reason) -> list[str]:
    """Return the commands that help, the most likely first."""
    message = facts.message
    run = [f"ductile exchange run --topic {message.topic} -- COMMAND"]
    fixes = {
        "service_down": ["ductile system start"],
        "topic_paused": [f"ductile exchange resume {message.topic}"],
        "topic_unknown_to_workers": run,
        "ready_no_worker": run,
        "ready_behind": ["ductile exchange topics"],
        "consumer_full": ["ductile job list"],
        "consumer_unavailable": ["ductile config check"],
        "ready_for_consumer": ["ductile config check"],
        "waits_for_key": [f"ductile exchange why {facts.key_holder}"] if facts.key_holder else [],
        "claimed_by_run": [f"ductile job why {reason.data.get('job_id')}"],
        "dead": [f"ductile exchange requeue {message.id}"],
        "message_purged": [f"ductile exchange requeue {message.id}"],
    }
    return fixes.get(reason.code) or [f"ductile exchange inspect --conversation {message.conversation_id}"]
