"""Jobs, attempts and numbers about them as schemas: what the rooms that show them promise.

Values only. What does not apply to a job is left out of it, so most members are optional.
"""

from datetime import timedelta

from ductile.core.model import AttemptStatus, BreakerState, JobStatus
from ductile.ledger.reports.filters import MOST_IN_A_PAGE
from ductile.ledger.reports.job_stats import TREND_SLOTS
from ductile.ledger.reports.trees import TreeStatus
from ductile.web.openapi.schemas import (
    Argument,
    Schema,
    anything,
    boolean,
    by_name,
    choice,
    integer,
    listing,
    moment,
    nullable,
    number,
    record,
    text,
)

WINDOWS = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}

COUNT = integer(minimum=0)
WAIT = Argument("wait", text(), "How long to wait for the end, such as 10s; at most api.max_sync_timeout")
DRY_RUN = Argument("dry_run", boolean(), "Only say what would change")

_RESULTS: dict[str, Schema] = {
    "last_error": text("Why it failed"),
    "result": anything("The plugin's own answer, as it came"),
    "output": text("What it printed, where that is no answer"),
}
_NAMED: dict[str, Schema] = {
    "job_id": text(),
    "plugin": text(),
    "command": text(),
    "status": choice(JobStatus),
}
_TIMES: dict[str, Schema] = {"started_at": moment(), "completed_at": moment()}
_PLACE: dict[str, Schema] = {"parent_job_id": text(), "pipeline": text(), "step_id": text()}
_TRIES: dict[str, Schema] = {
    "submitted_by": text("Who asked for it"),
    "attempt": integer(minimum=1),
    "max_attempts": integer(minimum=1),
    "root_job_id": text("The first job of its tree"),
    "created_at": moment(),
}

JOB = record(
    {**_NAMED, **_TRIES},
    {
        **_PLACE,
        **_TIMES,
        **_RESULTS,
        "next_retry_at": moment(),
        "stderr": text("What it has written so far"),
        "tree_status": choice(TreeStatus, "Of the first job of a run, once it is over: how the whole run stands"),
    },
    title="Job",
)
NODE = record(
    {**_NAMED, "attempt": integer(minimum=1), "created_at": moment()},
    {
        **_PLACE,
        **_TIMES,
        **_RESULTS,
        "terminal": boolean("Its run may end with it"),
        "tolerated": boolean("It failed and was allowed to"),
        "duration_ms": COUNT,
    },
    title="TreeNode",
)
TREE = listing(NODE)
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
        "result": anything("Of the last job with which the run may end"),
        "tree": TREE,
    },
    title="Run",
)
STILL_RUNNING = record(
    {"job_id": text(), "status": choice(("running",)), "timeout_exceeded": boolean(), "message": text()},
    title="StillRunning",
)
PAYLOAD = record(
    {}, {"payload": nullable(by_name(anything(), "What the plugin or the first step gets"))}, title="Payload"
)
LISTED_JOB = record(
    {**_NAMED, **_TRIES},
    {
        **_PLACE,
        **_TIMES,
        "schedule_id": text(),
        "slot_at": moment(),
        "next_retry_at": moment(),
        "last_error": text("Why it failed"),
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
        "job_status": choice(JobStatus, "What the job became by it; queued if it was tried again"),
        "attempt": integer(minimum=1),
        "submitted_by": text(),
        "created_at": moment(),
        "completed_at": moment(),
    },
    {
        "started_at": moment(),
        "duration_ms": COUNT,
        "exit_code": integer(),
        "signal": integer(),
        "stderr": text(),
        "result_omitted": boolean("There is a result, too large for a list"),
        **_RESULTS,
    },
    title="Attempt",
)
_PAGE: dict[str, Schema] = {
    "total": integer("How many fit, or how many were counted", minimum=0),
    "total_is_exact": boolean("False: there may be more than `total`"),
    "next_cursor": nullable(text("For ?cursor=; null at the end")),
    "limit": integer("How many a page has at most", minimum=1, maximum=MOST_IN_A_PAGE),
}
JOB_PAGE = record({"jobs": listing(LISTED_JOB, maxItems=MOST_IN_A_PAGE), **_PAGE})
LOG_PAGE = record({"logs": listing(ATTEMPT, maxItems=MOST_IN_A_PAGE), **_PAGE})

_FILTERS = (
    Argument("plugin", text()),
    Argument("command", text()),
    Argument("status", text(), "One status; pending, ok and error are understood"),
    Argument("submitted_by", text()),
    Argument("schedule_id", text()),
    Argument("pipeline", text()),
    Argument("root", text(), "The first job of a tree: only this tree"),
    Argument("job_id", text()),
    Argument("from", text(), "From this moment on (RFC 3339)"),
    Argument("to", text(), "Before this moment"),
    Argument("query", text(), "Words to find"),
    Argument("limit", integer(minimum=1), f"50 if not given; more than {MOST_IN_A_PAGE} is read as that"),
    Argument("cursor", text(), "`next_cursor` of the page before"),
)
JOB_FILTERS = _FILTERS
LOG_FILTERS = (*_FILTERS, Argument("include_result", boolean(), "Show results, too (jobs:result:ro)"))

