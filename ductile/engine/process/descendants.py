"""Find and kill the descendants that a plugin process left behind, even if they changed session and environment.

The service is the subreaper of all plugins, so an orphan becomes its child. Each plugin process starts with a unique
soft RLIMIT_RTTIME, which affects real-time scheduling only and is above any real use. Descendants inherit this number
across setsid, exec and a new environment, so it identifies the attempt of an orphan.
"""

import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

from ductile.engine.process.procfs import ProcessStat, adopted_children, has_no_children, is_subreaper, reap

KILL_TIMEOUT_SECONDS = 5.0
"""A process survives SIGKILL for this long only if it is stuck in the kernel."""
FIRST_TAG = 1 << 40
"""In microseconds: 12 days. No real-time process runs this long without blocking, so the limit has no effect."""


@frozen
class SweepResult:
    """The number of orphans that a sweep killed, and whether an orphan may be left."""

    killed: int = 0
    incomplete: bool = False


@frozen
class Orphan:
    """An adopted child and the tag it inherited; None if the tag cannot be read or is not from this service."""

    process: ProcessStat
    tag: int | None


@define(eq=False)
class ProcessTable:
    """The unreaped plugin processes of this event loop, with the tags that their descendants inherit."""

    is_subreaper: bool = field(factory=is_subreaper)
    leaders: dict[int, int] = field(factory=dict)
    """Process id → tag."""
    _sweeping: set[int] = field(factory=set)
    """The tags of attempts whose sweep runs. That sweep reaps and counts their orphans."""
    _tags: range = field(factory=lambda: _no_tags_yet())
    """The tags in use and used before."""
    _foreign: set[tuple[int, int]] = field(factory=lambda: _children_now())
    """Children that no sweep kills: older than this table, or owned by another user and already reported."""

    def new_tag(self) -> int:
        self._tags = range(self._tags.start, self._tags.stop + 1)
        return self._tags[-1]

    def kill_all(self) -> None:
        """Send SIGKILL to every plugin process group without waiting. The next start recovers their jobs."""
        for pid in self.leaders:  # not reaped yet, so the group id cannot be reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    async def sweep(self, tag: int) -> SweepResult:
        """Kill and reap the orphans of the attempt with this tag. Its leader must be reaped. Bounded and shielded.

        The children of a killed process become children of the service, so this repeats until none is left.
        """
        killed = 0
        self._sweeping.add(tag)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILL_TIMEOUT_SECONDS) as deadline:
            try:
                while orphans := self._orphans():
                    own = [
                        orphan.process
                        for orphan in orphans
                        if self._belongs_to(orphan, tag) and may_signal(orphan.process.pid)
                    ]
                    if not own:
                        left = [orphan.process for orphan in orphans if orphan.tag in (None, tag)]
                        self._foreign.update(process.identity for process in left if not may_signal(process.pid))
                        return SweepResult(killed, incomplete=bool(left))
                    killed += await kill_children(own)
            except OSError:  # no free descriptor to read procfs with
                return SweepResult(killed, incomplete=True)
            finally:
                self._sweeping.discard(tag)
        return SweepResult(killed, incomplete=deadline.cancelled_caught)

    def _belongs_to(self, orphan: Orphan, tag: int) -> bool:
        """True for orphans of the attempt and for those that an earlier sweep missed.

        An orphan without a tag belongs to the attempt only if no other attempt runs.
        """
        if orphan.tag is None:
            return not self.leaders
        return orphan.tag == tag or orphan.tag not in self._sweeping

    def _orphans(self) -> list[Orphan]:
        """Return the adopted children that belong to no running attempt. Reap zombies that no sweep waits for."""
        if not self.is_subreaper or (not self.leaders and has_no_children()):
            return []
        orphans, running = [], set(self.leaders.values())
        for child in adopted_children(self.leaders):
            inherited = tag if (tag := tag_of(child.pid)) in self._tags else None
            if child.is_zombie and inherited not in self._sweeping:
                reap(child.pid)
            elif inherited not in running and child.identity not in self._foreign:
                orphans.append(Orphan(child, inherited))
        return orphans


def _no_tags_yet() -> range:
    """Return an empty range of tags that no other process uses: a plugin can run Ductile commands that use tags too."""
    first = FIRST_TAG + (os.getpid() << 32)
    return range(first, first)


def _children_now() -> set[tuple[int, int]]:
    """Return the children of this process, such as those that a shell started before it ran exec."""
    try:
        return {child.identity for child in adopted_children(())}
    except OSError:  # no free descriptor to read procfs with
        return set()


def may_signal(pid: int) -> bool:
    """True unless the process belongs to another user, for example because sudo started it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


async def kill_children(children: Sequence[ProcessStat]) -> int:
    """Kill and reap these children; return how many died from SIGKILL."""
    killed = 0
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child.pid, signal.SIGKILL)  # an unreaped child keeps its pid, so it cannot be reused
    for child in children:
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError:
            continue
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        killed += reap(child.pid)
    return killed


def tag_children(tag: int) -> None:
    """Make processes that start from now on inherit `tag`. No effect if the hard limit is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))


def tag_of(pid: int) -> int | None:
    """Return the tag that a process inherited, or None if its limits cannot be read."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_RTTIME)
    except OSError:
        return None
    return soft
