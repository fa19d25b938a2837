"""Find and end the descendants that a plugin process left behind, also those that left its session and environment.

The service is the subreaper of all plugins: an orphan becomes its child. Every plugin process is started with a soft
RLIMIT_RTTIME of its own, which only concerns real-time scheduling and lies above any real use. Descendants inherit
this number across setsid, exec and a new environment, so it tells which attempt an orphan belongs to.
"""

import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

from ductile.engine.process.procfs import Glance, adopted_children, has_no_children, is_subreaper, reap

KILL_TIMEOUT_SECONDS = 5.0
"""No process survives SIGKILL for this long, unless the kernel itself is stuck on its behalf."""
FIRST_TAG = 1 << 40
"""In microseconds, 12 days: a real-time process that runs this long without blocking is not affected in practice."""


@frozen
class Swept:
    """What a sweep did: orphans it killed, and whether any orphan may be left."""

    killed: int = 0
    incomplete: bool = False


@frozen
class Orphan:
    """An adopted child and the tag it inherited; None if that cannot be read or is none of ours."""

    process: Glance
    tag: int | None


@define(eq=False)
class ProcessTable:
    """The plugin processes of this event loop that are not reaped yet, with the tags that their descendants inherit."""

    is_subreaper: bool = field(factory=is_subreaper)
    leaders: dict[int, int] = field(factory=dict)
    """Process id → tag."""
    _sweeping: set[int] = field(factory=set)
    """The tags of attempts whose sweep has not ended: it reaps and counts their orphans itself."""
    _tags: range = field(factory=lambda: _no_tags_yet())
    """The tags that were used."""
    _foreign: set[tuple[int, int]] = field(factory=lambda: _children_now())
    """Children that no sweep ends: those from before this table, and those of another user, once they are reported."""

    def new_tag(self) -> int:
        self._tags = range(self._tags.start, self._tags.stop + 1)
        return self._tags[-1]

    def kill_all(self) -> None:
        """Send SIGKILL to every plugin process group without waiting. The next start recovers their jobs."""
        for pid in self.leaders:  # not reaped yet, so the number of the group cannot mean another
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    async def sweep(self, tag: int) -> Swept:
        """Kill and reap the orphans of the attempt with this tag, whose leader is reaped. Bounded and shielded.

        Killing a process can hand its children to us, so the list is read again until it has none.
        """
        killed = 0
        self._sweeping.add(tag)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILL_TIMEOUT_SECONDS) as patience:
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
                        return Swept(killed, incomplete=bool(left))
                    killed += await kill_children(own)
            except OSError:  # no free descriptor to read procfs with
                return Swept(killed, incomplete=True)
            finally:
                self._sweeping.discard(tag)
        return Swept(killed, incomplete=patience.cancelled_caught)

    def _belongs_to(self, orphan: Orphan, tag: int) -> bool:
        """True for the attempt's own orphans, and for those that an earlier sweep could not find.

        An orphan that cannot be attributed belongs to the attempt if no other one runs.
        """
        if orphan.tag is None:
            return not self.leaders
        return orphan.tag == tag or orphan.tag not in self._sweeping

    def _orphans(self) -> list[Orphan]:
        """Return the adopted children that belong to no running attempt. Reap dead ones that no sweep waits for."""
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
    """Return an empty range of tags that no other process uses: a plugin may run commands of Ductile that tag too."""
    first = FIRST_TAG + (os.getpid() << 32)
    return range(first, first)


def _children_now() -> set[tuple[int, int]]:
    """Return the children of this process, such as those a shell started before it replaced itself by the service."""
    try:
        return {child.identity for child in adopted_children(())}
    except OSError:  # no free descriptor to read procfs with
        return set()


def may_signal(pid: int) -> bool:
    """False for a process of another user, such as one that sudo started."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


async def kill_children(children: Sequence[Glance]) -> int:
    """Kill and reap these children of ours, dead or alive; return how many SIGKILL ended."""
    killed = 0
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child.pid, signal.SIGKILL)  # an unreaped child keeps its pid, so this cannot hit another
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
    """Processes started from now on, and their descendants, inherit `tag`. No effect where the hard limit is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))


def tag_of(pid: int) -> int | None:
    """Return the limit that tells whose descendant a process is, or None if it does not show it."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_RTTIME)
    except OSError:
        return None
    return soft
