"""The doors under attack: a tenth of `scripts/torture http`, and attackers who would notice if something were wrong."""

import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from scripts.tortures import framing, intruders
from scripts.tortures.bystander import Found
from scripts.tortures.doors import Attack, Options, check_callers, check_service
from scripts.tortures.siege import MIB, Findings, Footprint, Siege
from scripts.tortures.talk import BadAnswer, Talker, parse_head

pytestmark = pytest.mark.timeout(400)
SEED, SHARE, LENIENCY = 7, 0.1, math.inf
"""Tests share their host with other tests: how quick things are is for the torture itself to judge, alone."""


def besiege(*names: str) -> dict[str, Any]:
    """What each of the attacks came to; nothing was wrong with any of them."""
    options = ["--share", str(SHARE), "--seed", str(SEED), "--leniency", str(LENIENCY), "--only", ",".join(names)]
    command = [sys.executable, "-m", "scripts.tortures", "http", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, summary["violations"]) == (0, dict.fromkeys(names, 0)), done.stderr
    return dict(summary["parts"])


def test_whatever_is_sent_is_refused_without_a_fault_and_without_harm_to_others() -> None:
    """Hostile requests and every attempt at smuggling; bodies of every length and framing (H1, H2, H6, W3)."""
    parts = besiege("H1", "H2", "H6", "W3")

    assert parts["H1"]["requests"] == 1000
    assert sum(parts["H1"]["answers"].values()) > 500
    assert parts["H2"]["attempts"] >= 300
    assert min(parts[name]["good"]["asked"] for name in ("H1", "H2")) > 0


def test_whoever_only_holds_a_place_is_sent_away() -> None:
    """Heads that trickle have five seconds; a crowd fills one door to its limit, and nobody else notices (H3, H4)."""
    parts = besiege("H3", "H4")

    assert parts["H3"]["guests"] == 50
    assert 0 < parts["H4"]["inside"] <= 256 < parts["H4"]["guests"]


def test_no_wrong_key_opens_anything_or_leaves_anything_behind() -> None:
    """Tokens, signatures and signed moments of every wrong kind; a secret that changes under load (H5, W1, W5, W6)."""
    parts = besiege("H5", "W1", "W5", "W6")

    assert parts["H5"]["answers"] == {"401": 5000}
    assert parts["W1"]["answers"] == {"403": 10_000}
    assert parts["W6"]["deliveries"] > 0


def test_what_comes_again_is_done_once() -> None:
    """One after the other, at once, after a restart, after success and after failure (H7, W2)."""
    parts = besiege("H7", "W2")

    assert set(parts["H7"]["answers"]) == set(parts["W2"]["answers"]) == {"202"}


def test_who_waits_and_hangs_up_leaves_a_free_place_and_a_run_that_goes_on() -> None:
    """After a thousand calls, many of them broken off, there are ten places again, and the eleventh is refused (H8)."""
    parts = besiege("H8")

    assert parts["H8"]["calls"]["hung up"] > 100
    assert parts["H8"]["calls"]["200"] > 100


def test_deliveries_are_acknowledged_while_every_worker_is_busy() -> None:
    """A hundred a second, each durable before its answer (W4)."""
    assert besiege("W4")["W4"]["deliveries"] == 600


def test_readers_and_questions_cost_the_jobs_nothing() -> None:
    """Readers who do not read, lists without end, searches for everything, over a long history (H9, H10)."""
    parts = besiege("H9", "H10")

    assert parts["H9"]["silent"] == 10
    assert set(parts["H10"]["answers"]) == {"200", "400"}


