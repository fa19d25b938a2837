"""W4 to W6: deliveries while every worker is busy, wrong signed timestamps, and a secret that is replaced.

A delivery is acknowledged promptly while jobs run. A signed timestamp must be valid and recent. While a secret is
replaced no valid delivery is refused, and afterwards the old secret is rejected.
"""

import base64
import hashlib
import hmac
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import trio

from scripts.tortures.http.lib.client import AttackerConnection, connect, request
from scripts.tortures.http.lib.target_config import (
    ADMIN_TOKEN,
    FIRST_SECRET,
    SECOND_SECRET,
    STANDARD_SECRET,
    bearer,
    signature,
    signed,
)
from scripts.tortures.http.lib.target_service import AttackResult, TargetService, wait_until
from scripts.tortures.lib.report import percentile_ms

SECONDS, PER_SECOND, CONNECTIONS = 60, 100, 20
MAX_P99_MS, MAX_P999_MS = 100.0, 1000.0
WORKERS = 4
ROTATIONS, SENDERS = 20, 4


# ── W4 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def deliver_while_busy(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """W4: send deliveries at a steady rate. Latency counts from the time at which each was due."""
    result, seconds, statuses = AttackResult(), list[float](), Counter[int]()
    _occupy_all_workers(target)
    deliveries, before = int(SECONDS * share * PER_SECOND), target.count()
    free_in, free_out = trio.open_memory_channel[AttackerConnection](CONNECTIONS)
    for _ in range(CONNECTIONS):
        free_in.send_nowait(await connect(target.hooks, source="127.0.8.1"))
    begun = trio.current_time()

    async def deliver(number: int, due: float) -> None:
        connection = await free_out.receive()
        body = json.dumps({"number": number, "filler": "x" * 400}).encode()
        await connection.send(request("POST", "/hook/ok", body, signed(body, f"busy-{number}")))
        response = await connection.receive()
        seconds.append(trio.current_time() - due)
        statuses[response.status if response else 0] += 1
        free_in.send_nowait(connection)

    async with trio.open_nursery() as nursery:
        for number in range(deliveries):
            due = begun + number / PER_SECOND
            await trio.sleep_until(due)
            nursery.start_soon(deliver, number, due)
    result.expect(statuses == {202: deliveries}, f"{deliveries} deliveries got {dict(statuses)}")
    result.expect(target.count() - before == deliveries, f"{deliveries} deliveries are {target.count() - before} jobs")
    result.expect(target.count(where="status = 'running'") == WORKERS, "the workers were not busy")
    p99, p999 = percentile_ms(seconds, 0.99), percentile_ms(seconds, 0.999)
    result.expect(p99 < MAX_P99_MS * target.leniency, f"p99 is {p99} ms")
    result.expect(p999 < MAX_P999_MS * target.leniency, f"p99.9 is {p999} ms")
    result.numbers = {"deliveries": deliveries, "p50_ms": percentile_ms(seconds, 0.5), "p99_ms": p99, "p999_ms": p999}
    return result


def _occupy_all_workers(target: TargetService) -> None:
    for _ in range(WORKERS):
        status, job = target.request("POST", "/plugin/hanging/poll")
        assert status == 202, job
    deadline = time.monotonic() + 30
    while target.count(where="status = 'running'") < WORKERS:
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.02)


# ── W5 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def send_wrong_timestamps(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """W5: send deliveries with signed timestamps; only those within five minutes are accepted."""
    result, statuses = AttackResult(), Counter[int]()
    connection = await connect(target.hooks)
    for number, (timestamp, status) in enumerate(_timestamps(int(time.time()))):
        for raw in _signed_deliveries(timestamp, number):
            await connection.send(raw)
            response = await connection.receive()
            result.expect(response is not None and response.status == status, f"{timestamp!r}: {response} {raw[:60]!r}")
            statuses[response.status if response else 0] += 1
            if response is None or response.closes:
                await connection.close()
                connection = await connect(target.hooks)
    await connection.close()
    result.numbers = {"deliveries": sum(statuses.values()), "answers": dict(statuses)}
    return result


