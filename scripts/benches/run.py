"""How fast jobs run: the service against a small C program that runs the same plugin, in the same minutes.

The score is the ratio, the median of interleaved rounds. Absolute numbers are printed beside it for the curious.
"""

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.clock import from_text
from ductile.ledger.jobs import enqueue
from ductile.ledger.store import open_writer
from ductile.model import NewJob
from tests.e2e.service import Home, Service

HERE = Path(__file__).parent
MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 1.0.0
protocol: 2
entrypoint: run
commands: {{poll: {{type: read}}}}
"""
PYTHON = """#!/usr/bin/python3
import json, sys
json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": "done"}))
"""
SLEEP = """#!/bin/sh
cat > /dev/null
sleep 1
echo '{"status":"ok","result":"slept"}'
"""
BIG = """#!/usr/bin/python3
import sys
sys.stdin.read()
sys.stdout.write('{"status":"ok","result":"' + "x" * (8 << 20) + '"}')
"""


@frozen
class Bench:
    """What all measures share."""

    folder: Path
    launcher: Path
    rounds: int
    synchronous: str

    def limit(self, plugin: Path, *, width: int, count: int) -> tuple[float, float, float]:
        """Runs per second, median microseconds and bytes per second of the C launcher."""
        done = subprocess.run(
            [self.launcher, plugin, str(width), str(count)], capture_output=True, text=True, check=True
        )
        runs, micros, size = done.stdout.split()
        return float(runs), float(micros), float(size)

    @contextmanager
    def home(self, name: str, entrypoint: Path | str, *, workers: int) -> Iterator[Home]:
        with tempfile.TemporaryDirectory(dir=self.folder) as directory:
            home = Home.make(Path(directory) / "home", workers=workers)
            home.write(
                "config.yaml", (home.path / "config.yaml").read_text().replace("log_level: debug", "log_level: info")
            )
            home.add(f"plugins: {{{name}: {{}}}}\nx-bench: true\n")
            home.write(
                "config.yaml",
                (home.path / "config.yaml")
                .read_text()
                .replace("service:\n", f"service:\n  synchronous: {self.synchronous}\n"),
            )
            install(home, name, entrypoint)
            home.seal()
            yield home


def install(home: Home, name: str, entrypoint: Path | str) -> Path:
    folder = home.path / "plugins" / name
    folder.mkdir(mode=0o700)
    (folder / "manifest.yaml").write_text(MANIFEST.format(name=name))
    target = folder / "run"
    target.write_bytes(entrypoint.read_bytes() if isinstance(entrypoint, Path) else entrypoint.encode())
    target.chmod(0o700)
    return target


def backlog(home: Home, plugin: str, count: int) -> None:
    """`count` jobs are queued before the service starts."""
    home.ledger.parent.mkdir(mode=0o700, exist_ok=True)
    db = open_writer(home.ledger)
    try:
        db.execute("BEGIN IMMEDIATE")
        payload = json.dumps({"filler": "x" * 100})
        new = NewJob(plugin=plugin, command="poll", submitted_by="bench", payload=payload)
        for _ in range(count):
            enqueue(db, new, now=datetime.now(UTC))
        db.execute("COMMIT")
    finally:
        db.close()


def drain(home: Home, count: int) -> tuple[float, float]:
    """Jobs per second from the first claim to the last recorded result, and our own CPU milliseconds per job.

    Whoever watches shares the cores with what it measures, so it looks rarely, and the log goes into a file.
    """
    with (home.path / "log.jsonl").open("wb") as log:
        command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(home.path)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            with home.read_ledger() as db:
                wait_until(lambda: attempts_made(db) > 0)
                before = own_cpu_seconds(process.pid)
                wait_until(lambda: attempts_made(db) >= count)
                cpu = own_cpu_seconds(process.pid) - before
        finally:
            process.kill()
            process.wait()
    (row,) = home.rows(
        "SELECT MIN(started_at) AS first, MAX(completed_at) AS last, COUNT(*) AS n FROM job_log"
        " WHERE status = 'succeeded'"
    )
    assert row["n"] == count, f"{row['n']} of {count} jobs succeeded"
    seconds = (from_text(row["last"]) - from_text(row["first"])).total_seconds()
    return count / seconds, cpu * 1000 / count


def attempts_made(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job_log'").fetchone()
    return int(row[0]) if row else 0


def wait_until(is_done: Callable[[], bool], *, most: float = 300.0) -> None:
    deadline = time.monotonic() + most
    while not is_done():
        if time.monotonic() > deadline:
            raise SystemExit("the service did not finish its jobs")
        time.sleep(0.1)


def own_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wakeups(pid: int) -> dict[str, int]:
    """How often each thread of the process was scheduled after having waited."""
    counted = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                counted[task.name] = int(line.split()[1])
    return counted


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


# ── measures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_drain(bench: Bench, plugin: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """A backlog, two workers: drain over the limit of the same width in the same round."""
    ratios, rates, cpus = [], [], []
    for _ in range(bench.rounds):
        limit, _, _ = bench.limit(plugin, width=2, count=jobs)
        with bench.home("least", plugin, workers=2) as home:
            backlog(home, "least", jobs)
            rate, cpu = drain(home, jobs)
        ratios.append(rate / limit)
        rates.append(rate)
        cpus.append(cpu)
    yield result("drain_over_limit", statistics.median(ratios), at_least=0.28, jobs_per_second=rates, rounds=ratios)
    yield result("own_cpu_ms_per_job", statistics.median(cpus), at_most=1.0, rounds=cpus)


def measure_latency(bench: Bench, plugin: Path) -> Iterator[dict[str, Any]]:
    """One job at a time on an idle service, then the first one after twenty idle seconds."""
    with bench.home("least", plugin, workers=2) as home:
        service = home.start()
        try:
            for _ in range(200):
                service.run("least")
            rows = home.rows(
                "SELECT q.created_at AS asked, l.started_at AS started"
                " FROM job_queue AS q JOIN job_log AS l ON l.job_id = q.id"
            )
            waits = [(from_text(row["started"]) - from_text(row["asked"])).total_seconds() * 1000 for row in rows[20:]]
            yield result("enqueue_to_spawn_ms_p50", statistics.median(waits), at_most=1.5, p95=percentile(waits, 95))
            before, began = (own_cpu_seconds(service.process.pid), wakeups(service.process.pid)), time.monotonic()
            time.sleep(20)
            idle = time.monotonic() - began
            cpu = (own_cpu_seconds(service.process.pid) - before[0]) / idle * 100
            yield result("idle_cpu_percent", cpu, at_most=0.05)
            woken = sum(count - before[1].get(thread, 0) for thread, count in wakeups(service.process.pid).items())
            yield result("idle_wakeups_per_second", woken / idle, at_most=2)
            yield result("idle_pss_mb", pss_mb(service.process.pid), at_most=60)
            yield result("first_job_after_idle_ms", _one_job(service), at_most=8)
        finally:
            service.kill()


def _one_job(service: Service) -> float:
    began = time.perf_counter()
    service.run("least")
    return (time.perf_counter() - began) * 1000


def measure_start(bench: Bench, plugin: Path) -> Iterator[dict[str, Any]]:
    """From exec to the first healthy answer."""
    times = []
    with bench.home("least", plugin, workers=2) as home:
        for _ in range(bench.rounds):
            began = time.perf_counter()
            service = home.start()
            assert service.ask("GET", "/healthz")[0] == 200
            times.append(time.perf_counter() - began)
            service.stop()
    yield result("cold_start_seconds", statistics.median(times), at_most=0.8, rounds=times)


def measure_python(bench: Bench) -> Iterator[dict[str, Any]]:
    """An ordinary Python plugin: the runtime should hardly be noticed."""
    ratios = []
    for _ in range(bench.rounds):
        with bench.home("python", PYTHON, workers=2) as home:
            limit, _, _ = bench.limit(home.path / "plugins/python/run", width=2, count=200)
            backlog(home, "python", 200)
            ratios.append(drain(home, 200)[0] / limit)
    yield result("python_plugin_over_limit", statistics.median(ratios), at_least=0.92, rounds=ratios)


def measure_sleepers(bench: Bench) -> Iterator[dict[str, Any]]:
    """200 jobs that sleep a second on 50 workers: ideally four seconds."""
    with bench.home("sleeper", SLEEP, workers=50) as home:
        backlog(home, "sleeper", 200)
        rate, _ = drain(home, 200)
    yield result("sleepers_over_ideal", rate / 50, at_least=0.90)


def measure_big_output(bench: Bench) -> Iterator[dict[str, Any]]:
    """40 answers of 8 MiB, against C reading the same through pipes."""
    ratios = []
    for _ in range(bench.rounds):
        with bench.home("big", BIG, workers=2) as home:
            limit, _, _ = bench.limit(home.path / "plugins/big/run", width=2, count=40)
            backlog(home, "big", 40)
            ratios.append(drain(home, 40)[0] / limit)
    yield result("big_output_over_limit", statistics.median(ratios), at_least=0.35, rounds=ratios)


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def result(name: str, value: float, *, bench: str = "run", **more: Any) -> dict[str, Any]:
    def short(number: Any) -> Any:
        if isinstance(number, list):
            return [short(each) for each in number]
        return round(number, 4) if isinstance(number, float) else number

    return {"bench": bench, "measure": name, "value": short(value), **{key: short(item) for key, item in more.items()}}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench run", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000, help="size of the backlog")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--synchronous", choices=["full", "normal"], default="full")
    parser.add_argument("--only", help="drain, latency, start, python, sleepers or big")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folder = Path(directory)
        plugin, launcher = folder / "plugin", folder / "launcher"
        subprocess.run(["gcc", "-O2", "-static", "-o", plugin, HERE / "plugin.c"], check=True)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", launcher, HERE / "launcher.c"], check=True)
        bench = Bench(folder, launcher, options.rounds, options.synchronous)
        measures: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "drain": lambda: measure_drain(bench, plugin, options.jobs),
            "latency": lambda: measure_latency(bench, plugin),
            "start": lambda: measure_start(bench, plugin),
            "python": lambda: measure_python(bench),
            "sleepers": lambda: measure_sleepers(bench),
            "big": lambda: measure_big_output(bench),
        }
        for name, measure in measures.items():
            if options.only in (None, name):
                print(f"measuring {name} …", file=sys.stderr)
                for line in measure():
                    print(json.dumps(line), flush=True)
    print(
        f"peak memory of this program: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
