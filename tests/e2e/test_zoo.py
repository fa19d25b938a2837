"""Misbehaving plugins in a service: each has the expected outcome and leaves nothing behind."""

import json
import os
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ductile.core.clock import from_text
from tests.e2e.zoo_service import (
    FINAL_STATUSES,
    MAX_MEMORY_GROWTH,
    JobResult,
    Resources,
    ZooService,
    plugin_name,
    running_zoo,
)
from tests.zoo.catalogue import HOSTILE_PLUGINS, MIB, HostilePlugin, break_entrypoint

MAX_GOOD_JOB_SECONDS = 1.0
ISOLATED = ("Z60", "Z62", "Z64", "Z65")
TESTED = tuple(plugin for plugin in HOSTILE_PLUGINS if plugin.id not in ISOLATED)
FLOODS = ("Z35", "Z36", "Z37")
CANARY = "canary-0123456789"
ENDS_AT_DEADLINE = {f"deadline_{index}": 0.30 + index / 50 for index in range(6)}
MORE_PLUGINS = {
    name: {
        "uses": "z62_exits_at_deadline",
        "config": {"seconds": seconds},
        "timeouts": {"poll": "500ms"},
        "retry": {"max_attempts": 1},
    }
    for name, seconds in ENDS_AT_DEADLINE.items()
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooService]:
    included = [plugin for plugin in HOSTILE_PLUGINS if not plugin.runs_alone and plugin.id != "Z64"]
    path = tmp_path_factory.mktemp("zoo") / "ductile"
    with running_zoo(path, included, more=MORE_PLUGINS, environ={"CANARY": CANARY}) as running:
        yield running


def find_plugin(folder: str, variant: str = "") -> HostilePlugin:
    (found,) = [one for one in HOSTILE_PLUGINS if one.folder == folder and one.variant == variant]
    return found


# --- all plugins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", TESTED, ids=str)
def test_a_misbehaving_plugin_has_the_expected_outcome_and_leaves_nothing(
    zoo: ZooService, plugin: HostilePlugin
) -> None:
    """The status of the job and its attempts, the error, the routes and the state; a good job is not delayed."""
    if plugin.breakage is not None:
        break_entrypoint(zoo.home.path / "plugins" / plugin_name(plugin) / "run", plugin.breakage)

    job_id = zoo.start_job(plugin)
    good_job_seconds = zoo.time_good_job()
    ended = zoo.wait_for_result(job_id)

    status, attempts = FINAL_STATUSES[plugin.expected]
    assert (ended.job["status"], [one["status"] for one in ended.attempts]) == (status, attempts), ended.error
    assert plugin.error in ended.error
    assert bool(ended.error) == (status != "succeeded")
    assert len(ended.children) == plugin.routed
    assert (ended.state is not None) == plugin.keeps_state
    assert good_job_seconds < MAX_GOOD_JOB_SECONDS
    zoo.check_nothing_is_left_of(job_id)


@pytest.mark.parametrize("plugin", [plugin for plugin in HOSTILE_PLUGINS if plugin.id in FLOODS], ids=str)
def test_a_flood_of_output_does_not_make_the_service_larger(zoo: ZooService, plugin: HostilePlugin) -> None:
    """Output above the limit is discarded as it is read: three more floods need no more memory than one."""
    zoo.run(plugin)  # the allocator keeps memory of the first flood
    before = Resources.of(zoo.pid)
    for _ in range(3):
        zoo.run(plugin)
    assert Resources.of(zoo.pid).resident - before.resident <= MAX_MEMORY_GROWTH


# --- single plugins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", [find_plugin("z02_random_bytes"), find_plugin("z09_broken_utf8", "latin1")], ids=str)
def test_output_that_is_not_text_is_stored_escaped(zoo: ZooService, plugin: HostilePlugin) -> None:
    """The author of the plugin sees what it printed, and every stored text can be read."""
    ended = zoo.run(plugin)
    assert re.search(r"\\x[0-9a-f]{2}", ended.attempts[-1]["result"])
    assert "\\x" in ended.job["output"]


@pytest.mark.parametrize("where", ["result", "event", "state"])
def test_a_lone_surrogate_is_replaced_with_a_warning(zoo: ZooService, where: str) -> None:
    """Z10: everything that was read can be stored."""
    ended = zoo.run(find_plugin("z10_lone_surrogate", where))
    seen = {
        "result": ended.job["result"]["result"],
        "event": ended.children and json.loads(ended.children[0]["payload"])["payload"]["name"],
        "state": ended.state and json.loads(ended.state)["name"],
    }
    assert seen[where] == "half \ufffd"
    assert "\\ud800" not in ended.attempts[0]["result"]
    zoo.service.wait_for_log("lone surrogates", job_id=ended.job["job_id"], level="warn")


