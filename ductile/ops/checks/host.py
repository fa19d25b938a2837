"""Checks of the host: clock, time zone, and the plugins that are installed on it."""

import ctypes
import time
from collections.abc import Iterator

from ductile.config.sections.settings import Schedule
from ductile.ops.checks.check import Finding, Installation, Severity
from ductile.ops.health import check_plugins, read_plugin_states

_CLOCK_ERROR = 5
_TIMEX_BYTES = 512  # at least the size of `struct timex` on every platform


def check_clock(installation: Installation) -> Iterator[Finding]:
    if _is_unsynchronised():
        detail = "the clock of this host is not synchronised"
        advice = "Run an NTP client. Schedules and signatures depend on the clock."
        yield Finding("clock_adrift", Severity.NOTE, detail, advice)


def check_time_zone(installation: Installation) -> Iterator[Finding]:
    examination = installation.loaded.examination
    entries = examination.config.settings.plugins if examination else {}
    plugins = [name for name, entry in entries.items() if any(map(_uses_host_zone, entry.schedules))]
    if plugins and time.tzname[time.daylight and time.localtime().tm_isdst] != "UTC":
        detail = f"cron schedules use the time zone of this host ({'/'.join(time.tzname)}): {', '.join(plugins)}"
        advice = "Set their `timezone` to make them independent of the host."
        yield Finding("zone_of_host", Severity.NOTE, detail, advice)


def _uses_host_zone(schedule: Schedule) -> bool:
    return schedule.cron is not None and schedule.timezone is None


def _is_unsynchronised() -> bool:
    """True if the kernel reports an unsynchronised clock; False if the state is unknown."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _CLOCK_ERROR)
    except (OSError, AttributeError):
        return False


def check_plugins_usable(installation: Installation) -> Iterator[Finding]:
    """Yield the configured plugins that cannot be loaded."""
    if snapshot := installation.snapshot:
        for name in snapshot.unusable_entries:
            detail = f"{name} {snapshot.unavailable[name]}"
            yield Finding("plugin_unusable", Severity.PROBLEM, detail, "Run `ductile plugin list`.")


def check_plugin_health(installation: Installation) -> Iterator[Finding]:
    """Yield the plugins whose health command fails."""
    if snapshot := installation.snapshot:
        for health in check_plugins(snapshot, read_plugin_states(snapshot, installation.ledger)):
            if not health.ok:
                command = f"plugin run {health.plugin} health --wait" if health.was_run else "config check"
                advice = f"Run `ductile {command}`."
                yield Finding("plugin_unwell", Severity.PROBLEM, f"{health.plugin}: {health.detail}", advice)
