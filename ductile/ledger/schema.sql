-- The schema of a new database. Older databases are brought to it by migrations/.
-- Timestamps are UTC text of fixed width, so text order is time order; `seq` is the order of arrival.
-- In conditions that every change of a job evaluates, no IN list has more than two members: for a longer one SQLite
-- builds a temporary table each time, which costs as much as the change.

CREATE TABLE job_queue (
    id TEXT NOT NULL UNIQUE,
    plugin TEXT NOT NULL,
    command TEXT NOT NULL,
    payload TEXT,
    status TEXT NOT NULL
        CHECK (status IN ('queued', 'running') OR status IN ('succeeded', 'failed') OR status IN ('dead', 'skipped')),
    attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    max_attempts INTEGER NOT NULL DEFAULT 4 CHECK (max_attempts >= 1),
    submitted_by TEXT NOT NULL,
    dedupe_key TEXT,
    created_at TEXT NOT NULL,
    started_at TEXT,
    completed_at TEXT,
    next_retry_at TEXT,
    last_error TEXT,
    parent_job_id TEXT,
    source_event_id TEXT,
    event_context_id TEXT,
    enqueued_config_snapshot_id TEXT,
    started_config_snapshot_id TEXT,
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    root_job_id TEXT NOT NULL,
    open_jobs INTEGER CHECK (open_jobs >= 0),
    tree_jobs INTEGER CHECK (tree_jobs >= open_jobs),
    tree_completed_at TEXT,
    hops INTEGER NOT NULL DEFAULT 0,
    child_key TEXT,
    pipeline TEXT,
    step_id TEXT,
    schedule_id TEXT,
    slot_at TEXT,
    asked_at TEXT NOT NULL,
    dedupe_ttl_seconds REAL,
    lane TEXT,
    waits_for_key INTEGER NOT NULL DEFAULT 0 CHECK (waits_for_key IN (0, 1)),
    failed_at TEXT,
    interruptions INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0,
    claimed_by TEXT,
    lease_until TEXT,
    pid INTEGER,
    pid_started INTEGER,
    boot_id TEXT,
    cancel_requested_at TEXT,
    cancel_reason TEXT,
    blocked_reason TEXT,
    notify INTEGER NOT NULL DEFAULT 0 CHECK (notify IN (0, 1)),
    replay_of TEXT,
    join_id TEXT,
    is_join INTEGER NOT NULL DEFAULT 0 CHECK (is_join IN (0, 1)),
    waits_for INTEGER NOT NULL DEFAULT 0 CHECK (waits_for >= 0),
    tolerated INTEGER NOT NULL DEFAULT 0 CHECK (tolerated IN (0, 1)),
    actor TEXT,
    outcome_code TEXT,
    CHECK ((status = 'running') = (claimed_by IS NOT NULL)),
    CHECK ((status IN ('queued', 'running')) = (completed_at IS NULL)),
    CHECK ((root_job_id = id) = (open_jobs IS NOT NULL)),
    CHECK ((open_jobs IS NOT NULL) = (tree_jobs IS NOT NULL)),
    CHECK ((status = 'queued' AND next_retry_at IS NULL AND waits_for_key = 0 AND waits_for = 0)
           = (lane IS NOT NULL)),
    CHECK (waits_for_key = 0 OR (status = 'queued' AND dedupe_key IS NOT NULL)),
    CHECK (next_retry_at IS NULL OR (status = 'queued' AND failed_at IS NOT NULL)),
    CHECK (waits_for = 0 OR (status = 'queued' AND is_join = 1)),
    CHECK (is_join = 0 OR (plugin = 'core.join' AND status <> 'running'))
) STRICT;

