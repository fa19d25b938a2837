"""Messages and claims of the exchange as JSON data, for the API and the CLI."""

from typing import Annotated, Any, TypedDict

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Ordinal, Timestamp
from ductile.core.message import Claim, ClaimStatus, Message, MessageState
from ductile.ledger.exchange.publish import Published


class MessageView(TypedDict):
    message_id: str
    seq: Annotated[int, "Position of the message; later messages have larger ones"]
    topic: str
    conversation_id: str
    parent_id: Annotated[str, "The message that it answers"] | None
    producer: Annotated[str, "Sender, as named by the caller"] | None
    published_by: Annotated[str, "The caller that published it: a token, a local user, or service"]
    created_at: Timestamp
    ordering_key: Annotated[str, "Messages of a topic with the same key are delivered one after the other"] | None
    hops: Annotated[Count, "Messages between this one and the first of its chain"]
    source_job_id: Annotated[str, "The job that published it"] | None
    is_dead_letter: bool
    metadata: dict[str, Any] | None
    body: Annotated[str, "Text; null if it was not requested"] | None


class PublishedView(TypedDict):
    """A published message. In a dry run, what does not exist yet is null."""

    message_id: str | None
    conversation_id: str | None
    topic: str
    seq: int | None
    created_at: Timestamp
    state: Annotated[MessageState, "ready, delayed, or waiting for another message of its ordering key"]
    dry_run: bool


class PublishedListView(TypedDict):
    """Published messages, in the order of the request."""

    messages: list[PublishedView]
    dry_run: bool


class ClaimView(TypedDict):
    claim_id: Annotated[str, "The fencing token"]
    message_id: str
    topic: str
    worker_group: str
    worker_instance_id: str
    claimed_by: Annotated[str, "The caller that claimed the message: a token, a local user, or service"]
    claimed_at: Timestamp
    lease_until: Annotated[Timestamp, "End of the lease by the wall clock; null for a consumer"] | None
    lease_seconds: Annotated[float, "What is left of the lease; null if the claim has none or has ended"] | None
    status: ClaimStatus
    completed_at: Annotated[Timestamp, "When the claim ended"] | None
    delivery: Annotated[Ordinal, "How often the message has been claimed, with this claim"]
    extensions: Count
    reason: str | None
    follow_up_id: Annotated[str, "The message that the end of the claim published"] | None
    job_id: Annotated[str, "Root job of the run that handles the message for a consumer"] | None


class ClaimedMessageView(ClaimView):
    """A new claim with its message."""

    message: MessageView


class ClaimedListView(TypedDict):
    """New claims, oldest message first. Empty if no message was ready in time."""

    claims: list[ClaimedMessageView]
    max_body_size: Annotated[int, "Maximum bytes of the body of a follow-up"]


class ClaimEndView(TypedDict):
    """The end of a claim."""

    claim: ClaimView
    state: Annotated[MessageState, "State of the message"]
    follow_up: Annotated[MessageView, "The answer, handover or dead letter that was published, without its body"] | None
    refused: Annotated[str, "Code of the reason why the follow-up was not published"] | None
    repeated: Annotated[bool, "True if the claim had ended in the same way before"]


def message_view(message: Message, *, shows_body: bool = True) -> MessageView:
    """Return the message, with or without its body."""
    metadata = message.metadata_json
    return {
        "message_id": message.id,
        "seq": message.seq,
        "topic": message.topic,
        "conversation_id": message.conversation_id,
        "parent_id": message.parent_id,
        "producer": message.producer,
        "published_by": message.published_by,
        "created_at": to_text(message.created_at),
        "ordering_key": message.ordering_key,
        "hops": message.hops,
        "source_job_id": message.source_job_id,
        "is_dead_letter": message.is_dead_letter,
        "metadata": None if metadata is None else strict_json.loads(metadata, source="metadata"),
        "body": message.body if shows_body else None,
    }


def published_view(published: Published, *, dry_run: bool = False) -> PublishedView:
    """Return the published message, without what a dry run takes back."""
    message = published.message
    is_first = message.conversation_id == message.id
    return {
        "message_id": None if dry_run else message.id,
        "conversation_id": None if dry_run and is_first else message.conversation_id,
        "topic": message.topic,
        "seq": None if dry_run else message.seq,
        "created_at": to_text(message.created_at),
        "state": published.state,
        "dry_run": dry_run,
    }


def claim_view(claim: Claim, lease_seconds: float | None) -> ClaimView:
    """Return the claim, with what is left of its lease."""
    return {
        "claim_id": claim.id,
        "message_id": claim.message_id,
        "topic": claim.topic,
        "worker_group": claim.worker_group,
        "worker_instance_id": claim.worker_instance_id,
        "claimed_by": claim.claimed_by,
        "claimed_at": to_text(claim.claimed_at),
        "lease_until": to_text_or_none(claim.lease_until),
        "lease_seconds": None if lease_seconds is None else round(lease_seconds, 3),
        "status": claim.status,
        "completed_at": to_text_or_none(claim.completed_at),
        "delivery": claim.delivery,
        "extensions": claim.extensions,
        "reason": claim.reason,
        "follow_up_id": claim.follow_up_id,
        "job_id": claim.job_id,
    }


def claim_end_view(
    claim: Claim,
    state: MessageState,
    follow_up: Message | None,
    *,
    refused: str | None = None,
    repeated: bool,
) -> ClaimEndView:
    """Return the ended claim, with the message that its end published. Its body is not sent back to its sender."""
    return {
        "claim": claim_view(claim, None),
        "state": state,
        "follow_up": None if follow_up is None else message_view(follow_up, shows_body=False),
        "refused": refused,
        "repeated": repeated,
    }
