"""What is measured, and what each number should be: one row per measure, in the order of the report.

B1 to B16 are the suite; the other rows have the name of their bench instead. Knows nothing of how anything is measured.
"""

from typing import Any

from attrs import frozen


@frozen
class Goal:
    """A number that must be reached, and one that would be good."""

    must: float
    aim: float | None
    at_least: bool

    def bound(self, number: float | None) -> dict[str, float] | None:
        if number is None:
            return None
        return {"at_least" if self.at_least else "at_most": number}

    def reached(self, value: float, number: float | None) -> bool | None:
        if number is None:
            return None
        return value >= number if self.at_least else value <= number


def at_least(must: float, aim: float | None = None) -> Goal:
    return Goal(must, aim, at_least=True)


def at_most(must: float, aim: float | None = None) -> Goal:
    return Goal(must, aim, at_least=False)


@frozen
class Target:
    """One row of the report. `by_mode`: measured in each mode of the disk that was asked for."""

    id: str
    measure: str
    what: str
    unit: str = "×"
    goal: Goal | None = None
    full: Goal | None = None
    """The goal with synchronous = full, where it is another."""
    by_mode: bool = False
    only: str | None = None
    """The one mode in which it has a meaning."""

    def goal_in(self, mode: str) -> Goal | None:
        return self.full if mode == "full" and self.full else self.goal

    def modes_of(self, asked: tuple[str, ...]) -> tuple[str | None, ...]:
        """The modes that should each have a row; None is whichever it was measured in."""
        if self.only:
            return (self.only,) if self.only in asked else ()
        return asked if self.by_mode else (None,)


HISTORY = "a long history behind it, over the same with 1,000 finished jobs"
PLUGINS = {"c": "C", "sh": "sh", "python": "Python"}
WORKERS = (1, 2, 8)

SUITE = (
    Target(
        "B1",
        "one_step_ms",
        "one caller, synchronous pipeline of one step: median minus that of a bare run",
        "ms",
        at_most(1.5, 1.0),
        at_most(3, 1.5),
        by_mode=True,
    ),
    Target(
        "B1b", "first_after_idle_ms", "the same, first call after idle time", "ms", at_most(7, 4), at_most(8, 4), True
    ),
    Target(
        "B2",
        "drain_over_limit",
        "signed deliveries until all are recorded, over bare runs",
        "×",
        at_least(0.30, 0.36),
        only="normal",
    ),
    Target("B2f", "drain_over_limit", "the same, every commit on the disk", "×", at_least(0.27, 0.33), only="full"),
    Target(
        "B3",
        "accept_over_bare",
        "deliveries taken, over a bare 202 from the same server code",
        "×",
        at_least(0.35),
        None,
        True,
    ),
    Target("B3", "accepts_per_second", "deliveries taken", "/s", at_least(2000, 3200), None, True),
    Target(
        "B3b", "accept_p99_ms", "99 % of deliveries are taken within, while jobs run", "ms", at_most(15, 10), None, True
    ),
    Target(
        "B4",
        "three_steps_over_bare",
        "synchronous pipeline of three steps, over three bare runs",
        "×",
        at_most(3.0, 2.2),
        at_most(4, 2.5),
        True,
    ),
    Target("B5", "idle_cpu_percent", "idle: processor", "%", at_most(0.05, 0.005)),
    Target("B5", "idle_wakeups", "idle: wake-ups", "/s", at_most(2, 0.2)),
    Target(
        "B5", "idle_cpu_percent_1000_schedules", "idle with 1,000 cron schedules: processor", "%", at_most(0.05, 0.005)
    ),
    Target("B5", "idle_wakeups_1000_schedules", "idle with 1,000 cron schedules: wake-ups", "/s", at_most(2, 0.2)),
    Target("B5b", "idle_pss_mb", "idle: memory (PSS)", "MB", at_most(60, 27)),
    Target("B5b", "growth_mb", "memory after many jobs, minus that before the first", "MB", at_most(5, 2)),
    Target(
        "B6",
        "start_over_import_trio",
        "cold start to a healthy answer, over `python -c 'import trio'`",
        "×",
        at_most(2.5, 1.6),
    ),
    Target("B6", "start_seconds", "cold start to a healthy answer", "s", at_most(0.8, 0.25)),
    Target("B6b", "help", "`ductile --help`, over `python -c pass`", "×", at_most(8, 5)),
    Target("B6b", "config_check", "`ductile config check`, over `python -c pass`", "×", at_most(8, 5)),
    Target("B7", "drain_over_short", f"jobs per second with {HISTORY}", "×", at_least(0.85, 0.95)),
    Target("B7", "accept_over_short", f"deliveries taken with {HISTORY}", "×", at_least(0.85, 0.95)),
    Target("B7", "job_over_short", f"`GET /job/{{id}}` per second with {HISTORY}", "×", at_least(0.85, 0.95)),
    Target(
        "B7b",
        "jobs_ms",
        "`GET /jobs?limit=20` with a long history: newest, by status, by plugin, by both; the slowest",
        "ms",
        at_most(5, 2),
    ),
    Target("B7c", "one_step_over_short", f"B1 with {HISTORY}", "×", at_most(1.2, 1.05)),
    Target("B7c", "three_steps_over_short", f"B4 with {HISTORY}", "×", at_most(1.2, 1.05)),
    Target(
        "B8",
        "long_queue_over_short",
        "jobs per second with 100,000 queued, over the same with 3,000",
        "×",
        at_least(0.9, 0.95),
    ),
    Target("B8", "first_run_seconds", "start to the first run with 100,000 queued", "s", at_most(0.6, 0.35)),
    Target(
        "B9", "python_over_limit", "an ordinary Python plugin, two workers, over bare runs", "×", at_least(0.92, 0.97)
    ),
    Target(
        "B10",
        "sync_over_limit",
        "16 callers of a synchronous pipeline of one step, over bare runs",
        "×",
        at_least(0.26, 0.33),
        None,
        True,
    ),
    Target(
        "B11",
        "sleepers_over_ideal",
        "200 jobs of `sleep 1` on 50 workers: ideal time over real time",
        "×",
        at_least(0.90, 0.96),
    ),
    Target("B12", "big_over_limit", "1 MiB in, 8 MiB out, over bare runs of the same", "×", at_least(0.35, 0.5)),
    Target("B13", "jobs_lost", "`kill -9` in mid-drain: jobs lost", "jobs", at_most(0, 0)),
    Target("B13", "first_run_seconds", "the same: start to the first run", "s", at_most(0.6, 0.35)),
    Target(
        "B14",
        "fan_out_ms",
        "one event to 100 jobs: end of the parent to the last child queued, one transaction",
        "ms",
        at_most(20, 8),
    ),
    Target(
        "B15", "at_lateness_ms_p99", "`at` under 1,000 other schedules: 99 % are claimed within", "ms", at_most(10, 3)
    ),
    Target(
        "B15",
        "after_lateness_ms_p99",
        "`after` under 1,000 other schedules: 99 % are claimed within",
        "ms",
        at_most(10, 3),
    ),
    Target(
        "B16",
        "own_cpu_ms_per_job",
        "our own processor time for a job in B2, without the plugin",
        "ms",
        at_most(1.0, 0.7),
        None,
        True,
    ),
)

