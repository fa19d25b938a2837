"""`pipeline run`, `job tree` and `pipeline visualize` with a running service."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_pipelines import add_sample_pipelines, steps
from tests.e2e.sample_plugins import BlockingPlugin
from tests.e2e.service import TOKEN, Home, Service, Start


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests that do not change it."""
    home = add_sample_pipelines(Home.make(tmp_path_factory.mktemp("pipeline-commands") / "ductile"))
    home.add("  - {name: with space & ümlaut, on: x, steps: [{id: only, uses: ok}]}\n")
    running = home.start()
    yield running
    running.kill()


def test_a_synchronous_pipeline_is_waited_for(service: Service) -> None:
    """Without flags the execution mode of the pipeline decides. The output is the response of the API."""
    run = ductile_json(service.home, "pipeline", "run", "chain", "--payload", '{"n": 1}')

    assert (run["status"], run["result"]["result"], steps(run["tree"])) == (
        "succeeded",
        "recorded",
        ["first succeeded", "last succeeded"],
    )


def test_an_asynchronous_pipeline_is_not_waited_for(service: Service) -> None:
    """The output has the id of the root job and the next command."""
    done = ductile(service.home, "pipeline", "run", "later")

    assert done.exit_code == 0
    first, next_line = done.stdout.splitlines()
    job_id = first.removeprefix("run ").removesuffix(": queued")
    assert next_line == f"  next: ductile job tree {job_id}"
    assert steps(ductile_json(service.home, "job", "tree", job_id, "--wait")) == ["only succeeded"]


@pytest.mark.parametrize("pipeline", ["later", "chain", "with space & ümlaut", "joined", "tolerant"])
def test_wait_gives_the_same_output_for_every_execution_mode(service: Service, pipeline: str) -> None:
    """`--wait` applies the same rules to the finished tree as the service."""
    run = ductile_json(service.home, "pipeline", "run", pipeline, "--wait")

    assert run["status"] == "succeeded"
    assert run["result"]["status"] == "ok"
    assert run["tree"] == service.ask("GET", f"/job/{run['job_id']}/tree")[1]


@pytest.mark.parametrize(("pipeline", "status"), [("fails", "failed"), ("dies", "dead")])
@pytest.mark.parametrize("flags", [(), ("--wait",)], ids=["own mode", "wait"])
def test_a_failed_run_exits_1_and_names_the_failed_step(
    service: Service, pipeline: str, status: str, flags: tuple[str, ...]
) -> None:
    """The step and its error are one line."""
    done = ductile(service.home, "pipeline", "run", pipeline, *flags)

    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f": {status}")
    assert lines[1].startswith("  bad: exit code 78" if pipeline == "fails" else "  one-attempt: attempts used up")


def test_async_overrides_a_synchronous_pipeline(service: Service) -> None:
    """`--async` returns the id at once."""
    assert ductile_json(service.home, "pipeline", "run", "chain", "--async")["status"] == "queued"


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
def test_an_invalid_pipeline_run_is_refused(service: Service, args: tuple[str, ...], code: int) -> None:
    """The exit code is 2 for an error in the command line and 1 for a refused request."""
    assert ductile(service.home, "pipeline", "run", *args).exit_code == code


def test_runs_and_trees_of_a_remote_service_need_a_token(service: Service) -> None:
    """With `--api-url` and without `--api-key` the exit code is 77."""
    remote = ("--api-url", service.url, "--api-key", TOKEN)

    run = ductile_json(service.home, "pipeline", "run", "later", "--wait", *remote)

    assert ductile_json(service.home, "job", "tree", run["job_id"], *remote) == run["tree"]
    assert ductile(service.home, "pipeline", "run", "later", "--api-url", service.url).exit_code == 77


