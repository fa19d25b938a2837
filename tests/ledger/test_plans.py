"""Query plans: no frequent statement and no list scans the history."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ductile.core.statuses import MessageState
from ductile.ledger.admin import job_actions, retention, service_log
from ductile.ledger.completion import finish as finish_jobs
from ductile.ledger.completion import quarantine, record
from ductile.ledger.exchange import claim as claim_messages
from ductile.ledger.exchange import (
    conversations,
    finish,
    lanes,
    message_facts,
    message_list,
    operate,
    publish,
    topics,
    tracking,
)
from ductile.ledger.exchange import retention as message_retention
from ductile.ledger.exchange import rows as message_rows
from ductile.ledger.exchange.message_list import MessageFilter
from ductile.ledger.jobs import dedupe, enqueue, joins, rows, schedule_jobs, tree_counters
from ductile.ledger.queue import claim, recover
from ductile.ledger.reports import (
    attempt_list,
    event_lineage,
    job_details,
    job_list,
    job_stats,
    journal_list,
    queue_status,
    trees,
    wait_reasons,
)
from ductile.ledger.reports.pagination import ListFilter
from ductile.ledger.reports.runs import progress, stored_runs
from ductile.ledger.tables import attempts, blocked_jobs, breakers, contexts, facts, journal, receipts, schedules
from ductile.ledger.webhooks import deliveries

MODULES = (
    attempt_list,
    attempts,
    blocked_jobs,
    breakers,
    claim,
    contexts,
    dedupe,
    enqueue,
    event_lineage,
    facts,
    finish_jobs,
    job_actions,
    job_details,
    job_stats,
    joins,
    journal,
    quarantine,
    queue_status,
    deliveries,
    receipts,
    record,
    recover,
    retention,
    rows,
    progress,
    stored_runs,
    schedule_jobs,
    schedules,
    service_log,
    tree_counters,
    trees,
    wait_reasons,
    claim_messages,
    conversations,
    finish,
    lanes,
    message_facts,
    message_list,
    message_retention,
    message_rows,
    operate,
    publish,
    topics,
    tracking,
)
SMALL_TABLES = ("circuit_breakers", "schedule_entries", "config_snapshots", "snapshot", "token_uses", "topic_pauses")
ALLOWED = {
    "SCAN json_each VIRTUAL TABLE INDEX 1:": "a list that the caller passed",
    "SCAN json_each VIRTUAL TABLE INDEX 3:": "the list in one row",
    "SCAN event VIRTUAL TABLE INDEX 3:": "the list in one row",
    "SCAN CONSTANT ROW": "no table",
    "SCAN journal": "in order of its key, with a limit",
    "SCAN job_queue": "the oldest row, by its key",
    "SCAN job_log": "the oldest row, by its key",
    "SCAN plugin_facts": "in order of its key, with a limit",
    "SCAN webhook_deliveries": "in order of its key, with a limit",
    "SCAN job_queue USING INDEX job_queue_roots": "the newest row, with a limit",
    "SCAN job_queue USING INDEX job_queue_waiting": "only rows that wait for a key are in it",
    "SCAN sqlite_sequence": "one row per table",
    "SCAN claims USING INDEX claims_active": "only active claims are in it",
    "SCAN ready": "one row per topic",
    "SCAN known": "one row per topic",
}


def statements(modules: tuple[ModuleType, ...]) -> dict[str, str]:
    """Return the SQL constants of the modules by name."""
    return {
        f"{module.__name__.removeprefix('ductile.ledger.')}.{name}": text
        for module in modules
        for name, text in vars(module).items()
        if isinstance(text, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", text)
    }


def plan(db: sqlite3.Connection, statement: str) -> list[str]:
    named = set(re.findall(r":([a-z_]+)", statement))
    values: dict[str, int] | tuple[int, ...] = dict.fromkeys(named, 1) if named else (1,) * statement.count("?")
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def test_no_statement_scans_a_table_that_grows(db: sqlite3.Connection) -> None:
    """Claim, dedupe, record, trees, journal, retention: every statement uses an index."""
    found = statements(MODULES)
    not_growing = (*SMALL_TABLES, "lane", "line", "claimed", "(")
    scans = [
        f"{name}: {step}"
        for name, statement in found.items()
        for step in plan(db, statement)
        if step.startswith("SCAN") and step not in ALLOWED and not any(table in step for table in not_growing)
    ]
    assert len(found) > 150, "the statements of the modules were found"
    assert scans == []


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (claim.OLDEST_READY, "job_queue_lanes (lane=? AND seq>?)"),
        (claim.PLUGINS_WITH_READY_JOBS, "job_queue_lanes (lane>?)"),
        (claim.WAKE_DUE, "job_queue_delayed (next_retry_at<?)"),
        (claim.WAKE_AFTER_CLOCK_JUMP, "job_queue_delayed_since (failed_at>?)"),
        (dedupe.IN_FLIGHT, "job_queue_in_flight (plugin=? AND command=? AND dedupe_key=? AND status=?)"),
        (dedupe.KEY_HOLDER, "job_queue_in_flight (plugin=? AND command=? AND dedupe_key=? AND status=?)"),
        (dedupe.RELEASE_NEXT, "job_queue_waiting (plugin=? AND command=? AND dedupe_key=?)"),
        (joins.READY, "job_queue_lanes (lane=?)"),
        (joins.COUNT_OPEN_MEMBERS, "job_queue_by_join (join_id=?)"),
        (joins.ARRIVALS, "arrivals_by_join (join_id=?)"),
        (message_facts.CLAIMS_OF_MESSAGE, "claims_by_message (message_id=?)"),
        (message_facts.CLAIMS_OF_TOPIC, "claims_by_topic (topic=?)"),
        (message_facts.CLAIMED_TOPICS, "claims_by_topic (topic>?)"),
        (message_facts.COUNT_AHEAD, "deliveries_lanes (lane=? AND seq<?)"),
        (message_facts.KEY_HOLDER, "deliveries_keys (topic=? AND ordering_key=?)"),
        (recover.ORPHANS, "job_queue_running (claimed_by>?)"),
        (progress.FINISHED_TREE, "job_queue_by_root (root_job_id=?)"),
        (stored_runs.JOBS_OF_RUN, "job_queue_by_root (root_job_id=?)"),
        (stored_runs.ATTEMPTS_OF_RUN, "job_log_by_root (root_job_id=?)"),
        (trees.TREE, "job_queue_by_root (root_job_id=?)"),
        (trees.HAS_FAILED, "job_queue_by_root (root_job_id=?)"),
        (job_details.CHILDREN, "job_queue_by_parent (parent_job_id=?)"),
        (queue_status.OLDEST_READY, "job_queue_lanes (lane=?)"),
        (queue_status.DEPTH, "job_queue_by_status (status=?)"),
        (queue_status.RUNNING_BY_PLUGIN, "job_queue_running (claimed_by>?)"),
        (schedule_jobs.OPEN_JOB_IDS, "job_queue_outstanding (plugin=? AND schedule_id=?)"),
        (retention.FINISHED_TREES, "job_queue_finished_trees (tree_completed_at<?)"),
        (retention.DELETE_ARRIVALS, "arrivals_by_join (join_id=?)"),
        (journal_list.ACTS, "journal_acts (seq<?)"),
        (service_log.LATEST_CHANGE, "journal_of_service (kind=?)"),
        (service_log.CONFIG_IN_USE, "journal_of_service (kind=?)"),
        (queue_status.QUEUED_WORK, "job_queue_by_actor (actor=?)"),
        (job_actions.QUEUED_OF_PLUGIN, "job_queue_by_status (status=?)"),
        (claim_messages.OLDEST_READY, "deliveries_lanes (lane=?)"),
        (claim_messages.WAKE_DUE, "deliveries_delayed (available_at<?)"),
        (claim_messages.WAKE_AFTER_CLOCK_JUMP, "deliveries_delayed_since (delayed_at>?)"),
        (claim_messages.ACTIVE_CLAIMS, "claims_active"),
        (finish.HOLDER, "claims_active (message_id=?)"),
        (lanes.FREE_NEXT, "deliveries_keys (topic=? AND ordering_key=?)"),
        (publish.KEY_IS_OPEN, "deliveries_keys (topic=? AND ordering_key=?)"),
        (publish.COUNT_UNCLAIMED, "deliveries_unclaimed (topic=?)"),
        (conversations.LAST_REPLY, "messages_by_conversation (conversation_id=? AND seq>?)"),
        (message_retention.SCAN, "messages_by_age (created_at>? AND created_at<?)"),
        (message_rows.CLAIM_OF_JOB, "claims_by_job (job_id=?)"),
        (operate.UNCLAIMED, "deliveries_unclaimed (topic=?)"),
        (tracking.TRACKED, "tracked_conversations_open (tracked_by=?)"),
    ],
)
def test_each_query_uses_its_index(db: sqlite3.Connection, statement: str, index: str) -> None:
    """Not a wider one that covers the whole history of a plugin or status."""
    assert any(index in step for step in plan(db, statement)), plan(db, statement)


def test_the_check_before_retention_scans_no_table(db: sqlite3.Connection) -> None:
    """It runs on the event loop, and a service that was started ten thousand times has as many snapshots."""
    steps = plan(db, retention.HAS_EXPIRED_ROWS)
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
    """Newest first without sorting, also with two filters."""
    for steps in plans_of(db, lambda: job_list.jobs(db, wanted)):
        assert any(expected in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize(
    ("wanted", "expected"), [({"job_id": "x"}, "journal_by_job (job_id=?"), ({"kinds": ("job.*",)}, "journal")]
)
def test_pages_of_the_journal_are_read_in_order_from_an_index(
    db: sqlite3.Connection, wanted: dict[str, Any], expected: str
) -> None:
    for steps in plans_of(db, lambda: journal_list.list_journal(db, **wanted)):
        assert any(expected in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize("wanted", [ListFilter(), ListFilter(status="failed"), ListFilter(pipeline="p", plugin="echo")])
def test_lists_of_runs_are_read_in_order_from_an_index(db: sqlite3.Connection, wanted: ListFilter) -> None:
    """The jobs of a run are found by its root."""
    for steps in plans_of(db, lambda: stored_runs.list_runs(db, wanted)):
        assert not any("TEMP B-TREE" in step for step in steps), steps
        assert all("job_queue_by_root (root_job_id=?" in step for step in steps if " member " in step), steps
        assert any("job_queue_roots" in step or "job_queue_by_plugin (plugin=?" in step for step in steps), steps


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (MessageFilter(topics=("a",)), "messages_by_topic (topic=? AND seq>? AND seq<?"),
        (MessageFilter(topics=("a.*",)), "SEARCH messages USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (MessageFilter(conversation_id="c"), "messages_by_conversation (conversation_id=? AND seq>? AND seq<?"),
        (MessageFilter(parent_id="p"), "messages_by_parent (parent_id=? AND seq>? AND seq<?"),
        (MessageFilter(state=MessageState.READY), "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (MessageFilter(state=MessageState.DEAD), "SEARCH messages USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ],
)
def test_lists_of_messages_are_read_in_order_from_an_index(
    db: sqlite3.Connection, wanted: MessageFilter, expected: str
) -> None:
    for before in (None, message_list.NEWEST):
        for steps in plans_of(db, lambda before=before: message_list.list_messages(db, wanted, before=before)):  # type: ignore[misc]
            assert any(expected in step for step in steps), steps
            assert len([step for step in steps if "TEMP B-TREE" in step]) <= 1, steps


def test_successes_of_a_plugin_are_counted_without_reading_them(db: sqlite3.Connection) -> None:
    """Indexes have all jobs of a plugin and those that did not succeed. Only open jobs are read."""
    expected = ["job_queue_by_plugin (plugin=?", "job_queue_by_status (status=?", "job_queue_unusual (plugin=?"]
    page, *counts = plans_of(db, lambda: job_list.jobs(db, ListFilter(status="succeeded", plugin="echo")))
    for steps in (page, *counts):
        assert any(index in step for index in expected for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps
    assert sum("COVERING INDEX" in step for steps in counts for step in steps) >= 2, counts


@pytest.mark.parametrize("status", ["dead", "succeeded"])
def test_the_index_of_an_older_ledger_is_used(db: sqlite3.Connection, status: str) -> None:
    """It has the same rows with a different condition."""
    db.executescript("""
        DROP INDEX job_queue_unusual;
        CREATE INDEX job_queue_unusual ON job_queue (plugin, status, seq) WHERE status IN ('failed', 'dead', 'skipped');
    """)
    steps = plans_of(db, lambda: job_list.jobs(db, ListFilter(status=status, plugin="echo")))
    assert any("job_queue_unusual (plugin=? AND status=?" in step for plan in steps for step in plan), steps


def test_no_change_of_a_job_builds_a_temporary_table(db: sqlite3.Connection) -> None:
    """SQLite builds one for every list of more than two values, also in CHECK constraints and index conditions."""
    for statement in (enqueue.INSERT_JOB, enqueue.INSERT_PLAIN_JOB, claim.START, finish_jobs.END, attempts.LOG_ATTEMPT):
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
    for steps in plans_of(db, lambda: attempt_list.list_attempts(db, wanted)):
        assert any(expected in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize("wanted", [ListFilter(job_id="x"), ListFilter(root="x"), ListFilter(root="x", plugin="echo")])
def test_one_job_and_one_tree_are_found_by_their_id(db: sqlite3.Connection, wanted: ListFilter) -> None:
    """The history is not scanned for a few rows."""
    for read in (job_list.jobs, attempt_list.list_attempts):
        for steps in plans_of(db, lambda read=read: read(db, wanted)):  # type: ignore[misc]
            assert not any(step.startswith("SCAN job_") or "PRIMARY KEY (rowid>" in step for step in steps), steps


def plans_of(db: sqlite3.Connection, query: Callable[[], object]) -> list[list[str]]:
    """Return the plan of every statement that lists or counts matching rows."""
    traced: list[str] = []
    db.set_trace_callback(traced.append)
    query()
    db.set_trace_callback(None)
    return [plan(db, statement) for statement in traced if "WHERE" in statement]


def documented_statements() -> list[str]:
    """Return the SQL examples of docs/database.md."""
    page = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";\n") if statement.strip()]


def test_every_documented_statement_runs(db: sqlite3.Connection) -> None:
    """The SQL examples of docs/database.md run as they are, and find nothing in an empty ledger."""
    failures = []
    for statement in documented_statements():
        named = set(re.findall(r":([a-z]+)\b", re.sub(r"'[^']*'", "", statement)))
        try:
            rows = db.execute(statement, dict.fromkeys(named, "x")).fetchall()
        except sqlite3.Error as error:
            rows = [error]
        if rows:
            failures.append(f"{statement}: {rows}")
    assert documented_statements()
    assert failures == []


NAMES_OF_COLUMNS = "SELECT name FROM pragma_table_info(?)"


def test_every_table_and_column_of_the_queue_is_documented(db: sqlite3.Connection) -> None:
    """docs/database.md has every table, and every column of job_queue and job_log."""
    page = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'")
    columns = db.execute(
        "SELECT name FROM pragma_table_info('job_queue') UNION SELECT name FROM pragma_table_info('job_log')"
    )
    missing = [name for (name,) in (*tables, *columns) if not re.search(rf"\b{name}\b", page)]
    assert missing == []
