"""End, release, extend and expire claims. Only an active claim changes anything: its id is the fencing token.

One transaction has everything that the end of a claim leads to: claim, delivery, the next message of the ordering key,
follow-up and journal. Whether a lease is over is the caller's decision.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.message import (
    Claim,
    ClaimLost,
    ClaimStatus,
    FollowUp,
    HopsExceeded,
    Message,
    MessageState,
    RulesOf,
)
from ductile.ledger.exchange.lanes import Removed, put_back, remove_delivery
from ductile.ledger.exchange.publish import SERVICE, Published, publish_dead_letter, publish_follow_up
from ductile.ledger.exchange.rows import (
    CLAIM_COLUMNS,
    claim_from_row,
    find_message,
    require_message,
    require_own_claim,
    state_of,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

LEASE_OVER = "lease_over"
"""The reason of an expired claim."""


@frozen(kw_only=True)
class Ended:
    """The end of a claim by its worker: complete, fail or time out."""

    claim: Claim
    follow_up: Message | None = None
    refused: str | None = None
    """The code why the follow-up was not published."""
    is_repeat: bool = False
    """The claim had ended in the same way before, and nothing has changed."""
    woken: tuple[str, ...] = ()
    """The topic of each message that has become ready."""
    conversation_id: str | None = None
    """The conversation of the message; None for a repeated end."""


@frozen(kw_only=True)
class Returned:
    """A claim that was released or has expired. Its message is delivered again, or it is dead."""

    claim: Claim
    state: MessageState
    dead_letter: Message | None = None
    is_repeat: bool = False
    woken: tuple[str, ...] = ()


@frozen(kw_only=True)
class LostClaim:
    """The claim had ended before, so nothing has changed. `holder` is the claim that has the message now."""

    claim: Claim
    state: MessageState | None
    """None if the message was deleted."""
    holder: Claim | None

    def error(self) -> ClaimLost:
        """Return the error for the caller."""
        claim, holder = self.claim, self.holder
        ended_at = to_text_or_none(claim.completed_at)
        context: dict[str, Any] = {
            "claim_id": claim.id,
            "message_id": claim.message_id,
            "claim_status": claim.status,
            "ended_at": ended_at,
            "message_state": self.state,
        }
        if holder:
            context["claimed_by_group"], context["claimed_by_instance"] = holder.worker_group, holder.worker_instance_id
        return ClaimLost(f"claim {claim.id} has ended: {claim.status} at {ended_at}", context=context)


END_CLAIM = """
    UPDATE claims SET status = ?, completed_at = ?, reason = ?, follow_up_id = ? WHERE id = ? AND status = 'active'
"""


def end(
    db: Db,
    claim_id: str,
    status: ClaimStatus,
    *,
    now: datetime,
    actor: str,
    rules: RulesOf,
    follow_up: FollowUp | None = None,
    reason: str | None = None,
) -> Ended | LostClaim:
    """End the claim as completed, failed or timed out, and publish the follow-up. The message is then decided.

    The same end again returns the same result. A follow-up beyond the hop limit is refused, but the claim ends. Raises
    ClaimUnknown if the claim does not exist or belongs to another caller.
    """
    assert status.decides, f"{status} does not decide a message"
    claim = require_own_claim(db, claim_id, actor)
    if claim.status is not ClaimStatus.ACTIVE:
        return _repeated_end(db, claim, status, follow_up) or _late(db, claim, status, follow_up, now=now, actor=actor)
    message = require_message(db, claim.message_id)
    removed = remove_delivery(db, message.seq, now=now)
    published, refused = _publish_answer(db, message, claim, follow_up, now=now, actor=actor, rules=rules)
    failpoint("exchange.end")
    answer = published.message if published else None
    ended = _end_row(db, claim, status, reason=refused or reason, follow_up=answer, now=now)
    _journal_end(db, ended, answer, actor=actor)
    return Ended(
        claim=ended,
        follow_up=answer,
        refused=refused,
        woken=_woken(removed, published),
        conversation_id=message.conversation_id,
    )


def hand_over(
    db: Db, claim_id: str, topic: str, *, now: datetime, actor: str, rules: RulesOf, reason: str | None = None
) -> Ended | LostClaim:
    """Complete the claim with the same body as a follow-up on another topic."""
    message = require_message(db, require_own_claim(db, claim_id, actor).message_id)
    follow_up = FollowUp(topic=topic, body=message.body, metadata_json=message.metadata_json)
    completed = ClaimStatus.COMPLETED
    return end(db, claim_id, completed, now=now, actor=actor, rules=rules, follow_up=follow_up, reason=reason)


def release(
    db: Db,
    claim_id: str,
    *,
    now: datetime,
    actor: str,
    rules: RulesOf,
    delay: timedelta = timedelta(),
    reason: str | None = None,
    uncounted: bool = False,
) -> Returned | LostClaim:
    """Give the message back to the front of its topic, after the delay. `uncounted`: the delivery does not count.

    At `max_deliveries` the message is dead instead. A second release returns the same result.
    """
    claim = require_own_claim(db, claim_id, actor)
    if claim.status is ClaimStatus.RELEASED:
        dead_letter = find_message(db, claim.follow_up_id) if claim.follow_up_id else None
        return Returned(claim=claim, state=state_of(db, claim.message_id), dead_letter=dead_letter, is_repeat=True)
    if claim.status is not ClaimStatus.ACTIVE:
        return _lost(db, claim)
    released = ClaimStatus.RELEASED
    return _return(
        db, claim, released, now=now, actor=actor, rules=rules, delay=delay, reason=reason, uncounted=uncounted
    )


GET_CLAIMS = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE id = ? AND status = 'active'"


def expire_claims(db: Db, claim_ids: Iterable[str], *, now: datetime, rules: RulesOf) -> list[Returned]:
    """Expire those of the claims that are active. Their messages are delivered again, or are dead."""
    rows = [row for claim_id in claim_ids for row in db.execute(GET_CLAIMS, (claim_id,)).fetchall()]
    expired = ClaimStatus.EXPIRED
    return [
        _return(db, claim_from_row(row), expired, now=now, actor=SERVICE, rules=rules, reason=LEASE_OVER)
        for row in rows
    ]


EXTEND = """
    UPDATE claims SET lease_until = ?, lease_seconds = ?, extensions = extensions + 1 WHERE id = ? AND status = 'active'
