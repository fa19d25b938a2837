"""H2: request framing and smuggling attempts, each with its one correct response.

A request that two parsers could read differently is rejected and the connection is closed. A second request follows
each attempt and must never be answered; otherwise a proxy and the service would count requests differently.
"""

import random
from collections import Counter
from collections.abc import Iterator

import trio
from attrs import frozen

from scripts.tortures.http.lib.client import InvalidResponse, NoResponse, connect, request
from scripts.tortures.http.lib.target_config import LIMITED_TOKEN
from scripts.tortures.http.lib.target_service import AttackResult, TargetService

CONNECTIONS = 16
SMUGGLED = request("GET", "/healthz", headers={"x-smuggled": "yes"})
API_HEADERS = f"host: here\r\nauthorization: Bearer {LIMITED_TOKEN}\r\n"
WEBHOOK_HEADERS = "host: here\r\n"
TARGETS = (("api", "/plugin/ok/poll", API_HEADERS), ("hooks", "/hook/ok", WEBHOOK_HEADERS))
METHODS = ("POST", "GET", "PUT")
LENGTHS = (
    "+5", "-5", "0x5", "5 5", "5,5", "5, 5", "5;", "5.0", "5e0", "", " ", "\xb2", "\xef\xbc\x95", "5_0", "\t5\x0b",
    "5\0", "five", "0o5", "5\x01", "٥".encode().decode("latin-1"), "+0", "-0", "\xa05", "5\xa0",
)  # fmt: skip
ENCODINGS = (
    "gzip", "identity", "xchunked", "chunkedx", "chunked, chunked", "gzip, chunked", "chunked, gzip",
    "chunked, identity", "chunked,", ",chunked", "chunked;q=1", '"chunked"', "ch unked", "chunked\x0b", "chunked\0", "",
    "cow", "\xa0chunked", "chunked\xa0", "x",
)  # fmt: skip
BROKEN_CHUNKS = {
    "no size": "\r\n", "no digits": "g\r\nhello\r\n0\r\n\r\n", "signed": "+5\r\nhello\r\n0\r\n\r\n",
    "negative": "-5\r\nhello\r\n0\r\n\r\n", "prefix": "0x5\r\nhello\r\n0\r\n\r\n",
    "blank before": " 5\r\nhello\r\n0\r\n\r\n", "blank after": "5 \r\nhello\r\n0\r\n\r\n",
    "tab after": "5\t\r\nhello\r\n0\r\n\r\n", "bare LF": "5\nhello\r\n0\r\n\r\n",
    "bare LF behind": "5\r\nhello\n0\r\n\r\n", "bare CR behind": "5\r\nhello\r0\r\n\r\n",
    "too long": "5\r\nhello!\r\n0\r\n\r\n", "too short": "5\r\nhell\r\n0\r\n\r\n", "no tail": "5\r\nhello0\r\n\r\n",
    "two tails": "5\r\nhello\r\n\r\n0\r\n\r\n", "overflow": "1" + "0" * 20 + "5\r\nhello\r\n0\r\n\r\n",
    "wraps at 64 bits": "10000000000000005\r\nhello\r\n0\r\n\r\n", "extension": "5;a=b\r\nhello\r\n0\r\n\r\n",
    "bare extension": "5;\r\nhello\r\n0\r\n\r\n", "quoted extension": '5;a="\r\nhello\r\n0\r\n\r\n',
    "CR in an extension": "5;a\rb\r\nhello\r\n0\r\n\r\n", "LF in an extension": "5;a\nb\r\nhello\r\n0\r\n\r\n",
    "NUL in an extension": "5;\0\r\nhello\r\n0\r\n\r\n", "long extension": "5;" + "x" * 9000 + "\r\nhello\r\n0\r\n\r\n",
    "extension of the last": "5\r\nhello\r\n0;x\r\n\r\n", "trailer": "5\r\nhello\r\n0\r\nx-a: b\r\n\r\n",
    "length as trailer": "5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n",
    "host as trailer": "5\r\nhello\r\n0\r\nhost: x\r\n\r\n", "broken trailer": "5\r\nhello\r\n0\r\nx\r\n\r\n",
    "bare LF at the end": "5\r\nhello\r\n0\r\n\n", "two bare LF at the end": "5\r\nhello\r\n0\n\n",
    "letters as the end": "5\r\nhello\r\n0\r\nXX", "full-width digit": "\xef\xbc\x95\r\nhello\r\n0\r\n\r\n",
    "NUL size": "5\0\r\nhello\r\n0\r\n\r\n", "underscore": "0_5\r\nhello\r\n0\r\n\r\n",
}  # fmt: skip
BROKEN_HEADS = {
    "LF after the first line": "GET /healthz HTTP/1.1\nhost: here\r\n\r\n",
    "LF after a header": "GET /healthz HTTP/1.1\r\nhost: here\n\r\n",
    "only LF": "GET /healthz HTTP/1.1\nhost: here\n\n",
    "CR after a header": "GET /healthz HTTP/1.1\r\nhost: here\rx: y\r\n\r\n",
    "CR CR LF": "GET /healthz HTTP/1.1\r\r\nhost: here\r\n\r\n",
    "fold": "GET /healthz HTTP/1.1\r\nhost: here\r\nx: a\r\n b\r\n\r\n",
    "fold by tab": "GET /healthz HTTP/1.1\r\nhost: here\r\nx: a\r\n\tb\r\n\r\n",
    "fold first": "GET /healthz HTTP/1.1\r\n host: here\r\n\r\n",
    "blank before a colon": "GET /healthz HTTP/1.1\r\nhost : here\r\n\r\n",
    "no colon": "GET /healthz HTTP/1.1\r\nhost: here\r\nx\r\n\r\n",
    "no name": "GET /healthz HTTP/1.1\r\nhost: here\r\n: x\r\n\r\n",
    "NUL in a name": "GET /healthz HTTP/1.1\r\nhost: here\r\nx\0: y\r\n\r\n",
    "NUL in a value": "GET /healthz HTTP/1.1\r\nhost: here\r\nx: \0\r\n\r\n",
    "VT in a value": "GET /healthz HTTP/1.1\r\nhost: here\r\nx: \x0b\r\n\r\n",
    "no host": "GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": "GET /healthz HTTP/1.1\r\nhost: here\r\nhost: here\r\n\r\n",
    "two other hosts": "GET /healthz HTTP/1.1\r\nhost: here\r\nHost: there\r\n\r\n",
    "two hosts in 1.0": "GET /healthz HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
    "absolute": "GET http://here/healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "absolute with TLS": "GET https://here/healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "authority": "CONNECT here:443 HTTP/1.1\r\nhost: here\r\n\r\n",
    "asterisk": "OPTIONS * HTTP/1.1\r\nhost: here\r\n\r\n", "no slash": "GET healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "fragment": "GET /healthz#x HTTP/1.1\r\nhost: here\r\n\r\n",
    "blank in the path": "GET /health z HTTP/1.1\r\nhost: here\r\n\r\n",
    "letters beyond ASCII": "GET /\xfc HTTP/1.1\r\nhost: here\r\n\r\n",
    "two blanks": "GET  /healthz HTTP/1.1\r\nhost: here\r\n\r\n", "tab": "GET\t/healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "blank at the end": "GET /healthz HTTP/1.1 \r\nhost: here\r\n\r\n",
    "blank first": " GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n", "no version": "GET /healthz\r\nhost: here\r\n\r\n",
    "0.9": "GET /healthz HTTP/0.9\r\nhost: here\r\n\r\n", "1.2": "GET /healthz HTTP/1.2\r\nhost: here\r\n\r\n",
    "1.10": "GET /healthz HTTP/1.10\r\nhost: here\r\n\r\n", "2.0": "GET /healthz HTTP/2.0\r\nhost: here\r\n\r\n",
    "lower case": "GET /healthz http/1.1\r\nhost: here\r\n\r\n",
    "HTTPS": "GET /healthz HTTPS/1.1\r\nhost: here\r\n\r\n",
    "two empty lines": "\r\n\r\nGET /healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "LF first": "\nGET /healthz HTTP/1.1\r\nhost: here\r\n\r\n", "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "SSH": "\x00\x00\x01\xfcSSH-2.0-x\r\n\r\n", "SOCKS": "\x05\x01\x00",
    "an answer": "HTTP/1.1 200 OK\r\nhost: x\r\n\r\n",
    "a method of blanks": "G T /healthz HTTP/1.1\r\nhost: here\r\n\r\n",
    "a method with a colon": "GET: /healthz HTTP/1.1\r\nhost: here\r\n\r\n",
}  # fmt: skip


