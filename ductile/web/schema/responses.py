"""The response schemas and query arguments of the API routes.

Values only. Members that do not apply to a job are omitted, so most members are optional.
"""

from datetime import timedelta

from ductile.core.model import AttemptStatus, BreakerState, JobStatus
from ductile.ledger.reports.filters import MAX_PAGE_SIZE
from ductile.ledger.reports.job_stats import TREND_SLOTS
from ductile.ledger.reports.trees import TreeStatus
from ductile.web.schema.schemas import (
    Argument,
    Schema,
    any_value,
    array,
    boolean,
    choice,
    integer,
    mapping,
    nullable,
    number,
    record,
    text,
    timestamp,
)

WINDOWS = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}

COUNT = integer(minimum=0)
WAIT = Argument("wait", text(), "Time to wait for the end, such as 10s; at most api.max_sync_timeout")
DRY_RUN = Argument("dry_run", boolean(), "Report what would change without changing it")

_RESULT_FIELDS: dict[str, Schema] = {
    "last_error": text("Error of the last failed attempt"),
    "result": any_value("The response of the plugin, unchanged"),
    "output": text("The output of the plugin, if it is not a JSON object"),
}
_JOB_FIELDS: dict[str, Schema] = {
    "job_id": text(),
    "plugin": text(),
    "command": text(),
    "status": choice(JobStatus),
}
_TIME_FIELDS: dict[str, Schema] = {"started_at": timestamp(), "completed_at": timestamp()}
_TREE_FIELDS: dict[str, Schema] = {"parent_job_id": text(), "pipeline": text(), "step_id": text()}
_ATTEMPT_FIELDS: dict[str, Schema] = {
    "submitted_by": text("Origin of the job, such as api or scheduler"),
    "attempt": integer(minimum=1),
    "max_attempts": integer(minimum=1),
    "root_job_id": text("The root job of its tree"),
    "created_at": timestamp(),
}

JOB = record(
    {**_JOB_FIELDS, **_ATTEMPT_FIELDS},
    {
        **_TREE_FIELDS,
        **_TIME_FIELDS,
        **_RESULT_FIELDS,
        "next_retry_at": timestamp(),
        "stderr": text("Stderr of a running job so far"),
        "tree_status": choice(TreeStatus, "Status of the whole run; only for an ended root job"),
    },
    title="Job",
)
NODE = record(
    {**_JOB_FIELDS, "attempt": integer(minimum=1), "created_at": timestamp()},
    {
        **_TREE_FIELDS,
        **_TIME_FIELDS,
        **_RESULT_FIELDS,
        "terminal": boolean("True if it belongs to a terminal step"),
        "tolerated": boolean("True if its failure does not fail the run"),
        "duration_ms": COUNT,
    },
    title="TreeNode",
)
TREE = array(NODE)
ACCEPTED = record(
    {"job_id": text(), "status": choice(JobStatus), "plugin": text(), "command": text()},
    title="Accepted",
)
PLANNED = record(
    {"status": choice(("planned",)), "plugin": text(), "command": text(), "dry_run": boolean()},
    title="Planned",
)
RUN = record(
    {
        "job_id": text(),
        "status": choice(JobStatus),
        "duration_ms": COUNT,
        "result": any_value("Result of the last terminal job"),
        "tree": TREE,
    },
    title="Run",
)
STILL_RUNNING = record(
    {"job_id": text(), "status": choice(("running",)), "timeout_exceeded": boolean(), "message": text()},
    title="StillRunning",
)
PAYLOAD = record(
    {}, {"payload": nullable(mapping(any_value(), "Input of the plugin or of the first step"))}, title="Payload"
)
LISTED_JOB = record(
    {**_JOB_FIELDS, **_ATTEMPT_FIELDS},
    {
        **_TREE_FIELDS,
        **_TIME_FIELDS,
        "schedule_id": text(),
        "slot_at": timestamp(),
        "next_retry_at": timestamp(),
        "last_error": text("Error of the last failed attempt"),
    },
    title="ListedJob",
)
ATTEMPT = record(
    {
        "log_id": text("<job>-<attempt>"),
        "job_id": text(),
        "plugin": text(),
        "command": text(),
        "status": choice(AttemptStatus),
        "job_status": choice(JobStatus, "Status of the job after the attempt; queued for a retry"),
        "attempt": integer(minimum=1),
        "submitted_by": text(),
        "created_at": timestamp(),
        "completed_at": timestamp(),
    },
    {
        "started_at": timestamp(),
        "duration_ms": COUNT,
        "exit_code": integer(),
        "signal": integer(),
        "stderr": text(),
        "result_omitted": boolean("True if the result is too large for a list"),
        **_RESULT_FIELDS,
    },
    title="Attempt",
)
_PAGE_FIELDS: dict[str, Schema] = {
    "total": integer("Matching items, or the number counted so far", minimum=0),
    "total_is_exact": boolean("False if there may be more than `total`"),
    "next_cursor": nullable(text("Value for ?cursor= of the next page; null on the last page")),
    "limit": integer("Maximum number of items in a page", minimum=1, maximum=MAX_PAGE_SIZE),
}
JOB_PAGE = record({"jobs": array(LISTED_JOB, maxItems=MAX_PAGE_SIZE), **_PAGE_FIELDS})
LOG_PAGE = record({"logs": array(ATTEMPT, maxItems=MAX_PAGE_SIZE), **_PAGE_FIELDS})

