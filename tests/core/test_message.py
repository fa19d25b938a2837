"""What callers of the exchange send is checked, and patterns select topics."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.message import (
    MAX_LEASE,
    MIN_LEASE,
    BodyMissing,
    BodyNotText,
    BodyTooLarge,
    DelayInvalid,
    LeaseInvalid,
    MessageInvalid,
    MetadataInvalid,
    TopicInvalid,
    TopicRules,
    checked_body,
    checked_delay,
    checked_lease,
    checked_message,
    checked_metadata,
    checked_topic,
    is_topic,
    is_topic_pattern,
    most_exact_pattern,
    topic_matches,
)

NESTED = "[" * 65 + "]" * 65
INVALID: list[tuple[dict[str, Any], type[MessageInvalid]]] = [
    ({"topic": ""}, TopicInvalid),
    ({"topic": None}, TopicInvalid),
    ({"topic": "Review.Request"}, TopicInvalid),
    ({"topic": "review..request"}, TopicInvalid),
    ({"topic": "review.request\n"}, TopicInvalid),
    ({"topic": "a" * 201}, TopicInvalid),
    ({"body": None}, BodyMissing),
    ({"body": {"text": "hello"}}, BodyNotText),
    ({"body": b"\xff"}, BodyNotText),
    ({"body": "\ud800"}, BodyNotText),
    ({"body": "ä" * 11}, BodyTooLarge),
    ({"metadata": []}, MetadataInvalid),
    ({"metadata": "{"}, MetadataInvalid),
    ({"metadata": {"a": float("nan")}}, MetadataInvalid),
    ({"metadata": {"a": "x" * (64 << 10)}}, MetadataInvalid),
    ({"metadata": f'{{"a":{NESTED}}}'}, MetadataInvalid),
    ({"metadata": {1: "key is no text"}}, MetadataInvalid),
    ({"producer": "p" * 201}, MessageInvalid),
    ({"producer": "two\nlines"}, MessageInvalid),
    ({"producer": ""}, MessageInvalid),
    ({"parent_id": 7}, MessageInvalid),
    ({"conversation_id": " "}, MessageInvalid),
    ({"ordering_key": "\ud800"}, MessageInvalid),
    ({"delay": "-1s"}, DelayInvalid),
    ({"delay": "soon"}, DelayInvalid),
    ({"delay": float("inf")}, DelayInvalid),
    ({"delay": True}, DelayInvalid),
    ({"delay": "366d"}, DelayInvalid),
]


def test_an_invalid_field_of_a_message_is_refused_with_its_code() -> None:
    wrong = []
    for fields, expected in INVALID:
        values: dict[str, Any] = {"topic": "review.request", "body": "hello", "max_body_size": 20, **fields}
        with pytest.raises(MessageInvalid) as refused:
            checked_message(**values)
        if type(refused.value) is not expected or not refused.value.hint:
            wrong.append((fields, refused.value))
    assert wrong == []


def test_a_valid_message_keeps_its_fields() -> None:
    message = checked_message(
        topic="review.request", body=b"h\xc3\xa4llo", producer="shell", metadata={"a": [1]}, delay="10m"
    )
    assert (message.body, message.metadata_json) == ("hällo", '{"a":[1]}')
    assert (message.producer, message.delay) == ("shell", timedelta(minutes=10))


def test_an_empty_text_is_a_body_and_the_limit_counts_bytes() -> None:
    assert checked_body("") == ""
    assert checked_body("ää", max_body_size=4) == "ää"
    with pytest.raises(BodyTooLarge):
        checked_body("äää", max_body_size=5)


@pytest.mark.parametrize("lease", ["0s", "-1s", 0, "13h", 43_201, "nonsense", None, float("nan"), 1e300])
def test_a_lease_of_less_than_a_second_or_over_12_hours_is_refused(lease: object) -> None:
    with pytest.raises(LeaseInvalid):
        checked_lease(lease)


def test_leases_and_delays_are_durations_or_seconds() -> None:
    assert checked_lease("90s") == checked_lease(90) == timedelta(seconds=90)
    assert (checked_lease(MIN_LEASE), checked_lease("12h")) == (MIN_LEASE, MAX_LEASE)
    assert checked_delay(None) == checked_delay(0) == checked_delay("0s") == timedelta()


@given(st.text())
def test_every_text_is_a_topic_or_refused(text: str) -> None:
    if is_topic(text):
        assert checked_topic(text) == text
    else:
        with pytest.raises(TopicInvalid):
            checked_topic(text)


def test_a_pattern_matches_below_its_prefix() -> None:
    assert [is_topic_pattern(text) for text in ("a", "a.*", "*", "a*", ".*", "*.a", "a.*.b")] == [True] * 3 + [
        False
    ] * 4
    assert topic_matches("review.*", "review.request.urgent")
    assert not topic_matches("review.*", "review")
    assert not topic_matches("review.*", "reviews.request")
    assert topic_matches("*", "anything")


def test_the_most_exact_pattern_decides() -> None:
    patterns = ["*", "review.*", "review.request.*", "review.request.urgent"]
    found = [most_exact_pattern(patterns, f"review.{rest}") for rest in ("request.urgent", "request.other", "done")]
    assert found == ["review.request.urgent", "review.request.*", "review.*"]
    assert most_exact_pattern(["review.*"], "deploy.request") is None


def test_a_dead_letter_topic_is_always_a_topic() -> None:
    assert TopicRules().dead_letter_of("review.request") == "review.request.dead"
    assert TopicRules(dead_letter="lost").dead_letter_of("review.request") == "lost"
    assert TopicRules().dead_letter_of("a" * 200) == "a" * 200


def test_metadata_is_stored_as_compact_json() -> None:
    assert checked_metadata('{"a": 1.0, "b": "ü"}') == '{"a":1.0,"b":"ü"}'
    assert checked_metadata(None) is None
