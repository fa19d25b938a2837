"""Which slots a claim may fill."""

import pytest

from ductile.engine.room import NO_ROOM, Room, free_slots

ROOM = Room({"echo": 2, "other": 1}, 3, {"core.relay": 4})


def test_what_runs_takes_its_slots() -> None:
    """A plugin without a free one is not named, and one that nobody configured does not count."""
    assert free_slots({"echo": 2, "other": 1}, ["echo", "other", "gone"]) == {"echo": 1}
    assert free_slots({}, ["echo"]) == {}


@pytest.mark.parametrize(
    ("held", "free", "limit", "without_worker"),
    [
        ((), {"echo": 2, "other": 1}, 3, {"core.relay": 4}),
        ({"echo"}, {"other": 1}, 3, {"core.relay": 4}),
        ({"echo", "other"}, {}, 0, {"core.relay": 4}),
        ({"core.relay"}, {"echo": 2, "other": 1}, 3, {}),
        ({"*"}, {}, 0, {}),
    ],
)
def test_who_is_held_gets_no_slot(held: set[str], free: object, limit: int, without_worker: object) -> None:
    """Neither a plugin nor what needs no worker; a star holds everything."""
    room = ROOM.without(held)
    assert (room.free, room.limit, room.without_worker) == (free, limit, without_worker)
    assert room.is_none == (not free and not without_worker)


def test_no_room_is_none() -> None:
    assert NO_ROOM.is_none
    assert NO_ROOM.without({"*"}).is_none
