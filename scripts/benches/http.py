"""Requests: the latency of synchronous calls, and deliveries per second, beside bare runs in the same minutes.

calls      POST /pipeline (one step, synchronous): the median of one caller minus that of a bare run in C;
           and 16 callers at once, answers per second ÷ bare runs per second
accept     signed deliveries accepted per second, 16 connections, while nothing runs
deliver    signed deliveries, 16 connections, until every job is on record ÷ bare runs per second; how long a
           delivery waits meanwhile, and our own processor time for a job
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from scripts.benches.bench import Bench, Line, main
from scripts.benches.calls import check, deliveries, load, pipeline
from scripts.benches.homes import attempts, furnished, running, span, wait_for_attempt
from scripts.benches.usage import cpu_seconds


def measure_calls(bench: Bench) -> Iterator[Line]:
    """Services of every mode side by side, asked in turn; one that is not asked does nothing."""
    alone, together = bench.size(200, 50), bench.size(1000, 200)
    found: dict[str, dict[str, list[float]]] = {
        mode: {"extra": [], "p50_ms": [], "bare_ms": [], "share": [], "per_second": []} for mode in bench.modes
    }
    with ExitStack() as stack:
        services = {}
        for mode in bench.modes:
            home = stack.enter_context(furnished(bench, workers=4, mode=mode))
            services[mode] = stack.enter_context(running(home))
            check(services[mode], "one", 1)
            load(bench, services[mode].port, pipeline("one", 50), 1)
        for _ in range(bench.rounds):
            for mode, service in services.items():
                bare = bench.limit(bench.plugin, width=1, count=together)
                one = load(bench, service.port, pipeline("one", alone), 1)
                limit = bench.limit(bench.plugin, width=2, count=2 * together)
                many = load(bench, service.port, pipeline("one", together))
                found[mode]["extra"].append(one.p50_ms - bare.p50_ms)
                found[mode]["p50_ms"].append(one.p50_ms)
                found[mode]["bare_ms"].append(bare.p50_ms)
                found[mode]["share"].append(many.per_second / limit.runs_per_second)
                found[mode]["per_second"].append(many.per_second)
    for mode, of in found.items():
        yield bench.line("B1", "one_step_ms", of["extra"], mode=mode, p50_ms=of["p50_ms"], bare_ms=of["bare_ms"])
        yield bench.line("B10", "sync_over_limit", of["share"], mode=mode, per_second=of["per_second"])


def measure_accept(bench: Bench) -> Iterator[Line]:
    """Deliveries that are only queued."""
    count = bench.size(5000, 1000)
    for mode in bench.modes:
        rates, p99s = [], []
        for _ in range(bench.rounds):
            with furnished(bench, mode=mode) as home, running(home) as service:
                service.ask("POST", "/queue/pause")
                load(bench, service.hook_port, deliveries(count // 10))
                accepted = load(bench, service.hook_port, deliveries(count))
            rates.append(accepted.per_second)
            p99s.append(accepted.p99_ms)
        yield bench.line("B3", "accepts_per_second", rates, mode=mode, p99_ms=p99s)


def measure_deliver(bench: Bench) -> Iterator[Line]:
    count = bench.size(5000, 500)
    for mode in bench.modes:
        ratios, rates, p99s, cpus, accepted = [], [], [], [], []
        for _ in range(bench.rounds):
            limit = bench.limit(bench.plugin, width=2, count=count)
            with furnished(bench, mode=mode) as home, running(home) as service, home.read_ledger() as db:
                load(bench, service.hook_port, deliveries(50))
                wait_for_attempt(db, 50)
                before, used = attempts(home), cpu_seconds(service.pid)
                requests, begun = deliveries(count), datetime.now(UTC)
                taken = load(bench, service.hook_port, requests)
                wait_for_attempt(db, before + count)
                used = cpu_seconds(service.pid) - used
                _, last = span(home, before, count)
            rates.append(count / (last - begun).total_seconds())
            ratios.append(rates[-1] / limit.runs_per_second)
            accepted.append(taken.per_second)
            p99s.append(taken.p99_ms)
            cpus.append(used * 1000 / count)
        yield bench.line(
            "B2f" if mode == "full" else "B2", "drain_over_limit", ratios, mode=mode, jobs=count, jobs_per_second=rates
        )
        yield bench.line("B3b", "accept_p99_ms", p99s, mode=mode, accepts_per_second=accepted)
        yield bench.line("B16", "own_cpu_ms_per_job", cpus, mode=mode)


if __name__ == "__main__":
    measures = {
        "calls": measure_calls,
        "accept": measure_accept,
        "deliver": measure_deliver,
    }
    sys.exit(main("http", __doc__, measures))
