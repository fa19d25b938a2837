"""H9: a hundred clients of the event stream, ten of which never read.

Every reader gets all events, jobs run as fast as without readers, memory does not grow, and a client that does not read
is disconnected and can resume later.
"""

import random
import re
import time

import trio

from scripts.tortures.http.lib.client import AttackerConnection, connect, request
from scripts.tortures.http.lib.target_config import ADMIN_TOKEN, bearer
from scripts.tortures.http.lib.target_service import MIB, AttackResult, TargetService, wait_until
from scripts.tortures.http.slow_clients import LONG_PARTS_FROM

READERS, NON_READERS, CONNECTIONS_PER_ADDRESS = 90, 10, 40
JOBS = 1_000
STREAM_TIMEOUT = 120.0
DISCONNECT_SECONDS = 30.0
MAX_MEMORY = 16 * MIB
"""While jobs run, without the memory of the connections."""
MIN_PACE = 0.25
"""Of jobs with readers to jobs without. The readers use the same processors."""
COMPLETED = re.compile(rb"\nevent: job\.completed\n")
DONE = "plugin = 'counted' AND status = 'succeeded'"
EVENT_ID = re.compile(rb"\nid: (\d+)\n")


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Run jobs without and with readers, and compare."""
    result, jobs = AttackResult(), max(int(JOBS * share), 40)
    first = jobs // 5
    alone = await _run_jobs(target, jobs)
    readers = [
        await _open_stream(target, number, "kind=job.completed&plugin=counted")
        for number in range(int(READERS * max(share, 0.5)))
    ]
    non_readers = [await _open_stream(target, READERS + number, "since=0", small=True) for number in range(NON_READERS)]
    begun, received = time.monotonic(), list[int]()

    async def follow(connection: AttackerConnection) -> None:
        received.append(await _count_completed(connection, first + jobs))

    async with trio.open_nursery() as nursery:
        for connection in readers:
            nursery.start_soon(follow, connection)
        await _run_jobs(target, first)
        base = target.resource_usage().memory
        with_readers = await _run_jobs(target, jobs)
        growth = target.resource_usage().memory - base
    result.expect(received == [first + jobs] * len(readers), f"of {first + jobs} events clients got {set(received)}")
    min_pace = alone * MIN_PACE / target.leniency
    result.expect(with_readers > min_pace, f"{with_readers:.0f} jobs a second with readers, {alone:.0f} without")
    result.expect(growth < MAX_MEMORY, f"memory grew by {growth} bytes")
    if share >= LONG_PARTS_FROM:
        await trio.sleep(max(0, DISCONNECT_SECONDS + 5 - (time.monotonic() - begun)))
        await _resume(target, non_readers, result)
    for connection in (*readers, *non_readers):
        await connection.close()
    result.numbers = {
        "readers": len(readers),
        "silent": len(non_readers),
        "jobs_per_second": {"alone": round(alone), "with_readers": round(with_readers)},
        "grown_meanwhile_mib": round(growth / MIB, 1),
    }
    return result


async def _run_jobs(target: TargetService, jobs: int) -> float:
    """Run this number of jobs and return how many ended per second."""
    begun, before = time.monotonic(), target.count(where=DONE)
    connection = await connect(target.api, source="127.0.7.200")
    for _ in range(jobs):
        await connection.send(request("POST", "/plugin/counted/poll", b"{}", bearer(ADMIN_TOKEN)))
        response = await connection.receive()
        assert response is not None
        assert response.status == 202, response
    await connection.close()
    assert await wait_until(lambda: target.count(where=DONE) >= before + jobs, STREAM_TIMEOUT), "the jobs do not end"
    return jobs / (time.monotonic() - begun)


async def _open_stream(target: TargetService, number: int, query: str, *, small: bool = False) -> AttackerConnection:
    source = f"127.0.7.{number // CONNECTIONS_PER_ADDRESS + 1}"
    connection = await connect(target.api, source=source, receive_buffer=4096 if small else 0)
    await connection.send(request("GET", f"/events?{query}", headers=bearer(ADMIN_TOKEN)))
    if not small:  # a non-reader reads nothing at all
        await connection.stream.receive_some(1024)
    return connection


async def _count_completed(connection: AttackerConnection, enough: int) -> int:
    """Count `job.completed` events until there are `enough`."""
    count, rest = 0, b""
    with trio.move_on_after(STREAM_TIMEOUT):
        while count < enough and (data := await connection.stream.receive_some(65536)):
            rest += data
            count += len(COMPLETED.findall(rest))
            rest = rest[-21:] if COMPLETED.search(rest) is None else rest[[*COMPLETED.finditer(rest)][-1].end() :][-21:]
    return count


async def _resume(target: TargetService, non_readers: list[AttackerConnection], result: AttackResult) -> None:
    """Read what was sent before the disconnect, and check that a new stream continues with the next event."""
    for connection in non_readers[:2]:
        received = await connection.receive_rest()
        result.expect(not received.endswith(b"\r\n0\r\n\r\n"), "a disconnected stream looks complete")
        event_ids = [int(event_id) for event_id in EVENT_ID.findall(received)]
        result.expect(bool(event_ids), "a non-reader got nothing before it was disconnected")
        if event_ids:
            resumed = await _open_stream(target, READERS + NON_READERS, f"since={event_ids[-1]}")
            data = b""
            while not (next_ids := EVENT_ID.findall(data)) and len(data) < MIB:
                data += await resumed.stream.receive_some(65536)
            result.expect(int(next_ids[0]) <= event_ids[-1] + 1, f"after {event_ids[-1]} came {next_ids[:1]}")
            await resumed.close()
