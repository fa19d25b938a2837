"""The zoo through the whole service: what becomes of every animal, and that nothing is left of any of them."""

import json
import os
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ductile.core.clock import from_text
from tests.e2e.zoo_service import ENDS, MOST_GROWTH, Enclosure, Ended, Traces, enclosure, lane_of
from tests.zoo.catalogue import HOSTILE_PLUGINS, MIB, HostilePlugin, break_entrypoint

# Within a second on an idle machine; tests share theirs, and a burnt core is part of the zoo.
A_GOOD_JOB_SECONDS = 1.0
ON_THEIR_OWN = ("Z60", "Z62", "Z64", "Z65")
SHOWN = tuple(animal for animal in HOSTILE_PLUGINS if animal.id not in ON_THEIR_OWN)
FLOODS = ("Z35", "Z36", "Z37")
CANARY = "canary-0123456789"
ON_THE_EDGE = {f"edge_{index}": 0.30 + index / 50 for index in range(6)}
MORE = {
    name: {
        "uses": "z62_on_the_deadline",
        "config": {"seconds": seconds},
        "timeouts": {"poll": "500ms"},
        "retry": {"max_attempts": 1},
    }
    for name, seconds in ON_THE_EDGE.items()
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enclosure]:
    kept = [animal for animal in HOSTILE_PLUGINS if not animal.runs_alone and animal.id != "Z64"]
    path = tmp_path_factory.mktemp("zoo") / "ductile"
    with enclosure(path, kept, more=MORE, environ={"CANARY": CANARY}) as opened:
        yield opened


def the(folder: str, variant: str = "") -> HostilePlugin:
    (found,) = [one for one in HOSTILE_PLUGINS if one.folder == folder and one.variant == variant]
    return found


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("animal", SHOWN, ids=str)
def test_every_animal_ends_as_the_catalogue_says_and_nothing_of_it_is_left(
    zoo: Enclosure, animal: HostilePlugin
) -> None:
    """The end of its job and of each attempt, why, what was routed and kept; a good job beside it never notices."""
    if animal.breakage is not None:
        break_entrypoint(zoo.home.path / "plugins" / lane_of(animal) / "run", animal.breakage)

    job_id = zoo.let_out(animal)
    beside = zoo.a_good_job_takes()
    ended = zoo.watch(job_id)

    status, attempts = ENDS[animal.expected]
    assert (ended.job["status"], [one["status"] for one in ended.attempts]) == (status, attempts), ended.error
    assert animal.error in ended.error
    assert bool(ended.error) == (status != "succeeded")
    assert len(ended.children) == animal.routed
    assert (ended.state is not None) == animal.keeps_state
    assert beside < A_GOOD_JOB_SECONDS
    zoo.nothing_is_left_of(job_id)


@pytest.mark.parametrize("animal", [animal for animal in HOSTILE_PLUGINS if animal.id in FLOODS], ids=str)
def test_a_flood_goes_by_without_making_the_core_larger(zoo: Enclosure, animal: HostilePlugin) -> None:
    """What is read beyond a cap is dropped as it comes: three more floods need no more memory than one."""
    zoo.show(animal)  # the allocator keeps some room from the first one for the next
    before = Traces.of(zoo.pid)
    for _ in range(3):
        zoo.show(animal)
    assert Traces.of(zoo.pid).resident - before.resident <= MOST_GROWTH


# --- what some of them are about beyond that --------------------------------------------------------------------------


@pytest.mark.parametrize("animal", [the("z02_random_bytes"), the("z09_broken_utf8", "latin1")], ids=str)
def test_output_that_is_no_text_is_kept_as_escaped_text(zoo: Enclosure, animal: HostilePlugin) -> None:
    """Whoever mends the plugin sees what it printed; nothing that is stored can fail to be read."""
    ended = zoo.show(animal)
    assert re.search(r"\\x[0-9a-f]{2}", ended.attempts[-1]["result"])
    assert "\\x" in ended.job["output"]


@pytest.mark.parametrize("where", ["result", "event", "state"])
def test_half_a_surrogate_pair_is_replaced_and_warned_about(zoo: Enclosure, where: str) -> None:
    """Z10: nothing that was read can fail to be stored, and the maintainer is told."""
    ended = zoo.show(the("z10_lone_surrogate", where))
    seen = {
        "result": ended.job["result"]["result"],
        "event": ended.children and json.loads(ended.children[0]["payload"])["payload"]["name"],
        "state": ended.state and json.loads(ended.state)["name"],
    }
    assert seen[where] == "half \ufffd"
    assert "\\ud800" not in ended.attempts[0]["result"]
    zoo.service.wait_for_log("lone surrogates", job_id=ended.job["job_id"], level="warn")


