-- The tables of the original, as its programs create them.
CREATE TABLE job_queue (
    id TEXT PRIMARY KEY, plugin TEXT NOT NULL, command TEXT NOT NULL, payload JSON, status TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1, max_attempts INTEGER NOT NULL DEFAULT 4, submitted_by TEXT NOT NULL,
    dedupe_key TEXT, created_at TEXT NOT NULL, started_at TEXT, completed_at TEXT, next_retry_at TEXT, last_error TEXT,
    parent_job_id TEXT, source_event_id TEXT, event_context_id TEXT REFERENCES event_context (id),
    enqueued_config_snapshot_id TEXT, started_config_snapshot_id TEXT);
CREATE INDEX job_queue_status_created_at_idx ON job_queue (status, created_at);
CREATE UNIQUE INDEX job_queue_redelivery_idx ON job_queue (parent_job_id, source_event_id, plugin, command)
    WHERE source_event_id IS NOT NULL;
CREATE TABLE job_transitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, from_status TEXT, to_status TEXT NOT NULL, reason TEXT,
    created_at TEXT NOT NULL);
CREATE TABLE job_attempts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, attempt INTEGER NOT NULL, created_at TEXT NOT NULL,
    UNIQUE (job_id, attempt));
CREATE TABLE config_snapshots (
    id TEXT PRIMARY KEY, config_hash TEXT NOT NULL, source_hash TEXT, source_path TEXT, source TEXT, reason TEXT,
    loaded_at TEXT NOT NULL, ductile_version TEXT, binary_path TEXT, snapshot_format INTEGER NOT NULL DEFAULT 1,
    semantics JSON, plugin_fingerprints JSON, sanitized_config JSON, secret_fingerprints JSON);
