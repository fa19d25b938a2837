"""Conversion of configured schedules to calendar definitions, and the hash of a definition.

The only module that knows both forms. `ductile.calendar` computes when a schedule is due.
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
    """The time zone of the host, as its C library reports it for any TZ notation. The default for schedules."""

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
EXCLUDED = fields(CronLine).excluded.name
"""`not_on` belongs to the hours of a schedule, not to its definition."""


def build_definition(plugin: str, schedule: Schedule) -> Definition:
    """Convert a schedule that passed `load.rules` to a calendar definition."""
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
    """Return a hash of the command and the slots of a schedule. It does not depend on the notation.

    Jitter, windows and policies are excluded: changing them does not reset the schedule.
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
                {each.name: getattr(line, each.name) for each in fields(CronLine) if each.eq and each.name != EXCLUDED},
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
    assert schedule.after is not None, "loading requires exactly one of every, cron, at, after"
    return After(schedule.after)


def _windows(schedule: Schedule) -> tuple[Window, ...]:
    """Return the windows of both keys. If both are set, both must be open."""
    bounds = [schedule.only_between.split("-")] if schedule.only_between else []
    if window := schedule.preferred_window:
        bounds.append([window.start, window.end])
    return tuple(Window(*(time_of_day.fromisoformat(bound.zfill(5)) for bound in pair)) for pair in bounds)
