"""Claim the oldest ready messages of topics. The id of a claim is its fencing token.

A ready message has its topic in the `lane` column. Messages that are delayed, claimed or decided are never read, so the
cost of a claim depends neither on history nor on the backlog.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text, to_text_or_none
from ductile.core.instance.failpoints import failpoint
from ductile.core.message import Claim, ClaimStatus, Message
from ductile.ledger.exchange.rows import (
    CLAIM_COLUMNS,
    MESSAGE_COLUMNS,
    claim_from_row,
    message_from_row,
)
from ductile.ledger.jobs.enqueue import new_ids
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using
from ductile.ledger.tables import journal

CLOCK_SLACK = timedelta(seconds=60)
"""A message that was delayed further in the future was delayed before the clock was set back. It is due."""

MAX_CLAIM_CHARS = 16 << 20
"""A claim of several messages ends with the body that reaches this."""


@frozen(kw_only=True)
class Worker:
    """Who claims: a group and one instance of it, and the caller by its token."""

    group: str
    instance_id: str
    actor: str


@frozen(kw_only=True)
class ClaimedMessage:
    """A claim and its message."""

    claim: Claim
    message: Message
    ready_at: datetime
    """Since when the message was ready."""


def claim_messages(
    db: Db,
    topics: Sequence[str],
    worker: Worker,
    *,
    lease: timedelta | None,
    limit: int = 1,
    now: datetime,
) -> list[ClaimedMessage]:
    """Claim up to `limit` ready messages of these topics, oldest first. `lease=None` is for consumers.

    Fewer are claimed if their bodies are large.
    Messages of paused topics stay ready. Messages whose delay is over become ready first.
    """
    wake_due(db, now=now)
    heads = sorted(head for topic in dict.fromkeys(topics) for head in _heads(db, topic, limit))[:limit]
    claimed: list[ClaimedMessage] = []
    size = 0
    for (seq,), claim_id in zip(heads, new_ids(now, len(heads)), strict=True):
        claimed.append(_claim(db, seq, claim_id, worker, lease=lease, now=now))
        size += len(claimed[-1].message.body)
        if size >= MAX_CLAIM_CHARS:
            break
    failpoint("exchange.claim")
    entries = [(one.message.id, None, _data(one)) for one in claimed]
    journal.append_of_messages(db, "message.claimed", entries, now=now, actor=worker.actor)
    return claimed


# A paused topic has no lane: a condition beside it would be tested for each ready message.
OLDEST_READY = f"""
    SELECT seq FROM deliveries {using("deliveries_lanes")}
     WHERE lane = (SELECT :topic WHERE NOT EXISTS (SELECT 1 FROM topic_pauses WHERE topic = :topic))
     ORDER BY seq LIMIT :limit
"""


def _heads(db: Db, topic: str, limit: int) -> list[tuple[int]]:
    return db.execute(OLDEST_READY, {"topic": topic, "limit": limit}).fetchall()


TAKE = """
    UPDATE deliveries SET lane = NULL, claim_id = ?, deliveries = deliveries + 1 WHERE seq = ? AND lane IS NOT NULL
    RETURNING deliveries, ready_at
"""
MESSAGE_AT = f"SELECT {MESSAGE_COLUMNS} FROM messages AS message WHERE seq = ?"
INSERT_CLAIM = """
    INSERT INTO claims (id, message_id, topic, worker_group, worker_instance_id, claimed_at, lease_until, lease_seconds,
                        status, delivery, claimed_by)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'active', ?, ?)
