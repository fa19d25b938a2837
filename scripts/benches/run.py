"""How fast jobs run: the service against a small C program that runs the same plugin, in the same minutes.

jobs      a backlog of jobs of a C, a sh and a Python plugin at 1, 2 and 8 workers ÷ bare runs of the same width
backlog   the longest of these in each mode of the disk
latency   one job at a time on an idle service: enqueue → spawn → recorded
start     from exec to the first healthy answer ÷ `python -c "import trio"`
sleepers  200 jobs that sleep a second, on 50 workers
big       1 MiB in, 8 MiB out ÷ C sending and reading the same through pipes
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ductile.core.clock import from_text
from scripts.benches.bench import Bench, Line, main, percentile
from scripts.benches.homes import PLUGIN, Drained, backlog, drain, furnished, plugin_of, running
from scripts.benches.measures import PLUGINS, WORKERS

SH = """#!/bin/sh
read -r request
echo '{"status":"ok","result":"done"}'
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
IMPORT_TRIO = (sys.executable, "-c", "import trio")
PERCENTILES = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "max": 100}


def measure_jobs(bench: Bench) -> Iterator[Line]:
    """Every plugin at every width: jobs per second over bare runs."""
    entrypoints: dict[str, Path | str] = {"c": bench.plugin, "sh": SH, "python": PYTHON}
    sizes = {"c": bench.size(1500, 300), "sh": bench.size(1000, 200), "python": bench.size(200, 30)}
    for kind, name in PLUGINS.items():
        for workers in WORKERS:
            rounds = [raced(bench, entrypoints[kind], workers, sizes[kind], bench.mode) for _ in range(bench.rounds)]
            ratios = [drained.jobs_per_second / bare for drained, bare in rounds]
            facts: dict[str, Any] = {
                "plugin": name,
                "workers": workers,
                "jobs": sizes[kind],
                "jobs_per_second": statistics.median(drained.jobs_per_second for drained, _ in rounds),
                "bare_per_second": statistics.median(bare for _, bare in rounds),
            }
            yield bench.line("run", f"{kind}_{workers}", ratios, **facts)
            if (kind, workers) == ("python", 2):
                yield bench.line("B9", "python_over_limit", ratios, **facts)


def raced(bench: Bench, entrypoint: Path | str, workers: int, jobs: int, mode: str) -> tuple[Drained, float]:
    """A backlog drained, and bare runs per second of the same plugin at the same width just before."""
    with furnished(bench, entrypoint, workers=workers, mode=mode) as home:
        bare = bench.limit(plugin_of(home), width=workers, count=jobs)
        backlog(home, jobs)
        return drain(home, jobs), bare.runs_per_second


def measure_backlog(bench: Bench) -> Iterator[Line]:
    jobs = bench.size(5000, 500)
    for mode in bench.modes:
        rounds = [raced(bench, bench.plugin, 2, jobs, mode) for _ in range(bench.rounds)]
        yield bench.line(
            "run",
            "backlog_over_limit",
            [drained.jobs_per_second / bare for drained, bare in rounds],
            mode=mode,
            jobs=jobs,
            jobs_per_second=[drained.jobs_per_second for drained, _ in rounds],
            bare_per_second=[bare for _, bare in rounds],
            own_cpu_ms_per_job=[drained.own_cpu_ms for drained, _ in rounds],
        )


def measure_latency(bench: Bench) -> Iterator[Line]:
    """One job at a time, each asked for when the one before it is on record."""
    with furnished(bench) as home, running(home) as service:
        for _ in range(bench.size(400, 60)):
            job = service.ask("POST", f"/plugin/{PLUGIN}/poll")["job_id"]
            service.ask("GET", f"/job/{job}?wait=30s")
        rows = home.rows(
            "SELECT q.created_at AS asked, l.started_at AS started, l.completed_at AS ended"
            " FROM job_queue AS q JOIN job_log AS l ON l.job_id = q.id ORDER BY q.seq"
        )[20:]
    steps = {"enqueue_to_spawn": ("asked", "started"), "spawn_to_done": ("started", "ended")}
    steps["enqueue_to_done"] = ("asked", "ended")
    found = {
        name: [(from_text(row[end]) - from_text(row[begin])).total_seconds() * 1000 for row in rows]
        for name, (begin, end) in steps.items()
    }
    tails = {
        name: {label: percentile(times, percent) for label, percent in PERCENTILES.items()}
        for name, times in found.items()
    }
    yield bench.line("run", "enqueue_to_spawn_ms", statistics.median(found["enqueue_to_spawn"]), jobs=len(rows))
    yield bench.line(
        "run", "enqueue_to_done_ms", statistics.median(found["enqueue_to_done"]), jobs=len(rows), percentiles_ms=tails
    )


def measure_start(bench: Bench) -> Iterator[Line]:
    """From exec to the first healthy answer."""
    times, anchors = [], []
    with furnished(bench) as home:
        for number in range(1 + max(bench.rounds, 3)):
            begun = time.perf_counter()
            subprocess.run(IMPORT_TRIO, check=True)
            anchor, begun = time.perf_counter() - begun, time.perf_counter()
            with running(home) as service:
                service.ask("GET", "/healthz")
                if number:  # the first reads everything from the disk and makes the ledger
                    times.append(time.perf_counter() - begun)
                    anchors.append(anchor)
    ratios = [mine / least for mine, least in zip(times, anchors, strict=True)]
    yield bench.line("B6", "start_over_import_trio", ratios, import_trio_seconds=anchors)
    yield bench.line("B6", "start_seconds", times)


def measure_sleepers(bench: Bench) -> Iterator[Line]:
    """200 jobs that sleep a second on 50 workers: ideally four seconds."""
    jobs = bench.size(200, 100)
    with furnished(bench, SLEEP, workers=50) as home:
        backlog(home, jobs)
        rate = drain(home, jobs).jobs_per_second
    yield bench.line("B11", "sleepers_over_ideal", rate / 50, jobs=jobs, seconds=jobs / rate, ideal_seconds=jobs / 50)


def measure_big(bench: Bench) -> Iterator[Line]:
    """40 payloads of 1 MiB and answers of 8 MiB, against C sending and reading the same through pipes."""
    jobs, ratios, rates = bench.size(40, 6), [], []
    payload = json.dumps({"filler": "x" * (1 << 20)})
    for _ in range(bench.rounds):
        with furnished(bench, bench.folder / "big") as home:
            bare = bench.limit(plugin_of(home), width=2, count=jobs, request_bytes=len(payload))
            backlog(home, jobs, payload)
            rates.append(drain(home, jobs).jobs_per_second)
        ratios.append(rates[-1] / bare.runs_per_second)
    megabytes = [rate * 9 for rate in rates]
    yield bench.line("B12", "big_over_limit", ratios, jobs=jobs, megabytes_per_second=megabytes)


if __name__ == "__main__":
    measures = {
        "jobs": measure_jobs,
        "backlog": measure_backlog,
        "latency": measure_latency,
        "start": measure_start,
        "sleepers": measure_sleepers,
        "big": measure_big,
    }
    sys.exit(main("run", __doc__, measures))
