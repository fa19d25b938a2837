"""Signal handling of the service: no signal is lost before the receiver opens, and a late one does not kill it.

When its receiver closes, Trio raises unread signals again, with the previous handlers. Without the handlers installed
here, such a signal would kill the service before it reports why it stops.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import FrameType

import trio


@contextmanager
def receive_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Receive the signals in order. After the block the first further signal is ignored; the second exits."""
    early: list[int] = []
    late: list[int] = []

    def store_early(number: int, _: FrameType | None) -> None:
        early.append(number)

    def exit_on_second(number: int, _: FrameType | None) -> None:
        if late:  # a person or a supervisor insists that the process exits
            os._exit(128 + number)
        late.append(number)

    for number in numbers:
        signal.signal(number, store_early)
    try:
        with trio.open_signal_receiver(*numbers) as signals:
            for missed in early:
                signal.raise_signal(missed)
            yield signals
    finally:
        for number in numbers:
            signal.signal(number, exit_on_second)
