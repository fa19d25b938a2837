"""Which waiting workers a ready message wakes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ductile.exchange.waiters import TopicWaiters, Waiter


@contextmanager
def waiting(waiters: TopicWaiters, *topics: tuple[str, ...]) -> Iterator[list[Waiter]]:
    """Add a worker for each tuple of topics."""
    with ExitStack() as stack:
        yield [stack.enter_context(waiters.waiting(each)) for each in topics]


def woken(workers: list[Waiter]) -> list[bool]:
    return [worker.is_woken for worker in workers]


def test_each_message_wakes_the_worker_of_its_topic_that_has_waited_longest() -> None:
    waiters = TopicWaiters()
    with waiting(waiters, ("a",), ("b",), ("a", "b"), ("a",)) as workers:
        waiters.wake("a")
        assert woken(workers) == [True, False, False, False]
        waiters.wake("a")
        assert woken(workers) == [True, False, True, False]
        waiters.wake("b")
        waiters.wake("b")
        assert woken(workers) == [True, True, True, False]
        waiters.wake("c")
        assert woken(workers) == [True, True, True, False]


async def test_a_worker_that_was_woken_and_has_not_claimed_yet_takes_no_other_wake_up() -> None:
    """It may claim only the first message."""
    waiters = TopicWaiters()
    with waiting(waiters, ("a",), ("a",)) as (first, second):
        waiters.wake("a")
        await first.wait()
        waiters.wake("a")
        assert woken([first, second]) == [True, True]
        first.use({"a"})
        assert woken([first, second]) == [False, True]


def test_a_worker_that_leaves_a_wake_up_unused_passes_it_on() -> None:
    waiters = TopicWaiters()
    with waiting(waiters, ("a",)) as (second,):
        with waiting(waiters, ("b", "a")) as (first,):
            waiters.wake("b")
            assert not second.is_woken
            first.use({"b"})
        assert not second.is_woken
    with waiting(waiters, ("a",)) as (first,), waiting(waiters, ("a",)) as (second,):
        waiters.wake("a")
        assert woken([first, second]) == [True, False]
        with waiting(waiters, ("a",)) as (third,):
            waiters.wake("a", 2)
            assert third.is_woken


def test_a_wake_up_for_which_no_message_is_left_is_not_passed_on() -> None:
    waiters = TopicWaiters()
    with ExitStack() as stack:
        first = stack.enter_context(waiters.waiting(["a"]))
        with waiting(waiters, ("a",)) as (second,):
            waiters.wake("a")
            first.use(())
            stack.close()
            assert not second.is_woken


def test_a_cancelled_worker_wakes_the_next_one() -> None:
    waiters = TopicWaiters()
    with ExitStack() as stack:
        stack.enter_context(waiters.waiting(["a"]))
        with waiting(waiters, ("a",)) as (second,):
            waiters.wake("a")
            stack.close()
            assert second.is_woken


def test_resuming_a_topic_and_stopping_wake_all() -> None:
    waiters = TopicWaiters()
    with waiting(waiters, ("a",), ("a",), ("b",)) as workers:
        waiters.wake_topic("a")
        assert woken(workers) == [True, True, False]
        waiters.wake_all()
        assert woken(workers) == [True, True, True]
        assert (len(waiters), waiters.count("a")) == (3, 2)
    assert (len(waiters), waiters.count("a")) == (0, 0)
