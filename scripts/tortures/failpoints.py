"""Deaths at every failpoint: first with few clients at the first passage, then under load at a later passage.

Each death has a new ledger. The next service runs what is left, and the checker runs. A failpoint that is never reached
is a violation.
"""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.instance.failpoints import NAMES
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.lib.checker import INVARIANTS, check
from scripts.tortures.lib.clients import WorkloadClients
from scripts.tortures.lib.harness import EXCHANGE_FAILPOINTS, Harness
from scripts.tortures.lib.instance import Instance, ServiceProcess, build_plugin_program
from scripts.tortures.lib.report import print_progress, print_violations
from scripts.tortures.lib.workload import WorkloadPlugin

PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=3, records_facts=True, weight=2),
    WorkloadPlugin("refine", emits="item.refined", records_facts=True),
    WorkloadPlugin("keep"),
    WorkloadPlugin("flaky", failure_percent=50, timeout="400ms", notifies=True, weight=1),
    WorkloadPlugin("tick", every="200ms"),
    WorkloadPlugin("tock", every="300ms", failure_percent=90, timeout="400ms"),
    WorkloadPlugin("order", emits="order.placed", weight=1),
    WorkloadPlugin("pick", emits="order.picked", max_items=3, notifies=True),
    WorkloadPlugin("press"),
    WorkloadPlugin("twin", emits="half.done", event_count=2),
    WorkloadPlugin("brittle", failure_percent=20, timeout="400ms"),
)
SLOW = WorkloadPlugin("slow", sleep_ms=1200, weight=5)
JOB_FAILPOINTS = NAMES - EXCHANGE_FAILPOINTS
NEEDS_SLOW_PLUGIN = frozenset({"recover.after_first", "process.after_commit"})
SIGNALS = {
    "drain.started": signal.SIGTERM,
    "reload.before_commit": signal.SIGHUP,
    "reload.after_swap": signal.SIGHUP,
}
"""Failpoints that a service reaches only after a signal."""
SERVICE_SETTINGS = {"prune.half_way": ", tick_interval: 100ms, job_queue_retention: 1ms, dedupe_ttl: 1ms"}
REACHED_ONCE = frozenset({"recover.after_first", "drain.started"})
EXIT_TIMEOUT = 30.0
MAX_COUNT = 12
NEVER_REACHED = "the failpoint is reached"


@frozen
class FailpointOptions:
    """`runs` deaths at each failpoint, or only at those in `only`."""

    runs: int
    seed: int
    only: tuple[str, ...] = ()
    workers: int = 4


@frozen
class Passage:
    """The service dies when it reaches the failpoint for the `count`-th time."""

    failpoint: str
    count: int = 1
    jobs_per_second: float = 60.0
    seed: int = 1

    @classmethod
    def drawn(cls, failpoint: str, run: int, rng: random.Random) -> "Passage":
        """Draw the passage of a run. The first run has few clients and dies at the first passage."""
        if run == 0:
            return cls(failpoint, jobs_per_second=8.0)
        count = 1 if failpoint in REACHED_ONCE else rng.randint(1, MAX_COUNT)
        if failpoint in SIGNALS or failpoint.startswith("checkpoint"):
            count = min(count, 2)  # each passage takes long
        return cls(failpoint, count, seed=rng.randrange(1 << 30))

    def __str__(self) -> str:
        return f"{self.failpoint}:{self.count}"


def die(directory: Path, passage: Passage, plugin_program: Path, *, workers: int = 4) -> dict[str, list[str]]:
    """Kill a service at the failpoint, run what is left with the next one, and return the violations."""
    instance = Instance(
        directory,
        workers=workers,
        plugins=(*PLUGINS, SLOW) if passage.failpoint in NEEDS_SLOW_PLUGIN else PLUGINS,
        service_settings=SERVICE_SETTINGS.get(passage.failpoint, ""),
        plugin_program=plugin_program,
    )
    instance.build()
    harness, acknowledged = Harness(instance), []
    if passage.failpoint == "recover.after_first":
        service = instance.launch()
        service.wait_until_ready()
        clients = start_clients(instance, service, passage)
        wait_for_running_jobs(instance, service)
        harness.kill(service)
        clients.stop()
        acknowledged += clients.acknowledged
    service = harness.launch(str(passage))
    if service.wait_until_ready():
        clients = start_clients(instance, service, passage)
        has_died = wait_for_death(service, passage)
        clients.stop()
        acknowledged += clients.acknowledged
    else:
        has_died = service.wait_for_exit(EXIT_TIMEOUT)
    harness.kill(service)
    never_reached = []
    if not has_died or service.process.returncode != -signal.SIGKILL:
        never_reached.append(f"{passage}: not reached; the service exited with {service.process.returncode}")
    harness.finish_all_jobs()
    return {**check(harness.history(acknowledged)), NEVER_REACHED: never_reached}


def start_clients(instance: Instance, service: ServiceProcess, passage: Passage) -> WorkloadClients:
    record = instance.path / "acknowledged"
    clients = WorkloadClients(instance, passage.jobs_per_second, passage.seed, record, count=3)
    clients.start()
    clients.use_url(service.url)
    return clients


def wait_for_running_jobs(instance: Instance, service: ServiceProcess) -> None:
    """Wait until two jobs are running, so that a kill leaves several orphans."""
    with instance.read_ledger() as db:
        while db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'running'").fetchone()[0] < 2:
            if service.wait_for_exit(0.005):
                raise AssertionError(f"the service exited: {service.stderr[-3:]}")


def wait_for_death(service: ServiceProcess, passage: Passage) -> bool:
    """Return True if the service dies. Sends the signal that leads to the failpoint, repeatedly if necessary."""
    number, deadline = SIGNALS.get(passage.failpoint), time.monotonic() + EXIT_TIMEOUT
    if number is None:
        return service.wait_for_exit(EXIT_TIMEOUT)
    while not service.wait_for_exit(0.3) and time.monotonic() < deadline:
        service.process.send_signal(number)
        if number is signal.SIGTERM:  # a second SIGTERM skips the drain
            return service.wait_for_exit(EXIT_TIMEOUT)
    return service.process.returncode is not None


def torture(directory: Path, options: FailpointOptions) -> dict[str, Any]:
    """Run all deaths; return the summary with the number of violations of each invariant."""
    become_subreaper()
    failpoints, program = sorted(options.only or JOB_FAILPOINTS), build_plugin_program(directory)
    violations: dict[str, list[str]] = {name: [] for name in (*INVARIANTS, NEVER_REACHED)}
    by_failpoint: dict[str, int] = dict.fromkeys(failpoints, 0)
    for failpoint in failpoints:
        for run in range(options.runs):
            passage = Passage.drawn(failpoint, run, random.Random(f"{options.seed}/{failpoint}/{run}"))
            path = directory / f"{failpoint}-{run}"
            path.mkdir(mode=0o700)
            for rule, found in die(path, passage, program, workers=options.workers).items():
                violations[rule] += [f"{passage} (seed {passage.seed}): {violation}" for violation in found]
                by_failpoint[failpoint] += len(found)
        print_progress(
            json.dumps({"failpoint": failpoint, "runs": options.runs, "violations": by_failpoint[failpoint]})
        )
    print_violations(violations)
    return {
        "torture": "failpoints",
        "seed": options.seed,
        "failpoints": len(failpoints),
        "runs": len(failpoints) * options.runs,
        "points": by_failpoint,
        "violations": {rule: len(found) for rule, found in violations.items()},
    }
