"""`scripts/torture http` at a tenth of its size; attackers detect wrong responses."""

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from scripts.tortures.http import framing, hostile_requests
from scripts.tortures.http.lib.background_clients import BackgroundReport
from scripts.tortures.http.lib.client import AttackerConnection, InvalidResponse, parse_head
from scripts.tortures.http.lib.target_service import MIB, AttackResult, ResourceUsage, TargetService
from scripts.tortures.http.torture import Attack, HttpOptions, check_background, check_service
from tests.e2e.torture_runs import run_torture

pytestmark = pytest.mark.timeout(400)
SEED, SHARE, LENIENCY = 7, 0.1, math.inf
"""Speeds are not judged, because other tests run on this host."""


def run_attacks(*names: str) -> dict[str, Any]:
    """Run attacks, expect no violations, and return their numbers."""
    options = ["--share", str(SHARE), "--seed", str(SEED), "--leniency", str(LENIENCY), "--only", ",".join(names)]
    run = run_torture("http", *options)

    assert run.summary, run.stderr
    assert (run.exit_code, run.summary["violations"]) == (0, dict.fromkeys(names, 0)), run.stderr
    return dict(run.summary["parts"])


def test_malformed_requests_are_rejected_and_do_not_affect_other_clients() -> None:
    """Malformed requests, smuggling attempts, and bodies of every length and framing (H1, H2, H6, W3)."""
    parts = run_attacks("H1", "H2", "H6", "W3")

    assert parts["H1"]["requests"] == 1000
    assert sum(parts["H1"]["answers"].values()) > 500
    assert parts["H2"]["attempts"] >= 300
    assert min(parts[name]["good"]["asked"] for name in ("H1", "H2")) > 0


def test_idle_and_slow_connections_are_closed() -> None:
    """A slow head has five seconds; many connections fill one listener up to its limit (H3, H4)."""
    parts = run_attacks("H3", "H4")

    assert parts["H3"]["guests"] == 50
    assert 0 < parts["H4"]["inside"] <= 256 < parts["H4"]["guests"]


def test_wrong_credentials_are_rejected_and_leave_nothing_behind() -> None:
    """Wrong tokens, signatures and timestamps of every kind; a secret that changes under load (H5, W1, W5, W6)."""
    parts = run_attacks("H5", "W1", "W5", "W6")

    assert parts["H5"]["answers"] == {"401": 5000}
    assert parts["W1"]["answers"] == {"403": 10_000}
    assert parts["W6"]["deliveries"] > 0


def test_a_repeated_request_creates_one_job() -> None:
    """In sequence, at once, after a restart, after success and after failure (H7, W2)."""
    parts = run_attacks("H7", "W2")

    assert set(parts["H7"]["answers"]) == set(parts["W2"]["answers"]) == {"202"}


def test_a_caller_that_disconnects_frees_its_slot_and_its_run_continues() -> None:
    """After a thousand calls, many of them disconnected, ten slots are free and the eleventh is refused (H8)."""
    parts = run_attacks("H8")

    assert parts["H8"]["calls"]["hung up"] > 100
    assert parts["H8"]["calls"]["200"] > 100


def test_deliveries_are_acknowledged_while_every_worker_is_busy() -> None:
    """A hundred a second, each durable before its response (W4)."""
    assert run_attacks("W4")["W4"]["deliveries"] == 600


def test_stream_clients_and_large_queries_do_not_slow_jobs_down() -> None:
    """Clients that do not read, huge lists and broad searches over a large ledger (H9, H10)."""
    parts = run_attacks("H9", "H10")

    assert parts["H9"]["silent"] == 10
    assert set(parts["H10"]["answers"]) == {"200", "400"}


@pytest.mark.parametrize(("leniency", "slow"), [(1.0, 2), (4.0, 1), (math.inf, 0)])
def test_leniency_multiplies_the_time_limits_of_ordinary_requests(leniency: float, slow: int) -> None:
    """A failed request is always a violation, and waits are finite for an infinite leniency."""
    report = BackgroundReport(asked=9, p50_ms=1, p99_ms=900, max_ms=5000, lag_p99_ms=5000, failed=["reset"])
    result = AttackResult()
    check_background(result, report, HttpOptions(leniency=leniency))

    assert len(result.violations) == slow + 1
    assert result.violations[0] == "an ordinary request failed: reset"
    assert 3 <= TargetService(cast(Any, None), leniency).wait_seconds(3) < 120


