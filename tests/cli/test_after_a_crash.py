"""Jobs that were running when the service died: commands report them as orphaned."""

from pathlib import Path
from typing import Any

import pytest

from ductile.core.instance.lock import instance_lock
from ductile.ledger.admin import job_actions
from ductile.ledger.storage.connections import transaction
from tests.cli.conftest import Run
from tests.cli.history import past_of


def leave_running(home: Path, *, is_cancelled: bool = False, **values: Any) -> str:
    """Leave a job in state `running` in a ledger without a service, and return its id."""
    with past_of(home) as past:
        past.enqueue()
        job = past.claim_one()
        with transaction(past.db):
            if is_cancelled:
                job_actions.cancel(past.db, job.id, "not needed", now=past.now)
            for name, value in values.items():
                past.db.execute(f"UPDATE job_queue SET {name} = ?", (value,))
    return job.id


DIED = "The service died while the job was running."


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, f"{DIED} It runs again after the next start."),
        ({"recoveries": 1}, f"{DIED} It runs again 30s after the next start."),
        ({"max_attempts": 1}, f"{DIED} That was its last attempt. The next start ends it."),
        ({"is_cancelled": True}, f"{DIED} It was cancelled (not needed). The next start ends it."),
    ],
    ids=["first", "again", "used up", "cancelled"],
)
def test_why_names_what_the_next_start_does_with_the_job(run: Run, demo: Path, how: dict[str, Any], words: str) -> None:
    """It uses the rules of the recovery."""
    job_id = leave_running(demo, **how)

    view = run("job", "why", job_id, "--config", demo, "--json").json
    assert (view["reasons"][0]["code"], view["words"]) == ("service_died", words)
    assert view["next"] == ["ductile system start"]


def test_a_job_of_a_running_service_is_running(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)
    with past_of(demo) as past, instance_lock(demo / "data", demo / "data" / "state.db", now=past.now):
        view = run("job", "why", job_id, "--config", demo, "--json").json
        counts = run("queue", "--config", demo, "--json").json

    assert (view["reasons"][0]["code"], view["next"]) == ("running", [f"ductile job tail {job_id}"])
    assert (counts["running"], counts["orphaned"]) == (1, 0)


def test_inspect_reports_an_orphaned_job(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)

    assert "It runs again after the next start." in run("job", "inspect", job_id, "--config", demo).stdout
    assert run("job", "inspect", job_id, "--config", demo, "--json").json["orphaned"] is True


def test_queue_status_counts_orphaned_jobs_separately(run: Run, demo: Path) -> None:
    leave_running(demo)
    shown = run("queue", "--config", demo, "--json").json
    text = run("queue", "--config", demo).stdout

    assert (shown["depth"], shown["running"], shown["orphaned"], shown["plugins"][0]["running"]) == (1, 0, 1, 0)
    assert text.startswith("0 queued, 0 running, 0 dead; the service is not running\n")
    assert "1 was running when the service died" in text


def test_system_status_counts_orphaned_jobs_separately(run: Run, demo: Path) -> None:
    leave_running(demo)
    report = run("system", "status", "--no-health", "--config", demo, "--json").json
    (ledger,) = [check for check in report["checks"] if check["name"] == "state_db"]

    assert (report["running"], report["queue"]["running"], report["queue"]["orphaned"]) == (False, 0, 1)
    assert ledger["detail"] == "0 queued, 0 running, 0 dead; 1 was running when the service died"


def test_lists_and_trees_mark_orphaned_jobs(run: Run, demo: Path) -> None:
    """`status` stays that of the ledger, which filters use; `orphaned` is added."""
    job_id = leave_running(demo)
    (listed,) = run("job", "list", "--status", "running", "--config", demo, "--json").json["jobs"]
    (node,) = run("job", "tree", job_id, "--config", demo, "--json").json

    assert [(one["status"], one["orphaned"]) for one in (listed, node)] == [("running", True)] * 2
    for text in (run("job", "list", "--config", demo).stdout, run("job", "tree", job_id, "--config", demo).stdout):
        assert "orphaned" in text
        assert DIED in text
        assert "running  " not in text


def test_lists_and_trees_do_not_mark_jobs_of_a_running_service(run: Run, demo: Path) -> None:
    job_id = leave_running(demo)
    with past_of(demo) as past, instance_lock(demo / "data", demo / "data" / "state.db", now=past.now):
        (listed,) = run("job", "list", "--config", demo, "--json").json["jobs"]
        (node,) = run("job", "tree", job_id, "--config", demo, "--json").json

    assert "orphaned" not in listed | node
    assert listed["status"] == node["status"] == "running"


def test_a_run_with_an_orphaned_job_is_not_reported_as_running(run: Run, demo: Path) -> None:
    """The first job succeeded and the second is orphaned. Both explanations name the next command."""
    with past_of(demo) as past:
        past.enqueue(plugin="first", pipeline="greet")
        root = past.claim_one("first")
        past.end(root, children=(past.new(pipeline="greet", step_id="one", command="handle"),))
        child = past.claim_one()
    view = run("job", "why", root.id, "--config", demo, "--json").json
    (led_to,) = run("job", "inspect", root.id, "--config", demo, "--json").json["children"]

    assert (
        view["reasons"][-1]["words"]
        == "The run is open: 1 of 2 jobs has not ended. It continues when the service runs again."
    )
    assert view["next"] == ["ductile system start", f"ductile job wait {root.id} --tree"]
    assert (led_to["job_id"], led_to["orphaned"]) == (child.id, True)
    assert f"child {child.id}  echo.handle  orphaned" in run("job", "inspect", root.id, "--config", demo).stdout
