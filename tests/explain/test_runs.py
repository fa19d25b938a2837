"""Runs from a real ledger: which are listed, and one as a timeline and a graph."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.clock import to_text
from ductile.core.errors import NotFound
from ductile.core.model import Dead, Failed, Job, JobStatus, OutcomeCode, Prefinished, Retried, cancelled
from ductile.explain.runs.listing import run_page
from ductile.explain.runs.timeline import run_timeline
from ductile.ledger.reports.pagination import ListFilter
from ductile.ledger.reports.runs import stored_runs
from tests.ledger.conftest import LedgerDriver, db, ledger, path

__all__ = ["db", "ledger", "path"]


def listed(ledger: LedgerDriver, path: Path, **wanted: Any) -> list[Any]:
    return run_page(ledger.db, path, ListFilter(**wanted))["runs"]


def edges(ledger: LedgerDriver, path: Path, job_id: str) -> set[tuple[str, str, str]]:
    return {(edge["source"], edge["target"], edge["kind"]) for edge in run_timeline(ledger.db, path, job_id)["edges"]}


def end_all(ledger: LedgerDriver, plugin: str) -> None:
    for job in ledger.claim(**{plugin: 100}).jobs:
        ledger.end(job)


def test_a_run_is_listed_once_with_the_states_of_its_steps(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(*(ledger.new(plugin="work", pipeline="p", step_id="each", child_key=str(n)) for n in (1, 2)))
    ledger.end(ledger.claim_one("work"), Failed("no luck"))

    (run,) = listed(ledger, path)
    assert (run["run_id"], run["status"], run["jobs"], run["open"]) == (root.id, "open", 3, 1)
    assert [(step["plugin"], step["status"], step["jobs"]) for step in run["steps"]] == [
        ("root", "succeeded", 1),
        ("work", "queued", 2),
    ]


def test_a_step_that_an_operator_ended_has_the_code_of_that(ledger: LedgerDriver, path: Path) -> None:
    """Only if no other job of the step is dead for another reason."""
    ledger.fan_out(*(ledger.new(plugin="work", pipeline="p", step_id="each", child_key=str(n)) for n in (1, 2)))
    work = ledger.claim(work=2).jobs
    ledger.end(work[0], cancelled("by operator"))
    ledger.end(work[1], cancelled("by operator"))
    ledger.fan_out(*(ledger.new(plugin="work", pipeline="p", step_id="each", child_key=str(n)) for n in (1, 2)))
    mixed = ledger.claim(work=2).jobs
    ledger.end(mixed[0], cancelled("by operator"))
    ledger.end(mixed[1], Dead("no luck", code=OutcomeCode.EXIT_78))
    codes = [[step.get("outcome_code") for step in run["steps"]] for run in listed(ledger, path)]
    assert [found[1:] for found in codes] == [[None], ["cancelled"]]


def test_runs_are_filtered_by_their_state_and_by_the_pipelines_of_their_steps(ledger: LedgerDriver, path: Path) -> None:
    """The state of a run is that of its tree: its root may have succeeded long before."""
    failed = ledger.fan_out(ledger.new(plugin="bad", pipeline="p", step_id="s"))
    ledger.end(ledger.claim_one("bad"), Failed("no"))
    good = ledger.fan_out(ledger.new(plugin="good", pipeline="q", step_id="s"))
    end_all(ledger, "good")
    still_open = ledger.fan_out(ledger.new(plugin="later", pipeline="p", step_id="s"))

    def found(**wanted: Any) -> list[str]:
        return [run["run_id"] for run in listed(ledger, path, **wanted)]

    assert found() == [still_open.id, good.id, failed.id]
    assert (found(status="failed"), found(status="succeeded"), found(status="open")) == (
        [failed.id],
        [good.id],
        [still_open.id],
    )
    assert (found(pipeline="p"), found(pipeline="p", status="failed")) == ([still_open.id, failed.id], [failed.id])
    assert found(plugin="bad") == []


def test_pages_of_runs_have_every_run_once(ledger: LedgerDriver, path: Path) -> None:
    roots = [ledger.fan_out(ledger.new(plugin="next")).id for _ in range(5)]

    first = run_page(ledger.db, path, ListFilter(), limit=3)
    found = stored_runs.list_runs(ledger.db, before=stored_runs.list_runs(ledger.db, limit=3).next_before or 0, limit=3)

    assert [run["run_id"] for run in first["runs"]] == roots[:1:-1]
    assert [run.root.id for run in found.items] == roots[1::-1]


MEMBERS = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 6000)
    INSERT INTO job_queue (id, plugin, command, status, submitted_by, created_at, completed_at, asked_at, root_job_id)
    SELECT 'member-' || n, 'work', 'poll', 'succeeded', 'test', created_at, created_at, created_at, id
      FROM number, job_queue WHERE id = ?
"""


def test_a_run_with_many_jobs_hides_no_older_run(ledger: LedgerDriver, path: Path) -> None:
    """A page reads a bounded number of rows, and the jobs of a run are not counted."""
    older, newer = ledger.enqueue().job_id, ledger.enqueue().job_id
    ledger.db.execute(MEMBERS, (newer,))

    assert [run["run_id"] for run in listed(ledger, path)] == [newer, older]
    assert [run["run_id"] for run in listed(ledger, path, status="open")] == [newer, older]