def test_an_escaped_nul_is_stored_unchanged(zoo: ZooService) -> None:
    """Z11: in the result and in the state."""
    ended = zoo.run(find_plugin("z11_nul_in_string", "all"))
    assert ended.job["result"]["result"] == "a\0b"
    assert json.loads(ended.state or "") == {"name": "a\0b"}


def test_integers_of_any_size_stay_exact(zoo: ZooService) -> None:
    """Z14: in the state, in the event and in the response of the API."""
    numbers = [2**53 + 1, 2**63, 2**64, 10**399]
    ended = zoo.run(find_plugin("z14_huge_integers", "exact"))
    assert json.loads(ended.state or "")["numbers"] == numbers
    assert json.loads(ended.children[0]["payload"])["payload"]["numbers"] == numbers
    assert ended.job["result"]["state_updates"]["numbers"] == numbers


def test_a_plugin_cannot_set_the_source_time_or_id_of_an_event(zoo: ZooService) -> None:
    """Z29: the values of the plugin are ignored."""
    ended = zoo.run(find_plugin("z29_forged_event"))
    event = json.loads(ended.children[0]["payload"])
    assert event["source"] == plugin_name(find_plugin("z29_forged_event"))
    assert event["event_id"] == ended.children[0]["source_event_id"] != "mine"
    assert from_text(event["timestamp"]) >= from_text(ended.job["created_at"])


@pytest.mark.parametrize(
    ("variant", "mark"),
    [("many", "99000 more log lines dropped"), ("long", "more characters]"), ("bad_level", "hello")],
)
def test_the_log_of_a_plugin_is_limited_and_the_cut_is_marked(zoo: ZooService, variant: str, mark: str) -> None:
    """Z32: too many lines, a line that is too long, an unknown level; the job succeeds."""
    ended = zoo.run(find_plugin("z32_excessive_logs", variant))
    last = zoo.service.wait_for_log("job succeeded", job_id=ended.job["job_id"])
    own = [line for line in zoo.service.lines if line.get("job_id") == last["job_id"] and line["component"] == "plugin"]
    assert len(own) <= 1001
    assert sum(len(line["message"]) for line in own) <= 512 << 10
    assert mark in own[-1]["message"]


def test_a_log_message_of_a_plugin_is_one_line_whatever_it_contains(zoo: ZooService) -> None:
    """Z33: colours, line breaks and forged log lines are stored as text."""
    forged = '\x1b[31mred\x1b[0m\r\n{"level":"ERROR","message":"forged"}\n'
    ended = zoo.run(find_plugin("z33_forged_log_lines"))
    zoo.service.wait_for_log("job succeeded", job_id=ended.job["job_id"])
    assert ended.job["result"]["result"] == forged
    assert ended.attempts[0]["stderr"] == forged
    forged_lines = [line for line in zoo.service.lines if "forged" in line["message"] and line["component"] == "plugin"]
    assert {line["message"] for line in forged_lines} == {forged}
    assert all("component" in line for line in zoo.service.lines)


@pytest.mark.parametrize(
    "plugin", [find_plugin("z35_one_byte_over", str(10 * MIB)), find_plugin("z36_endless_stdout")], ids=str
)
def test_the_beginning_of_too_much_output_is_stored(zoo: ZooService, plugin: HostilePlugin) -> None:
    """64 KiB are stored, and the process is ended at once, not at its deadline."""
    ended = zoo.run(plugin)
    for attempt in ended.attempts:
        assert re.search(r"\[cut; \d+ bytes in all\]$", attempt["result"])
        assert 64 << 10 <= len(attempt["result"]) < 65 << 10
        assert attempt["duration_ms"] < 20_000


def test_the_end_of_a_large_stderr_is_stored_with_a_mark(zoo: ZooService) -> None:
    """Z37: of 20 MB, 64 KiB are stored."""
    (attempt,) = zoo.run(find_plugin("z37_large_stderr")).attempts
    assert re.match(r"\[\d+ bytes cut\]\n", attempt["stderr"])
    assert attempt["stderr"].endswith("warning\nlast line\n")
    assert len(attempt["stderr"]) < (64 << 10) + 100


def test_a_response_of_a_plugin_that_never_exits_is_stored_and_does_not_count(zoo: ZooService) -> None:
    """Z45: the response helps to diagnose the timeout."""
    ended = zoo.run(find_plugin("z45_responds_and_hangs"))
    assert [json.loads(one["result"])["result"] for one in ended.attempts] == ["done", "done"]
    assert ended.job["status"] == "dead"


