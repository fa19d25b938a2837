"""How far the calendar reaches: the moments that every room here can reckon with, in any zone, window or jitter.

To the ends of what a datetime can be there is room for the longest durations that can be written. Whoever takes a
moment from people holds it against these bounds; `at` is taken to them.
"""

from datetime import UTC, datetime

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9000, 1, 1, tzinfo=UTC)


def within(moment: datetime) -> datetime:
    """The moment, or the end of the calendar that it lies beyond: long past stays past, and far ahead never comes."""
    return min(max(moment, FIRST), LAST)
