"""The message for each signal: from a journal entry to a notification, and the summary of held signals. Pure."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from ductile.config.sections.monitoring import Notify, NotifySignal
from ductile.core.clock import to_text
from ductile.core.format_time import format_span, format_timestamp
from ductile.core.units import format_duration
from ductile.ledger.admin.service_log import RECOVERED
from ductile.ledger.reports.queue_status import OldestJob
from ductile.ledger.tables.journal import JournalEntry
from ductile.ledger.tables.notifications import NotificationGroup
from ductile.pipeline.run.notifications import Notification

QUEUE_STUCK = "queue.stuck"
CIRCUIT_STATE_CHANGED = "scheduler.circuit_state_changed"
KINDS: Mapping[str, NotifySignal] = {
    "run.failed": "run.failed",
    CIRCUIT_STATE_CHANGED: "breaker.opened",
    "schedule.late": "schedule.late",
    QUEUE_STUCK: "queue.stuck",
    RECOVERED: "service.recovered",
}
"""Journal kind → the signal that it can be."""
NOUNS: Mapping[str, tuple[str, str]] = {
    "run.failed": ("failed run of", "failed runs of"),
    "breaker.opened": ("opening of the circuit breaker of", "openings of the circuit breaker of"),
    "schedule.late": ("late run of", "late runs of"),
    "queue.stuck": ("alarm about", "alarms about"),
    "service.recovered": ("recovery of", "recoveries of"),
}
"""Signal → how one and how several of them are named."""
OWN_BREAKER = "the message would be sent by the plugin that it is about"


def notification_of(entry: JournalEntry) -> Notification | None:
    """Return the notification for a journal entry of one of the KINDS; None if it is not a signal."""
    if entry.kind == CIRCUIT_STATE_CHANGED and entry.data.get("state") != "open":
        return None
    signal = KINDS[entry.kind]
    subject, payload = _CONTENT_OF[signal](entry)
    facts = {"signal": signal, "subject": subject, "at": to_text(entry.at)}
    return Notification(signal=signal, subject=subject, at=entry.at, payload={**payload, **facts})


def why_skipped(entry: JournalEntry, config: Notify) -> str | None:
    """Return why a signal is not sent: the plugin that sends messages cannot report its own breaker."""
    return OWN_BREAKER if entry.kind == CIRCUIT_STATE_CHANGED and entry.plugin == config.to else None


def summary_of(group: NotificationGroup, *, now: datetime) -> Notification:
    """Return one message for all signals that were held since the last message of the group."""
    one, several = NOUNS.get(group.signal, (group.signal, group.signal))
    signals = f"{group.held} more {one if group.held == 1 else several} {group.subject}"
    message = f"{signals} since {format_timestamp(to_text(group.sent_at))}. The last: {group.last.get('message', '')}"
    payload = {
        "signal": group.signal,
        "subject": group.subject,
        "at": to_text(now),
        "count": group.held,
        "since": to_text(group.sent_at),
        "last": dict(group.last),
        "title": signals,
        "message": message,
        "text": message,
    }
    return Notification(signal=group.signal, subject=group.subject, at=now, payload=payload, count=group.held)


def stuck_queue_data(job: OldestJob, limit: timedelta, *, now: datetime) -> dict[str, Any]:
    """Return the journal data of `queue.stuck`."""
    waited = format_span(now - job.ready_at)
    message = f"The oldest ready job ({job.plugin}.{job.command}) has waited for {waited} to start."
    return {
        "command": job.command,
        "since": to_text(job.ready_at),
        "within": format_duration(limit),
        "title": "The queue is stuck",
        "message": message,
        "text": message,
    }


Content = tuple[str, dict[str, Any]]
"""Subject and payload."""


def _failed_run(entry: JournalEntry) -> Content:
    pipeline = entry.data.get("pipeline")
    return f"pipeline {pipeline}" if pipeline else f"plugin {entry.plugin}", entry.data


def _opened_breaker(entry: JournalEntry) -> Content:
    name, count = f"{entry.plugin}.{entry.data.get('command')}", entry.data.get("failure_count")
    message = f"The circuit breaker of {name} opened after {count} failures in a row. Its jobs wait."
    title = f"Circuit breaker of {name} opened"
    return f"plugin {name}", {"plugin": entry.plugin, **entry.data, "title": title, "message": message, "text": message}


def _late_schedule(entry: JournalEntry) -> Content:
    name = f"schedule {entry.plugin}/{entry.data.get('schedule_id')}"
    return name, {**entry.data, "title": f"{name.capitalize()} is late"}


def _stuck_queue(entry: JournalEntry) -> Content:
    return "the queue", {"plugin": entry.plugin, "job_id": entry.job_id, **entry.data}


def _recovered_service(entry: JournalEntry) -> Content:
    jobs, since = entry.data.get("jobs", 0), format_timestamp(str(entry.data.get("since")))
    recovered = f"{jobs} running job{'' if jobs == 1 else 's'} recovered"
    message = f"The service was killed after {since} and started again: {recovered}."
    title = "The service recovered from a crash"
    return "the service", {**entry.data, "title": title, "message": message, "text": message}


_CONTENT_OF: Mapping[NotifySignal, Callable[[JournalEntry], Content]] = {
    "run.failed": _failed_run,
    "breaker.opened": _opened_breaker,
    "schedule.late": _late_schedule,
    "queue.stuck": _stuck_queue,
    "service.recovered": _recovered_service,
}
