"""The event names and fields of the original Ductile, which its clients rely on."""

ENDING = {"job_id", "plugin", "status", "duration_ms"}
POLL = {"job_id", "plugin", "command", "schedule_id", "submitted_by", "attempt"}
FIELDS = {
    "job.enqueued": {"at", "job_id", "plugin", "command", "submitted_by", "direct"},
    "pipeline.enqueued": {"at", "job_id", "job_ids", "job_count", "pipeline", "submitted_by"},
    "job.started": {"job_id", "plugin", "command", "attempt", "submitted_by"},
    "job.preflight": {"job_id", "plugin", "command", "decision", "reason"},
    "plugin.spawned": {"job_id", "plugin", "command", "pid"},
    "job.completed": ENDING,
    "job.failed": ENDING | {"error", "message", "text"},
    "job.timed_out": ENDING | {"error", "message", "text"},
    "job.skipped": {"job_id", "plugin", "command", "reason"},
    "job.retry_scheduled": {
        *("job_id", "attempt", "max_attempts", "retry_count", "max_retries", "retry_policy_owner"),
        *("plugin_retry_field", "backoff_ms", "backoff_schedule", "next_retry_at", "reason"),
    },
    "job.retry_exhausted": {
        *("job_id", "attempts", "final_error", "reason", "retry_policy_owner", "plugin_retry_field"),
    },
    "poll.started": POLL,
    "poll.completed": POLL | {"status", "outcome", "duration_ms"},
    "router.enqueued": {"job_id", "parent_job_id", "plugin", "command", "pipeline", "step_id", "event_context_id"},
    "scheduler.scheduled": {"job_id", "plugin", "command", "schedule_id", "submitted_by"},
    "scheduler.skipped": {"plugin", "schedule_id", "command", "reason", "next_run_at"},
    "scheduler.circuit_state_changed": {"plugin", "command", "previous_state", "state", "failure_count"},
    "scheduler.circuit_half_open": {"plugin", "command"},
}
"""Without `scheduler.tick`, which has no counterpart, and without `parent_job_id` of root jobs."""
