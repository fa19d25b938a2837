"""From what the operator wrote to what the calendar reckons with: definitions of schedules, and their hashes.

The only room that knows both. The scheduler and the commands about schedules call it; when something is due is the
calendar's matter.
"""

import time
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from zoneinfo import ZoneInfo

from attrs import fields
from blake3 import blake3

from ductile.calendar.cron import CronLine, parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every
from ductile.calendar.windows import Window
from ductile.config.sections.settings import Schedule
from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.units import format_duration


class HostZone(tzinfo):
    """The time zone of this host as its C library knows it, whatever notation TZ has; the default of every schedule."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return dt.replace(tzinfo=None).astimezone().utcoffset() if dt else None

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None

    def tzname(self, dt: datetime | None) -> str:
        return "/".join(dict.fromkeys(time.tzname))

    def fromutc(self, dt: datetime) -> datetime:
        local = dt.replace(tzinfo=UTC).astimezone()
        wall = local.replace(tzinfo=self)
        return wall if wall.utcoffset() == local.utcoffset() else wall.replace(fold=1)


HOST_ZONE = HostZone()


def definition_of(plugin: str, schedule: Schedule) -> Definition:
    """The schedule as the calendar wants it; `schedule` is one that `consistency` has nothing to say about."""
    return Definition(
        plugin=plugin,
        schedule_id=schedule.id,
        when=_when(schedule),
        zone=ZoneInfo(schedule.timezone) if schedule.timezone else HOST_ZONE,
        jitter=schedule.jitter,
        windows=_windows(schedule),
        not_on=frozenset(schedule.not_on),
        catch_up=CatchUp(schedule.catch_up),
    )


def definition_hash(schedule: Schedule) -> str:
    """The same as long as the schedule has the same slots for the same command; notation does not matter.

    Jitter, hours and policies are left out: a schedule that gets another window does not start anew.
    """
    match _when(schedule):
        case Every(interval):
            slots: list[object] = ["every", format_duration(interval)]
        case At(moment):
            slots = ["at", to_text(moment)]
        case After(delay):
            slots = ["after", format_duration(delay)]
        case CronLine() as line:
            slots = [
                "cron",
                {each.name: getattr(line, each.name) for each in fields(CronLine) if each.eq},
                schedule.timezone or HOST_ZONE.tzname(None),
            ]
    return blake3(strict_json.dumps([schedule.command, *slots]).encode()).hexdigest()


def _when(schedule: Schedule) -> Every | CronLine | At | After:
    if schedule.every is not None:
        return Every(schedule.every)
    if schedule.cron is not None:
        return parse_line(schedule.cron)
    if schedule.at is not None:
        return At(schedule.at)
    assert schedule.after is not None, "exactly one of every, cron, at, after is checked at load"
    return After(schedule.after)


def _windows(schedule: Schedule) -> tuple[Window, ...]:
    """Both notations; where both are given, both must be open."""
    bounds = [schedule.only_between.split("-")] if schedule.only_between else []
    if window := schedule.preferred_window:
        bounds.append([window.start, window.end])
    return tuple(Window(*(time_of_day.fromisoformat(bound.zfill(5)) for bound in pair)) for pair in bounds)
