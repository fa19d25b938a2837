"""`ductile pipeline run`, `job tree` and pictures of runs, against a running service."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.furnished import Door, furnish, steps
from tests.e2e.service import TOKEN, Home, Service

Start = Callable[..., Service]


def cli(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(home: Home, *args: str) -> Any:
    """The JSON that a command prints; it must succeed."""
    done = cli(home, *args, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for everything that leaves it as it was."""
    home = furnish(Home.make(tmp_path_factory.mktemp("commands") / "ductile"))
    home.add("  - {name: with space & ümlaut, on: x, steps: [{id: only, uses: ok}]}\n")
    running = home.start()
    yield running
    running.kill()


def test_a_synchronous_pipeline_is_waited_for(service: Service) -> None:
    """Without flags the pipeline's own mode decides; the answer is that of the API."""
    run = shown(service.home, "pipeline", "run", "chain", "--payload", '{"n": 1}')

    assert (run["status"], run["result"]["result"], steps(run["tree"])) == (
        "succeeded",
        "asked",
        ["first succeeded", "last succeeded"],
    )


def test_an_asynchronous_one_is_not(service: Service) -> None:
    """The id of the root job, and what to do next."""
    done = cli(service.home, "pipeline", "run", "later")

    assert done.returncode == 0
    first, following = done.stdout.splitlines()
    job_id = first.removeprefix("run ").removesuffix(": queued")
    assert following == f"  next: ductile job tree {job_id}"
    assert steps(shown(service.home, "job", "tree", job_id, "--wait")) == ["only succeeded"]


@pytest.mark.parametrize("pipeline", ["later", "chain", "with space & ümlaut", "joined", "tolerant"])
def test_waiting_gives_the_same_answer_whatever_the_mode(service: Service, pipeline: str) -> None:
    """--wait follows the tree to its end, by the same rules as the service."""
    run = shown(service.home, "pipeline", "run", pipeline, "--wait")

    assert run["status"] == "succeeded"
    assert run["result"]["status"] == "ok"
    assert run["tree"] == service.ask("GET", f"/job/{run['job_id']}/tree")[1]


@pytest.mark.parametrize(("pipeline", "status"), [("fails", "failed"), ("dies", "dead")])
@pytest.mark.parametrize("flags", [(), ("--wait",)], ids=["own mode", "wait"])
def test_a_failed_run_exits_1_and_names_the_step(
    service: Service, pipeline: str, status: str, flags: tuple[str, ...]
) -> None:
    """The step and its error, in one line."""
    done = cli(service.home, "pipeline", "run", pipeline, *flags)

    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f": {status}")
    assert lines[1].startswith("  bad: exit code 78" if pipeline == "fails" else "  worn: attempts used up")


def test_async_never_waits(service: Service) -> None:
    """--async on a synchronous pipeline gives the id at once."""
    assert shown(service.home, "pipeline", "run", "chain", "--async")["status"] == "queued"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("nope",), 1),
        (("chain", "--wait", "--async"), 2),
        (("chain", "--payload", "{"), 2),
        (("chain", "--wait", "--timeout", "soon"), 2),
        (("idle",), 1),
    ],
)
def test_what_cannot_be_run_is_told(service: Service, args: tuple[str, ...], code: int) -> None:
    """The exit code says whether the command line or the request was wrong."""
    assert cli(service.home, "pipeline", "run", *args).returncode == code


def test_another_service_is_asked_with_a_token(service: Service) -> None:
    """--api-url and --api-key work for runs and trees; without the key it is not allowed."""
    away = ("--api-url", service.url, "--api-key", TOKEN)

    run = shown(service.home, "pipeline", "run", "later", "--wait", *away)

    assert shown(service.home, "job", "tree", run["job_id"], *away) == run["tree"]
    assert cli(service.home, "pipeline", "run", "later", "--api-url", service.url).returncode == 77


