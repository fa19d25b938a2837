"""A full house of listeners: a hundred readers of the event stream, ten of whom never read.

H9: everybody who listens hears everything, jobs go on as they would without an audience, nothing piles up in memory,
and whoever does not read is cut off and can go on later from where it was.
"""

import random
import re
import time

import trio

from scripts.tortures.grounds import KEEPER, bearer
from scripts.tortures.siege import MIB, Findings, Siege, until
from scripts.tortures.slow import LONG_PARTS_FROM
from scripts.tortures.talk import Talker, connect, request

READERS, SILENT, PER_ADDRESS = 90, 10, 40
JOBS = 1_000
PATIENCE = 120.0
CUT_OFF_AFTER = 30.0
MOST_MEMORY = 16 * MIB
"""While jobs go on; that so many are connected costs something, too, but only once."""
LEAST_PACE = 0.25
"""Of jobs with the whole audience to those without: the audience needs the same two processors."""
COMPLETED = re.compile(rb"\nevent: job\.completed\n")
DONE = "plugin = 'calm' AND status = 'succeeded'"
PLACE = re.compile(rb"\nid: (\d+)\n")


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    found, jobs = Findings(), max(int(JOBS * share), 40)
    first = jobs // 5
    alone = await _do_jobs(siege, jobs)
    listeners = [
        await _listen(siege, number, "kind=job.completed&plugin=calm")
        for number in range(int(READERS * max(share, 0.5)))
    ]
    silent = [await _listen(siege, READERS + number, "since=0", small=True) for number in range(SILENT)]
    begun, heard = time.monotonic(), list[int]()

    async def follow(talker: Talker) -> None:
        heard.append(await _count_completed(talker, first + jobs))

    async with trio.open_nursery() as nursery:
        for talker in listeners:
            nursery.start_soon(follow, talker)
        await _do_jobs(siege, first)
        base = siege.footprint().memory
        watched = await _do_jobs(siege, jobs)
        meanwhile = siege.footprint().memory - base
    found.expect(heard == [first + jobs] * len(listeners), f"of {first + jobs} ends readers heard {sorted(set(heard))}")
    least = alone * LEAST_PACE / siege.leniency
    found.expect(watched > least, f"{watched:.0f} jobs a second with an audience, {alone:.0f} without")
    found.expect(meanwhile < MOST_MEMORY, f"memory has grown by {meanwhile} bytes meanwhile")
    if share >= LONG_PARTS_FROM:
        await trio.sleep(max(0, CUT_OFF_AFTER + 5 - (time.monotonic() - begun)))
        await _go_on_after_the_cut(siege, silent, found)
    for talker in (*listeners, *silent):
        await talker.close()
    found.numbers = {
        "readers": len(listeners),
        "silent": len(silent),
        "jobs_per_second": {"alone": round(alone), "with_readers": round(watched)},
        "grown_meanwhile_mib": round(meanwhile / MIB, 1),
    }
    return found


async def _do_jobs(siege: Siege, jobs: int) -> float:
    """So many are asked for and over; how many a second that were."""
    begun, before = time.monotonic(), siege.count(where=DONE)
    talker = await connect(siege.api, source="127.0.7.200")
    for _ in range(jobs):
        await talker.send(request("POST", "/plugin/calm/poll", b"{}", bearer(KEEPER)))
        answer = await talker.answer()
        assert answer is not None
        assert answer.status == 202, answer
    await talker.close()
    assert await until(lambda: siege.count(where=DONE) >= before + jobs, PATIENCE), "the jobs do not end"
    return jobs / (time.monotonic() - begun)


async def _listen(siege: Siege, number: int, asked: str, *, small: bool = False) -> Talker:
    source = f"127.0.7.{number // PER_ADDRESS + 1}"
    talker = await connect(siege.api, source=source, receive_buffer=4096 if small else 0)
    await talker.send(request("GET", f"/events?{asked}", headers=bearer(KEEPER)))
    if not small:  # a silent one reads nothing at all
        await talker.stream.receive_some(1024)
    return talker


async def _count_completed(talker: Talker, enough: int) -> int:
    """How many ends of jobs came, up to `enough` and what came with the last of them."""
    count, rest = 0, b""
    with trio.move_on_after(PATIENCE):
        while count < enough and (data := await talker.stream.receive_some(65536)):
            rest += data
            count += len(COMPLETED.findall(rest))
            rest = rest[-21:] if COMPLETED.search(rest) is None else rest[[*COMPLETED.finditer(rest)][-1].end() :][-21:]
    return count


async def _go_on_after_the_cut(siege: Siege, silent: list[Talker], found: Findings) -> None:
    """What was sent before the cut can still be read; the next event is the first one of a new stream."""
    for talker in silent[:2]:
        received = await talker.rest()
        found.expect(not received.endswith(b"\r\n0\r\n\r\n"), "a stream that was cut off looks as if it were complete")
        places = [int(place) for place in PLACE.findall(received)]
        found.expect(bool(places), "a silent reader got nothing before it was cut off")
        if places:
            again = await _listen(siege, READERS + SILENT, f"since={places[-1]}")
            more = b""
            while not (found_next := PLACE.findall(more)) and len(more) < MIB:
                more += await again.stream.receive_some(65536)
            found.expect(int(found_next[0]) <= places[-1] + 1, f"after {places[-1]} comes {found_next[:1]}")
            await again.close()
