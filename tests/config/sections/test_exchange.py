"""The section `exchange`: the rules of each topic, consumers and their replies."""

from datetime import timedelta

import pytest

from ductile.config.sections.exchange import Consumer, ExchangeSettings, TopicSettings
from ductile.core.message import DEFAULT_LEASE, ClaimStatus, TopicRules
from tests.config.conftest import ConfigDir

TOPICS = """
exchange:
  lease: 2m
  max_deliveries: 4
  retention: 20d
  warn_after: 0
  topics:
    review.request: {lease: 5m, max_deliveries: 3, dead_letter: review.lost, retention: 7d, ordered: true}
    review.*: {lease: 10s, retention: 0}
    review.late.*: {max_deliveries: 0}
"""


def replies(
    topic: str, success: str | None = None, failure: str | None = None, timeout: str | None = None
) -> list[str | None]:
    """Return the topics of the replies to a success, a failure and a timeout."""
    consumer = Consumer(topic=topic, plugin="echo", success_topic=success, failure_topic=failure, timeout_topic=timeout)
    return [consumer.reply_topic(end) for end in (ClaimStatus.COMPLETED, ClaimStatus.FAILED, ClaimStatus.TIMED_OUT)]


def test_a_topic_without_an_entry_has_the_rules_of_the_section(config_dir: ConfigDir) -> None:
    exchange = config_dir.load(TOPICS).settings.exchange
    expected = TopicRules(
        lease=timedelta(minutes=2), max_deliveries=4, retention=timedelta(days=20), max_ready=100_000, warn_after=None
    )
    assert exchange.rules_of("deploy.request") == expected


def test_a_configuration_without_the_section_has_the_default_rules(config_dir: ConfigDir) -> None:
    exchange = config_dir.load("{}").settings.exchange
    assert (exchange, exchange.rules_of("review.request")) == (ExchangeSettings(), TopicRules())
    assert exchange.lease == DEFAULT_LEASE


def test_the_most_exact_entry_decides_alone(config_dir: ConfigDir) -> None:
    """Keys that it does not have are those of the section, not of a less exact pattern."""
    exchange = config_dir.load(TOPICS).settings.exchange
    exact, pattern, longer = map(exchange.rules_of, ("review.request", "review.other", "review.late.request"))
    assert (exact.lease, exact.max_deliveries, exact.retention) == (timedelta(minutes=5), 3, timedelta(days=7))
    assert (exact.dead_letter_of("review.request"), exact.ordered) == ("review.lost", True)
    assert (pattern.lease, pattern.max_deliveries, pattern.retention) == (timedelta(seconds=10), 4, None)
    assert (longer.lease, longer.max_deliveries, longer.retention) == (timedelta(minutes=2), 0, timedelta(days=20))


def test_a_pattern_does_not_match_the_name_before_its_dot() -> None:
    exchange = ExchangeSettings(topics={"review.*": TopicSettings(max_deliveries=1), "*": TopicSettings(ordered=True)})
    found = {topic: exchange.rules_of(topic).max_deliveries for topic in ("review", "reviews.x", "review.x")}
    assert found == {"review": 5, "reviews.x": 5, "review.x": 1}
    assert exchange.rules_of("review").ordered


def test_replies_to_a_request_have_default_topics() -> None:
    """Other topics have replies only where they are configured."""
    assert replies("deploy.request") == ["deploy.done", "deploy.failed", "deploy.request.timed_out"]
    assert replies("deploy.request", success="a", timeout="b") == ["a", "deploy.failed", "b"]
    assert replies("notes") == [None, None, None]
    assert replies("notes", failure="lost") == [None, "lost", "notes.timed_out"]
    assert replies("notes", timeout="late") == [None, None, "late"]


def test_a_timeout_is_a_failure_if_its_topic_would_be_too_long() -> None:
    assert replies("a" * 195, success="done", failure="lost") == ["done", "lost", "lost"]


WRONG_VALUES = {
    "{max_body_size: 65MB}": ("exchange.max_body_size", "it must be 1 byte to 64MB"),
    "{max_body_size: 0}": ("exchange.max_body_size", "it must be 1 byte to 64MB"),
    "{lease: 0}": ("exchange.lease", "it must be 1s to 12h"),
    "{lease: 12h1s}": ("exchange.lease", "it must be 1s to 12h"),
    "{lease: 90}": ("exchange.lease", "has no unit"),
    "{max_deliveries: -1}": ("exchange.max_deliveries", "0 or more"),
    "{max_ready: 0}": ("exchange.max_ready", "1 or more"),
    "{max_delivery: 1}": ("exchange.max_delivery", "did you mean 'max_deliveries'?"),
    "{topics: {Review: {}}}": ("exchange.topics.Review", "a pattern such as review.*"),
    "{topics: {'*.request': {}}}": ("exchange.topics.*.request", "a pattern such as review.*"),
    "{topics: {a.b: {leese: 5m}}}": ("exchange.topics.a.b.leese", "did you mean 'lease'?"),
    "{topics: {a.b: {lease: 13h}}}": ("exchange.topics.a.b.lease", "it must be 1s to 12h"),
    "{topics: {a.b: {dead_letter: a.*}}}": ("exchange.topics.a.b.dead_letter", "one topic, not a pattern"),
    "{consumers: [{plugin: echo}]}": ("exchange.consumers[0].topic", "is missing"),
    "{consumers: [{topic: a.*, plugin: echo}]}": ("exchange.consumers[0].topic", "one topic, not a pattern"),
    "{consumers: [{topic: a, event: A b}]}": ("exchange.consumers[0].event", "such as backup.ready"),
    "{consumers: [{topic: a, plugin: echo, max_open: 0}]}": ("exchange.consumers[0].max_open", "1 or more"),
    "{consumers: [{topic: a, plugin: echo, sucess_topic: b}]}": (
        "exchange.consumers[0].sucess_topic",
        "did you mean 'success_topic'?",
    ),
}


def test_values_outside_of_their_range_are_refused_at_their_line(config_dir: ConfigDir) -> None:
    wrong = []
    for text, (path, reason) in WRONG_VALUES.items():
        (found,) = config_dir.complaints(f"service: {{}}\nexchange: {text}\n")
        if (found.path, found.mark and found.mark.line) != (path, 2) or reason not in found.message:
            wrong.append((text, str(found)))
    assert wrong == []


@pytest.mark.parametrize("size", ["1", "64MB", "64MiB", "67108864"])
def test_a_body_may_have_up_to_64_mib(config_dir: ConfigDir, size: str) -> None:
    assert config_dir.load(f"exchange: {{max_body_size: {size}}}").settings.exchange.max_body_size in (1, 64 << 20)