def test_an_escaped_nul_comes_back_as_it_was(zoo: Enclosure) -> None:
    """Z11: in the result and in the state."""
    ended = zoo.show(the("z11_nul_in_string", "all"))
    assert ended.job["result"]["result"] == "a\0b"
    assert json.loads(ended.state or "") == {"name": "a\0b"}


def test_integers_of_any_size_stay_exact(zoo: Enclosure) -> None:
    """Z14: in the state, in the event and in the answer of the API."""
    numbers = [2**53 + 1, 2**63, 2**64, 10**399]
    ended = zoo.show(the("z14_huge_integers", "exact"))
    assert json.loads(ended.state or "")["numbers"] == numbers
    assert json.loads(ended.children[0]["payload"])["payload"]["numbers"] == numbers
    assert ended.job["result"]["state_updates"]["numbers"] == numbers


def test_who_emitted_an_event_when_and_under_which_id_is_for_the_core_to_say(zoo: Enclosure) -> None:
    """Z29: what the plugin writes there is ignored."""
    ended = zoo.show(the("z29_forged_event"))
    event = json.loads(ended.children[0]["payload"])
    assert event["source"] == lane_of(the("z29_forged_event"))
    assert event["event_id"] == ended.children[0]["source_event_id"] != "mine"
    assert from_text(event["timestamp"]) >= from_text(ended.job["created_at"])


@pytest.mark.parametrize(
    ("variant", "mark"),
    [("many", "99000 more log lines dropped"), ("long", "more characters]"), ("bad_level", "hello")],
)
def test_what_a_plugin_logs_is_bounded_and_a_mark_says_what_is_missing(zoo: Enclosure, variant: str, mark: str) -> None:
    """Z32: too many lines, too long a line, a level nobody knows; its job is none the worse for it."""
    ended = zoo.show(the("z32_chatty_logs", variant))
    last = zoo.service.wait_for_log("job succeeded", job_id=ended.job["job_id"])
    own = [line for line in zoo.service.lines if line.get("job_id") == last["job_id"] and line["component"] == "plugin"]
    assert len(own) <= 1001
    assert sum(len(line["message"]) for line in own) <= 512 << 10
    assert mark in own[-1]["message"]


def test_what_a_plugin_says_is_one_line_in_the_log_whatever_it_looks_like(zoo: Enclosure) -> None:
    """Z33: colours, line breaks and lines that pose as the core's are kept as text."""
    forged = '\x1b[31mred\x1b[0m\r\n{"level":"ERROR","message":"forged"}\n'
    ended = zoo.show(the("z33_forged_log_lines"))
    zoo.service.wait_for_log("job succeeded", job_id=ended.job["job_id"])
    assert ended.job["result"]["result"] == forged
    assert ended.attempts[0]["stderr"] == forged
    said = [line for line in zoo.service.lines if "forged" in line["message"] and line["component"] == "plugin"]
    assert {line["message"] for line in said} == {forged}
    assert all("component" in line for line in zoo.service.lines)


@pytest.mark.parametrize("animal", [the("z35_one_byte_over", str(10 * MIB)), the("z36_endless_stdout")], ids=str)
def test_of_too_much_output_the_beginning_is_kept(zoo: Enclosure, animal: HostilePlugin) -> None:
    """Enough to see what it was, too little to fill the ledger; and it is ended at once, not at its deadline."""
    ended = zoo.show(animal)
    for attempt in ended.attempts:
        assert re.search(r"\[cut; \d+ bytes in all\]$", attempt["result"])
        assert 64 << 10 <= len(attempt["result"]) < 65 << 10
        assert attempt["duration_ms"] < 20_000


def test_of_a_loud_stderr_the_end_is_kept_with_a_mark(zoo: Enclosure) -> None:
    """Z37: 20 MB go by, 64 KiB stay."""
    (attempt,) = zoo.show(the("z37_loud_stderr")).attempts
    assert re.match(r"\[\d+ bytes cut\]\n", attempt["stderr"])
    assert attempt["stderr"].endswith("complaint\nlast words\n")
    assert len(attempt["stderr"]) < (64 << 10) + 100


def test_an_answer_before_the_deadline_of_a_plugin_that_never_exits_is_a_diagnosis(zoo: Enclosure) -> None:
    """Z45: it is shown, but it does not count."""
    ended = zoo.show(the("z45_answers_and_hangs"))
    assert [json.loads(one["result"])["result"] for one in ended.attempts] == ["done", "done"]
    assert ended.job["status"] == "dead"


