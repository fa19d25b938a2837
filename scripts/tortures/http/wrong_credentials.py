"""H5 and W1: wrong tokens and wrong signatures, pipelined so that the service is busy.

A wrong token is rejected, and the response does not say how wrong it is. A wrong signature leaves no row and hardly any
log line.
"""

import base64
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import trio

from scripts.tortures.http.lib.client import InvalidResponse, NoResponse, Response, connect, request
from scripts.tortures.http.lib.target_config import (
    ADMIN_TOKEN,
    LIMITED_TOKEN,
    REMOVABLE_TOKEN,
    SECOND_SECRET,
    bearer,
    signature,
)
from scripts.tortures.http.lib.target_service import AttackResult, TargetService

WRONG_TOKENS, WRONG_SIGNATURES = 50_000, 100_000
PIPELINED_REQUESTS = 50
CONNECTIONS = 8
MAX_STORED_REFUSALS = 50
"""Per endpoint."""
ROUTES = (
    "GET /jobs",
    "GET /plugins",
    "GET /config/view",
    "POST /plugin/ok/poll",
    "POST /system/reload",
    "GET /job/x",
    "GET /metrics",
)
NO_HEADER, NO_FORMAT, NO_TOKEN = (
    "missing or invalid Authorization header",
    "invalid Authorization header format",
    "invalid token",
)


# ── H5 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def send_wrong_tokens(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Send wrong tokens of every kind, then unusual valid ones, and one that a reload removes."""
    result, statuses, total = AttackResult(), Counter[int](), int(WRONG_TOKENS * share)
    refused: dict[str, set[bytes]] = {}

    def check(kind: str, response: Response) -> None:
        statuses[response.status] += 1
        refused.setdefault(kind, set()).add(response.body)
        result.expect(response.status == 401, f"{kind}: {response.status} {response.body[:200]!r}")

    await _send_pipelined(target.api, total, lambda: _request_with_wrong_token(rng), check, result)
    for kind, bodies in refused.items():
        result.expect(len(bodies) == 1, f"{kind} has {len(bodies)} different responses: {sorted(bodies)[:3]}")
        result.expect(all(kind.encode() in body for body in bodies), f"{kind}: {sorted(bodies)[:1]}")
    await _send_huge_token(target, result)
    _send_valid_tokens(target, result)
    result.numbers = {"tokens": sum(statuses.values()), "answers": dict(statuses)}
    return result


def _request_with_wrong_token(rng: random.Random) -> tuple[str, bytes]:
    """Return the expected error and the request."""
    method, path = rng.choice(ROUTES).split(" ")
    error, lines = rng.choice(_authorizations(rng))
    if rng.random() < 0.1:
        path += f"?token={ADMIN_TOKEN}&access_token={ADMIN_TOKEN}"
    return error, f"{method} {path} HTTP/1.1\r\nhost: here\r\n{lines}\r\n".encode("latin-1")


def _authorizations(rng: random.Random) -> list[tuple[str, str]]:
    valid = LIMITED_TOKEN
    random_token = rng.randbytes(16).hex()
    changed = list(valid)
    changed[rng.randrange(len(valid))] = "\x7e"
    tokens = (
        random_token, valid[:-1], valid[: rng.randrange(1, len(valid))], valid + "x", f" {valid}", f"{valid} {valid}",
        f"{valid},", f'"{valid}"', valid.upper(), "".join(changed), valid[::-1], "\xfc\xff", f"{valid}\xa0",
        f"{valid}\xc2\x85", "*", "x" * 4000, ADMIN_TOKEN[1:],
    )  # fmt: skip
    formats = (
        f"Basic {valid}",
        f"Token {valid}",
        f"Bearer: {valid}",
        f"Bearer\xa0x {valid}",
        f"B\xe9arer {valid}",
    )
    headers = (
        "",
        "authorization: \r\n",
        f"authorization: {valid}\r\n",
        "authorization: Bearer\r\n",
        "authorization: Bearer   \r\n",
    )
    twice = f"authorization: Bearer {random_token}\r\nauthorization: Bearer {valid}\r\n"
    return [
        *((NO_TOKEN, f"authorization: Bearer {token}\r\n") for token in tokens),
        *((NO_FORMAT, f"authorization: {text}\r\n") for text in formats),
        *((NO_HEADER, lines) for lines in headers),
        (NO_HEADER, twice),
        (NO_HEADER, twice.replace("Bearer " + random_token, "Bearer " + valid)),
        (NO_HEADER, f"proxy-authorization: Bearer {valid}\r\ncookie: token={valid}\r\nx-api-key: {valid}\r\n"),
    ]


