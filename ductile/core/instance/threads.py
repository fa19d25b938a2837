"""Run blocking work in a worker thread.

The host can temporarily refuse a new thread, for example when a plugin has exhausted the limit on processes and
threads. The call then waits instead of failing.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

RETRY_INTERVAL = 0.05
MAX_INLINE_BYTES = 512 << 10
"""Work on larger texts runs in a thread, so that it does not block the event loop."""

T = TypeVar("T")


async def run_in_thread(
    work: Callable[[], T], *, limiter: trio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> T:
    """Run `work()` in a worker thread and return its result. Waits while the system cannot start a thread."""
    has_started = False

    def start() -> T:
        nonlocal has_started
        has_started = True
        return work()

    while True:
        try:
            return await trio.to_thread.run_sync(start, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError:  # raised by `threading` when the system refuses a thread
            if has_started:
                raise
        await trio.sleep(RETRY_INTERVAL)


async def run_in_thread_if_large(work: Callable[[], T], text_bytes: int) -> T:
    """Run `work()`, in a worker thread if the text that it processes is large."""
    return await run_in_thread(work) if text_bytes > MAX_INLINE_BYTES else work()
