"""The doors: what a request costs beside what it asks for, in the same minutes.

one_step_ms             median of POST /pipeline (one step, synchronous) minus the median of a bare run in C (at most 3)
sync_over_limit         16 callers of the same at once, answers per second ÷ bare runs per second (at least 0.26)
accept_over_bare        signed deliveries taken per second, 16 connections, nothing runs ÷ a bare 202 from the same lane
                        (at least 0.35)
accepts_per_second      the same, absolute (at least 2,000)
accept_p99_ms           of a delivery while the jobs of the others run (at most 15)
jobs_ms                 GET /jobs?limit=20 over a long history: newest first, by status, by plugin, by both (at most 5)
job_over_short          GET /job/{id} with a long history ÷ with a short one (at most 1.2)
"""

import argparse
import hashlib
import hmac
import http.client
import json
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from scripts.benches.ledger import fill
from scripts.benches.run import HERE, Bench, install, percentile, result
from tests.e2e.service import TOKEN, Home, Service

SECRET = "bench-secret-0123456789abcdef"
CONNECTIONS = 16
MANIFEST_COMMANDS = "commands: {poll: {type: read}}"
SETTINGS = """\
include: [tokens.yaml, webhooks.yaml]
plugins: {least: {}}
pipelines:
  - {name: one, on: bench.one, execution_mode: synchronous, timeout: 20s, steps: [{uses: least}]}
"""
WEBHOOKS = """\
webhooks:
  listen: localhost:0
  endpoints: [{path: /hook, plugin: least, scheme: github, secret_ref: bench}]
"""


@frozen
class Load:
    """What the C client measured."""

    per_second: float
    p50_ms: float
    p99_ms: float
    refused: int


def make(folder: Path, plugin: Path, workers: int) -> Home:
    home = Home.make(folder, workers=workers)
    text = (home.path / "config.yaml").read_text().replace("log_level: debug", "log_level: warn")
    home.write("config.yaml", text.replace("api:\n", f"api:\n  max_concurrent_sync: {CONNECTIONS}\n") + SETTINGS)
    home.write("tokens.yaml", f"tokens: [{{name: bench, key: {SECRET}}}]\n")
    home.write("webhooks.yaml", WEBHOOKS)
    manifest = install(home, "least", plugin).parent / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace(MANIFEST_COMMANDS, "commands: {poll: {}, handle: {}}"))
    home.seal()
    return home


def hook_port(service: Service) -> int:
    (line,) = [line for line in service.stderr if " is ready: " in line]
    return int(re.findall(r"http://[^,\s]+:(\d+)", line)[1])


def deliveries(count: int) -> list[bytes]:
    """Signed requests, each with an id of its own."""
    body = json.dumps({"ref": "refs/heads/main", "filler": "x" * 400}).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return [
        request(
            "POST",
            "/hook",
            body,
            f"X-GitHub-Event: push\r\nX-GitHub-Delivery: {uuid.uuid4()}\r\nX-Hub-Signature-256: sha256={signature}\r\n",
        )
        for _ in range(count)
    ]


def request(method: str, path: str, body: bytes, headers: str) -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: bench\r\n{headers}{length}\r\n".encode() + body


def load(bench: Bench, port: int, requests: list[bytes], connections: int = CONNECTIONS) -> Load:
    file = bench.folder / "requests"
    file.write_bytes(b"".join(struct.pack("<I", len(each)) + each for each in requests))
    done = subprocess.run(
        [bench.folder / "client", str(port), str(connections), file], capture_output=True, text=True, check=True
    )
    answered, seconds, p50, p99, _, _, refused = done.stdout.split()
    assert int(answered) == len(requests), done.stdout
    return Load(int(answered) / float(seconds), float(p50) / 1000, float(p99) / 1000, int(refused))


# ── one caller, many callers ────────────────────────────────────────────────────────────────────────────────────────


def measure_sync(bench: Bench, plugin: Path) -> Iterator[dict[str, Any]]:
    extra, p50s, bares, shares, rates = [], [], [], [], []
    body = json.dumps({"payload": {"filler": "x" * 100}}).encode()
    call = request(
        "POST", "/pipeline/one", body, f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    )
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        service = make(Path(directory) / "home", plugin, workers=4).start()
        port = urlsplit(service.url).port or 0
        try:
            load(bench, port, [call] * 100, 1)
            for _ in range(bench.rounds):
                _, micros, _ = bench.limit(plugin, width=1, count=1000)
                runs, _, _ = bench.limit(plugin, width=2, count=2000)
                alone = load(bench, port, [call] * 200, 1)
                together = load(bench, port, [call] * 1000)
                assert alone.refused == together.refused == 0
                p50s.append(alone.p50_ms)
                bares.append(micros / 1000)
                extra.append(alone.p50_ms - micros / 1000)
                rates.append(together.per_second)
                shares.append(together.per_second / runs)
        finally:
            service.kill()
    yield result(
        "one_step_ms", statistics.median(extra), bench="http", at_most=3, rounds=extra, p50_ms=p50s, bare_ms=bares
    )
    yield result(
        "sync_over_limit", statistics.median(shares), bench="http", at_least=0.26, rounds=shares, per_second=rates
    )


