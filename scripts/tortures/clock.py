"""A wall clock that jumps while a service runs: by hours, days and decades, ahead and back.

Only the service has the shifted clock; the plugins and this process keep the real one. In addition, services run
through the two nights of the year in which the clocks of Berlin change.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import from_text
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import INVARIANTS, check
from scripts.tortures.lib.clients import WorkloadClients
from scripts.tortures.lib.fault_library import FaultLibrary, UnsupportedHost, set_clock_offset
from scripts.tortures.lib.harness import Harness, lenient_wait
from scripts.tortures.lib.history import History, read_effects
from scripts.tortures.lib.instance import Instance, ServiceProcess, build_plugin_program
from scripts.tortures.lib.report import print_progress, print_violations
from scripts.tortures.lib.workload import WorkloadPlugin

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400
OFFSETS = (0.4, -0.4, HOUR, -HOUR, 8 * HOUR, DAY, -DAY, 10 * YEAR, -10 * YEAR, -56 * YEAR)
"""Seconds between the clock of the service and the real one. A host that slept looks like a jump ahead."""
FREQUENT_RETENTION = ", tick_interval: 1s"
"""Retention runs at every offset: what it deletes too early is missing at the end."""
SCHEDULE_INTERVAL = 0.3
WATCH_SECONDS = 2.4
MAX_DELAY_SECONDS = 1.2
PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=3, records_facts=True, weight=2),
    WorkloadPlugin("refine", emits="item.refined", records_facts=True),
    WorkloadPlugin("keep"),
    WorkloadPlugin("flaky", failure_percent=50, timeout="400ms", notifies=True, weight=2),
    WorkloadPlugin("slow", sleep_ms=700, timeout="20s", weight=2),
    WorkloadPlugin("tick", every="300ms"),
)
NEVER_FAIL = frozenset({"gather", "refine", "keep", "slow", "tick"})
"""Plugins that fail only if a jump moves their deadline."""
SCHEDULES_CONTINUE = "schedules continue"
NO_CATCHING_UP = "schedules do not catch up"
DEADLINES_HOLD = "deadlines do not move"
CLOCK_CHANGES = "clock changes have the right jobs"
RULES = (SCHEDULES_CONTINUE, NO_CATCHING_UP, DEADLINES_HOLD, CLOCK_CHANGES)
NEEDS_STEADY_CLOCK = "I8 transitions replay"
"""Compares times within a tree, which are not in order if the clock jumps."""


@frozen
class ClockOptions:
    """`jumps` of the clock under load, then `nights` in which the clocks change."""

    jumps: int
    seed: int
    nights: int = 3
    leniency: float = 1.0
    workers: int = 4
    jobs_per_second: float = 8.0


@define
class ClockTorture:
    """One service with a shifted clock, and the violations of its schedule."""

    instance: Instance
    clock: Path
    options: ClockOptions
    violations: dict[str, list[str]] = field(factory=dict)

    def jump(self, service: ServiceProcess, offsets: Sequence[float]) -> None:
        """Set the clock to each offset and watch the schedule for a while."""
        max_wait = lenient_wait(WATCH_SECONDS, self.options.leniency)
        for offset in offsets:
            set_clock_offset(self.clock, offset)
            begun = time.monotonic_ns()
            while True:
                if service.wait_for_exit(WATCH_SECONDS):
                    raise AssertionError(f"the service exited: {service.stderr[-3:]}")
                if self._runs_since(begun) or time.monotonic_ns() - begun >= max_wait * 1e9:
                    break
            self.check_schedule(offset, begun, time.monotonic_ns())
        set_clock_offset(self.clock, 0.0)

    def check_schedule(self, offset: float, begun: int, ended: int) -> None:
        """Check that the interval schedule neither stopped nor caught up after a jump."""
        seconds, slack = (ended - begun) / 1e9, MAX_DELAY_SECONDS * self.options.leniency
        runs = [second for second in self._runs_since(begun) if second <= seconds]
        if not runs or runs[0] > SCHEDULE_INTERVAL + slack:
            violation = f"offset {offset:+.1f} s: first run after {runs[:1]} of {seconds:.1f} s"
            self._report(SCHEDULES_CONTINUE, violation)
        if len(runs) > (seconds + slack) / SCHEDULE_INTERVAL + 1:
            self._report(NO_CATCHING_UP, f"offset {offset:+.1f} s: {len(runs)} runs in {seconds:.1f} s")

    def _runs_since(self, begun: int) -> list[float]:
        """Return the times of the schedule's runs, in seconds after `begun`."""
        with self.instance.read_ledger() as db:
            ticks = {job_id for (job_id,) in db.execute("SELECT id FROM job_queue WHERE plugin = 'tick'")}
        return [
            (effect.at - begun) / 1e9
            for effect in read_effects(self.instance.effects_log)
            if effect.what == "start" and effect.job_id in ticks and begun <= effect.at
        ]

    def _report(self, rule: str, violation: str) -> None:
        self.violations.setdefault(rule, []).append(violation)


def deadlines_hold(history: History) -> Iterator[str]:
    """Find jobs that failed although their plugin never fails in time."""
    for job in history.jobs.values():
        if job["plugin"] in NEVER_FAIL and job["status"] != "succeeded":
            yield f"{job['id']} ({job['plugin']}) is {job['status']}: {job['last_error']}"


@frozen
class ClockChange:
    """A night in which the clocks change, and the number of jobs of a daily schedule after each moment."""

    name: str
    cron: str
    begins: str
    moments: tuple[tuple[str, int], ...]


