"""`job why` and `job diagnose` for the first job of a run, read from the ledger without a service."""

from pathlib import Path
from typing import Any

import pytest

from ductile.core.instance.lock import instance_lock
from ductile.core.model import Dead, Job, Succeeded, cancelled
from ductile.ledger.storage.connections import transaction
from tests.cli.conftest import Run
from tests.cli.history import Past, past_of


def begin(past: Past, *steps: str, **more: Any) -> Job:
    """Record the first job of a run, which succeeded and led to these steps."""
    past.enqueue(plugin="first", pipeline="greet")
    root = past.claim_one("first")
    children = [past.new(pipeline="greet", step_id=step, command="handle", **more) for step in steps]
    past.end(root, children=tuple(children))
    past.advance(seconds=1)
    return root


def fail(past: Past, error: str = "no luck") -> Job:
    job = past.claim_one()
    past.end(job, Dead(error, past.evidence(exit_code=1)))
    past.advance(seconds=1)
    return job


@pytest.fixture
def failed(demo: Path) -> tuple[Path, str, list[str]]:
    """Make a ledger with a failed run. Return its home, its first job, and the jobs that failed it."""
    with past_of(demo) as past:
        root = begin(past, "one", "two", "three")
        ends = [fail(past, "the disk is full").id, fail(past, "the port is closed").id]
        past.end(past.claim_one())
    return demo, root.id, ends


def test_why_of_the_first_job_names_the_failed_jobs_of_its_run(run: Run, failed: tuple[Path, str, list[str]]) -> None:
    """The first job itself succeeded."""
    home, root, ends = failed
    view = run("job", "why", root, "--config", home, "--json").json

    assert (view["status"], view["reasons"][0]["code"]) == ("succeeded", "run_failed")
    assert view["words"] == "The run failed: step one (echo.handle) ended dead: the disk is full; 2 of 4 jobs failed"
    assert (view["run"]["status"], view["run"]["jobs"], view["run"]["failed"]) == ("failed", 4, 2)
    assert [one["job_id"] for one in view["run"]["failures"]] == ends
    assert view["run"]["failures"][0] | {"step_id": "one", "status": "dead"} == view["run"]["failures"][0]
    assert view["next"] == [f"ductile job why {ends[0]}", f"ductile job tree {root}"]


def test_a_run_that_an_operator_ended_names_that(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        root = begin(past, "one")
        past.end(past.claim_one(), cancelled("not needed"))
    words = run("job", "why", root.id, "--config", demo, "--json").json["words"]
    ended = "step one (echo.handle) was ended by an operator: cancelled: not needed"
    assert words == f"The run failed: {ended}; 1 of 2 jobs failed"


def test_the_first_lines_name_the_failed_jobs(run: Run, failed: tuple[Path, str, list[str]]) -> None:
    home, root, ends = failed
    shown = run("job", "why", root, "--config", home).stdout.splitlines()

    assert shown[0].endswith("first.poll  SUCCEEDED, its run FAILED")
    assert shown[1].startswith("  The run failed: step one")
    assert f"  next: ductile job why {ends[0]}" in shown


def test_a_diagnosis_of_the_first_job_names_the_failed_job(run: Run, failed: tuple[Path, str, list[str]]) -> None:
    home, root, ends = failed
    bundle = run("job", "diagnose", root, "--config", home, "--json").json

    assert bundle["why"].startswith("The run failed: step one")
    assert bundle["next"][0] == f"ductile job diagnose {ends[0]}"
    assert (bundle["run"]["status"], bundle["run"]["failed"]) == ("failed", 2)
    assert [one["job_id"] for one in bundle["failures"]] == ends
    assert bundle["since_last_success"] is None, "the job itself is no success before it"
    assert "its run FAILED" in run("job", "diagnose", root, "--config", home).stdout


@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "text"])
def test_a_diagnosis_of_a_run_with_many_failures_is_limited(run: Run, demo: Path, form: tuple[str, ...]) -> None:
    with past_of(demo) as past:
        root = begin(past, *(f"step-{number}" for number in range(20)))
        for _ in range(20):
            fail(past, "the disk is full " * 200)

    answer = run("job", "diagnose", root.id, "--config", demo, "--max-bytes", "4000", *form)
    assert len(answer.stdout.encode()) <= 4000
    assert "its run FAILED" in answer.stdout or answer.json["run"]["failed"] == 20


def test_a_job_is_never_its_own_last_success(run: Run, demo: Path) -> None:
    """A control job starts and ends at the same time."""
    with past_of(demo) as past:
        past.enqueue(plugin="first")
        past.end(past.claim_one("first"), Succeeded(past.evidence(result="{}")))
        (job_id,) = past.db.execute("SELECT id FROM job_queue").fetchone()
        with transaction(past.db):
            past.db.execute("UPDATE job_queue SET started_at = NULL")

    assert run("job", "diagnose", job_id, "--config", demo, "--json").json["since_last_success"] is None


def test_a_failed_join_is_listed_after_the_failure_that_caused_it(run: Run, demo: Path) -> None:
    """This includes jobs that ended at the same time."""
    with past_of(demo) as past:
        root = past.fan_out(past.join("J"), past.new(join_id="J"))
        member = past.claim_one()
        past.end(member, Dead("no luck", past.evidence(exit_code=1)))
        past.resolve_joins()

    failures = run("job", "why", root.id, "--config", demo, "--json").json["run"]["failures"]
    assert [one["job_id"] for one in failures] == [member.id, "J"]


def test_a_tolerated_failure_does_not_fail_the_run(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        root = begin(past, "one", tolerated=True)
        fail(past)

    view = run("job", "why", root.id, "--config", demo, "--json").json
    assert view["run"]["status"] == "succeeded"
    assert [reason["code"] for reason in view["reasons"]] == ["answered_ok", "run_succeeded"]


def test_why_of_the_first_job_reports_that_its_run_continues(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        root = begin(past, "one", "two")
        fail(past)
        with instance_lock(demo / "data", demo / "data" / "state.db", now=past.now):
            view = run("job", "why", root.id, "--config", demo, "--json").json

    assert (view["run"]["status"], view["run"]["open"], view["run"]["failed"]) == ("open", 1, 1)
    assert view["reasons"][1]["words"] == "The run is open: 1 of 3 jobs has not ended, 1 failed."
    assert view["next"] == [f"ductile job wait {root.id} --tree"]


def test_a_run_that_is_only_in_the_job_log_is_explained(run: Run, failed: tuple[Path, str, list[str]]) -> None:
    home, root, ends = failed
    with past_of(home) as past, transaction(past.db):
        past.db.execute("PRAGMA defer_foreign_keys = ON")
        past.db.execute("DELETE FROM job_queue")

    view = run("job", "why", root, "--config", home, "--json").json
    assert (view["run"]["status"], view["next"][0]) == ("failed", f"ductile job why {ends[0]}")


@pytest.mark.parametrize("member", [0, 1])
def test_a_job_without_follow_up_jobs_has_no_run(run: Run, failed: tuple[Path, str, list[str]], member: int) -> None:
    home, _, ends = failed
    view = run("job", "why", ends[member], "--config", home, "--json").json
    assert view["run"] is None
    assert view["reasons"][0]["code"] != "run_failed"
