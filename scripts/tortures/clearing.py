"""What an interrupted torture does before it goes: cores have sessions of their own, so that no Ctrl-C reaches them."""

import os
import signal
from contextlib import suppress

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import stat_fields

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


def be_interruptible() -> None:
    """The first Ctrl-C or SIGTERM interrupts; what is then cleared up is not interrupted again."""
    for number in INTERRUPTIONS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def end_children() -> None:
    """No process lives that we began, nor any that one of those began."""
    become_subreaper()  # the plugins of a core come to us when it ends
    while children := _children():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if int(stat_fields(int(name))[1]) == os.getpid():
                found.append(int(name))
    return found