def test_no_core_file_is_left_by_a_crash(zoo: Enclosure) -> None:
    """Z49: neither where plugins run nor where they live."""
    zoo.show(the("z49_kills_itself", "SIGSEGV"))
    zoo.show(the("z49_kills_itself", "SIGABRT"))
    assert [path for path in zoo.home.path.rglob("core*") if path.is_file()] == []


@pytest.mark.parametrize(
    "folder", ["z54_child_keeps_pipes", "z55_daemon_keeps_pipes", "z56_daemon_without_traces", "z57_fork_bomb"]
)
def test_left_behind_processes_are_killed_and_warned_about(zoo: Enclosure, folder: str) -> None:
    """The job succeeds, but whoever maintains the plugin should know."""
    job_id = zoo.show(the(folder)).job["job_id"]
    line = zoo.service.wait_for_log("left processes behind", job_id=job_id, level="warn")
    assert line["lost"] is False


def test_a_spy_sees_what_it_is_given_and_nothing_else(zoo: Enclosure) -> None:
    """Z61: the allowed environment, its three streams, a session of its own, and nothing of the core."""
    ended = zoo.show(the("z61_spy"))
    seen = json.loads(ended.job["result"]["result"])
    assert "CANARY" not in seen["environ"]
    assert seen["environ"]["DUCTILE_JOB_ID"] == ended.job["job_id"]
    assert seen["descriptors"] == [0, 1, 2]
    assert seen["session_is_own"]
    assert seen["core_limit"] == ["0", "0"]
    if os.getuid() != 0:  # root may look at everything
        assert (seen["parent_environ"], seen["parent_maps"]) == ("errno 13", "errno 13")


def test_a_job_that_ends_on_its_deadline_ends_once(zoo: Enclosure) -> None:
    """Z62: succeeded or timed out, never both, never neither."""
    job_ids = [zoo.service.post(name) for name in ON_THE_EDGE for _ in range(3)]
    for job_id in job_ids:
        ended = zoo.watch(job_id)
        outcome = (ended.job["status"], [one["status"] for one in ended.attempts])
        assert outcome in [("succeeded", ["succeeded"]), ("dead", ["timed_out"])]
    zoo.nothing_is_left_of(*job_ids)


def test_health_answers_while_every_core_burns(zoo: Enclosure) -> None:
    """Z63: a plugin can take all the processor time there is, and the service still answers."""
    job_id = zoo.let_out(the("z63_burns_cpu"))
    seconds = []
    while zoo.service.job(job_id)["status"] not in ("dead", "succeeded"):
        begun = time.monotonic()
        assert zoo.service.ask("GET", "/healthz")[0] == 200
        seconds.append(time.monotonic() - begun)
    # A quarter of a second where the machine is ours alone; here other tests burn it as well.
    assert statistics.median(seconds) < 1.0


# --- those that damage their own folder -------------------------------------------------------------------------------


def _twice(zoo: Enclosure, victim: str) -> tuple[Ended, Ended]:
    animal = the("z65_saws_off_its_branch", victim)
    first, second = zoo.show(animal), zoo.show(animal)
    zoo.nothing_is_left_of(first.job["job_id"], second.job["job_id"])
    assert first.job["status"] == "succeeded"
    return first, second


def test_a_plugin_that_removes_its_own_working_directory_runs_again(zoo: Enclosure) -> None:
    """Z65: the next process begins in the configuration directory like every other."""
    assert _twice(zoo, "cwd")[1].job["status"] == "succeeded"


def test_a_plugin_that_removed_its_manifest_is_refused_in_words(zoo: Enclosure) -> None:
    """Z65: without its manifest nobody can say what it is."""
    _, second = _twice(zoo, "manifest")
    assert second.job["status"] == "dead"
    assert re.search(r"cannot start: .*manifest\.yaml: does not exist", second.error)


def test_a_plugin_that_rewrote_itself_is_flagged(zoo: Enclosure) -> None:
    """Z65: what runs now is not what was loaded, and the log says so before it runs."""
    _, second = _twice(zoo, "entrypoint")
    warning = zoo.service.wait_for_log("changed after it was loaded", job_id=second.job["job_id"], level="warn")
    assert warning["component"] == "preflight"
    assert "found 'somebody else now" in second.error


def test_every_animal_of_the_zoo_has_its_place_in_these_tests() -> None:
    """66 of 66, each through the real service: here, and those on their own in the other files."""
    here = {animal.id for animal in SHOWN} | {"Z62", "Z65"}
    alone = {"Z60", "Z64"}
    assert here | alone == {f"Z{number:02}" for number in range(1, 67)}
    others = (Path(__file__).parent / "test_zoo_alone.py").read_text()
    assert all(identifier in others for identifier in alone)
