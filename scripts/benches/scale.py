"""What a long past and a long queue cost: the same work with and without them, in the same minutes.

history  jobs, deliveries and reads with a long history ÷ with 1,000 finished jobs; lists; synchronous pipelines; start
drains   a backlog drained with histories of growing length
queue    a long backlog drained ÷ a short one; with a short and with a long history
kill     `kill -9` in the middle of a backlog, and a start after it
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from ductile.core.clock import from_text, to_text
from scripts.benches.bench import Bench, Line, main, percentile
from scripts.benches.calls import check, deliveries, load, pipeline, reads
from scripts.benches.homes import (
    PLUGIN,
    Drained,
    Running,
    attempts,
    backlog,
    drain,
    furnished,
    last_attempt,
    running,
    span,
    wait_for_attempt,
    wait_until,
)
from tests.e2e.service import Home

SHORT = 1_000
AT_MOST_SECONDS = 120
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
    """Two services side by side, asked in turn; one that is not asked does nothing."""
    count = bench.size(3000, 300)
    found: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        services = []
        for rows in (SHORT, bench.rows):
            home = stack.enter_context(furnished(bench, history=rows))
            starts = [_start(home) for _ in range(bench.rounds)]
            services.append(stack.enter_context(running(home)))
        for service in services:
            check(service, "one", 1)
            check(service, "three", 3)
        for _ in range(bench.rounds):
            for name, values in _both(bench, services, count).items():
                found.setdefault(name, []).append(values)
        lists = {name: reads(services[1], path, 40) for name, path in (LISTS | LOGS).items()}
    for name, (key, unit) in RATIOS.items():
        ratios = [long / short for short, long in found[name]]
        behind: dict[str, Any] = {
            unit: {"short": [short for short, _ in found[name]], "long": [long for _, long in found[name]]}
        }
        yield bench.line(key, f"{name}_over_short", ratios, rows=bench.rows, **behind)
    medians = {name: statistics.median(times) for name, times in lists.items()}
    worst = {name: percentile(times, 95) for name, times in lists.items()}
    slowest = max(medians[name] for name in LISTS)
    yield bench.line("B7b", "jobs_ms", slowest, rows=bench.rows, p50_ms=medians, p95_ms=worst)
    yield bench.line("scale", "start_seconds", starts, rows=bench.rows)


def _start(home: Home) -> float:
    """Seconds from exec to the first healthy answer."""
    began = time.perf_counter()
    with running(home) as service:
        service.ask("GET", "/healthz")
        return time.perf_counter() - began


def _both(bench: Bench, services: list[Running], count: int) -> dict[str, tuple[float, float]]:
    """One round: what the short and what the long history give, per second or in milliseconds."""
    rounds = [_round(bench, service, count) for service in services]
    return {name: (rounds[0][name], rounds[1][name]) for name in rounds[0]}


def _round(bench: Bench, service: Running, count: int) -> dict[str, float]:
    before = attempts(service.home)
    service.ask("POST", "/queue/pause")
    accepted = load(bench, service.hook_port, deliveries(count))
    service.ask("POST", "/queue/resume")
    with service.home.read_ledger() as db:
        wait_for_attempt(db, before + count)
    first, last = span(service.home, before, count)
    job = service.ask("POST", f"/plugin/{PLUGIN}/poll")["job_id"]
    service.ask("GET", f"/job/{job}?wait=30s")
    calls = bench.size(200, 50)
    return {
        "accept": accepted.per_second,
        "drain": count / (last - first).total_seconds(),
        "job": 1000 / statistics.median(reads(service, f"/job/{job}", calls)),
        "one_step": load(bench, service.port, pipeline("one", calls), 1).p50_ms,
        "three_steps": load(bench, service.port, pipeline("three", calls), 1).p50_ms,
    }


def drained(bench: Bench, *, jobs: int, history: int) -> Drained:
    """What became of a backlog; a machine that is too slow for all of it is stopped."""
    with furnished(bench, history=history) as home:
        backlog(home, jobs)
        return drain(home, jobs, within=AT_MOST_SECONDS)


def measure_drains(bench: Bench) -> Iterator[Line]:
    """The points between no history and the longest."""
    jobs = bench.size(3000, 300)
    lengths = sorted({0, *(10**power for power in (4, 5) if 10**power < bench.rows), bench.rows})
    points = [(rows, drained(bench, jobs=jobs, history=rows).jobs_per_second) for rows in lengths]
    ratio = points[-1][1] / points[0][1]
    yield bench.line("scale", "drain_by_history", ratio, jobs=jobs, jobs_per_second=points)


def measure_queue(bench: Bench) -> Iterator[Line]:
    """100,000 queued jobs, all of them drained, with and without a past."""
    few, many = bench.size(3_000, 300), bench.size(100_000, 3_000)
    short = [drained(bench, jobs=few, history=SHORT) for _ in range(bench.rounds)]
    long, longest = (drained(bench, jobs=many, history=rows) for rows in (SHORT, bench.rows))
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
        jobs_per_second=[(SHORT, long.jobs_per_second), (bench.rows, longest.jobs_per_second)],
        first_run_seconds=longest.first_run_seconds,
    )


def measure_kill(bench: Bench) -> Iterator[Line]:
    """Killed in the middle; another service finishes the rest."""
    jobs = bench.size(10_000, 600)
    with furnished(bench) as home:
        backlog(home, jobs)
        with running(home), home.read_ledger() as db:
            wait_for_attempt(db, jobs // 2, pause=0.02)
        done = attempts(home)
        with running(home) as service, home.read_ledger() as db:
            left = "SELECT COUNT(*) FROM job_queue WHERE status IN ('queued', 'running')"
            wait_until(lambda: last_attempt(db) >= jobs and not db.execute(left).fetchone()[0])
            first = _first_run_after(home, service.asked_at)
        (row,) = home.rows("SELECT COUNT(*) AS n FROM job_queue WHERE status = 'succeeded'")
        (again,) = home.rows("SELECT SUM(recoveries) AS n FROM job_queue")
    yield bench.line("B13", "jobs_lost", jobs - row["n"], jobs=jobs, recorded_before=done, recovered=again["n"])
    yield bench.line("B13", "first_run_seconds", first)


def _first_run_after(home: Home, moment: datetime) -> float:
    """Seconds until something ran."""
    (row,) = home.rows("SELECT MIN(started_at) AS first FROM job_log WHERE started_at > ?", to_text(moment))
    return (from_text(row["first"]) - moment).total_seconds()


if __name__ == "__main__":
    measures = {"history": measure_history, "drains": measure_drains, "queue": measure_queue, "kill": measure_kill}
    sys.exit(main("scale", __doc__, measures))
