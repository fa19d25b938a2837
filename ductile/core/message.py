"""Messages of the exchange: values, rules of topics, checks of what callers send, and errors.

Does not know how messages are stored. Metadata is JSON text that was checked here and is not parsed again.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from attrs import field, frozen

from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.statuses import ClaimStatus as ClaimStatus
from ductile.core.statuses import MessageState as MessageState
from ductile.core.units import format_duration, format_size, parse_duration, quote_text

TOPIC = "[a-z0-9]+(?:[._-][a-z0-9]+)*"
TOPIC_HELP = "lower-case words joined by '.', '_' or '-', such as review.request"
PATTERN = rf"\*|{TOPIC}(?:\.\*)?"
PATTERN_HELP = "a topic such as review.request, a pattern such as review.*, or *"
MAX_TOPIC_BYTES = MAX_NAME_BYTES = 200
"""Of a topic; of a producer, a conversation id, an ordering key, a worker group and a worker instance."""
MAX_METADATA_BYTES = 64 << 10
MAX_METADATA_DEPTH = 64
DEFAULT_BODY_BYTES = 1 << 20
MAX_BODY_BYTES = 64 << 20
"""The highest limit that can be configured."""
MAX_PUBLISH, MAX_CLAIMS = 1_000, 100
"""Messages in one request to publish or to claim."""
MAX_HOPS = 20
MIN_LEASE, DEFAULT_LEASE, MAX_LEASE = timedelta(seconds=1), timedelta(seconds=90), timedelta(hours=12)
RESTART_LEASE = timedelta(seconds=10)
"""What an active claim has left after a restart of the service, at least."""
MAX_DELAY = timedelta(days=365)
DEAD_LETTER_SUFFIX, TIMEOUT_SUFFIX = ".dead", ".timed_out"


class MessageInvalid(DuctileError):
    """A field of the message or claim is invalid."""

    code, exit_code, status = "message_invalid", 2, 400
    hint = "Correct the field and send the request again. Nothing was stored."


class TopicInvalid(MessageInvalid):
    """The topic is invalid."""

    code = "topic_invalid"
    hint = f"Use {TOPIC_HELP}, at most {MAX_TOPIC_BYTES} bytes."


class BodyMissing(MessageInvalid):
    """The message has no body."""

    code = "body_missing"
    hint = "Add a body. It may be an empty text."


class BodyTooLarge(MessageInvalid):
    """The body is too large."""

    code, status = "body_too_large", 413
    hint = "Send less, or store the content elsewhere and send its address. The limit is `exchange.max_body_size`."


class BodyNotText(MessageInvalid):
    """The body is not UTF-8 text."""

    code = "body_not_text"
    hint = "Encode binary content, for example as base64."


class MetadataInvalid(MessageInvalid):
    """The metadata is not a JSON object within the limits."""

    code = "metadata_invalid"
    hint = f"Send a JSON object of at most {format_size(MAX_METADATA_BYTES)} and {MAX_METADATA_DEPTH} levels."


class LeaseInvalid(MessageInvalid):
    """The lease is invalid."""

    code = "lease_invalid"
    hint = f"Use a duration from {format_duration(MIN_LEASE)} to {format_duration(MAX_LEASE)}, such as 90s."


class DelayInvalid(MessageInvalid):
    """The delay is invalid."""

    code = "delay_invalid"
    hint = f"Use a duration from 0s to {format_duration(MAX_DELAY)}, such as 10m."


class ParentUnknown(DuctileError):
    """The parent message does not exist."""

    code, exit_code, status = "parent_unknown", 1, 422
    hint = "Use the id of an existing message. Retention deletes old conversations as a whole."


class HopsExceeded(DuctileError):
    """The chain of messages is too long."""

    code, exit_code, status = "hops_exceeded", 1, 422
    hint = "Workers that answer each other without end cause this. Publish without a parent to begin a new chain."


class TopicFull(DuctileError):
    """The topic has too many ready messages."""

    code, exit_code, status = "topic_full", 75, 429
    hint = "Try again later, start more workers, or raise `exchange.max_ready`."


class ClaimLost(DuctileError):
    """The claim has ended."""

    code, exit_code, status = "claim_lost", 1, 409
    hint = "Discard the result. `ductile exchange why` shows how the claim ended and where the message is."


class ClaimUnknown(DuctileError):
    """There is no claim with this id."""

    code, exit_code, status = "claim_unknown", 1, 404
    hint = "Use the claim id that `ductile exchange claim` returned."


class MessageUnknown(DuctileError):
    """There is no message with this id."""

    code, exit_code, status = "message_unknown", 1, 404
    hint = "`ductile exchange read` lists messages. Retention deletes old conversations."


@frozen(kw_only=True)
class ReplyTopics:
    """The topics on which the replies to a request arrive. A dead letter is a reply on any topic."""

    success: str
    failure: str
    timeout: str


@frozen(kw_only=True)
class NewMessage:
    """A message to be published. `checked_message` builds one from what a caller sends."""

    topic: str
    body: str = field(repr=False)
    parent_id: str | None = None
    conversation_id: str | None = None
    producer: str | None = None
    metadata_json: str | None = field(default=None, repr=False)
    ordering_key: str | None = None
    delay: timedelta = timedelta()
    source_job_id: str | None = None
    reply_topics: ReplyTopics | None = None
    """Set to notify the sender of the first reply."""


@frozen(kw_only=True)
class Message:
    """A published message. It never changes."""

    seq: int
    id: str
    topic: str
    body: str = field(repr=False)
    created_at: datetime
    parent_id: str | None
    conversation_id: str
    producer: str | None
    metadata_json: str | None = field(repr=False)
    ordering_key: str | None
    hops: int
    source_job_id: str | None
    published_by: str
    is_dead_letter: bool = False


@frozen(kw_only=True)
class Claim:
    """An attempt of a worker to handle a message. The id is the fencing token; `delivery` counts from 1.

    A claim without `lease_until` belongs to a consumer and ends with the run of `job_id`.
    """

    id: str
    message_id: str
    topic: str
    worker_group: str
    worker_instance_id: str
    claimed_at: datetime
    lease_until: datetime | None
    lease: timedelta | None
    """The length of the lease, from the claim or its last extension."""
    status: ClaimStatus
    completed_at: datetime | None
    delivery: int
    extensions: int
    reason: str | None
    follow_up_id: str | None
    job_id: str | None
    claimed_by: str


@frozen(kw_only=True)
class FollowUp:
    """The message that the end of a claim publishes. Parent, conversation and hops come from the claimed message."""

    topic: str
    body: str = field(repr=False)
    metadata_json: str | None = field(default=None, repr=False)
    source_job_id: str | None = None


@frozen(kw_only=True)
class TopicRules:
    """The rules of one topic."""

    lease: timedelta = DEFAULT_LEASE
    max_deliveries: int = 5
    """0 means no limit."""
    dead_letter: str | None = None
    """None means `<topic>.dead`."""
    retention: timedelta | None = timedelta(days=30)
    """None means no retention."""
    max_ready: int = 100_000
    warn_after: timedelta | None = timedelta(minutes=10)
    ordered: bool = False
    """The messages of one conversation are delivered one after the other."""

    def dead_letter_of(self, topic: str) -> str:
        """Return the topic of the dead letters of `topic`; the same topic if its name has no room for the suffix."""
        name = self.dead_letter or topic + DEAD_LETTER_SUFFIX
        return name if is_topic(name) else topic


RulesOf: TypeAlias = Callable[[str], TopicRules]
"""Returns the rules of a topic."""


def default_reply_topics(topic: str) -> ReplyTopics | None:
    """Return `X.done`, `X.failed` and `X.request.timed_out` for `X.request`; None for another topic."""
    name, dot, last = topic.rpartition(".")
    if not (name and dot) or last != "request":
        return None
    return ReplyTopics(success=f"{name}.done", failure=f"{name}.failed", timeout=timeout_topic_of(topic))


def timeout_topic_of(topic: str) -> str:
    """Return the default topic of replies of workers that timed out."""
    return f"{topic}{TIMEOUT_SUFFIX}"


def is_topic(text: str) -> bool:
    return len(text) <= MAX_TOPIC_BYTES and re.fullmatch(TOPIC, text, re.ASCII) is not None


def is_topic_pattern(text: str) -> bool:
    return len(text) <= MAX_TOPIC_BYTES and re.fullmatch(PATTERN, text, re.ASCII) is not None


def topic_matches(pattern: str, topic: str) -> bool:
    """True if the pattern is the topic, `*`, or `a.*` for a topic that begins with `a.`."""
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == topic


def most_exact_pattern(patterns: Iterable[str], topic: str) -> str | None:
    """Return the pattern that decides for `topic`: its own name, else the longest that matches; None if none does."""
    matching = [pattern for pattern in patterns if topic_matches(pattern, topic)]
    return max(matching, key=lambda pattern: (not pattern.endswith("*"), len(pattern)), default=None)


def checked_topic(topic: object) -> str:
    """Return the topic. Raises TopicInvalid."""
    if isinstance(topic, str) and is_topic(topic):
        return topic
    if not isinstance(topic, str) or not topic:
        raise TopicInvalid("a topic is required")
    raise TopicInvalid(f"topic {quote_text(topic)}: expected {TOPIC_HELP}, at most {MAX_TOPIC_BYTES} bytes")


def checked_message(
    *,
    topic: object,
    body: object,
    parent_id: object = None,
    conversation_id: object = None,
    producer: object = None,
    metadata: object = None,
    ordering_key: object = None,
    delay: object = None,
    max_body_size: int = DEFAULT_BODY_BYTES,
) -> NewMessage:
    """Return a message with these fields. Raises MessageInvalid or one of its subclasses for the first wrong one."""
    content = checked_follow_up(topic=topic, body=body, metadata=metadata, max_body_size=max_body_size)
    return NewMessage(
        topic=content.topic,
        body=content.body,
        metadata_json=content.metadata_json,
        parent_id=checked_name("parent_id", parent_id),
        conversation_id=checked_name("conversation_id", conversation_id),
        producer=checked_name("producer", producer),
        ordering_key=checked_name("ordering_key", ordering_key),
        delay=checked_delay(delay),
    )


def checked_follow_up(
    *, topic: object, body: object, metadata: object = None, max_body_size: int = DEFAULT_BODY_BYTES
) -> FollowUp:
    """Return a follow-up with these fields. Raises MessageInvalid or one of its subclasses."""
    name = checked_topic(topic)
    text = checked_body(body, max_body_size=max_body_size)
    return FollowUp(topic=name, body=text, metadata_json=checked_metadata(metadata))


def checked_body(body: object, *, max_body_size: int = DEFAULT_BODY_BYTES) -> str:
    """Return the body as text. Raises BodyMissing, BodyNotText or BodyTooLarge."""
    if body is None:
        raise BodyMissing
    if not isinstance(body, str | bytes):
        raise BodyNotText(f"body: expected text, not {type(body).__name__}")
    try:
        content = body if isinstance(body, bytes) else body.encode()
        text = body if isinstance(body, str) else body.decode()
    except UnicodeError as error:
        raise BodyNotText(f"body: not UTF-8 text at position {getattr(error, 'start', 0)}") from error
    if len(content) > max_body_size:
        sizes = {"size": len(content), "max_size": max_body_size}
        raise BodyTooLarge(f"body: {len(content):,} bytes, at most {max_body_size:,} are allowed", context=sizes)
    return text


def checked_metadata(metadata: object) -> str | None:
    """Return the metadata as JSON text; None if there is none. Takes an object or its JSON text."""
    if metadata is None:
        return None
    value = _parsed_metadata(metadata) if isinstance(metadata, str | bytes) else metadata
    if not isinstance(value, dict):
        raise MetadataInvalid("metadata: expected a JSON object")
    try:
        text = strict_json.dumps(value)
    except (TypeError, ValueError) as error:
        raise MetadataInvalid(f"metadata: {error}") from error
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise MetadataInvalid(f"metadata: {len(text.encode()):,} bytes, at most {MAX_METADATA_BYTES:,} are allowed")
    _parsed_metadata(text)  # an object that was not parsed can be nested too deeply
    return text


def _parsed_metadata(text: str | bytes) -> Any:
    try:
        return strict_json.loads(text, source="metadata", max_depth=MAX_METADATA_DEPTH)
    except Unreadable as error:
        raise MetadataInvalid(f"metadata: {error.reason}") from error


def checked_name(name: str, value: object, *, required: bool = False) -> str | None:
    """Return the field `name`: text in one line of at most 200 bytes, or None. Raises MessageInvalid."""
    if value is None and not required:
        return None
    if not isinstance(value, str) or not value.strip():
        raise MessageInvalid(f"{name}: expected text that is not blank")
    try:
        size = len(value.encode())
    except UnicodeError as error:
        raise MessageInvalid(f"{name}: not UTF-8 text") from error
    if size > MAX_NAME_BYTES or re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise MessageInvalid(f"{name}: expected one line of at most {MAX_NAME_BYTES} bytes without control characters")
    return value


def checked_lease(lease: object) -> timedelta:
    """Return the lease: a duration such as `90s`, or a number of seconds. Raises LeaseInvalid."""
    span = _duration(lease, LeaseInvalid)
    if not MIN_LEASE <= span <= MAX_LEASE:
        limits = f"from {format_duration(MIN_LEASE)} to {format_duration(MAX_LEASE)}"
        raise LeaseInvalid(f"lease: {format_duration(span)} is not {limits}")
    return span


def checked_delay(delay: object) -> timedelta:
    """Return the delay: a duration such as `10m`, or a number of seconds; None is zero. Raises DelayInvalid."""
    if delay is None:
        return timedelta()
    span = _duration(delay, DelayInvalid)
    if not timedelta() <= span <= MAX_DELAY:
        raise DelayInvalid(f"delay: {format_duration(span)} is not from 0s to {format_duration(MAX_DELAY)}")
    return span


def _duration(value: object, refusal: type[MessageInvalid]) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, str):
            return parse_duration(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
    except (ValueError, OverflowError) as error:
        raise refusal(str(error)) from error
    raise refusal(f"expected a duration such as 90s, not {type(value).__name__}")
