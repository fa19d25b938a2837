"""H6 and W3: bodies of every length, framing and type around the limit.

A body within the limit is read, whatever its framing; one byte more is rejected. A signed delivery that cannot be used
is rejected with a reason and creates no job.
"""

import gzip
import random
from collections.abc import Iterator

from attrs import frozen

from scripts.tortures.http.lib.client import connect, request
from scripts.tortures.http.lib.target_config import MAX_BODY_BYTES, bearer, signature, signed
from scripts.tortures.http.lib.target_service import AttackResult, TargetService


@frozen
class BodyCase:
    """Bytes for one connection, the statuses of the responses, and the number of new jobs."""

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    jobs: int = 0


async def send_requests(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """H6: send requests to the API."""
    result = await _send_cases(target, target.api, list(_requests()))
    stored = target.count(where=f"plugin = 'ok' AND LENGTH(payload) > {MAX_BODY_BYTES - 100}")
    result.expect(stored >= 4, f"only {stored} of the large payloads are in the ledger")
    return result


async def send_deliveries(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """W3: send signed deliveries."""
    return await _send_cases(target, target.hooks, list(_deliveries()))


async def _send_cases(target: TargetService, port: int, cases: list[BodyCase]) -> AttackResult:
    result = AttackResult(numbers={"cases": len(cases)})
    for case in cases:
        before = target.count()
        connection = await connect(port)
        await connection.send(case.raw)
        await connection.send_eof()
        statuses = tuple(response.status for response in await connection.receive_all())
        await connection.close()
        jobs = target.count() - before
        result.expect((statuses, jobs) == (case.statuses, case.jobs), f"{case.name}: {statuses} and {jobs} jobs")
    return result


def _requests() -> Iterator[BodyCase]:
    path = "/plugin/ok/poll"
    for size, status in ((MAX_BODY_BYTES - 1, 202), (MAX_BODY_BYTES, 202), (MAX_BODY_BYTES + 1, 413)):
        body, jobs = _padded(b'{"payload": {"x": "%b"}}', size), int(status == 202)
        yield BodyCase(f"{size} bytes", request("POST", path, body, bearer()), (status,), jobs)
        for piece in (100, 5000, size):
            yield BodyCase(f"{size} bytes in chunks of {piece}", _chunked(path, body, piece), (status,), jobs)
    small = b'{"payload": {}}'
    valid, longer = request("POST", path, small, bearer()), request("POST", path, small + b"!" * 10, bearer())
    yield BodyCase("length 0", request("POST", path, b"", bearer(), has_body=True), (202,), 1)
    yield BodyCase("no length", request("POST", path, b"", bearer()), (202,), 1)
    yield BodyCase("no chunks", _chunked(path, b"", 1), (202,), 1)
    yield BodyCase("shorter than announced", longer[:-10], ())
    yield BodyCase("longer than announced", valid + b"!" * 10 + b"\r\n\r\n", (202, 400), 1)
    yield BodyCase("nothing of what was announced", valid[: -len(small)], ())
    huge = {"content-length": "9" * 18}
    yield BodyCase("far too much announced", request("POST", path, b"", {**bearer(), **huge}), (413,))
    yield BodyCase("far too much announced, without a token", request("POST", path, b"", huge), (401,))
    yield BodyCase("no last chunk", _chunked(path, small, 5)[:-5], ())


def _deliveries() -> Iterator[BodyCase]:
    path = "/hook/ok"
    for size, status in ((MAX_BODY_BYTES, 202), (MAX_BODY_BYTES + 1, 413)):
        body, jobs = _padded(b'{"x": "%b"}', size), int(status == 202)
        yield BodyCase(f"{size} bytes", request("POST", path, body, signed(body)), (status,), jobs)
        yield BodyCase(f"{size} bytes in chunks", _chunked(path, body, 4096, signed(body)), (status,), jobs)
    yield BodyCase("no length", request("POST", path, b"", signed(b"")), (400,))
    yield BodyCase("empty", request("POST", path, b"", signed(b""), has_body=True), (400,))
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
        yield BodyCase(f"not JSON: {raw[:20]!r}", request("POST", path, raw, signed(raw)), (400,))
    for raw in (b"[1, 2]", b'"text"', b"null", b"0"):
        yield BodyCase(f"JSON: {raw!r}", request("POST", path, raw, signed(raw)), (202,), 1)
    packed = gzip.compress(b"{}")
    yield BodyCase("gzip", request("POST", path, packed, {**signed(packed), "content-encoding": "gzip"}), (415,))
    yield BodyCase("gzip without a header", request("POST", path, packed, signed(packed)), (400,))
    form = b"payload=%7B%22a%22%3A1%7D"
    as_form = {"content-type": "application/x-www-form-urlencoded"}
    yield BodyCase("form instead of JSON", request("POST", path, form, {**signed(form), **as_form}), (415,))
    yield BodyCase("form", request("POST", "/hook/form", form, {**signed(form), **as_form}), (202,), 1)
    many = b"&".join(b"a=%d" % n for n in range(1001))
    yield BodyCase(
        "form with too many fields", request("POST", "/hook/form", many, {**signed(many), **as_form}), (400,)
    )
    yield BodyCase("ping", request("POST", "/hook/github", b"{}", _github("ping")), (200,))
    yield BodyCase("push", request("POST", "/hook/github", b"{}", _github("push")), (202,), 1)


def _github(kind: str) -> dict[str, str]:
    event = {"x-github-event": kind, "x-github-delivery": f"only-{kind}"}
    return {"x-hub-signature-256": f"sha256={signature(b'{}')}", **event}


def _padded(pattern: bytes, size: int) -> bytes:
    return pattern % (b"x" * (size - len(pattern % b"")))


def _chunked(path: str, body: bytes, size: int, headers: dict[str, str] | None = None) -> bytes:
    head = request("POST", path, b"", {**(bearer() if headers is None else headers), "transfer-encoding": "chunked"})
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
