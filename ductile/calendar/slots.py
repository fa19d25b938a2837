"""The slots of a schedule as UTC times: an interval or a single time. `daylight_saving` has those of a cron line."""

from datetime import datetime, timedelta
from typing import Protocol

from attrs import frozen

TICK = timedelta.resolution


class Slots(Protocol):
    """An ordered sequence of times, independent of when the schedule was first seen."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot later than `moment`."""

    def before(self, moment: datetime) -> datetime | None:
        """Return the last slot earlier than `moment`."""

    def count(self, start: datetime, end: datetime) -> int:
        """Count the slots in (start, end]."""


@frozen
class IntervalSlots:
    """A slot every `interval` of elapsed time, aligned to `anchor`."""

    anchor: datetime
    interval: timedelta

    def after(self, moment: datetime) -> datetime | None:
        return self._slot((moment - self.anchor) // self.interval + 1)

    def before(self, moment: datetime) -> datetime | None:
        return self._slot(-((self.anchor - moment) // self.interval) - 1)

    def count(self, start: datetime, end: datetime) -> int:
        return max((end - self.anchor) // self.interval - (start - self.anchor) // self.interval, 0)

    def _slot(self, number: int) -> datetime | None:
        try:
            return self.anchor + number * self.interval
        except OverflowError:  # beyond the range of datetime
            return None


@frozen
class SingleSlot:
    """A single slot."""

    moment: datetime

    def after(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment > moment else None

    def before(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment < moment else None

    def count(self, start: datetime, end: datetime) -> int:
        return int(start < self.moment <= end)