_FILTERS = (
    Argument("plugin", text()),
    Argument("command", text()),
    Argument("status", text(), "A status; pending, ok and error are accepted as aliases"),
    Argument("submitted_by", text()),
    Argument("schedule_id", text()),
    Argument("pipeline", text()),
    Argument("root", text(), "Only the tree of this root job"),
    Argument("job_id", text()),
    Argument("from", text(), "Start of the time range, inclusive (RFC 3339)"),
    Argument("to", text(), "End of the time range, exclusive (RFC 3339)"),
    Argument("query", text(), "Words that must all occur"),
    Argument("limit", integer(minimum=1), f"Items per page; default 50, at most {MAX_PAGE_SIZE}"),
    Argument("cursor", text(), "`next_cursor` of the previous page"),
)
JOB_FILTERS = _FILTERS
LOG_FILTERS = (*_FILTERS, Argument("include_result", boolean(), "Include results; requires jobs:result:ro"))

WELCOME = record(
    {
        "name": text(),
        "description": text(),
        "version": text(),
        "uptime_seconds": COUNT,
        "discovery": mapping(text("A path"), "Main paths of the API"),
    }
)
HEALTH = record(
    {
        "status": choice(("ok", "degraded")),
        "uptime_seconds": COUNT,
        "queue_depth": integer("Queued and running jobs, counted up to 10,000", minimum=0),
        "plugins_loaded": COUNT,
        "plugins_circuit_open": COUNT,
        "version": text(),
        "oldest_claimable_seconds": number("Age of the oldest job that is ready to start"),
    },
    title="Health",
)
SUMMARY = record({"window": text(), "stats": mapping(COUNT, "Number of jobs by status")})
QUEUE = record(
    {
        "queue_depth": COUNT,
        "running_count": COUNT,
        "delayed_count": COUNT,
        "dead_count": COUNT,
        "waiting_for_key_count": COUNT,
        "waiting_joins_count": COUNT,
        "active_jobs": array(
            record(
                {
                    "job_id": text(),
                    "plugin": text(),
                    "command": text(),
                    "started_at": timestamp(),
                    "timeout_seconds": nullable(number("Timeout of the attempt; null if it has none")),
                }
            )
        ),
        "plugin_lanes": array(
            record(
                {
                    "plugin": text(),
                    "active_count": COUNT,
                    "ready_count": COUNT,
                    "oldest_ready_at": nullable(timestamp()),
                    "is_claimable": boolean("False if its jobs cannot start now"),
                }
            )
        ),
    }
)
_TIMING_FIELDS: dict[str, Schema] = {
    "step": text("The command, or pipeline/step"),
    "sample_count": COUNT,
    "p50_ms": COUNT,
    "p95_ms": COUNT,
    "p99_ms": COUNT,
    "trend_p95_ms": array(
        nullable(COUNT), "The 95th percentile in equal parts of the window", minItems=TREND_SLOTS, maxItems=TREND_SLOTS
    ),
}
STOPWATCH = record(
    {
        "plugin": text(),
        "window": choice(WINDOWS),
        "captured_at": timestamp(),
        "steps": array(record(_TIMING_FIELDS, {"subs": array(record(_TIMING_FIELDS))})),
    }
)

