"""The mapping of journal rows to stream events, with the event names and fields of the original Ductile.

Pure: one journal row in, its events in order out. Most rows are one event; some are several, as in the original. Does
not know subscribers or encodings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import OutcomeCode
from ductile.ledger.tables.journal import JournalEntry

GAP = "gap"
OPENED = "stream.opened"

ENQUEUE_EVENTS = ("pipeline.enqueued", "router.enqueued", "scheduler.scheduled")
START_EVENTS = ("job.preflight", "plugin.spawned")
MAPPED: Mapping[str, tuple[str, ...]] = {
    "job.enqueued": ("job.enqueued", *ENQUEUE_EVENTS),
    "job.started": ("job.started", "poll.started"),
    "plugin.spawned": START_EVENTS,
    "job.completed": (*ENQUEUE_EVENTS, *START_EVENTS, "job.completed", "poll.completed"),
    "job.failed": (*ENQUEUE_EVENTS, *START_EVENTS, "job.failed", "job.retry_exhausted", "poll.completed"),
    "job.timed_out": (*START_EVENTS, "job.timed_out", "job.retry_exhausted", "poll.completed"),
    "job.skipped": (*ENQUEUE_EVENTS, "job.skipped"),
    "job.retry_scheduled": (*START_EVENTS, "job.retry_scheduled"),
    "job.interrupted": (*START_EVENTS, "job.interrupted"),
    "job.quarantined": ("job.quarantined", "job.failed"),
    "scheduler.circuit_state_changed": ("scheduler.circuit_state_changed", "scheduler.circuit_half_open"),
}
"""The events that rows of a journal kind can produce, in order."""
UNCHANGED = frozenset(
    {
        "auth.limited",
        "auth.refused",
        "config.edited",
        "config.reload_refused",
        "config.reloaded",
        "event.baggage_dropped",
        "event.no_route",
        "event.unmatched",
        "event.withheld",
        "job.attempt",
        "job.cancel_requested",
        "job.deduplicated",
        "job.held",
        "job.overdue",
        "job.recovered",
        "job.requeued",
        "job.stale",
        "job.transition",
        "job.waiting",
        "message.claimed",
        "message.completed",
        "message.dead",
        "message.expired",
        "message.failed",
        "message.late",
        "message.published",
        "message.purged",
        "message.refused",
        "message.released",
        "message.requeued",
        "message.timed_out",
        "message.unclaimed",
        "messages.imported",
        "notification.held",
        "notification.sent",
        "notification.skipped",
        "pipeline.skipped",
        "plugin.drifted",
        "plugin.initialised",
        "plugin.restored",
        "plugin.unhealthy",
        "queue.held",
        "queue.paused",
        "queue.purged",
        "queue.resumed",
        "queue.stuck",
        "relay.refused",
        "relay.repeated",
        "run.ended",
        "run.still_open",
        "run.failed",
        "schedule.late",
        "scheduler.skipped",
        "scheduler.status_changed",
        "state.discarded",
        "step.bypassed",
        "token.refused",
        "topic.paused",
        "topic.resumed",
        "system.recovered",
        "system.started",
        "system.stopped",
        "webhook.ping",
        "webhook.refused",
        "webhook.repeated",
    }
)
"""Journal kinds that are streamed under their own name, with all their fields."""
NAMES = frozenset(name for names in MAPPED.values() for name in names) | UNCHANGED

TIME_FIELDS = frozenset({"seq", "at", "next_retry_at", "next_run_at", "slot_at", "ready_at", "since", "until"})
ID_FIELDS = frozenset(
    {
        "job_id",
        "root_job_id",
        "parent_job_id",
        "job_ids",
        "event_context_id",
        "event_id",
        "source_event_id",
        "winner",
        "holder",
        "message_id",
        "conversation_id",
        "parent_id",
        "claim_id",
        "follow_up_id",
        "dead_letter_id",
    }
)
NAME_FIELDS = frozenset(
    {"plugin", "command", "pipeline", "step_id", "schedule_id", "submitted_by", "actor", "retry_policy_owner"}
) | frozenset({"topic", "worker_group", "worker_instance_id", "producer", "follow_up_topic", "dead_letter_topic"})
STATE_FIELDS = frozenset(
    {"from", "to", "status", "outcome", "outcome_code", "state", "previous_state", "decision", "direct", "recovery"}
) | frozenset({"code", "claim_status", "is_dead_letter", "uncounted"})
NUMBER_FIELDS = frozenset(
    {"attempt", "attempts", "max_attempts", "retry_count", "max_retries", "recoveries", "failure_count", "job_count"}
) | frozenset({"count", "jobs", "pid", "duration_ms", "backoff_ms", "backoff_schedule", "plugin_retry_field"})
MESSAGE_NUMBERS = frozenset({"delivery", "deliveries", "bytes", "ready", "late_ms", "waited_ms"})
META_FIELDS = TIME_FIELDS | ID_FIELDS | NAME_FIELDS | STATE_FIELDS | NUMBER_FIELDS | MESSAGE_NUMBERS
"""The fields for callers without the payload scope. Excludes messages, which can quote payload data."""
# Here `state` is the state of a plugin, which is payload; elsewhere it is the state of a breaker.
STATE_IS_PAYLOAD = frozenset({"state.discarded"})


@frozen
class StreamEvent:
    """A stream event: its name and its fields."""

    name: str
    data: Mapping[str, Any]

    def bare(self) -> dict[str, Any]:
        """Return the fields without messages and payload data."""
        hidden = {"state"} if self.name in STATE_IS_PAYLOAD else ()
        return {name: value for name, value in self.data.items() if name in META_FIELDS and name not in hidden}


def events_of(entry: JournalEntry) -> tuple[StreamEvent, ...]:
    """Return the events of a row, in the order in which they happened; at least one."""
    return tuple(StreamEvent(name, data) for name, data in _expand(entry))


NamedData = tuple[str, dict[str, Any]]


def _expand(entry: JournalEntry) -> Iterator[NamedData]:
    row, data = _row_fields(entry), entry.data
    if data.get("from", "") is None:  # the row that creates the job
        if entry.kind == "job.enqueued":
            direct = not {"parent_job_id", "pipeline", "schedule_id"} & data.keys()
            yield "job.enqueued", {**row, **data, "direct": direct}
        yield from _enqueue_events(row, data)
        if entry.kind == "job.enqueued":
            return
    match entry.kind:
        case "job.started":
            yield "job.started", {**row, **data}
            if "schedule_id" in data:
                yield "poll.started", _poll_data(row, data)
        case "plugin.spawned":
            yield from _start_events(row, {**data, "preflight": "run"})
        case "job.completed" | "job.failed" | "job.timed_out":
            yield from _start_events(row, data)
            yield from _end_events(entry.kind, row, data)
        case "job.retry_scheduled" | "job.interrupted":
            yield from _start_events(row, data)
            yield entry.kind, _retry_data(entry.kind, row, data)
        case "job.quarantined":
            yield entry.kind, {**row, **data}
            if data.get("to") == "dead":
                error = data.get("reason", "")
                yield "job.failed", _failure_data("job.failed", {**row, **data, "status": "dead", "error": error})
        case "scheduler.circuit_state_changed":
            yield entry.kind, {**data, **row}
            if data.get("state") == "half_open":
                yield "scheduler.circuit_half_open", {**row, "command": data.get("command")}
        case _:
            yield entry.kind, {**data, **row}


def _row_fields(entry: JournalEntry) -> dict[str, Any]:
    """Return the fields that every event of the row has."""
    row = {"seq": entry.seq, "at": to_text(entry.at)}
    named = {"job_id": entry.job_id, "root_job_id": entry.root_job_id, "plugin": entry.plugin}
    named |= {"message_id": entry.message_id, "actor": entry.actor}
    return row | {name: value for name, value in named.items() if value is not None}


def _enqueue_events(row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[NamedData]:
    """Yield the events for the origin of a new job: pipeline, parent job or schedule."""
    job_id, parent = row.get("job_id"), data.get("parent_job_id")
    common = {"command": data.get("command"), "submitted_by": data.get("submitted_by")}
    if "pipeline" in data and job_id == row.get("root_job_id"):
        first = {"pipeline": data["pipeline"], "job_ids": [job_id], "job_count": 1}
        yield "pipeline.enqueued", {**row, **common, **first}
    if parent is not None:
        place = {name: data.get(name) for name in ("pipeline", "step_id", "event_context_id")}
        yield "router.enqueued", {**row, **common, "parent_job_id": parent, **place}
    if "schedule_id" in data:
        yield "scheduler.scheduled", {**row, **common, "schedule_id": data["schedule_id"]}


def _start_events(row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[NamedData]:
    """Yield the events for preflight and process start, if the row has their fields."""
    common = {name: data[name] for name in ("command", "attempt") if name in data}
    decision = data.get("preflight")
    if decision is not None:
        reason = "" if decision == "run" else data.get("reason", "")
        yield "job.preflight", {**row, **common, "decision": decision, "reason": reason}
    if "pid" in data:
        yield "plugin.spawned", {**row, **common, "pid": data["pid"]}


def _end_events(kind: str, row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[NamedData]:
    whole = {**row, **_without_start_fields(data)}
    yield kind, whole if kind == "job.completed" else _failure_data(kind, whole)
    if data.get("outcome_code") in EXHAUSTED:
        yield "job.retry_exhausted", _exhausted_data(row, data)
    if "schedule_id" in data and data.get("from") == "running":
        outcome = "timed_out" if kind == "job.timed_out" else "succeeded" if kind == "job.completed" else "failed"
        yield "poll.completed", _poll_data(row, data) | {"outcome": outcome}


def _failure_data(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Add the `message` and `text` fields of the original."""
    plugin, error = data.get("plugin", ""), data.get("error") or data.get("reason") or ""
    message = f"Job timed out [{plugin}]" if kind == "job.timed_out" else f"Job failed [{plugin}]: {error}"
    return {**data, "error": error, "message": message, "text": message}


