"""Which slots a claim may fill. Pure; the dispatcher counts what is taken and says who is held."""

from collections.abc import Collection, Iterable, Mapping

from ductile.ledger.pauses import EVERYTHING
from ductile.values import frozen


@frozen(eq=False)
class Room:
    """Free slots by plugin, how many of them may be filled at once, and those that need no worker."""

    free: Mapping[str, int]
    limit: int
    without_worker: Mapping[str, int]

    @property
    def is_none(self) -> bool:
        return not self.limit and not self.without_worker

    def without(self, held: Collection[str]) -> "Room":
        """The same, but for the slots of plugins that may not start now; `*` means all of them."""
        if not held:
            return self
        free = _not_held(self.free, held)
        return Room(free, self.limit if free else 0, _not_held(self.without_worker, held))


NO_ROOM = Room({}, 0, {})


def free_slots(slots_of: Mapping[str, int], taken: Iterable[str]) -> Mapping[str, int]:
    """What is left of the slots of each plugin, where anything is."""
    if not slots_of:
        return slots_of
    left = dict(slots_of)
    for plugin in taken:
        if plugin in left:
            left[plugin] -= 1
    return {name: slots for name, slots in left.items() if slots > 0}


def _not_held(slots: Mapping[str, int], held: Collection[str]) -> Mapping[str, int]:
    return {} if EVERYTHING in held else {name: count for name, count in slots.items() if name not in held}
