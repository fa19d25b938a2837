"""H1: malformed and unusual requests from a grammar, sent alone, in sequence, and several at once.

No request may cause an internal error or remain without an end, and a connection that is kept must still be in sync.
"""

import json
import random
from collections import Counter
from collections.abc import Callable

import trio
from attrs import frozen

from scripts.tortures.http.lib.client import AttackerConnection, InvalidResponse, NoResponse, Response, connect, request
from scripts.tortures.http.lib.target_config import LIMITED_TOKEN, signature
from scripts.tortures.http.lib.target_service import AttackResult, TargetService

# ── the grammar ───────────────────────────────────────────────────────────────────────────────────────────────────────

METHODS = (
    *("GET", "POST") * 20, "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "WEBSOCKET", "get",
    "G\xc9T", "", "A" * 5000, "GET\0", "G@T", "(GET)", "GET ", " GET", "\x16\x03\x01",
)  # fmt: skip
JOB_ID = "01890000-0000-7000-8000-000000000000"
PATHS = (
    *("/plugin/ok/poll", "/plugin/ok/handle", "/hook/ok", "/hook/form") * 8, "/", "/healthz", "/jobs",
    "/job-logs", "/plugins", "/plugin/ok", "/openapi.json", f"/job/{JOB_ID}", f"/job/{JOB_ID.upper()}",
    "/job/{" + JOB_ID + "}", f"/job/urn:uuid:{JOB_ID}", f"/job/{JOB_ID}/tree", "/plugin/ok/poll", "/plugin/ok/handle",
    "/plugin/unknown/poll", "/plugin/ok/unknown", "/pipeline/unknown", "/schedule/ok/x/run", "/events/ws", "/events",
    "/../etc/passwd", "/./healthz", "/%2e%2e/%2e%2e/etc/passwd", "/job/%2e%2e", "/%2e/healthz", "/a/../healthz",
    "/job/%00", "/healthz%00", "/job%2f" + JOB_ID, "/%5c..%5cetc", "/\\..\\etc", "/\xfc", "/%c3%bc", "/%ff",
    "/%c0%ae%c0%ae/", "/%", "/%z1", "/%u002e", "//healthz", "/healthz/", "/" + "a/" * 3000, "/" + "x" * 65536,
    "/job/" + "9" * 4000, "*", "", "healthz", "http://elsewhere/healthz", "/healthz#top", "/healthz?",
    "/healthz?" + "a=b&" * 300, "/jobs?limit=-1", "/jobs?limit=" + "9" * 500, "/jobs?limit=1&limit=2",
    "/jobs?status=%00", "/jobs?before=%ff", "/jobs?x=%", "/jobs?since=1e999", "/job-logs?query=%22%25_*'--",
    "/job-logs?query=" + "a+" * 1000, f"/job/{JOB_ID}?wait=-1s", f"/job/{JOB_ID}?wait=nan", "/hook/ok", "/hook/github",
    "/hook/stripe", "/hook/standard", "/hook/form", "/hook/", "/hook/ok/", "/hook/ok%20",
)  # fmt: skip
VERSIONS = (*("HTTP/1.1",) * 60, "HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/1.2", "HTTP/11", "http/1.1", "HTTP/1.1 ", "")
AUTHORIZATIONS = (
    *(f"Bearer {LIMITED_TOKEN}",) * 8, "Bearer", "Bearer ", "Basic Z3Vlc3Q6", "Bearer \xfc\xff",
    f"Bearer {LIMITED_TOKEN}\xa0", "Bearer " + "x" * 20_000, f"bearer  {LIMITED_TOKEN}", LIMITED_TOKEN, "\xff" * 40,
)  # fmt: skip
HEADERS = (
    "x-nul: a\0b", "x-cr: a\rb", "x-lf: a\nb", "x-injected: a\r\nx-second: b", "x-folded: a\r\n b",
    "x-tab-folded: a\r\n\tb", "x space: 1", "x-space : 1", ": 1", "no colon", "x\xfc: 1", "x-latin: \xfc\xdf",
    "x-del: \x7f", "x-esc: \x1b[2J", "host: second", "x-large: " + "x" * 70_000,
    "\r\n".join(f"x-{n}: {n}" for n in range(10_000)), "\r\n".join(["x-same: 1"] * 60), "expect: 100-continue",
    "expect: 200-ok", "upgrade: websocket\r\nconnection: upgrade",
    "upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk",
    "connection: keep-alive, close, x", "connection: \xff", "content-encoding: gzip", "content-type: text/html",
    "content-type: " + "a/" * 4000, "content-type: application/json; charset=utf-7", "idempotency-key: a b",
    "idempotency-key: " + "x" * 300, "idempotency-key: \xfc", "origin: null", "origin: https://elsewhere",
    "access-control-request-method: POST\r\norigin: x", "cookie: " + "a=b; " * 2000, "range: bytes=0-,0-,0-",
    "if-none-match: *", "x-forwarded-for: 127.0.0.1", "te: trailers",
    "sec-websocket-key: x\r\nsec-websocket-version: 13", "accept: " + "*/*," * 3000, "last-event-id: -1",
    "x-delivery: " + "d" * 300, "x-delivery: 1\r\nx-delivery: 2", "x-signature-256: sha256=zz",
    "x-hub-signature-256: \xff", "stripe-signature: t=,v1=",
    "webhook-id: a.b\r\nwebhook-timestamp: 1e9\r\nwebhook-signature: v1,AAAA",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"null", b"[]", b"1", b'"x"', b"{", b"}", b"[" * 30_000, b'{"a":' * 100 + b"1" + b"}" * 100, b"NaN",
    b'{"payload": NaN}', b'{"payload": {"a": Infinity}}', b'{"payload": {"a": 1, "a": 2}}',
    b'{"payload": {"a": "\\ud800"}}', b'{"payload": {"\\udfff": 1}}', b'{"payload": 1}', b'{"payload": []}',
    b'{"payload": null}', b'{"payload": {}, "type": "x"}', b'{"payload": {"a": "\xff\xfe"}}', b"\xef\xbb\xbf{}",
    b'{"payload": {"n": ' + b"9" * 5000 + b"}}", b'{"payload": {"n": 1e999}}', b'{"payload": {"\\u0000": "\\u0000"}}',
    b"\0" * 100, b"payload=%7B%7D", b"\x1f\x8b\x08\x00", b'{"payload": {"a": "' + b"x" * 70_000 + b'"}}', b"<a/>",
    b'{"__proto__": {"a": 1}}', b'{"payload": {"$ref": "{payload.x}", "cmd": "; rm -rf /"}}', b"{'payload': {}}",
    b'{"payload": {},}', b"{}\n{}", b" " * 5000, json.dumps({"payload": {str(n): n for n in range(3000)}}).encode(),
)  # fmt: skip


