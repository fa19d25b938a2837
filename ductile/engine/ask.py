"""One plugin process from spawn to reaped, for whoever waits for nothing else: `spawn` without an event loop.

Blocks the thread it is called in; several may run beside each other in as many threads. `care.health` calls it.
"""

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from threading import Event

from ductile.engine.launch import BUSY_FILE_SECONDS, BUSY_FILE_TRIES, Launched, SpawnFailed, launch
from ductile.engine.limits import Limits
from ductile.engine.processes import adopted_children, reap
from ductile.engine.running import LOST_SECONDS, Caps, Finished, Running, Tail

LOOK_SECONDS = 0.2
"""How soon a run notices that it is to stop."""
STOPPED = "stopped"


def run_and_wait(
    argv: Sequence[str],
    request: bytes,
    *,
    timeout: float,
    env: Mapping[str, str],
    grace: float,
    caps: Caps,
    limits: Limits | None,
    stop: Event,
) -> Finished | SpawnFailed:
    """Run one process to its end, as `spawn.run_plugin` does. What it leaves behind is for `end_strays`."""
    launched = _launch_patiently(argv, request, env, limits)
    if isinstance(launched, SpawnFailed):
        return launched
    with closing(Running(launched, caps, Tail(caps.stderr), time.monotonic)) as run:
        until = time.monotonic() + timeout
        try:
            while not (run.is_over or stop.is_set()) and (left := until - time.monotonic()) > 0:
                run.take(min(left, LOOK_SECONDS))
        finally:
            reason = STOPPED if stop.is_set() else None
            run.settle(reason)
            for moment in run.end(grace):
                run.take(max(0.0, moment - time.monotonic()))
        return run.finished(reason)


def _launch_patiently(
    argv: Sequence[str], request: bytes, env: Mapping[str, str], limits: Limits | None
) -> Launched | SpawnFailed:
    for _ in range(BUSY_FILE_TRIES):
        launched = launch(argv, request, env, limits)
        if not (isinstance(launched, SpawnFailed) and launched.is_busy_file):
            break
        time.sleep(BUSY_FILE_SECONDS)
    return launched


def end_strays() -> None:
    """No descendant of the runs that came to this process is left, unless the kernel is stuck on its behalf."""
    until = time.monotonic() + LOST_SECONDS
    # Killing a parent can hand us its children, hence again until there are none.
    while (strays := adopted_children(())) and time.monotonic() < until:
        for stray in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(stray.pid, signal.SIGKILL)  # an unreaped child keeps its pid, so this cannot hit another
        for stray in strays:
            _await_end(stray.pid, until - time.monotonic())
            reap(stray.pid)


def _await_end(pid: int, seconds: float) -> None:
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            select.select([pidfd], [], [], max(0.0, seconds))
        finally:
            os.close(pidfd)