def _timestamps(now: int) -> Iterator[tuple[str, int]]:
    """Yield timestamps as text, with the expected status."""
    for offset in (-290, -1, 0, 290):
        yield str(now + offset), 202
    for offset in (-86_400, -302, 310, 86_400):
        yield str(now + offset), 403
    full_width = "".join(chr(0xFF10 + int(digit)) for digit in str(now)).encode().decode("latin-1")
    for text in (
        "nan", "inf", "-inf", "1e9", f"{now}e0", f"{now}.0", f"+{now}", f"-{now}", f"0x{now:x}", full_width, "9" * 12,
        "9" * 13, "9" * 400, "-1", "0", "", f"{now}000", f"{now} {now}", "now", f"{now}\xa0", f"{now}_0", "1_0", "null",
    ):  # fmt: skip
        yield text, 403


def _signed_deliveries(timestamp: str, number: int) -> Iterator[bytes]:
    """Yield one delivery in every scheme that signs a timestamp."""
    body, raw = b'{"id": "dated-%d", "event_id": "dated-%d"}' % (number, number), timestamp.encode("latin-1")
    stripe = hmac.new(FIRST_SECRET.encode(), raw + b"." + body, hashlib.sha256).hexdigest()
    yield _latin_request("/hook/stripe", body, f"stripe-signature: t={timestamp},v1={stripe}\r\n")
    slack = hmac.new(FIRST_SECRET.encode(), b"v0:" + raw + b":" + body, hashlib.sha256).hexdigest()
    yield _latin_request(
        "/hook/slack", body, f"x-slack-signature: v0={slack}\r\nx-slack-request-timestamp: {timestamp}\r\n"
    )
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    webhook_id = f"dated-{number}"
    standard = base64.b64encode(hmac.digest(key, webhook_id.encode() + b"." + raw + b"." + body, "sha256")).decode()
    lines = f"webhook-id: {webhook_id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: v1,{standard}\r\n"
    yield _latin_request("/hook/standard", body, lines)


def _latin_request(path: str, body: bytes, lines: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


# ── W6 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def rotate_secret(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """W6: switch between two secrets, each time with a period in which both are valid."""
    result, statuses = AttackResult(), Counter[int]()
    names, secrets = ("first", "second"), (FIRST_SECRET, SECOND_SECRET)
    current, done, stopping = [0], [0] * SENDERS, trio.Event()

    async def send(number: int) -> None:
        connection = await connect(target.hooks, source="127.0.8.2")
        while not stopping.is_set():
            body = b'{"sender": %d, "delivery": %d}' % (number, done[number])
            await connection.send(request("POST", "/hook/ok", body, signed(body, "", secrets[current[0]])))
            response = await connection.receive()
            statuses[response.status if response else 0] += 1
            done[number] += 1
        await connection.close()

    async with trio.open_nursery() as nursery:
        for number in range(SENDERS):
            nursery.start_soon(send, number)
        for rotation in range(max(int(ROTATIONS * share), 3)):
            old, new = rotation % 2, (rotation + 1) % 2
            await _reload(target, f"[{names[old]}, {names[new]}]")
            current[0], before = new, list(done)
            # A delivery in progress may have the old secret; the next one does not.
            result.expect(await wait_until(partial(_have_advanced, done, before), 30), "a sender got no response")
            await _reload(target, f"[{names[new]}]")
            status = await _deliver_once(target, secrets[old])
            result.expect(status == 403, f"the old secret got {status}")
        stopping.set()
    await _reload(target, "[first]")
    result.expect(set(statuses) == {202}, f"valid deliveries got {dict(statuses)}")
    result.numbers = {"rotations": rotation + 1, "deliveries": statuses[202], "refused": statuses[403]}
    return result


def _have_advanced(done: list[int], before: list[int]) -> bool:
    return all(now >= then + 2 for now, then in zip(done, before, strict=True))


async def _reload(target: TargetService, secrets: str) -> None:
    target.configure(secrets=secrets)
    connection = await connect(target.api)
    await connection.send(request("POST", "/system/reload", headers=bearer(ADMIN_TOKEN)))
    response = await connection.receive()
    await connection.close()
    assert response is not None
    assert response.status == 200, response


async def _deliver_once(target: TargetService, secret: str) -> int:
    connection = await connect(target.hooks)
    await connection.send(request("POST", "/hook/ok", b"{}", {"x-signature-256": signature(b"{}", secret)}))
    response = await connection.receive()
    await connection.close()
    return response.status if response else 0