@pytest.mark.parametrize(("mebibytes", "violations"), [([90, 90, 10], 0), ([90], 1)], ids=["released", "kept"])
def test_memory_is_checked_after_it_had_time_to_be_released(mebibytes: list[int], violations: int) -> None:
    """The allocator releases memory two seconds after large responses."""
    before, result, left = ResourceUsage(10 * MIB, 20), AttackResult(), iter(mebibytes)

    class FixedUsage(TargetService):
        def resource_usage(self) -> ResourceUsage:
            return ResourceUsage(next(left, mebibytes[-1]) * MIB, 20)

    target = FixedUsage(cast(Any, None), leniency=0.1)
    target.service = cast(Any, SimpleNamespace(process=SimpleNamespace(poll=lambda: None), stderr=[], lines=[]))
    check_service(result, target, Attack(name="H0", run=hostile_requests.attack), before)

    assert len(result.violations) == violations, result.violations


# ── the attackers ─────────────────────────────────────────────────────────────────────────────────────────────────────

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


async def send_fixed_response(response: bytes, stream: trio.SocketStream) -> None:
    """Send the same bytes on every connection, then close it."""
    with trio.move_on_after(1):
        await stream.receive_some(65536)
        await stream.send_all(response)
        await stream.send_eof()
        while await stream.receive_some(65536):
            pass


async def attack_fixed_response(
    response: bytes, attack: Callable[[TargetService, random.Random, float], Awaitable[AttackResult]]
) -> AttackResult:
    """Run an attack against a server that always sends the same bytes."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(partial(trio.serve_listeners, partial(send_fixed_response, response), [listener]))
        target: Any = SimpleNamespace(ports=(port, port), api=port, hooks=port)
        result = await attack(target, random.Random(SEED), 0.002)
        nursery.cancel_scope.cancel()
    return result


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}", OK + OK, b"", b"HTTP/1.1 400\r\n\r\n",
        b"HTTP/1.1 400 Bad\r\nconnection: close\r\n\r\n", b"HTTP/1.1 400 Bad\r\ncontent-length: 9\r\n\r\n{}",
        b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    ],
    ids=["status 500", "two responses", "no response", "no reason", "no length", "half a response", "two framings"],
)  # fmt: skip
async def test_a_wrong_response_to_a_malformed_request_is_detected(response: bytes) -> None:
    """Otherwise an attack without violations would prove nothing."""
    assert (await attack_fixed_response(response, hostile_requests.attack)).violations


@pytest.mark.parametrize("response", [OK, OK + OK], ids=["accepted", "smuggled"])
async def test_an_accepted_smuggling_attempt_is_detected(response: bytes) -> None:
    """A response other than the expected one is a violation."""
    result = await attack_fixed_response(response, framing.attack)

    assert len(result.violations) > result.numbers["attempts"] / 2


def test_the_framing_attempts_are_many_and_distinct() -> None:
    """At least three hundred, for both listeners, without duplicates."""
    table = Counter((attempt.listener, attempt.raw) for attempt in framing.attempts())

    assert table.total() == len(table) >= 300
    assert {listener for listener, _ in table} == {"api", "hooks"}


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"200 OK", b"HTTP/1.1 200 OK\r\nx", b"HTTP/1.1 200 OK\r\na: 1\r\na: 2"]
)
def test_a_malformed_head_is_rejected(raw: bytes) -> None:
    """Responses are parsed strictly."""
    with pytest.raises(InvalidResponse):
        parse_head(raw)


async def test_a_chunked_response_is_read_completely() -> None:
    """The bytes after it are the next response."""
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n" + OK)
        connection = AttackerConnection(trio.SocketStream(ours))
        first, second = await connection.receive(), await connection.receive()

    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"abc", b"{}")
