"""Senders of webhooks in earnest: many deliveries while every worker is busy, odd clocks, a secret that changes.

W4: a delivery is acknowledged promptly whatever else goes on. W5: a signed moment is a moment, and not long ago.
W6: while a secret is replaced, no good delivery is refused, and afterwards no old one is taken.
"""

import base64
import hashlib
import hmac
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import trio

from scripts.tortures.bystander import percentile
from scripts.tortures.grounds import KEEPER, NEXT, SECRET, STANDARD_SECRET, bearer, signature, signed
from scripts.tortures.siege import Findings, Siege, until
from scripts.tortures.talk import Talker, connect, request

SECONDS, PER_SECOND, CONNECTIONS = 60, 100, 20
MOST_P99_MS, MOST_P999_MS = 100.0, 1000.0
WORKERS = 4
ROTATIONS, ROTATING_SENDERS = 20, 4


# ── W4 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def deliver_while_busy(siege: Siege, dice: random.Random, share: float) -> Findings:
    """At a steady rate, whether or not the last one was answered; the clock runs from when it was due."""
    found, seconds, heard = Findings(), list[float](), Counter[int]()
    _occupy_all_workers(siege)
    deliveries, before = int(SECONDS * share * PER_SECOND), siege.count()
    free_in, free_out = trio.open_memory_channel[Talker](CONNECTIONS)
    for _ in range(CONNECTIONS):
        free_in.send_nowait(await connect(siege.hooks, source="127.0.8.1"))
    begun = trio.current_time()

    async def deliver(number: int, due: float) -> None:
        talker = await free_out.receive()
        body = json.dumps({"number": number, "filler": "x" * 400}).encode()
        await talker.send(request("POST", "/hook/well", body, signed(body, f"busy-{number}")))
        answer = await talker.answer()
        seconds.append(trio.current_time() - due)
        heard[answer.status if answer else 0] += 1
        free_in.send_nowait(talker)

    async with trio.open_nursery() as nursery:
        for number in range(deliveries):
            due = begun + number / PER_SECOND
            await trio.sleep_until(due)
            nursery.start_soon(deliver, number, due)
    found.expect(heard == {202: deliveries}, f"{deliveries} deliveries were answered with {dict(heard)}")
    found.expect(siege.count() - before == deliveries, f"{deliveries} deliveries are {siege.count() - before} jobs")
    found.expect(siege.count(where="status = 'running'") == WORKERS, "the workers were not busy")
    p99, p999 = percentile(seconds, 0.99), percentile(seconds, 0.999)
    found.expect(p99 < MOST_P99_MS * siege.leniency, f"p99 is {p99} ms")
    found.expect(p999 < MOST_P999_MS * siege.leniency, f"p99.9 is {p999} ms")
    found.numbers = {"deliveries": deliveries, "p50_ms": percentile(seconds, 0.5), "p99_ms": p99, "p999_ms": p999}
    return found


def _occupy_all_workers(siege: Siege) -> None:
    for _ in range(WORKERS):
        status, told = siege.ask("POST", "/plugin/stuck/poll")
        assert status == 202, told
    deadline = time.monotonic() + 30
    while siege.count(where="status = 'running'") < WORKERS:
        assert time.monotonic() < deadline, "the workers do not begin"
        time.sleep(0.02)


# ── W5 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def lie_about_the_time(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Well signed with every moment; only those within five minutes are taken."""
    found, heard = Findings(), Counter[int]()
    talker = await connect(siege.hooks)
    for number, (moment, status) in enumerate(_moments(int(time.time()))):
        for raw in _dated(moment, number):
            await talker.send(raw)
            answer = await talker.answer()
            found.expect(answer is not None and answer.status == status, f"{moment!r}: {answer} {raw[:60]!r}")
            heard[answer.status if answer else 0] += 1
            if answer is None or answer.closes:
                await talker.close()
                talker = await connect(siege.hooks)
    await talker.close()
    found.numbers = {"deliveries": sum(heard.values()), "answers": dict(heard)}
    return found


