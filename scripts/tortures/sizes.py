"""Bodies at the edge: of every length and framing, and of every kind that is not what the endpoint takes.

H6: what is within the limit is read, however it is framed; one byte more is refused. W3: what is well signed but of
no use is refused with a reason and is never a job.
"""

import gzip
import random
from collections.abc import Iterator

from attrs import frozen

from scripts.tortures.grounds import BODY_LIMIT, bearer, signature, signed
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import connect, request


@frozen
class Case:
    """Bytes for one connection, what is answered before both sides close it, and how many jobs that makes."""

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    jobs: int = 0


async def try_requests(siege: Siege, dice: random.Random, share: float) -> Findings:
    found = await _try_all(siege, siege.api, list(_requests()))
    chunked = siege.count(where=f"plugin = 'well' AND LENGTH(payload) > {BODY_LIMIT - 100}")
    found.expect(chunked >= 4, f"only {chunked} of the large payloads are in the ledger")
    return found


async def try_deliveries(siege: Siege, dice: random.Random, share: float) -> Findings:
    return await _try_all(siege, siege.hooks, list(_deliveries()))


async def _try_all(siege: Siege, port: int, cases: list[Case]) -> Findings:
    found = Findings(numbers={"cases": len(cases)})
    for case in cases:
        before = siege.count()
        talker = await connect(port)
        await talker.send(case.raw)
        await talker.say_no_more()
        statuses = tuple(answer.status for answer in await talker.answers())
        await talker.close()
        made = siege.count() - before
        found.expect((statuses, made) == (case.statuses, case.jobs), f"{case.name}: {statuses} and {made} jobs")
    return found


def _requests() -> Iterator[Case]:
    """To POST /plugin/well/poll."""
    path = "/plugin/well/poll"
    for size, status in ((BODY_LIMIT - 1, 202), (BODY_LIMIT, 202), (BODY_LIMIT + 1, 413)):
        body, jobs = _padded(b'{"payload": {"x": "%b"}}', size), int(status == 202)
        yield Case(f"{size} bytes", request("POST", path, body, bearer()), (status,), jobs)
        for piece in (100, 5000, size):
            yield Case(f"{size} bytes in chunks of {piece}", _chunked(path, body, piece), (status,), jobs)
    small = b'{"payload": {}}'
    good, extra = request("POST", path, small, bearer()), request("POST", path, small + b"!" * 10, bearer())
    yield Case("length 0", request("POST", path, b"", bearer(), has_body=True), (202,), 1)
    yield Case("no length", request("POST", path, b"", bearer()), (202,), 1)
    yield Case("no chunks", _chunked(path, b"", 1), (202,), 1)
    yield Case("less than announced", extra[:-10], ())
    yield Case("more than announced", good + b"!" * 10 + b"\r\n\r\n", (202, 400), 1)
    yield Case("nothing of what was announced", good[: -len(small)], ())
    yield Case("far too much announced", request("POST", path, b"", {**bearer(), "content-length": "9" * 18}), (413,))
    yield Case(
        "far too much announced, without a right", request("POST", path, b"", {"content-length": "9" * 18}), (401,)
    )
    yield Case("a last chunk that is missing", _chunked(path, small, 5)[:-5], ())


def _deliveries() -> Iterator[Case]:
    """To the endpoints; all are signed well."""
    for size, status in ((BODY_LIMIT, 202), (BODY_LIMIT + 1, 413)):
        body, jobs = _padded(b'{"x": "%b"}', size), int(status == 202)
        yield Case(f"{size} bytes", request("POST", "/hook/well", body, signed(body)), (status,), jobs)
        yield Case(f"{size} bytes in chunks", _chunked("/hook/well", body, 4096, signed(body)), (status,), jobs)
    yield Case("no length", request("POST", "/hook/well", b"", signed(b"")), (400,))
    yield Case("empty", request("POST", "/hook/well", b"", signed(b""), has_body=True), (400,))
    for raw in (
        b"{",
        b"{}{}",
        b"NaN",
        b'{"a": 1, "a": 2}',
        b"\xff",
        b"[" * 100 + b"]" * 100,
        b"\xef\xbb\xbf{}",
        b"hello",
    ):
        yield Case(f"not JSON: {raw[:20]!r}", request("POST", "/hook/well", raw, signed(raw)), (400,))
    for raw in (b"[1, 2]", b'"text"', b"null", b"0"):
        yield Case(f"JSON: {raw!r}", request("POST", "/hook/well", raw, signed(raw)), (202,), 1)
    packed = gzip.compress(b"{}")
    yield Case("gzip", request("POST", "/hook/well", packed, {**signed(packed), "content-encoding": "gzip"}), (415,))
    yield Case("gzip that says nothing", request("POST", "/hook/well", packed, signed(packed)), (400,))
    form = b"payload=%7B%22a%22%3A1%7D"
    as_form = {"content-type": "application/x-www-form-urlencoded"}
    yield Case("form for JSON", request("POST", "/hook/well", form, {**signed(form), **as_form}), (415,))
    yield Case("form", request("POST", "/hook/form", form, {**signed(form), **as_form}), (202,), 1)
    many = b"&".join(b"a=%d" % n for n in range(1001))
    yield Case("form of too many fields", request("POST", "/hook/form", many, {**signed(many), **as_form}), (400,))
    yield Case("ping", request("POST", "/hook/github", b"{}", _github("ping")), (200,))
    yield Case("push", request("POST", "/hook/github", b"{}", _github("push")), (202,), 1)


def _github(kind: str) -> dict[str, str]:
    named = {"x-github-event": kind, "x-github-delivery": f"only-{kind}"}
    return {"x-hub-signature-256": f"sha256={signature(b'{}')}", **named}


def _padded(pattern: bytes, size: int) -> bytes:
    return pattern % (b"x" * (size - len(pattern % b"")))


def _chunked(path: str, body: bytes, size: int, headers: dict[str, str] | None = None) -> bytes:
    head = request("POST", path, b"", {**(bearer() if headers is None else headers), "transfer-encoding": "chunked"})
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