@frozen
class FramingAttempt:
    """Bytes for one listener, and the statuses of its responses before it closes the connection."""

    name: str
    listener: str
    raw: bytes
    statuses: tuple[int, ...] = (400,)


def attempts() -> Iterator[FramingAttempt]:
    """Yield all attempts."""
    for listener, path, headers in TARGETS:
        yield from _length_attempts(listener, path, headers)
        for name, chunks in BROKEN_CHUNKS.items():
            yield _attempt(
                f"chunks: {name}",
                listener,
                f"POST {path} HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n{chunks}",
            )
        for name, head in BROKEN_HEADS.items():
            yield _attempt(f"head: {name}", listener, head)
        yield from _valid_attempts(listener, path, headers)


def _length_attempts(listener: str, path: str, headers: str) -> Iterator[FramingAttempt]:
    for method in METHODS:
        start = f"{method} {path} HTTP/1.1\r\n{headers}"
        for value in LENGTHS:
            yield _attempt(f"length {value!r}", listener, f"{start}content-length: {value}\r\n\r\nhello")
        for value in ENCODINGS:
            yield _attempt(f"encoding {value!r}", listener, f"{start}transfer-encoding: {value}\r\n\r\n0\r\n\r\n")
        for value in ("chunked", "Chunked", *ENCODINGS):
            pair = ["content-length: 5\r\n", f"transfer-encoding: {value}\r\n"]
            for lines in (pair, pair[::-1]):
                yield _attempt(f"length and encoding {value!r}", listener, f"{start}{''.join(lines)}\r\n0\r\n\r\n")
        for first, second in (("5", "5"), ("5", "6"), ("0", "5"), ("5", "0")):
            yield _attempt(
                "two lengths", listener, f"{start}content-length: {first}\r\nContent-Length: {second}\r\n\r\nhello"
            )
        yield _attempt(
            "two encodings",
            listener,
            f"{start}transfer-encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        )
        yield _attempt(
            "chunked in 1.0",
            listener,
            f"{start.replace('HTTP/1.1', 'HTTP/1.0')}transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        )
        yield _attempt("blank before the colon", listener, f"{start}content-length : 5\r\n\r\nhello")
        yield _attempt("folded encoding", listener, f"{start}transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n")


def _valid_attempts(listener: str, path: str, headers: str) -> Iterator[FramingAttempt]:
    """Yield attempts with a valid part, which gets a known number of responses."""
    invalid, valid = 400, 200
    complete = 202 if listener == "api" else 403
    chunked = f"POST {path} HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n"
    yield _attempt("cleartext HTTP/2", listener, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 426)
    yield _attempt(
        "1.0 with keep-alive", listener, "GET /healthz HTTP/1.0\r\nhost: here\r\nconnection: keep-alive\r\n\r\n", valid
    )
    yield _attempt("1.0 without host", listener, "GET /healthz HTTP/1.0\r\n\r\n", valid)
    yield _attempt(
        "the second is invalid",
        listener,
        "GET /healthz HTTP/1.1\r\nhost: here\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
        valid,
        invalid,
    )
    yield _attempt(
        "the first closes", listener, "GET /healthz HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n", valid
    )
    yield _attempt("whole chunks", listener, f"{chunked}2\r\n{{}}\r\n0\r\n\r\nGET /x HTTP/9\r\n\r\n", complete, invalid)
    yield _attempt(
        "leading zeros", listener, f"{chunked}0002\r\n{{}}\r\n000\r\n\r\nGET /x HTTP/9\r\n\r\n", complete, invalid
    )
    yield _attempt(
        "a huge length", listener, f"POST {path} HTTP/1.1\r\n{headers}content-length: {'9' * 30}\r\n\r\nhello", 413
    )


def _attempt(name: str, listener: str, raw: str, *statuses: int) -> FramingAttempt:
    return FramingAttempt(name, listener, raw.encode("latin-1"), statuses or (400,))


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Send every attempt over its own connection; a share below a tenth sends only some of them."""
    table = list(attempts())
    chosen = table if share >= 0.1 else rng.sample(table, int(len(table) * share * 10))
    result, answers, left = AttackResult(), Counter[str](), list(chosen)

    async def send_attempts(number: int) -> None:
        while left:
            attempt = left.pop()
            try:
                statuses = await _send_attempt(target, attempt, f"127.0.1.{number % 8 + 1}")
            except (InvalidResponse, NoResponse, OSError) as error:
                result.violations.append(f"{attempt.name} at {attempt.listener}: {error!r}")
                continue
            answers[",".join(map(str, statuses))] += 1
            result.expect(
                statuses == attempt.statuses, f"{attempt.name} at {attempt.listener}: {statuses} {attempt.raw[-200:]!r}"
            )

    async with trio.open_nursery() as nursery:
        for number in range(CONNECTIONS):
            nursery.start_soon(send_attempts, number)
    result.numbers = {"attempts": len(chosen), "answers": dict(sorted(answers.items()))}
    return result


async def _send_attempt(target: TargetService, attempt: FramingAttempt, source: str) -> tuple[int, ...]:
    """Return the statuses of all responses until the service closes the connection."""
    connection = await connect(target.api if attempt.listener == "api" else target.hooks, source=source)
    try:
        await connection.send(attempt.raw + SMUGGLED)
        return tuple(response.status for response in await connection.receive_all())
    finally:
        await connection.close()
