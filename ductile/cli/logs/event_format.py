"""Format stream events: the level of each, and one line of text with colour marks.

Pure. Knows the event names of the stream, not where events come from.
"""

import json
from collections.abc import Mapping
from typing import Any

from ductile.cli.base import terminal
from ductile.core.format_time import format_timestamp

LEVELS = ("debug", "info", "warn", "error")
_LEVEL_OF = {
    "debug": (
        "job.attempt",
        "job.preflight",
        "job.retry_exhausted",
        "job.transition",
        "job.waiting",
        "pipeline.enqueued",
        "plugin.spawned",
        "poll.completed",
        "poll.started",
        "router.enqueued",
        "scheduler.circuit_half_open",
        "scheduler.scheduled",
    ),
    "warn": (
        "auth.limited",
        "auth.refused",
        "config.reload_refused",
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
        "message.expired",
        "message.late",
        "message.refused",
        "message.unclaimed",
        "plugin.drifted",
        "queue.held",
        "queue.stuck",
        "relay.refused",
        "schedule.late",
        "scheduler.circuit_state_changed",
        "scheduler.skipped",
        "state.discarded",
        "system.recovered",
        "token.refused",
        "webhook.refused",
    ),
    "error": (
        "job.failed",
        "job.quarantined",
        "job.timed_out",
        "message.dead",
        "message.failed",
        "message.timed_out",
        "plugin.unhealthy",
        "run.failed",
    ),
}
"""Level → events. Other events are `info`; `debug` events repeat what another event reports."""
LEVEL_OF: Mapping[str, str] = {name: level for level, names in _LEVEL_OF.items() for name in names}

MAX_VALUE_LENGTH = 200
_SHOWN_ELSEWHERE = frozenset(
    {
        "seq",
        "at",
        "message_id",
        "topic",
        "job_id",
        "root_job_id",
        "plugin",
        "command",
        "from",
        "to",
        "message",
        "text",
        "direct",
        "status",
    }
) | frozenset({"backoff_schedule", "retry_policy_owner", "plugin_retry_field", "retry_count", "max_retries"})


def level_of(name: str) -> str:
    """Return the level of an event."""
    return LEVEL_OF.get(name, "info")


def is_at_least(name: str, level: str) -> bool:
    """True if the event has this level or a higher one."""
    return LEVELS.index(level_of(name)) >= LEVELS.index(level)


def event_line(event: Mapping[str, Any]) -> str:
    """Format an event: `2026-02-08 09:30:00Z error job.failed backup.poll JOB_ID error="no route to host"`."""
    name, data = str(event["event"]), event["data"]
    level = level_of(name)
    shown = terminal.state(level) + " " * (len("error") - len(level))
    parts = (
        moment(event["at"]),
        shown,
        plain(name),
        subject(data),
        plain(str(data.get("message_id") or data.get("job_id") or "")),
    )
    return "  ".join(part for part in (*parts, details(data)) if part)


def moment(at: str) -> str:
    """Format the time of an event, dimmed."""
    return f"{terminal.DIM}{format_timestamp(at)}{terminal.END}"


def subject(data: Mapping[str, Any]) -> str:
    """Return `plugin.command`, or the part of it that the event has; the topic of a message."""
    if "topic" in data:
        return plain(str(data["topic"]))
    return plain(".".join(str(data[name]) for name in ("plugin", "command") if data.get(name)))


def details(data: Mapping[str, Any]) -> str:
    """Format the fields that no other column shows."""
    shown = _SHOWN_ELSEWHERE | ({"reason"} if data.get("reason") == data.get("error") else set())
    shown = shown - {"message"} if "signal" in data else shown  # only the message states what a notification reported
    if "to" not in data and "job_id" not in data:  # of a job, the name of the event has the status
        shown = shown - {"status"}
    rest = {name: value for name, value in data.items() if name not in shown and value not in (None, "", [])}
    return " ".join(f"{plain(name)}={_value(value)}" for name, value in rest.items())


def plain(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() and " " not in value else _json(value)
    text = plain(text)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
