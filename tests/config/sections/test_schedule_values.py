"""Parsers for schedule values: each form is accepted, or rejected with the accepted forms."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.config.sections.schedule_values import (
    parse_at,
    parse_cron,
    parse_every,
    parse_weekday,
    parse_window,
    parse_zone,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5d", timedelta(hours=36)),
        ("2w", timedelta(weeks=2)),
        ("0.5w", timedelta(hours=84)),
        ("hourly", timedelta(hours=1)),
        ("daily", timedelta(days=1)),
        ("Weekly", timedelta(days=7)),
        ("monthly", timedelta(days=30)),
        (" 5m ", timedelta(minutes=5)),
    ],
)
def test_an_interval_is_a_duration_or_a_name(text: str, expected: timedelta) -> None:
    """Go durations, days, weeks, and four names."""
    assert parse_every(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "5", "yearly", "5 minutes", "m5", "5m5", "١s", "1h-5m"])
def test_an_invalid_interval_is_rejected(text: str) -> None:
    """Zero, negative, or without a unit."""
    with pytest.raises(ValueError, match=r"duration such as|longer than zero"):
        parse_every(text)


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "0 8 * * mon-fri",
        "*/15 0-6,22-23 1,15 JAN-DEC Sun",
        "0 0 29 2 *",
        "59 23 31 12 7",
        "0  0\t* * 0",
        "0-59/5 * * * *",
    ],
)
def test_a_cron_expression_is_returned_with_single_spaces(text: str) -> None:
    assert parse_cron(text) == " ".join(text.split())


INVALID_CRON = [
    ("", "five fields"),
    ("* * * *", "five fields"),
    ("* * * * * *", "five fields"),
    ("@daily", "five fields"),
    ("60 * * * *", "not a cron line"),
    ("* 24 * * *", "not a cron line"),
    ("* * 0 * *", "not a cron line"),
    ("* * 32 * *", "not a cron line"),
    ("* * * 13 *", "not a cron line"),
    ("* * * * 8", "not a cron line"),
    ("*/0 * * * *", "not a cron line"),
    ("-1 * * * *", "not a cron line"),
    ("1- * * * *", "not a cron line"),
    (", * * * *", "not a cron line"),
    ("1/2/3 * * * *", "not a cron line"),
    ("* * * * foo", "five fields"),
    ("mon * * * *", "five fields"),
    ("R R * * *", "five fields"),
    ("H H * * *", "five fields"),
    ("0 0 L * *", "five fields"),
    ("0 0 1W * *", "five fields"),
    ("0 0 * * 5#1", "five fields"),
    ("0 0 ? * *", "five fields"),
    ("9" * 5000 + " * * * *", "five fields"),
    ("1" * 200 + " * * * *", "not a cron line"),
    ("0 0 30 2 *", "never occurs"),
    ("0 0 31 4,6,9,11 *", "never occurs"),
    ("٣ * * * *", "five fields"),
]


def test_an_invalid_cron_expression_is_rejected() -> None:
    """Also one that never matches a date, or that would fire at random times."""
    errors = [(text, reason, cron_error(text)) for text, reason in INVALID_CRON]
    assert [error for error in errors if error[1] not in error[2]] == []


def cron_error(text: str) -> str:
    try:
        return f"accepted as {parse_cron(text)}"
    except ValueError as error:
        return str(error)


@given(st.text("0123456789*/,- janmonLR", max_size=40))
def test_any_text_is_a_cron_expression_or_raises_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(parse_cron(text).split()) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T08:00:00Z", datetime(2026, 3, 1, 8, tzinfo=UTC)),
        ("2026-03-01T08:00:00+01:00", datetime(2026, 3, 1, 7, tzinfo=UTC)),
        ("2026-03-01t08:00:00.5z", datetime(2026, 3, 1, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-03-01 08:00:00-00:30", datetime(2026, 3, 1, 8, 30, tzinfo=UTC)),
        ("2026-03-01T08:00:00.123456789Z", datetime(2026, 3, 1, 8, 0, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_a_time_has_an_offset(text: str, expected: datetime) -> None:
    """RFC 3339 with any fraction and offset."""
    assert parse_at(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-03-01",
        "2026-03-01T08:00:00",
        "2026-02-30T08:00:00Z",
        "2026-13-01T08:00:00Z",
        "2026-03-01T24:00:00Z",
        "2026-03-01T08:00:60Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2026-03-01T08:00:00+99:99",
        "١٢٣٤-03-01T08:00:00Z",
    ],
)
def test_an_invalid_time_is_rejected(text: str) -> None:
    """Incomplete times, dates that do not exist, times outside of the supported range."""
    with pytest.raises(ValueError, match=r"RFC 3339|not a real date"):
        parse_at(text)


@pytest.mark.parametrize("text", ["UTC", "Europe/Berlin", "America/Argentina/Ushuaia", "Etc/GMT+5"])
def test_a_time_zone_is_an_iana_name(text: str) -> None:
    assert parse_zone(text) == text


@pytest.mark.parametrize(
    "text", ["", "Mars", "Europe", "../../etc/passwd", "/etc/localtime", "Europe/Berlin\0", "a" * 100_000, "CEST+2:00"]
)
def test_an_invalid_time_zone_is_rejected(text: str) -> None:
    """A name cannot be used to read other files."""
    with pytest.raises(ValueError, match="IANA"):
        parse_zone(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("08:00-22:00", "08:00-22:00"), ("8:00-9:30", "08:00-09:30"), ("22:00-06:00", "22:00-06:00")]
)
def test_a_window_is_normalized_and_may_cross_midnight(text: str, expected: str) -> None:
    assert parse_window(text) == expected


@pytest.mark.parametrize(
    "text", ["", "8-22", "08:00", "24:00-01:00", "08:60-09:00", "08:00-08:00", "8:00-08:00", "a-b"]
)
def test_an_invalid_window_is_rejected(text: str) -> None:
    """Times that do not exist, and empty windows."""
    with pytest.raises(ValueError, match=r"a window such as|starts and ends"):
        parse_window(text)


@pytest.mark.parametrize(
    ("words", "number"),
    [("0 7 sun Sunday SUN", 0), ("1 mon monday", 1), ("2 tue tues", 2), ("4 thu thur thurs", 4), ("6 sat saturday", 6)],
)
def test_a_weekday_is_a_name_or_a_number_from_sunday(words: str, number: int) -> None:
    """0 and 7 are Sunday."""
    assert {parse_weekday(word) for word in words.split()} == {number}


@pytest.mark.parametrize("text", ["", "8", "-1", "01", "12", "funday", "su", "٣", "9" * 5000])
def test_an_invalid_weekday_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a weekday: a name such as saturday"):
        parse_weekday(text)
