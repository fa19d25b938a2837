"""The signals that the service heeds: none is lost before somebody listens, and one that comes too late ends nothing.

Trio raises again what nobody has taken when its receiver closes. By then the handler is the one from before, and a
service that is about to say why it ends would end of the signal instead. The runtime listens.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import FrameType

import trio


@contextmanager
def heard(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """The signals as they come. Afterwards the process is on its way out: one more is ignored, another ends it."""
    early: list[int] = []
    late: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        early.append(number)

    def be_patient_once(number: int, _: FrameType | None) -> None:
        if late:  # whatever keeps the process, a person or a supervisor wants it to end
            os._exit(128 + number)
        late.append(number)

    for number in numbers:
        signal.signal(number, note)
    try:
        with trio.open_signal_receiver(*numbers) as signals:
            for missed in early:
                signal.raise_signal(missed)
            yield signals
    finally:
        for number in numbers:
            signal.signal(number, be_patient_once)
