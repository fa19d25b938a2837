"""Measure how fast jobs run, relative to a C program that runs the same plugin without Ductile ("bare runs").

jobs      a backlog with a C, a sh and a Python plugin on 1, 2 and 8 workers ÷ bare runs of the same width
backlog   a longer backlog in each ledger mode
latency   one job at a time on an idle service: enqueue → spawn → recorded
start     from exec to the first healthy response ÷ `python -c "import trio"`
sleepers  200 jobs that sleep for one second, on 50 workers
big       1 MiB in, 8 MiB out ÷ bare runs with the same sizes
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
from scripts.benches.lib.backlog import Drained, drain, enqueue_backlog
from scripts.benches.lib.bench import Bench, Line, main, percentile
from scripts.benches.lib.instance import PLUGIN, entrypoint_of, new_instance
from scripts.benches.lib.measures import PLUGINS, WORKERS
from scripts.benches.lib.service import running_service

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
    """Measure each plugin with each number of workers."""
    entrypoints: dict[str, Path | str] = {"c": bench.plugin, "sh": SH, "python": PYTHON}
    sizes = {"c": bench.size(1500, 300), "sh": bench.size(1000, 200), "python": bench.size(200, 30)}
    for kind, name in PLUGINS.items():
        for workers in WORKERS:
            rounds = [race(bench, entrypoints[kind], workers, sizes[kind], bench.mode) for _ in range(bench.rounds)]
            ratios = [drained.jobs_per_second / bare for drained, bare in rounds]
            details: dict[str, Any] = {
                "plugin": name,
                "workers": workers,
                "jobs": sizes[kind],
                "jobs_per_second": statistics.median(drained.jobs_per_second for drained, _ in rounds),
                "bare_per_second": statistics.median(bare for _, bare in rounds),
            }
            yield bench.line("run", f"{kind}_{workers}", ratios, **details)
            if (kind, workers) == ("python", 2):
                yield bench.line("B9", "python_over_limit", ratios, **details)


def race(bench: Bench, entrypoint: Path | str, workers: int, jobs: int, mode: str) -> tuple[Drained, float]:
    """Measure bare runs, then drain a backlog with the same plugin and width. Return both."""
    with new_instance(bench, entrypoint, workers=workers, mode=mode) as instance:
        bare = bench.bare_runs(entrypoint_of(instance), width=workers, count=jobs)
        enqueue_backlog(instance, jobs)
        return drain(instance, jobs), bare.runs_per_second


def measure_backlog(bench: Bench) -> Iterator[Line]:
    jobs = bench.size(5000, 500)
    for mode in bench.modes:
        rounds = [race(bench, bench.plugin, 2, jobs, mode) for _ in range(bench.rounds)]
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
    """Run one job at a time; request the next when the last is recorded."""
    with new_instance(bench) as instance, running_service(instance) as service:
        for _ in range(bench.size(400, 60)):
            job = service.request("POST", f"/plugin/{PLUGIN}/poll")["job_id"]
            service.request("GET", f"/job/{job}?wait=30s")
        rows = instance.rows(
            "SELECT q.created_at AS queued, l.started_at AS started, l.completed_at AS ended"
            " FROM job_queue AS q JOIN job_log AS l ON l.job_id = q.id ORDER BY q.seq"
        )[20:]
    steps = {"enqueue_to_spawn": ("queued", "started"), "spawn_to_done": ("started", "ended")}
    steps["enqueue_to_done"] = ("queued", "ended")
    times = {
        name: [(from_text(row[end]) - from_text(row[begin])).total_seconds() * 1000 for row in rows]
        for name, (begin, end) in steps.items()
    }
    percentiles = {
        name: {label: percentile(values, percent) for label, percent in PERCENTILES.items()}
        for name, values in times.items()
    }
    yield bench.line("run", "enqueue_to_spawn_ms", statistics.median(times["enqueue_to_spawn"]), jobs=len(rows))
    yield bench.line(
        "run",
        "enqueue_to_done_ms",
        statistics.median(times["enqueue_to_done"]),
        jobs=len(rows),
        percentiles_ms=percentiles,
    )


def measure_start(bench: Bench) -> Iterator[Line]:
    """Measure the time from exec to the first healthy response."""
    times, references = [], []
    with new_instance(bench) as instance:
        for number in range(1 + max(bench.rounds, 3)):
            begin = time.perf_counter()
            subprocess.run(IMPORT_TRIO, check=True)
            reference, begin = time.perf_counter() - begin, time.perf_counter()
            with running_service(instance) as service:
                service.request("GET", "/healthz")
                if number:  # the first start reads the code from disk and creates the ledger
                    times.append(time.perf_counter() - begin)
                    references.append(reference)
    ratios = [start / reference for start, reference in zip(times, references, strict=True)]
    yield bench.line("B6", "start_over_import_trio", ratios, import_trio_seconds=references)
    yield bench.line("B6", "start_seconds", times)


def measure_sleepers(bench: Bench) -> Iterator[Line]:
    """Run 200 jobs that sleep for one second on 50 workers. The ideal time is four seconds."""
    jobs = bench.size(200, 100)
    with new_instance(bench, SLEEP, workers=50) as instance:
        enqueue_backlog(instance, jobs)
        rate = drain(instance, jobs).jobs_per_second
    yield bench.line("B11", "sleepers_over_ideal", rate / 50, jobs=jobs, seconds=jobs / rate, ideal_seconds=jobs / 50)


def measure_big(bench: Bench) -> Iterator[Line]:
    """Run 40 jobs with a payload of 1 MiB and a result of 8 MiB, and bare runs with the same sizes."""
    jobs, ratios, rates = bench.size(40, 6), [], []
    payload = json.dumps({"filler": "x" * (1 << 20)})
    for _ in range(bench.rounds):
        with new_instance(bench, bench.folder / "large_plugin") as instance:
            bare = bench.bare_runs(entrypoint_of(instance), width=2, count=jobs, request_bytes=len(payload))
            enqueue_backlog(instance, jobs, payload)
            rates.append(drain(instance, jobs).jobs_per_second)
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