def _moments(now: int) -> Iterator[tuple[str, int]]:
    """As it is written, and what is answered."""
    for offset in (-290, -1, 0, 290):
        yield str(now + offset), 202
    for offset in (-86_400, -302, 310, 86_400):
        yield str(now + offset), 403
    full_width = "".join(chr(0xFF10 + int(digit)) for digit in str(now)).encode().decode("latin-1")
    for text in (
        "nan", "inf", "-inf", "1e9", f"{now}e0", f"{now}.0", f"+{now}", f"-{now}", f"0x{now:x}", full_width, "9" * 12,
        "9" * 13, "9" * 400, "-1", "0", "", f"{now}000", f"{now} {now}", "now", f"{now}\xa0", f"{now}_0", "1_0", "null",
    ):  # fmt: skip
        yield text, 403


def _dated(moment: str, number: int) -> Iterator[bytes]:
    """The same delivery in the way of every sender who signs a moment."""
    body, raw = b'{"id": "dated-%d", "event_id": "dated-%d"}' % (number, number), moment.encode("latin-1")
    stripe = hmac.new(SECRET.encode(), raw + b"." + body, hashlib.sha256).hexdigest()
    yield _latin("/hook/stripe", body, f"stripe-signature: t={moment},v1={stripe}\r\n")
    slack = hmac.new(SECRET.encode(), b"v0:" + raw + b":" + body, hashlib.sha256).hexdigest()
    yield _latin("/hook/slack", body, f"x-slack-signature: v0={slack}\r\nx-slack-request-timestamp: {moment}\r\n")
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    named = f"dated-{number}"
    standard = base64.b64encode(hmac.digest(key, named.encode() + b"." + raw + b"." + body, "sha256")).decode()
    lines = f"webhook-id: {named}\r\nwebhook-timestamp: {moment}\r\nwebhook-signature: v1,{standard}\r\n"
    yield _latin("/hook/standard", body, lines)


def _latin(path: str, body: bytes, lines: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


# ── W6 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def change_the_secret(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Back and forth between two secrets, each time with a while in which both are good."""
    found, heard = Findings(), Counter[int]()
    names, secrets = ("first", "next"), (SECRET, NEXT)
    current, done, over = [0], [0] * ROTATING_SENDERS, trio.Event()

    async def send(number: int) -> None:
        talker = await connect(siege.hooks, source="127.0.8.2")
        while not over.is_set():
            body = b'{"sender": %d, "delivery": %d}' % (number, done[number])
            await talker.send(request("POST", "/hook/well", body, signed(body, "", secrets[current[0]])))
            answer = await talker.answer()
            heard[answer.status if answer else 0] += 1
            done[number] += 1
        await talker.close()

    async with trio.open_nursery() as nursery:
        for number in range(ROTATING_SENDERS):
            nursery.start_soon(send, number)
        for turn in range(max(int(ROTATIONS * share), 3)):
            old, new = turn % 2, (turn + 1) % 2
            await _reload(siege, f"[{names[old]}, {names[new]}]")
            current[0], before = new, list(done)
            # The delivery that was under way may have begun with the old secret; the one after it has not.
            found.expect(await until(partial(_are_ahead, done, before), 30), "a sender waits for its answer")
            await _reload(siege, f"[{names[new]}]")
            late = await _deliver_once(siege, secrets[old])
            found.expect(late == 403, f"the old secret is answered with {late}")
        over.set()
    await _reload(siege, "[first]")
    found.expect(set(heard) == {202}, f"good deliveries were answered with {dict(heard)}")
    found.numbers = {"rotations": turn + 1, "deliveries": heard[202], "refused": heard[403]}
    return found


def _are_ahead(done: list[int], before: list[int]) -> bool:
    return all(now >= then + 2 for now, then in zip(done, before, strict=True))


async def _reload(siege: Siege, secrets: str) -> None:
    siege.configure(secrets=secrets)
    talker = await connect(siege.api)
    await talker.send(request("POST", "/system/reload", headers=bearer(KEEPER)))
    answer = await talker.answer()
    await talker.close()
    assert answer is not None
    assert answer.status == 200, answer


async def _deliver_once(siege: Siege, secret: str) -> int:
    talker = await connect(siege.hooks)
    await talker.send(request("POST", "/hook/well", b"{}", {"x-signature-256": signature(b"{}", secret)}))
    answer = await talker.answer()
    await talker.close()
    return answer.status if answer else 0
