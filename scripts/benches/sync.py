"""How long a caller waits for a synchronous pipeline, beside three bare runs of its plugin in the same minutes.

steps    median of POST /pipeline (three steps) ÷ three times the median of a bare run in C
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

from scripts.benches.bench import Bench, Line, main
from scripts.benches.calls import check, load, pipeline
from scripts.benches.homes import furnished, running


def measure_steps(bench: Bench) -> Iterator[Line]:
    """Services of every mode side by side, asked in turn; one that is not asked does nothing."""
    count = bench.size(200, 50)
    found: dict[str, dict[str, list[float]]] = {
        mode: {"ratio": [], "p50_ms": [], "p99_ms": [], "bare_ms": []} for mode in bench.modes
    }
    with ExitStack() as stack:
        services = {}
        for mode in bench.modes:
            home = stack.enter_context(furnished(bench, workers=4, mode=mode))
            services[mode] = stack.enter_context(running(home))
            check(services[mode], "three", 3)
            load(bench, services[mode].port, pipeline("three", count // 4), 1)
        for _ in range(bench.rounds):
            for mode, service in services.items():
                bare = bench.limit(bench.plugin, width=1, count=5 * count)
                ours = load(bench, service.port, pipeline("three", count), 1)
                found[mode]["ratio"].append(ours.p50_ms / (3 * bare.p50_ms))
                found[mode]["p50_ms"].append(ours.p50_ms)
                found[mode]["p99_ms"].append(ours.p99_ms)
                found[mode]["bare_ms"].append(bare.p50_ms)
    for mode, of in found.items():
        yield bench.line("B4", "three_steps_over_bare", of.pop("ratio"), mode=mode, **of)


if __name__ == "__main__":
    sys.exit(main("sync", __doc__, {"steps": measure_steps}))
