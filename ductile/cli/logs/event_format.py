"""Events in words: how much each of them matters, and one line for people, with marks for colour.

Pure. Knows the names of the stream, not where events come from or where the lines go.
"""

import json
from collections.abc import Mapping
from typing import Any

from ductile.cli.base import terminal
from ductile.core.format_time import exact

LEVELS = ("debug", "info", "warn", "error")
_LEVEL_OF = {
    "debug": (
        "job.attempt",
        "job.preflight",
        "job.retry_exhausted",
        "job.transition",
        "pipeline.enqueued",
        "plugin.spawned",
        "poll.completed",
        "poll.started",
        "router.enqueued",
        "scheduler.circuit_half_open",
        "scheduler.scheduled",
    ),
    "warn": (
        "event.baggage_dropped",
        "event.no_route",
        "event.withheld",
        "gap",
        "job.held",
        "job.interrupted",
        "job.overdue",
        "job.recovered",
        "job.retry_scheduled",
        "job.stale",
        "queue.held",
        "relay.refused",
        "schedule.late",
        "scheduler.circuit_state_changed",
        "scheduler.skipped",
        "state.discarded",
        "webhook.refused",
    ),
    "error": ("job.failed", "job.quarantined", "job.timed_out", "plugin.unhealthy"),
}
"""What is not here is `info`; `debug` tells what another event says already."""
LEVEL_OF: Mapping[str, str] = {name: level for level, names in _LEVEL_OF.items() for name in names}

LONGEST_WORDS = 200
_SAID_ELSEWHERE = frozenset(
    {"seq", "at", "job_id", "root_job_id", "plugin", "command", "from", "to", "message", "text", "direct", "status"}
) | frozenset({"backoff_schedule", "retry_policy_owner", "plugin_retry_field", "retry_count", "max_retries"})


def level_of(name: str) -> str:
    """How much an event of that name matters."""
    return LEVEL_OF.get(name, "info")


def is_at_least(name: str, level: str) -> bool:
    """Whether an event of that name matters so much."""
    return LEVELS.index(level_of(name)) >= LEVELS.index(level)


def event_line(event: Mapping[str, Any]) -> str:
    """`2026-02-08 09:30:00Z error job.failed backup.poll JOB_ID error="no route to host"`."""
    name, data = str(event["event"]), event["data"]
    level = level_of(name)
    shown = terminal.state(level) + " " * (len("error") - len(level))
    parts = (moment(event["at"]), shown, plain(name), what(data), plain(str(data.get("job_id") or "")))
    return "  ".join(part for part in (*parts, words(data)) if part)


def moment(at: str) -> str:
    """When it was, less loud than what it was."""
    return f"{terminal.DIM}{exact(at)}{terminal.END}"


def what(data: Mapping[str, Any]) -> str:
    """`plugin.command`, or as much of it as the event concerns."""
    return plain(".".join(str(data[name]) for name in ("plugin", "command") if data.get(name)))


def words(data: Mapping[str, Any]) -> str:
    """The fields that no other column tells, in short."""
    said = _SAID_ELSEWHERE | ({"reason"} if data.get("reason") == data.get("error") else set())
    rest = {name: value for name, value in data.items() if name not in said and value not in (None, "", [])}
    return " ".join(f"{plain(name)}={_value(value)}" for name, value in rest.items())


def plain(text: str) -> str:
    """The text without anything that a terminal would obey, on one line."""
    return "".join(character if character.isprintable() else " " for character in text)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() and " " not in value else _json(value)
    text = plain(text)
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