def test_the_times_of_a_job_are_those_of_all_its_attempts(ledger: LedgerDriver, path: Path) -> None:
    """The start of a job is that of its last attempt, so an earlier attempt would look like a wait."""
    created, job_id = ledger.now, ledger.enqueue().job_id
    first_start = ledger.advance(seconds=2)
    job = ledger.claim_one()
    first_end = ledger.advance(seconds=3)
    evidence = ledger.evidence(started_at=first_start, duration=timedelta(seconds=3), exit_code=1)
    ledger.end(job, Retried("no", timedelta(0), evidence))
    second_start = ledger.advance(seconds=4)
    ledger.claim_one()

    (shown,) = run_timeline(ledger.db, path, job_id)["timeline"]
    moments = [to_text(at) for at in (created, first_start, first_end, second_start)]
    assert [(span["kind"], span["at"], span.get("to")) for span in shown["spans"]] == [
        ("waiting", moments[0], moments[1]),
        ("running", moments[1], moments[2]),
        ("retry_wait", moments[2], moments[3]),
        ("running", moments[3], None),
    ]
    assert (shown["spans"][1]["status"], shown["spans"][1]["exit_code"]) == ("failed", 1)


def test_a_wait_for_a_retry_has_the_time_of_the_next_attempt(ledger: LedgerDriver, path: Path) -> None:
    job_id = ledger.enqueue().job_id
    ledger.end(ledger.claim_one(), Retried("no", timedelta(minutes=5)))

    (shown,) = run_timeline(ledger.db, path, job_id)["timeline"]
    assert (shown["spans"][-1]["kind"], "to" in shown["spans"][-1]) == ("retry_wait", False)
    assert shown["spans"][-1]["until"] == to_text(ledger.now + timedelta(minutes=5))


def branches(ledger: LedgerDriver) -> Job:
    """Return the root of a run with a join of two branches. The second branch has two steps with a switch between."""
    root = ledger.fan_out(
        ledger.join(child_key="j"),
        ledger.new(plugin="left", id="L", join_id="J", child_key="l"),
        ledger.new(plugin="right", id="R", join_id="J", child_key="r"),
    )
    ledger.end(
        ledger.claim_one("right"),
        children=(ledger.new(plugin="switch", id="S", child_key="s"),),
    )
    ledger.end(ledger.claim_one("switch"), children=(ledger.new(plugin="last", id="T", join_id="J", child_key="t"),))
    return root


def test_a_join_follows_from_the_last_jobs_of_its_branches(ledger: LedgerDriver, path: Path) -> None:
    """Not from its parent, the job before the split, and not from earlier jobs of a branch."""
    root = branches(ledger)

    assert edges(ledger, path, root.id) == {
        (root.id, "L", "follow_up"),
        (root.id, "R", "follow_up"),
        ("R", "S", "follow_up"),
        ("S", "T", "follow_up"),
        ("L", "J", "join"),
        ("T", "J", "join"),
    }


def test_a_join_without_members_follows_from_its_parent(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(ledger.join())
    assert edges(ledger, path, root.id) == {(root.id, "J", "follow_up")}


def test_any_job_of_a_run_selects_it(ledger: LedgerDriver, path: Path) -> None:
    root = branches(ledger)
    assert run_timeline(ledger.db, path, "T") == run_timeline(ledger.db, path, root.id)


def test_a_run_that_has_left_the_queue_is_read_from_the_log(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(ledger.new(plugin="next"))
    end_all(ledger, "next")
    ledger.db.execute("DELETE FROM job_queue")

    view = run_timeline(ledger.db, path, root.id)
    assert (view["status"], view["jobs"], len(view["edges"])) == ("succeeded", 2, 1)
    with pytest.raises(NotFound):
        run_timeline(ledger.db, path, "none")


def test_a_step_that_did_not_run_has_the_values_of_its_condition(ledger: LedgerDriver, path: Path) -> None:
    predicate = {"path": "payload.vip", "op": "eq", "value": True, "found": False, "holds": False}
    ended = Prefinished(
        status=JobStatus.SUCCEEDED, code=OutcomeCode.CONDITION_FALSE, data={"predicates": [predicate]}, result="{}"
    )
    root = ledger.fan_out(ledger.new(plugin="core.switch", step_id="gift__switch", prefinished=ended))

    switch = run_timeline(ledger.db, path, root.id)["timeline"][1]
    assert "of step gift is false" in str(switch["words"])
    assert "payload.vip eq true is false: found false" in str(switch["words"])


def test_a_failed_join_says_that_the_steps_after_it_do_not_run(ledger: LedgerDriver, path: Path) -> None:
    ended = Prefinished(status=JobStatus.FAILED, code=OutcomeCode.NOT_JOINED, data={"failures": ["b: no luck"]})
    root = ledger.fan_out(ledger.new(plugin="core.join", step_id="both__join", prefinished=ended))

    join = run_timeline(ledger.db, path, root.id)["timeline"][1]
    assert "the steps after it do not run: b: no luck" in str(join["words"])


def test_a_job_of_a_foreach_has_the_index_of_its_item(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(*(ledger.new(plugin="x", step_id="each", child_key=f"e/run/each/{n}/{n}") for n in (0, 1)))

    timeline = run_timeline(ledger.db, path, root.id)["timeline"]
    assert [job.get("indexes") for job in timeline] == [None, [0], [1]]
