"""From rows of the journal to the events that clients of the original know."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import ductile
from ductile.ledger.tables.journal import JournalEntry
from ductile.web.stream.event_types import AS_THEY_ARE, GAP, MAPPED, NAMES, OPENED, events_of
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
DEAD = {**ENDED, "to": "dead", "status": "dead", "error": USED_UP, "reason": USED_UP, "plugin_retry_field": True}
LOST = "core restart: the core died 4 times while it ran; attempts used up"
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
    ("job.failed", DEAD | {"error": LOST, "recovery": True}, ["job.failed", "job.retry_exhausted"]),
    ("job.failed", DEAD | {"error": "cancelled: by hand"}, ["job.failed"]),
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


def told(kind: str, **data: Any) -> dict[str, Any]:
    """The fields of the last event of a row."""
    return dict(events_of(entry(kind, data))[-1].data)


@pytest.mark.parametrize(("kind", "data", "names"), CASES)
def test_a_row_becomes_the_events_of_the_original(kind: str, data: dict[str, Any], names: list[str]) -> None:
    """In the order in which they happened, and within what the table of kinds promises."""
    found = [event.name for event in events_of(entry(kind, data))]

    assert found == names
    assert set(found) <= set(MAPPED.get(kind, (kind,)))
    assert [name for name in MAPPED.get(kind, (kind,)) if name in found] == found


@pytest.mark.parametrize("name", FIELDS)
def test_an_event_has_the_fields_that_the_original_gave_it(name: str) -> None:
    """Wherever it comes from; more fields are ours to add."""
    made = [event for kind, data, _ in CASES for event in events_of(entry(kind, data)) if event.name == name]
    # A quarantined job has no duration, a row cannot say more than it knows.
    missing = [FIELDS[name] - event.data.keys() - {"duration_ms"} for event in made]

    assert made
    assert missing == [set()] * len(made)


@pytest.mark.parametrize("kind", sorted(AS_THEY_ARE))
def test_what_only_we_have_passes_under_its_own_name(kind: str) -> None:
    """With everything the row says, its position and its moment."""
    (event,) = events_of(entry(kind, {"reason": "so"}))

    assert (event.name, event.data["reason"], event.data["seq"]) == (kind, "so", 9)
    assert (event.data["at"], event.data["job_id"]) == ("2026-11-16T06:40:00.000000Z", JOB)


def test_failures_have_the_words_that_the_original_had_for_people() -> None:
    """`text` is another name of `message`."""
    failed, timed_out = told("job.failed", **FAILED), told("job.timed_out", **FAILED)

    assert (failed["message"], failed["text"], failed["error"]) == ("Job failed [echo]: no",) * 2 + ("no",)
    assert (timed_out["message"], timed_out["text"]) == ("Job timed out [echo]",) * 2


def test_preflight_gives_its_reason_only_when_it_fails() -> None:
    """Empty for a run, the error for a job that must not run."""
    run = events_of(entry("job.completed", SUCCEEDED | RAN))[0].data
    fail = events_of(entry("job.failed", FAILED | {"preflight": "fail"}))[0].data

    assert (run["decision"], run["reason"]) == ("run", "")
    assert (fail["decision"], fail["reason"]) == ("fail", "no")


def test_a_retry_counts_retries_and_a_last_attempt_names_its_error() -> None:
    """Four attempts are three retries; the error is the plugin's own, without our words around it."""
    again, over = told("job.retry_scheduled", **RETRIED), told("job.failed", **DEAD)

    assert (again["retry_count"], again["max_retries"], again["retry_policy_owner"]) == (1, 3, "core")
    assert (over["attempts"], over["final_error"], over["reason"]) == (4, "no", "attempts used up")


@pytest.mark.parametrize(
    ("data", "direct"), [({}, True), (STEP, False), (SCHEDULED, False), ({"pipeline": "p"}, False)], ids=str
)
def test_only_a_job_that_somebody_asked_for_by_name_is_direct(data: dict[str, Any], direct: bool) -> None:
    """Not one that a pipeline, a route or a schedule made."""
    assert events_of(entry("job.enqueued", ENTERED | data))[0].data["direct"] is direct


@pytest.mark.parametrize(("kind", "data", "names"), CASES)
def test_without_the_right_to_payloads_there_are_no_words(kind: str, data: dict[str, Any], names: list[str]) -> None:
    """Errors, reasons, messages and results stay here; what, when and where do not."""
    words = {"error", "reason", "message", "text", "final_error", "left", "types", "why", "predicates"}
    for event in events_of(entry(kind, data)):
        bare = event.bare()
        assert not bare.keys() & words
        assert bare["plugin"] == "echo"
        assert bare["at"]


def test_a_discarded_state_of_a_plugin_is_data_and_that_of_a_breaker_is_not() -> None:
    """Both rows call it `state`."""
    (discarded,) = events_of(entry("state.discarded", {"state": "secret"}))
    changed = events_of(entry("scheduler.circuit_state_changed", BREAKER))[0]

    assert "state" not in discarded.bare()
    assert changed.bare()["state"] == "open"


NOUNS = r"(?:job|event|scheduler|schedule|run|step|pipeline|plugin|state|webhook|relay|queue)"
KIND = re.compile(NOUNS + r"\.[a-z_]+")
OTHER_WORDS = {
    *("job.dead", "event.dedupe_key", "event.payload", "event.type", "state.path"),
    *("run.py", "run.js", "run.ts", "run.sh", "run.rb"),
}
"""A signal of hooks, paths into data and names of files."""


def written_kinds() -> Iterator[str]:
    """Everything that looks like a kind where the journal is written, and every literal handed to it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in ("event_types.py", "event_format.py", "failpoints.py"):  # names of the stream; of places
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
    """The kind of `journal.append(db, kind, …)` or `Note(kind=…)` where it is written out."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    candidates = [keyword.value for keyword in call.keywords if name == "Note" and keyword.arg == "kind"]
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "journal.append":
        candidates += call.args[1:2]
    yield from (one.value for one in candidates if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_every_kind_of_the_journal_has_its_events() -> None:
    """A kind that is new is either mapped or declared to pass as it is; one that is gone is not kept."""
    kinds = set(written_kinds()) - OTHER_WORDS
    old = {"job.transition", "job.attempt"}  # written by the migration, in SQL

    assert {"job.started", "webhook.refused", "plugin.spawned", "run.ended"} <= kinds
    assert sorted(kinds - MAPPED.keys() - AS_THEY_ARE) == []
    assert sorted((MAPPED.keys() | AS_THEY_ARE) - kinds - old) == []


def test_every_event_is_documented() -> None:
    """docs/events.md names each of them."""
    text = DOCS.read_text()

    assert sorted(name for name in NAMES | {GAP, OPENED, "scheduler.tick"} if f"`{name}`" not in text) == []
