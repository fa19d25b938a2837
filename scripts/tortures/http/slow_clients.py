"""H3 and H4: slow clients, and very many connections at once.

A client that is slower than documented is disconnected and its resources are released. Very many connections fill one
listener up to its limit and do not affect the other listener.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from attrs import frozen

from scripts.tortures.http.lib.client import AttackerConnection, InvalidResponse, NoResponse, connect, request
from scripts.tortures.http.lib.target_config import MAX_BODY_BYTES, bearer
from scripts.tortures.http.lib.target_service import MIB, SPARE_DESCRIPTORS, AttackResult, TargetService, wait_until
from scripts.tortures.lib.report import percentile_ms

CLIENTS, CONNECTIONS = 500, 2_000
CONNECTIONS_PER_ADDRESS = 40
MARGIN_SECONDS = 3.0
"""For a busy host."""
LONG_PARTS_FROM = 0.5
"""From this share on, clients are included that the service disconnects only after half a minute."""
MAX_CONNECTIONS = 256
ACCEPT_SECONDS = 5.0
"""Within this time every connection is accepted or rejected."""
PIPELINED_REQUESTS = 10
SMALL_BUFFER = 4096


@frozen
class SlowClient:
    """How a client is slow, and after how many seconds the service must have disconnected it."""

    name: str
    act: Callable[[AttackerConnection, bytes], Awaitable[None]]
    first_bytes: bytes
    seconds: float
    port: int = 0
    """0: both listeners."""


# ── H3 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def hold_connections(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Connect slow clients of every kind to both listeners at once."""
    result, before = AttackResult(), target.resource_usage()
    kinds = [kind for kind in _kinds(target) if kind.seconds < 8 or share >= LONG_PARTS_FROM]
    stayed: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    clients = max(int(CLIENTS * share), len(kinds))
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(_run_client, target, kinds, number, stayed, result)
        half = before.descriptors + clients // 2
        were_connected = await wait_until(lambda: target.resource_usage().descriptors >= half, target.wait_seconds(4))
        begun = trio.current_time()
        await trio.sleep(2)
        memory = target.resource_usage().memory - before.memory
        limit = before.descriptors + SPARE_DESCRIPTORS
        max_wait = max(kind.seconds for kind in kinds) + target.wait_seconds(MARGIN_SECONDS)
        await wait_until(lambda: target.resource_usage().descriptors <= limit, max_wait)
        held = target.resource_usage().descriptors - before.descriptors
        gone_after = trio.current_time() - begun
        nursery.cancel_scope.cancel()
    result.expect(were_connected, "the clients were never connected at the same time")
    result.expect(held <= SPARE_DESCRIPTORS, f"{held} clients are still connected after {gone_after:.0f} s")
    result.numbers = {
        "guests": clients,
        "all_gone_after_seconds": round(gone_after, 1),
        "longest_seconds": {name: round(max(seconds), 1) for name, seconds in stayed.items() if seconds},
        "memory_meanwhile_mib": round(memory / MIB, 1),
    }
    return result


