"""Adopt a database of the original: move its rows into our tables and its history into the journal.

Timestamps get the fixed width, invalid UTF-8 becomes U+FFFD, fact ids become integers, a queue status `timed_out`
becomes `failed` (its attempt stays `timed_out`), a state that is not an object becomes an empty one, and every job gets
its root. Columns and tables that an older original lacks become NULL or stay empty. Outcomes have no code.
"""

import sqlite3
from collections.abc import Iterator, Mapping

from ductile.core.clock import from_text, to_text

_EPOCH = "1970-01-01T00:00:00.000000Z"
_TABLES = (
    "job_queue",
    "job_transitions",
    "job_attempts",
    "config_snapshots",
    "plugin_state",
    "storage_sequences",
    "plugin_facts",
    "event_context",
    "job_log",
    "circuit_breakers",
    "circuit_breaker_transitions",
    "schedule_entries",
)

_STATUS = """CASE WHEN old.status = 'timed_out' THEN 'failed'
                  WHEN old.status IN ('queued', 'running', 'succeeded', 'failed', 'dead', 'skipped') THEN old.status
                  ELSE 'dead' END"""
_IS_OPEN = "old.status IN ('queued', 'running')"
_ROOT = "COALESCE((SELECT root FROM adopted_roots WHERE adopted_roots.id = old.id), old.id)"

_JOB_QUEUE = {
    "id": "old.id",
    "plugin": "old.plugin",
    "command": "old.command",
    "payload": "text(CAST(old.payload AS BLOB))",
    "status": _STATUS,
    "attempt": "MAX(old.attempt, 1)",
    "max_attempts": "MAX(old.max_attempts, 1)",
    "submitted_by": "COALESCE(old.submitted_by, '')",
    "dedupe_key": "NULLIF(old.dedupe_key, '')",
    "created_at": "moment(old.created_at)",
    "started_at": "CASE WHEN old.status = 'queued' THEN NULL ELSE {started_at} END",
    "completed_at": f"CASE WHEN {_IS_OPEN} THEN NULL ELSE COALESCE({{completed_at}}, moment(old.created_at)) END",
    "next_retry_at": "CASE WHEN old.status = 'queued' THEN {next_retry_at} END",
    "failed_at": "CASE WHEN old.status = 'queued' AND {next_retry_at} IS NOT NULL THEN moment(old.created_at) END",
    "last_error": "text(CAST(old.last_error AS BLOB))",
    "parent_job_id": "NULLIF(old.parent_job_id, '')",
    "source_event_id": "NULLIF(old.source_event_id, '')",
    "event_context_id": "NULLIF(old.event_context_id, '')",
    "enqueued_config_snapshot_id": "old.enqueued_config_snapshot_id",
    "started_config_snapshot_id": "old.started_config_snapshot_id",
    "root_job_id": _ROOT,
    "open_jobs": f"CASE WHEN {_ROOT} = old.id THEN 0 END",
    "tree_jobs": f"CASE WHEN {_ROOT} = old.id THEN 1 END",
    "asked_at": "moment(old.created_at)",
    "lane": "CASE WHEN old.status = 'queued' AND {next_retry_at} IS NULL THEN old.plugin END",
    "claimed_by": "CASE WHEN old.status = 'running' THEN 'original' END",
}
_JOB_LOG = {
    "id": "old.id",
    "job_id": "old.job_id",
    "plugin": "old.plugin",
    "command": "old.command",
    "status": "CASE WHEN old.status IN ('succeeded', 'failed', 'timed_out', 'skipped', 'dead') THEN old.status"
    " ELSE 'failed' END",
    "job_status": _STATUS,
    "result": "text(CAST(old.result AS BLOB))",
    "attempt": "COALESCE(old.attempt, 1)",
    "submitted_by": "COALESCE(old.submitted_by, '')",
    "created_at": "moment(old.created_at)",
    "completed_at": "COALESCE(moment_or_null(old.completed_at), moment(old.created_at))",
    "last_error": "text(CAST(old.last_error AS BLOB))",
    "stderr": "text(CAST(old.stderr AS BLOB))",
    "parent_job_id": "NULLIF(old.parent_job_id, '')",
    "source_event_id": "NULLIF(old.source_event_id, '')",
    "event_context_id": "NULLIF(old.event_context_id, '')",
    "enqueued_config_snapshot_id": "old.enqueued_config_snapshot_id",
    "started_config_snapshot_id": "old.started_config_snapshot_id",
    "root_job_id": "COALESCE((SELECT root FROM adopted_roots WHERE adopted_roots.id = old.job_id), old.job_id)",
    "max_attempts": "COALESCE((SELECT max_attempts FROM job_queue WHERE job_queue.id = old.job_id), 4)",
}
_EVENT_CONTEXT = {
    "id": "old.id",
    "parent_id": "NULLIF(old.parent_id, '')",
    "pipeline_name": "old.pipeline_name",
    "step_id": "old.step_id",
    "accumulated_json": "COALESCE(text(CAST(old.accumulated_json AS BLOB)), '{{}}')",
    "created_at": "moment(old.created_at)",
}
_STATE_TEXT = "text(CAST(old.state AS BLOB))"
_PLUGIN_STATE = {
    "plugin_name": "old.plugin_name",
    "state": f"CASE json_type(CASE WHEN json_valid({_STATE_TEXT}) THEN {_STATE_TEXT} END)"
    f" WHEN 'object' THEN {_STATE_TEXT} ELSE '{{{{}}}}' END",
    "updated_at": "moment(old.updated_at)",
}
_CIRCUIT_BREAKERS = {
    "plugin": "old.plugin",
    "command": "old.command",
    "state": "CASE WHEN old.state IN ('open', 'half_open') THEN old.state ELSE 'closed' END",
    "failure_count": "MAX(COALESCE(old.failure_count, 0), 0)",
    "opened_at": "moment_or_null(old.opened_at)",
    "last_failure_at": "moment_or_null(old.last_failure_at)",
    "last_job_id": "old.last_job_id",
    "updated_at": "moment(old.updated_at)",
}
_BREAKER_TRANSITIONS = {
    "id": "old.id",
    "plugin": "old.plugin",
    "command": "old.command",
    "from_state": "old.from_state",
    "to_state": "old.to_state",
    "failure_count": "COALESCE(old.failure_count, 0)",
    "reason": "old.reason",
    "job_id": "old.job_id",
    "created_at": "moment(old.created_at)",
}
_SCHEDULE_ENTRIES = {
    "plugin": "old.plugin",
    "schedule_id": "old.schedule_id",
    "command": "old.command",
    "status": "CASE WHEN old.status IN ('paused_manual', 'paused_invalid', 'exhausted') THEN old.status"
    " ELSE 'active' END",
    "reason": "old.reason",
    "last_fired_at": "moment_or_null(old.last_fired_at)",
    "last_success_job_id": "old.last_success_job_id",
    "last_success_at": "moment_or_null(old.last_success_at)",
    "next_run_at": "moment_or_null(old.next_run_at)",
    "updated_at": "moment(old.updated_at)",
}
_CONFIG_SNAPSHOTS = {
    name: f"CAST(old.{name} AS TEXT)"
    for name in (
        "id",
        "config_hash",
        "source_hash",
        "source_path",
        "source",
        "reason",
        "ductile_version",
        "binary_path",
        "semantics",
        "plugin_fingerprints",
        "sanitized_config",
        "secret_fingerprints",
    )
} | {"loaded_at": "moment(old.loaded_at)", "snapshot_format": "COALESCE(old.snapshot_format, 1)"}