MARCH, OCTOBER = "2026-03-29T", "2026-10-25T"
NIGHTS = (
    ClockChange("gap", "30 2 * * *", f"{MARCH}00:50Z", ((f"{MARCH}00:59:59Z", 1), (f"{MARCH}01:29:59Z", 1))),
    ClockChange("twice", "30 2 * * *", f"{OCTOBER}00:20Z", ((f"{OCTOBER}00:29:59Z", 1), (f"{OCTOBER}01:29:59Z", 1))),
    ClockChange("hourly", "30 * * * *", f"{OCTOBER}00:20Z", ((f"{OCTOBER}00:29:59Z", 1), (f"{OCTOBER}01:29:59Z", 2))),
)
"""02:30 does not exist in March: the job runs after the change. In October it exists twice and has one job."""
NO_MORE_JOBS_SECONDS, JOBS_TIMEOUT = 2.5, 10.0
"""Real seconds after the clock was set to the last second before a moment."""
FREQUENT_TICKS = ", tick_interval: 200ms"
"""The service notices a jump after this time if nothing is due."""


class BerlinInstance(Instance):
    """An instance whose one schedule has a cron line in the time zone of Berlin."""

    cron: str = "30 2 * * *"

    def config_text(self, *, scheduled: bool = True) -> str:
        cron = f'cron: "{self.cron}", timezone: Europe/Berlin'
        return super().config_text(scheduled=scheduled).replace("every: night", cron)


def wrong_nights(nights: Sequence[ClockChange], directory: Path, plugin_program: Path) -> Iterator[str]:
    """Run a service through each night and yield the moments with another number of jobs."""
    for number, night in enumerate(nights):
        plugins = (WorkloadPlugin("sweep", every="night"),)
        instance = BerlinInstance(
            directory / f"night-{number}",
            service_settings=FREQUENT_TICKS,
            plugins=plugins,
            plugin_program=plugin_program,
        )
        instance.cron = night.cron
        instance.path.mkdir(mode=0o700)
        instance.build()
        clock = instance.path / "clock"
        with running_service(instance, clock, night.begins) as service:
            for moment, expected in night.moments:
                set_clock(clock, moment)
                if (count := wait_for_jobs(instance, service, expected)) != expected:
                    yield f"{night.name}: {count} jobs at {moment}, not {expected}"


@contextmanager
def running_service(instance: Instance, clock: Path, moment: str) -> Iterator[ServiceProcess]:
    """Run a service whose wall clock starts at this moment."""
    set_clock(clock, moment)
    library = FaultLibrary.build(instance.path, instance.path / "data")
    service = instance.launch(library.shifting_clock(clock))
    try:
        assert service.wait_until_ready(), service.stderr
        yield service
    finally:
        service.stop()


def set_clock(clock: Path, moment: str) -> None:
    set_clock_offset(clock, (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds())


def wait_for_jobs(instance: Instance, service: ServiceProcess, expected: int) -> int:
    """Wait for the expected number of jobs, then a while for more; return how many there are."""
    begun, count = time.monotonic(), -1
    while (since := time.monotonic() - begun) < (NO_MORE_JOBS_SECONDS if count == expected else JOBS_TIMEOUT):
        if service.wait_for_exit(0.05):
            raise AssertionError(f"the service exited after {since:.1f} s: {service.stderr[-3:]}")
        with instance.read_ledger() as db:
            count = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
        if count > expected:
            break
    return count


def require_shifted_clock(history: History) -> None:
    """Raise UnsupportedHost unless some job has a shifted time."""
    now = datetime.now(UTC)
    if all(abs((from_text(job["created_at"]) - now).total_seconds()) < HOUR / 2 for job in history.jobs.values()):
        raise UnsupportedHost("this host cannot shift the clock of a process")


def torture(directory: Path, options: ClockOptions) -> dict[str, Any]:
    """Run the jumps and the nights; return the summary with the number of violations of each rule."""
    become_subreaper()
    rng, program = random.Random(options.seed), build_plugin_program(directory)
    instance = Instance(
        directory / "jumps",
        workers=options.workers,
        plugins=PLUGINS,
        plugin_program=program,
        service_settings=FREQUENT_RETENTION,
    )
    instance.path.mkdir(mode=0o700)
    instance.build()
    rounds = options.jumps // len(OFFSETS) + 1
    offsets = [offset for _ in range(rounds) for offset in rng.sample(OFFSETS, len(OFFSETS))][: options.jumps]
    test = ClockTorture(instance, instance.path / "clock", options)
    clients = WorkloadClients(instance, options.jobs_per_second, options.seed, instance.path / "acknowledged")
    clients.start()
    try:
        with running_service(instance, test.clock, datetime.now(UTC).isoformat()) as service:
            clients.use_url(service.url)
            test.jump(service, offsets)
            clients.use_url(None)
    finally:
        clients.stop()
    print_progress(f"{options.jumps} jumps, {len(clients.acknowledged)} jobs acknowledged")
    harness = Harness(instance)
    harness.finish_all_jobs()
    history = harness.history(clients.acknowledged)
    if any(abs(offset) >= HOUR for offset in offsets):
        require_shifted_clock(history)
    violations = {**{rule: [] for rule in RULES}, **test.violations, **check(history)}
    violations[DEADLINES_HOLD] = list(deadlines_hold(history))
    violations[CLOCK_CHANGES] = list(wrong_nights(NIGHTS[: options.nights], directory, program))
    del violations[NEEDS_STEADY_CLOCK]
    print_violations(violations)
    return {
        "torture": "clock",
        "jumps": options.jumps,
        "seed": options.seed,
        "nights": options.nights,
        "acknowledged": len(clients.acknowledged),
        "jobs": len(history.jobs),
        "violations": {rule: len(violations[rule]) for rule in (*RULES, *INVARIANTS) if rule in violations},
    }