async def _run_client(
    target: TargetService, kinds: list[SlowClient], number: int, stayed: dict[str, list[float]], result: AttackResult
) -> None:
    kind = kinds[number % len(kinds)]
    never_reads = kind.act is _never_read
    source, buffer = f"127.0.2.{number // CONNECTIONS_PER_ADDRESS + 1}", SMALL_BUFFER if never_reads else 0
    port = kind.port or target.ports[number // len(kinds) % 2]
    connection = await connect(port, source=source, receive_buffer=buffer)
    begun = trio.current_time()
    try:
        with trio.move_on_after(kind.seconds + target.wait_seconds(MARGIN_SECONDS)) as deadline:
            await kind.act(connection, kind.first_bytes)
            stayed[kind.name].append(trio.current_time() - begun)
        if deadline.cancelled_caught and not never_reads:
            result.violations.append(f"{kind.name}: still connected after {trio.current_time() - begun:.1f} s")
    except (InvalidResponse, NoResponse) as error:
        result.violations.append(f"{kind.name}: {error!r}")
    finally:
        await connection.close()


def _kinds(target: TargetService) -> list[SlowClient]:
    status, job = target.request("POST", "/plugin/large/poll")
    assert status == 202, job
    status, ended = target.request("GET", f"/job/{job['job_id']}?wait=30s")
    assert ended["status"] == "succeeded", (status, str(ended)[:500])
    large_responses = request("GET", f"/job/{job['job_id']}", headers=bearer()) * PIPELINED_REQUESTS
    body = request("POST", "/hook/ok", b"{" * MAX_BODY_BYTES)[: -MAX_BODY_BYTES + 1]
    return [
        SlowClient("header", _trickle, b"GET /healthz HTTP/1.1\r\nhost: here\r\nx: ", 5.0),
        SlowClient("half-closed", _half_close, b"GET /healthz HTTP/1.1\r\nhost: here\r\nx: ", 1.0),
        SlowClient("body", _trickle, body, 10.1, target.hooks),
        SlowClient("idle", _send_nothing, b"", 30.0),
        SlowClient("reader", _never_read, large_responses, 32.0, target.api),
    ]


async def _trickle(connection: AttackerConnection, first_bytes: bytes) -> None:
    """Send one byte a second until the service responds with 408 and closes the connection."""
    await connection.send(first_bytes)
    connection.timeout, statuses = 1.0, []
    while True:
        try:
            response = await connection.receive()
        except NoResponse:
            await connection.send(b"x")
            continue
        if response is None:
            break
        statuses.append(response.status)
    if statuses != [408]:
        raise InvalidResponse(f"expected 408: {statuses}")


async def _half_close(connection: AttackerConnection, first_bytes: bytes) -> None:
    await connection.send(first_bytes)
    await connection.send_eof()
    if rest := await connection.receive_rest():
        raise InvalidResponse(f"a response to half a request: {rest[:200]!r}")


async def _send_nothing(connection: AttackerConnection, first_bytes: bytes) -> None:
    connection.timeout = 60
    if rest := await connection.receive_rest():
        raise InvalidResponse(f"a response without a request: {rest[:200]!r}")


async def _never_read(connection: AttackerConnection, first_bytes: bytes) -> None:
    """Request large responses and read nothing. The client cannot see when the service disconnects it."""
    await connection.send(first_bytes)
    await trio.sleep_forever()


# ── H4 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def open_many_connections(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Open far more connections to the API than its limit; each waits without a request."""
    result, rejected, seconds = AttackResult(), Counter[str](), list[float]()
    clients = max(int(CONNECTIONS * share), 4 * MAX_CONNECTIONS)

    async def open_connection(number: int) -> None:
        begun = trio.current_time()
        connection = await connect(target.api, source=f"127.0.3.{number // CONNECTIONS_PER_ADDRESS + 1}")
        connection.timeout = 2 * target.wait_seconds(ACCEPT_SECONDS)
        try:
            response = await connection.receive()
            rejected[str(response.status) if response else "closed"] += 1
            seconds.append(trio.current_time() - begun)
        except InvalidResponse as error:
            result.violations.append(repr(error))
        finally:
            await connection.close()

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(open_connection, number)
        enough = clients - MAX_CONNECTIONS
        await wait_until(lambda: sum(rejected.values()) >= enough, target.wait_seconds(ACCEPT_SECONDS))
        accepted = clients - sum(rejected.values())
        nursery.cancel_scope.cancel()
    result.expect(accepted <= MAX_CONNECTIONS, f"{accepted} connections were accepted, the limit is {MAX_CONNECTIONS}")
    result.expect(set(rejected) <= {"503", "closed"}, f"the others got {dict(rejected)}")
    result.numbers = {
        "guests": clients,
        "inside": accepted,
        "sent_away": dict(rejected),
        "sent_away_p99_ms": percentile_ms(seconds, 0.99),
    }
    return result
