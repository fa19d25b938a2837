"""The migration to schema 2: outcomes that were only sentences get their code and data."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ductile.ledger.storage.identify import APPLICATION_ID
from ductile.ledger.storage.open_file import SCHEMA_VERSION, open_reader, open_writer

NOW = "2026-01-01T00:00:00.000000Z"
STARTED = {"started_at": NOW}
SCHEMA_2 = (Path(__file__).parent / "schema_v2.sql").read_text()
COLUMNS = ",\n    outcome_code TEXT,\n    outcome_data TEXT"
PREDICATE = {"path": "payload.n", "op": "eq", "value": 2, "found": 1, "holds": False}
Row = tuple[str, str | None, dict[str, Any], str | None, dict[str, Any] | None]

ROWS: list[Row] = [
    ("succeeded", None, STARTED | {"exit_code": 0}, "answered_ok", None),
    ("succeeded", None, {"plugin": "core.start"}, "decided", None),
    ("succeeded", None, {"plugin": "core.switch", "result": '{"matched":true}'}, "condition_true", None),
    ("succeeded", None, {"plugin": "core.join", "result": '{"results":[1,2]}'}, "joined", {"results": 2}),
    ("succeeded", None, {"plugin": "core.join", "result": "{}"}, "joined", None),
    (
        "succeeded",
        None,
        {"plugin": "core.relay", "result": '{"status":"relayed","to":"lab","accepted":true}'},
        "relayed",
        {"to": "lab", "accepted": True},
    ),
    (
        "skipped",
        "deduplicated: 01a1 succeeded meanwhile",
        {},
        "deduplicated",
        {"winner": "01a1", "dedupe_key": None},
    ),
    ("skipped", "everything it would have joined was a duplicate", {}, "nothing_to_join", None),
    ("skipped", "preflight", {}, "skipped", None),
    ("failed", "exit code 78: no token", STARTED | {"exit_code": 78}, "exit_78", None),
    ("failed", "gone", STARTED | {"result": '{"status":"error","retry":false}'}, "retry_false", None),
    ("failed", "internal error: KeyError('x')", STARTED, "internal_error", None),
    ("failed", "1001 events, more than the 1000 allowed", STARTED | {"result": "not JSON"}, "final", None),
    ("failed", "foreach: payload.all is absent", {}, "refused", None),
    ("failed", "not joined: a: no; b: no and 3 more", STARTED, "not_joined", {"failures": ["a: no; b: no and 3 more"]}),
    ("dead", "cancelled: by me", STARTED, "cancelled", {"reason": "by me"}),
    (
        "dead",
        "attempts used up (4 of 4): no\nluck",
        STARTED,
        "attempts_used_up",
        {"attempts": 4, "max_attempts": 4, "error": "no\nluck"},
    ),
    (
        "dead",
        "core restart: the core died 2 times while it ran; attempts used up",
        STARTED,
        "core_died",
        {"recoveries": 2},
    ),
    ("dead", "chain of more than 20 hops", {}, "over_budget", {"limit": "hops", "max": 20}),
    ("dead", "tree of more than 9 jobs", {}, "over_budget", {"limit": "tree_jobs", "max": 9}),
    ("dead", "max_depth 3 of the pipeline is reached", {}, "over_budget", {"limit": "max_depth", "max": 3}),
    ("dead", "cannot be decided: KeyError: 'x'", {}, "not_decided", {"error": "KeyError: 'x'"}),
    ("dead", "cannot be recorded: KeyError: 'x'", STARTED, "not_recorded", {"error": "KeyError: 'x'"}),
    ("dead", "plugin echo is disabled (enabled: false)", {}, "plugin_unavailable", None),
    ("dead", "no reason that is known", {}, "never_started", None),
    ("dead", "there is no plugin 'echo'", STARTED, "given_up", None),
    ("dead", None, STARTED, "given_up", None),
    ("queued", "exit code 1", STARTED, None, None),
]
"""Status, error and other columns of a row of schema 1; the code and data that it gets."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of schema 1 with one attempt for each of ROWS; attempt N belongs to job N."""
    path = tmp_path / "ductile.db"
    script = SCHEMA_2.replace(COLUMNS, "")
    assert "outcome_" not in script
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)
        for number, (status, error, values, _, _) in enumerate(ROWS):
            insert(db, str(number), status, error, **values)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    return path


def insert(db: sqlite3.Connection, job_id: str, status: str, error: str | None, **values: Any) -> None:
    row = {
        "id": f"{job_id}-1",
        "job_id": job_id,
        "plugin": "echo",
        "command": "poll",
        "status": "failed",
        "attempt": 1,
        "submitted_by": "test",
        "created_at": NOW,
        "completed_at": NOW,
        "last_error": error,
        "root_job_id": job_id,
        "job_status": status,
        "max_attempts": 4,
        **values,
    }
    db.execute(f"INSERT INTO job_log ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def note(path: Path, job_id: str, kind: str, data: dict[str, Any]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO journal (at, kind, job_id, data) VALUES (?, ?, ?, ?)", (NOW, kind, job_id, json.dumps(data))
        )


