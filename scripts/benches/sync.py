"""How long a caller waits for a synchronous pipeline, against three bare runs of its plugin in the same minutes.

three_steps_over_bare   median of POST /pipeline (three steps) ÷ three times the median of a bare run in C (at most 4)
with_history            the same with a long history behind it ÷ without (at most 1.2)
fan_out_ms              one event routed to 100 jobs: from the end of the parent to the last child queued (at most 20)
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
from scripts.benches.ledger import fill
from scripts.benches.run import HERE, Bench, install, percentile, result
from tests.e2e.service import TOKEN, Home, Service
from tests.engine.builders import snapshot_of

PIPELINES = """
pipelines:
  - name: three
    on: bench.three
    execution_mode: synchronous
    timeout: 20s
    steps: [{uses: least}, {uses: least}, {uses: least}]
  - name: fan
    on: bench.fan
    steps:
      - {id: first, uses: least}
      - id: each
        foreach: payload.items
        uses: least
"""
MANIFEST_COMMANDS = "commands: {poll: {type: read}}"


def make(bench: Bench, folder: Path, plugin: Path, workers: int) -> Home:
    home = Home.make(folder, workers=workers)
    text = (home.path / "config.yaml").read_text().replace("log_level: debug", "log_level: warn")
    home.write("config.yaml", text + "plugins: {least: {}}\n" + PIPELINES)
    manifest = install(home, "least", plugin).parent / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace(MANIFEST_COMMANDS, "commands: {poll: {}, handle: {}}"))
    home.seal()
    return home


def waits(service: Service, count: int) -> list[float]:
    """Milliseconds of each synchronous run, by one client on one connection."""
    where = urlsplit(service.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    body = json.dumps({"payload": {"filler": "x" * 100}})
    times = []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("POST", "/pipeline/three", body, headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        times.append((time.perf_counter() - began) * 1000)
        assert (answer.status, content["status"], len(content["tree"])) == (200, "succeeded", 3), content
    connection.close()
    return times


def measure_steps(bench: Bench, plugin: Path, rows: int) -> Iterator[dict[str, Any]]:
    ratios, p50s, p99s, bares = [], [], [], []
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        service = make(bench, Path(directory) / "home", plugin, workers=4).start()
        try:
            waits(service, 50)
            for _ in range(bench.rounds):
                _, micros, _ = bench.limit(plugin, width=1, count=1000)
                times = waits(service, 200)
                p50s.append(statistics.median(times))
                p99s.append(percentile(times, 99))
                bares.append(micros / 1000)
                ratios.append(p50s[-1] / (3 * bares[-1]))
        finally:
            service.kill()
    yield result(
        "three_steps_over_bare",
        statistics.median(ratios),
        bench="sync",
        at_most=4,
        rounds=ratios,
        p50_ms=p50s,
        p99_ms=p99s,
        bare_ms=bares,
    )
    if rows:
        yield from measure_history(bench, plugin, rows)


def measure_history(bench: Bench, plugin: Path, rows: int) -> Iterator[dict[str, Any]]:
    """Two services side by side, measured in turn."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        homes = [make(bench, Path(directory) / name, plugin, workers=4) for name in ("short", "long")]
        for home, count in zip(homes, (1_000, rows), strict=True):
            home.ledger.parent.mkdir(mode=0o700, exist_ok=True)
            fill(home.ledger, count)
        services = [home.start() for home in homes]
        try:
            medians: list[list[float]] = [[], []]
            for service in services:
                waits(service, 50)
            for _ in range(bench.rounds):
                for times, service in zip(medians, services, strict=True):
                    times.append(statistics.median(waits(service, 150)))
        finally:
            for service in services:
                service.kill()
    short, long = (statistics.median(times) for times in medians)
    yield result(
        "with_history", long / short, bench="sync", at_most=1.2, rows=rows, short_ms=medians[0], long_ms=medians[1]
    )


def measure_fan_out(bench: Bench, plugin: Path) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        home = make(bench, Path(directory) / "home", plugin, workers=2)
        home.ledger.parent.mkdir(mode=0o700, exist_ok=True)
        snapshot = snapshot_of(home)
        spans = trio.run(fan_out, home.ledger, snapshot)
    yield result("fan_out_ms", statistics.median(spans), bench="sync", at_most=20, rounds=spans)


async def fan_out(path: Path, snapshot: Snapshot) -> list[float]:
    """Milliseconds from the end of a step to its 100 children being durable, in one transaction each time."""
    spans = []
    claim: dict[str, Any] = {"run_id": "bench", "free": {"least": 1}, "limit": 1}
    async with open_ledger(path) as ledger:
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench sync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="length of the long history; 0 leaves it out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folder = Path(directory)
        plugin, launcher = folder / "plugin", folder / "launcher"
        subprocess.run(["gcc", "-O2", "-static", "-o", plugin, HERE / "plugin.c"], check=True)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", launcher, HERE / "launcher.c"], check=True)
        bench = Bench(folder, launcher, options.rounds, "full")
        for measure in (measure_steps(bench, plugin, options.rows), measure_fan_out(bench, plugin)):
            for line in measure:
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
