"""How long a caller waits for a synchronous pipeline, against three bare runs of its plugin in the same minutes.

steps    median of POST /pipeline (three steps) ÷ three times the median of a bare run in C
fan_out  one event routed to 100 jobs: from the end of the parent to the last child queued
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio

from ductile.config.snapshot import Snapshot
from ductile.ledger.claim import record_and_claim
from ductile.ledger.following import start_run
from ductile.ledger.operate import cancel
from ductile.ledger.record import Recorded
from ductile.ledger.writer import open_ledger
from ductile.model import Ending, Evidence, JobStatus, Succeeded
from ductile.pipeline.events import Ended
from ductile.pipeline.route import after, begin
from scripts.benches.bench import Bench, Line, main
from scripts.benches.calls import check, load, pipeline
from scripts.benches.homes import PLUGIN, furnished, running
from tests.engine.builders import snapshot_of


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


def measure_fan_out(bench: Bench) -> Iterator[Line]:
    with furnished(bench) as home:
        spans = trio.run(fan_out, home.ledger, snapshot_of(home), bench.mode)
    yield bench.line("B14", "fan_out_ms", spans)


async def fan_out(path: Path, snapshot: Snapshot, mode: Any) -> list[float]:
    """Milliseconds from the end of a step to its 100 children being durable, in one transaction each time."""
    spans = []
    claim: dict[str, Any] = {"run_id": "bench", "free": {PLUGIN: 1}, "limit": 1}
    async with open_ledger(path, synchronous=mode) as ledger:
        for _ in range(7):
            now = datetime.now(UTC)
            payload = {"items": list(range(100))}
            first = begin(snapshot.plans.named("fan"), payload, snapshot.world, submitted_by="bench", now=now)
            await ledger.write(start_run, first.following, now=now)
            _, claimed = await ledger.write(record_and_claim, [], now=now, **claim)
            (job,) = claimed.jobs
            began = time.perf_counter()
            following = after(job, Ended(status=JobStatus.SUCCEEDED, result="done"), (), snapshot.world, now=now)
            ending = Ending(
                job_id=job.id,
                attempt=job.attempt,
                outcome=Succeeded(Evidence(started_at=now, duration=timedelta())),
                contexts=following.contexts,
                children=following.children,
                notes=following.notes,
            )
            (recorded,), _ = await ledger.write(record_and_claim, [ending], now=now, **(claim | {"limit": 0}))
            spans.append((time.perf_counter() - began) * 1000)
            assert isinstance(recorded, Recorded)
            assert len(recorded.children) == 100
            for child in recorded.children:
                await ledger.write(cancel, child.job_id, "bench", now=now)
    return spans


if __name__ == "__main__":
    sys.exit(main("sync", __doc__, {"steps": measure_steps, "fan_out": measure_fan_out}))
