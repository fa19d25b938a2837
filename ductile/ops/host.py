"""What the host could do better for a service: room on the disk, open files, the clock, the zone. Looks only."""

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from ductile.config.checks.doctor import Examination
from ductile.config.sections.settings import Schedule
from ductile.core.units import format_size
from ductile.ops.findings import Finding, Severity

LEAST_DISK, LOW_DISK, LOW_DISK_SHARE = 64 << 20, 1 << 30, 0.05
LEAST_OPEN_FILES = 1024
_CLOCK_ERROR = 5
_TIMEX_BYTES = 512  # more than `struct timex` has anywhere


def disk(folder: Path) -> Iterator[Finding]:
    room = os.statvfs(folder)
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    if free < max(LEAST_DISK, min(LOW_DISK, LOW_DISK_SHARE * total)):
        detail = f"{folder}: {format_size(free)} of {format_size(total)} are free"
        advice = "free some space; `ductile system storage` says what the ledger takes"
        yield Finding(name="disk_low", severity=Severity.WARNING, detail=detail, advice=advice)


def open_files(pid: int | None) -> Iterator[Finding]:
    """Of the service if it runs, else of this shell, which would start it."""
    limit = _limit_of(pid) or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_OPEN_FILES:
        detail = f"at most {limit} open files; each job needs four, each caller one"
        advice = f"raise it to {LEAST_OPEN_FILES} or more (ulimit -n, or LimitNOFILE= in a unit)"
        yield Finding(name="open_files_low", severity=Severity.WARNING, detail=detail, advice=advice)


def _limit_of(pid: int | None) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines() if pid else []
    except OSError:
        return None
    soft = next((line.split()[3] for line in lines if line.startswith("Max open files")), "")
    return int(soft) if soft.isdigit() else None


def clock(examination: Examination | None) -> Iterator[Finding]:
    if _is_adrift():
        detail = "the kernel says that the clock of this host is not synchronised"
        advice = "run an NTP client; schedules and signatures go by the clock"
        yield Finding(name="clock_adrift", severity=Severity.NOTE, detail=detail, advice=advice)
    entries = examination.config.settings.plugins if examination else {}
    floating = [name for name, entry in entries.items() if any(_floats(one) for one in entry.schedules)]
    if floating and time.tzname[time.daylight and time.localtime().tm_isdst] != "UTC":
        detail = f"cron schedules go by the zone of this host ({'/'.join(time.tzname)}): {', '.join(floating)}"
        advice = "write their `timezone` if they should not move with the host"
        yield Finding(name="zone_of_host", severity=Severity.NOTE, detail=detail, advice=advice)


def _floats(schedule: Schedule) -> bool:
    return schedule.cron is not None and schedule.timezone is None


def _is_adrift() -> bool:
    """True if the kernel says that nothing keeps the clock right; False if it does not say."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _CLOCK_ERROR)
    except (OSError, AttributeError):
        return False
