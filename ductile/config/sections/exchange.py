"""The section `exchange`: limits of the exchange, rules of topics, and consumers, which start runs for messages."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from attrs import frozen

from ductile.config.sections.value_rules import SIZE_TEXT, CommandName
from ductile.core.formats.yaml_fields import Count, EventType, Name, Number, Retention, Text, ValueRule, option
from ductile.core.message import (
    DEFAULT_BODY_BYTES,
    MAX_BODY_BYTES,
    MAX_LEASE,
    MAX_TOPIC_BYTES,
    MIN_LEASE,
    PATTERN,
    PATTERN_HELP,
    TIMEOUT_SUFFIX,
    ClaimStatus,
    TopicRules,
    default_reply_topics,
    is_topic,
    is_topic_pattern,
    most_exact_pattern,
)
from ductile.core.model import HANDLE
from ductile.core.units import format_duration, format_size
from ductile.pipeline.language.dsl import Topic

BODY_SIZE = ValueRule(
    lambda size: 1 <= size <= MAX_BODY_BYTES,
    f"1 byte to {format_size(MAX_BODY_BYTES)}",
    {"minimum": 1, "maximum": MAX_BODY_BYTES},
)
LEASE = ValueRule(
    lambda span: MIN_LEASE <= span <= MAX_LEASE, f"{format_duration(MIN_LEASE)} to {format_duration(MAX_LEASE)}"
)
TOPIC_OR_PATTERN = ValueRule(
    is_topic_pattern,
    f"{PATTERN_HELP}, at most {MAX_TOPIC_BYTES} bytes",
    {"pattern": f"^(?:{PATTERN})$", "maxLength": MAX_TOPIC_BYTES},
)

_DEFAULT = TopicRules()

Lease = Annotated[timedelta, LEASE]
TopicPattern = Annotated[str, TOPIC_OR_PATTERN]


@frozen(kw_only=True)
class TopicSettings:
    """`exchange.topics.<name>`: Rules of a topic, or of every topic that a pattern such as `review.*` matches."""

    lease: Lease | None = option("default lease of a claim; default: `exchange.lease`", default=None)
    max_deliveries: Number | None = option(
        "deliveries after which a message is dead; 0: no limit; default: `exchange.max_deliveries`", default=None
    )
    dead_letter: Topic | None = option("topic of dead letters; default: the topic with `.dead` added", default=None)
    retention: Retention | None = option(
        "how long conversations are stored; 0 stores them forever; default: `exchange.retention`", default=None
    )
    ordered: bool = option("deliver the messages of one conversation one after the other", default=False)


@frozen(kw_only=True)
class Consumer:
    """`exchange.consumers[]`: What messages of a topic start. Requires exactly one of `plugin`, `pipeline`, `event`."""

    EXACTLY_ONE: ClassVar = ("plugin", "pipeline", "event")

    topic: Topic = option("topic whose messages are consumed")
    plugin: Name | None = option("plugin that receives each message", default=None)
    command: CommandName = option("command of the plugin", default=HANDLE)
    pipeline: Text | None = option("pipeline that each message starts", default=None)
    event: EventType | None = option("event type that each message emits", default=None)
    success_topic: Topic | None = option(
        "topic of the reply when the run succeeds; default: `X.done` for `X.request`, otherwise no reply", default=None
    )
    failure_topic: Topic | None = option(
        "topic of the reply when the run fails; default: `X.failed` for `X.request`, otherwise no reply", default=None
    )
    timeout_topic: Topic | None = option(
        "topic of the reply when the run times out; default: the topic with `.timed_out` added if it has other replies",
        default=None,
    )
    max_open: Count = option("maximum runs that have not ended; more messages wait", default=100)

    def reply_topic(self, end: ClaimStatus) -> str | None:
        """Return the topic of the reply to a message whose run ended like this; None if there is no reply."""
        defaults = default_reply_topics(self.topic)
        success = self.success_topic or (defaults.success if defaults else None)
        failure = self.failure_topic or (defaults.failure if defaults else None)
        if end is not ClaimStatus.TIMED_OUT:
            return success if end is ClaimStatus.COMPLETED else failure
        own = f"{self.topic}{TIMEOUT_SUFFIX}"
        return self.timeout_topic or ((own if is_topic(own) else failure) if success or failure else None)


@frozen(kw_only=True)
class ExchangeSettings:
    """`exchange`: Messages on topics, which programs outside of Ductile publish and claim."""

    enabled: bool = option("false: no routes, no commands, no consumers", default=True)
    max_body_size: Annotated[int, SIZE_TEXT, BODY_SIZE] = option(
        "maximum bytes of the body of a message", default=DEFAULT_BODY_BYTES
    )
    lease: Lease = option("lease of claims that request none", default=_DEFAULT.lease)
    max_deliveries: Number = option(
        "deliveries after which an unhandled message is dead; 0: no limit",
        default=_DEFAULT.max_deliveries,
    )
    retention: Retention = option(
        "how long a conversation is stored after its last message, if nothing in it is open; 0 stores it forever",
        default=_DEFAULT.retention,
    )
    max_ready: Count = option(
        "maximum ready messages of one topic; more are refused with 429", default=_DEFAULT.max_ready
    )
    warn_after: Retention = option(
        "how long a message may be ready before the journal has `message.unclaimed`; 0 disables it",
        default=_DEFAULT.warn_after,
    )
    topics: Mapping[TopicPattern, TopicSettings] = option(
        "rules by topic or pattern; the most exact one applies", factory=dict
    )
    consumers: tuple[Consumer, ...] = option("runs that messages start", default=())

    def rules_of(self, topic: str) -> TopicRules:
        """Return the rules of a topic: those of its most exact entry in `topics`, otherwise those of this section."""
        pattern = most_exact_pattern(self.topics, topic)
        own = self.topics[pattern] if pattern is not None else TopicSettings()
        retention = self.retention if own.retention is None else own.retention
        return TopicRules(
            lease=own.lease or self.lease,
            max_deliveries=self.max_deliveries if own.max_deliveries is None else own.max_deliveries,
            dead_letter=own.dead_letter,
            retention=retention or None,
            max_ready=self.max_ready,
            warn_after=self.warn_after or None,
            ordered=own.ordered,
        )
