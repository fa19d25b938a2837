"""A long run: very many plugin runs on one service, which must then use no more resources than after the warm-up.

Memory, descriptors, threads and the write-ahead log are measured while nothing runs. Old jobs are pruned, so that the
ledger does not grow either.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.clients import JobClient
from scripts.tortures.lib.history import read_effects
from scripts.tortures.lib.instance import TOKEN, Instance, ServiceProcess
from scripts.tortures.lib.report import print_progress, print_violations
from scripts.tortures.lib.workload import WorkloadPlugin

PLUGINS = (WorkloadPlugin("keep"),)
SERVICE_SETTINGS = ", tick_interval: 2s, job_queue_retention: 5s, job_log_retention: 5s, dedupe_ttl: 1s"
MEASUREMENTS = 20
WARM_UP_SHARE = 0.05
MAX_QUEUED = 200
MAX_GROWTH = 0.10
MAX_WAL_BYTES = 64 << 20
SETTLE_TIMEOUT = 20.0
"""Idle threads end after ten seconds."""
STALL_TIMEOUT = 120.0
RULES = ("memory", "descriptors", "threads", "log", "every job runs once", "the service exits with 0")
MEMORY, DESCRIPTORS, THREADS, LOG, RUNS_ONCE, EXIT_CODE = RULES


@frozen
class SoakOptions:
    """`runs` of a plugin."""

    runs: int
    seed: int
    workers: int = 4


@frozen
class Measurement:
    """The resources of a service while nothing runs."""

    runs: int
    resident_kilobytes: int
    descriptors: int
    threads: int
    wal_bytes: int
    ledger_bytes: int

    @classmethod
    def take(cls, service: ServiceProcess, instance: Instance, runs: int) -> "Measurement":
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        return cls(
            runs,
            int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]),
            open_descriptors(service.process.pid),
            int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            wal_bytes(instance),
            instance.ledger.stat().st_size,
        )

    def exceeds(self, other: "Measurement") -> bool:
        return self.descriptors > other.descriptors or self.threads > other.threads


def open_descriptors(pid: int) -> int:
    """Return the number of open descriptors; 0 if this user may not read it."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0


def wal_bytes(instance: Instance) -> int:
    wal = instance.ledger.with_name(instance.ledger.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


@define
class SoakTorture:
    """One service and its measurements."""

    instance: Instance
    service: ServiceProcess
    client: JobClient
    job_ids: list[str] = field(factory=list)
    measurements: list[Measurement] = field(factory=list)
    max_wal_bytes: int = 0

    def load_lazy_modules(self) -> None:
        """Make the service load what it otherwise loads during the measurements."""
        self.client.connection.request("GET", "/openapi.json", headers={"authorization": f"Bearer {TOKEN}"})
        response = self.client.connection.getresponse()
        content = response.read()
        assert response.status == 200, content

    def run(self, runs: int) -> None:
        """Run the jobs and measure in between."""
        warm_up = max(50, round(runs * WARM_UP_SHARE))
        parts = min(MEASUREMENTS, runs // warm_up)
        goals = [warm_up, *(warm_up + (runs - warm_up) * (part + 1) // parts for part in range(parts))]
        for goal in goals:
            while len(self.job_ids) < goal:
                self._run_jobs(min(MAX_QUEUED, goal - len(self.job_ids)))
            self.measurements.append(self._measure_when_settled(goal))
            last = self.measurements[-1]
            print_progress(
                f"{goal}/{runs}: {last.resident_kilobytes / 1024:.1f} MiB, {last.descriptors} descriptors, "
                f"{last.threads} threads, log {self.max_wal_bytes / 1e6:.1f} MB, "
                f"ledger {last.ledger_bytes / 1e6:.1f} MB"
            )

    def _run_jobs(self, count: int) -> None:
        for number in range(count):
            status, _, body = self.client.post("keep", number)
            assert status == 202, body
            self.job_ids.append(body["job_id"])
        self._wait_until_idle()

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + STALL_TIMEOUT
        with self.instance.read_ledger() as db:
            while db.execute(HAS_OPEN_JOBS).fetchone()[0]:
                assert time.monotonic() < deadline, "the queue did not become empty"
                time.sleep(0.01)
                self.max_wal_bytes = max(self.max_wal_bytes, wal_bytes(self.instance))

    def _measure_when_settled(self, runs: int) -> Measurement:
        """Measure after idle descriptors and threads had time to close."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        last = Measurement.take(self.service, self.instance, runs)
        while self.measurements and last.exceeds(self.measurements[0]) and time.monotonic() < deadline:
            time.sleep(0.1)
            last = Measurement.take(self.service, self.instance, runs)
        return last


HAS_OPEN_JOBS = "SELECT EXISTS (SELECT 1 FROM job_queue WHERE status IN ('queued', 'running'))"


def violations_of(test: SoakTorture, exit_code: int) -> dict[str, list[str]]:
    """Compare the last measurement with the one after the warm-up."""
    first, last = test.measurements[0], test.measurements[-1]
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    if last.resident_kilobytes > first.resident_kilobytes * (1 + MAX_GROWTH):
        found[MEMORY].append(f"{first.resident_kilobytes} kB grew to {last.resident_kilobytes} kB")
    if last.descriptors > first.descriptors:
        found[DESCRIPTORS].append(f"{first.descriptors} grew to {last.descriptors}")
    if last.threads > first.threads:
        found[THREADS].append(f"{first.threads} grew to {last.threads}")
    if test.max_wal_bytes > MAX_WAL_BYTES:
        found[LOG].append(f"{test.max_wal_bytes} bytes")
    ran = Counter(effect.job_id for effect in read_effects(test.instance.effects_log) if effect.what == "end")
    found[RUNS_ONCE] += [f"{job_id} ran {ran[job_id]} times" for job_id in test.job_ids if ran[job_id] != 1]
    if exit_code != 0:
        found[EXIT_CODE].append(f"it exited with {exit_code}: {test.service.stderr[-3:]}")
    return found


def torture(directory: Path, options: SoakOptions) -> dict[str, Any]:
    """Run all jobs; return the summary with the number of violations of each rule."""
    become_subreaper()
    instance = Instance(directory, workers=options.workers, plugins=PLUGINS, service_settings=SERVICE_SETTINGS)
    instance.build()
    service = instance.launch()
    assert service.wait_until_ready(), service.stderr
    test, begun = SoakTorture(instance, service, JobClient.connect(service.url)), time.monotonic()
    try:
        test.load_lazy_modules()
        test.run(options.runs)
    finally:
        seconds, exit_code = time.monotonic() - begun, service.stop()
    violations = violations_of(test, exit_code)
    print_violations(violations)
    first, last = test.measurements[0], test.measurements[-1]
    return {
        "torture": "soak",
        "runs": len(test.job_ids),
        "seed": options.seed,
        "runs_per_second": round(len(test.job_ids) / seconds, 1),
        "warm_up_runs": first.runs,
        "resident_mebibytes": [round(one.resident_kilobytes / 1024, 1) for one in (first, last)],
        "growth_percent": round((last.resident_kilobytes / first.resident_kilobytes - 1) * 100, 1),
        "descriptors": [first.descriptors, last.descriptors],
        "threads": [first.threads, last.threads],
        "largest_log_megabytes": round(test.max_wal_bytes / 1e6, 1),
        "ledger_megabytes": [round(one.ledger_bytes / 1e6, 1) for one in (first, last)],
        "violations": {rule: len(found) for rule, found in violations.items()},
    }
