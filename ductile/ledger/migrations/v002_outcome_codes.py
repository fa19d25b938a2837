"""Schema 2: `job_log` stores why a job ended as a code with data.

Rows of schema 1 have only a sentence. This step reads the code back from it, once. Nothing else parses sentences.
A row that no rule fits gets the general code of its status.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

from attrs import frozen

PORTION = 1_000
CONFIG_ERROR = 78
_CANCELLED, _NOT_JOINED, _INTERNAL_ERROR = "cancelled: ", "not joined: ", "internal error"
_NOT_DECIDED, _NOT_RECORDED = "cannot be decided: ", "cannot be recorded: "
_ALL_DUPLICATES = "everything it would have joined was a duplicate"
_USED_UP = re.compile(r"attempts used up \((\d+) of (\d+)\): (.*)", re.DOTALL)
_CORE_DIED = re.compile(r"core restart: the core died (\d+) times while it ran; attempts used up")
_WINNER = re.compile(r"deduplicated: (\S+) succeeded meanwhile")
_BUDGETS = (
    ("hops", re.compile(r"chain of more than (\d+) hops")),
    ("tree_jobs", re.compile(r"tree of more than (\d+) jobs")),
    ("max_depth", re.compile(r"max_depth (\d+) of the pipeline is reached")),
)

_COLUMNS = ("ALTER TABLE job_log ADD COLUMN outcome_code TEXT", "ALTER TABLE job_log ADD COLUMN outcome_data TEXT")
_ANSWERED = """
    UPDATE job_log SET outcome_code = 'answered_ok' WHERE job_status = 'succeeded' AND substr(plugin, 1, 5) <> 'core.'
"""
_ROWS = """
    SELECT seq, job_id, plugin, job_status, last_error, result, started_at, exit_code, step_id, source_event_id,
           parent_job_id
      FROM job_log
     WHERE seq > ? AND outcome_code IS NULL AND job_status NOT IN ('queued', 'running')
     ORDER BY seq LIMIT ?
"""
_SET = "UPDATE job_log SET outcome_code = ?, outcome_data = ? WHERE seq = ?"
_EXHAUSTED = """
    SELECT seq, data FROM journal
     WHERE seq > ? AND kind IN ('job.failed', 'job.timed_out') AND instr(data, 'attempts used up') > 0
     ORDER BY seq LIMIT ?
"""
_SET_JOURNAL = "UPDATE journal SET data = ? WHERE seq = ?"
_OF_JOB = "SELECT data FROM journal WHERE job_id = ? AND kind = ? ORDER BY seq"
_DEDUPE_KEY = "SELECT dedupe_key FROM job_queue WHERE id = ?"

Coded = tuple[str, dict[str, Any]]


@frozen
class _Row:
    """The columns of _ROWS."""

    seq: int
    job_id: str
    plugin: str
    job_status: str
    last_error: str | None
    result: str | None
    started_at: str | None
    exit_code: int | None
    step_id: str | None
    source_event_id: str | None
    parent_job_id: str | None

    @property
    def error(self) -> str:
        return self.last_error or ""


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Add the columns, then give every stored outcome its code."""
    yield "add the columns of the outcome"
    for statement in _COLUMNS:
        db.execute(statement)
    yield "code the jobs that succeeded"
    db.execute(_ANSWERED)
    yield "code the other outcomes"
    for portion in _portions(db, _ROWS):
        coded = [(row.seq, *_outcome(db, row)) for row in (_Row(*values) for values in portion)]
        db.executemany(_SET, [(code, json.dumps(data) if data else None, seq) for seq, code, data in coded])
    yield "code the journal of used-up attempts"
    for portion in _portions(db, _EXHAUSTED):
        db.executemany(_SET_JOURNAL, [(_coded_entry(data), seq) for seq, data in portion])


def _portions(db: sqlite3.Connection, statement: str) -> Iterator[list[tuple[Any, ...]]]:
    last = 0
    while rows := db.execute(statement, (last, PORTION)).fetchall():
        last = rows[-1][0]
        yield rows


