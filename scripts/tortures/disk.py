"""A full disk: the ledger is on a small file system that is filled while jobs run and clients send requests.

Every request must be stored or refused with Retry-After, and the service must continue when space is free again. In
every other round the service is killed while the disk is full.
"""

import http.client
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import INVARIANTS, check
from scripts.tortures.lib.clients import Acknowledgement, JobClient
from scripts.tortures.lib.fault_library import UnsupportedHost
from scripts.tortures.lib.harness import Harness
from scripts.tortures.lib.instance import Instance, ServiceProcess
from scripts.tortures.lib.report import print_progress, print_violations, spread
from scripts.tortures.lib.workload import WorkloadPlugin

DISK_MEGABYTES = 24
MAX_RESUME_SECONDS = 5.0
"""From free space to the next acknowledgement."""
PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=3, records_facts=True, weight=2),
    WorkloadPlugin("refine", emits="item.refined", records_facts=True),
    WorkloadPlugin("keep", weight=3),
    WorkloadPlugin("flaky", failure_percent=40, timeout="400ms", notifies=True, weight=2),
    WorkloadPlugin("slow", sleep_ms=700, weight=2),
)
REQUESTS_BEFORE = 20
"""Requests at the start of a round, so that jobs are running when the disk is full."""
RESUME_TIMEOUT = 30.0
REFUSALS = (503, 507)
RETRY_AFTER = "refusals have Retry-After"
STAYS_UP = "the service stays up"
RESUMES_IN_TIME = "the service resumes in time"
DISK_WAS_FULL = "the disk was full"
RULES = (RETRY_AFTER, STAYS_UP, RESUMES_IN_TIME, DISK_WAS_FULL)


@frozen
class DiskOptions:
    """`requests` while the disk is full, in `rounds`."""

    requests: int
    seed: int
    rounds: int = 4
    leniency: float = 1.0
    workers: int = 4


@define
class FullDiskTorture:
    """All rounds, the responses, and the violations."""

    instance: Instance
    options: DiskOptions
    rng: random.Random
    harness: Harness
    acknowledged: list[Acknowledgement] = field(factory=list)
    statuses: Counter[int] = field(factory=Counter)
    resume_seconds: list[float] = field(factory=list)
    violations: dict[str, list[str]] = field(factory=dict)

    @property
    def filler(self) -> Path:
        return self.instance.path / "data" / "filler"

    def run(self) -> None:
        """Run all rounds, then all remaining jobs."""
        service = self._start()
        for number in range(self.options.rounds):
            service = self.round(service, is_killed=number % 2 == 1)
            print_progress(f"round {number + 1}: {dict(self.statuses)}, resumed after {self.resume_seconds[-1]:.2f} s")
        if service.stop() != 0:
            self._report_exit(service)
        self.harness.clear_backoffs()
        self.harness.finish_all_jobs()

    def round(self, service: ServiceProcess, *, is_killed: bool) -> ServiceProcess:
        """Fill the disk, send requests, free the disk; return the service that runs afterwards."""
        client = JobClient.connect(service.url)
        for _ in range(REQUESTS_BEFORE):
            self.post_job(client, Counter())
        self._fill_disk()
        while_full = Counter[int]()
        for _ in range(self.options.requests // self.options.rounds):
            self.post_job(client, while_full)
            if not while_full.total() % 25:
                self._fill_disk()  # a checkpoint may have freed space
        self.statuses.update(while_full)
        if not sum(while_full[status] for status in REFUSALS):
            self._report(DISK_WAS_FULL, f"nothing was refused: {dict(while_full)}")
        if service.wait_for_exit(0):
            self._report_exit(service)
        if is_killed:
            self.harness.kill(service)
        self.filler.unlink()
        freed_at = time.monotonic()
        if is_killed:
            service = self._start()
            freed_at = time.monotonic()
        self._wait_until_resumed(JobClient.connect(service.url), freed_at)
        return service

    def _start(self) -> ServiceProcess:
        service = self.instance.launch()
        if not service.wait_until_ready():
            raise AssertionError(f"the service did not become ready: {service.stderr[-3:]}")
        return service

    def _fill_disk(self) -> None:
        """Write to a file until no space is left."""
        block = b"\0" * 4096
        file = os.open(self.filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            while os.write(file, block):
                pass
        os.close(file)

    def post_job(self, client: JobClient, statuses: Counter[int]) -> int:
        """Request one job, check the response, and return its status; 0 if there is none."""
        plugin = self.rng.choice([plugin for plugin in self.instance.plugins for _ in range(plugin.weight)])
        try:
            status, headers, body = client.post(plugin.name, self.rng.randrange(1 << 30))
        except (OSError, http.client.HTTPException) as error:
            self._report(STAYS_UP, f"no response: {error!r}")
            client.connection.close()
            return 0
        statuses[status] += 1
        if status in (200, 202):
            self.acknowledged.append(Acknowledgement(body["job_id"], plugin.name, time.monotonic_ns()))
        elif status not in REFUSALS or not headers.get("retry-after", "").isdecimal():
            self._report(RETRY_AFTER, f"{status} {headers.get('retry-after')} {body}")
        return status

    def _wait_until_resumed(self, client: JobClient, since: float) -> None:
        while self.post_job(client, Counter()) != 202 and time.monotonic() - since < RESUME_TIMEOUT:
            time.sleep(0.02)
        self.resume_seconds.append(time.monotonic() - since)
        if self.resume_seconds[-1] > MAX_RESUME_SECONDS * self.options.leniency:
            self._report(RESUMES_IN_TIME, f"it took {self.resume_seconds[-1]:.1f} s")

    def _report_exit(self, service: ServiceProcess) -> None:
        self._report(STAYS_UP, f"it exited with {service.process.returncode}: {service.stderr[-3:]}")

    def _report(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Mount a file system of a few megabytes at `path` for the block. Raises UnsupportedHost without root."""
    path.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=0700", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnsupportedHost("this host has no `mount`") from error
    if done.returncode != 0:
        raise UnsupportedHost(f"a small file system cannot be mounted (needs root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def torture(directory: Path, options: DiskOptions) -> dict[str, Any]:
    """Run all rounds; return the summary with the number of violations of each rule."""
    become_subreaper()
    instance = Instance(directory, workers=options.workers, plugins=PLUGINS)
    instance.build()
    with small_disk(directory / "data"):
        test = FullDiskTorture(instance, options, random.Random(options.seed), Harness(instance))
        test.run()
        history = test.harness.history(test.acknowledged)
        violations = {**{rule: [] for rule in RULES}, **test.violations, **check(history)}
        jobs = len(history.jobs)
    print_violations(violations)
    return {
        "torture": "disk",
        "requests": options.requests,
        "seed": options.seed,
        "responses_while_full": {str(status): count for status, count in sorted(test.statuses.items())},
        "acknowledged": len(test.acknowledged),
        "jobs": jobs,
        "resume_seconds": spread(test.resume_seconds),
        "violations": {rule: len(violations[rule]) for rule in (*RULES, *INVARIANTS)},
    }