"""


def extend(db: Db, claim_id: str, *, lease: timedelta | None, now: datetime, actor: str) -> Claim | LostClaim:
    """Begin the lease again, with its length if `lease` is None. Raises ClaimUnknown as `end` does."""
    claim = require_own_claim(db, claim_id, actor)
    length = lease or claim.lease
    assert length is not None, "the claims of consumers belong to the service"
    until = now + length
    if db.execute(EXTEND, (to_text(until), length.total_seconds(), claim_id)).rowcount == 0:
        return _lost(db, claim)
    return evolve(claim, lease_until=until, lease=length, extensions=claim.extensions + 1)


# ── the end by the worker ────────────────────────────────────────────────────────────────────────────────────────────


def _publish_answer(
    db: Db, message: Message, claim: Claim, follow_up: FollowUp | None, *, now: datetime, actor: str, rules: RulesOf
) -> tuple[Published | None, str | None]:
    """Publish the follow-up. Return it, or the code of the refusal."""
    if follow_up is None:
        return None, None
    try:
        producer = claim.worker_group
        published = publish_follow_up(db, message, follow_up, producer=producer, now=now, actor=actor, rules=rules)
    except HopsExceeded as error:
        data = {"code": error.code, "topic": follow_up.topic, "claim_id": claim.id, **_digest(follow_up)}
        journal.append(db, "message.refused", now=now, message_id=message.id, data=data, actor=actor)
        return None, error.code
    return published, None


def _repeated_end(db: Db, claim: Claim, status: ClaimStatus, follow_up: FollowUp | None) -> Ended | None:
    """Return the result of the earlier end if it was the same; None if it was another."""
    if claim.status is not status:
        return None
    if claim.follow_up_id is None:
        is_refused = claim.reason == HopsExceeded.code
        if (follow_up is None) == is_refused:
            return None
        return Ended(claim=claim, refused=claim.reason if is_refused else None, is_repeat=True)
    answer = find_message(db, claim.follow_up_id)
    if follow_up is None or answer is None or (answer.topic, answer.body) != (follow_up.topic, follow_up.body):
        return None
    return Ended(claim=claim, follow_up=answer, is_repeat=True)


def _late(
    db: Db, claim: Claim, status: ClaimStatus, follow_up: FollowUp | None, *, now: datetime, actor: str
) -> LostClaim:
    """Journal what a worker brought after its claim had ended."""
    late = (now - claim.completed_at) if claim.completed_at else timedelta()
    data = {
        **_about(claim),
        "claim_status": claim.status,
        "status": status,
        "late_ms": max(late // timedelta(milliseconds=1), 0),
        **(_digest(follow_up) if follow_up else {}),
    }
    journal.append(db, "message.late", now=now, message_id=claim.message_id, data=data, actor=actor)
    return _lost(db, claim)


HOLDER = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE message_id = ? AND status = 'active'"


def _lost(db: Db, claim: Claim) -> LostClaim:
    holder = db.execute(HOLDER, (claim.message_id,)).fetchone()
    known = find_message(db, claim.message_id) is not None
    return LostClaim(
        claim=claim,
        state=state_of(db, claim.message_id) if known else None,
        holder=claim_from_row(holder) if holder else None,
    )


def _journal_end(db: Db, ended: Claim, answer: Message | None, *, actor: str) -> None:
    assert ended.completed_at is not None
    data = {**_about(ended), "duration_ms": (ended.completed_at - ended.claimed_at) // timedelta(milliseconds=1)}
    if answer:
        data |= {"follow_up_id": answer.id, "follow_up_topic": answer.topic}
    if ended.reason:
        data["reason"] = ended.reason
    entry = (ended.message_id, ended.job_id, data)
    journal.append_of_messages(db, f"message.{ended.status}", [entry], now=ended.completed_at, actor=actor)


# ── the return of a message ──────────────────────────────────────────────────────────────────────────────────────────


def _return(
    db: Db,
    claim: Claim,
    status: ClaimStatus,
    *,
    now: datetime,
    actor: str,
    rules: RulesOf,
    delay: timedelta = timedelta(),
    reason: str | None,
    uncounted: bool = False,
) -> Returned:
    most = rules(claim.topic).max_deliveries
    message = require_message(db, claim.message_id)
    if most and claim.delivery >= most and not uncounted:
        return _bury(db, claim, message, status, now=now, actor=actor, rules=rules, reason=reason)
    failpoint("exchange.expire")
    state = put_back(db, message, now=now, delay=delay, reason=reason, uncounted=uncounted)
    ended = _end_row(db, claim, status, reason=reason, follow_up=None, now=now)
    _journal_return(db, ended, state, now=now, actor=actor, uncounted=uncounted)
    woken = (claim.topic,) if state is MessageState.READY else ()
    return Returned(claim=ended, state=state, woken=woken)


def _bury(
    db: Db,
    claim: Claim,
    message: Message,
    status: ClaimStatus,
    *,
    now: datetime,
    actor: str,
    rules: RulesOf,
    reason: str | None,
) -> Returned:
    """End the message as dead, with a dead letter unless it is one itself."""
    removed = remove_delivery(db, message.seq, now=now)
    published = None
    if not message.is_dead_letter:
        about = {"message_id": message.id, "topic": message.topic, "deliveries": claim.delivery, "reason": reason}
        topic, text = rules(message.topic).dead_letter_of(message.topic), strict_json.dumps({"dead_letter": about})
        published = publish_dead_letter(db, message, text, topic=topic, now=now, rules=rules)
    letter = published.message if published else None
    ended = _end_row(db, claim, status, reason=reason, follow_up=letter, now=now)
    _journal_return(db, ended, MessageState.DEAD, now=now, actor=actor, uncounted=False)
    data: dict[str, Any] = {"topic": message.topic, "deliveries": claim.delivery}
    if letter:
        data |= {"dead_letter_id": letter.id, "dead_letter_topic": letter.topic}
    journal.append(db, "message.dead", now=now, message_id=message.id, data=data)
    return Returned(claim=ended, state=MessageState.DEAD, dead_letter=letter, woken=_woken(removed, published))


def _journal_return(db: Db, ended: Claim, state: MessageState, *, now: datetime, actor: str, uncounted: bool) -> None:
    data = {**_about(ended), "state": state}
    if ended.reason:
        data["reason"] = ended.reason
    if uncounted:
        data["uncounted"] = True
    author = None if ended.status is ClaimStatus.EXPIRED else actor
    kind = f"message.{ended.status}"
    journal.append_of_messages(db, kind, [(ended.message_id, ended.job_id, data)], now=now, actor=author)


# ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _end_row(
    db: Db, claim: Claim, status: ClaimStatus, *, reason: str | None, follow_up: Message | None, now: datetime
) -> Claim:
    follow_up_id = follow_up.id if follow_up else None
    changed = db.execute(END_CLAIM, (status, to_text(now), reason, follow_up_id, claim.id)).rowcount
    assert changed == 1, "the claim that was just read is active: this transaction is the only writer"
    return evolve(claim, status=status, completed_at=now, reason=reason, follow_up_id=follow_up_id)


def _about(claim: Claim) -> dict[str, Any]:
    return {
        "topic": claim.topic,
        "claim_id": claim.id,
        "delivery": claim.delivery,
        "worker_group": claim.worker_group,
        "worker_instance_id": claim.worker_instance_id,
    }


def _digest(follow_up: FollowUp) -> dict[str, Any]:
    content = follow_up.body.encode()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _woken(removed: Removed, published: Published | None) -> tuple[str, ...]:
    woken = (removed.woken,) if removed.woken else ()
    return (*woken, published.message.topic) if published and published.state is MessageState.READY else woken
