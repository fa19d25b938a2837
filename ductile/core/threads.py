"""Run blocking work in a worker thread.

A host can refuse a new thread for a moment: a plugin has filled the limit of processes and threads. That is a reason to
wait, as it is for a process that cannot be started, and not to fail.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

RETRY_INTERVAL = 0.05

T = TypeVar("T")


async def run_in_thread(
    work: Callable[[], T], *, limiter: trio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> T:
    """Return `work()`, run in a worker thread. Wait while the system cannot start one."""
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return work()

    while True:
        try:
            return await trio.to_thread.run_sync(begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError:  # what `threading` raises when the system refuses a thread
            if has_begun:
                raise
        await trio.sleep(RETRY_INTERVAL)
