"""Announcements never block, never accumulate, and reach only their own watchers."""

import math

import pytest
import trio
import trio.testing

from ductile.core.hub import Hub, job_topic, tree_topic


async def test_work_announced_before_the_wait_is_not_lost() -> None:
    """The dispatcher may be in a commit when work is announced."""
    hub = Hub()
    hub.announce_work()
    with trio.fail_after(30):
        await hub.wait_for_work(max_seconds=math.inf)


async def test_many_announcements_are_one_hint() -> None:
    """One read of the ledger finds all work."""
    hub = Hub()
    for _ in range(1000):
        hub.announce_work()
    await hub.wait_for_work(max_seconds=math.inf)
    with trio.move_on_after(0.01) as patience:
        await hub.wait_for_work(max_seconds=math.inf)
    assert patience.cancelled_caught


async def test_an_announcement_wakes_the_waiting_task_immediately(autojump_clock: trio.testing.MockClock) -> None:
    """There is no polling interval between enqueue and claim."""
    hub = Hub()
    woken: list[float] = []

    async def wait() -> None:
        await hub.wait_for_work(max_seconds=1000)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        start = trio.current_time()
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        hub.announce_work()
    assert woken == [start]


async def test_without_a_hint_the_wait_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A lost hint costs seconds, not a job."""
    start = trio.current_time()
    await Hub().wait_for_work(max_seconds=30)
    assert trio.current_time() - start == pytest.approx(30)


async def test_a_watcher_receives_only_its_own_topic() -> None:
    """A job and a tree with the same id are different topics."""
    hub = Hub()
    with (
        hub.watch(job_topic("1")) as by_job,
        hub.watch(tree_topic("1")) as tree,
        hub.watch(job_topic("2")) as other,
    ):
        hub.announce(job_topic("1"))
        by_job.receive_nowait()
        for channel in (by_job, tree, other):
            with pytest.raises(trio.WouldBlock):
                channel.receive_nowait()


async def test_every_watcher_of_a_topic_receives_it_even_before_it_waits() -> None:
    """Callers watch first and then read the ledger, so nothing is missed in between."""
    hub = Hub()
    with hub.watch("topic") as one, hub.watch("topic") as two:
        hub.announce("topic")
        with trio.fail_after(30):
            await one.receive()
            await two.receive()


async def test_an_unread_announcement_neither_blocks_nor_accumulates() -> None:
    hub = Hub()
    with hub.watch("topic") as lazy:
        for _ in range(1000):
            hub.announce("topic")
        assert lazy.statistics().current_buffer_used == 1


async def test_a_closed_watcher_leaves_nothing_behind() -> None:
    """Other watchers of the topic still receive announcements."""
    hub = Hub()
    with hub.watch("topic") as stays:
        with hub.watch("topic"):
            pass
        hub.announce("topic")
        stays.receive_nowait()
    hub.announce("topic")
    assert hub._watchers == {}
