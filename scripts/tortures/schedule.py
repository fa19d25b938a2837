"""Schedules under kill -9: the service dies around and inside the transaction that fires a slot, or at any moment.

Three schedules fire faster than their jobs end, one for each kind of `if_running`, on one growing ledger. At the end
the checker and the invariants of schedules run.
"""

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import define, frozen

from ductile.core.clock import from_text
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import check
from scripts.tortures.lib.harness import Harness
from scripts.tortures.lib.history import CANCELLED, Effect, History
from scripts.tortures.lib.instance import MAX_OUTSTANDING_POLLS, Instance, ServiceProcess
from scripts.tortures.lib.report import print_progress, print_violations, spread
from scripts.tortures.lib.workload import WorkloadPlugin

PLUGINS = (
    WorkloadPlugin("skips", every="120ms", sleep_ms=500, if_running="skip", sigterm_delay_ms=30, is_exclusive=True),
    WorkloadPlugin("queues", every="170ms", sleep_ms=400, if_running="queue", sigterm_delay_ms=30),
    WorkloadPlugin("cancels", every="230ms", sleep_ms=900, if_running="cancel", sigterm_delay_ms=30, is_exclusive=True),
)
MAX_OPEN_JOBS = {"skips": 1, "queues": MAX_OUTSTANDING_POLLS + 1, "cancels": 1}
"""Jobs of one schedule that may be unfinished at the same time."""
FAILPOINTS = ("schedule.before_fire", "schedule.after_insert", "schedule.after_commit")
FAILPOINT_TIMEOUT = 60.0
PROGRESS_INTERVAL = 25
"""Runs between two lines of progress."""
CLOCK_SLACK = timedelta(milliseconds=5)
"""The wall and the monotonic clock are read one after the other, and the wall clock is adjusted now and then."""


@frozen
class ScheduleOptions:
    """`runs` services, each of which dies."""

    runs: int
    seed: int
    workers: int = 4


@frozen
class ScheduleDeath:
    """The end of one run: at a passage of a failpoint, or some time after ready."""

    failpoint: str | None
    delay: float

    @classmethod
    def drawn(cls, rng: random.Random, run: int) -> "ScheduleDeath":
        """Draw the end of a run: any moment in every fourth one, the failpoints in turn in the others."""
        if run % 4 == 3:
            return cls(None, rng.uniform(0.0, 1.6))
        return cls(f"{FAILPOINTS[run % 4]}:{rng.randint(1, 12)}", FAILPOINT_TIMEOUT)


@define
class ScheduleTorture(Harness):
    """All runs of one test."""

    def run(self, options: ScheduleOptions) -> dict[str, Any]:
        """Run all deaths and the checker; return the summary."""
        become_subreaper()
        rng, begun = random.Random(options.seed), time.monotonic()
        died, inconsistent = Counter[str](), list[str]()
        self.instance.build()
        for run in range(options.runs):
            died[self.run_service(ScheduleDeath.drawn(rng, run))] += 1
            with self.instance.read_ledger() as db:
                inconsistent += [f"after run {run} {found}" for found in inconsistent_schedules(db)]
            if (run + 1) % PROGRESS_INTERVAL == 0:
                print_progress(f"run {run + 1}: {dict(died)}, {time.monotonic() - begun:.0f} s")
        self.clear_backoffs()
        rest_seconds = self.finish_all_jobs()
        times = {"seconds": time.monotonic() - begun, "rest_seconds": rest_seconds}
        return self._summary(options, died, inconsistent, times)

    def run_service(self, death: ScheduleDeath) -> str:
        """Run one service from its start to its death; return where it died."""
        service = self.launch(death.failpoint)
        if death.failpoint is None:
            self.wait_until_ready(service)
        has_ended = service.wait_for_exit(death.delay)
        self.kill(service)
        return self._place_of_death(service, death, has_ended=has_ended)

    def _place_of_death(self, service: ServiceProcess, death: ScheduleDeath, *, has_ended: bool) -> str:
        if has_ended and service.process.returncode != -9:
            self.faults.append(f"a service exited with {service.process.returncode}: {service.stderr[-3:]}")
        if death.failpoint is None:
            return "any moment"
        if not has_ended:
            self.faults.append(f"a service never reached {death.failpoint}")
        return death.failpoint.partition(":")[0]

    def _summary(
        self, options: ScheduleOptions, died: Counter[str], inconsistent: list[str], times: dict[str, float]
    ) -> dict[str, Any]:
        history = self.history(())
        violations = {**check(history), **{name: list(rule(history)) for name, rule in SCHEDULE_INVARIANTS.items()}}
        violations["S8 schedules are consistent after every death"] = inconsistent
        print_violations(violations)
        statuses = Counter((job["plugin"], job["status"]) for job in history.jobs.values())
        return {
            "torture": "schedule",
            "runs": options.runs,
            "seed": options.seed,
            "died": dict(died),
            "jobs": {one.name: {s: n for (p, s), n in sorted(statuses.items()) if p == one.name} for one in PLUGINS},
            "cancelled_while_running": len(list(_cancelled_processes(history))),
            "slots_skipped": len(history.rows("SELECT 1 FROM journal WHERE kind = 'scheduler.skipped'")),
            "violations": {name: len(found) for name, found in violations.items()},
            "ready_seconds": spread(self.ready_seconds),
            **{name: round(value, 1) for name, value in times.items()},
        }