@pytest.mark.parametrize(("leniency", "complaints"), [(1.0, 2), (4.0, 1), (math.inf, 0)])
def test_how_long_good_callers_waited_is_judged_unless_it_does_not_matter(leniency: float, complaints: int) -> None:
    """What failed counts however busy the host is, and nobody waits for ever for what does not come."""
    good, found = Found(asked=9, p50_ms=1, p99_ms=900, max_ms=5000, lag_p99_ms=5000, failed=["reset"]), Findings()
    check_callers(found, good, Options(leniency=leniency))

    assert len(found.wrong) == complaints + 1
    assert found.wrong[0] == "a good caller failed: reset"
    assert 3 <= Siege(cast(Any, None), leniency).patient(3) < 120


@pytest.mark.parametrize(("looks", "wrong"), [([90, 90, 10], 0), ([90], 1)], ids=["given back", "kept"])
def test_memory_is_judged_when_there_was_time_to_give_it_back(looks: list[int], wrong: int) -> None:
    """A service that has sent much does so two seconds later."""
    base, found, left = Footprint(10 * MIB, 20), Findings(), iter(looks)

    class Besieged(Siege):
        def footprint(self) -> Footprint:
            return Footprint(next(left, looks[-1]) * MIB, 20)

    siege = Besieged(cast(Any, None), leniency=0.1)
    siege.service = cast(Any, SimpleNamespace(process=SimpleNamespace(poll=lambda: None), stderr=[], lines=[]))
    check_service(found, siege, Attack(name="H0", act=intruders.storm), base)

    assert len(found.wrong) == wrong, found.wrong


# ── the attackers themselves ────────────────────────────────────────────────────────────────────────────────────────

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


async def answer_with(said: bytes, stream: trio.SocketStream) -> None:
    """Says the same to everybody, and closes."""
    with trio.move_on_after(1):
        await stream.receive_some(65536)
        await stream.send_all(said)
        await stream.send_eof()
        while await stream.receive_some(65536):
            pass


async def attack(said: bytes, storm: Callable[[Siege, random.Random, float], Awaitable[Findings]]) -> Findings:
    """What the attackers find at doors where everybody is told the same."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(partial(trio.serve_listeners, partial(answer_with, said), [listener]))
        door: Any = SimpleNamespace(ports=(port, port), api=port, hooks=port)
        found = await storm(door, random.Random(SEED), 0.002)
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}", OK + OK, b"", b"HTTP/1.1 400\r\n\r\n",
        b"HTTP/1.1 400 Bad\r\nconnection: close\r\n\r\n", b"HTTP/1.1 400 Bad\r\ncontent-length: 9\r\n\r\n{}",
        b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    ],
    ids=["a fault", "two answers", "no answer", "no reason", "no length", "half an answer", "two framings"],
)  # fmt: skip
async def test_intruders_notice_what_should_not_be_said(said: bytes) -> None:
    """Otherwise an attack that finds nothing would mean nothing."""
    assert (await attack(said, intruders.storm)).wrong


@pytest.mark.parametrize("said", [OK, OK + OK], ids=["accepted", "smuggled"])
async def test_an_attempt_that_is_accepted_is_a_finding(said: bytes) -> None:
    """Whoever answers what two readers could read differently is found out."""
    found = await attack(said, framing.storm)

    assert len(found.wrong) > found.numbers["attempts"] / 2


def test_the_attempts_are_many_and_each_is_another() -> None:
    """At least three hundred, at both doors, and no two with the same bytes."""
    table = Counter((attempt.door, attempt.raw) for attempt in framing.attempts())

    assert table.total() == len(table) >= 300
    assert {door for door, _ in table} == {"api", "hooks"}


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"200 OK", b"HTTP/1.1 200 OK\r\nx", b"HTTP/1.1 200 OK\r\na: 1\r\na: 2"]
)
def test_a_malformed_answer_is_not_taken_for_one(raw: bytes) -> None:
    """Heads are read strictly."""
    with pytest.raises(BadAnswer):
        parse_head(raw)


async def test_a_chunked_answer_is_read_as_a_whole() -> None:
    """And what follows is the next one."""
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n" + OK)
        talker = Talker(trio.SocketStream(ours))
        first, second = await talker.answer(), await talker.answer()

    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"abc", b"{}")
