"""The mapping of journal rows to stream events with the names and fields of the original."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import ductile
from ductile.core.statuses import ClaimStatus
from ductile.ledger.tables.journal import JournalEntry
from ductile.web.stream.event_types import GAP, MAPPED, NAMES, OPENED, UNCHANGED, events_of
from tests.web.original_events import FIELDS

PACKAGE = Path(ductile.__file__).parent
DOCS = PACKAGE.parent / "docs" / "events.md"
JOB, ROOT, PARENT = "job", "root", "parent"
NOW = datetime(2026, 11, 16, 6, 40, tzinfo=UTC)
ENTERED = {"from": None, "to": "queued", "command": "poll", "submitted_by": "api"}
STARTED = {"from": "queued", "to": "running", "attempt": 1, "command": "poll", "submitted_by": "api"}
RAN = {"preflight": "run", "pid": 42}
ENDED = {"from": "running", "attempt": 1, "command": "poll", "duration_ms": 7}
SUCCEEDED = {**ENDED, "to": "succeeded", "status": "succeeded"}
FAILED = {**ENDED, "to": "failed", "status": "failed", "error": "no", "reason": "no"}
USED_UP = "attempts used up (4 of 4): no"
OUTCOME = {"outcome_code": "attempts_used_up", "outcome_data": {"attempts": 4, "max_attempts": 4, "error": "no"}}
DEAD = {
    **ENDED,
    **OUTCOME,
    "to": "dead",
    "status": "dead",
    "error": USED_UP,
    "reason": USED_UP,
    "plugin_retry_field": True,
}
LOST = {"error": "core restart", "outcome_code": "core_died", "outcome_data": {"recoveries": 4}}
SCHEDULED = {"schedule_id": "daily", "submitted_by": "scheduler"}
RETRIED = {
    "from": "running",
    "to": "queued",
    "attempt": 1,
    "command": "poll",
    "outcome": "failed",
    "reason": "no",
    "max_attempts": 4,
    "tries": 1,
    "plugin_retry_field": True,
    "backoff_schedule": [30000, 60000, 120000],
    "backoff_ms": 31000,
    "next_retry_at": "2026-11-16T06:40:31.000000Z",
}
STEP = {"parent_job_id": PARENT, "pipeline": "p", "step_id": "s", "event_context_id": "c"}
BREAKER = {"command": "poll", "previous_state": "closed", "state": "open", "failure_count": 3, "reason": "failed"}

CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("job.enqueued", ENTERED, ["job.enqueued"]),
    ("job.enqueued", ENTERED | STEP, ["job.enqueued", "router.enqueued"]),
    ("job.enqueued", ENTERED | {"pipeline": "p", "job": ROOT}, ["job.enqueued", "pipeline.enqueued"]),
    ("job.enqueued", ENTERED | SCHEDULED, ["job.enqueued", "scheduler.scheduled"]),
    ("job.started", STARTED, ["job.started"]),
    ("job.started", STARTED | SCHEDULED, ["job.started", "poll.started"]),
    ("plugin.spawned", {"attempt": 1, "command": "poll", "pid": 42}, ["job.preflight", "plugin.spawned"]),
    ("job.completed", SUCCEEDED | RAN, ["job.preflight", "plugin.spawned", "job.completed"]),
    ("job.completed", SUCCEEDED, ["job.completed"]),
    ("job.completed", SUCCEEDED | SCHEDULED, ["job.completed", "poll.completed"]),
    ("job.completed", SUCCEEDED | STEP | {"from": None}, ["router.enqueued", "job.completed"]),
    ("job.failed", FAILED | RAN, ["job.preflight", "plugin.spawned", "job.failed"]),
    ("job.failed", FAILED | {"preflight": "fail"}, ["job.preflight", "job.failed"]),
    ("job.failed", FAILED | SCHEDULED, ["job.failed", "poll.completed"]),
    ("job.failed", FAILED | SCHEDULED | {"from": "queued"}, ["job.failed"]),
    ("job.failed", DEAD, ["job.failed", "job.retry_exhausted"]),
    ("job.failed", DEAD | LOST | {"recovery": True}, ["job.failed", "job.retry_exhausted"]),
    ("job.failed", DEAD | {"outcome_code": "cancelled", "outcome_data": {"reason": "by hand"}}, ["job.failed"]),
    ("job.timed_out", DEAD, ["job.timed_out", "job.retry_exhausted"]),
    ("job.skipped", ENDED | {"reason": "deduplicated"}, ["job.skipped"]),
    ("job.retry_scheduled", RETRIED | RAN, ["job.preflight", "plugin.spawned", "job.retry_scheduled"]),
    ("job.interrupted", RETRIED | RAN, ["job.preflight", "plugin.spawned", "job.interrupted"]),
    ("job.quarantined", ENDED | {"to": "dead", "reason": "bad row"}, ["job.quarantined", "job.failed"]),
    ("job.quarantined", {"attempt": 1, "reason": "bad row", "left": "as it is"}, ["job.quarantined"]),
    ("scheduler.circuit_state_changed", BREAKER, ["scheduler.circuit_state_changed"]),
    (
        "scheduler.circuit_state_changed",
        BREAKER | {"state": "half_open"},
        ["scheduler.circuit_state_changed", "scheduler.circuit_half_open"],
    ),
    (
        "scheduler.skipped",
        {"schedule_id": "daily", "command": "poll", "reason": "paused", "next_run_at": None, "slot_at": None},
        ["scheduler.skipped"],
    ),
]


def entry(kind: str, data: dict[str, Any]) -> JournalEntry:
    data = dict(data)
    job = data.pop("job", JOB)
    return JournalEntry(seq=9, at=NOW, kind=kind, plugin="echo", job_id=job, root_job_id=ROOT, data=data)


def last_event_data(kind: str, **data: Any) -> dict[str, Any]:
    """Return the fields of the last event of a row."""
    return dict(events_of(entry(kind, data))[-1].data)


def test_a_row_becomes_the_events_of_the_original() -> None:
    """In the order in which they happened, which is also the order in MAPPED."""
    wrong = []
    for kind, data, names in CASES:
        found = [event.name for event in events_of(entry(kind, data))]
        if found != names or [name for name in MAPPED.get(kind, (kind,)) if name in found] != found:
            wrong.append((kind, data, found))
    assert wrong == []


def test_an_event_has_the_fields_of_the_original() -> None:
    """From every kind of row. It may have further fields."""
    events = [event for kind, data, _ in CASES for event in events_of(entry(kind, data))]
    # A quarantined job has no duration.
    missing = [(event.name, FIELDS.get(event.name, set()) - event.data.keys() - {"duration_ms"}) for event in events]

    assert FIELDS.keys() <= {event.name for event in events}
    assert [case for case in missing if case[1]] == []


def test_an_unchanged_kind_keeps_its_name_and_fields() -> None:
    """With position and time."""
    row = {"seq": 9, "at": "2026-11-16T06:40:00.000000Z", "job_id": JOB, "reason": "so"}
    wrong = []
    for kind in sorted(UNCHANGED):
        (event,) = events_of(entry(kind, {"reason": "so"}))
        if event.name != kind or not row.items() <= event.data.items():
            wrong.append((kind, event))
    assert wrong == []


def test_failures_have_the_message_of_the_original() -> None:
    """`text` is an alias of `message`."""
    failed, timed_out = last_event_data("job.failed", **FAILED), last_event_data("job.timed_out", **FAILED)

    assert (failed["message"], failed["text"], failed["error"]) == ("Job failed [echo]: no",) * 2 + ("no",)
    assert (timed_out["message"], timed_out["text"]) == ("Job timed out [echo]",) * 2


def test_preflight_has_a_reason_only_if_it_fails() -> None:
    run = events_of(entry("job.completed", SUCCEEDED | RAN))[0].data
    fail = events_of(entry("job.failed", FAILED | {"preflight": "fail"}))[0].data

    assert (run["decision"], run["reason"]) == ("run", "")
    assert (fail["decision"], fail["reason"]) == ("fail", "no")


def test_a_retry_has_retry_counts_and_an_exhausted_job_its_last_error() -> None:
    """Four attempts are three retries. `final_error` is the error of the plugin without a prefix."""
    again, over = last_event_data("job.retry_scheduled", **RETRIED), last_event_data("job.failed", **DEAD)

    assert (again["retry_count"], again["max_retries"], again["retry_policy_owner"]) == (1, 3, "core")
    assert (over["attempts"], over["final_error"], over["reason"]) == (4, "no", "attempts used up")


@pytest.mark.parametrize(
    ("data", "direct"), [({}, True), (STEP, False), (SCHEDULED, False), ({"pipeline": "p"}, False)], ids=str
)
def test_only_a_job_without_pipeline_parent_or_schedule_is_direct(data: dict[str, Any], direct: bool) -> None:
    assert events_of(entry("job.enqueued", ENTERED | data))[0].data["direct"] is direct


def test_bare_events_have_no_messages_and_no_payload_data() -> None:
    """Names, ids and times are kept."""
    hidden = {"error", "reason", "message", "text", "final_error", "left", "types", "why", "predicates"}
    wrong = []
    for kind, data, _ in CASES:
        for event in events_of(entry(kind, data)):
            bare = event.bare()
            if bare.keys() & hidden or bare["plugin"] != "echo" or not bare["at"]:
                wrong.append((kind, event.name, bare))
    assert wrong == []


def test_the_state_of_a_plugin_is_payload_and_that_of_a_breaker_is_not() -> None:
    """Both fields are named `state`."""
    (discarded,) = events_of(entry("state.discarded", {"state": "secret"}))
    changed = events_of(entry("scheduler.circuit_state_changed", BREAKER))[0]

    assert "state" not in discarded.bare()
    assert changed.bare()["state"] == "open"


NOUNS = (
    r"(?:job|event|scheduler|schedule|run|step|pipeline|plugin|state|webhook|relay|queue|notification"
    r"|system|config|auth)"
)
KIND = re.compile(NOUNS + r"\.[a-z_]+")
NOT_KINDS = {
    *("job.dead", "run.completed", "event.dedupe_key", "event.payload", "event.type", "state.path", "relay.with"),
    *("config.yaml", "state.db", "job.run"),
    *("run.py", "run.js", "run.ts", "run.sh", "run.rb"),
}
"""Hook signals, data paths, and names of files and modules."""


def written_kinds() -> Iterator[str]:
    """Yield every literal in the package that looks like a journal kind or is passed to the journal."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in ("event_types.py", "event_format.py", "failpoints.py"):  # stream names; failpoints
            continue
        tree = ast.parse(path.read_text())
        points = {
            argument.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
            for argument in node.args
            if isinstance(argument, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if KIND.fullmatch(node.value) and node.value not in points:
                    yield node.value
            elif isinstance(node, ast.Call):
                yield from literal_kinds(node)


def literal_kinds(call: ast.Call) -> Iterator[str]:
    """Yield the literal kind of `journal.append(db, kind, …)` or `Note(kind=…)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    candidates = [keyword.value for keyword in call.keywords if name == "Note" and keyword.arg == "kind"]
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) in (
        "journal.append",
        "journal.append_of_messages",
    ):
        candidates += call.args[1:2]
    yield from (node.value for node in candidates if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_journal_kind_is_mapped_or_unchanged() -> None:
    """And every mapped or unchanged kind exists."""
    kinds = set(written_kinds()) - NOT_KINDS
    kinds |= {f"message.{status}" for status in ClaimStatus if status is not ClaimStatus.ACTIVE}  # how a claim ended
    old = {"job.transition", "job.attempt"}  # written by the migration, in SQL

    assert {"job.started", "webhook.refused", "plugin.spawned", "run.ended"} <= kinds
    assert sorted(kinds - MAPPED.keys() - UNCHANGED) == []
    assert sorted((MAPPED.keys() | UNCHANGED) - kinds - old) == []


def test_every_event_is_documented() -> None:
    """In docs/events.md."""
    text = DOCS.read_text()

    assert sorted(name for name in NAMES | {GAP, OPENED, "scheduler.tick"} if f"`{name}`" not in text) == []
