"""What commands say of jobs that were running when the service died: nobody runs them, and what becomes of them."""

from pathlib import Path
from typing import Any

import pytest

from ductile.core.instance.lock import instance_lock
from ductile.ledger.admin import operate
from ductile.ledger.storage.connections import transaction
from tests.cli.conftest import Run
from tests.cli.history import past_of


def leave_running(home: Path, *, is_cancelled: bool = False, **values: Any) -> str:
    """The id of a job that says `running` in a ledger that nobody has."""
    with past_of(home) as past:
        past.enqueue()
        job = past.claim_one()
        with transaction(past.db):
            if is_cancelled:
                operate.cancel(past.db, job.id, "not needed", now=past.now)
            for name, value in values.items():
                past.db.execute(f"UPDATE job_queue SET {name} = ?", (value,))
    return job.id


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "it was running when the service died; it runs again after the next start"),
        ({"recoveries": 1}, "it was running when the service died; it runs again 30s after the next start"),
        ({"max_attempts": 1}, "it was running when the service died, in its last attempt; the next start gives it up"),
        ({"is_cancelled": True}, "it was running when the service died; cancelled: not needed; the next start ends it"),
    ],
    ids=["first", "again", "used up", "cancelled"],
)
def test_why_says_what_the_next_start_does_with_it(run: Run, demo: Path, how: dict[str, Any], words: str) -> None:
    """By the rules of the recovery itself."""
    job_id = leave_running(demo, **how)

    view = run("job", "why", job_id, "--config", demo, "--json").json
    assert (view["reasons"][0]["code"], view["words"]) == ("service_died", words)
    assert view["next"] == ["ductile system start"]


def test_a_job_of_a_service_that_is_there_runs(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)
    with past_of(demo) as past, instance_lock(demo / "data", demo / "data" / "state.db", now=past.now):
        view = run("job", "why", job_id, "--config", demo, "--json").json
        counts = run("queue", "--config", demo, "--json").json

    assert (view["reasons"][0]["code"], view["next"]) == ("running", [f"ductile job tail {job_id}"])
    assert (counts["running"], counts["orphaned"]) == (1, 0)


def test_inspect_does_not_say_that_it_runs(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)

    assert "it runs again after the next start" in run("job", "inspect", job_id, "--config", demo).stdout
    assert run("job", "inspect", job_id, "--config", demo, "--json").json["orphaned"] is True


def test_the_queue_does_not_count_it_among_what_runs(run: Run, demo: Path) -> None:
    leave_running(demo)
    shown = run("queue", "--config", demo, "--json").json
    told = run("queue", "--config", demo).stdout

    assert (shown["depth"], shown["running"], shown["orphaned"], shown["plugins"][0]["running"]) == (1, 0, 1, 0)
    assert told.startswith("0 queued, 0 running, 0 dead; the service is not running\n")
    assert "1 was running when the service died" in told


def test_the_status_does_not_count_it_among_what_runs(run: Run, demo: Path) -> None:
    leave_running(demo)
    report = run("system", "status", "--no-health", "--config", demo, "--json").json
    (ledger,) = [check for check in report["checks"] if check["name"] == "state_db"]

    assert (report["running"], report["queue"]["running"], report["queue"]["orphaned"]) == (False, 0, 1)
    assert ledger["detail"] == "0 queued, 0 running, 0 dead; 1 was running when the service died"


def test_lists_and_trees_do_not_say_that_it_runs(run: Run, demo: Path) -> None:
    """`status` is what the ledger has and what filters mean; beside it stands that nobody runs the job."""
    job_id = leave_running(demo)
    (listed,) = run("job", "list", "--status", "running", "--config", demo, "--json").json["jobs"]
    (node,) = run("job", "tree", job_id, "--config", demo, "--json").json

    assert [(one["status"], one["orphaned"]) for one in (listed, node)] == [("running", True)] * 2
    for told in (run("job", "list", "--config", demo).stdout, run("job", "tree", job_id, "--config", demo).stdout):
        assert "orphaned" in told
        assert "it was running when the service died" in told
        assert "running  " not in told


def test_lists_and_trees_say_that_it_runs_while_the_service_is_there(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)
    with past_of(demo) as past, instance_lock(demo / "data", demo / "data" / "state.db", now=past.now):
        (listed,) = run("job", "list", "--config", demo, "--json").json["jobs"]
        (node,) = run("job", "tree", job_id, "--config", demo, "--json").json

    assert "orphaned" not in listed | node
    assert listed["status"] == node["status"] == "running"


def test_a_run_does_not_go_on_without_a_service(run: Run, demo: Path) -> None:
    """The first job succeeded, the second was running: what tells of both names what is to be done."""
    with past_of(demo) as past:
        past.enqueue(plugin="first", pipeline="greet")
        root = past.claim_one("first")
        past.end(root, children=(past.new(pipeline="greet", step_id="one", command="handle"),))
        child = past.claim_one()
    view = run("job", "why", root.id, "--config", demo, "--json").json
    (led_to,) = run("job", "inspect", root.id, "--config", demo, "--json").json["children"]

    assert view["reasons"][-1]["words"] == "its run goes on when the service runs again: 1 of 2 jobs is not over"
    assert view["next"] == ["ductile system start", f"ductile job wait {root.id} --tree"]
    assert (led_to["job_id"], led_to["orphaned"]) == (child.id, True)
    assert f"led to {child.id}  echo.handle  orphaned" in run("job", "inspect", root.id, "--config", demo).stdout