"""


def _claim(
    db: Db, seq: int, claim_id: str, worker: Worker, *, lease: timedelta | None, now: datetime
) -> ClaimedMessage:
    ((delivery, ready_at),) = db.execute(TAKE, (claim_id, seq)).fetchall()
    message = message_from_row(db.execute(MESSAGE_AT, (seq,)).fetchone())
    lease_until = now + lease if lease is not None else None
    about = (claim_id, message.id, message.topic, worker.group, worker.instance_id)
    seconds = lease.total_seconds() if lease is not None else None
    times = (to_text(now), to_text_or_none(lease_until), seconds)
    db.execute(INSERT_CLAIM, (*about, *times, delivery, worker.actor))
    claim = Claim(
        id=claim_id,
        message_id=message.id,
        topic=message.topic,
        worker_group=worker.group,
        worker_instance_id=worker.instance_id,
        claimed_at=now,
        lease_until=lease_until,
        lease=lease,
        status=ClaimStatus.ACTIVE,
        completed_at=None,
        delivery=delivery,
        extensions=0,
        reason=None,
        follow_up_id=None,
        job_id=None,
        claimed_by=worker.actor,
    )
    return ClaimedMessage(claim=claim, message=message, ready_at=from_text(ready_at))


def _data(claimed: ClaimedMessage) -> dict[str, Any]:
    claim = claimed.claim
    waited = (claim.claimed_at - claimed.ready_at) // timedelta(milliseconds=1)
    return {
        "topic": claim.topic,
        "claim_id": claim.id,
        "delivery": claim.delivery,
        "worker_group": claim.worker_group,
        "worker_instance_id": claim.worker_instance_id,
        "waited_ms": max(waited, 0),
    }


SET_JOB = "UPDATE claims SET job_id = ? WHERE id = ?"


def set_job(db: Db, claim_id: str, job_id: str) -> None:
    """Store the root job of the run that handles the message of a consumer's claim."""
    db.execute(SET_JOB, (job_id, claim_id))


# ── delayed messages ─────────────────────────────────────────────────────────────────────────────────────────────────

# Checked first: nearly always no message is due.
ANY_DUE = """
    SELECT EXISTS (SELECT 1 FROM deliveries WHERE available_at <= ? AND waits = 0)
        OR EXISTS (SELECT 1 FROM deliveries WHERE delayed_at > ? AND available_at IS NOT NULL AND waits = 0)
"""
_READY = "available_at = NULL, delayed_at = NULL, ready_at = :now, lane = topic"
WAKE_DUE = f"UPDATE deliveries SET {_READY} WHERE available_at <= :due AND waits = 0 RETURNING topic"
WAKE_AFTER_CLOCK_JUMP = f"""
    UPDATE deliveries SET {_READY}
     WHERE delayed_at > :due AND available_at IS NOT NULL AND waits = 0 RETURNING topic
"""


def wake_due(db: Db, *, now: datetime) -> list[str]:
    """Make delayed messages ready that are due, or were delayed before the clock was set back. Return their topics."""
    due, stranded = to_text(now), to_text(now + CLOCK_SLACK)
    if not db.execute(ANY_DUE, (due, stranded)).fetchone()[0]:
        return []
    woken = db.execute(WAKE_DUE, {"now": due, "due": due}).fetchall()
    woken += db.execute(WAKE_AFTER_CLOCK_JUMP, {"now": due, "due": stranded}).fetchall()
    return [topic for (topic,) in woken]


NEXT_DUE = "SELECT MIN(available_at) FROM deliveries WHERE available_at IS NOT NULL AND waits = 0"


def next_due(db: Db) -> datetime | None:
    """Return when the next delayed message becomes ready; None if none is delayed."""
    return from_text_or_none(db.execute(NEXT_DUE).fetchone()[0])


# ── after a start ────────────────────────────────────────────────────────────────────────────────────────────────────

ACTIVE_CLAIMS = f"""
    SELECT {CLAIM_COLUMNS} FROM claims {using("claims_active")} WHERE status = 'active' AND lease_until IS NOT NULL
"""


def active_claims(db: Db) -> list[Claim]:
    """Return the active claims that have a lease. A service reads them at its start."""
    return [claim_from_row(row) for row in db.execute(ACTIVE_CLAIMS)]


READY_TOPICS = """
    WITH RECURSIVE ready (topic) AS (
        SELECT MIN(lane) FROM deliveries WHERE lane IS NOT NULL
        UNION ALL
        SELECT (SELECT MIN(lane) FROM deliveries WHERE lane > ready.topic) FROM ready WHERE ready.topic IS NOT NULL
    )
    SELECT topic FROM ready WHERE topic IS NOT NULL
"""


def topics_with_ready_messages(db: Db) -> list[str]:
    """Return the topics that have ready messages, also paused ones. One index step per topic."""
    return [topic for (topic,) in db.execute(READY_TOPICS)]
