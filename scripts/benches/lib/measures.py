"""The table of measures: id, unit and description of each. Does not depend on how they are measured."""

from attrs import frozen

PLUGINS = {"c": "C", "sh": "sh", "python": "Python"}
WORKERS = (1, 2, 8)
HISTORY = "with a long history, over the same with 1,000 finished jobs"


@frozen
class Measure:
    """One measure. The unit × is a ratio."""

    id: str
    name: str
    description: str
    unit: str = "×"


MEASURES = (
    Measure("B1", "one_step_ms", "one caller, synchronous pipeline of one step: median minus that of a bare run", "ms"),
    Measure("B1b", "first_after_idle_ms", "synchronous pipeline of one step, first call after idle time", "ms"),
    Measure("B2", "drain_over_limit", "signed deliveries until all are recorded, over bare runs, `normal`"),
    Measure("B2f", "drain_over_limit", "signed deliveries until all are recorded, over bare runs, `full`"),
    Measure("B3", "accepts_per_second", "signed deliveries accepted while nothing runs", "/s"),
    Measure("B3b", "accept_p99_ms", "time in which 99 % of deliveries are accepted while jobs run", "ms"),
    Measure("B4", "three_steps_over_bare", "synchronous pipeline of three steps, over three bare runs"),
    Measure("B5", "idle_cpu_percent", "idle: processor", "%"),
    Measure("B5", "idle_wakeups", "idle: wake-ups", "/s"),
    Measure("B5", "idle_cpu_percent_1000_schedules", "idle with 1,000 cron schedules: processor", "%"),
    Measure("B5", "idle_wakeups_1000_schedules", "idle with 1,000 cron schedules: wake-ups", "/s"),
    Measure("B5b", "idle_pss_mb", "idle: memory (PSS)", "MB"),
    Measure("B5b", "growth_mb", "memory after many jobs, minus that before the first", "MB"),
    Measure("B6", "start_over_import_trio", "cold start to a healthy response, over `python -c 'import trio'`"),
    Measure("B6", "start_seconds", "cold start to a healthy response", "s"),
    Measure("B6b", "help", "`ductile --help`, over `python -c pass`"),
    Measure("B6b", "config_check", "`ductile config check`, over `python -c pass`"),
    Measure("B7", "drain_over_short", f"jobs per second {HISTORY}"),
    Measure("B7", "accept_over_short", f"deliveries accepted per second {HISTORY}"),
    Measure("B7", "job_over_short", f"`GET /job/{{id}}` per second {HISTORY}"),
    Measure("B7b", "jobs_ms", "`GET /jobs?limit=20` with a long history; the slowest of seven filters", "ms"),
    Measure("B7c", "one_step_over_short", f"synchronous pipeline of one step {HISTORY}"),
    Measure("B7c", "three_steps_over_short", f"synchronous pipeline of three steps {HISTORY}"),
    Measure("B8", "long_queue_over_short", "jobs per second with 100,000 queued, over the same with 3,000"),
    Measure("B8", "first_run_seconds", "start to the first run with 100,000 queued", "s"),
    Measure("B9", "python_over_limit", "a typical Python plugin, two workers, over bare runs"),
    Measure("B10", "sync_over_limit", "16 concurrent callers of a synchronous pipeline of one step, over bare runs"),
    Measure("B11", "sleepers_over_ideal", "200 jobs of `sleep 1` on 50 workers: ideal time over real time"),
    Measure("B12", "big_over_limit", "1 MiB in, 8 MiB out, over bare runs of the same"),
    Measure("B13", "jobs_lost", "`kill -9` while jobs run: jobs lost", "jobs"),
    Measure("B13", "first_run_seconds", "`kill -9` while jobs run: start to the first run", "s"),
    Measure("B15", "at_lateness_ms_p99", "`at` under 1,000 other schedules: 99 % are claimed within", "ms"),
    Measure("B15", "after_lateness_ms_p99", "`after` under 1,000 other schedules: 99 % are claimed within", "ms"),
    Measure("B16", "own_cpu_ms_per_job", "processor time of the service for one delivery and its job", "ms"),
    *(
        Measure(
            "run",
            f"{kind}_{workers}",
            f"{name} plugin, {workers} worker{'s' * (workers > 1)}: jobs per second over bare runs",
        )
        for kind, name in PLUGINS.items()
        for workers in WORKERS
    ),
    Measure("run", "backlog_over_limit", "a queued backlog, C plugin, 2 workers, over bare runs"),
    Measure("run", "enqueue_to_spawn_ms", "one job at a time: median of enqueue to spawn", "ms"),
    Measure("run", "enqueue_to_done_ms", "one job at a time: median of enqueue to recorded result", "ms"),
    Measure("cli", "job_list_down", "`ductile job list --json` of 10,000 jobs, no service, over `python -c pass`"),
    Measure("cli", "job_list_up", "the same with a running service"),
    Measure("idle", "cpu_ms_per_due_job", "20 schedules due in the same minute: processor time per job", "ms"),
    Measure("idle", "busy_cpu_percent", "processor time of the service while jobs run (100 is one core)", "%"),
    Measure("schedule", "start_seconds", "time to start the service with 10,000 schedules", "s"),
    Measure("exchange", "claim_over_publish", "publish until a waiting worker has the message, over publish alone"),
    Measure("exchange", "publish_to_claim_ms", "publish until a waiting worker has the message: median", "ms"),
    Measure("exchange", "reply_over_bare", "request until the reply of a `sh` worker, over a bare run"),
    Measure(
        "exchange", "reply_minus_bare_ms", "request until the reply of a `sh` worker: median minus a bare run", "ms"
    ),
    Measure("exchange", "handled_per_second", "claim and complete, 8 workers, one message at a time each", "/s"),
    Measure("exchange", "long_over_short", "the same with a million handled messages, over 1,000"),
    Measure("exchange", "waiting_cpu_percent", "240 waiting workers: processor", "%"),
    Measure("exchange", "jobs_over_disabled", "jobs per second with the exchange enabled, over disabled"),
    Measure("scale", "start_seconds", "cold start to a healthy response with a long history", "s"),
    Measure("scale", "drain_by_history", "a backlog with a long history, over the same with none"),
    Measure("scale", "long_queue_long_history", "100,000 queued: jobs per second with a long history over a short one"),
)


def find_measure(measure_id: str, name: str) -> Measure:
    """Return the measure with this id and name. Raises ValueError if there is none."""
    (found,) = (measure for measure in MEASURES if (measure.id, measure.name) == (measure_id, name))
    return found
