"""Rows of messages and claims as values, and how to find one. Also the state of a message, as SQL."""

from datetime import timedelta
from typing import Any

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.message import Claim, ClaimStatus, ClaimUnknown, Message, MessageState, MessageUnknown
from ductile.ledger.storage.db import Db

_COLUMNS = (
    "seq",
    "id",
    "topic",
    "body",
    "created_at",
    "parent_id",
    "conversation_id",
    "producer",
    "metadata_json",
    "ordering_key",
    "hops",
    "source_job_id",
    "published_by",
    "is_dead_letter",
)
MESSAGE_COLUMNS = ", ".join(f"message.{name}" for name in _COLUMNS)
"""Of the table with the alias `message`."""
WITHOUT_BODY = MESSAGE_COLUMNS.replace("message.body", "''")
"""MESSAGE_COLUMNS for lists: a body may have 64 MiB."""
CLAIM_COLUMNS = """id, message_id, topic, worker_group, worker_instance_id, claimed_at, lease_until, status,
    completed_at, delivery, extensions, reason, follow_up_id, job_id, claimed_by, lease_seconds"""
DELIVERY_STATE = """
    CASE WHEN delivery.claim_id IS NOT NULL THEN 'claimed' WHEN delivery.waits = 1 THEN 'waiting'
         WHEN delivery.available_at IS NOT NULL THEN 'delayed' ELSE 'ready' END
"""
"""The state of a message that has the row `delivery`."""
# A message without a delivery that no claim decided is dead: it was delivered too often, or purged.
STATE = f"""
    CASE WHEN delivery.seq IS NOT NULL THEN {DELIVERY_STATE}
         ELSE COALESCE((SELECT CASE WHEN status IN ('expired', 'released') THEN 'dead' ELSE status END
                          FROM claims WHERE message_id = message.id ORDER BY seq DESC LIMIT 1), 'dead') END
"""
"""The state of `message`, LEFT JOINed with its `delivery`."""


def message_from_row(row: tuple[Any, ...]) -> Message:
    """Build the message from a row that begins with MESSAGE_COLUMNS."""
    return Message(
        seq=row[0],
        id=row[1],
        topic=row[2],
        body=row[3],
        created_at=from_text(row[4]),
        parent_id=row[5],
        conversation_id=row[6],
        producer=row[7],
        metadata_json=row[8],
        ordering_key=row[9],
        hops=row[10],
        source_job_id=row[11],
        published_by=row[12],
        is_dead_letter=bool(row[13]),
    )


def claim_from_row(row: tuple[Any, ...]) -> Claim:
    """Build the claim from a row that begins with CLAIM_COLUMNS."""
    return Claim(
        id=row[0],
        message_id=row[1],
        topic=row[2],
        worker_group=row[3],
        worker_instance_id=row[4],
        claimed_at=from_text(row[5]),
        lease_until=from_text_or_none(row[6]),
        lease=timedelta(seconds=row[15]) if row[15] is not None else None,
        status=ClaimStatus(row[7]),
        completed_at=from_text_or_none(row[8]),
        delivery=row[9],
        extensions=row[10],
        reason=row[11],
        follow_up_id=row[12],
        job_id=row[13],
        claimed_by=row[14],
    )


GET_MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM messages AS message WHERE id = ?"


def find_message(db: Db, message_id: str) -> Message | None:
    row = db.execute(GET_MESSAGE, (message_id,)).fetchone()
    return message_from_row(row) if row else None


def require_message(db: Db, message_id: str) -> Message:
    """Return the message. Raises MessageUnknown."""
    message = find_message(db, message_id)
    if message is None:
        raise MessageUnknown(f"message {message_id} does not exist")
    return message


GET_CLAIM = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE id = ?"


def require_claim(db: Db, claim_id: str) -> Claim:
    """Return the claim. Raises ClaimUnknown."""
    row = db.execute(GET_CLAIM, (claim_id,)).fetchone()
    if row is None:
        raise ClaimUnknown(f"claim {claim_id} does not exist")
    return claim_from_row(row)


def require_own_claim(db: Db, claim_id: str, actor: str) -> Claim:
    """Return the claim if `actor` made it. The ids of claims are shown in reports, so they are not a secret."""
    claim = require_claim(db, claim_id)
    if claim.claimed_by != actor:
        raise ClaimUnknown(f"claim {claim_id} belongs to another caller")
    return claim


CLAIM_OF_JOB = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE job_id = ?"


def claim_of_job(db: Db, job_id: str) -> Claim | None:
    """Return the claim of a consumer whose run has this root job; None for any other job."""
    row = db.execute(CLAIM_OF_JOB, (job_id,)).fetchone()
    return claim_from_row(row) if row else None


MESSAGE_STATE = f"""
    SELECT {STATE} FROM messages AS message LEFT JOIN deliveries AS delivery ON delivery.seq = message.seq
     WHERE message.id = ?
"""


def state_of(db: Db, message_id: str) -> MessageState:
    """Return the state of the message. Raises MessageUnknown."""
    row = db.execute(MESSAGE_STATE, (message_id,)).fetchone()
    if row is None:
        raise MessageUnknown(f"message {message_id} does not exist")
    return MessageState(row[0])
