"""A crowd: two thousand jobs, good and bad, drawn at random, on eight workers at once."""

import random
from collections import Counter
from pathlib import Path

from tests.e2e.zoo_service import ENDS, enclosure, settled
from tests.zoo.catalogue import HOSTILE_PLUGINS, Expected, HostilePlugin

SEED = 20_260_208
JOBS, WORKERS, GOOD_SHARE = 2_000, 8, 0.6
# One of these costs as much as a hundred others: they have their turn alone.
SLOW = ("Z26", "Z27", "Z30", "Z31", "Z32", "Z34", "Z57", "Z58", "Z59", "Z60", "Z62", "Z63", "Z64", "Z65")
SHELL = b"#!/bin/sh"


def test_two_thousand_mixed_jobs_and_every_good_one_succeeds(tmp_path: Path) -> None:
    """No good job is harmed by a bad one, every bad one ends as it should, and eight slots are free at the end."""
    crowd = [animal for animal in HOSTILE_PLUGINS if animal.id not in SLOW and not animal.on_a_copy]
    dice = random.Random(SEED)
    weights = [_weight(animal) for animal in crowd]
    with enclosure(tmp_path / "ductile", crowd, workers=WORKERS) as zoo:
        jobs: dict[str, HostilePlugin | None] = {}
        for _ in range(JOBS):
            animal = None if dice.random() < GOOD_SHARE else dice.choices(crowd, weights)[0]
            jobs[zoo.service.post("good") if animal is None else zoo.let_out(animal)] = animal
        assert settled(zoo.is_idle, bool, patience=150)

        ended = {row["id"]: row["status"] for row in zoo.home.rows("SELECT id, status FROM job_queue")}
        good = Counter(ended[job_id] for job_id, animal in jobs.items() if animal is None)
        assert set(good) == {"succeeded"}
        assert sum(good.values()) > JOBS / 2
        odd = {
            f"{animal} {job_id}": ended[job_id]
            for job_id, animal in jobs.items()
            if animal is not None and ended[job_id] != ENDS[animal.expected][0]
        }
        assert odd == {}
        zoo.nothing_is_left_of(*jobs)


def _weight(animal: HostilePlugin) -> int:
    """Most of the crowd is quick: shells rather than interpreters, ends rather than deadlines."""
    if animal.expected is Expected.TIMED_OUT:
        return 1
    return 60 if (animal.path / "run").read_bytes().startswith(SHELL) else 4
