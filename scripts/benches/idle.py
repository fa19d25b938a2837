"""What a service uses up while it does nothing, and while it does a lot.

quiet    20 seconds without work, without schedules and with 1,000 of them, and with 20 of these due at the turn of
         the minute; then the first call after that
growth   memory and processor time over many jobs
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from scripts.benches.bench import Bench, Line, main
from scripts.benches.calls import check, deliveries, load, pipeline
from scripts.benches.homes import Running, asleep, furnished, running, span, wait_for_attempt
from scripts.benches.usage import cpu_seconds, pss_mb, used

EACH_MINUTE = 20


def measure_quiet(bench: Bench) -> Iterator[Line]:
    """All services in the same seconds, and in the middle of these the turn of a minute, if there is time for one."""
    seconds = bench.size(20, 4)
    every_minute = [f"{{id: m{number}, cron: '* * * * *'}}" for number in range(EACH_MINUTE)]
    with ExitStack() as stack:

        def start(**how: Any) -> Running:
            return stack.enter_context(running(stack.enter_context(furnished(bench, **how))))

        plain = {mode: start(mode=mode) for mode in bench.modes}
        idle = {"": plain[bench.mode], "_1000_schedules": start(schedules=asleep(1000))}
        due = start(schedules=[*asleep(1000 - EACH_MINUTE), *every_minute])
        for service in plain.values():
            check(service, "one", 1)
        time.sleep(3 if bench.quick else 12 + (38 - time.time()) % 60)  # what follows a start or a call is done by then
        watched = {**idle, "due": due}
        before, jobs = {name: used(service.pid) for name, service in watched.items()}, job_count(due)
        time.sleep(seconds)
        spent = {name: used(service.pid).since(before[name]) for name, service in watched.items()}
        jobs = job_count(due) - jobs
        memory = {name: pss_mb(service.pid) for name, service in idle.items()}
        first = first_calls(bench, plain, seconds)
    for name in idle:
        yield bench.line("B5", f"idle_cpu_percent{name}", spent[name].cpu_seconds / seconds * 100, seconds=seconds)
        yield bench.line("B5", f"idle_wakeups{name}", spent[name].wakeups / seconds, seconds=seconds)
    yield bench.line("B5b", "idle_pss_mb", memory[""], with_1000_schedules=memory["_1000_schedules"])
    for mode, found in first.items():
        yield bench.line("B1b", "first_after_idle_ms", found, mode=mode, idle_seconds=seconds)
    if not bench.quick:
        assert jobs == EACH_MINUTE, f"{jobs} jobs were due, not {EACH_MINUTE}"
        extra = spent["due"].cpu_seconds - spent["_1000_schedules"].cpu_seconds
        yield bench.line("idle", "cpu_ms_per_due_job", extra * 1000 / jobs, jobs=jobs)


def first_calls(bench: Bench, services: Mapping[str, Running], idle_seconds: int) -> dict[str, list[float]]:
    """Milliseconds of a call after so much idle time; before the first of them it has gone by already."""
    found: dict[str, list[float]] = {mode: [] for mode in services}
    for number in range(bench.rounds):
        time.sleep(idle_seconds if number else 0)
        for mode, service in services.items():
            found[mode].append(load(bench, service.port, pipeline("one", 1), 1).p50_ms)
    return found


def job_count(service: Running) -> int:
    return len(service.home.rows("SELECT 1 FROM job_queue"))


def measure_growth(bench: Bench) -> Iterator[Line]:
    """Signed deliveries in portions, each recorded before the next is sent."""
    count = bench.size(50_000, 2_000)
    portion = count // 20
    with furnished(bench) as home, running(home) as service, home.read_ledger() as db:
        service.ask("GET", "/topology")  # whatever a service loads by itself later on is loaded by then
        time.sleep(1)
        memory, began, spent = [(0, pss_mb(service.pid))], time.perf_counter(), cpu_seconds(service.pid)
        for sent in range(portion, count + 1, portion):
            load(bench, service.hook_port, deliveries(portion))
            wait_for_attempt(db, sent)
            memory.append((sent, pss_mb(service.pid)))
        seconds, spent = time.perf_counter() - began, cpu_seconds(service.pid) - spent
        span(home, 0, count)
        time.sleep(2)
        rested = pss_mb(service.pid)
    warm = memory[2][1]
    yield bench.line(
        "B5b", "growth_mb", rested - memory[0][1], jobs=count, since_a_tenth_mb=rested - warm, memory_mb=memory
    )
    yield bench.line("idle", "busy_cpu_percent", spent / seconds * 100, jobs=count, jobs_per_second=count / seconds)


if __name__ == "__main__":
    sys.exit(main("idle", __doc__, {"quiet": measure_quiet, "growth": measure_growth}))
