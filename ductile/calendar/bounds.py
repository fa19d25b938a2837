"""The supported time range: within it, zones, windows, jitter and durations cannot overflow a datetime.

Callers check input from users against these bounds. The time of an `at` schedule is clamped to them.
"""

from datetime import UTC, datetime

CALENDAR_START = datetime(1970, 1, 1, tzinfo=UTC)
CALENDAR_END = datetime(9000, 1, 1, tzinfo=UTC)


def clamp(moment: datetime) -> datetime:
    """Clamp `moment` to the supported range. A clamped past time stays past, a clamped future time never comes."""
    return min(max(moment, CALENDAR_START), CALENDAR_END)
