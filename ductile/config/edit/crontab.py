"""Convert the lines of a crontab(5) file to plugin entries: an alias of `sys_exec` with one schedule each.

Knows the format of crontab and of plugin entries. Reads and writes no files.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from attrs import frozen

from ductile.config.sections.schedule_values import parse_cron
from ductile.core.units import format_duration

BASE = "sys_exec"
SCHEDULE_ID = "crontab"
FIELD_COUNT = 5
MAX_NAME_LENGTH = 40
SECOND = timedelta(seconds=1)
GRACE = timedelta(minutes=1)
"""How much longer the job may take than its command, so that the plugin reports the timeout itself."""
_ASSIGNMENT = re.compile(r"""\s*(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*?)\s*""", re.ASCII)
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ZONES = ("CRON_TZ", "TZ")
_NOT_PASSED = {*_ZONES, "MAILTO", "MAILFROM", "SHELL", "LOGNAME", "USER"}
_SHELLS = ("/bin/sh", "sh", "/usr/bin/sh")


@frozen(kw_only=True)
class CrontabEntry:
    """A line that becomes an alias. `when` is a cron line; None runs it once after each start of the service."""

    line: int
    when: str | None
    command: str
    environment: Mapping[str, str]
    timezone: str | None = None


@frozen
class SkippedLine:
    """A line that cannot be converted."""

    line: int
    reason: str


@frozen
class Crontab:
    """The lines of a crontab file."""

    entries: tuple[CrontabEntry, ...]
    skipped: tuple[SkippedLine, ...]


def parse_crontab(text: str, *, has_users: bool = False) -> Crontab:
    """Parse a crontab file. `has_users`: the field before the command is a user, as in /etc/crontab."""
    entries: list[CrontabEntry] = []
    skipped: list[SkippedLine] = []
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.strip()
        if not written or written.startswith("#"):
            continue
        if assignment := _ASSIGNMENT.fullmatch(line):
            variables[assignment[2]] = _unquoted(assignment[3])
            continue
        try:
            entries.append(_entry(number, written, variables, has_users=has_users))
        except ValueError as reason:
            skipped.append(SkippedLine(number, str(reason)))
    return Crontab(tuple(entries), tuple(skipped))


def _entry(number: int, written: str, variables: Mapping[str, str], *, has_users: bool) -> CrontabEntry:
    """Convert one line. Raises ValueError with the reason."""
    count = (1 if written.startswith("@") else FIELD_COUNT) + has_users
    fields = written.split(None, count)
    if len(fields) <= count:
        raise ValueError("has no command")
    when = _when(fields[: count - has_users])
    shell = variables.get("SHELL", _SHELLS[0])
    if shell not in _SHELLS:
        raise ValueError(f"needs SHELL={shell}; sys_exec uses /bin/sh")
    zone = next((variables[name] for name in _ZONES if name in variables), None)
    environment = {name: value for name, value in variables.items() if name not in _NOT_PASSED}
    command = _without_escapes(fields[count])
    return CrontabEntry(line=number, when=when, command=command, environment=environment, timezone=zone)


def _when(fields: list[str]) -> str | None:
    if fields == ["@reboot"]:
        return None
    if fields[0].startswith("@"):
        if fields[0] not in _NICKNAMES:
            raise ValueError(f"{fields[0]} is not one of @reboot, {', '.join(_NICKNAMES)}")
        return _NICKNAMES[fields[0]]
    return parse_cron(" ".join(fields))


def _without_escapes(command: str) -> str:
    """Replace `\\%` by `%`. Raises ValueError for a plain `%`, which begins the stdin of the command."""
    if re.search(r"(?<!\\)%", command):
        raise ValueError("contains %, which passes text on stdin; use a script, or write \\% for a literal %")
    return command.replace("\\%", "%")


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


# ── plugin entries ──────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Alias:
    """A new plugin entry for a line."""

    name: str
    source: CrontabEntry
    content: Mapping[str, Any]


def build_aliases(
    crontab: Crontab, existing: Mapping[str, Any], *, timeout: timedelta, directory: str
) -> tuple[tuple[Alias, ...], tuple[SkippedLine, ...]]:
    """Return the new plugin entries, and the lines that an existing entry already runs or that cannot be converted.

    `existing` are the configured plugin entries, `directory` is where the commands run.
    """
    aliases: list[Alias] = []
    skipped = list(crontab.skipped)
    taken = set(existing)
    for entry in crontab.entries:
        content = _content(entry, timeout, directory)
        if twin := next((name for name, other in existing.items() if _runs_same(other, content)), None):
            skipped.append(SkippedLine(entry.line, f"is already imported as plugins.{twin}"))
            continue
        alias = Alias(name=_free_name(entry.command, taken), source=entry, content=content)
        taken.add(alias.name)
        aliases.append(alias)
    return tuple(aliases), tuple(sorted(skipped, key=lambda line: line.line))


def _content(entry: CrontabEntry, timeout: timedelta, directory: str) -> dict[str, Any]:
    """Return the plugin entry that runs the command as cron does: with /bin/sh, without retries."""
    when = {"after": "1s"} if entry.when is None else {"cron": entry.when}
    zone = {"timezone": entry.timezone} if entry.timezone else {}
    variables = {name: _literal(value) for name, value in entry.environment.items()}
    environment = {"env": variables} if variables else {}
    seconds = int(timeout.total_seconds())
    config = {"command": _literal(entry.command), "shell": True, "working_dir": directory, "timeout_seconds": seconds}
    return {
        "uses": BASE,
        "schedules": [{"id": SCHEDULE_ID, **when, **zone}],
        "retry": {"max_attempts": 1},
        "timeouts": {"poll": format_duration(timeout + GRACE)},
        "config": {**config, **environment},
    }


def _literal(text: str) -> str:
    """Keep `${NAME}` for the shell: Ductile would replace it at load."""
    return text.replace("${", "$${")


def _runs_same(other: Any, content: Mapping[str, Any]) -> bool:
    """True if the existing entry was made from the same line."""
    if not isinstance(other, dict) or other.get("uses") != BASE:
        return False
    config, schedules = other.get("config"), other.get("schedules")
    command = config.get("command") if isinstance(config, dict) else None
    return bool(command == content["config"]["command"] and schedules == content["schedules"])


def _free_name(command: str, taken: Collection[str]) -> str:
    """Return a plugin name from the program of the command: `backup`, then `backup-2`."""
    name = _program(command)
    candidates = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
    return next(candidate for candidate in candidates if candidate not in taken)


def _program(command: str) -> str:
    """Return the file name of the program, without its extension, as a plugin name."""
    words = (word for word in _words(command) if "=" not in word)
    name = re.sub(r"[^a-z0-9_-]+", "-", PurePath(next(words, "")).stem.lower()).strip("-")
    return name[:MAX_NAME_LENGTH] or "cron"


def _words(command: str) -> Iterator[str]:
    try:
        yield from shlex.split(command)
    except ValueError:  # an open quote: the shell reports it when the command runs
        yield from command.split()