async def _send_huge_token(target: TargetService, result: AttackResult) -> None:
    connection = await connect(target.api)
    await connection.send(request("GET", "/jobs", headers=bearer(LIMITED_TOKEN + "x" * (1 << 20))))
    responses = await connection.receive_all()
    result.expect([response.status for response in responses] == [431], f"a token of 1 MB: {responses}")
    await connection.close()


def _send_valid_tokens(target: TargetService, result: AttackResult) -> None:
    """Check that the scheme is case-insensitive and whitespace around the value is ignored; then remove a token."""
    for value in (f"Bearer {LIMITED_TOKEN}", f"bearer {LIMITED_TOKEN}", f"BEARER {LIMITED_TOKEN} \t"):
        status, _ = target.service.ask("GET", "/jobs", token=None, headers={"authorization": value})
        result.expect(status == 200, f"{value!r}: {status}")
    before, _ = target.service.ask("GET", "/jobs", token=REMOVABLE_TOKEN)
    target.configure(has_removable_token=False)
    target.reload()
    after, _ = target.service.ask("GET", "/jobs", token=REMOVABLE_TOKEN)
    result.expect((before, after) == (200, 401), f"a removed token: {before}, then {after}")
    target.configure()
    target.reload()


# ── W1 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def send_wrong_signatures(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Send wrong signatures of every kind to every endpoint."""
    result, statuses, total, begun = AttackResult(), Counter[int](), int(WRONG_SIGNATURES * share), time.monotonic()
    tables = ("job_queue", "receipts")
    forged = "id IN (SELECT job_id FROM receipts WHERE key LIKE 'forged-%')", "key LIKE 'forged-%'"
    lines = len(target.service.lines)

    def check(kind: str, response: Response) -> None:
        statuses[response.status] += 1
        result.expect(
            (response.status, b'"forbidden"' in response.body) == (403, True),
            f"{kind}: {response.status} {response.body[:200]!r}",
        )

    numbers = count()
    await _send_pipelined(target.hooks, total, lambda: _forged_delivery(rng, next(numbers)), check, result)
    seconds = time.monotonic() - begun
    rows = [target.count(table, where) for table, where in zip(tables, forged, strict=True)]
    log_lines = [line for line in target.service.lines[lines:] if "rejected at" in line["message"]]
    result.expect(rows == [0, 0], f"rows were created: {rows}")
    result.expect(len(log_lines) <= len(ENDPOINTS) * max(seconds, 1), f"{len(log_lines)} log lines in {seconds:.0f} s")
    kept = target.count("webhook_deliveries", "verdict = 'refused'")
    result.expect(kept <= MAX_STORED_REFUSALS * len(ENDPOINTS), f"{kept} refused deliveries are stored")
    result.numbers = {"signatures": sum(statuses.values()), "answers": dict(statuses), "log_lines": len(log_lines)}
    result.numbers["per_second"] = round(total / seconds)
    return result


ENDPOINTS = ("/hook/ok", "/hook/failing", "/hook/github", "/hook/stripe", "/hook/slack", "/hook/standard", "/hook/form")


