"""Work in threads waits while the system refuses a thread; errors of the work are raised."""

import threading

import pytest
import trio
import trio._core._thread_cache

from ductile.core.instance.threads import run_in_thread


async def test_work_waits_until_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that exhausts the thread limit delays Ductile but does not stop it."""
    start, refused = threading._start_new_thread, list[int]()  # type: ignore[attr-defined]

    def refuse_twice(*args: object, **options: object) -> int:
        if len(refused) < 2:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        return int(start(*args, **options))

    monkeypatch.setattr(trio._core._thread_cache, "THREAD_CACHE", trio._core._thread_cache.ThreadCache())
    monkeypatch.setattr(threading, "_start_new_thread", refuse_twice)
    with trio.fail_after(30):
        assert await run_in_thread(lambda: 42) == 42
    assert len(refused) == 2


async def test_an_error_of_the_work_is_raised_without_a_retry() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await run_in_thread(fail)
    assert calls == [1]
