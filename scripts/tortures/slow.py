"""Guests who take their time, and guests in a crowd: connections that are held rather than used.

H3: whoever is slower than documented is sent away, and everything it held is given back. H4: a crowd fills one door
up to its limit and no further, and nobody at the other door notices.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from attrs import frozen

from scripts.tortures.bystander import percentile
from scripts.tortures.grounds import BODY_LIMIT, bearer
from scripts.tortures.siege import MIB, SPARE_DESCRIPTORS, Findings, Siege, until
from scripts.tortures.talk import BadAnswer, Hung, Talker, connect, request

SLOW_GUESTS, CROWD = 500, 2_000
PER_ADDRESS = 40
MARGIN_SECONDS = 3.0
"""For a host that has other things to do."""
LONG_PARTS_FROM = 0.5
"""From this share on, guests come who are sent away only after half a minute."""
LIMIT = 256
CROWD_SECONDS = 5.0
"""Within which everybody is inside or has been sent away."""
REPLIES_AT_ONCE = 10
SMALL_BUFFER = 4096


@frozen
class Kind:
    """How a guest is slow, and after how many seconds it has to be gone."""

    name: str
    act: Callable[[Talker, bytes], Awaitable[None]]
    first: bytes
    seconds: float
    port: int = 0
    """Which door; 0: both."""


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Slow guests of every kind at both doors, all at once."""
    found, base = Findings(), siege.footprint()
    kinds = [kind for kind in _kinds(siege) if kind.seconds < 8 or share >= LONG_PARTS_FROM]
    stayed: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    guests = max(int(SLOW_GUESTS * share), len(kinds))
    async with trio.open_nursery() as nursery:
        for number in range(guests):
            nursery.start_soon(_visit, siege, kinds, number, stayed, found)
        all_in = base.descriptors + guests // 2
        crowded = await until(lambda: siege.footprint().descriptors >= all_in, siege.patient(4))
        begun = trio.current_time()
        await trio.sleep(2)
        memory = siege.footprint().memory - base.memory
        most = base.descriptors + SPARE_DESCRIPTORS
        patience = max(kind.seconds for kind in kinds) + siege.patient(MARGIN_SECONDS)
        await until(lambda: siege.footprint().descriptors <= most, patience)
        held = siege.footprint().descriptors - base.descriptors
        gone_after = trio.current_time() - begun
        nursery.cancel_scope.cancel()
    found.expect(crowded, "the guests were never there at the same time")
    found.expect(held <= SPARE_DESCRIPTORS, f"{held} guests are still there after {gone_after:.0f} s")
    found.numbers = {
        "guests": guests,
        "all_gone_after_seconds": round(gone_after, 1),
        "longest_seconds": {name: round(max(seconds), 1) for name, seconds in stayed.items() if seconds},
        "memory_meanwhile_mib": round(memory / MIB, 1),
    }
    return found


async def _visit(siege: Siege, kinds: list[Kind], number: int, stayed: dict[str, list[float]], found: Findings) -> None:
    kind = kinds[number % len(kinds)]
    is_reader = kind.act is _never_read
    source, buffer = f"127.0.2.{number // PER_ADDRESS + 1}", SMALL_BUFFER if is_reader else 0
    talker = await connect(kind.port or siege.ports[number // len(kinds) % 2], source=source, receive_buffer=buffer)
    begun = trio.current_time()
    try:
        with trio.move_on_after(kind.seconds + siege.patient(MARGIN_SECONDS)) as staying:
            await kind.act(talker, kind.first)
            stayed[kind.name].append(trio.current_time() - begun)
        if staying.cancelled_caught and not is_reader:
            found.wrong.append(f"{kind.name}: still there after {trio.current_time() - begun:.1f} s")
    except (BadAnswer, Hung) as error:
        found.wrong.append(f"{kind.name}: {error!r}")
    finally:
        await talker.close()


def _kinds(siege: Siege) -> list[Kind]:
    status, told = siege.ask("POST", "/plugin/wide/poll")
    assert status == 202, told
    status, done = siege.ask("GET", f"/job/{told['job_id']}?wait=30s")
    assert done["status"] == "succeeded", (status, str(done)[:500])
    wide = request("GET", f"/job/{told['job_id']}", headers=bearer()) * REPLIES_AT_ONCE
    body = request("POST", "/hook/well", b"{" * BODY_LIMIT)[: -BODY_LIMIT + 1]
    return [
        Kind("header", _trickle, b"GET /healthz HTTP/1.1\r\nhost: here\r\nx: ", 5.0),
        Kind("half-closed", _say_half, b"GET /healthz HTTP/1.1\r\nhost: here\r\nx: ", 1.0),
        Kind("body", _trickle, body, 10.1, siege.hooks),
        Kind("idle", _idle, b"", 30.0),
        Kind("reader", _never_read, wide, 32.0, siege.api),
    ]


async def _trickle(talker: Talker, first: bytes) -> None:
    """One byte a second until the service has had enough."""
    await talker.send(first)
    talker.patience, statuses = 1.0, []
    while True:
        try:
            answer = await talker.answer()
        except Hung:
            await talker.send(b"x")
            continue
        if answer is None:
            break
        statuses.append(answer.status)
    if statuses != [408]:
        raise BadAnswer(f"expected 408: {statuses}")


async def _say_half(talker: Talker, first: bytes) -> None:
    await talker.send(first)
    await talker.say_no_more()
    if rest := await talker.rest():
        raise BadAnswer(f"half a request is answered: {rest[:200]!r}")


async def _idle(talker: Talker, first: bytes) -> None:
    talker.patience = 60
    if rest := await talker.rest():
        raise BadAnswer(f"whoever says nothing is told something: {rest[:200]!r}")


async def _never_read(talker: Talker, first: bytes) -> None:
    """Asks for much and takes none of it. When the service has given it up cannot be seen from here."""
    await talker.send(first)
    await trio.sleep_forever()


# ── H4 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def crowd(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Far more connections than the API's door takes, at once; each says nothing and waits."""
    found, fates, seconds = Findings(), Counter[str](), list[float]()
    guests = max(int(CROWD * share), 4 * LIMIT)

    async def come(number: int) -> None:
        begun = trio.current_time()
        talker = await connect(siege.api, source=f"127.0.3.{number // PER_ADDRESS + 1}")
        talker.patience = 2 * siege.patient(CROWD_SECONDS)
        try:
            answer = await talker.answer()
            fates[str(answer.status) if answer else "closed"] += 1
            seconds.append(trio.current_time() - begun)
        except BadAnswer as error:
            found.wrong.append(repr(error))
        finally:
            await talker.close()

    async with trio.open_nursery() as nursery:
        for number in range(guests):
            nursery.start_soon(come, number)
        await until(lambda: sum(fates.values()) >= guests - LIMIT, siege.patient(CROWD_SECONDS))
        inside = guests - sum(fates.values())
        nursery.cancel_scope.cancel()
    found.expect(inside <= LIMIT, f"{inside} are inside, {LIMIT} may be")
    found.expect(set(fates) <= {"503", "closed"}, f"they were told {dict(fates)}")
    found.numbers = {
        "guests": guests,
        "inside": inside,
        "sent_away": dict(fates),
        "sent_away_p99_ms": percentile(seconds, 0.99),
    }
    return found
