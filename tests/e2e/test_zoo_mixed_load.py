"""Two thousand random jobs of good and misbehaving plugins on eight workers."""

import random
from collections import Counter
from pathlib import Path

from tests.e2e.zoo_service import FINAL_STATUSES, poll, running_zoo
from tests.zoo.catalogue import HOSTILE_PLUGINS, Expected, HostilePlugin

SEED = 20_260_208
JOBS, WORKERS, GOOD_SHARE = 2_000, 8, 0.6
# One of these takes as long as a hundred others. test_zoo.py and test_zoo_isolated.py cover them.
SLOW = ("Z26", "Z27", "Z30", "Z31", "Z32", "Z34", "Z57", "Z58", "Z59", "Z60", "Z62", "Z63", "Z64", "Z65")
SHELL = b"#!/bin/sh"


def test_every_good_job_succeeds_among_two_thousand_mixed_jobs(tmp_path: Path) -> None:
    """Every misbehaving plugin has the expected outcome, and all slots are free at the end."""
    plugins = [plugin for plugin in HOSTILE_PLUGINS if plugin.id not in SLOW and not plugin.on_a_copy]
    rng = random.Random(SEED)
    weights = [_weight(plugin) for plugin in plugins]
    with running_zoo(tmp_path / "ductile", plugins, workers=WORKERS) as zoo:
        jobs: dict[str, HostilePlugin | None] = {}
        for _ in range(JOBS):
            plugin = None if rng.random() < GOOD_SHARE else rng.choices(plugins, weights)[0]
            jobs[zoo.service.post("good") if plugin is None else zoo.start_job(plugin)] = plugin
        assert poll(zoo.is_idle, bool, timeout=150)

        ended = {row["id"]: row["status"] for row in zoo.home.rows("SELECT id, status FROM job_queue")}
        good = Counter(ended[job_id] for job_id, plugin in jobs.items() if plugin is None)
        assert set(good) == {"succeeded"}
        assert sum(good.values()) > JOBS / 2
        unexpected = {
            f"{plugin} {job_id}": ended[job_id]
            for job_id, plugin in jobs.items()
            if plugin is not None and ended[job_id] != FINAL_STATUSES[plugin.expected][0]
        }
        assert unexpected == {}
        zoo.check_nothing_is_left_of(*jobs)


def _weight(plugin: HostilePlugin) -> int:
    """Prefer quick plugins: shell scripts to interpreters, and ends to deadlines."""
    if plugin.expected is Expected.TIMED_OUT:
        return 1
    return 60 if (plugin.path / "run").read_bytes().startswith(SHELL) else 4
