"""The checks of `system doctor` for the host: disk space, open files, clock and time zone.

Each function yields findings and changes nothing.
"""

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from ductile.config.checks.examine import Examination
from ductile.config.sections.settings import Schedule
from ductile.core.units import format_size
from ductile.ops.findings import Finding, Severity

MIN_DISK_BYTES, LOW_DISK_BYTES, LOW_DISK_SHARE = 64 << 20, 1 << 30, 0.05
MIN_OPEN_FILES = 1024
_CLOCK_ERROR = 5
_TIMEX_BYTES = 512  # at least the size of `struct timex` on every platform


def check_disk(folder: Path) -> Iterator[Finding]:
    usage = os.statvfs(folder)
    free, total = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    if free < max(MIN_DISK_BYTES, min(LOW_DISK_BYTES, LOW_DISK_SHARE * total)):
        detail = f"{folder}: {format_size(free)} of {format_size(total)} free"
        advice = "Free some disk space. `ductile system storage` shows the size of the ledger."
        yield Finding(name="disk_low", severity=Severity.WARNING, detail=detail, advice=advice)


def check_open_files(pid: int | None) -> Iterator[Finding]:
    """Check the limit of the service with this `pid`, or of the current process if it is None."""
    limit = _read_limit(pid) or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        detail = f"limit of {limit} open files; each running job needs 4, each HTTP connection 1"
        advice = f"Raise the limit to at least {MIN_OPEN_FILES} (`ulimit -n`, or `LimitNOFILE=` in a systemd unit)."
        yield Finding(name="open_files_low", severity=Severity.WARNING, detail=detail, advice=advice)


def _read_limit(pid: int | None) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines() if pid else []
    except OSError:
        return None
    soft = next((line.split()[3] for line in lines if line.startswith("Max open files")), "")
    return int(soft) if soft.isdigit() else None


def check_clock(examination: Examination | None) -> Iterator[Finding]:
    if _is_unsynchronised():
        detail = "the clock of this host is not synchronised"
        advice = "Run an NTP client. Schedules and signatures depend on the clock."
        yield Finding(name="clock_adrift", severity=Severity.NOTE, detail=detail, advice=advice)
    entries = examination.config.settings.plugins if examination else {}
    plugins = [name for name, entry in entries.items() if any(map(_uses_host_zone, entry.schedules))]
    if plugins and time.tzname[time.daylight and time.localtime().tm_isdst] != "UTC":
        detail = f"cron schedules use the time zone of this host ({'/'.join(time.tzname)}): {', '.join(plugins)}"
        advice = "Set their `timezone` to make them independent of the host."
        yield Finding(name="zone_of_host", severity=Severity.NOTE, detail=detail, advice=advice)


def _uses_host_zone(schedule: Schedule) -> bool:
    return schedule.cron is not None and schedule.timezone is None


def _is_unsynchronised() -> bool:
    """True if the kernel reports an unsynchronised clock; False if the state is unknown."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _CLOCK_ERROR)
    except (OSError, AttributeError):
        return False
