"""kill -9 at random moments: put load on a service, kill it, start the next one; all on one growing ledger.

Some kills hit a service during its start, its recovery, or just after it is ready; some happen at a failpoint.
"""

import os
import random
import sqlite3
import statistics
import time
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import trio
from attrs import define, frozen

from ductile import __version__
from ductile.core.instance.failpoints import NAMES
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import check
from scripts.tortures.lib.clients import WorkloadClients
from scripts.tortures.lib.expected_runs import expected_rows_of
from scripts.tortures.lib.harness import EXCHANGE_FAILPOINTS, Harness
from scripts.tortures.lib.instance import Instance
from scripts.tortures.lib.report import percentile, print_progress, print_violations, spread

PROGRESS_INTERVAL = 25
"""Cycles between two lines of progress."""
UNREACHED = frozenset({"drain.started", "prune.half_way", *EXCHANGE_FAILPOINTS})
"""Failpoints that this workload does not reach."""


@frozen
class KillOptions:
    """The same seed gives the same plan, not the same interleaving."""

    cycles: int
    seed: int
    jobs_per_second: float = 20.0
    workers: int = 4
    hurry: bool = False
    """Clear the backoff of jobs that were hit several times before the last start."""


@frozen
class Kill:
    """The end of one cycle."""

    when: Literal["start", "recovery", "ready", "response"]
    delay: float
    """A share of the usual start time (start), or seconds after the first log line (recovery) or after ready (ready).

    For `response`, the longest wait until a client gets the end of a run, which is the moment of the kill.
    """
    failpoint: str | None = None

    @classmethod
    def drawn(cls, rng: random.Random) -> "Kill":
        kind = rng.random()
        if kind < 0.10:
            return cls("start", rng.uniform(0.0, 1.0))
        if kind < 0.25:
            return cls("recovery", rng.uniform(0.0, 0.06))
        if kind < 0.40:
            return cls("ready", rng.uniform(0.0, 0.05))
        if kind < 0.50:
            name = rng.choice(sorted(NAMES - UNREACHED))
            return cls("ready", 0.8, f"{name}:{rng.randint(1, 12)}")
        if kind < 0.90:
            return cls("ready", rng.uniform(0.05, 0.9))
        return cls("response", 4.0)


@define
class KillTorture(Harness):
    """All cycles of one test."""

    def run(self, options: KillOptions) -> dict[str, Any]:
        """Run all cycles and the checker; return the summary."""
        become_subreaper()  # adopt and reap the processes of dead services
        rng = random.Random(options.seed)
        self.instance.build()
        record = self.instance.path / "acknowledged"
        clients = WorkloadClients(self.instance, options.jobs_per_second, options.seed, record)
        clients.start()
        begun = time.monotonic()
        try:
            for cycle in range(1, options.cycles + 1):
                self.cycle(clients, Kill.drawn(rng))
                if cycle % PROGRESS_INTERVAL == 0 or cycle == options.cycles:
                    self._print_progress(f"cycle {cycle}/{options.cycles}", clients, begun)
        finally:
            clients.stop()
        if options.hurry:
            self.clear_backoffs()
        rest_seconds = self.finish_all_jobs()
        return self._summary(options, clients, seconds=time.monotonic() - begun, rest_seconds=rest_seconds)

    def cycle(self, clients: WorkloadClients, kill: Kill) -> None:
        """Run one service from its start to its death."""
        service = self.launch(kill.failpoint)
        delay = kill.delay
        match kill.when:
            case "start":
                delay *= statistics.median(self.ready_seconds[-9:]) if self.ready_seconds else 1.0
            case "recovery":
                service.wait_until_starting()
            case "ready" if self.wait_until_ready(service, may_die=kill.failpoint is not None):
                clients.use_url(service.url)
            case "response" if self.wait_until_ready(service):
                clients.use_url(service.url, only_waiting=True)
                clients.wait_for_run_end(delay)
                delay = 0.0
        has_ended = service.wait_for_exit(delay)
        clients.use_url(None)
        if has_ended and service.process.returncode != -9:
            self.faults.append(f"a service exited with {service.process.returncode}: {service.stderr[-3:]}")
        self.kill(service)

    def _print_progress(self, done: str, clients: WorkloadClients, begun: float) -> None:
        times = sorted(self.ready_seconds) or [0.0]
        print_progress(
            f"{done}: {len(clients.acknowledged)} acknowledged, {self._ledger_megabytes():.0f} MB, "
            f"ready p50 {percentile(times, 50):.2f} s max {times[-1]:.2f} s, "
            f"{len(self.stale_running)} stale running jobs, {len(self.orphans)} orphans, {len(self.faults)} faults, "
            f"{time.monotonic() - begun:.0f} s"
        )

    def _ledger_megabytes(self) -> float:
        return self.instance.ledger.stat().st_size / 1e6 if self.instance.ledger.exists() else 0.0

    def _summary(
        self, options: KillOptions, clients: WorkloadClients, *, seconds: float, rest_seconds: float
    ) -> dict[str, Any]:
        internal_errors = [response for response in clients.refused if response.startswith("500")]
        history = self.history(clients.acknowledged, faults=[*self.faults, *internal_errors])
        violations, counts = check(history), expected_rows_of(history).counts
        print_violations(violations)
        return {
            "torture": "kill",
            "cycles": options.cycles,
            "seed": options.seed,
            "workers": options.workers,
            "jobs_per_second": options.jobs_per_second,
            "acknowledged": len(clients.acknowledged),
            "unanswered": clients.unanswered,
            "refused": len(clients.refused),
            "jobs": len(history.jobs),
            "attempts": sum(map(len, history.attempts.values())),
            **{name: counts[name] for name in ("runs", "steps", "joins", "hooks")},
            "scheduled": sum(job["slot_at"] is not None for job in history.jobs.values()),
            "waited": clients.completed,
            "excused": len(history.excused),
            "lost_attempts": len(history.rows("SELECT 1 FROM journal WHERE kind = 'job.recovered'")),
            "by_status": {row["status"]: row["n"] for row in history.rows(BY_STATUS)},
            "violations": {name.split()[0]: len(found) for name, found in violations.items()},
            "ready_seconds": spread(self.ready_seconds),
            "ready_cpu_seconds": spread(self.ready_cpu_seconds),
            "load_average": round(os.getloadavg()[2], 1),
            "seconds": round(seconds, 1),
            "rest_seconds": round(rest_seconds, 1),
            "ledger_megabytes": round(self._ledger_megabytes(), 1),
            "versions": {
                "ductile": __version__,
                "python": python_version(),
                "sqlite": sqlite3.sqlite_version,
                "trio": trio.__version__,
            },
        }


BY_STATUS = "SELECT status, COUNT(*) AS n FROM job_queue GROUP BY status ORDER BY status"


def torture(directory: Path, options: KillOptions) -> dict[str, Any]:
    """Run the test in an empty directory; return the summary with the number of violations of each invariant."""
    return KillTorture(Instance(directory, workers=options.workers)).run(options)
