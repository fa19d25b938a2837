"""Misbehaving plugins that need their own service: they end it, flood it with events, or fill its state."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.e2e.zoo_service import DIRECT, make_zoo_home, plugin_name, poll, processes_of, running_zoo
from tests.zoo.catalogue import HOSTILE_PLUGINS, HostilePlugin

HOPS, TREE_JOBS = 20, 40


def find_plugin(plugin_id: str, variant: str = "") -> HostilePlugin:
    (found,) = [one for one in HOSTILE_PLUGINS if one.id == plugin_id and one.variant == variant]
    return found


def _end_of(home: Home, job_id: str) -> tuple[str, list[str], str]:
    (row,) = home.rows("SELECT status, last_error FROM job_queue WHERE id = ?", job_id)
    attempts = home.rows("SELECT status FROM job_log WHERE job_id = ? ORDER BY attempt", job_id)
    return row["status"], [one["status"] for one in attempts], row["last_error"] or ""


# --- Z60: a plugin that signals the service ---------------------------------------------------------------------------


def test_a_plugin_that_sends_sigterm_to_the_service_causes_a_drain(tmp_path: Path) -> None:
    """Z60: the service exits with 0; the job is queued again without losing an attempt, and so is the next one."""
    plugin = find_plugin("Z60", "SIGTERM")
    home = make_zoo_home(tmp_path / "ductile", [plugin], workers=1)
    service = home.start(environ=DIRECT)

    job_id, waiting = service.post(plugin_name(plugin)), service.post("good")
    assert service.wait() == 0
    assert _end_of(home, job_id)[:2] == ("queued", ["interrupted"])

    _replace_with_good_script(home)
    again = home.start(environ=DIRECT)
    assert again.job(waiting, wait="30s")["status"] == "succeeded"
    assert again.job(job_id, wait="30s")["status"] == "succeeded"
    assert again.stop() == 0
    assert _end_of(home, job_id)[1] == ["interrupted", "succeeded"]


def _replace_with_good_script(home: Home) -> None:
    script = home.path / "plugins" / "z60_kills_its_parent" / "run"
    script.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"status":"ok","result":"done"}\'\n')


def test_a_plugin_that_kills_the_service_is_dead_when_its_attempts_are_used_up(tmp_path: Path) -> None:
    """Z60: each start recovers, and no other job is lost."""
    plugin = find_plugin("Z60", "SIGKILL")
    home = make_zoo_home(tmp_path / "ductile", [plugin], workers=1)
    service = home.start(environ=DIRECT)
    job_id, waiting = service.post(plugin_name(plugin)), service.post("good")
    assert service.wait() == -signal.SIGKILL

    assert home.launch(environ=DIRECT).wait() == -signal.SIGKILL  # the second and last attempt

    third = home.start(environ=DIRECT)
    assert third.job(waiting, wait="30s")["status"] == "succeeded"
    assert third.stop() == 0
    status, attempts, error = _end_of(home, job_id)
    assert (status, len(attempts)) == ("dead", 2)
    assert "the core died 2 times while it ran; attempts used up" in error


# --- Z64: events that trigger themselves ------------------------------------------------------------------------------


def test_an_event_that_triggers_itself_ends_at_the_hop_limit(tmp_path: Path) -> None:
    """Z64: after twenty hops a job is dead with the reason, and the tree is complete."""
    plugin = find_plugin("Z64")
    with running_zoo(tmp_path / "ductile", [plugin]) as zoo:
        ended = zoo.run(plugin)
        tree = zoo.home.rows(
            "SELECT id, status, hops, last_error FROM job_queue WHERE root_job_id = ? ORDER BY hops",
            ended.job["job_id"],
        )
        assert [row["status"] for row in tree] == ["succeeded"] * (HOPS + 1) + ["dead"]
        assert tree[-1]["last_error"] == f"chain of more than {HOPS} hops"
        zoo.check_nothing_is_left_of(*(row["id"] for row in tree))


def test_an_event_that_multiplies_ends_at_the_tree_budget(tmp_path: Path) -> None:
    """Z64: ten jobs for each event; jobs above the budget are dead with the reason and never start."""
    plugin = find_plugin("Z64", "fan_out")
    with running_zoo(tmp_path / "ductile", [plugin], service_keys=f"  limits: {{tree_jobs: {TREE_JOBS}}}\n") as zoo:
        ended = zoo.run(plugin)
        tree = zoo.home.rows("SELECT status, last_error FROM job_queue WHERE root_job_id = ?", ended.job["job_id"])
        succeeded = [row for row in tree if row["status"] == "succeeded"]
        dead = [row for row in tree if row["status"] == "dead"]
        assert len(succeeded) == TREE_JOBS
        assert len(succeeded) + len(dead) == len(tree) == 1 + 10 * TREE_JOBS
        assert {row["last_error"] for row in dead} == {f"tree of more than {TREE_JOBS} jobs"}
        zoo.check_nothing_is_left_of(ended.job["job_id"])


# --- Z30: a state that is too large only when it is merged ------------------------------------------------------------


def test_a_state_that_is_too_large_after_merging_fails_the_job_and_is_unchanged(tmp_path: Path) -> None:
    """Z30: two updates fit alone but not together; the second one fails."""
    plugin = find_plugin("Z30", str(1 << 20))
    merging: dict[str, Any] = {"uses": plugin.folder, "config": {"bytes": 600 << 10}}
    with running_zoo(tmp_path / "ductile", [plugin], more={"merges": merging}) as zoo:
        first = zoo.service.run("merges", payload={"key": "a"})
        second_id = zoo.service.post("merges", payload={"key": "b"})
        assert zoo.time_good_job() < 30
        second = zoo.wait_for_result(second_id)
        assert first["status"] == "succeeded"
        assert (second.job["status"], [one["status"] for one in second.attempts]) == ("failed", ["failed"])
        assert "1048576" in second.error
        assert set(json.loads(second.state or "")) == {"a"}
        zoo.check_nothing_is_left_of(second_id)


# --- a stop of the service --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["z51_ignores_sigterm", "z53_stops_itself", "z55_daemon_keeps_pipes"])
def test_a_stop_of_the_service_leaves_no_plugin_process(tmp_path: Path, folder: str) -> None:
    """The drain ends the processes after the grace period, and the exit code is 0."""
    plugin = next(one for one in HOSTILE_PLUGINS if one.folder == folder)
    with running_zoo(tmp_path / "ductile", [plugin]) as zoo:
        job_id = zoo.start_job(plugin)
        assert poll(lambda: processes_of([job_id]), bool)
        assert zoo.service.stop() == 0
        assert processes_of([job_id]) == []
        assert _end_of(zoo.home, job_id)[0] != "running"
