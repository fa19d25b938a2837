"""The same thing again and again: requests under one key, deliveries under one id.

H7 and W2: a thousand times, two hundred at once, after a restart, after success and after failure, it is one job, and
everybody is told its id.
"""

import json
import random
from collections import Counter

import trio

from scripts.tortures.grounds import bearer, signed
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import connect, request

TIMES, AT_ONCE = 1_000, 200
PER_ADDRESS = 40


async def repeat_requests(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Under one Idempotency-Key each: one after the other, and at once."""
    found, told = Findings(), Counter[str]()
    keys = {"patient": False, "hasty": True}
    heard: dict[str, set[str]] = {}
    for key, at_once in keys.items():
        heard[key] = await _again(siege.api, _keyed(key), share, found, told, at_once=at_once)
    siege.restart()
    for key, at_once in keys.items():
        heard[key] |= await _again(siege.api, _keyed(key), share / 10, found, told, at_once=at_once)
        statuses = await _statuses(siege.api, _keyed(key, payload="another"))
        found.expect(statuses == [422], f"another body under the key {key}: {statuses}")
        _expect_one(siege, found, heard[key], f"payload LIKE '%keyed-{key}%'", key)
    found.numbers = {"answers": dict(told)}
    return found


def _keyed(key: str, *, payload: str = "") -> bytes:
    body = json.dumps({"payload": {"key": payload or f"keyed-{key}"}}).encode()
    return request("POST", "/plugin/well/poll", body, {**bearer(), "idempotency-key": key})


async def repeat_deliveries(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Under one id at each of two endpoints: what they start succeeds, or fails."""
    found, told = Findings(), Counter[str]()
    paths, heard = ("/hook/well", "/hook/ill"), dict[str, set[str]]()
    for path in paths:
        heard[path] = await _again(siege.hooks, _named(path), share, found, told, at_once=True)
        found.expect(siege.wait_until_idle(), "the job does not end")
        heard[path] |= await _again(siege.hooks, _named(path), share, found, told, at_once=False)
    siege.restart()
    for path in paths:
        heard[path] |= await _again(siege.hooks, _named(path), share / 10, found, told, at_once=True)
        statuses = await _statuses(siege.hooks, request("POST", path, b"{}", signed(b"{}", "again")))
        found.expect(statuses == [409], f"another body under the same id at {path}: {statuses}")
        mine = f"payload LIKE '%repeated-at-{path}%'"
        _expect_one(siege, found, heard[path], mine, path)
        (ended,) = siege.home.rows(f"SELECT status FROM job_queue WHERE {mine} LIMIT 1")
        found.expect((ended["status"] == "succeeded") == (path == "/hook/well"), f"{path} ended {ended}")
    found.numbers = {"answers": dict(told)}
    return found


def _named(path: str) -> bytes:
    body = json.dumps({"what": f"repeated-at-{path}"}).encode()
    return request("POST", path, body, signed(body, "again"))


async def _again(
    port: int, raw: bytes, share: float, found: Findings, told: Counter[str], *, at_once: bool
) -> set[str]:
    """The ids of all jobs that anybody was told of."""
    job_ids: set[str] = set()
    times = max(int((AT_ONCE if at_once else TIMES) * share), 2)

    async def ask(number: int, count: int) -> None:
        talker = await connect(port, source=f"127.0.5.{number // PER_ADDRESS + 1}")
        for _ in range(count):
            await talker.send(raw)
            answer = await talker.answer()
            told[str(answer.status) if answer else "closed"] += 1
            if answer is None or answer.status != 202:
                found.wrong.append(f"{answer}: {raw[:100]!r}")
            else:
                job_ids.add(json.loads(answer.body)["job_id"])
        await talker.close()

    async with trio.open_nursery() as nursery:
        for number in range(times if at_once else 1):
            nursery.start_soon(ask, number, 1 if at_once else times)
    return job_ids


async def _statuses(port: int, raw: bytes) -> list[int]:
    talker = await connect(port)
    await talker.send(raw)
    await talker.say_no_more()
    statuses = [answer.status for answer in await talker.answers()]
    await talker.close()
    return statuses


def _expect_one(siege: Siege, found: Findings, job_ids: set[str], where: str, name: str) -> None:
    rows = siege.count(where=where)
    found.expect(len(job_ids) == rows == 1, f"{name}: {rows} jobs, and callers were told of {job_ids}")