def _outcome(db: sqlite3.Connection, row: _Row) -> Coded:
    match row.job_status:
        case "succeeded":
            return _succeeded(db, row)
        case "skipped":
            return _skipped(db, row)
        case "dead":
            return _dead(db, row)
        case _:
            return _failed(row)


def _succeeded(db: sqlite3.Connection, row: _Row) -> Coded:
    result = _object(row.result)
    match row.plugin:
        case "core.switch" if result.get("matched"):
            return "condition_true", {}
        case "core.switch":
            return "condition_false", _predicates(db, row)
        case "core.join":
            results = result.get("results")
            return "joined", {"results": len(results)} if isinstance(results, list) else {}
        case "core.relay":
            return "relayed", {name: result[name] for name in ("to", "accepted", "reason") if name in result}
    return "decided", {}


def _predicates(db: sqlite3.Connection, row: _Row) -> dict[str, Any]:
    """The predicates of a false condition, which the journal has for the job above the switch."""
    for above in filter(None, (row.parent_job_id, row.job_id)):
        for (text,) in db.execute(_OF_JOB, (above, "step.bypassed")):
            data = _object(text)
            is_same_step = (data.get("step_id"), data.get("event_id")) == (row.step_id, row.source_event_id)
            if is_same_step and data.get("switch_id", row.job_id) == row.job_id:
                return {"predicates": data["predicates"]} if "predicates" in data else {}
    return {}


def _skipped(db: sqlite3.Connection, row: _Row) -> Coded:
    if match := _WINNER.match(row.error):
        found = db.execute(_DEDUPE_KEY, (row.job_id,)).fetchone()
        return "deduplicated", {"winner": match[1], "dedupe_key": found[0] if found else None}
    return ("nothing_to_join" if row.error == _ALL_DUPLICATES else "skipped"), {}


def _dead(db: sqlite3.Connection, row: _Row) -> Coded:
    error = row.error
    if error.startswith(_CANCELLED):
        return "cancelled", {"reason": error.removeprefix(_CANCELLED)}
    if exhausted := _exhausted(error):
        return exhausted
    for limit, pattern in _BUDGETS:
        if match := pattern.match(error):
            return "over_budget", {"limit": limit, "max": int(match[1])}
    if db.execute(_OF_JOB, (row.job_id, "job.quarantined")).fetchone():
        return "quarantined", {}
    for code, prefix in (("not_decided", _NOT_DECIDED), ("not_recorded", _NOT_RECORDED)):
        if error.startswith(prefix):
            return code, {"error": error.removeprefix(prefix)}
    if row.started_at is not None:
        return "given_up", {}
    return ("plugin_unavailable" if error.startswith(f"plugin {row.plugin} ") else "never_started"), {}


def _exhausted(error: str) -> Coded | None:
    if match := _USED_UP.match(error):
        return "attempts_used_up", {"attempts": int(match[1]), "max_attempts": int(match[2]), "error": match[3]}
    if match := _CORE_DIED.match(error):
        return "core_died", {"recoveries": int(match[1])}
    return None


def _failed(row: _Row) -> Coded:
    error = row.error
    if error.startswith(_NOT_JOINED):
        return "not_joined", {"failures": [error.removeprefix(_NOT_JOINED)]}
    if row.started_at is None:
        return "refused", {}
    if row.exit_code == CONFIG_ERROR:
        return "exit_78", {}
    if _object(row.result).get("retry") is False:
        return "retry_false", {}
    return ("internal_error" if error.startswith(_INTERNAL_ERROR) else "final"), {}


def _coded_entry(text: str) -> str:
    data = _object(text)
    exhausted = _exhausted(str(data.get("error") or ""))
    if exhausted is None:
        return text
    return json.dumps({**data, "outcome_code": exhausted[0], "outcome_data": exhausted[1]})


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object in a column; an empty one if it holds anything else."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