_NAMES = array(text())
_FINDING = record({"category": text(), "message": text(), "field": text()}, {"file": text(), "line": COUNT})
TASKS = record({"name": text(), "tasks": array(any_value(), "The child tasks, with the same members")})
RELOADED = record(
    {
        "status": choice(("reloaded", "unchanged", "planned")),
        "reloaded_at": nullable(timestamp()),
        "message": text(),
        "changes": record(
            {"settings": _NAMES, "unavailable": mapping(text()), "unsealed": _NAMES},
            is_closed=False,
            description="Also has added, removed and changed names by section",
        ),
        "next_runs": mapping(
            record({"before": nullable(timestamp()), "after": nullable(timestamp())}), "Next runs of changed schedules"
        ),
        "ended_jobs": mapping(COUNT, "Queued jobs that end, by plugin"),
        "errors": array(_FINDING, "Errors; the parts they concern are disabled"),
        "warnings": array(_FINDING, "Warnings"),
    }
)
SCHEDULES = record(
    {
        "jobs": array(
            record(
                {
                    "plugin": text(),
                    "schedule_id": text(),
                    "command": text(),
                    "mode": choice(("every", "cron", "at", "after")),
                    "when": text(),
                    "status": choice(("scheduled", "paused", "exhausted", "invalid")),
                    "timezone": text(),
                },
                {
                    "reason": text(),
                    "next_run_at": timestamp(),
                    "next_run_local": text(),
                    "held_reason": text(),
                    "last_fired_at": timestamp(),
                    "last_fired_local": text(),
                    "last_slot_at": timestamp(),
                    "last_job_id": text(),
                    "last_success_at": timestamp(),
                    "last_success_job_id": text(),
                },
            )
        )
    }
)
SCHEDULE_CHANGED = record(
    {
        "plugin": text(),
        "schedule_id": text(),
        "status": choice(("paused", "scheduled")),
        "changed": boolean("False if the status was the same before"),
        "dry_run": boolean(),
    },
    title="ScheduleChanged",
)
_SCHEDULE_FIELDS: dict[str, Schema] = {"plugin": text(), "schedule_id": text(), "command": text()}
SCHEDULE_RUN = record({"job_id": text(), "status": choice(JobStatus), **_SCHEDULE_FIELDS})
SCHEDULE_PLANNED = record({"status": choice(("planned",)), "dry_run": boolean(), **_SCHEDULE_FIELDS})
_BREAKER_FIELDS: dict[str, Schema] = {
    "command": text(),
    "state": choice(BreakerState),
    "failure_count": COUNT,
    "threshold": COUNT,
}
_BREAKER_OPTIONAL: dict[str, Schema] = {
    "opened_at": timestamp(),
    "probe_from": timestamp(),
    "probe_job_id": text(),
    "last_failure_at": timestamp(),
    "last_job_id": text(),
}
ALL_BREAKERS = record({"breakers": array(record({"plugin": text(), **_BREAKER_FIELDS}, _BREAKER_OPTIONAL))})
BREAKERS = record(
    {
        "plugin": text(),
        "breakers": array(
            record(
                {
                    **_BREAKER_FIELDS,
                    "transitions": array(
                        record(
                            {
                                "id": text(),
                                "from_state": nullable(text()),
                                "to_state": text(),
                                "failure_count": COUNT,
                                "reason": nullable(text()),
                                "job_id": nullable(text()),
                                "created_at": timestamp(),
                            }
                        )
                    ),
                },
                _BREAKER_OPTIONAL,
            )
        ),
    }
)
BREAKERS_RESET = record(
    {
        "plugin": text(),
        "reset": array(record({"command": text(), "previous_state": choice(BreakerState), "failure_count": COUNT})),
        "dry_run": boolean(),
    }
)