CREATE TABLE plugin_state (plugin_name TEXT PRIMARY KEY, state JSON NOT NULL DEFAULT '{}', updated_at TEXT NOT NULL);
CREATE TABLE storage_sequences (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE plugin_facts (
    id TEXT PRIMARY KEY, seq INTEGER NOT NULL, plugin_name TEXT NOT NULL, fact_type TEXT NOT NULL, job_id TEXT,
    command TEXT, fact_json JSON NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE event_context (
    id TEXT PRIMARY KEY, parent_id TEXT REFERENCES event_context (id), pipeline_name TEXT, step_id TEXT,
    accumulated_json JSON NOT NULL DEFAULT '{}', created_at TEXT NOT NULL);
CREATE TABLE job_log (
    id TEXT PRIMARY KEY, job_id TEXT NOT NULL, plugin TEXT NOT NULL, command TEXT NOT NULL, status TEXT NOT NULL,
    result JSON, attempt INTEGER NOT NULL, submitted_by TEXT NOT NULL, created_at TEXT NOT NULL,
    completed_at TEXT NOT NULL, last_error TEXT, stderr TEXT, parent_job_id TEXT, source_event_id TEXT,
    event_context_id TEXT, enqueued_config_snapshot_id TEXT, started_config_snapshot_id TEXT);
CREATE TABLE circuit_breakers (
    plugin TEXT NOT NULL, command TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'closed',
    failure_count INTEGER NOT NULL DEFAULT 0, opened_at TEXT, last_failure_at TEXT, last_job_id TEXT,
    updated_at TEXT NOT NULL, PRIMARY KEY (plugin, command));
CREATE TABLE circuit_breaker_transitions (
    id TEXT PRIMARY KEY, plugin TEXT NOT NULL, command TEXT NOT NULL, from_state TEXT, to_state TEXT NOT NULL,
    failure_count INTEGER NOT NULL, reason TEXT, job_id TEXT, created_at TEXT NOT NULL);
CREATE TABLE schedule_entries (
    plugin TEXT NOT NULL, schedule_id TEXT NOT NULL, command TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'active',
    reason TEXT, last_fired_at TEXT, last_success_job_id TEXT, last_success_at TEXT, next_run_at TEXT,
    updated_at TEXT NOT NULL, PRIMARY KEY (plugin, schedule_id));

INSERT INTO event_context VALUES ('ctx-1', NULL, 'p', NULL, '{"a":1}', '2026-01-01T00:00:05Z');
INSERT INTO event_context VALUES ('ctx-2', 'ctx-1', 'p', 's', '{"a":1,"b":2}', '2026-01-01T00:00:06.5Z');
INSERT INTO job_queue (id, plugin, command, payload, status, submitted_by, dedupe_key, created_at, started_at, completed_at)
    VALUES ('root', 'echo', 'poll', CAST('{"x":1}' AS BLOB), 'succeeded', 'api', 'k', '2026-01-01T00:00:05Z',
            '2026-01-01T00:00:05.25Z', '2026-01-01T00:00:06.123456789Z');
INSERT INTO job_queue (id, plugin, command, status, submitted_by, created_at, parent_job_id, source_event_id, event_context_id)
    VALUES ('child', 'next', 'handle', 'queued', 'route', '2026-01-01T00:00:06.2Z', 'root', 'e-1', 'ctx-2');
INSERT INTO job_queue (id, plugin, command, status, attempt, submitted_by, created_at, started_at, parent_job_id)
    VALUES ('grandchild', 'last', 'handle', 'running', 2, 'route', '2026-01-01T00:00:07Z', '2026-01-01T00:00:08Z', 'child');
INSERT INTO job_queue (id, plugin, command, status, attempt, submitted_by, created_at, completed_at, last_error)
    VALUES ('late', 'slow', 'poll', 'timed_out', 4, 'ductile', '2026-01-01T00:00:01+01:00', NULL, 'timeout');
INSERT INTO job_queue (id, plugin, command, status, attempt, submitted_by, created_at, next_retry_at, parent_job_id)
    VALUES ('retrying', 'echo', 'poll', 'queued', 2, 'api', '2026-01-01T00:00:09Z', '2026-01-01T00:01:09.5Z', 'pruned');
INSERT INTO job_log (id, job_id, plugin, command, status, result, attempt, submitted_by, created_at, completed_at, stderr)
    VALUES ('root-1', 'root', 'echo', 'poll', 'succeeded', CAST('{"ok":1}' AS BLOB), 1, 'api', '2026-01-01T00:00:05Z',
            '2026-01-01T00:00:06.123456789Z', 'warned');
INSERT INTO job_log (id, job_id, plugin, command, status, attempt, submitted_by, created_at, completed_at, last_error)
    VALUES ('late-4', 'late', 'slow', 'poll', 'timed_out', 4, 'ductile', '2026-01-01T00:00:01Z', '2026-01-01T00:02:00Z', 'timeout');
INSERT INTO job_transitions (job_id, from_status, to_status, reason, created_at)
    VALUES ('root', NULL, 'queued', NULL, '2026-01-01T00:00:05Z'), ('root', 'queued', 'running', 'claimed', '2026-01-01T00:00:05.25Z');
INSERT INTO job_attempts (job_id, attempt, created_at) VALUES ('root', 1, '2026-01-01T00:00:05.25Z');
INSERT INTO plugin_facts VALUES ('6d1f0c6e', 7, 'echo', 'echo.snapshot', 'root', 'poll', '{"n":2}', '2026-01-01T00:00:06Z');
INSERT INTO plugin_facts VALUES ('f00dcafe', 3, 'echo', 'echo.snapshot', 'older', 'poll', '{"n":1}', '2026-01-01T00:00:04Z');
INSERT INTO storage_sequences VALUES ('plugin_facts', 7);
INSERT INTO plugin_state VALUES ('echo', '{"n":2}', '2026-01-01T00:00:06Z');
INSERT INTO circuit_breakers (plugin, command, state, failure_count, opened_at, updated_at)
    VALUES ('slow', 'poll', 'open', 3, '2026-01-01T00:02:00Z', '2026-01-01T00:02:00Z');
INSERT INTO circuit_breaker_transitions VALUES ('t-1', 'slow', 'poll', 'closed', 'open', 3, 'failure_threshold', 'late', '2026-01-01T00:02:00Z');
INSERT INTO schedule_entries (plugin, schedule_id, command, last_fired_at, next_run_at, updated_at)
    VALUES ('slow', 'default', 'poll', '2026-01-01T00:00:01Z', '2026-01-01T01:00:01Z', '2026-01-01T00:00:01Z');
INSERT INTO config_snapshots (id, config_hash, loaded_at, reason) VALUES ('cfg_1', 'abc', '2026-01-01T00:00:00Z', 'startup');
