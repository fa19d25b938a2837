"""Misbehaving plugins together with good jobs: in each round every plugin once, in random order, on one service.

Every plugin must end as the catalogue says, good jobs must succeed without a long wait, and after each round no
process, descriptor, slot or memory may be left.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import from_text
from scripts.tortures.lib.report import percentile, print_progress, print_violations
from tests.e2e.zoo_service import (
    FINAL_STATUSES,
    MAX_MEMORY_GROWTH,
    Resources,
    ZooService,
    plugin_name,
    poll,
    running_zoo,
)
from tests.zoo.catalogue import HOSTILE_PLUGINS, HostilePlugin, break_entrypoint

MEMORY_SETTLE_SECONDS = 4.0
"""The allocator returns memory once the service has been idle for two seconds."""
EXCLUDED = ("Z60", "Z62", "Z64", "Z65")
"""They end the service, flood it, or can run only once. tests/e2e covers them."""
PLUGINS = tuple(plugin for plugin in HOSTILE_PLUGINS if plugin.id not in EXCLUDED)
GOOD_JOBS_PER_PLUGIN = 2
MAX_WAIT_SECONDS = 2.0
MAX_OPEN_JOBS_PER_WORKER = 2
IDLE_TIMEOUT = 240.0
GOOD_JOBS_SUCCEED = "good jobs succeed"
GOOD_JOBS_DO_NOT_WAIT = "good jobs do not wait"
OUTCOMES = "plugins have the expected outcome"
NOTHING_LEFT = "nothing is left"
MEMORY = "memory"
RULES = (GOOD_JOBS_SUCCEED, GOOD_JOBS_DO_NOT_WAIT, OUTCOMES, NOTHING_LEFT, MEMORY)


@frozen
class ZooOptions:
    """`rounds`, each with this `share` of the plugins."""

    rounds: int
    seed: int
    share: float = 1.0
    workers: int = 8
    leniency: float = 1.0


@define
class ZooTorture:
    """One service with all plugins, and the violations."""

    zoo: ZooService
    options: ZooOptions
    rng: random.Random
    violations: dict[str, list[str]] = field(factory=lambda: {rule: [] for rule in RULES})
    waits: list[float] = field(factory=list)
    resident: list[int] = field(factory=list)
    """Memory after each round, in bytes."""
    jobs: int = 0

    def run_round(self, plugins: Sequence[HostilePlugin]) -> None:
        order: list[HostilePlugin | None] = [*plugins, *[None] * (len(plugins) * GOOD_JOBS_PER_PLUGIN)]
        self.rng.shuffle(order)
        jobs = {self._post(plugin): plugin for plugin in order}
        self.jobs += len(jobs)
        if not poll(self.zoo.is_idle, bool, timeout=IDLE_TIMEOUT):
            self.violations[NOTHING_LEFT].append("some jobs did not end")
        self.check_jobs(jobs)
        try:
            self.zoo.check_nothing_is_left_of(*jobs)
        except AssertionError as error:
            self.violations[NOTHING_LEFT].append(str(error).replace("\n", " ")[:300])
        limit = self.resident[1] + MAX_MEMORY_GROWTH if len(self.resident) > 1 else 0
        self.resident.append(
            poll(lambda: Resources.of(self.zoo.pid).resident, lambda now: now <= limit, timeout=MEMORY_SETTLE_SECONDS)
        )

    def _post(self, plugin: HostilePlugin | None) -> str:
        """Request a job when the queue is short enough; None requests a good job."""
        limit = self.options.workers * MAX_OPEN_JOBS_PER_WORKER
        poll(lambda: self._open_jobs() < limit, bool, timeout=IDLE_TIMEOUT)
        return self.zoo.service.post("good") if plugin is None else self.zoo.start_job(plugin)

    def _open_jobs(self) -> int:
        (row,) = self.zoo.home.rows("SELECT COUNT(*) AS n FROM job_queue WHERE status IN ('queued', 'running')")
        count: int = row["n"]
        return count

    def check_jobs(self, jobs: dict[str, HostilePlugin | None]) -> None:
        """Check the outcome of each job of a round; None is a good job."""
        rows = {
            row["id"]: row for row in self.zoo.home.rows("SELECT id, status, created_at, last_error FROM job_queue")
        }
        started = {row["job_id"]: row["started_at"] for row in self.zoo.home.rows(FIRST_STARTS)}
        for job_id, plugin in jobs.items():
            status, error = rows[job_id]["status"], rows[job_id]["last_error"]
            if plugin is None:
                waited = from_text(started[job_id]) - from_text(rows[job_id]["created_at"])
                self.waits.append(waited.total_seconds())
                if status != "succeeded":
                    self.violations[GOOD_JOBS_SUCCEED].append(f"{job_id} is {status}: {error}")
            elif status != FINAL_STATUSES[plugin.expected][0]:
                self.violations[OUTCOMES].append(f"{plugin} {job_id} is {status}: {error}")

    def check_all_rounds(self) -> None:
        """Check the waits and the memory over all rounds."""
        wait = percentile(sorted(self.waits), 99)
        if wait > MAX_WAIT_SECONDS * self.options.leniency:
            self.violations[GOOD_JOBS_DO_NOT_WAIT].append(f"p99 {wait:.2f} s")
        base = (self.resident[1:2] or self.resident)[0]  # the largest plugins may run together only in the second round
        if self.resident[-1] > base + MAX_MEMORY_GROWTH:
            self.violations[MEMORY].append(f"{base} bytes grew to {self.resident[-1]}")


FIRST_STARTS = "SELECT job_id, started_at FROM job_log WHERE attempt = 1"


def torture(directory: Path, options: ZooOptions) -> dict[str, Any]:
    """Run all rounds; return the summary with the number of violations of each rule."""
    begun = time.monotonic()
    with running_zoo(directory / "ductile", PLUGINS, workers=options.workers) as zoo:
        for plugin in PLUGINS:
            if plugin.breakage is not None:
                break_entrypoint(zoo.home.path / "plugins" / plugin_name(plugin) / "run", plugin.breakage)
        test = ZooTorture(zoo, options, rng := random.Random(options.seed))
        plugins = rng.sample(PLUGINS, max(1, round(len(PLUGINS) * options.share)))
        for number in range(options.rounds):
            test.run_round(plugins)
            found = sum(map(len, test.violations.values()))
            print_progress(
                f"round {number + 1}: {test.jobs} jobs, {found} violations, {time.monotonic() - begun:.0f} s"
            )
        test.check_all_rounds()
    print_violations(test.violations)
    waits = sorted(test.waits)
    return {
        "torture": "zoo",
        "rounds": options.rounds,
        "seed": options.seed,
        "plugins": len(PLUGINS),
        "jobs": test.jobs,
        "job_wait_seconds": {"p50": round(percentile(waits, 50), 3), "p99": round(percentile(waits, 99), 3)},
        "resident_mebibytes": [round(one / (1 << 20), 1) for one in test.resident],
        "violations": {rule: len(found) for rule, found in test.violations.items()},
    }
