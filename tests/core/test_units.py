"""Durations and byte sizes are parsed and formatted."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.units import MAX_DURATION, format_duration, format_size, parse_duration, parse_size, quote_text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("300ms", timedelta(milliseconds=300)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("1h30m10.5s", timedelta(minutes=90, seconds=10.5)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
        ("1w2d3h4m5s6ms7us", timedelta(9, 3 * 3600 + 4 * 60 + 5, 6007)),
        ("1.5h", timedelta(minutes=90)),
        (".5s", timedelta(milliseconds=500)),
        ("1.s", timedelta(seconds=1)),
        ("1us", timedelta(microseconds=1)),
        ("1µs", timedelta(microseconds=1)),
        ("1\u03bcs", timedelta(microseconds=1)),
        ("1000ns", timedelta(microseconds=1)),
        ("0.1s", timedelta(milliseconds=100)),
        ("-5s", timedelta(seconds=-5)),
        ("+5s", timedelta(seconds=5)),
        ("0", timedelta()),
        ("-0", timedelta()),
        ("0s", timedelta()),
        (" 5m ", timedelta(minutes=5)),
        ("30m1h", timedelta(minutes=90)),
        ("36500d", MAX_DURATION),
    ],
)
def test_a_duration_is_parsed_like_in_go_plus_days_and_weeks(text: str, span: timedelta) -> None:
    """Any number of units with fractions, added exactly."""
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "-",
        "+",
        "s",
        ".s",
        "5 m",
        "5M",
        "5H",
        "1e3s",
        "1,5s",
        "--5s",
        "5s5",
        "1h-5m",
        "5y",
        "٣s",
        "5min",
        "P1D",
    ],
)
def test_an_invalid_duration_is_refused_with_examples(text: str) -> None:
    """A number without a unit is not accepted."""
    with pytest.raises(ValueError, match="is not a duration such as 300ms, 30s, 5m, 1h30m, 7d or 2w"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["36501d", "-36501d", "999999999999999999w", "36500d1us"])
def test_a_duration_beyond_a_century_is_refused(text: str) -> None:
    """It would overflow when added to a time."""
    with pytest.raises(ValueError, match="is longer than 36500 days"):
        parse_duration(text)


def test_a_very_long_duration_text_is_refused_immediately() -> None:
    with pytest.raises(ValueError, match=r"…' is not a duration"):
        parse_duration("0s" * 1_000_000)


@pytest.mark.parametrize("text", ["1ns", "499ns", "0.000001ms", ".1us"])
def test_a_duration_that_is_not_zero_never_becomes_zero(text: str) -> None:
    """Zero often means "off"."""
    assert parse_duration(text) == timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(days=14), "14d"),
        (timedelta(seconds=61, microseconds=2), "1m1s2us"),
        (timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_formatted_in_whole_units(span: timedelta, text: str) -> None:
    assert format_duration(span) == text


@given(st.timedeltas(min_value=-MAX_DURATION, max_value=MAX_DURATION))
def test_a_formatted_duration_is_parsed_to_the_same_value(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("10B", 10),
        ("512KB", 512 << 10),
        ("512KiB", 512 << 10),
        ("1MB", 1 << 20),
        ("1 MB", 1 << 20),
        ("1mb", 1 << 20),
        ("1MiB", 1 << 20),
        ("2GB", 2 << 30),
        (" 7 ", 7),
        ("1048576GB", 1 << 50),
    ],
)
def test_a_size_is_parsed_in_powers_of_1024(text: str, size: int) -> None:
    """With or without a unit, in upper or lower case."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "+1", "1.5MB", "1T", "1 000", "1_000", "0x10", "1MBs", "١", "1" * 200]
)
def test_an_invalid_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size in bytes such as 65536, 512KB, 1MB or 2GB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1048577GB", "999999999999999999GB", str((1 << 50) + 1)])
def test_a_size_beyond_the_maximum_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is larger than 1,048,576GB"):
        parse_size(text)


def test_quoted_text_is_escaped_and_truncated() -> None:
    """Operator input fits into one line of a message."""
    assert quote_text("a\nb\x1b") == r"'a\nb\x1b'"
    assert quote_text("x" * 100) == repr("x" * 60 + "…")
    assert quote_text("x" * 60) == repr("x" * 60)
    assert quote_text("abcdef", 3) == "'abc…'"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KB"),
        (1536, "1.5KB"),
        (10 << 10, "10KB"),
        (20 << 20, "20MB"),
        (3 << 30, "3.0GB"),
        (5 << 40, "5120GB"),
    ],
)
def test_a_size_is_formatted_in_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert format_size(size) == text