EXHAUSTED = frozenset({OutcomeCode.ATTEMPTS_USED_UP, OutcomeCode.CORE_DIED})


def _exhausted_data(row: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    outcome = data.get("outcome_data", {})
    return {
        **row,
        "command": data.get("command"),
        "attempts": outcome.get("attempts", data.get("attempt", 0)),
        "final_error": outcome.get("error", data.get("error")),
        "reason": "attempts used up",
        "retry_policy_owner": "core",
        "plugin_retry_field": data.get("plugin_retry_field"),
    }


def _retry_data(kind: str, row: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**row, **_without_start_fields(data)}
    if kind == "job.interrupted":
        return whole
    tries, most = whole.pop("tries", None), data.get("max_attempts")
    return {
        **whole,
        "retry_count": tries,
        "max_retries": most - 1 if isinstance(most, int) else None,
        "retry_policy_owner": "core",
        "plugin_retry_field": data.get("plugin_retry_field"),
        "backoff_ms": data.get("backoff_ms", 0),
        "backoff_schedule": data.get("backoff_schedule", []),
        "next_retry_at": data.get("next_retry_at", row["at"]),
    }


_POLL_FIELDS = ("command", "schedule_id", "submitted_by", "attempt", "status", "duration_ms", "error")


def _poll_data(row: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: data[name] for name in _POLL_FIELDS if name in data}}


def _without_start_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row without the fields of the preflight and spawn events."""
    return {name: value for name, value in data.items() if name not in ("preflight", "pid")}
