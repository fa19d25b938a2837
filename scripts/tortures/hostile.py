"""Requests that nobody should send, made from a grammar by seeded dice: methods, paths, headers and bodies.

Knows how requests are spoiled, not what becomes of them; `intruders` sends them. Some come out fine by chance.
"""

import json
import random
from collections.abc import Callable

from attrs import frozen

from scripts.tortures.grounds import GUEST, signature

METHODS = (
    *("GET", "POST") * 20, "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "WEBSOCKET", "get",
    "G\xc9T", "", "A" * 5000, "GET\0", "G@T", "(GET)", "GET ", " GET", "\x16\x03\x01",
)  # fmt: skip
JOB = "01890000-0000-7000-8000-000000000000"
PATHS = (
    *("/plugin/well/poll", "/plugin/well/handle", "/hook/well", "/hook/form") * 8, "/", "/healthz", "/jobs",
    "/job-logs", "/plugins", "/plugin/well", "/openapi.json", f"/job/{JOB}", f"/job/{JOB.upper()}",
    "/job/{" + JOB + "}", f"/job/urn:uuid:{JOB}", f"/job/{JOB}/tree", "/plugin/well/poll", "/plugin/well/handle",
    "/plugin/nobody/poll", "/plugin/well/nothing", "/pipeline/none", "/schedule/well/x/run", "/events/ws", "/events",
    "/../etc/passwd", "/./healthz", "/%2e%2e/%2e%2e/etc/passwd", "/job/%2e%2e", "/%2e/healthz", "/a/../healthz",
    "/job/%00", "/healthz%00", "/job%2f" + JOB, "/%5c..%5cetc", "/\\..\\etc", "/\xfc", "/%c3%bc", "/%ff",
    "/%c0%ae%c0%ae/", "/%", "/%z1", "/%u002e", "//healthz", "/healthz/", "/" + "a/" * 3000, "/" + "x" * 65536,
    "/job/" + "9" * 4000, "*", "", "healthz", "http://elsewhere/healthz", "/healthz#top", "/healthz?",
    "/healthz?" + "a=b&" * 300, "/jobs?limit=-1", "/jobs?limit=" + "9" * 500, "/jobs?limit=1&limit=2",
    "/jobs?status=%00", "/jobs?before=%ff", "/jobs?x=%", "/jobs?since=1e999", "/job-logs?query=%22%25_*'--",
    "/job-logs?query=" + "a+" * 1000, f"/job/{JOB}?wait=-1s", f"/job/{JOB}?wait=nan", "/hook/well", "/hook/github",
    "/hook/stripe", "/hook/standard", "/hook/form", "/hook/", "/hook/well/", "/hook/well%20",
)  # fmt: skip
VERSIONS = (*("HTTP/1.1",) * 60, "HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/1.2", "HTTP/11", "http/1.1", "HTTP/1.1 ", "")
AUTHORIZATIONS = (
    *(f"Bearer {GUEST}",) * 8, "Bearer", "Bearer ", "Basic Z3Vlc3Q6", "Bearer \xfc\xff", f"Bearer {GUEST}\xa0",
    "Bearer " + "x" * 20_000, f"bearer  {GUEST}", GUEST, "\xff" * 40,
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
class Hostile:
    """One request. `is_whole`: nothing more has to come before it can be answered."""

    raw: bytes
    is_whole: bool
    is_head: bool


def make(dice: random.Random) -> Hostile:
    """The next request of the dice."""
    method, path, body = dice.choice(METHODS), dice.choice(PATHS), dice.choice(BODIES)
    lines = ["host: here"] if dice.random() < 0.95 else []
    if dice.random() < 0.8:
        lines.append(f"authorization: {dice.choice(AUTHORIZATIONS)}")
    if dice.random() < 0.3:
        lines.append(f"x-signature-256: {signature(body)}")
    lines += [dice.choice(HEADERS) for _ in range(dice.choice((0, 0, 0, 1, 1, 2)))]
    framed, framing, is_whole = dice.choice(FRAMINGS)(body, dice)
    dice.shuffle(lines := [*lines, *framing])
    first = f"{method} {path} {dice.choice(VERSIONS)}"
    raw = "\r\n".join([first, *lines, "", ""]).encode("latin-1") + framed
    return Hostile(raw, is_whole, method == "HEAD")


# ── how a body is framed: its bytes, the headers that say so, and whether it is all there ───────────────────────────

Framing = tuple[bytes, list[str], bool]


def _none(body: bytes, dice: random.Random) -> Framing:
    return b"", [], True


def _length(body: bytes, dice: random.Random) -> Framing:
    return body, [f"content-length: {len(body)}"], True


def _lie(body: bytes, dice: random.Random) -> Framing:
    return body, [f"content-length: {len(body) + dice.randrange(1, 2000)}"], False


def _chunks(body: bytes, dice: random.Random) -> Framing:
    size = dice.choice((1, 7, 4096))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return framed + b"0\r\n\r\n", ["transfer-encoding: chunked"], True


def _endless(body: bytes, dice: random.Random) -> Framing:
    return b"5\r\nhello\r\n" * dice.choice((1, 10, 3000)), ["transfer-encoding: chunked"], False


def _broken(body: bytes, dice: random.Random) -> Framing:
    return (
        dice.choice((b"5\r\nhel", b"zz\r\n", b"5\nhello\n0\n\n", b"ffffffffffffffff\r\n")),
        ["transfer-encoding: chunked"],
        False,
    )


FRAMINGS: tuple[Callable[[bytes, random.Random], Framing], ...] = (
    _none, _none, _length, _length, _length, _length, _lie, _chunks, _endless, _broken,
)  # fmt: skip
