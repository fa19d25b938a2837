"""The definition of a schedule, from the configuration, and its history, from the ledger."""

from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum

from attrs import frozen

from ductile.calendar.cron import CronLine
from ductile.calendar.windows import OpenHours, Window


class CatchUp(StrEnum):
    """What happens to missed slots: nothing, one run for all, or one run each."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


@frozen
class Every:
    """A repeating interval. The first slot is the time at which the schedule was first seen."""

    interval: timedelta


@frozen
class At:
    """A single time. If it was missed, the schedule fires as soon as possible."""

    moment: datetime


@frozen
class After:
    """A single delay after each start of the service."""

    delay: timedelta


@frozen(kw_only=True)
class Definition:
    """A schedule: its slots, jitter, open hours and catch-up policy.

    A slot may fire when all `windows` are open in `zone` and the weekday (0 is Sunday) is not in `not_on`. Slots that
    become due outside these hours wait; the latest of them fires at the opening. A cron line has no slots on `not_on`.
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
    def hours(self) -> OpenHours:
        return OpenHours(zone=self.zone, windows=self.windows, not_on=self.not_on)


@frozen(kw_only=True)
class History:
    """The recorded state of a schedule.

    `anchored_at`: when this definition was first seen; the slots of `every` start there.
    `last_slot_at`: the last decided slot, fired or not; see `Evaluation.decided_to`.
    `last_fired_at`: when a slot last became a job; all slots due by then are decided too.
    `started_at`: when the service started, or loaded this schedule later, by the current clock (now - uptime).
    `exhausted`: the `at` has fired, or the `after` has fired since `started_at`.
    """

    anchored_at: datetime
    last_slot_at: datetime | None = None
    last_fired_at: datetime | None = None
    started_at: datetime | None = None
    exhausted: bool = False