MORE = (
    *(
        Target(
            "run",
            f"{kind}_{workers}",
            f"{name} plugin, {workers} worker{'s' * (workers > 1)}: jobs per second over bare runs",
        )
        for kind, name in PLUGINS.items()
        for workers in WORKERS
    ),
    Target(
        "run",
        "backlog_over_limit",
        "a backlog, C plugin, 2 workers, over bare runs",
        "×",
        at_least(0.28, 0.35),
        None,
        True,
    ),
    Target("run", "floor_over_limit", "rows and process of a job in a plain loop and nothing else, over bare runs"),
    Target("run", "floor_cpu_ms", "the same: processor time for a job, without the plugin", "ms"),
    Target("run", "enqueue_to_spawn_ms", "one job at a time: median of enqueue to spawn", "ms", at_most(1.5)),
    Target("run", "enqueue_to_done_ms", "one job at a time: median of enqueue to recorded result", "ms"),
    Target(
        "http",
        "floor_over_limit",
        "delivery, rows and process of a job in a plain loop and nothing else, over bare runs",
    ),
    Target("http", "floor_cpu_ms", "the same: processor time for a delivery with its job, without the plugin", "ms"),
    Target("ledger", "group_commit", "durable enqueues by 64 callers, over one commit each", "×", at_least(3)),
    Target("ledger", "claim_and_record", f"claim and record with {HISTORY}", "×", at_most(1.5)),
    Target("ledger", "memory", f"memory of the ledger with {HISTORY}", "×", at_most(1.2)),
    Target(
        "cli",
        "job_list_down",
        "`ductile job list --json` of 10,000 jobs, no service, over `python -c pass`",
        "×",
        at_most(8),
    ),
    Target("cli", "job_list_up", "the same beside a service", "×", at_most(8)),
    Target(
        "idle",
        "cpu_ms_per_due_job",
        "20 schedules due at the turn of the minute: processor time each",
        "ms",
        at_most(5),
    ),
    Target("idle", "busy_cpu_percent", "while jobs run: our own processor time (100 is one core)", "%"),
    Target("schedule", "load_seconds", "10,000 new schedules: first look", "s", at_most(2)),
    Target("schedule", "load_again_seconds", "10,000 known schedules: first look", "s", at_most(2)),
    Target("schedule", "start_seconds", "10,000 schedules: start of the service", "s", at_most(5)),
    Target("schedule", "transactions", "1,000 due at one moment: transactions", "", at_most(20)),
    Target("schedule", "burst_seconds", "1,000 due at one moment: until all jobs are durable", "s", at_most(1)),
    Target("scale", "start_seconds", "cold start to a healthy answer with a long history", "s", at_most(0.8)),
    Target("scale", "drain_by_history", "a backlog with a long history, over the same with none"),
    Target(
        "scale",
        "long_queue_long_history",
        "100,000 queued and a long history: jobs per second over the same with 1,000 finished",
    ),
)


def target(key: str, measure: str) -> Target:
    """The row that this measure fills."""
    (found,) = (one for one in (*SUITE, *MORE) if (one.id, one.measure) == (key, measure))
    return found


def judged(row: Target, value: float, mode: str) -> dict[str, Any]:
    """What was asked of the value, and whether it is so."""
    goal = row.goal_in(mode)
    if goal is None:
        return {"must": None, "aim": None, "ok": None, "reaches_aim": None}
    return {
        "must": goal.bound(goal.must),
        "aim": goal.bound(goal.aim),
        "ok": goal.reached(value, goal.must),
        "reaches_aim": goal.reached(value, goal.aim),
    }
