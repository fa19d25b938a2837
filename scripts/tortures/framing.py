"""Requests whose end is a matter of opinion: a table of framing and smuggling attempts, each with its one answer.

H2: whatever two readers could read differently is refused and the connection closed. Behind every attempt comes a
second request that must never be answered: otherwise a proxy in front and the service would count differently.
"""

import random
from collections import Counter
from collections.abc import Iterator

import trio
from attrs import frozen

from scripts.tortures.grounds import GUEST
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import BadAnswer, Hung, connect, request

AT_ONCE = 16
SMUGGLED = request("GET", "/healthz", headers={"x-smuggled": "yes"})
API = f"host: here\r\nauthorization: Bearer {GUEST}\r\n"
HOOK = "host: here\r\n"
TARGETS = (("api", "/plugin/well/poll", API), ("hooks", "/hook/well", HOOK))
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
class Attempt:
    """Bytes for one door, and the statuses that come back before it closes."""

    name: str
    door: str
    raw: bytes
    statuses: tuple[int, ...] = (400,)


def attempts() -> Iterator[Attempt]:
    """The whole table."""
    for door, path, headers in TARGETS:
        yield from _lengths(door, path, headers)
        for name, chunks in BROKEN_CHUNKS.items():
            yield _attempt(
                f"chunks: {name}", door, f"POST {path} HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n{chunks}"
            )
        for name, head in BROKEN_HEADS.items():
            yield _attempt(f"head: {name}", door, head)
        yield from _exact(door, path, headers)


def _lengths(door: str, path: str, headers: str) -> Iterator[Attempt]:
    for method in METHODS:
        start = f"{method} {path} HTTP/1.1\r\n{headers}"
        for value in LENGTHS:
            yield _attempt(f"length {value!r}", door, f"{start}content-length: {value}\r\n\r\nhello")
        for value in ENCODINGS:
            yield _attempt(f"encoding {value!r}", door, f"{start}transfer-encoding: {value}\r\n\r\n0\r\n\r\n")
        for value in ("chunked", "Chunked", *ENCODINGS):
            pair = ["content-length: 5\r\n", f"transfer-encoding: {value}\r\n"]
            for lines in (pair, pair[::-1]):
                yield _attempt(f"length and encoding {value!r}", door, f"{start}{''.join(lines)}\r\n0\r\n\r\n")
        for first, second in (("5", "5"), ("5", "6"), ("0", "5"), ("5", "0")):
            yield _attempt(
                "two lengths", door, f"{start}content-length: {first}\r\nContent-Length: {second}\r\n\r\nhello"
            )
        yield _attempt(
            "two encodings", door, f"{start}transfer-encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        yield _attempt(
            "chunked in 1.0",
            door,
            f"{start.replace('HTTP/1.1', 'HTTP/1.0')}transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        )
        yield _attempt("blank before the colon", door, f"{start}content-length : 5\r\n\r\nhello")
        yield _attempt("folded encoding", door, f"{start}transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n")


def _exact(door: str, path: str, headers: str) -> Iterator[Attempt]:
    """What is told apart from its neighbours: these are answered, and the number of answers is known."""
    bad, good = 400, 200
    refused = 202 if door == "api" else 403
    whole = f"POST {path} HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n"
    yield _attempt("cleartext HTTP/2", door, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 426)
    yield _attempt(
        "1.0 with keep-alive", door, "GET /healthz HTTP/1.0\r\nhost: here\r\nconnection: keep-alive\r\n\r\n", good
    )
    yield _attempt("1.0 without host", door, "GET /healthz HTTP/1.0\r\n\r\n", good)
    yield _attempt(
        "the second is invalid",
        door,
        "GET /healthz HTTP/1.1\r\nhost: here\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
        good,
        bad,
    )
    yield _attempt("the first closes", door, "GET /healthz HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n", good)
    yield _attempt("whole chunks", door, f"{whole}2\r\n{{}}\r\n0\r\n\r\nGET /x HTTP/9\r\n\r\n", refused, bad)
    yield _attempt("leading zeros", door, f"{whole}0002\r\n{{}}\r\n000\r\n\r\nGET /x HTTP/9\r\n\r\n", refused, bad)
    yield _attempt(
        "an endless length", door, f"POST {path} HTTP/1.1\r\n{headers}content-length: {'9' * 30}\r\n\r\nhello", 413
    )


def _attempt(name: str, door: str, raw: str, *statuses: int) -> Attempt:
    return Attempt(name, door, raw.encode("latin-1"), statuses or (400,))


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Every attempt of the table, each over a connection of its own; a small share takes some of them."""
    table = list(attempts())
    chosen = table if share >= 0.1 else dice.sample(table, int(len(table) * share * 10))
    found, heard, left = Findings(), Counter[str](), list(chosen)

    async def try_some(number: int) -> None:
        while left:
            attempt = left.pop()
            try:
                statuses = await _try(siege, attempt, f"127.0.1.{number % 8 + 1}")
            except (BadAnswer, Hung, OSError) as error:
                found.wrong.append(f"{attempt.name} at {attempt.door}: {error!r}")
                continue
            heard[",".join(map(str, statuses))] += 1
            found.expect(
                statuses == attempt.statuses, f"{attempt.name} at {attempt.door}: {statuses} {attempt.raw[-200:]!r}"
            )

    async with trio.open_nursery() as nursery:
        for number in range(AT_ONCE):
            nursery.start_soon(try_some, number)
    found.numbers = {"attempts": len(chosen), "answers": dict(sorted(heard.items()))}
    return found


async def _try(siege: Siege, attempt: Attempt, source: str) -> tuple[int, ...]:
    """The statuses of all answers until the service closes the connection by itself."""
    talker = await connect(siege.api if attempt.door == "api" else siege.hooks, source=source)
    try:
        await talker.send(attempt.raw + SMUGGLED)
        return tuple(answer.status for answer in await talker.answers())
    finally:
        await talker.close()
