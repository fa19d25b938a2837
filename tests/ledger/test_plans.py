"""No hot statement and no listing walks through history: what SQLite plans for each of them."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ductile.ledger.admin import operate, purge, quarantine, retention
from ductile.ledger.completion import attempts, finish, record
from ductile.ledger.queue import claim, dedupe, enqueue, joins, lanes, recover, rows, tree_counters
from ductile.ledger.reports import (
    attempt_list,
    event_lineage,
    job_details,
    job_list,
    job_stats,
    queue_status,
    run_status,
    trees,
    wait_reasons,
)
from ductile.ledger.reports.pagination import ListFilter
from ductile.ledger.tables import breakers, contexts, facts, journal, receipts, schedules

ROOMS = (attempts, breakers, claim, contexts, dedupe, facts, enqueue, journal, operate, receipts, record, recover)
MORE_ROOMS = (
    job_stats,
    event_lineage,
    wait_reasons,
    finish,
    attempt_list,
    joins,
    lanes,
    purge,
    quarantine,
    queue_status,
    job_details,
    retention,
    rows,
    run_status,
    schedules,
    trees,
    tree_counters,
)
SMALL_TABLES = ("circuit_breakers", "schedule_entries", "config_snapshots", "snapshot")
ALLOWED = {
    "SCAN json_each VIRTUAL TABLE INDEX 1:": "a list that the caller gave",
    "SCAN json_each VIRTUAL TABLE INDEX 3:": "the list in one row",
    "SCAN event VIRTUAL TABLE INDEX 3:": "the list in one row",
    "SCAN CONSTANT ROW": "no table at all",
    "SCAN journal": "in order of its key, with a limit",
    "SCAN job_queue": "the oldest row, by its key",
    "SCAN job_log": "the oldest row, by its key",
    "SCAN plugin_facts": "in order of its key, with a limit",
    "SCAN job_queue USING INDEX job_queue_waiting": "only rows that wait for a key are in it",
    "SCAN receipts USING INDEX receipts_by_expiry": "latest first, with a limit, for a person who looks",
    "SCAN sqlite_sequence": "one row for each table that counts",
}


def statements(rooms: tuple[ModuleType, ...]) -> list[tuple[str, str]]:
    found = []
    for room in rooms:
        for name, text in vars(room).items():
            if isinstance(text, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", text):
                found.append((f"{room.__name__.rsplit('.', 1)[1]}.{name}", text))
    return found


def plan(db: sqlite3.Connection, statement: str) -> list[str]:
    named = set(re.findall(r":([a-z_]+)", statement))
    values: dict[str, int] | tuple[int, ...] = dict.fromkeys(named, 1) if named else (1,) * statement.count("?")
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


ALL = statements(ROOMS + MORE_ROOMS)


@pytest.mark.parametrize(("name", "statement"), ALL, ids=[name for name, _ in ALL])
def test_no_statement_scans_a_table_that_grows(db: sqlite3.Connection, name: str, statement: str) -> None:
    """Claim, dedupe, record, tree, journal, prune: each goes through an index."""
    for step in plan(db, statement):
        scanned = step.startswith("SCAN") and not any(table in step for table in (*SMALL_TABLES, "lane", "line", "("))
        assert not scanned or step in ALLOWED, f"{name}: {step}"


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (claim.LANE_HEAD, "job_queue_lanes (lane=? AND seq>?)"),
        (lanes.LANES, "job_queue_lanes (lane>?)"),
        (claim.WAKE_DUE, "job_queue_delayed (next_retry_at<?)"),
        (claim.WAKE_STRANDED, "job_queue_delayed_since (failed_at>?)"),
        (dedupe.IN_FLIGHT, "job_queue_in_flight (plugin=? AND command=? AND dedupe_key=? AND status=?)"),
        (dedupe.HELD, "job_queue_in_flight (plugin=? AND command=? AND dedupe_key=? AND status=?)"),
        (dedupe.RELEASE_NEXT, "job_queue_waiting (plugin=? AND command=? AND dedupe_key=?)"),
        (joins.READY, "job_queue_lanes (lane=?)"),
        (joins.OPEN_MEMBERS, "job_queue_by_join (join_id=?)"),
        (joins.ARRIVALS, "arrivals_by_join (join_id=?)"),
        (recover.ORPHANS, "job_queue_running (claimed_by>?)"),
        (run_status.ENDED, "job_queue_by_root (root_job_id=?)"),
        (trees.TREE, "job_queue_by_root (root_job_id=?)"),
        (trees.HAS_FAILED, "job_queue_by_root (root_job_id=?)"),
        (job_details.CHILDREN, "job_queue_by_parent (parent_job_id=?)"),
        (queue_status.HEAD_OF_LANE, "job_queue_lanes (lane=?)"),
        (queue_status.DEPTH, "job_queue_by_status (status=?)"),
        (queue_status.RUNNING_BY_PLUGIN, "job_queue_running (claimed_by>?)"),
        (schedules.OUTSTANDING, "job_queue_outstanding (plugin=? AND schedule_id=?)"),
        (retention.FINISHED_TREES, "job_queue_finished_trees (tree_completed_at<?)"),
        (retention.DELETE_ARRIVALS, "arrivals_by_join (join_id=?)"),
        (operate.QUEUED_OF_PLUGIN, "job_queue_by_status (status=?)"),
    ],
)
def test_each_question_has_its_index(db: sqlite3.Connection, statement: str, index: str) -> None:
    """The narrow index is chosen over one that leads through all of a plugin's or a status's history."""
    assert any(index in step for step in plan(db, statement)), plan(db, statement)


def test_the_look_before_tidying_up_reads_no_table_as_a_whole(db: sqlite3.Connection) -> None:
    """It is made on the event loop, and also a service that was started ten thousand times has snapshots."""
    steps = plan(db, retention.ANYTHING_OLD)
    assert not [step for step in steps if "CORRELATED" in step or step.startswith("SCAN config_snapshots")], steps


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ListFilter(plugin="echo"), "job_queue_by_plugin (plugin=?"),
        (ListFilter(status="dead"), "job_queue_by_status (status=?"),
        (ListFilter(status="dead", plugin="echo"), "job_queue_unusual (plugin=? AND status=?"),
        (ListFilter(status="succeeded", plugin="echo", command="poll"), "job_queue_by_plugin (plugin=?"),
        (ListFilter(status="queued", plugin="echo"), "job_queue_by_status (status=?"),
    ],
)
def test_lists_of_jobs_are_read_in_order_from_an_index(
    db: sqlite3.Connection, wanted: ListFilter, expected: str
) -> None:
    """Newest first without sorting; two filters at once have an index too."""
    for steps in plans_of(db, lambda: job_list.jobs(db, wanted)):
        assert any(expected in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps


def test_successes_of_a_plugin_are_counted_without_reading_them(db: sqlite3.Connection) -> None:
    """Indexes have all jobs of a plugin and those that did not succeed; only open ones are looked at."""
    expected = ["job_queue_by_plugin (plugin=?", "job_queue_by_status (status=?", "job_queue_unusual (plugin=?"]
    page, *counts = plans_of(db, lambda: job_list.jobs(db, ListFilter(status="succeeded", plugin="echo")))
    for steps in (page, *counts):
        assert any(index in step for index in expected for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps
    assert sum("COVERING INDEX" in step for steps in counts for step in steps) >= 2, counts


@pytest.mark.parametrize("status", ["dead", "succeeded"])
def test_an_index_of_an_older_ledger_is_used_as_well(db: sqlite3.Connection, status: str) -> None:
    """It has the same rows and says so in other words."""
    db.executescript("""
        DROP INDEX job_queue_unusual;
        CREATE INDEX job_queue_unusual ON job_queue (plugin, status, seq) WHERE status IN ('failed', 'dead', 'skipped');
    """)
    steps = plans_of(db, lambda: job_list.jobs(db, ListFilter(status=status, plugin="echo")))
    assert any("job_queue_unusual (plugin=? AND status=?" in step for plan in steps for step in plan), steps


def test_no_change_of_a_job_makes_a_table_for_a_list(db: sqlite3.Connection) -> None:
    """SQLite does so each time for a list of more than two, also in checks and in conditions of indexes."""
    for statement in (enqueue.INSERT_JOB, enqueue.INSERT_PLAIN_JOB, claim.START, finish.END, attempts.LOG_ATTEMPT):
        program = db.execute(f"EXPLAIN {statement}", (1,) * statement.count("?"))
        assert "OpenEphemeral" not in [row[1] for row in program], statement


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ListFilter(plugin="echo"), "job_log_by_plugin (plugin=?"),
        (ListFilter(status="timed_out"), "job_log_unusual (status=?"),
        (ListFilter(status="failed", plugin="echo"), "job_log_unusual (status=?"),
    ],
)
def test_lists_of_attempts_are_read_in_order_from_an_index(
    db: sqlite3.Connection, wanted: ListFilter, expected: str
) -> None:
    """Newest first without sorting."""
    for steps in plans_of(db, lambda: attempt_list.logs(db, wanted)):
        assert any(expected in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize("wanted", [ListFilter(job_id="x"), ListFilter(root="x"), ListFilter(root="x", plugin="echo")])
def test_one_job_and_one_tree_are_found_by_their_id(db: sqlite3.Connection, wanted: ListFilter) -> None:
    """Nobody walks through all of history for the few rows of a job or a tree."""
    for read in (job_list.jobs, attempt_list.logs):
        for steps in plans_of(db, lambda read=read: read(db, wanted)):  # type: ignore[misc]
            assert not any(step.startswith("SCAN job_") or "PRIMARY KEY (rowid>" in step for step in steps), steps


def plans_of(db: sqlite3.Connection, ask: Callable[[], object]) -> list[list[str]]:
    """What SQLite plans for every statement that lists or counts the rows that fit."""
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    ask()
    db.set_trace_callback(None)
    return [plan(db, statement) for statement in asked if "WHERE" in statement]


def documented() -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";\n") if statement.strip()]


@pytest.mark.parametrize("statement", documented())
def test_what_the_documentation_asks_can_be_asked(db: sqlite3.Connection, statement: str) -> None:
    """Every query of docs/database.md runs as it stands."""
    named = set(re.findall(r":([a-z]+)\b", re.sub(r"'[^']*'", "", statement)))
    assert db.execute(statement, dict.fromkeys(named, "x")).fetchall() == []


def test_every_table_and_column_of_the_queue_is_documented(db: sqlite3.Connection) -> None:
    """docs/database.md names every table, and every column of job_queue."""
    page = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'")
    columns = db.execute("SELECT name FROM pragma_table_info('job_queue')")
    missing = [name for (name,) in (*tables, *columns) if not re.search(rf"\b{name}\b", page)]
    assert missing == []