def test_a_tree_is_printed_as_a_tree(service: Service) -> None:
    """Each job below the one that led to it, with what it was, its end and its time."""
    run = shown(service.home, "pipeline", "run", "bypassed", "--wait")

    first, switch = cli(service.home, "job", "tree", run["job_id"]).stdout.splitlines()

    assert first.split()[:3] == ["first", "asks.handle", "succeeded"]
    assert switch.split()[:4] == ["└", "maybe__switch", "core.switch.handle", "succeeded"]
    assert switch.endswith("if is false")


def test_a_tree_can_be_read_without_the_service(service: Service) -> None:
    """From the ledger's file it is the same as over HTTP."""
    run = shown(service.home, "pipeline", "run", "joined", "--wait")

    assert shown(service.home, "job", "tree", run["job_id"]) == run["tree"]


@pytest.mark.parametrize("flags", [(), ("--wait",)], ids=["ledger", "service"])
def test_an_unknown_tree_exits_1(service: Service, flags: tuple[str, ...]) -> None:
    """Nothing with that id, wherever it is looked for."""
    done = cli(service.home, "job", "tree", "00000000-0000-4000-8000-000000000000", *flags)

    assert (done.returncode, "does not exist" in done.stderr) == (1, True)


def test_the_picture_of_a_run_has_states_and_durations(service: Service) -> None:
    """NAME may be left out; any job of the run will do."""
    run = shown(service.home, "pipeline", "run", "joined", "--wait")

    picture = cli(service.home, "pipeline", "visualize", "--job", run["tree"][1]["job_id"]).stdout

    assert picture.startswith('flowchart TD\n  start(["joined<br/>on joined.wanted"])')
    assert '"left<br/>ok<br/>succeeded, ' in picture
    assert "  class n0,n1,n2,n3 succeeded\n" in picture
    named = shown(service.home, "pipeline", "visualize", "joined", "--job", run["job_id"])
    assert named["steps"].keys() == {"left", "right", "fan__join", "last"}


def test_a_picture_of_another_pipeline_than_the_runs_is_refused(service: Service) -> None:
    """The hint says of which pipelines there are runs."""
    run = shown(service.home, "pipeline", "run", "later", "--wait")

    done = cli(service.home, "pipeline", "visualize", "chain", "--job", run["job_id"])

    assert (done.returncode, "Pipelines in the tree: later" in done.stderr) == (1, True)


def test_inspecting_a_job_of_a_run_shows_where_in_the_run_it_is(service: Service) -> None:
    """Pipeline, step, and the baggage of every hop on the way."""
    run = shown(service.home, "pipeline", "run", "keeps", "--payload", '{"blob": "b"}', "--wait")

    job = shown(service.home, "job", "inspect", run["job_id"])

    assert (job["pipeline"], job["step_id"], job["hops"]) == ("keeps", "only", 2)
    assert [step["step_id"] for step in job["steps"]] == [None, "only"]
    assert {name: value for name, value in job["steps"][1]["baggage"].items() if name != "ductile"} == {
        "one": "b",
        "two": "b",
    }


def test_waiting_ends_when_patience_does(home: Home, start: Start) -> None:
    """Exit 1 while the run goes on; `job tree --wait` finds it again."""
    door = Door.make(home)
    home.add("pipelines:\n  - {name: slow, on: x, steps: [{id: wait, uses: door}]}\n")
    start()

    done = cli(home, "pipeline", "run", "slow", "--wait", "--timeout", "1ms", "--json")

    run = json.loads(done.stdout)
    assert (done.returncode, run["status"]) == (1, "running")
    door.reached()
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(shown, home, "job", "tree", run["job_id"], "--wait")
        door.let_through()
        assert steps(waiting.result()) == ["wait succeeded"]
    door.close()


def test_without_a_service_a_run_cannot_be_asked_for(home: Home) -> None:
    """Exit 69 with what to do."""
    furnish(home)

    done = cli(home, "pipeline", "run", "later")

    assert (done.returncode, "ductile system start" in done.stderr) == (69, True)
