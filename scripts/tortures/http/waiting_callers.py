"""H8: callers that wait for the end of a run: up to the limit, one more, some with a timeout, many that disconnect.

A call above the limit is rejected before it starts anything. A run continues when its caller disconnects, and the slot
of the caller is free again.
"""

import json
import random
from collections import Counter

import trio

from scripts.tortures.http.lib.client import Response, connect, request
from scripts.tortures.http.lib.target_config import MAX_CONCURRENT_SYNC, bearer
from scripts.tortures.http.lib.target_service import AttackResult, TargetService, wait_until

CALLS = 10_000
CONNECTIONS = 6
DISCONNECT_SHARE = 0.4
WAIT_TIMEOUT = 30.0
PROBE = request("GET", "/healthz")


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Fill all slots, time out, disconnect many callers, and fill all slots again."""
    result = AttackResult()
    await _fill_all_slots(target, result)
    await _time_out(target, result)
    outcomes = await _call_and_disconnect(target, rng, int(CALLS * share), result)
    await _fill_all_slots(target, result)
    result.expect(target.wait_until_idle(), "some runs do not end")
    runs = target.count(where="pipeline = 'quick'")
    ended = target.count(where="pipeline = 'quick' AND status = 'succeeded'")
    result.expect(ended == runs, f"{runs} runs were started, {ended} succeeded")
    fewest, most = outcomes["200"], outcomes["200"] + outcomes["hung up"]
    result.expect(fewest <= runs <= most, f"{runs} runs are in the ledger, {dict(outcomes)}")
    result.numbers = {"calls": dict(outcomes), "runs": runs}
    return result


async def _fill_all_slots(target: TargetService, result: AttackResult) -> None:
    """Fill the ten slots; expect that the eleventh call is rejected and starts nothing, and that ten get their end."""
    target.open_gate(is_open=False)
    before = target.count(where="pipeline = 'long'")
    got = Counter[int]()

    async def wait(number: int) -> None:
        got[(await _call(target, "long", number)).status] += 1

    async with trio.open_nursery() as nursery:
        for number in range(MAX_CONCURRENT_SYNC):
            nursery.start_soon(wait, number)
        await wait_until(lambda: target.count(where="pipeline = 'long'") >= before + MAX_CONCURRENT_SYNC, WAIT_TIMEOUT)
        eleventh = await _call(target, "long", MAX_CONCURRENT_SYNC)
        started = target.count(where="pipeline = 'long'") - before
        target.open_gate(is_open=True)
    result.expect(
        eleventh.status == 503 and started == MAX_CONCURRENT_SYNC, f"the eleventh: {eleventh}, {started} runs"
    )
    result.expect(got == {200: MAX_CONCURRENT_SYNC}, f"the ten callers got {dict(got)}")


async def _time_out(target: TargetService, result: AttackResult) -> None:
    """Exceed the timeout of a pipeline; expect 202 with the id, and that the run continues."""
    target.open_gate(is_open=False)
    responses: list[Response] = []

    async def wait(number: int) -> None:
        responses.append(await _call(target, "short", number))

    async with trio.open_nursery() as nursery:
        for number in range(MAX_CONCURRENT_SYNC):
            nursery.start_soon(wait, number)
    target.open_gate(is_open=True)
    result.expect(target.wait_until_idle(), "runs without a caller do not end")
    for response in responses:
        job = json.loads(response.body)
        result.expect((response.status, job.get("timeout_exceeded")) == (202, True), f"after the timeout: {response}")
        rows = target.home.rows("SELECT status FROM job_queue WHERE id = ?", job.get("job_id"))
        result.expect([row["status"] for row in rows] == ["succeeded"], f"{job.get('job_id')} is {rows}")


async def _call_and_disconnect(
    target: TargetService, rng: random.Random, calls: int, result: AttackResult
) -> Counter[str]:
    """Return the outcomes of all calls. A slot becomes free a moment after its caller disconnects, so some get 503."""
    outcomes, left = Counter[str](), [calls]

    async def call(number: int) -> None:
        connection = await connect(target.api, source=f"127.0.6.{number + 1}")
        while left[0] > 0:
            left[0] -= 1
            await connection.send(request("POST", "/pipeline/quick", b'{"payload": {}}', bearer()))
            if rng.random() < DISCONNECT_SHARE:
                await connection.send(rng.choice((b"", b"GET", PROBE)))  # part of the next request
                await trio.sleep(rng.choice((0, 0, 0.002, 0.01)))
                await connection.close()
                connection = await connect(target.api, source=f"127.0.6.{number + 1}")
                outcomes["hung up"] += 1
                continue
            response = await connection.receive()
            outcomes[str(response.status) if response else "closed"] += 1
            if response is None or response.status not in (200, 503):
                result.violations.append(f"a caller got {response}")
        await connection.close()

    async with trio.open_nursery() as nursery:
        for number in range(CONNECTIONS):
            nursery.start_soon(call, number)
    return outcomes


async def _call(target: TargetService, pipeline: str, number: int) -> Response:
    connection = await connect(target.api, source=f"127.0.6.{number % 5 + 100}")
    connection.timeout = 2 * WAIT_TIMEOUT
    await connection.send(request("POST", f"/pipeline/{pipeline}", b'{"payload": {}}', bearer()))
    response = await connection.receive()
    await connection.close()
    assert response is not None, "a waiting caller got no response"
    return response
