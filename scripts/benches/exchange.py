"""Measure the exchange over the local socket, each message with its transactions on disk.

claim    publish → response to a worker that waits, one message at a time
request  publish → reply of `ductile exchange run` with a sh command, minus a bare run of that command
rate     claim and complete with 8 workers, one message at a time each
history  the same with 1,000,000 handled messages on the topic, over 1,000; alternating
waiting  processor and wake-ups of a service with many waiting workers
cost     jobs per second with the exchange enabled, over disabled; alternating
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from ductile.ledger.storage.open_file import open_writer
from scripts.benches.lib.backlog import drain, enqueue_backlog
from scripts.benches.lib.bench import Bench, Line, main, percentile
from scripts.benches.lib.exchange_client import (
    SocketClient,
    claim_id_in,
    claim_request,
    get,
    handle_one_by_one,
    post,
    publish_backlog,
)
from scripts.benches.lib.exchange_history import write_handled_messages
from scripts.benches.lib.instance import Instance, entrypoint_of, new_instance
from scripts.benches.lib.service import Service, running_service
from scripts.benches.lib.usage import cpu_seconds, read_usage

TOPIC = "bench.request"
SH = """#!/bin/sh
read -r request
echo "done"
"""
WORKERS = 8
SHORT_HISTORY = 1000
WAITING = 1_000
"""Workers that wait at once. The local socket accepts half as many connections as the limit of open files."""
BEFORE_PUBLISH = 0.01
"""Seconds between a request that waits and the publish."""
EXTRA_MESSAGES = 2 * WORKERS
"""Workers that have handled the last counted message have claims of further ones."""


def measure_claim(bench: Bench) -> Iterator[Line]:
    """Publish one message at a time while one worker waits, and one that no worker waits for."""
    count = bench.size(500, 50)
    for mode in bench.modes:
        with new_instance(bench, mode=mode) as instance, running_service(instance), ExitStack() as stack:
            worker, publisher = (stack.enter_context(SocketClient.connected(instance)) for _ in range(2))
            times, publishes = [], []
            publish, claim = post("/exchange/messages", {"topic": TOPIC, "body": "x"}), claim_request(TOPIC, wait="30s")
            for _ in range(count):
                worker.send(claim)
                time.sleep(BEFORE_PUBLISH)
                begin = time.perf_counter()
                publisher.send(publish)
                answer = worker.receive()
                times.append((time.perf_counter() - begin) * 1000)
                publisher.receive()
                worker.ask(post(f"/exchange/claims/{claim_id_in(answer)}/complete", {"body": "done"}))
                time.sleep(BEFORE_PUBLISH)
                begin = time.perf_counter()
                publisher.ask(post("/exchange/messages", {"topic": "unclaimed", "body": "x"}))
                publishes.append((time.perf_counter() - begin) * 1000)
        p50 = statistics.median(times)
        details: dict[str, Any] = {
            "messages": count,
            "p99_ms": percentile(times, 99),
            "publish_ms": statistics.median(publishes),
        }
        yield bench.line("exchange", "claim_over_publish", p50 / statistics.median(publishes), mode=mode, **details)
        yield bench.line("exchange", "publish_to_claim_ms", p50, mode=mode, **details)


def measure_request(bench: Bench) -> Iterator[Line]:
    """Publish a request and wait for its reply, one at a time, with one worker host."""
    count = bench.size(200, 20)
    with new_instance(bench, SH) as instance, running_service(instance), worker_host(instance):
        bare = bench.bare_runs(entrypoint_of(instance), width=1, count=count)
        with SocketClient.connected(instance) as client:
            times = [request_and_reply(client) for _ in range(count + 20)][20:]
    p50 = statistics.median(times)
    details: dict[str, Any] = {
        "messages": count,
        "reply_ms": p50,
        "p99_ms": percentile(times, 99),
        "bare_ms": bare.p50_ms,
    }
    yield bench.line("exchange", "reply_over_bare", p50 / bare.p50_ms, **details)
    yield bench.line("exchange", "reply_minus_bare_ms", p50 - bare.p50_ms, **details)


def request_and_reply(client: SocketClient) -> float:
    """Return the milliseconds from a request to its reply."""
    time.sleep(BEFORE_PUBLISH)
    begin = time.perf_counter()
    published = client.ask(post("/exchange/messages", {"topic": TOPIC, "body": "a request\n"}))
    reply = client.ask(get(f"/exchange/conversations/{published['conversation_id']}?wait=30s"))
    seconds = time.perf_counter() - begin
    assert (reply["state"], reply["reply"]["body"]) == ("success", "done\n"), reply
    return seconds * 1000


@contextmanager
def worker_host(instance: Instance) -> Iterator[None]:
    """Run `ductile exchange run` with the sh command. Yield when it waits for messages."""
    flags = ("--config", str(instance.path), "--topic", TOPIC)
    command = [sys.executable, "-m", "ductile", "exchange", "run", *flags, "--", str(entrypoint_of(instance))]
    with (
        (instance.path / "worker.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            with SocketClient.connected(instance) as client:
                request_and_reply(client)
            yield
        finally:
            process.terminate()


def measure_rate(bench: Bench) -> Iterator[Line]:
    """Handle a backlog with 8 workers that claim one message at a time."""
    count = bench.size(3000, 300)
    for mode in bench.modes:
        with new_instance(bench, mode=mode) as instance, running_service(instance) as service:
            cpu_before = cpu_seconds(service.pid)
            rates = [handle_backlog(service, count) for _ in range(bench.rounds)]
            own_cpu_ms = (cpu_seconds(service.pid) - cpu_before) * 1000 / count / bench.rounds
        details = {"messages": count, "workers": WORKERS, "own_cpu_ms_per_message": own_cpu_ms}
        yield bench.line("exchange", "handled_per_second", rates, mode=mode, **details)


def handle_backlog(service: Service, count: int) -> float:
    with ExitStack() as stack:
        clients = [stack.enter_context(SocketClient.connected(service.instance)) for _ in range(WORKERS)]
        publish_backlog(clients[0], TOPIC, count + EXTRA_MESSAGES)
        rate = handle_one_by_one(clients, TOPIC, count)
    with SocketClient.connected(service.instance) as client:
        handle_rest(client)
    return rate


def handle_rest(client: SocketClient) -> None:
    """Handle the messages that are left, so that each round begins without any."""
    for claim in client.ask(post("/exchange/claims", {"topic": TOPIC, "worker_group": "bench", "max": 100}))["claims"]:
        client.ask(post(f"/exchange/claims/{claim['claim_id']}/complete", {"body": "done"}))


def measure_history(bench: Bench) -> Iterator[Line]:
    """Alternate between a ledger with a long history of the topic and one with a short history."""
    count, rates = bench.size(3000, 300), dict[int, list[float]]()
    with ExitStack() as stack:
        services = {}
        for rows in (SHORT_HISTORY, bench.rows):
            instance = stack.enter_context(new_instance(bench))
            with closing(open_writer(instance.ledger, synchronous="off")) as db:
                write_handled_messages(db, TOPIC, rows)
            services[rows] = stack.enter_context(running_service(instance))
        for _ in range(bench.rounds):
            for rows, service in services.items():
                rates.setdefault(rows, []).append(handle_backlog(service, count))
    ratios = [long / short for short, long in zip(*rates.values(), strict=True)]
    yield bench.line("exchange", "long_over_short", ratios, history=bench.rows, per_second=list(rates.values()))


def measure_waiting(bench: Bench) -> Iterator[Line]:
    """Observe a service with many waiting workers, and one with none, in the same seconds."""
    seconds = bench.size(20, 4)
    with ExitStack() as stack:
        instances = [stack.enter_context(new_instance(bench)) for _ in range(2)]
        for instance in instances:
            instance.replace("api:\n", "api:\n  max_concurrent_waits: 1000\n")
            instance.seal()
        services = [stack.enter_context(running_service(instance)) for instance in instances]
        for number in range(WAITING):
            client = stack.enter_context(SocketClient.connected(services[0].instance))
            client.send(claim_request(f"bench.topic-{number % 10}", wait="60s"))
        time.sleep(2 if bench.quick else 8)  # longer than the work that follows a start
        before = [read_usage(service.pid) for service in services]
        time.sleep(seconds)
        used = [read_usage(service.pid).since(each) for service, each in zip(services, before, strict=True)]
    percent, idle = (each.cpu_seconds / seconds * 100 for each in used)
    details: dict[str, Any] = {
        "workers": WAITING,
        "seconds": seconds,
        "without_workers": idle,
        "wakeups": used[0].wakeups,
    }
    yield bench.line("exchange", "waiting_cpu_percent", percent, **details)


def measure_cost(bench: Bench) -> Iterator[Line]:
    """Alternate between backlogs of jobs with the exchange enabled and disabled."""
    jobs, rates = bench.size(1500, 300), {True: list[float](), False: list[float]()}
    for number in range(bench.rounds):
        for enabled in (True, False) if number % 2 else (False, True):
            with new_instance(bench) as instance:
                instance.add(f"exchange: {{enabled: {str(enabled).lower()}}}\n")
                instance.seal()
                enqueue_backlog(instance, jobs)
                rates[enabled].append(drain(instance, jobs).jobs_per_second)
    ratios = [enabled / disabled for enabled, disabled in zip(rates[True], rates[False], strict=True)]
    yield bench.line("exchange", "jobs_over_disabled", ratios, jobs=jobs, enabled=rates[True], disabled=rates[False])


if __name__ == "__main__":
    measures = {
        "claim": measure_claim,
        "request": measure_request,
        "rate": measure_rate,
        "history": measure_history,
        "waiting": measure_waiting,
        "cost": measure_cost,
    }
    sys.exit(main("exchange", __doc__, measures))
