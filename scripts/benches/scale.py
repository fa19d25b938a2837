"""Measure the same work with a short and a long history, and with a short and a long queue.

history  jobs, deliveries, reads, lists, synchronous pipelines and start with a long history ÷ with 1,000 finished jobs
drains   a backlog with histories of increasing length
queue    a long backlog ÷ a short one; with a short and with a long history
kill     `kill -9` while a backlog runs, and the start after it
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from ductile.core.clock import from_text, to_text
from scripts.benches.lib.backlog import (
    Drained,
    attempt_count,
    drain,
    enqueue_backlog,
    last_attempt,
    time_span,
    wait_for_attempt,
    wait_until,
)
from scripts.benches.lib.bench import Bench, Line, main, percentile
from scripts.benches.lib.http_client import (
    check_pipeline,
    delivery_requests,
    pipeline_requests,
    send_requests,
    time_reads,
)
from scripts.benches.lib.instance import PLUGIN, Instance, new_instance
from scripts.benches.lib.service import Service, running_service

SHORT_HISTORY = 1_000
MAX_DRAIN_SECONDS = 120
LISTS = {
    "newest": "/jobs?limit=20",
    "by_common_status": "/jobs?limit=20&status=succeeded",
    "by_rare_status": "/jobs?limit=20&status=dead",
    "by_common_plugin": "/jobs?limit=20&plugin=plugin-3",
    "by_rare_plugin": f"/jobs?limit=20&plugin={PLUGIN}",
    "by_common_both": "/jobs?limit=20&status=succeeded&plugin=plugin-3",
    "by_rare_both": "/jobs?limit=20&status=dead&plugin=plugin-3",
}
RATIOS = {
    "drain": ("B7", "per_second"),
    "accept": ("B7", "per_second"),
    "job": ("B7", "per_second"),
    "one_step": ("B7c", "p50_ms"),
    "three_steps": ("B7c", "p50_ms"),
}
LOGS = {"logs": "/job-logs?limit=20", "logs_by_plugin": f"/job-logs?limit=20&plugin={PLUGIN}"}


def measure_history(bench: Bench) -> Iterator[Line]:
    """Start a service with each history and use them alternately. A service that is not used is idle."""
    count = bench.size(3000, 300)
    pairs: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        services = []
        for rows in (SHORT_HISTORY, bench.rows):
            instance = stack.enter_context(new_instance(bench, history=rows))
            starts = [_time_start(instance) for _ in range(bench.rounds)]
            services.append(stack.enter_context(running_service(instance)))
        for service in services:
            check_pipeline(service, "one", 1)
            check_pipeline(service, "three", 3)
        for _ in range(bench.rounds):
            for name, values in _compare_services(bench, services, count).items():
                pairs.setdefault(name, []).append(values)
        lists = {name: time_reads(services[1], path, 40) for name, path in (LISTS | LOGS).items()}
    for name, (key, unit) in RATIOS.items():
        ratios = [long / short for short, long in pairs[name]]
        values_by_history: dict[str, Any] = {
            unit: {"short": [short for short, _ in pairs[name]], "long": [long for _, long in pairs[name]]}
        }
        yield bench.line(key, f"{name}_over_short", ratios, rows=bench.rows, **values_by_history)
    medians = {name: statistics.median(times) for name, times in lists.items()}
    worst = {name: percentile(times, 95) for name, times in lists.items()}
    slowest = max(medians[name] for name in LISTS)
    yield bench.line("B7b", "jobs_ms", slowest, rows=bench.rows, p50_ms=medians, p95_ms=worst)
    yield bench.line("scale", "start_seconds", starts, rows=bench.rows)


def _time_start(instance: Instance) -> float:
    """Return the seconds from exec to the first healthy response."""
    begin = time.perf_counter()
    with running_service(instance) as service:
        service.request("GET", "/healthz")
        return time.perf_counter() - begin


def _compare_services(bench: Bench, services: list[Service], count: int) -> dict[str, tuple[float, float]]:
    """Measure one round. Return (short history, long history) per measure, per second or in milliseconds."""
    rounds = [_measure_service(bench, service, count) for service in services]
    return {name: (rounds[0][name], rounds[1][name]) for name in rounds[0]}


def _measure_service(bench: Bench, service: Service, count: int) -> dict[str, float]:
    """Return the results of one service, per second or in milliseconds."""
    before = attempt_count(service.instance)
    service.request("POST", "/queue/pause")
    accepted = send_requests(bench, service.webhook_port, delivery_requests(count))
    service.request("POST", "/queue/resume")
    with service.instance.read_ledger() as db:
        wait_for_attempt(db, before + count)
    first, last = time_span(service.instance, before, count)
    job = service.request("POST", f"/plugin/{PLUGIN}/poll")["job_id"]
    service.request("GET", f"/job/{job}?wait=30s")
    calls = bench.size(200, 50)
    return {
        "accept": accepted.per_second,
        "drain": count / (last - first).total_seconds(),
        "job": 1000 / statistics.median(time_reads(service, f"/job/{job}", calls)),
        "one_step": send_requests(bench, service.port, pipeline_requests("one", calls), 1).p50_ms,
        "three_steps": send_requests(bench, service.port, pipeline_requests("three", calls), 1).p50_ms,
    }


def drain_new_instance(bench: Bench, *, jobs: int, history: int) -> Drained:
    """Run a backlog in a new instance, for at most `MAX_DRAIN_SECONDS`."""
    with new_instance(bench, history=history) as instance:
        enqueue_backlog(instance, jobs)
        return drain(instance, jobs, max_seconds=MAX_DRAIN_SECONDS)


def measure_drains(bench: Bench) -> Iterator[Line]:
    """Run the same backlog with histories of increasing length."""
    jobs = bench.size(3000, 300)
    lengths = sorted({0, *(10**power for power in (4, 5) if 10**power < bench.rows), bench.rows})
    points = [(rows, drain_new_instance(bench, jobs=jobs, history=rows).jobs_per_second) for rows in lengths]
    ratio = points[-1][1] / points[0][1]
    yield bench.line("scale", "drain_by_history", ratio, jobs=jobs, jobs_per_second=points)


def measure_queue(bench: Bench) -> Iterator[Line]:
    """Run 100,000 queued jobs with a short and with a long history."""
    few, many = bench.size(3_000, 300), bench.size(100_000, 3_000)
    short = [drain_new_instance(bench, jobs=few, history=SHORT_HISTORY) for _ in range(bench.rounds)]
    long, longest = (drain_new_instance(bench, jobs=many, history=rows) for rows in (SHORT_HISTORY, bench.rows))
    over = long.jobs_per_second / statistics.median(one.jobs_per_second for one in short)
    rates = {"few": [one.jobs_per_second for one in short], "many": long.jobs_per_second}
    yield bench.line("B8", "long_queue_over_short", over, few=few, many=many, drained=long.jobs, jobs_per_second=rates)
    yield bench.line("B8", "first_run_seconds", long.first_run_seconds, queued=many)
    yield bench.line(
        "scale",
        "long_queue_long_history",
        longest.jobs_per_second / long.jobs_per_second,
        queued=many,
        drained=longest.jobs,
        rows=bench.rows,
        jobs_per_second=[(SHORT_HISTORY, long.jobs_per_second), (bench.rows, longest.jobs_per_second)],
        first_run_seconds=longest.first_run_seconds,
    )


def measure_kill(bench: Bench) -> Iterator[Line]:
    """Kill the service while a backlog runs, and let another one run the rest."""
    jobs = bench.size(10_000, 600)
    with new_instance(bench) as instance:
        enqueue_backlog(instance, jobs)
        with running_service(instance), instance.read_ledger() as db:
            wait_for_attempt(db, jobs // 2, interval=0.02)
        recorded = attempt_count(instance)
        with running_service(instance) as service, instance.read_ledger() as db:
            unfinished = "SELECT COUNT(*) FROM job_queue WHERE status IN ('queued', 'running')"
            wait_until(lambda: last_attempt(db) >= jobs and not db.execute(unfinished).fetchone()[0])
            first = _first_run_after(instance, service.started_at)
        (row,) = instance.rows("SELECT COUNT(*) AS n FROM job_queue WHERE status = 'succeeded'")
        (recovered,) = instance.rows("SELECT SUM(recoveries) AS n FROM job_queue")
    yield bench.line("B13", "jobs_lost", jobs - row["n"], jobs=jobs, recorded_before=recorded, recovered=recovered["n"])
    yield bench.line("B13", "first_run_seconds", first)


def _first_run_after(instance: Instance, start: datetime) -> float:
    """Return the seconds from `start` until a job started."""
    (row,) = instance.rows("SELECT MIN(started_at) AS first FROM job_log WHERE started_at > ?", to_text(start))
    return (from_text(row["first"]) - start).total_seconds()


if __name__ == "__main__":
    measures = {"history": measure_history, "drains": measure_drains, "queue": measure_queue, "kill": measure_kill}
    sys.exit(main("scale", __doc__, measures))
