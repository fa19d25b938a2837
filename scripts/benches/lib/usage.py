"""Processor time, wake-ups and memory of a process, from /proc and its CPU clock."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import frozen


@frozen
class Usage:
    """What a process has used since it started."""

    cpu_seconds: float
    switches: Mapping[str, int]
    """Thread id → number of voluntary context switches, for each live thread."""

    def since(self, before: "Usage") -> "UsageDifference":
        live = sum(count - before.switches.get(thread, 0) for thread, count in self.switches.items())
        ended = len(before.switches.keys() - self.switches.keys())  # a thread wakes up at least once to end
        return UsageDifference(self.cpu_seconds - before.cpu_seconds, live + ended)


@frozen
class UsageDifference:
    """What a process has used between two times."""

    cpu_seconds: float
    wakeups: int


def read_usage(pid: int) -> Usage:
    switches = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread ended during the read
            (count,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            switches[task.name] = int(count)
    return Usage(cpu_seconds(pid), switches)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of the process to the nanosecond, including threads that have ended."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock id that clock_getcpuclockid(3) returns


def pss_mb(pid: int) -> float:
    """Return the proportional set size: private memory plus a share of the shared memory."""
    (kilobytes,) = re.findall(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kilobytes) / 1024
