"""The long tortures: a share of `scripts/torture zoo` and `soak`, and what grows or stays behind is noticed."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from scripts.tortures import soak, zoo
from scripts.tortures.arena import Arena
from scripts.tortures.clients import Caller
from tests.e2e.tortured import torture
from tests.zoo.catalogue import HOSTILE_PLUGINS, HostilePlugin

MIB = 1 << 20


@pytest.mark.timeout(120)
def test_a_round_of_the_zoo_leaves_nothing_behind() -> None:
    """A few animals and twice as many good jobs, all at once."""
    done = torture("zoo", "--rounds", "1", "--share", "0.06", "--leniency", "inf")

    assert done.broken == {}, done.said
    assert done.summary["jobs"] > 10


@pytest.mark.timeout(120)
def test_a_soak_leaves_the_service_as_it_was() -> None:
    """Memory is another matter: a few runs are all warm-up."""
    done = torture("soak", "--runs", "120")

    assert done.broken.keys() <= {"memory"}, done.said
    assert done.summary["runs"] == 120


LOOK = soak.Look(100, 60_000, 18, 6, 1 << 20, 1 << 20)


def soaked(tmp_path: Path, last: soak.Look, *, wal: int = 0, effects: str = "end a 1 - - 7 1\n") -> soak.Soak:
    arena = Arena(tmp_path)
    arena.effects.write_text(effects)
    said: Any = SimpleNamespace(said=[])
    seen = soak.Soak(arena, said, Caller.to("http://nobody"), asked=["a"], looks=[LOOK, last])
    seen.largest_wal = wal
    return seen


@pytest.mark.parametrize(
    ("broken", "changes", "more", "code"),
    [
        (None, {"resident_kilobytes": 65_900}, {}, 0),
        ("memory", {"resident_kilobytes": 66_100}, {}, 0),
        ("descriptors", {"descriptors": 19}, {}, 0),
        ("threads", {"threads": 7}, {}, 0),
        ("log", {}, {"wal": 65 * MIB}, 0),
        ("every run once", {}, {"effects": ""}, 0),
        ("every run once", {}, {"effects": "end a 1 - - 7 1\n" * 2}, 0),
        ("it ends in order", {}, {}, 1),
    ],
)
def test_whatever_grows_is_noticed(
    tmp_path: Path, broken: str | None, changes: dict[str, int], more: dict[str, Any], code: int
) -> None:
    """Each promise of the soak on its own."""
    found = soak.violations_of(soaked(tmp_path, evolve(LOOK, **changes), **more), code)

    assert [rule for rule, violations in found.items() if violations] == ([broken] if broken else [])


AT = "2026-02-08T09:30:00.000000Z"
LATER = "2026-02-08T09:30:07.000000Z"
SILENT = next(animal for animal in HOSTILE_PLUGINS if animal.id == "Z01")


@pytest.mark.parametrize(
    ("broken", "animal", "status", "started_at", "resident"),
    [
        (None, None, "succeeded", AT, [MIB, 20 * MIB, 31 * MIB]),
        (None, SILENT, "dead", AT, [MIB]),
        ("good jobs succeed", None, "failed", AT, [MIB]),
        ("good jobs do not wait", None, "succeeded", LATER, [MIB]),
        ("animals end as they should", SILENT, "succeeded", AT, [MIB]),
        ("memory", None, "succeeded", AT, [MIB, 20 * MIB, 33 * MIB]),
    ],
)
def test_whoever_is_harmed_by_an_animal_is_noticed(
    broken: str | None, animal: HostilePlugin | None, status: str, started_at: str, resident: list[int]
) -> None:
    """Each promise of the zoo on its own; what is left behind is looked at as in the tests of the zoo."""
    row = {"id": "a", "status": status, "created_at": AT, "last_error": None, "job_id": "a", "started_at": started_at}
    house: Any = SimpleNamespace(home=SimpleNamespace(rows=lambda _: [row]))
    rounds = zoo.Rounds(house, zoo.Options(1, 1), random.Random(1), waits=[0.0], resident=resident)

    rounds._look_at({"a": animal})
    rounds.judge()

    assert [rule for rule, found in rounds.violations.items() if found] == ([broken] if broken else [])
