"""What the stream calls what the journal has: the event names and fields of the original, and ours as they are.

Pure: one row of the journal in, its events in order out. Knows nothing of readers or of bytes. Most rows are one event;
a row that the original told in several is several here. The feed calls it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.ledger.tables.journal import JournalEntry

GAP = "gap"
OPENED = "stream.opened"

ENTERING = ("pipeline.enqueued", "router.enqueued", "scheduler.scheduled")
BEFORE_THE_END = ("job.preflight", "plugin.spawned")
MAPPED: Mapping[str, tuple[str, ...]] = {
    "job.enqueued": ("job.enqueued", *ENTERING),
    "job.started": ("job.started", "poll.started"),
    "plugin.spawned": BEFORE_THE_END,
    "job.completed": (*ENTERING, *BEFORE_THE_END, "job.completed", "poll.completed"),
    "job.failed": (*ENTERING, *BEFORE_THE_END, "job.failed", "job.retry_exhausted", "poll.completed"),
    "job.timed_out": (*BEFORE_THE_END, "job.timed_out", "job.retry_exhausted", "poll.completed"),
    "job.skipped": (*ENTERING, "job.skipped"),
    "job.retry_scheduled": (*BEFORE_THE_END, "job.retry_scheduled"),
    "job.interrupted": (*BEFORE_THE_END, "job.interrupted"),
    "job.quarantined": ("job.quarantined", "job.failed"),
    "scheduler.circuit_state_changed": ("scheduler.circuit_state_changed", "scheduler.circuit_half_open"),
}
"""Journal kind → the events its rows can become, in order."""
AS_THEY_ARE = frozenset(
    {
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
        "pipeline.skipped",
        "plugin.initialised",
        "plugin.unhealthy",
        "queue.held",
        "queue.paused",
        "queue.resumed",
        "relay.refused",
        "relay.repeated",
        "run.ended",
        "schedule.late",
        "scheduler.skipped",
        "scheduler.status_changed",
        "state.discarded",
        "step.bypassed",
        "webhook.ping",
        "webhook.refused",
        "webhook.repeated",
    }
)
"""Journal kinds that the original did not have, or has under the same name with the same fields."""
NAMES = frozenset(name for names in MAPPED.values() for name in names) | AS_THEY_ARE

MOMENTS = frozenset({"seq", "at", "next_retry_at", "next_run_at", "slot_at", "since", "until"})
IDENTITIES = frozenset(
    {"job_id", "root_job_id", "parent_job_id", "job_ids", "event_context_id", "event_id", "source_event_id", "winner"}
)
NAMED = frozenset({"plugin", "command", "pipeline", "step_id", "schedule_id", "submitted_by", "retry_policy_owner"})
STATES = frozenset({"from", "to", "status", "outcome", "state", "previous_state", "decision", "direct", "recovery"})
NUMBERS = frozenset(
    {"attempt", "attempts", "max_attempts", "retry_count", "max_retries", "recoveries", "failure_count", "job_count"}
) | frozenset({"count", "jobs", "pid", "duration_ms", "backoff_ms", "backoff_schedule", "plugin_retry_field"})
BARE = MOMENTS | IDENTITIES | NAMED | STATES | NUMBERS
"""The fields of whoever may not see payloads: when, what, where from and where to; never words that can quote data."""
# A plugin's state, as opposed to a breaker's.
STATE_IS_DATA = frozenset({"state.discarded"})


@frozen
class StreamEvent:
    """One event as it is told: its name and its fields."""

    name: str
    data: Mapping[str, Any]

    def bare(self) -> dict[str, Any]:
        """The fields without any words or data."""
        hidden = {"state"} if self.name in STATE_IS_DATA else ()
        return {name: value for name, value in self.data.items() if name in BARE and name not in hidden}


def events_of(entry: JournalEntry) -> tuple[StreamEvent, ...]:
    """The events that a row is, in the order in which they happened; never none."""
    return tuple(StreamEvent(name, data) for name, data in _told(entry))


Told = tuple[str, dict[str, Any]]


def _told(entry: JournalEntry) -> Iterator[Told]:
    row, data = _about(entry), entry.data
    if data.get("from", "") is None:  # the row with which a job comes into being
        if entry.kind == "job.enqueued":
            direct = not {"parent_job_id", "pipeline", "schedule_id"} & data.keys()
            yield "job.enqueued", {**row, **data, "direct": direct}
        yield from _entering(row, data)
        if entry.kind == "job.enqueued":
            return
    match entry.kind:
        case "job.started":
            yield "job.started", {**row, **data}
            if "schedule_id" in data:
                yield "poll.started", _poll(row, data)
        case "plugin.spawned":
            yield from _running(row, {**data, "preflight": "run"})
        case "job.completed" | "job.failed" | "job.timed_out":
            yield from _running(row, data)
            yield from _ended(entry.kind, row, data)
        case "job.retry_scheduled" | "job.interrupted":
            yield from _running(row, data)
            yield entry.kind, _again(entry.kind, row, data)
        case "job.quarantined":
            yield entry.kind, {**row, **data}
            if data.get("to") == "dead":
                error = data.get("reason", "")
                yield "job.failed", _failure("job.failed", {**row, **data, "status": "dead", "error": error})
        case "scheduler.circuit_state_changed":
            yield entry.kind, {**data, **row}
            if data.get("state") == "half_open":
                yield "scheduler.circuit_half_open", {**row, "command": data.get("command")}
        case _:
            yield entry.kind, {**data, **row}


def _about(entry: JournalEntry) -> dict[str, Any]:
    """What every event of the row says."""
    row = {"seq": entry.seq, "at": to_text(entry.at)}
    named = {"job_id": entry.job_id, "root_job_id": entry.root_job_id, "plugin": entry.plugin}
    return row | {name: value for name, value in named.items() if value is not None}


def _entering(row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[Told]:
    """Where the job came from."""
    job_id, parent = row.get("job_id"), data.get("parent_job_id")
    told = {"command": data.get("command"), "submitted_by": data.get("submitted_by")}
    if "pipeline" in data and job_id == row.get("root_job_id"):
        first = {"pipeline": data["pipeline"], "job_ids": [job_id], "job_count": 1}
        yield "pipeline.enqueued", {**row, **told, **first}
    if parent is not None:
        place = {name: data.get(name) for name in ("pipeline", "step_id", "event_context_id")}
        yield "router.enqueued", {**row, **told, "parent_job_id": parent, **place}
    if "schedule_id" in data:
        yield "scheduler.scheduled", {**row, **told, "schedule_id": data["schedule_id"]}


def _running(row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[Told]:
    """What preflight decided and which process ran, if the row is the one that tells it."""
    told = {name: data[name] for name in ("command", "attempt") if name in data}
    decision = data.get("preflight")
    if decision is not None:
        reason = "" if decision == "run" else data.get("reason", "")
        yield "job.preflight", {**row, **told, "decision": decision, "reason": reason}
    if "pid" in data:
        yield "plugin.spawned", {**row, **told, "pid": data["pid"]}


def _ended(kind: str, row: dict[str, Any], data: Mapping[str, Any]) -> Iterator[Told]:
    whole = {**row, **_without_run(data)}
    yield kind, whole if kind == "job.completed" else _failure(kind, whole)
    used_up = _USED_UP.fullmatch(data.get("error") or "")
    if used_up is not None:
        yield "job.retry_exhausted", _exhausted(row, data, used_up)
    if "schedule_id" in data and data.get("from") == "running":
        outcome = "timed_out" if kind == "job.timed_out" else "succeeded" if kind == "job.completed" else "failed"
        yield "poll.completed", _poll(row, data) | {"outcome": outcome}


def _failure(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """With the words that the original had for people."""
    plugin, error = data.get("plugin", ""), data.get("error") or data.get("reason") or ""
    words = f"Job timed out [{plugin}]" if kind == "job.timed_out" else f"Job failed [{plugin}]: {error}"
    return {**data, "error": error, "message": words, "text": words}


# The words of a death by too many attempts, as the judge, the ledger and the recovery write them.
_USED_UP = re.compile(
    r"attempts used up \((?P<tries>\d+) of \d+\): (?P<error>.*)|core restart: .*; attempts used up", re.DOTALL
)


def _exhausted(row: dict[str, Any], data: Mapping[str, Any], used_up: re.Match[str]) -> dict[str, Any]:
    return {
        **row,
        "command": data.get("command"),
        "attempts": int(used_up["tries"] or data.get("attempt", 0)),
        "final_error": used_up["error"] or data["error"],
        "reason": "attempts used up",
        "retry_policy_owner": "core",
        "plugin_retry_field": data.get("plugin_retry_field"),
    }


def _again(kind: str, row: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**row, **_without_run(data)}
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


_POLL = ("command", "schedule_id", "submitted_by", "attempt", "status", "duration_ms", "error")


def _poll(row: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: data[name] for name in _POLL if name in data}}


def _without_run(data: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what stands in events of its own."""
    return {name: value for name, value in data.items() if name not in ("preflight", "pid")}