-- A lane is one plugin's claimable jobs in order; delayed jobs, jobs behind a held key and waiting joins have none. It is
-- a column of its own because the planner, given `status = 'queued' AND plugin = ?`, may pick an index over all of
-- history. Jobs in the lane of the joins are not claimed: they are ready to be decided.
CREATE INDEX job_queue_lanes ON job_queue (lane, seq) WHERE lane IS NOT NULL;
CREATE INDEX job_queue_delayed ON job_queue (next_retry_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX job_queue_delayed_since ON job_queue (failed_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX job_queue_in_flight ON job_queue (plugin, command, dedupe_key, status)
    WHERE status IN ('queued', 'running') AND dedupe_key IS NOT NULL;
CREATE INDEX job_queue_waiting ON job_queue (plugin, command, dedupe_key, seq) WHERE waits_for_key = 1;
CREATE INDEX job_queue_running ON job_queue (claimed_by, plugin) WHERE claimed_by IS NOT NULL;
CREATE INDEX job_queue_by_status ON job_queue (status, seq);
CREATE INDEX job_queue_by_plugin ON job_queue (plugin, seq);
-- Only jobs that did not succeed, so that it stays small.
CREATE INDEX job_queue_unusual ON job_queue (plugin, status, seq)
    WHERE status NOT IN ('queued', 'running') AND status <> 'succeeded';
CREATE INDEX job_queue_ended_by_operator ON job_queue (seq) WHERE outcome_code IN ('cancelled', 'purged');
CREATE INDEX job_queue_by_actor ON job_queue (actor, length(CAST(payload AS BLOB))) WHERE status = 'queued';
CREATE INDEX job_queue_roots ON job_queue (seq) WHERE root_job_id = id;
CREATE INDEX job_queue_by_parent ON job_queue (parent_job_id, seq) WHERE parent_job_id IS NOT NULL;
CREATE INDEX job_queue_by_root ON job_queue (root_job_id, seq) WHERE root_job_id <> id;
CREATE INDEX job_queue_by_join ON job_queue (join_id, seq) WHERE join_id IS NOT NULL;
CREATE INDEX job_queue_by_context ON job_queue (event_context_id) WHERE event_context_id IS NOT NULL;
CREATE INDEX job_queue_outstanding ON job_queue (plugin, schedule_id)
    WHERE status IN ('queued', 'running') AND schedule_id IS NOT NULL;
CREATE INDEX job_queue_finished_trees ON job_queue (tree_completed_at) WHERE tree_completed_at IS NOT NULL;
CREATE UNIQUE INDEX job_queue_child ON job_queue (parent_job_id, child_key) WHERE child_key IS NOT NULL;
CREATE UNIQUE INDEX job_queue_slot ON job_queue (plugin, schedule_id, slot_at) WHERE slot_at IS NOT NULL;

-- One row per attempt, also for attempts that were retried. The last two statuses ran no plugin. The outcome is why the
-- job ended with this attempt: a code (core/statuses.py) and a JSON object; NULL if the job was queued again.
CREATE TABLE job_log (
    id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL,
    plugin TEXT NOT NULL,
    command TEXT NOT NULL,
    status TEXT NOT NULL
        CHECK (status IN ('succeeded', 'failed') OR status IN ('timed_out', 'interrupted')
               OR status IN ('skipped', 'dead')),
    result TEXT,
    attempt INTEGER NOT NULL,
    submitted_by TEXT NOT NULL,
    created_at TEXT NOT NULL,
    completed_at TEXT NOT NULL,
    last_error TEXT,
    stderr TEXT,
    parent_job_id TEXT,
    source_event_id TEXT,
    event_context_id TEXT,
    enqueued_config_snapshot_id TEXT,
    started_config_snapshot_id TEXT,
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    root_job_id TEXT NOT NULL,
    job_status TEXT NOT NULL,
    started_at TEXT,
    duration_ms INTEGER,
    exit_code INTEGER,
    signal INTEGER,
    max_attempts INTEGER NOT NULL,
    pipeline TEXT,
    step_id TEXT,
    schedule_id TEXT,
    slot_at TEXT,
    tolerated INTEGER NOT NULL DEFAULT 0,
    outcome_code TEXT,
    outcome_data TEXT,
    actor TEXT,
    plugin_fingerprint TEXT,
    plugin_changes TEXT
) STRICT;
CREATE INDEX job_log_by_job ON job_log (job_id, attempt);
CREATE INDEX job_log_by_completion ON job_log (completed_at);
CREATE INDEX job_log_by_plugin ON job_log (plugin, seq);
CREATE INDEX job_log_unusual ON job_log (status, seq) WHERE status <> 'succeeded';
CREATE INDEX job_log_by_context ON job_log (event_context_id) WHERE event_context_id IS NOT NULL;
CREATE INDEX job_log_by_root ON job_log (root_job_id) WHERE root_job_id <> job_id;

-- The results of the branches of a join. Deleted with the tree of the join.
CREATE TABLE arrivals (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    join_id TEXT NOT NULL,
    item INTEGER NOT NULL DEFAULT 0,
    branch INTEGER NOT NULL DEFAULT 0,
    payload TEXT NOT NULL,
    job_id TEXT NOT NULL
) STRICT;
CREATE INDEX arrivals_by_join ON arrivals (join_id, item, branch, seq);

-- What happened or was decided not to happen. Append-only; seq is the position of the event stream.
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    plugin TEXT,
    job_id TEXT,
    root_job_id TEXT,
    data TEXT NOT NULL DEFAULT '{}',
    actor TEXT,
    message_id TEXT
) STRICT;
CREATE INDEX journal_by_message ON journal (message_id, seq) WHERE message_id IS NOT NULL;
CREATE INDEX journal_by_job ON journal (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX journal_by_plugin ON journal (plugin, seq) WHERE job_id IS NULL AND plugin IS NOT NULL;
CREATE INDEX journal_acts ON journal (seq, at, actor) WHERE actor IS NOT NULL;
CREATE INDEX journal_of_service ON journal (kind, seq) WHERE job_id IS NULL AND plugin IS NULL;

CREATE VIEW job_transitions AS
    SELECT seq AS id, job_id, data ->> 'from' AS from_status, data ->> 'to' AS to_status,
           data ->> 'reason' AS reason, at AS created_at
      FROM journal
     WHERE job_id IS NOT NULL AND data ->> 'to' IS NOT NULL;

CREATE VIEW job_attempts AS
    SELECT seq AS id, job_id, attempt, started_at AS created_at
      FROM job_log
     WHERE started_at IS NOT NULL
    UNION ALL
    SELECT -seq, id, attempt, started_at
      FROM job_queue
     WHERE status = 'running';

CREATE TABLE event_context (
    id TEXT NOT NULL PRIMARY KEY,
    parent_id TEXT,
    pipeline_name TEXT,
    step_id TEXT,
    accumulated_json TEXT NOT NULL DEFAULT '{}',
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX event_context_by_parent ON event_context (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX event_context_by_age ON event_context (created_at);

CREATE TABLE storage_sequences (
    name TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;
INSERT INTO storage_sequences (name, value) VALUES ('plugin_facts', 0);

CREATE TABLE plugin_facts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL UNIQUE,
    plugin_name TEXT NOT NULL,
    fact_type TEXT NOT NULL,
    job_id TEXT,
    command TEXT,
    fact_json TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX plugin_facts_by_plugin ON plugin_facts (plugin_name, seq);
CREATE INDEX plugin_facts_by_type ON plugin_facts (plugin_name, fact_type, seq);
CREATE INDEX plugin_facts_by_job ON plugin_facts (job_id) WHERE job_id IS NOT NULL;

CREATE TABLE plugin_state (
    plugin_name TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL DEFAULT '{}',
    updated_at TEXT NOT NULL
) STRICT;

CREATE TABLE plugin_inits (
    plugin TEXT NOT NULL PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    error TEXT,
    ended_at TEXT NOT NULL
) STRICT;

CREATE TABLE drifted_plugins (
    plugin TEXT NOT NULL PRIMARY KEY,
    code TEXT NOT NULL,
    files TEXT NOT NULL,
    fingerprint TEXT,
    detected_at TEXT NOT NULL
) STRICT;

CREATE TABLE circuit_breakers (
    plugin TEXT NOT NULL,
    command TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),
    failure_count INTEGER NOT NULL DEFAULT 0 CHECK (failure_count >= 0),
    opened_at TEXT,
    last_failure_at TEXT,
    last_job_id TEXT,
    updated_at TEXT NOT NULL,
    probe_job_id TEXT,
    PRIMARY KEY (plugin, command)
) STRICT;

CREATE TABLE circuit_breaker_transitions (
    id TEXT NOT NULL PRIMARY KEY,
    plugin TEXT NOT NULL,
    command TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    failure_count INTEGER NOT NULL DEFAULT 0,
    reason TEXT,
    job_id TEXT,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX circuit_breaker_transitions_by_command ON circuit_breaker_transitions (plugin, command, created_at);
CREATE INDEX circuit_breaker_transitions_by_age ON circuit_breaker_transitions (created_at);

CREATE TABLE schedule_entries (
    plugin TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    command TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'active'
        CHECK (status IN ('active', 'paused_manual', 'paused_invalid', 'exhausted')),
    reason TEXT,
    last_fired_at TEXT,
    last_success_job_id TEXT,
    last_success_at TEXT,
    next_run_at TEXT,
    updated_at TEXT NOT NULL,
    definition_hash TEXT,
    last_slot_at TEXT,
    last_job_id TEXT,
    anchored_at TEXT,
    held_reason TEXT,
    PRIMARY KEY (plugin, schedule_id)
) STRICT;
CREATE INDEX schedule_entries_due ON schedule_entries (next_run_at) WHERE status = 'active';

-- What arrived at each webhook endpoint, and what it became. Of refused and repeated deliveries only the latest, without
-- their bodies.
CREATE TABLE webhook_deliveries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    path TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'unmatched') OR verdict IN ('repeated', 'refused')),
    code TEXT,
    reason TEXT,
    status INTEGER NOT NULL,
    delivery_id TEXT,
    job_ids TEXT NOT NULL DEFAULT '[]',
    peer TEXT NOT NULL,
    headers TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    body_bytes INTEGER NOT NULL,
    body BLOB,
    redelivery_of INTEGER
) STRICT;
CREATE INDEX webhook_deliveries_by_path ON webhook_deliveries (path, verdict, seq);
CREATE INDEX webhook_deliveries_by_delivery ON webhook_deliveries (delivery_id, seq) WHERE delivery_id IS NOT NULL;

CREATE TABLE token_uses (
    name TEXT NOT NULL PRIMARY KEY,
    last_used_at TEXT NOT NULL
) STRICT;

-- Plugins that the operator paused; `*` is the whole queue.
CREATE TABLE pauses (
    plugin TEXT NOT NULL PRIMARY KEY,
    reason TEXT NOT NULL,
    paused_at TEXT NOT NULL
) STRICT;

-- Deadlines for the job of a slot. A checked row stays until a later slot replaces it, so that a slot that is decided
-- again gets no second deadline.
CREATE TABLE expectations (
    plugin TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    slot_at TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('schedule.late', 'job.overdue')),
    due_at TEXT NOT NULL,
    taken_at TEXT,
    PRIMARY KEY (plugin, schedule_id, slot_at, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX expectations_open ON expectations (due_at) WHERE taken_at IS NULL;

-- When the last message about a signal was sent, and how many signals are held since.
CREATE TABLE notification_groups (
    signal TEXT NOT NULL,
    subject TEXT NOT NULL,
    sent_at TEXT NOT NULL,
    held INTEGER NOT NULL DEFAULT 0,
    last TEXT NOT NULL,
    PRIMARY KEY (signal, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE config_snapshots (
    id TEXT NOT NULL PRIMARY KEY,
    config_hash TEXT NOT NULL,
    source_hash TEXT,
    source_path TEXT,
    source TEXT,
    reason TEXT,
    loaded_at TEXT NOT NULL,
    ductile_version TEXT,
    binary_path TEXT,
    snapshot_format INTEGER NOT NULL DEFAULT 1,
    semantics TEXT,
    plugin_fingerprints TEXT,
    sanitized_config TEXT,
    secret_fingerprints TEXT,
    sealed_at TEXT,
    sealed_by TEXT
) STRICT;
CREATE INDEX config_snapshots_by_age ON config_snapshots (loaded_at);

-- A success that closes a dedupe window. In its own table, so that pruning jobs cannot reopen the window.
CREATE TABLE dedupe_receipts (
    plugin TEXT NOT NULL,
    command TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    succeeded_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    PRIMARY KEY (plugin, command, dedupe_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedupe_receipts_by_expiry ON dedupe_receipts (expires_at);

-- Responses already given: webhook deliveries, idempotency keys, relayed events. The scope names their source.
-- journal_seq is the newest row of the journal at that time: the order of arrival, which a wrong clock does not change.
CREATE TABLE receipts (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT,
    job_id TEXT,
    response TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    journal_seq INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX receipts_by_expiry ON receipts (expires_at);

-- The exchange. A message never changes; only retention deletes it, with its whole conversation. The body is the last
-- column, so that reading the others does not read a large one.
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    created_at TEXT NOT NULL,
    parent_id TEXT,
    conversation_id TEXT NOT NULL,
    producer TEXT,
    ordering_key TEXT,
    hops INTEGER NOT NULL DEFAULT 0 CHECK (hops >= 0),
    source_job_id TEXT,
    published_by TEXT NOT NULL,
    is_dead_letter INTEGER NOT NULL DEFAULT 0 CHECK (is_dead_letter IN (0, 1)),
    metadata_json TEXT,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX messages_by_topic ON messages (topic, seq);
CREATE INDEX messages_by_conversation ON messages (conversation_id, seq);
CREATE INDEX messages_by_parent ON messages (parent_id, seq) WHERE parent_id IS NOT NULL;
CREATE INDEX messages_by_age ON messages (created_at, seq);
CREATE TRIGGER messages_never_change BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'a message never changes'); END;

-- One row for each message that is not decided, with the same seq. A lane is the claimable messages of one topic in order;
-- delayed and claimed messages and those behind another one of their ordering key have none. Of the messages of a topic
-- and ordering key, all but one wait. A waiting message keeps its available_at.
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    lane TEXT,
    deliveries INTEGER NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    ready_at TEXT NOT NULL,
    available_at TEXT,
    delayed_at TEXT,
    claim_id TEXT,
    ordering_key TEXT,
    waits INTEGER NOT NULL DEFAULT 0 CHECK (waits IN (0, 1)),
    warned INTEGER NOT NULL DEFAULT 0 CHECK (warned IN (0, 1)),
    last_reason TEXT,
    CHECK ((lane IS NOT NULL) = (available_at IS NULL AND claim_id IS NULL AND waits = 0)),
    CHECK (claim_id IS NULL OR (available_at IS NULL AND waits = 0)),
    CHECK (waits = 0 OR ordering_key IS NOT NULL),
    CHECK ((available_at IS NULL) = (delayed_at IS NULL))
) STRICT;
CREATE INDEX deliveries_lanes ON deliveries (lane, seq) WHERE lane IS NOT NULL;
CREATE INDEX deliveries_unclaimed ON deliveries (topic, seq) WHERE claim_id IS NULL;
CREATE INDEX deliveries_delayed ON deliveries (available_at) WHERE available_at IS NOT NULL AND waits = 0;
CREATE INDEX deliveries_delayed_since ON deliveries (delayed_at) WHERE available_at IS NOT NULL AND waits = 0;
CREATE INDEX deliveries_keys ON deliveries (topic, ordering_key, seq) WHERE ordering_key IS NOT NULL;

-- The id of a claim is its fencing token. The deadline of a lease is in the memory of the service; lease_until and
-- lease_seconds are for people and for a restart. A claim of a consumer has none: it ends with the run of job_id.
CREATE TABLE claims (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    worker_group TEXT NOT NULL,
    worker_instance_id TEXT NOT NULL,
    claimed_at TEXT NOT NULL,
    lease_until TEXT,
    lease_seconds REAL,
    status TEXT NOT NULL
        CHECK (status IN ('active', 'completed') OR status IN ('failed', 'timed_out')
               OR status IN ('expired', 'released')),
    completed_at TEXT,
    delivery INTEGER NOT NULL CHECK (delivery >= 1),
    extensions INTEGER NOT NULL DEFAULT 0,
    reason TEXT,
    follow_up_id TEXT,
    job_id TEXT,
    claimed_by TEXT NOT NULL,
    runner_name TEXT GENERATED ALWAYS AS (worker_group) VIRTUAL,
    CHECK ((status = 'active') = (completed_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX claims_active ON claims (message_id) WHERE status = 'active';
CREATE INDEX claims_by_message ON claims (message_id, seq);
CREATE INDEX claims_by_topic ON claims (topic, seq);
CREATE UNIQUE INDEX claims_by_job ON claims (job_id) WHERE job_id IS NOT NULL;

-- Conversations whose first reply a caller wants to be notified of.
CREATE TABLE tracked_conversations (
    conversation_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    tracked_by TEXT NOT NULL,
    success_topic TEXT NOT NULL,
    failure_topic TEXT NOT NULL,
    timeout_topic TEXT NOT NULL,
    created_at TEXT NOT NULL,
    notified_at TEXT,
    PRIMARY KEY (conversation_id, tracked_by)
) STRICT;
CREATE INDEX tracked_conversations_open ON tracked_conversations (tracked_by, created_at) WHERE notified_at IS NULL;

-- The message that a publish step has written in this try of its job. With topics, the step waits for a reply.
CREATE TABLE step_messages (
    job_id TEXT NOT NULL PRIMARY KEY,
    tries INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    success_topic TEXT,
    failure_topic TEXT,
    timeout_topic TEXT,
    reply_id TEXT
) STRICT;
CREATE INDEX step_messages_by_conversation ON step_messages (conversation_id);

-- Topics whose messages are not delivered.
CREATE TABLE topic_pauses (
    topic TEXT NOT NULL PRIMARY KEY,
    reason TEXT NOT NULL,
    paused_at TEXT NOT NULL
) STRICT;

-- The identity of this ledger. It is in the table of sequences because every transaction rewrites that page: a
-- write-ahead log of another ledger is recognised by its number.
INSERT INTO sqlite_sequence (name, seq) VALUES ('ledger', abs(random()));