WELCOME = record(
    {
        "name": text(),
        "description": text(),
        "version": text(),
        "uptime_seconds": COUNT,
        "discovery": by_name(text("A path"), "Where to go"),
    }
)
HEALTH = record(
    {
        "status": choice(("ok", "degraded")),
        "uptime_seconds": COUNT,
        "queue_depth": integer("Waiting and running, counted up to 10,000", minimum=0),
        "plugins_loaded": COUNT,
        "plugins_circuit_open": COUNT,
        "version": text(),
        "oldest_claimable_seconds": number("How long the oldest job that could run has waited"),
    },
    title="Health",
)
SUMMARY = record({"window": text(), "stats": by_name(COUNT, "Status → jobs")})
QUEUE = record(
    {
        "queue_depth": COUNT,
        "running_count": COUNT,
        "delayed_count": COUNT,
        "dead_count": COUNT,
        "waiting_for_key_count": COUNT,
        "waiting_joins_count": COUNT,
        "active_jobs": listing(
            record(
                {
                    "job_id": text(),
                    "plugin": text(),
                    "command": text(),
                    "started_at": moment(),
                    "timeout_seconds": nullable(number("How long it may run; null: nobody ends it")),
                }
            )
        ),
        "plugin_lanes": listing(
            record(
                {
                    "plugin": text(),
                    "active_count": COUNT,
                    "ready_count": COUNT,
                    "oldest_ready_at": nullable(moment()),
                    "is_claimable": boolean("False: nothing of it may start now"),
                }
            )
        ),
    }
)
_TIMING: dict[str, Schema] = {
    "step": text("The command, or pipeline/step"),
    "sample_count": COUNT,
    "p50_ms": COUNT,
    "p95_ms": COUNT,
    "p99_ms": COUNT,
    "trend_p95_ms": listing(nullable(COUNT), "The window in equal parts", minItems=TREND_SLOTS, maxItems=TREND_SLOTS),
}
STOPWATCH = record(
    {
        "plugin": text(),
        "window": choice(WINDOWS),
        "captured_at": moment(),
        "steps": listing(record(_TIMING, {"subs": listing(record(_TIMING))})),
    }
)

_NAMES = listing(text())
_FINDING = record({"category": text(), "message": text(), "field": text()}, {"file": text(), "line": COUNT})
TASKS = record({"name": text(), "tasks": listing(anything(), "The same, for each task in its nurseries")})
RELOADED = record(
    {
        "status": choice(("reloaded", "unchanged", "planned")),
        "reloaded_at": nullable(moment()),
        "message": text(),
        "changes": record(
            {"settings": _NAMES, "unavailable": by_name(text()), "unsealed": _NAMES},
            is_closed=False,
            description="Besides, by section: added, removed and changed",
        ),
        "next_runs": by_name(
            record({"before": nullable(moment()), "after": nullable(moment())}), "Of the schedules that changed"
        ),
        "ended_jobs": by_name(COUNT, "Waiting jobs that end, by plugin"),
        "errors": listing(_FINDING, "What does not work, and the service does without"),
        "warnings": listing(_FINDING, "What else is worth a look"),
    }
)
SCHEDULES = record(
    {
        "jobs": listing(
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
                    "next_run_at": moment(),
                    "next_run_local": text(),
                    "held_reason": text(),
                    "last_fired_at": moment(),
                    "last_fired_local": text(),
                    "last_slot_at": moment(),
                    "last_job_id": text(),
                    "last_success_at": moment(),
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
        "changed": boolean("False if it was so before"),
        "dry_run": boolean(),
    },
    title="ScheduleChanged",
)
_OF_SCHEDULE: dict[str, Schema] = {"plugin": text(), "schedule_id": text(), "command": text()}
SCHEDULE_RUN = record({"job_id": text(), "status": choice(JobStatus), **_OF_SCHEDULE})
SCHEDULE_PLANNED = record({"status": choice(("planned",)), "dry_run": boolean(), **_OF_SCHEDULE})
_BREAKER: dict[str, Schema] = {
    "command": text(),
    "state": choice(BreakerState),
    "failure_count": COUNT,
    "threshold": COUNT,
}
_BREAKER_TIMES: dict[str, Schema] = {
    "opened_at": moment(),
    "probe_from": moment(),
    "probe_job_id": text(),
    "last_failure_at": moment(),
    "last_job_id": text(),
}
ALL_BREAKERS = record({"breakers": listing(record({"plugin": text(), **_BREAKER}, _BREAKER_TIMES))})
BREAKERS = record(
    {
        "plugin": text(),
        "breakers": listing(
            record(
                {
                    **_BREAKER,
                    "transitions": listing(
                        record(
                            {
                                "id": text(),
                                "from_state": nullable(text()),
                                "to_state": text(),
                                "failure_count": COUNT,
                                "reason": nullable(text()),
                                "job_id": nullable(text()),
                                "created_at": moment(),
                            }
                        )
                    ),
                },
                _BREAKER_TIMES,
            )
        ),
    }
)
BREAKERS_RESET = record(
    {
        "plugin": text(),
        "reset": listing(record({"command": text(), "previous_state": choice(BreakerState), "failure_count": COUNT})),
        "dry_run": boolean(),
    }
)
