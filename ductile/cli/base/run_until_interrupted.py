"""A command that goes on until somebody ends it: by a signal, or by not reading any more.

Knows nothing of what it does meanwhile; those who follow events use it.
"""

import select
import signal
from collections.abc import Awaitable, Callable

import trio

from ductile.cli.base import output

LOOK_FOR_READER_SECONDS = 1.0
STDOUT = 1


def run_until_signal(main: Callable[[], Awaitable[None]]) -> int:
    """Runs until `main` is over, or Ctrl-C or SIGTERM comes. The exit code is that of a program the signal ended."""
    try:
        return trio.run(_until_signal, main)
    except BaseExceptionGroup as group:
        raise lone(group) from None


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
            nursery.start_soon(_leave_with_the_reader)
            await main()
            nursery.cancel_scope.cancel()
    return code


async def _leave_with_the_reader() -> None:
    """Raises BrokenPipeError when nobody can read stdout any more, also if there is nothing to write."""
    stdout = select.poll()
    stdout.register(STDOUT, 0)
    while True:
        await trio.sleep(LOOK_FOR_READER_SECONDS)
        if any(state & (select.POLLERR | select.POLLHUP) for _, state in stdout.poll(0)):
            raise BrokenPipeError


def lone(error: BaseException) -> BaseException:
    """The error itself if it is the only one of its group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def tell_breaks() -> Callable[[str | None], None]:
    """For people who read lines: a note on stderr when the connection is lost, and when it is back."""
    is_first = True

    def tell(loss: str | None) -> None:
        nonlocal is_first
        if loss is not None:
            output.note(f"{loss}; waiting for the service")
        elif not is_first:
            output.note("connected again")
        is_first = False

    return tell
