"""Measure how long a caller waits for a synchronous pipeline, relative to bare runs of its plugin.

steps    median of POST /pipeline (three steps) ÷ three times the median of a bare run
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

from scripts.benches.lib.bench import Bench, Line, main
from scripts.benches.lib.http_client import check_pipeline, pipeline_requests, send_requests
from scripts.benches.lib.instance import new_instance
from scripts.benches.lib.service import running_service


def measure_steps(bench: Bench) -> Iterator[Line]:
    """Start one service per mode and call them alternately. A service that is not called is idle."""
    count = bench.size(200, 50)
    results: dict[str, dict[str, list[float]]] = {
        mode: {"ratio": [], "p50_ms": [], "p99_ms": [], "bare_ms": []} for mode in bench.modes
    }
    with ExitStack() as stack:
        services = {}
        for mode in bench.modes:
            instance = stack.enter_context(new_instance(bench, workers=4, mode=mode))
            services[mode] = stack.enter_context(running_service(instance))
            check_pipeline(services[mode], "three", 3)
            send_requests(bench, services[mode].port, pipeline_requests("three", count // 4), 1)
        for _ in range(bench.rounds):
            for mode, service in services.items():
                bare = bench.bare_runs(bench.plugin, width=1, count=5 * count)
                call = send_requests(bench, service.port, pipeline_requests("three", count), 1)
                results[mode]["ratio"].append(call.p50_ms / (3 * bare.p50_ms))
                results[mode]["p50_ms"].append(call.p50_ms)
                results[mode]["p99_ms"].append(call.p99_ms)
                results[mode]["bare_ms"].append(bare.p50_ms)
    for mode, values in results.items():
        yield bench.line("B4", "three_steps_over_bare", values.pop("ratio"), mode=mode, **values)


if __name__ == "__main__":
    sys.exit(main("sync", __doc__, {"steps": measure_steps}))