def outcome(db: sqlite3.Connection, job_id: str) -> tuple[str | None, dict[str, Any] | None]:
    code, data = db.execute("SELECT outcome_code, outcome_data FROM job_log WHERE job_id = ?", (job_id,)).fetchone()
    return code, json.loads(data) if data is not None else None


def test_every_old_outcome_gets_its_code(old: Path) -> None:
    with closing(open_writer(old, synchronous="off")) as db:
        found = [(number, *outcome(db, str(number))) for number in range(len(ROWS))]
    expected = [(number, code, data) for number, (_, _, _, code, data) in enumerate(ROWS)]
    assert [(one, other) for one, other in zip(found, expected, strict=True) if one != other] == []


def test_a_false_condition_gets_the_predicates_of_the_journal(old: Path) -> None:
    """The journal has them for the job above the switch. `switch_id` separates the items of a list."""
    about = {"step_id": "s", "event_id": "e"}
    values = {"plugin": "core.switch", "step_id": "s", "source_event_id": "e", "parent_job_id": "parent"}
    with closing(sqlite3.connect(old)) as db, db:
        insert(db, "switch", "succeeded", None, result='{"matched":false}', **values)
        insert(db, "other", "succeeded", None, result='{"matched":false}', **values | {"step_id": "t"})
    note(old, "parent", "step.bypassed", {**about, "switch_id": "another", "predicates": []})
    note(old, "parent", "step.bypassed", {**about, "switch_id": "switch", "predicates": [PREDICATE]})
    with closing(open_writer(old, synchronous="off")) as db:
        assert outcome(db, "switch") == ("condition_false", {"predicates": [PREDICATE]})
        assert outcome(db, "other") == ("condition_false", None)


def test_a_quarantined_job_is_known_by_the_journal(old: Path) -> None:
    with closing(sqlite3.connect(old)) as db, db:
        insert(db, "bad", "dead", "cannot be recovered: ValueError: yesterday")
    note(old, "bad", "job.quarantined", {"reason": "cannot be recovered: ValueError: yesterday"})
    with closing(open_writer(old, synchronous="off")) as db:
        assert outcome(db, "bad") == ("quarantined", None)


def test_the_journal_of_used_up_attempts_gets_the_code(old: Path) -> None:
    """Streams that begin before the migration still report `job.retry_exhausted`. Other rows stay as they are."""
    used_up = {"from": "running", "error": "attempts used up (2 of 2): no", "reason": "attempts used up (2 of 2): no"}
    quoted = {"from": "running", "error": "the plugin says attempts used up"}
    note(old, "a", "job.failed", used_up)
    note(old, "b", "job.failed", quoted)
    with closing(open_writer(old, synchronous="off")) as db:
        rows = [json.loads(data) for (data,) in db.execute("SELECT data FROM journal ORDER BY seq")]
    data = {"attempts": 2, "max_attempts": 2, "error": "no"}
    assert rows == [{**used_up, "outcome_code": "attempts_used_up", "outcome_data": data}, quoted]


def test_many_rows_are_coded_in_portions(old: Path) -> None:
    with closing(sqlite3.connect(old)) as db, db:
        for number in range(2_500):
            insert(db, f"many-{number}", "dead", "cancelled: by me", **STARTED)
    with closing(open_writer(old, synchronous="off")) as db:
        counts = "SELECT outcome_code, COUNT(*) FROM job_log WHERE job_id LIKE 'many-%' GROUP BY 1"
        assert db.execute(counts).fetchall() == [("cancelled", 2_500)]


def test_a_migrated_ledger_has_the_columns_of_a_new_one_and_a_backup(old: Path, tmp_path: Path) -> None:
    """The backup is still of schema 1."""
    statement = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"

    def normalised(db: sqlite3.Connection) -> set[tuple[str, str]]:
        return {(name, re.sub(r"\s*([,()])\s*", r"\1", " ".join(sql.split()))) for name, sql in db.execute(statement)}

    with closing(open_writer(old, synchronous="off")) as db, closing(open_writer(tmp_path / "new.db")) as new:
        assert normalised(db) == normalised(new)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    (backup,) = old.parent.glob("ductile.db.backup-v1-*")
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert "outcome_code" not in {row[1] for row in db.execute("PRAGMA table_info(job_log)")}
    with open_reader(old) as reader:
        assert reader.execute("SELECT COUNT(*) FROM job_log").fetchone() == (len(ROWS),)
