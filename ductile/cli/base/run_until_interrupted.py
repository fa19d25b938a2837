"""Run a command until a signal arrives or the reader of stdout is gone.

Used by commands that follow events. Knows nothing of what they do.
"""

import select
import signal
from collections.abc import Awaitable, Callable

import trio

from ductile.cli.base import output

READER_CHECK_INTERVAL = 1.0
STDOUT = 1


def run_until_signal(main: Callable[[], Awaitable[None]]) -> int:
    """Run `main` until it returns or Ctrl-C or SIGTERM arrives. Return the exit code: 128 + the signal."""
    try:
        return trio.run(_until_signal, main)
    except BaseExceptionGroup as group:
        raise unwrap(group) from None


async def _until_signal(main: Callable[[], Awaitable[None]]) -> int:
    code = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                nonlocal code
                async for number in signals:
                    code = 128 + number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            nursery.start_soon(_watch_reader)
            await main()
            nursery.cancel_scope.cancel()
    return code


async def _watch_reader() -> None:
    """Raise BrokenPipeError when the reader of stdout is gone, even while nothing is written."""
    stdout = select.poll()
    stdout.register(STDOUT, 0)
    while True:
        await trio.sleep(READER_CHECK_INTERVAL)
        if any(state & (select.POLLERR | select.POLLHUP) for _, state in stdout.poll(0)):
            raise BrokenPipeError


def unwrap(error: BaseException) -> BaseException:
    """Return the only error of a group; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def connection_notes() -> Callable[[str | None], None]:
    """Return a callback that prints a note to stderr when the connection is lost and when it is back."""
    is_first = True

    def note(loss: str | None) -> None:
        nonlocal is_first
        if loss is not None:
            output.note(f"{loss}; waiting for the service")
        elif not is_first:
            output.note("reconnected")
        is_first = False

    return note
