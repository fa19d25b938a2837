"""The harness of the torture tests that kill services: it starts and ends them and checks each one that becomes ready.

At the end the last service runs all remaining jobs, and `history` collects the records for the checker.
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import define, field

from ductile.core.clock import to_text
from ductile.core.instance.failpoints import NAMES
from scripts.tortures.lib.clients import Acknowledgement
from scripts.tortures.lib.history import History
from scripts.tortures.lib.instance import Instance, ServiceProcess, cpu_seconds, start_ticks

STALL_SECONDS = 180.0
"""Longer than the backoff of a job that was hit three times; after the fourth time it is dead."""
MAX_WAIT_FACTOR = 20.0
EXCHANGE_FAILPOINTS = frozenset(name for name in NAMES if name.startswith("exchange."))
"""Failpoints that only the workload of the exchange torture reaches."""


@define
class Harness:
    """The services of one instance, and what was observed of them."""

    instance: Instance
    deaths: list[str] = field(factory=list)
    ready_seconds: list[float] = field(factory=list)
    ready_cpu_seconds: list[float] = field(factory=list)
    stale_running: list[str] = field(factory=list)
    orphans: list[str] = field(factory=list)
    wrong_counters: list[str] = field(factory=list)
    faults: list[str] = field(factory=list)

    def launch(self, failpoint: str | None = None) -> ServiceProcess:
        return self.instance.launch({"DUCTILE_FAILPOINT": failpoint} if failpoint else None)

    def wait_until_ready(self, service: ServiceProcess, *, may_die: bool = False) -> bool:
        """Return True when the service is ready, after the checks of that moment.

        A service that does not become ready is a fault, unless it `may_die` at a failpoint.
        """
        waiting_since = to_text(datetime.now(UTC))
        if not service.wait_until_ready():
            if not may_die:
                self.faults.append(f"a service did not become ready: {service.stderr[-3:]}")
            return False
        assert service.ready_seconds is not None
        self.ready_seconds.append(service.ready_seconds)
        pid = service.process.pid
        try:
            started = start_ticks(pid)
            self.ready_cpu_seconds.append(cpu_seconds(pid))
        except OSError:  # it has already died at its failpoint
            return True
        self.orphans += [
            f"process {orphan} of an earlier service is alive while service {pid} is ready"
            for orphan, ticks in self.instance.plugin_processes().items()
            if ticks < started
        ]
        with self.instance.read_ledger() as db:
            self.stale_running += [
                f"{row[0]} has been running since before service {pid}"
                for row in db.execute(STALE_RUNNING, (waiting_since,))
            ]
            self.wrong_counters += [f"{row[0]} {row[1]}, in service {pid}" for row in db.execute(WRONG_COUNTERS)]
        return True

    def kill(self, service: ServiceProcess) -> None:
        """Kill a service, or record the death of one that has already ended."""
        self.deaths.append(service.kill())
        reap_children()

    def finish_all_jobs(self) -> float:
        """Run all remaining jobs without schedules, stop the service, and return the seconds that the jobs took."""
        self.instance.configure(scheduled=False)
        service = self.launch()
        self.wait_until_ready(service)
        begun = last_progress = time.monotonic()
        before = -1
        while (
            (left := self.open_jobs())
            and time.monotonic() - last_progress < STALL_SECONDS
            and not service.wait_for_exit(0.1)
        ):
            if left != before:
                before, last_progress = left, time.monotonic()
        seconds = time.monotonic() - begun
        code = service.stop()
        if code != 0:
            self.faults.append(f"the last service exited with {code}: {service.stderr[-3:]}")
        reap_children()
        self.orphans += [f"process {pid} is alive after the end" for pid in self.instance.plugin_processes()]
        return seconds

    def open_jobs(self) -> int:
        with self.instance.read_ledger() as db:
            count: int = db.execute(OPEN_JOBS).fetchone()[0]
            return count

    def clear_backoffs(self) -> None:
        """Recover and drain with one more service, then make all delayed jobs due."""
        service = self.launch()
        self.wait_until_ready(service)
        if (code := service.stop()) != 0:
            self.faults.append(f"a drained service exited with {code}: {service.stderr[-3:]}")
        reap_children()
        db = sqlite3.connect(self.instance.ledger)
        with db:
            db.execute("UPDATE job_queue SET next_retry_at = failed_at WHERE next_retry_at IS NOT NULL")
        db.close()

    def history(self, acknowledged: Sequence[Acknowledgement], **more: Any) -> History:
        """Collect the records of the instance and these observations."""
        observed = {
            "deaths": self.deaths,
            "stale_running": self.stale_running,
            "orphans": self.orphans,
            "wrong_counters": self.wrong_counters,
            "faults": self.faults,
        }
        return History.of(self.instance, acknowledged, **{**observed, **more})


OPEN_JOBS = "SELECT COUNT(*) FROM job_queue WHERE status IN ('queued', 'running')"
STALE_RUNNING = "SELECT id FROM job_queue WHERE claimed_by > '' AND started_at < ?"
WRONG_COUNTERS = """
    SELECT id, 'waits for ' || waits_for || ' jobs, which do not exist' FROM job_queue AS waiting
     WHERE is_join = 1 AND status = 'queued'
       AND waits_for <> (SELECT COUNT(*) FROM job_queue
                          WHERE join_id = waiting.id AND status IN ('queued', 'running'))
    UNION ALL
    SELECT id, 'counts ' || open_jobs || ' open jobs, which do not exist' FROM job_queue AS root
     WHERE open_jobs IS NOT NULL AND tree_completed_at IS NULL
       AND open_jobs <> (status IN ('queued', 'running'))
                      + (SELECT COUNT(*) FROM job_queue
                          WHERE root_job_id = root.id AND root_job_id <> id AND status IN ('queued', 'running'))
    UNION ALL
    SELECT id, 'is closed with ' || open_jobs || ' open jobs' FROM job_queue
     WHERE tree_completed_at IS NOT NULL AND open_jobs > 0
"""


def reap_children() -> None:
    """Reap all exited children. Must not be called while a service is running or not yet waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def lenient_wait(seconds: float, leniency: float) -> float:
    """Return how long to wait for what takes this long on an idle host. It is finite for an infinite leniency."""
    return seconds * min(leniency, MAX_WAIT_FACTOR)
