"""Timestamps are formatted and parsed without loss."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.clock import Clock, from_text, to_text

HALF_PAST_NINE = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
TIMES = st.datetimes(timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (HALF_PAST_NINE, "2026-02-08T09:30:00.000000Z"),
        (HALF_PAST_NINE.replace(microsecond=7), "2026-02-08T09:30:00.000007Z"),
        (datetime(2026, 2, 8, 10, 30, tzinfo=timezone(timedelta(hours=1))), "2026-02-08T09:30:00.000000Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000000Z"),
        (datetime.max.replace(tzinfo=UTC), "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_is_utc_text_of_fixed_width(moment: datetime, text: str) -> None:
    """27 characters in every year."""
    assert to_text(moment) == text


@given(TIMES, TIMES)
def test_text_order_is_time_order(first: datetime, second: datetime) -> None:
    """SQL compares and sorts timestamps as text."""
    assert (to_text(first) < to_text(second)) == (first < second)


@given(st.datetimes(timezones=st.timezones(), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))
def test_a_stored_timestamp_is_parsed_to_the_same_time(moment: datetime) -> None:
    """To the microsecond, and always with a time zone."""
    result = from_text(to_text(moment))
    assert result == moment.astimezone(UTC)
    assert result.utcoffset() == timedelta()


def test_a_naive_datetime_cannot_be_stored() -> None:
    """It would otherwise be read as the local time of the host."""
    with pytest.raises(ValueError, match="has no time zone"):
        to_text(datetime(2026, 2, 8, 9, 30))


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-08T09:30:00.000000Z",
        "2026-02-08T09:30:00Z",
        "2026-02-08t09:30:00z",
        "2026-02-08T09:30Z",
        "2026-02-08T09:30:00.0Z",
        "2026-02-08T09:30:00.000000000Z",
        "2026-02-08T09:30:00+00:00",
        "2026-02-08T10:30:00.000000000+01:00",
        "2026-02-08T04:00:00-0530",
        "2026-02-08 09:30:00",
        "2026-02-08T09:30:00",
    ],
)
def test_timestamps_of_other_programs_are_parsed(text: str) -> None:
    """Variants of RFC 3339, Go's nanoseconds, SQLite's space. Without an offset the time is UTC."""
    assert from_text(text) == HALF_PAST_NINE
    assert from_text(text).tzinfo is UTC


def test_a_date_alone_is_midnight_utc() -> None:
    assert from_text("2026-02-08") == datetime(2026, 2, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("digits", "micros"), [("1", 100_000), ("12", 120_000), ("1234567", 123_456), ("000000999", 0)]
)
def test_any_number_of_fractional_digits_is_parsed(digits: str, micros: int) -> None:
    """Digits beyond microseconds are truncated, never rounded up."""
    assert from_text(f"2026-02-08T09:30:00.{digits}Z").microsecond == micros


INVALID_TIMESTAMPS = [
    *(
        "",
        "now",
        "2026",
        "2026-02",
        "2026-2-8",
        "20260208T093000Z",
        "2026-W06-7",
        "2026-02-08T09",
        "2026-02-08T09:30:00Z ",
    ),
    *("2026-13-01", "2026-02-30", "2026-02-08T24:00:00Z", "2026-02-08T09:30:60Z", "2026-02-08T09:30:00+25:00"),
    *(
        "2026-02-08T09:30:00.Z",
        "2026-02-08T09:30:00.5.5Z",
        "2026-02-08T09:30:00.00000xZ",
        "2026-02-08T09:30:00.٠٠٠٠٠٠Z",
    ),
    *("٢٠٢٦-02-08", "\ud800", "x" * 10_000, "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"),
]


@pytest.mark.parametrize("text", INVALID_TIMESTAMPS)
def test_an_invalid_timestamp_is_a_value_error(text: str) -> None:
    """Including times outside the range of datetime in UTC."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        from_text(text)
    assert len(str(caught.value)) < 200


def test_the_host_clock_is_aware_and_monotonic() -> None:
    clock = Clock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()