def test_a_tree_is_printed_with_indentation(service: Service) -> None:
    """Every job is below its parent, with its plugin, its status and its condition."""
    run = ductile_json(service.home, "pipeline", "run", "bypassed", "--wait")

    first, switch = ductile(service.home, "job", "tree", run["job_id"]).stdout.splitlines()

    assert first.split()[:3] == ["first", "recorder.handle", "succeeded"]
    assert switch.split()[:4] == ["└", "maybe__switch", "core.switch.handle", "succeeded"]
    assert switch.endswith("if is false")


def test_a_tree_can_be_read_without_the_service(service: Service) -> None:
    """The tree from the ledger file equals the response of the API."""
    run = ductile_json(service.home, "pipeline", "run", "joined", "--wait")

    assert ductile_json(service.home, "job", "tree", run["job_id"]) == run["tree"]


@pytest.mark.parametrize("flags", [(), ("--wait",)], ids=["ledger", "service"])
def test_an_unknown_tree_exits_1(service: Service, flags: tuple[str, ...]) -> None:
    """This applies to the ledger and to the service."""
    done = ductile(service.home, "job", "tree", "00000000-0000-4000-8000-000000000000", *flags)

    assert (done.exit_code, "no such job" in done.stderr) == (1, True)


def test_a_drawing_of_a_run_has_statuses_and_durations(service: Service) -> None:
    """The name of the pipeline is optional. Every job of the run can be named."""
    run = ductile_json(service.home, "pipeline", "run", "joined", "--wait")

    drawing = ductile(service.home, "pipeline", "visualize", "--job", run["tree"][1]["job_id"]).stdout

    assert drawing.startswith('flowchart TD\n  start(["joined<br/>on joined.requested"])')
    assert '"left<br/>ok<br/>succeeded, ' in drawing
    assert "  class n0,n1,n2,n3 succeeded\n" in drawing
    named = ductile_json(service.home, "pipeline", "visualize", "joined", "--job", run["job_id"])
    assert named["steps"].keys() == {"left", "right", "fan__join", "last"}


def test_drawing_a_run_of_another_pipeline_is_refused(service: Service) -> None:
    """The hint names the pipeline of the run."""
    run = ductile_json(service.home, "pipeline", "run", "later", "--wait")

    done = ductile(service.home, "pipeline", "visualize", "chain", "--job", run["job_id"])

    assert (done.exit_code, "Pipelines in the tree: later" in done.stderr) == (1, True)


def test_inspecting_a_job_shows_its_position_in_the_run(service: Service) -> None:
    """Pipeline, step, hops, and the baggage of every step before it."""
    run = ductile_json(service.home, "pipeline", "run", "keeps", "--payload", '{"blob": "b"}', "--wait")

    job = ductile_json(service.home, "job", "inspect", run["job_id"])

    assert (job["pipeline"], job["step_id"], job["hops"]) == ("keeps", "only", 2)
    assert [step["step_id"] for step in job["steps"]] == [None, "only"]
    assert {name: value for name, value in job["steps"][1]["baggage"].items() if name != "ductile"} == {
        "one": "b",
        "two": "b",
    }


def test_wait_ends_after_its_timeout(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """The exit code is 1 and the run continues. `job tree --wait` waits for it again."""
    home.add("pipelines:\n  - {name: blocked, on: x, steps: [{id: wait, uses: blocking}]}\n")
    start()

    done = ductile(home, "pipeline", "run", "blocked", "--wait", "--timeout", "1ms", "--json")

    run = json.loads(done.stdout)
    assert (done.exit_code, run["status"]) == (1, "running")
    blocking.wait_until_started()
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(ductile_json, home, "job", "tree", run["job_id"], "--wait")
        blocking.release()
        assert steps(waiting.result()) == ["wait succeeded"]


def test_a_run_without_a_service_exits_69(home: Home) -> None:
    """The error names the command that starts the service."""
    add_sample_pipelines(home)

    done = ductile(home, "pipeline", "run", "later")

    assert (done.exit_code, "ductile system start" in done.stderr) == (69, True)