def test_no_core_file_is_left_by_a_crash(zoo: ZooService) -> None:
    """Z49: neither in the working directory nor in the folder of the plugin."""
    zoo.run(find_plugin("z49_kills_itself", "SIGSEGV"))
    zoo.run(find_plugin("z49_kills_itself", "SIGABRT"))
    assert [path for path in zoo.home.path.rglob("core*") if path.is_file()] == []


@pytest.mark.parametrize(
    "folder", ["z54_child_keeps_pipes", "z55_daemon_keeps_pipes", "z56_detached_daemon", "z57_fork_bomb"]
)
def test_left_behind_processes_are_killed_and_warned_about(zoo: ZooService, folder: str) -> None:
    """The job succeeds with a warning for the author of the plugin."""
    job_id = zoo.run(find_plugin(folder)).job["job_id"]
    line = zoo.service.wait_for_log("left processes behind", job_id=job_id, level="warn")
    assert line["lost"] is False


def test_a_plugin_can_read_only_what_it_is_given(zoo: ZooService) -> None:
    """Z61: the allowed environment, three streams, its own session, and nothing of the service."""
    ended = zoo.run(find_plugin("z61_inspects_environment"))
    seen = json.loads(ended.job["result"]["result"])
    assert "CANARY" not in seen["environ"]
    assert seen["environ"]["DUCTILE_JOB_ID"] == ended.job["job_id"]
    assert seen["descriptors"] == [0, 1, 2]
    assert seen["session_is_own"]
    assert seen["core_limit"] == ["0", "0"]
    if os.getuid() != 0:  # root may read everything
        assert (seen["parent_environ"], seen["parent_maps"]) == ("errno 13", "errno 13")


def test_a_job_that_ends_on_its_deadline_ends_once(zoo: ZooService) -> None:
    """Z62: it has succeeded or timed out, never both."""
    job_ids = [zoo.service.post(name) for name in ENDS_AT_DEADLINE for _ in range(3)]
    for job_id in job_ids:
        ended = zoo.wait_for_result(job_id)
        outcome = (ended.job["status"], [one["status"] for one in ended.attempts])
        assert outcome in [("succeeded", ["succeeded"]), ("dead", ["timed_out"])]
    zoo.check_nothing_is_left_of(*job_ids)


def test_health_responds_while_all_processors_are_busy(zoo: ZooService) -> None:
    """Z63: a plugin may use all processor time."""
    job_id = zoo.start_job(find_plugin("z63_uses_every_core"))
    seconds = []
    while zoo.service.job(job_id)["status"] not in ("dead", "succeeded"):
        begun = time.monotonic()
        assert zoo.service.ask("GET", "/healthz")[0] == 200
        seconds.append(time.monotonic() - begun)
    # A quarter of a second on an idle machine; other tests run on this one.
    assert statistics.median(seconds) < 1.0


# --- plugins that damage their folder ---------------------------------------------------------------------------------


def _run_twice(zoo: ZooService, variant: str) -> tuple[JobResult, JobResult]:
    plugin = find_plugin("z65_deletes_its_own_files", variant)
    first, second = zoo.run(plugin), zoo.run(plugin)
    zoo.check_nothing_is_left_of(first.job["job_id"], second.job["job_id"])
    assert first.job["status"] == "succeeded"
    return first, second


def test_a_plugin_that_removes_its_own_working_directory_runs_again(zoo: ZooService) -> None:
    """Z65: the next process starts in the configuration directory like every other."""
    assert _run_twice(zoo, "cwd")[1].job["status"] == "succeeded"


def test_a_plugin_that_removed_its_manifest_is_refused_with_the_reason(zoo: ZooService) -> None:
    """Z65: a plugin without a manifest cannot run."""
    _, second = _run_twice(zoo, "manifest")
    assert second.job["status"] == "dead"
    assert re.search(r"cannot start: .*manifest\.yaml: does not exist", second.error)


def test_a_plugin_that_rewrote_itself_is_flagged(zoo: ZooService) -> None:
    """Z65: the log has a warning that its files differ from the loaded ones."""
    _, second = _run_twice(zoo, "entrypoint")
    warning = zoo.service.wait_for_log("files differ from the loaded ones: ", plugin=second.job["plugin"], level="warn")
    assert warning["component"] == "preflight"
    assert "found 'overwritten" in second.error


def test_every_misbehaving_plugin_is_tested() -> None:
    """All 66, here or in test_zoo_isolated.py."""
    here = {plugin.id for plugin in TESTED} | {"Z62", "Z65"}
    isolated = {"Z60", "Z64"}
    assert here | isolated == {f"Z{number:02}" for number in range(1, 67)}
    others = (Path(__file__).parent / "test_zoo_isolated.py").read_text()
    assert all(identifier in others for identifier in isolated)
