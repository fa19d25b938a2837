"""H7 and W2: the same request or delivery repeated, in sequence, at once, and after a restart, success and failure.

All requests with one key, and all deliveries with one id, give one job, and every response has its id.
"""

import json
import random
from collections import Counter

import trio

from scripts.tortures.http.lib.client import connect, request
from scripts.tortures.http.lib.target_config import bearer, signed
from scripts.tortures.http.lib.target_service import AttackResult, TargetService

IN_SEQUENCE, AT_ONCE = 1_000, 200
CONNECTIONS_PER_ADDRESS = 40


async def repeat_requests(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """H7: repeat a request with one Idempotency-Key in sequence, and another one at once."""
    result, statuses = AttackResult(), Counter[str]()
    keys = {"in-sequence": False, "at-once": True}
    job_ids: dict[str, set[str]] = {}
    for key, at_once in keys.items():
        job_ids[key] = await _repeat(target.api, _request(key), share, result, statuses, at_once=at_once)
    target.restart()
    for key, at_once in keys.items():
        job_ids[key] |= await _repeat(target.api, _request(key), share / 10, result, statuses, at_once=at_once)
        conflict = await _statuses(target.api, _request(key, payload="another"))
        result.expect(conflict == [422], f"another body with the key {key}: {conflict}")
        _expect_one_job(target, result, job_ids[key], f"payload LIKE '%keyed-{key}%'", key)
    result.numbers = {"answers": dict(statuses)}
    return result


def _request(key: str, *, payload: str = "") -> bytes:
    body = json.dumps({"payload": {"key": payload or f"keyed-{key}"}}).encode()
    return request("POST", "/plugin/ok/poll", body, {**bearer(), "idempotency-key": key})


async def repeat_deliveries(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """W2: repeat a delivery with one id at an endpoint whose jobs succeed, and at one whose jobs fail."""
    result, statuses = AttackResult(), Counter[str]()
    paths, job_ids = ("/hook/ok", "/hook/failing"), dict[str, set[str]]()
    for path in paths:
        job_ids[path] = await _repeat(target.hooks, _delivery(path), share, result, statuses, at_once=True)
        result.expect(target.wait_until_idle(), "the job does not end")
        job_ids[path] |= await _repeat(target.hooks, _delivery(path), share, result, statuses, at_once=False)
    target.restart()
    for path in paths:
        job_ids[path] |= await _repeat(target.hooks, _delivery(path), share / 10, result, statuses, at_once=True)
        conflict = await _statuses(target.hooks, request("POST", path, b"{}", signed(b"{}", "again")))
        result.expect(conflict == [409], f"another body with the same id at {path}: {conflict}")
        where = f"payload LIKE '%repeated-at-{path}%'"
        _expect_one_job(target, result, job_ids[path], where, path)
        (ended,) = target.home.rows(f"SELECT status FROM job_queue WHERE {where} LIMIT 1")
        result.expect((ended["status"] == "succeeded") == (path == "/hook/ok"), f"{path} ended {ended}")
    result.numbers = {"answers": dict(statuses)}
    return result


def _delivery(path: str) -> bytes:
    body = json.dumps({"what": f"repeated-at-{path}"}).encode()
    return request("POST", path, body, signed(body, "again"))


async def _repeat(
    port: int, raw: bytes, share: float, result: AttackResult, statuses: Counter[str], *, at_once: bool
) -> set[str]:
    """Send a request repeatedly and return the job ids of all responses."""
    job_ids: set[str] = set()
    times = max(int((AT_ONCE if at_once else IN_SEQUENCE) * share), 2)

    async def send(number: int, count: int) -> None:
        connection = await connect(port, source=f"127.0.5.{number // CONNECTIONS_PER_ADDRESS + 1}")
        for _ in range(count):
            await connection.send(raw)
            response = await connection.receive()
            statuses[str(response.status) if response else "closed"] += 1
            if response is None or response.status != 202:
                result.violations.append(f"{response}: {raw[:100]!r}")
            else:
                job_ids.add(json.loads(response.body)["job_id"])
        await connection.close()

    async with trio.open_nursery() as nursery:
        for number in range(times if at_once else 1):
            nursery.start_soon(send, number, 1 if at_once else times)
    return job_ids


async def _statuses(port: int, raw: bytes) -> list[int]:
    connection = await connect(port)
    await connection.send(raw)
    await connection.send_eof()
    statuses = [response.status for response in await connection.receive_all()]
    await connection.close()
    return statuses


def _expect_one_job(target: TargetService, result: AttackResult, job_ids: set[str], where: str, name: str) -> None:
    rows = target.count(where=where)
    result.expect(len(job_ids) == rows == 1, f"{name}: {rows} jobs, and the responses have {job_ids}")
