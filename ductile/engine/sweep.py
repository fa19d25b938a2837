"""What the runs of one event loop share: the turn to spawn, the leaders alive, how programs start, and the sweep of
what they left.

The service adopts every orphaned descendant of its plugins; here is decided which of them may still live. Knows
nothing of pipes and outcomes. `spawn` is the only caller.
"""

import time
from collections.abc import Iterable, Sequence

import trio

from ductile.engine.processes import (
    HAS_CHILDREN_LIST,
    Glance,
    adopted_children,
    glance,
    has_no_children,
    is_subreaper,
    job_marker,
    kill_children,
    reap,
)
from ductile.values import define, field

SPAWN_THREADS = 4
# Spawns that block the loop this long on average (of about the last five) send the next ones through threads.
SLOW_SPAWN_SECONDS, BUSY_SECONDS = 0.003, 0.5
LONGEST_COUNTED_SECONDS = 0.006  # one outlier alone proves nothing
LEISURE_SECONDS = 0.0005


@define
class House:
    """The running leaders by pid, each with its job, and who may spawn or sweep now."""

    # Each spawn blocks until its exec, and many in a row would add up to a stall: whoever comes when they have taken a
    # while, and too soon after the last one, waits for a turn in another pass of the loop.
    door: trio.Lock = field(factory=trio.Lock)
    last_spawn: float = 0.0
    row_seconds: float = 0.0
    # While the host is too busy for that, spawns go through these threads.
    side_door: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(SPAWN_THREADS))
    average_spawn: float = 0.0
    busy_until: float = 0.0
    broom: trio.Lock = field(factory=trio.Lock)
    leaders: dict[int, str | None] = field(factory=dict)
    # Entrypoints that had said nothing yet when they were first looked at.
    slow_starters: set[str] = field(factory=set)
    # Strays that outlived SIGKILL (another user's, or stuck in the kernel): waited for once, not after every run.
    unkillable: set[tuple[int, int]] = field(factory=set)
    adopts: bool = field(factory=is_subreaper)

    @property
    def is_busy(self) -> bool:
        """True if the host is too busy to spawn in the loop."""
        return time.monotonic() < self.busy_until

    @property
    def is_at_leisure(self) -> bool:
        """True if a spawn in the loop, together with those right before it, holds up nobody for long."""
        now = time.monotonic()
        is_short_row = self.row_seconds < LEISURE_SECONDS or now - self.last_spawn >= LEISURE_SECONDS
        return is_short_row and now >= self.busy_until

    def note_spawn(self, began: float) -> None:
        """A spawn in the loop is over: if these take long, the host counts as busy for a while."""
        now = time.monotonic()
        follows = began - self.last_spawn < LEISURE_SECONDS
        self.row_seconds = now - began + (self.row_seconds if follows else 0.0)
        self.last_spawn = now
        self.average_spawn += (min(now - began, LONGEST_COUNTED_SECONDS) - self.average_spawn) / 5
        # A child of a thread is not in the main thread's list of children; without such lists it would look adopted.
        if self.average_spawn > SLOW_SPAWN_SECONDS and HAS_CHILDREN_LIST:
            self.busy_until = now + BUSY_SECONDS

    @property
    def may_have_strays(self) -> bool:
        """Cheap, and nearly always False."""
        if not self.adopts or (not self.leaders and has_no_children()):
            return False
        return bool(self._adopted())

    async def sweep(self, instance: str | None) -> int:
        """Every adopted process that belongs to no running leader is dead and reaped; returns how many were killed."""
        swept = 0
        async with self.broom:
            # Killing a parent can hand us its children, hence again until there are none.
            while adopted := self._adopted():
                swept += sum(reap(child.pid) for child in adopted if child.is_zombie)
                strays = self._strays(instance, [child for child in adopted if not child.is_zombie])
                if not strays:
                    break
                try:
                    swept += await kill_children(strays)
                except trio.Cancelled:
                    self.unkillable.update((stray.pid, stray.start_ticks) for stray in strays)
                    raise
        return swept

    def _adopted(self) -> list[Glance]:
        children = adopted_children(self.leaders)
        return [one for one in children if one.is_zombie or (one.pid, one.start_ticks) not in self.unkillable]

    def _strays(self, instance: str | None, adopted: Sequence[Glance]) -> list[Glance]:
        leaders = [(seen, job) for pid, job in self.leaders.items() if (seen := glance(pid)) is not None]
        return [child for child in adopted if not may_belong(child, job_marker(child.pid, instance), leaders)]


_HOUSE: trio.lowlevel.RunVar[House] = trio.lowlevel.RunVar("ductile.engine.sweep.house")


def house() -> House:
    """The one house of this event loop."""
    try:
        return _HOUSE.get()
    except LookupError:
        _HOUSE.set(House())
        return _HOUSE.get()


def may_belong(stray: Glance, job: str | None, leaders: Iterable[tuple[Glance, str | None]]) -> bool:
    """By session; else by the job in its environment; else by age: nobody is older than the leader it descends from."""
    return any(
        stray.session == leader.pid
        or (leaders_job == job if job is not None else leader.start_ticks <= stray.start_ticks)
        for leader, leaders_job in leaders
    )