@frozen
class HostileRequest:
    """One request. With `is_complete` the service can respond without more data."""

    raw: bytes
    is_complete: bool
    is_head: bool


def draw_request(rng: random.Random) -> HostileRequest:
    """Draw a request. Some are valid."""
    method, path, body = rng.choice(METHODS), rng.choice(PATHS), rng.choice(BODIES)
    lines = ["host: here"] if rng.random() < 0.95 else []
    if rng.random() < 0.8:
        lines.append(f"authorization: {rng.choice(AUTHORIZATIONS)}")
    if rng.random() < 0.3:
        lines.append(f"x-signature-256: {signature(body)}")
    lines += [rng.choice(HEADERS) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
    framed, framing, is_complete = rng.choice(FRAMINGS)(body, rng)
    rng.shuffle(lines := [*lines, *framing])
    first = f"{method} {path} {rng.choice(VERSIONS)}"
    raw = "\r\n".join([first, *lines, "", ""]).encode("latin-1") + framed
    return HostileRequest(raw, is_complete, method == "HEAD")


Framing = tuple[bytes, list[str], bool]
"""The bytes of a body, the headers that frame it, and whether it is complete."""


def _no_body(body: bytes, rng: random.Random) -> Framing:
    return b"", [], True


def _content_length(body: bytes, rng: random.Random) -> Framing:
    return body, [f"content-length: {len(body)}"], True


def _length_too_large(body: bytes, rng: random.Random) -> Framing:
    return body, [f"content-length: {len(body) + rng.randrange(1, 2000)}"], False


def _chunked(body: bytes, rng: random.Random) -> Framing:
    size = rng.choice((1, 7, 4096))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return framed + b"0\r\n\r\n", ["transfer-encoding: chunked"], True


def _endless_chunks(body: bytes, rng: random.Random) -> Framing:
    return b"5\r\nhello\r\n" * rng.choice((1, 10, 3000)), ["transfer-encoding: chunked"], False


def _broken_chunks(body: bytes, rng: random.Random) -> Framing:
    return (
        rng.choice((b"5\r\nhel", b"zz\r\n", b"5\nhello\n0\n\n", b"ffffffffffffffff\r\n")),
        ["transfer-encoding: chunked"],
        False,
    )


FRAMINGS: tuple[Callable[[bytes, random.Random], Framing], ...] = (
    _no_body, _no_body, _content_length, _content_length, _content_length, _content_length,
    _length_too_large, _chunked, _endless_chunks, _broken_chunks,
)  # fmt: skip


# ── the attack ────────────────────────────────────────────────────────────────────────────────────────────────────────

REQUESTS = 10_000
ATTACKERS = 24
REQUIRED_HEADERS = {
    "content-type": "application/json",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
}
ERROR_FIELDS = frozenset({"error", "code", "status"})
PROBE = request("GET", "/healthz", headers={"connection": "close"})
ALLOWED_STATUSES = frozenset({200, 202, 204, *range(400, 452), 501})
"""501 is the response to an unknown method."""


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Send all requests over many connections."""
    result, statuses = AttackResult(), Counter[int]()
    left = [draw_request(rng) for _ in range(int(REQUESTS * share))]
    sent = len(left)

    async def send_requests(number: int) -> None:
        source, port = f"127.0.1.{number % 8 + 1}", target.ports[number % 2]
        while left:
            requests = [left.pop() for _ in range(min(len(left), rng.choice((1, 1, 2, 3, 5))))]
            try:
                responses, unsent = await _use_connection(port, source, requests, at_once=rng.random() < 0.3)
            except (InvalidResponse, NoResponse, OSError) as error:
                result.violations.append(f"{error!r}: {[one.raw[:300] for one in requests]}")
                continue
            left.extend(unsent)
            statuses.update(response.status for response in responses)
            for response in responses:
                if violation := find_violation(response):
                    result.violations.append(f"{violation}: {response} to {[one.raw[:300] for one in requests]}")

    async with trio.open_nursery() as nursery:
        for number in range(ATTACKERS):
            nursery.start_soon(send_requests, number)
    result.numbers = {"requests": sent, "answers": dict(sorted(statuses.items()))}
    return result


def find_violation(response: Response) -> str:
    """Return what is wrong with a response; empty if it is correct."""
    if response.status not in ALLOWED_STATUSES:
        return "a status that is not allowed"
    if "server" in response.headers or any(
        response.headers.get(name) != value for name, value in REQUIRED_HEADERS.items()
    ):
        return "missing or unwanted headers"
    if response.status < 400 or not response.body:
        return ""
    try:
        error = json.loads(response.body)
    except ValueError:
        return "an error that is not JSON"
    is_complete = error.keys() >= ERROR_FIELDS and error["status"] == response.status
    return "" if is_complete else "an error with missing or wrong fields"


async def _use_connection(
    port: int, source: str, requests: list[HostileRequest], *, at_once: bool
) -> tuple[list[Response], list[HostileRequest]]:
    """Send requests over one connection; return the responses, and what was not sent because it was closed."""
    connection = await connect(port, source=source)
    try:
        if at_once and all(one.is_complete and not one.is_head for one in requests):
            return await _send_at_once(connection, requests), []
        return await _send_in_sequence(connection, requests)
    finally:
        await connection.close()


async def _send_in_sequence(
    connection: AttackerConnection, requests: list[HostileRequest]
) -> tuple[list[Response], list[HostileRequest]]:
    responses: list[Response] = []
    for number, one in enumerate(requests, 1):
        await connection.send(one.raw)
        if not one.is_complete:
            await connection.send_eof()
        response = await connection.receive(to_head=one.is_head)
        if response is None and one.is_complete:
            raise InvalidResponse("closed without a response")
        responses += [response] if response else []
        if response is None or response.closes or not one.is_complete:
            rest = await connection.receive_rest()
            if rest and not one.is_head:  # the response to an invalid HEAD request has a body
                raise InvalidResponse(f"more than one response: {rest[:200]!r}")
            return responses, requests[number:]
    await connection.send(PROBE)
    return responses + _require_in_sync(await connection.receive_all()), []


async def _send_at_once(connection: AttackerConnection, requests: list[HostileRequest]) -> list[Response]:
    await connection.send(b"".join(one.raw for one in requests) + PROBE)
    responses = await connection.receive_all()
    if len(responses) > len(requests) + 1:
        raise InvalidResponse(f"{len(responses)} responses to {len(requests) + 1} requests")
    if not responses or not responses[-1].closes:
        raise InvalidResponse("closed without `connection: close`")
    return responses if len(responses) <= len(requests) else responses[:-1] + _require_in_sync(responses[-1:])


def _require_in_sync(probed: list[Response]) -> list[Response]:
    if [response.status for response in probed] != [200]:
        raise InvalidResponse(f"the connection is out of sync: {probed}")
    return probed