# ── deliveries ──────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_accept(bench: Bench, plugin: Path, count: int) -> Iterator[dict[str, Any]]:
    ratios, rates, bares, p99s = [], [], [], []
    bare = subprocess.Popen([sys.executable, "-P", __file__, "--serve-bare"], stdout=subprocess.PIPE, text=True)
    assert bare.stdout is not None
    bare_port = int(bare.stdout.readline())
    try:
        for _ in range(bench.rounds):
            with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
                service = make(Path(directory) / "home", plugin, workers=2).start()
                try:
                    service.ask("POST", "/queue/pause")
                    load(bench, hook_port(service), deliveries(500))
                    bares.append(load(bench, bare_port, deliveries(count)).per_second)
                    taken = load(bench, hook_port(service), deliveries(count))
                    assert taken.refused == 0
                finally:
                    service.kill()
            rates.append(taken.per_second)
            p99s.append(taken.p99_ms)
            ratios.append(rates[-1] / bares[-1])
    finally:
        bare.kill()
        bare.wait()
    yield result(
        "accept_over_bare", statistics.median(ratios), bench="http", at_least=0.35, rounds=ratios, bare_per_second=bares
    )
    yield result("accepts_per_second", statistics.median(rates), bench="http", at_least=2000, rounds=rates, p99_ms=p99s)


def measure_drain(bench: Bench, plugin: Path, count: int) -> Iterator[dict[str, Any]]:
    p99s, rates = [], []
    for _ in range(bench.rounds):
        with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
            service = make(Path(directory) / "home", plugin, workers=2).start()
            try:
                load(bench, hook_port(service), deliveries(200))
                taken = load(bench, hook_port(service), deliveries(count))
                assert taken.refused == 0
            finally:
                service.kill()
        p99s.append(taken.p99_ms)
        rates.append(taken.per_second)
    yield result("accept_p99_ms", statistics.median(p99s), bench="http", at_most=15, rounds=p99s, per_second=rates)


def serve_bare() -> None:
    """A server of the same lane whose only handler answers 202 at once."""
    import trio

    from ductile.web.listen import open_tcp
    from ductile.web.message import Request, Response, json_response
    from ductile.web.routes import Route, Table
    from ductile.web.serve import serve
    from ductile.web.site import Site

    async def accept(_: Request) -> Response:
        return json_response({"job_id": None}, 202)

    async def run() -> None:
        door = open_tcp("127.0.0.1:0")
        table = Table([Route(method="POST", path="/hook", handler=accept, hot=True)])
        site = Site(table=table, authorize=lambda _, request: request)
        print(door.address.rpartition(":")[2], flush=True)
        await serve(site, [door], stopping=trio.Event())

    trio.run(run)


# ── long histories ──────────────────────────────────────────────────────────────────────────────────────────────────

LISTS = {
    "newest": "/jobs?limit=20",
    "by status": "/jobs?limit=20&status=dead",
    "by plugin": "/jobs?limit=20&plugin=least",
    "by both": "/jobs?limit=20&status=succeeded&plugin=least",
    "logs": "/job-logs?limit=20",
    "logs by plugin": "/job-logs?limit=20&plugin=least",
}


def times(service: Service, path: str, count: int = 40) -> list[float]:
    where = urlsplit(service.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        answer.read()
        found.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200, (path, answer.status)
    connection.close()
    return found


def measure_history(bench: Bench, plugin: Path, rows: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        homes = [make(Path(directory) / name, plugin, workers=2) for name in ("short", "long")]
        for home, count in zip(homes, (1_000, rows), strict=True):
            home.ledger.parent.mkdir(mode=0o700, exist_ok=True)
            fill(home.ledger, count)
        services = [home.start() for home in homes]
        try:
            medians = {name: statistics.median(times(services[1], path)) for name, path in LISTS.items()}
            worst = {name: percentile(times(services[1], path), 95) for name, path in LISTS.items()}
            ids = [service.run("least")["job_id"] for service in services]
            one = [
                statistics.median(times(service, f"/job/{job_id}", 200))
                for service, job_id in zip(services, ids, strict=True)
            ]
        finally:
            for service in services:
                service.kill()
    yield result("jobs_ms", max(medians.values()), bench="http", at_most=5, rows=rows, p50_ms=medians, p95_ms=worst)
    yield result("job_over_short", one[1] / one[0], bench="http", at_most=1.2, rows=rows, ms=one)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench http", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="length of the long history; 0 leaves it out")
    parser.add_argument("--deliveries", type=int, default=5_000)
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve_bare:
        serve_bare()
        return 0
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folder = Path(directory)
        plugin, launcher = folder / "plugin", folder / "launcher"
        subprocess.run(["gcc", "-O2", "-static", "-o", plugin, HERE / "plugin.c"], check=True)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", launcher, HERE / "launcher.c"], check=True)
        subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", "-o", folder / "client", HERE / "client.c"], check=True)
        bench = Bench(folder, launcher, options.rounds, "full")
        measures = [
            measure_sync(bench, plugin),
            measure_accept(bench, plugin, options.deliveries),
            measure_drain(bench, plugin, options.deliveries),
        ]
        if options.rows:
            measures.append(measure_history(bench, plugin, options.rows))
        for measure in measures:
            for line in measure:
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
