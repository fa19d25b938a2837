"""Rules for announcements: hints that never block, never pile up, and never wake the wrong one."""

import math

import pytest
import trio
import trio.testing

from ductile.core.hub import Hub, job_topic, tree_topic


async def test_work_announced_before_somebody_waits_is_not_lost() -> None:
    """The hint is there when the dispatcher comes back from a commit."""
    hub = Hub()
    hub.announce_work()
    with trio.fail_after(30):
        await hub.work_waiting(at_most=math.inf)


async def test_many_announcements_are_one_hint() -> None:
    """One look into the ledger finds all the work there is."""
    hub = Hub()
    for _ in range(1000):
        hub.announce_work()
    await hub.work_waiting(at_most=math.inf)
    with trio.move_on_after(0.01) as patience:
        await hub.work_waiting(at_most=math.inf)
    assert patience.cancelled_caught


async def test_whoever_waits_for_work_wakes_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """No polling interval lies between an enqueue and its claim."""
    hub = Hub()
    woken: list[float] = []

    async def wait() -> None:
        await hub.work_waiting(at_most=1000)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        begun = trio.current_time()
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        hub.announce_work()
    assert woken == [begun]


async def test_without_a_hint_the_wait_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A hint that got lost costs seconds, not a job."""
    begun = trio.current_time()
    await Hub().work_waiting(at_most=30)
    assert trio.current_time() - begun == pytest.approx(30)


async def test_a_watcher_hears_its_own_topic_and_no_other() -> None:
    """Jobs and trees with the same id are different topics."""
    hub = Hub()
    with hub.watch(job_topic("1")) as mine, hub.watch(tree_topic("1")) as tree, hub.watch(job_topic("2")) as other:
        hub.announce(job_topic("1"))
        mine.receive_nowait()
        for quiet in (mine, tree, other):
            with pytest.raises(trio.WouldBlock):
                quiet.receive_nowait()


async def test_every_watcher_of_a_topic_hears_it_even_before_it_listens() -> None:
    """Watch first, then read the ledger: what happens in between is still heard."""
    hub = Hub()
    with hub.watch("topic") as one, hub.watch("topic") as two:
        hub.announce("topic")
        with trio.fail_after(30):
            await one.receive()
            await two.receive()


async def test_a_watcher_that_does_not_listen_costs_nothing() -> None:
    """Announcing neither blocks nor piles up: one hint waits, however many were made."""
    hub = Hub()
    with hub.watch("topic") as lazy:
        for _ in range(1000):
            hub.announce("topic")
        assert lazy.statistics().current_buffer_used == 1


async def test_nothing_is_kept_of_watchers_that_have_left() -> None:
    """Millions of waits leave no trace, and whoever stays still hears."""
    hub = Hub()
    with hub.watch("topic") as stays:
        with hub.watch("topic"):
            pass
        hub.announce("topic")
        stays.receive_nowait()
    hub.announce("topic")
    assert hub._watchers == {}
