"""Measure HTTP requests: synchronous calls and signed deliveries, relative to bare runs of the same plugin.

calls      POST /pipeline (one step, synchronous): the median of one caller minus that of a bare run;
           and 16 concurrent callers, responses per second ÷ bare runs per second
accept     signed deliveries accepted per second, 16 connections, while no job runs
deliver    signed deliveries, 16 connections, until every job is recorded ÷ bare runs per second; the time in which
           a delivery is accepted meanwhile, and the processor time of the service per job
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from scripts.benches.lib.backlog import attempt_count, time_span, wait_for_attempt
from scripts.benches.lib.bench import Bench, Line, main
from scripts.benches.lib.http_client import check_pipeline, delivery_requests, pipeline_requests, send_requests
from scripts.benches.lib.instance import new_instance
from scripts.benches.lib.service import running_service
from scripts.benches.lib.usage import cpu_seconds


def measure_calls(bench: Bench) -> Iterator[Line]:
    """Start one service per mode and call them alternately. A service that is not called is idle."""
    single, concurrent = bench.size(200, 50), bench.size(1000, 200)
    results: dict[str, dict[str, list[float]]] = {
        mode: {"extra": [], "p50_ms": [], "bare_ms": [], "share": [], "per_second": []} for mode in bench.modes
    }
    with ExitStack() as stack:
        services = {}
        for mode in bench.modes:
            instance = stack.enter_context(new_instance(bench, workers=4, mode=mode))
            services[mode] = stack.enter_context(running_service(instance))
            check_pipeline(services[mode], "one", 1)
            send_requests(bench, services[mode].port, pipeline_requests("one", 50), 1)
        for _ in range(bench.rounds):
            for mode, service in services.items():
                bare = bench.bare_runs(bench.plugin, width=1, count=concurrent)
                one = send_requests(bench, service.port, pipeline_requests("one", single), 1)
                limit = bench.bare_runs(bench.plugin, width=2, count=2 * concurrent)
                many = send_requests(bench, service.port, pipeline_requests("one", concurrent))
                results[mode]["extra"].append(one.p50_ms - bare.p50_ms)
                results[mode]["p50_ms"].append(one.p50_ms)
                results[mode]["bare_ms"].append(bare.p50_ms)
                results[mode]["share"].append(many.per_second / limit.runs_per_second)
                results[mode]["per_second"].append(many.per_second)
    for mode, values in results.items():
        yield bench.line(
            "B1", "one_step_ms", values["extra"], mode=mode, p50_ms=values["p50_ms"], bare_ms=values["bare_ms"]
        )
        yield bench.line("B10", "sync_over_limit", values["share"], mode=mode, per_second=values["per_second"])


def measure_accept(bench: Bench) -> Iterator[Line]:
    """Measure deliveries while the queue is paused."""
    count = bench.size(5000, 1000)
    for mode in bench.modes:
        rates, p99s = [], []
        for _ in range(bench.rounds):
            with new_instance(bench, mode=mode) as instance, running_service(instance) as service:
                service.request("POST", "/queue/pause")
                send_requests(bench, service.webhook_port, delivery_requests(count // 10))
                accepted = send_requests(bench, service.webhook_port, delivery_requests(count))
            rates.append(accepted.per_second)
            p99s.append(accepted.p99_ms)
        yield bench.line("B3", "accepts_per_second", rates, mode=mode, p99_ms=p99s)


def measure_deliver(bench: Bench) -> Iterator[Line]:
    count = bench.size(5000, 500)
    for mode in bench.modes:
        ratios, rates, p99s, cpus, accepted = [], [], [], [], []
        for _ in range(bench.rounds):
            limit = bench.bare_runs(bench.plugin, width=2, count=count)
            with (
                new_instance(bench, mode=mode) as instance,
                running_service(instance) as service,
                instance.read_ledger() as db,
            ):
                send_requests(bench, service.webhook_port, delivery_requests(50))
                wait_for_attempt(db, 50)
                before, cpu_before = attempt_count(instance), cpu_seconds(service.pid)
                requests, begin = delivery_requests(count), datetime.now(UTC)
                sent = send_requests(bench, service.webhook_port, requests)
                wait_for_attempt(db, before + count)
                cpu = cpu_seconds(service.pid) - cpu_before
                _, last = time_span(instance, before, count)
            rates.append(count / (last - begin).total_seconds())
            ratios.append(rates[-1] / limit.runs_per_second)
            accepted.append(sent.per_second)
            p99s.append(sent.p99_ms)
            cpus.append(cpu * 1000 / count)
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
