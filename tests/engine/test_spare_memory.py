"""Memory that large answers take: used again while they come, given back when they no longer do."""

import platform
import resource
import subprocess
import sys

import pytest
import trio
import trio.testing

from ductile.engine import allocator
from ductile.engine.spare_memory import QUIET_SECONDS, SpareMemory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has to be told")

PAGE = resource.getpagesize()
ANSWER = 8 << 20

PAGES_ASKED_FOR = f"""
import resource, sys
from ductile.engine import allocator

def pages_asked_for(answers):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(answers):
        bytes(bytearray({ANSWER}))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * {PAGE}

allocator.keep_little()
pages_asked_for(1)
before = resident()
little = pages_asked_for(4)
allocator.keep_much()
pages_asked_for(1)
much = pages_asked_for(4)
kept = resident() - before
allocator.give_back()
print(little, much, kept, resident() - before, pages_asked_for(4))
"""


def test_what_is_kept_is_used_again_and_what_is_given_back_has_left() -> None:
    """While much is kept, a second large answer asks the system for nothing."""
    told = subprocess.run([sys.executable, "-c", PAGES_ASKED_FOR], stdout=subprocess.PIPE, text=True, check=True).stdout
    little, much, kept, left, afterwards = map(int, told.split())
    assert little > 4 * ANSWER / PAGE
    assert much < little / 20
    assert kept > ANSWER
    assert left < ANSWER / 4
    assert afterwards > 4 * ANSWER / PAGE


async def test_memory_is_kept_until_a_while_after_the_last_large_thing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Each large thing begins the while anew; and after it all begins again with the next."""
    happened: list[tuple[str, float]] = []
    began = trio.current_time()

    def note(what: str) -> None:
        happened.append((what, round(trio.current_time() - began, 3)))

    monkeypatch.setattr(allocator, "keep_much", lambda: note("kept"))

    async def in_this_thread(given_back: object) -> None:
        assert given_back is allocator.give_back
        note("given back")

    monkeypatch.setattr(trio.to_thread, "run_sync", in_this_thread)
    spare = SpareMemory()
    nursery.start_soon(spare.run)
    for pause in (0.0, QUIET_SECONDS - 0.5, QUIET_SECONDS - 0.5, 10.0):
        await trio.sleep(pause)
        spare.need()
    await trio.sleep(10.0)
    last = 2 * (QUIET_SECONDS - 0.5)
    assert happened == [
        ("kept", 0.0),
        ("given back", last + QUIET_SECONDS),
        ("kept", last + 10.0),
        ("given back", last + 10.0 + QUIET_SECONDS),
    ]
    nursery.cancel_scope.cancel()