OPEN_BY_PLUGIN = "SELECT plugin, COUNT(*) FROM job_queue WHERE status IN ('queued', 'running') GROUP BY plugin"
BEHIND_LAST_JOB = """
    SELECT plugin, last_slot_at, last_job_id FROM schedule_entries AS entry
     WHERE last_slot_at < (SELECT MAX(slot_at) FROM job_queue WHERE plugin = entry.plugin)
        OR last_job_id <> (SELECT id FROM job_queue WHERE plugin = entry.plugin ORDER BY slot_at DESC LIMIT 1)
"""


# ── invariants of schedules ───────────────────────────────────────────────────────────────────────────────────────────


def inconsistent_schedules(db: sqlite3.Connection) -> Iterator[str]:
    """Find violations in the ledger of a dead service: too many unfinished jobs, an entry behind its last job."""
    for plugin, count in db.execute(OPEN_BY_PLUGIN):
        if count > MAX_OPEN_JOBS[plugin]:
            yield f"{plugin} has {count} unfinished jobs"
    for plugin, slot, job_id in db.execute(BEHIND_LAST_JOB):
        yield f"the entry of {plugin} ({slot}, {job_id}) is behind its last job"


def slots_have_one_job(history: History) -> Iterator[str]:
    """Every job has a slot, and no slot has two jobs."""
    slots = Counter((job["plugin"], job["schedule_id"], job["slot_at"]) for job in history.jobs.values())
    yield from (f"{slot} has {count} jobs" for slot, count in slots.items() if count > 1 or None in slot)


def exclusive_jobs_do_not_overlap(history: History) -> Iterator[str]:
    """No process of `skip` or `cancel` ran together with an earlier one, not even one of a dead service."""
    yield from (
        f"{effect.job_id} started while another process was running"
        for effect in history.effects
        if effect.what == "overlap"
    )


def processes_end_before_their_jobs(history: History) -> Iterator[str]:
    """A job that was cancelled while it ran is dead only after its process has ended."""
    for job, stopped_at in _cancelled_processes(history):
        if stopped_at > from_text(job["completed_at"]) + CLOCK_SLACK:
            yield f"{job['id']} was dead at {job['completed_at']}, its process ended at {stopped_at}"


def _cancelled_processes(history: History) -> Iterator[tuple[Mapping[str, Any], datetime]]:
    """Yield the jobs that were cancelled while they ran, and when their processes ended."""
    boot = datetime.now(UTC) - timedelta(microseconds=time.monotonic_ns() / 1000)
    last: dict[str, Effect] = {effect.job_id: effect for effect in history.effects if effect.what == "stopped"}
    for job in history.jobs.values():
        stopped = last.get(job["id"])
        is_cancelled = job["status"] == "dead" and job["last_error"] == CANCELLED
        if stopped and is_cancelled and stopped.attempt == job["attempt"]:
            yield job, boot + timedelta(microseconds=stopped.at / 1000)


SCHEDULE_INVARIANTS = {
    "S8 slots have one job": slots_have_one_job,
    "S8 exclusive jobs do not overlap": exclusive_jobs_do_not_overlap,
    "S8 processes end before their jobs": processes_end_before_their_jobs,
}


def torture(directory: Path, options: ScheduleOptions) -> dict[str, Any]:
    """Run the test in an empty directory; return the summary with the number of violations of each invariant."""
    instance = Instance(directory, workers=options.workers, plugins=PLUGINS, max_attempts=2)
    return ScheduleTorture(instance).run(options)
