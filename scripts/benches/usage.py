"""What a process has used up."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import frozen


@frozen
class Used:
    """Until now."""

    cpu_seconds: float
    switches: Mapping[str, int]
    """How often each thread that there is was scheduled after having waited."""

    def since(self, before: "Used") -> "Spent":
        going_on = sum(count - before.switches.get(thread, 0) for thread, count in self.switches.items())
        ended = len(before.switches.keys() - self.switches.keys())  # each of them woke once at least, to end
        return Spent(self.cpu_seconds - before.cpu_seconds, going_on + ended)


@frozen
class Spent:
    """Between two moments."""

    cpu_seconds: float
    wakeups: int


def used(pid: int) -> Used:
    counts = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it ended while we looked
            (count,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            counts[task.name] = int(count)
    return Used(cpu_seconds(pid), counts)


def cpu_seconds(pid: int) -> float:
    """The processor time of the process so far, to the nanosecond, threads that have ended included."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names


def pss_mb(pid: int) -> float:
    """Its share in the memory it uses."""
    (kilobytes,) = re.findall(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kilobytes) / 1024
