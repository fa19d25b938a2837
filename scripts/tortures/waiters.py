"""Callers who wait for the end of a run: as many as may, one more, some who lose patience, and many who hang up.

H8: whoever finds no place is told before anything is begun; a run goes on whether or not anybody waits for it; and a
place is free again as soon as its caller is gone.
"""

import json
import random
from collections import Counter

import trio

from scripts.tortures.grounds import WAITERS, bearer
from scripts.tortures.siege import Findings, Siege, until
from scripts.tortures.talk import Answer, connect, request

CALLS = 10_000
AT_ONCE = 6
HANGS_UP = 0.4
PATIENCE = 30.0
PROBE = request("GET", "/healthz")


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    found = Findings()
    await _fill_every_place(siege, found)
    await _lose_patience(siege, found)
    fates = await _call_and_hang_up(siege, dice, int(CALLS * share), found)
    await _fill_every_place(siege, found)
    found.expect(siege.wait_until_idle(), "some runs do not end")
    runs = siege.count(where="pipeline = 'quick'")
    ended = siege.count(where="pipeline = 'quick' AND status = 'succeeded'")
    found.expect(ended == runs, f"{runs} runs were begun, {ended} went well")
    began = fates["200"], fates["200"] + fates["hung up"]
    found.expect(began[0] <= runs <= began[1], f"{runs} runs are on record, {dict(fates)}")
    found.numbers = {"calls": dict(fates), "runs": runs}
    return found


async def _fill_every_place(siege: Siege, found: Findings) -> None:
    """Ten wait, the eleventh is refused and has begun nothing; then all ten are told the end."""
    siege.open_gate(is_open=False)
    before = siege.count(where="pipeline = 'long'")
    statuses = Counter[int]()

    async def wait(number: int) -> None:
        statuses[(await _call(siege, "long", number)).status] += 1

    async with trio.open_nursery() as nursery:
        for number in range(WAITERS):
            nursery.start_soon(wait, number)
        await until(lambda: siege.count(where="pipeline = 'long'") >= before + WAITERS, PATIENCE)
        eleventh = await _call(siege, "long", WAITERS)
        begun = siege.count(where="pipeline = 'long'") - before
        siege.open_gate(is_open=True)
    found.expect(eleventh.status == 503 and begun == WAITERS, f"the eleventh: {eleventh}, {begun} runs")
    found.expect(statuses == {200: WAITERS}, f"the ten were told {dict(statuses)}")


async def _lose_patience(siege: Siege, found: Findings) -> None:
    """A pipeline with a short time: 202 with the id, and the run goes on."""
    siege.open_gate(is_open=False)
    answers: list[Answer] = []

    async def wait(number: int) -> None:
        answers.append(await _call(siege, "short", number))

    async with trio.open_nursery() as nursery:
        for number in range(WAITERS):
            nursery.start_soon(wait, number)
    siege.open_gate(is_open=True)
    found.expect(siege.wait_until_idle(), "runs that nobody waits for do not end")
    for answer in answers:
        told = json.loads(answer.body)
        found.expect((answer.status, told.get("timeout_exceeded")) == (202, True), f"after its time: {answer}")
        rows = siege.home.rows("SELECT status FROM job_queue WHERE id = ?", told.get("job_id"))
        found.expect([row["status"] for row in rows] == ["succeeded"], f"{told.get('job_id')} came to {rows}")


async def _call_and_hang_up(siege: Siege, dice: random.Random, calls: int, found: Findings) -> Counter[str]:
    """What became of every call; a place can be free a moment after its caller has hung up, so some find none."""
    fates, left = Counter[str](), [calls]

    async def call(number: int) -> None:
        talker = await connect(siege.api, source=f"127.0.6.{number + 1}")
        while left[0] > 0:
            left[0] -= 1
            await talker.send(request("POST", "/pipeline/quick", b'{"payload": {}}', bearer()))
            if dice.random() < HANGS_UP:
                await talker.send(dice.choice((b"", b"GET", PROBE)))  # and begins to ask for more
                await trio.sleep(dice.choice((0, 0, 0.002, 0.01)))
                await talker.close()
                talker = await connect(siege.api, source=f"127.0.6.{number + 1}")
                fates["hung up"] += 1
                continue
            answer = await talker.answer()
            fates[str(answer.status) if answer else "closed"] += 1
            if answer is None or answer.status not in (200, 503):
                found.wrong.append(f"a caller was told {answer}")
        await talker.close()

    async with trio.open_nursery() as nursery:
        for number in range(AT_ONCE):
            nursery.start_soon(call, number)
    return fates


async def _call(siege: Siege, pipeline: str, number: int) -> Answer:
    talker = await connect(siege.api, source=f"127.0.6.{number % 5 + 100}")
    talker.patience = 2 * PATIENCE
    await talker.send(request("POST", f"/pipeline/{pipeline}", b'{"payload": {}}', bearer()))
    answer = await talker.answer()
    await talker.close()
    assert answer is not None, "a caller who waits was left alone"
    return answer
