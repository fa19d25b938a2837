"""Measure what a service uses while it is idle, and how its memory grows.

quiet    processor, wake-ups and memory in 20 idle seconds: without schedules, with 1,000, and with 1,000 of which 20
         are due at the full minute; then the first call after the idle time
growth   memory and processor time while many jobs run
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from scripts.benches.lib.backlog import time_span, wait_for_attempt
from scripts.benches.lib.bench import Bench, Line, main
from scripts.benches.lib.http_client import check_pipeline, delivery_requests, pipeline_requests, send_requests
from scripts.benches.lib.instance import distant_schedules, new_instance
from scripts.benches.lib.service import Service, running_service
from scripts.benches.lib.usage import cpu_seconds, pss_mb, read_usage

DUE_SCHEDULES = 20


def measure_quiet(bench: Bench) -> Iterator[Line]:
    """Observe all services in the same seconds. Unless `quick`, a full minute is in the middle of them."""
    seconds = bench.size(20, 4)
    every_minute = [f"{{id: m{number}, cron: '* * * * *'}}" for number in range(DUE_SCHEDULES)]
    with ExitStack() as stack:

        def start(**options: Any) -> Service:
            return stack.enter_context(running_service(stack.enter_context(new_instance(bench, **options))))

        plain = {mode: start(mode=mode) for mode in bench.modes}
        idle = {"": plain[bench.mode], "_1000_schedules": start(schedules=distant_schedules(1000))}
        due = start(schedules=[*distant_schedules(1000 - DUE_SCHEDULES), *every_minute])
        for service in plain.values():
            check_pipeline(service, "one", 1)
        # Longer than the work that follows a start or a call.
        time.sleep(3 if bench.quick else 12 + (38 - time.time()) % 60)
        observed = {**idle, "due": due}
        before, jobs = {name: read_usage(service.pid) for name, service in observed.items()}, job_count(due)
        time.sleep(seconds)
        usage = {name: read_usage(service.pid).since(before[name]) for name, service in observed.items()}
        jobs = job_count(due) - jobs
        memory = {name: pss_mb(service.pid) for name, service in idle.items()}
        first = first_calls(bench, plain, seconds)
    for name in idle:
        yield bench.line("B5", f"idle_cpu_percent{name}", usage[name].cpu_seconds / seconds * 100, seconds=seconds)
        yield bench.line("B5", f"idle_wakeups{name}", usage[name].wakeups / seconds, seconds=seconds)
    yield bench.line("B5b", "idle_pss_mb", memory[""], with_1000_schedules=memory["_1000_schedules"])
    for mode, times in first.items():
        yield bench.line("B1b", "first_after_idle_ms", times, mode=mode, idle_seconds=seconds)
    if not bench.quick:
        assert jobs == DUE_SCHEDULES, f"{jobs} jobs ran, {DUE_SCHEDULES} were due"
        extra = usage["due"].cpu_seconds - usage["_1000_schedules"].cpu_seconds
        yield bench.line("idle", "cpu_ms_per_due_job", extra * 1000 / jobs, jobs=jobs)


def first_calls(bench: Bench, services: Mapping[str, Service], idle_seconds: int) -> dict[str, list[float]]:
    """Return the milliseconds of calls after idle time. The services are already idle before the first call."""
    times: dict[str, list[float]] = {mode: [] for mode in services}
    for number in range(bench.rounds):
        time.sleep(idle_seconds if number else 0)
        for mode, service in services.items():
            times[mode].append(send_requests(bench, service.port, pipeline_requests("one", 1), 1).p50_ms)
    return times


def job_count(service: Service) -> int:
    return len(service.instance.rows("SELECT 1 FROM job_queue"))


def measure_growth(bench: Bench) -> Iterator[Line]:
    """Send signed deliveries in portions. Send the next portion when all jobs of the last are recorded."""
    count = bench.size(50_000, 2_000)
    portion = count // 20
    with new_instance(bench) as instance, running_service(instance) as service, instance.read_ledger() as db:
        service.request("GET", "/topology")  # loads the modules that are imported on first use
        time.sleep(1)
        memory, begin, cpu_before = [(0, pss_mb(service.pid))], time.perf_counter(), cpu_seconds(service.pid)
        for sent in range(portion, count + 1, portion):
            send_requests(bench, service.webhook_port, delivery_requests(portion))
            wait_for_attempt(db, sent)
            memory.append((sent, pss_mb(service.pid)))
        seconds, cpu = time.perf_counter() - begin, cpu_seconds(service.pid) - cpu_before
        time_span(instance, 0, count)
        time.sleep(2)
        after_rest = pss_mb(service.pid)
    after_a_tenth = memory[2][1]
    yield bench.line(
        "B5b",
        "growth_mb",
        after_rest - memory[0][1],
        jobs=count,
        since_a_tenth_mb=after_rest - after_a_tenth,
        memory_mb=memory,
    )
    yield bench.line("idle", "busy_cpu_percent", cpu / seconds * 100, jobs=count, jobs_per_second=count / seconds)


if __name__ == "__main__":
    sys.exit(main("idle", __doc__, {"quiet": measure_quiet, "growth": measure_growth}))