def _forged_delivery(rng: random.Random, number: int) -> tuple[str, bytes]:
    body = b'{"number": %d, "amount": 1.0}' % number
    path = rng.choice(ENDPOINTS)
    headers = (f"x-delivery: forged-{number}", f"x-github-delivery: forged-{number}", f"content-length: {len(body)}")
    lines = "".join(f"{line}\r\n" for line in (*headers, *_signatures(path, body, rng)))
    return path, f"POST {path} HTTP/1.1\r\nhost: here\r\n{lines}\r\n".encode("latin-1") + body


def _signatures(path: str, body: bytes, rng: random.Random) -> Sequence[str]:
    """Return the header lines of a wrong signature, in the format of the endpoint or of another one."""
    valid, other, now = signature(body), rng.randbytes(32).hex(), int(time.time())
    last_digit_wrong = valid[:-1] + ("0" if valid[-1] != "0" else "1")
    other_body = signature(body.replace(b"1.0", b"1"))
    values: list[Callable[[str], str]] = [
        lambda prefix: prefix, lambda prefix: prefix + other, lambda prefix: prefix + last_digit_wrong,
        lambda prefix: prefix + valid[:-1], lambda prefix: prefix + valid + "0",
        lambda prefix: prefix + valid[:32] + " " + valid[32:], lambda prefix: prefix + other_body,
        lambda prefix: "sha1=" + valid[:40], lambda prefix: prefix + "\xfc" * 64,
        lambda prefix: prefix + signature(body, SECOND_SECRET), lambda prefix: prefix + signature(body + b" "),
        lambda prefix: prefix + "0x" + valid[2:], lambda prefix: prefix + signature(body, ""),
        lambda prefix: prefix + valid + "," + valid, lambda prefix: prefix + "\uff10".encode().decode("latin-1") * 21,
        lambda prefix: prefix + "x" * 5000,
    ]  # fmt: skip
    value = rng.choice(values)
    if path == "/hook/stripe":
        return (f"stripe-signature: t={now},{value('v1=')}",)
    if path == "/hook/slack":
        return (f"x-slack-signature: {value('v0=')}", f"x-slack-request-timestamp: {now}")
    if path == "/hook/standard":
        encoded = base64.b64encode(rng.randbytes(32)).decode()
        made = rng.choice(
            (f"v1,{encoded}", f"v2,{encoded}", encoded, f"v1,{encoded[:-1]}", "v1,", f"v1 {encoded}", value("v1,"))
        )
        return (f"webhook-signature: {made}", "webhook-id: forged", f"webhook-timestamp: {now}")
    name = "x-hub-signature-256" if path == "/hook/github" else "x-signature-256"
    if rng.random() < 0.1:
        return rng.choice(((), (f"{name}: sha256={valid}",) * 2, (f"x-other: sha256={valid}",)))
    if path != "/hook/github":
        return (f"{name}: {value(rng.choice(('', 'sha256=')))}",)
    return (f"{name}: {value('sha256=')}",)


# ── both attacks ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _send_pipelined(
    port: int,
    total: int,
    make: Callable[[], tuple[str, bytes]],
    check: Callable[[str, Response], None],
    result: AttackResult,
) -> None:
    """Send `total` requests, pipelined over a few connections, and check each response."""
    left = [total]

    async def send(number: int) -> None:
        connection = await connect(port, source=f"127.0.4.{number + 1}")
        while left[0] > 0:
            size = min(PIPELINED_REQUESTS, left[0])
            left[0] -= size
            requests = [make() for _ in range(size)]
            await connection.send(b"".join(raw for _, raw in requests))
            for kind, raw in requests:
                response = await connection.receive()
                if response is None:
                    raise InvalidResponse(f"closed before a response to {raw[:300]!r}")
                check(kind, response)
        await connection.close()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                nursery.start_soon(send, number)
    except* (InvalidResponse, NoResponse) as errors:
        result.violations += [repr(error) for error in errors.exceptions]
