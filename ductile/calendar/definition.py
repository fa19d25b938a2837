"""What a schedule is, and what has become of it so far: the two values every look begins with.

The configuration makes definitions, the scheduler takes histories from the ledger.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum

from attrs import frozen

from ductile.calendar.cron import CronLine
from ductile.calendar.windows import Hours, Window


class CatchUp(StrEnum):
    """What happens to slots that were missed: nothing, one run for all of them, or one run each."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


@frozen
class Every:
    """Again and again; the first slot is the moment the schedule was first seen."""

    interval: timedelta


@frozen
class At:
    """Once, at a moment; when that has passed unseen, as soon as possible."""

    moment: datetime


@frozen
class After:
    """Once, that long after each start of the service."""

    delay: timedelta


@frozen(kw_only=True)
class Definition:
    """A schedule: when its slots lie, how they are spread, when they may fire and what becomes of missed ones.

    All `windows` must be open, in `zone`, and the weekday (0 is Sunday) must not be in `not_on`. A slot that is due
    while closed waits, and the latest of those that wait fires at the opening.
    """

    plugin: str
    schedule_id: str
    when: Every | CronLine | At | After
    zone: tzinfo = UTC
    jitter: timedelta = timedelta()
    windows: tuple[Window, ...] = ()
    not_on: frozenset[int] = frozenset()
    catch_up: CatchUp = CatchUp.SKIP

    @property
    def hours(self) -> Hours:
        return Hours(zone=self.zone, windows=self.windows, not_on=self.not_on)


@frozen(kw_only=True)
class History:
    """What is known of a schedule.

    `anchored_at`: when this definition was first seen; the grid of `every` begins there.
    `last_slot_at`: the last slot that was decided, fired or not; see `Look.decided_to`.
    `last_fired_at`: when a slot last became a job; whatever was due by then is decided too.
    `started_at`: when the service started, or took up this schedule later, by the clock as it is now (now - uptime).
    `exhausted`: an `at` that has fired; an `after` that has fired since `started_at`.
    """

    anchored_at: datetime
    last_slot_at: datetime | None = None
    last_fired_at: datetime | None = None
    started_at: datetime | None = None
    exhausted: bool = False
