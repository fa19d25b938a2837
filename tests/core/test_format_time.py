"""Relative times."""

from datetime import UTC, datetime, timedelta

import pytest

from ductile.core.clock import to_text
from ductile.core.format_time import format_relative


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(milliseconds=-1), "just now"),
        (timedelta(), "now"),
        (timedelta(milliseconds=1), "now"),
        (timedelta(seconds=-45), "45s ago"),
        (timedelta(minutes=-3, seconds=-10), "3m ago"),
        (timedelta(hours=1, minutes=20), "in 1h20m"),
        (timedelta(days=-2, hours=-4), "2d4h ago"),
    ],
)
def test_relative_times_have_one_or_two_units(span: timedelta, words: str) -> None:
    now = datetime(2026, 2, 8, tzinfo=UTC)
    assert format_relative(to_text(now + span), now) == words
