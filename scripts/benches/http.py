"""The doors: what a request costs beside what it asks for, in the same minutes.

calls      POST /pipeline (one step, synchronous): the median of one caller minus that of a bare run in C;
           and 16 callers at once, answers per second ÷ bare runs per second
accept     signed deliveries taken per second, 16 connections, nothing runs ÷ a bare 202 from the same server code
deliver    signed deliveries, 16 connections, until every job is on record ÷ bare runs per second; how long a
           delivery waits meanwhile, and our own processor time for a job
floor      the same deliveries, rows and processes in a plain loop, without the service
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from scripts.benches.bench import Bench, Line, main
from scripts.benches.calls import check, deliveries, load, pipeline
from scripts.benches.floor import delivered
from scripts.benches.homes import PLUGIN, SECRET, attempts, furnished, plugin_of, running, span, wait_for_attempt
from scripts.benches.usage import cpu_seconds

SERVE_BARE, SERVE_FLOOR = "--serve-bare", "--serve-floor"


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
    """Deliveries that only queue up; the peer that the suite names takes its place here as a bare 202."""
    count = bench.size(5000, 1000)
    with own_server(SERVE_BARE) as (bare_port, _):
        for mode in bench.modes:
            rates, bares, p99s = [], [], []
            for _ in range(bench.rounds):
                with furnished(bench, mode=mode) as home, running(home) as service:
                    service.ask("POST", "/queue/pause")
                    load(bench, service.hook_port, deliveries(count // 10))
                    bares.append(load(bench, bare_port, deliveries(count)).per_second)
                    taken = load(bench, service.hook_port, deliveries(count))
                rates.append(taken.per_second)
                p99s.append(taken.p99_ms)
            ratios = [rate / bare for rate, bare in zip(rates, bares, strict=True)]
            yield bench.line("B3", "accept_over_bare", ratios, mode=mode, bare_per_second=bares)
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


def measure_floor(bench: Bench) -> Iterator[Line]:
    """What would be left of a delivery and its job if the service itself cost nothing."""
    count, ratios, cpus = bench.size(5000, 500), [], []
    for _ in range(bench.rounds):
        limit = bench.limit(bench.plugin, width=2, count=count)
        with furnished(bench, mode="normal") as home:
            with own_server(SERVE_FLOOR, home.ledger, plugin_of(home), count) as (port, process):
                load(bench, port, deliveries(count))
                assert process.stdout
                floor = json.loads(process.stdout.readline())
            span(home, 0, count)
        ratios.append(floor["jobs_per_second"] / limit.runs_per_second)
        cpus.append(floor["cpu_ms"])
    yield bench.line("http", "floor_over_limit", ratios, mode="normal", jobs=count)
    yield bench.line("http", "floor_cpu_ms", cpus, mode="normal", jobs=count)


@contextmanager
def own_server(*what: object) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """This program in a process of its own that serves something, and its port."""
    command = [sys.executable, "-P", __file__, *map(str, what)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


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


def serve_floor(ledger: str, plugin: str, count: str) -> None:
    """The plain loop takes so many deliveries, runs their jobs, and tells what that took."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        floor = delivered(listener, SECRET.encode(), Path(ledger), Path(plugin), PLUGIN, workers=2, jobs=int(count))
    print(json.dumps({"jobs_per_second": floor.jobs_per_second, "cpu_ms": floor.cpu_ms}), flush=True)


def served(arguments: Sequence[str]) -> bool:
    """Whether this process was one of the servers that are measured; it is over then."""
    match arguments:
        case [name] if name == SERVE_BARE:
            serve_bare()
        case [name, ledger, plugin, count] if name == SERVE_FLOOR:
            serve_floor(ledger, plugin, count)
        case _:
            return False
    return True


if __name__ == "__main__":
    if served(sys.argv[1:]):
        sys.exit()
    measures = {
        "calls": measure_calls,
        "accept": measure_accept,
        "deliver": measure_deliver,
        "floor": measure_floor,
    }
    sys.exit(main("http", __doc__, measures))
