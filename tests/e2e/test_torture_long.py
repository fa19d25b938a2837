"""`scripts/torture zoo` and `soak` at a small size; growth and leftovers are detected."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from scripts.tortures import soak, zoo
from scripts.tortures.lib.clients import JobClient
from scripts.tortures.lib.instance import Instance
from tests.e2e.torture_runs import run_torture
from tests.zoo.catalogue import HOSTILE_PLUGINS, HostilePlugin

MIB = 1 << 20


@pytest.mark.timeout(120)
def test_a_round_of_misbehaving_plugins_leaves_nothing_behind() -> None:
    """A few plugins and twice as many good jobs at once."""
    run = run_torture("zoo", "--rounds", "1", "--share", "0.06", "--leniency", "inf")

    assert run.violations == {}, run.stderr
    assert run.summary["jobs"] > 10


@pytest.mark.timeout(120)
def test_many_jobs_leave_no_resources_behind() -> None:
    """So few jobs are all warm-up, so memory is not checked."""
    run = run_torture("soak", "--runs", "120")

    assert run.violations.keys() <= {soak.MEMORY}, run.stderr
    assert run.summary["runs"] == 120


FIRST = soak.Measurement(100, 60_000, 18, 6, 1 << 20, 1 << 20)


def soak_test(
    tmp_path: Path, last: soak.Measurement, *, wal: int = 0, effects: str = "end a 1 - - 7 1\n"
) -> soak.SoakTorture:
    instance = Instance(tmp_path)
    instance.effects_log.write_text(effects)
    service: Any = SimpleNamespace(stderr=[])
    client = JobClient.connect("http://localhost")
    return soak.SoakTorture(instance, service, client, job_ids=["a"], measurements=[FIRST, last], max_wal_bytes=wal)


@pytest.mark.parametrize(
    ("violated", "changes", "more", "exit_code"),
    [
        (None, {"resident_kilobytes": 65_900}, {}, 0),
        (soak.MEMORY, {"resident_kilobytes": 66_100}, {}, 0),
        (soak.DESCRIPTORS, {"descriptors": 19}, {}, 0),
        (soak.THREADS, {"threads": 7}, {}, 0),
        (soak.LOG, {}, {"wal": 65 * MIB}, 0),
        (soak.RUNS_ONCE, {}, {"effects": ""}, 0),
        (soak.RUNS_ONCE, {}, {"effects": "end a 1 - - 7 1\n" * 2}, 0),
        (soak.EXIT_CODE, {}, {}, 1),
    ],
)
def test_growth_is_detected(
    tmp_path: Path, violated: str | None, changes: dict[str, int], more: dict[str, Any], exit_code: int
) -> None:
    """Each rule of the soak test on its own."""
    found = soak.violations_of(soak_test(tmp_path, evolve(FIRST, **changes), **more), exit_code)

    assert [rule for rule, violations in found.items() if violations] == ([violated] if violated else [])


CREATED_AT = "2026-02-08T09:30:00.000000Z"
SEVEN_SECONDS_LATER = "2026-02-08T09:30:07.000000Z"
SILENT = next(plugin for plugin in HOSTILE_PLUGINS if plugin.id == "Z01")


@pytest.mark.parametrize(
    ("violated", "plugin", "status", "started_at", "resident"),
    [
        (None, None, "succeeded", CREATED_AT, [MIB, 20 * MIB, 31 * MIB]),
        (None, SILENT, "dead", CREATED_AT, [MIB]),
        (zoo.GOOD_JOBS_SUCCEED, None, "failed", CREATED_AT, [MIB]),
        (zoo.GOOD_JOBS_DO_NOT_WAIT, None, "succeeded", SEVEN_SECONDS_LATER, [MIB]),
        (zoo.OUTCOMES, SILENT, "succeeded", CREATED_AT, [MIB]),
        (zoo.MEMORY, None, "succeeded", CREATED_AT, [MIB, 20 * MIB, 33 * MIB]),
    ],
)
def test_harm_by_a_misbehaving_plugin_is_detected(
    violated: str | None, plugin: HostilePlugin | None, status: str, started_at: str, resident: list[int]
) -> None:
    """Each rule on its own; test_zoo.py covers leftovers."""
    row = {
        "id": "a",
        "status": status,
        "created_at": CREATED_AT,
        "last_error": None,
        "job_id": "a",
        "started_at": started_at,
    }
    service: Any = SimpleNamespace(home=SimpleNamespace(rows=lambda _: [row]))
    test = zoo.ZooTorture(service, zoo.ZooOptions(1, 1), random.Random(1), waits=[0.0], resident=resident)

    test.check_jobs({"a": plugin})
    test.check_all_rounds()

    assert [rule for rule, found in test.violations.items() if found] == ([violated] if violated else [])