_ROOTS = """
    CREATE TEMPORARY TABLE adopted_roots AS
    WITH RECURSIVE tree (id, root) AS (
        SELECT job.id, job.id
          FROM original_job_queue AS job
         WHERE COALESCE(job.parent_job_id, '') = ''
            OR NOT EXISTS (SELECT 1 FROM original_job_queue AS parent WHERE parent.id = job.parent_job_id)
        UNION ALL
        SELECT child.id, tree.root
          FROM tree JOIN original_job_queue AS child ON child.parent_job_id = tree.id
    )
    SELECT id, root FROM tree
"""
_COUNT_TREES = """
    UPDATE job_queue
       SET open_jobs = (SELECT COUNT(*) FROM job_queue AS member
                         WHERE (member.id = job_queue.id
                                OR (member.root_job_id = job_queue.id AND member.root_job_id <> member.id))
                           AND member.status IN ('queued', 'running')),
           tree_jobs = 1 + (SELECT COUNT(*) FROM job_queue AS member
                             WHERE member.root_job_id = job_queue.id AND member.root_job_id <> member.id)
     WHERE root_job_id = id
       AND (status IN ('queued', 'running')
            OR EXISTS (SELECT 1 FROM job_queue AS member
                        WHERE member.root_job_id = job_queue.id AND member.root_job_id <> member.id))
"""
_FINISH_TREES = """
    UPDATE job_queue
       SET tree_completed_at = MAX(completed_at,
               COALESCE((SELECT MAX(member.completed_at) FROM job_queue AS member
                          WHERE member.root_job_id = job_queue.id AND member.root_job_id <> member.id), completed_at))
     WHERE root_job_id = id AND open_jobs = 0
"""
_FACTS = """
    INSERT INTO plugin_facts (id, seq, plugin_name, fact_type, job_id, command, fact_json, created_at)
    SELECT ROW_NUMBER() OVER (ORDER BY old.seq, old.created_at, old.id), COALESCE(old.seq, 0), old.plugin_name,
           old.fact_type, old.job_id, old.command, text(CAST(old.fact_json AS BLOB)), moment(old.created_at)
      FROM original_plugin_facts AS old
"""
_FACT_SEQUENCE = """
    UPDATE storage_sequences SET value = (SELECT COALESCE(MAX(seq), 0) FROM plugin_facts) WHERE name = 'plugin_facts'
"""
_TRANSITIONS = """
    INSERT INTO journal (at, kind, job_id, data)
    SELECT moment(old.created_at), 'job.transition', old.job_id,
           json_object('from', old.from_status, 'to', old.to_status, 'reason', text(CAST(old.reason AS BLOB)))
      FROM original_job_transitions AS old
     ORDER BY old.id
"""
_ATTEMPTS = """
    INSERT INTO journal (at, kind, job_id, data)
    SELECT moment(old.created_at), 'job.attempt', old.job_id, json_object('attempt', old.attempt)
      FROM original_job_attempts AS old
     ORDER BY old.id
"""
_WINDOWS = """
    INSERT INTO dedupe_receipts (plugin, command, dedupe_key, job_id, succeeded_at, expires_at)
    SELECT plugin, command, dedupe_key, id, MAX(completed_at), MAX(completed_at)
      FROM job_queue
     WHERE status = 'succeeded' AND dedupe_key IS NOT NULL
     GROUP BY plugin, command, dedupe_key
"""


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Convert `db`, a database of the original, to the newest schema with every row it had."""
    db.create_function("text", 1, _text, deterministic=True)
    db.create_function("moment", 1, _moment, deterministic=True)
    db.create_function("moment_or_null", 1, _moment_or_null, deterministic=True)
    yield "set the old tables aside"
    present = _set_aside(db)
    yield "create the new tables"
    for statement in statements(schema):
        db.execute(statement)
    yield "find the root of every job"
    db.execute("CREATE INDEX original_by_parent ON original_job_queue (parent_job_id)")
    db.execute(_ROOTS)
    db.execute("CREATE INDEX temp.adopted_roots_by_id ON adopted_roots (id)")
    for table, columns, order in (
        ("job_queue", _JOB_QUEUE, "moment(old.created_at), old.rowid"),
        ("job_log", _JOB_LOG, "COALESCE(moment_or_null(old.completed_at), moment(old.created_at)), old.rowid"),
        ("event_context", _EVENT_CONTEXT, "old.rowid"),
        ("plugin_state", _PLUGIN_STATE, "1"),
        ("circuit_breakers", _CIRCUIT_BREAKERS, "1"),
        ("circuit_breaker_transitions", _BREAKER_TRANSITIONS, "old.created_at"),
        ("schedule_entries", _SCHEDULE_ENTRIES, "1"),
        ("config_snapshots", _CONFIG_SNAPSHOTS, "old.loaded_at"),
    ):
        if table in present:
            yield f"move {table}"
            _move(db, table, columns, order, present[table])
    yield "count the open jobs of every tree"
    db.execute(_COUNT_TREES)
    db.execute(_FINISH_TREES)
    for table, copies in (
        ("plugin_facts", (_FACTS, _FACT_SEQUENCE)),
        ("job_transitions", (_TRANSITIONS,)),
        ("job_attempts", (_ATTEMPTS,)),
        ("job_queue", (_WINDOWS,)),
    ):
        if table in present:
            yield f"carry over {table}"
            for copy in copies:
                db.execute(copy)
    yield "drop the old tables"
    db.execute("DROP TABLE temp.adopted_roots")
    for table in present:
        db.execute(f"DROP TABLE original_{table}")


def _set_aside(db: sqlite3.Connection) -> dict[str, set[str]]:
    """Rename the tables of the original to `original_*`, drop their indexes, and return their columns."""
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    named = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    for (index,) in db.execute(named).fetchall():
        db.execute(f'DROP INDEX "{index}"')
    present: dict[str, set[str]] = {}
    for table in found.intersection(_TABLES):
        present[table] = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        db.execute(f"ALTER TABLE {table} RENAME TO original_{table}")
    return present


def _move(db: sqlite3.Connection, table: str, columns: Mapping[str, str], order: str, present: set[str]) -> None:
    moments = {
        name: f"moment_or_null(old.{name})" if name in present else "NULL"
        for name in ("started_at", "completed_at", "next_retry_at")
    }
    expressions = {
        name: expression.format(**moments) for name, expression in columns.items() if _has_source(expression, present)
    }
    db.execute(
        f"INSERT INTO {table} ({', '.join(expressions)}) SELECT {', '.join(expressions.values())} "
        f"FROM original_{table} AS old ORDER BY {order}"
    )


def _has_source(expression: str, present: set[str]) -> bool:
    """True unless an older original lacks the column that `expression` reads."""
    names = [
        part.split("old.", 1)[1] for part in expression.replace("(", " ").replace(",", " ").split() if "old." in part
    ]
    return all(name.rstrip(")") in present for name in names)


def _text(stored: bytes | None) -> str | None:
    """Decode as the original did: it stored raw bytes and replaced invalid UTF-8 when it read them."""
    return None if stored is None else stored.decode("utf-8", "replace")


def _moment(text: object) -> str:
    """Return the timestamp with fixed width; the epoch if it cannot be parsed."""
    return _moment_or_null(text) or _EPOCH


def _moment_or_null(text: object) -> str | None:
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return to_text(from_text(text.strip()))
    except ValueError:
        return None


def statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script, so that they can run in an open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
