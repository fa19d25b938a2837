"""The signals of an ended run: which hooks start, and what their payload says."""

from datetime import timedelta
from typing import Any

from attrs import evolve

from ductile.core.model import EndedRun, FailedJob, JobStatus
from ductile.pipeline.run.run_signals import run_payload, run_rule_of, signal_run
from tests.pipeline.factories import NOW, make_job, make_routing, payload_of

HOOKS = (
    "[{name: failed, on-hook: run.failed, steps: [{id: f, uses: x}]},"
    " {name: ended, on-hook: run.completed, steps: [{id: c, uses: x}]}]"
)
FAILURE = FailedJob(
    id="job-2", plugin="ci", command="handle", step_id="build", status=JobStatus.DEAD, error="no disk", code="final"
)


def ended_run(failed: int = 0, cancelled: int = 0, **root: Any) -> EndedRun:
    values = {"id": "root-1", "status": JobStatus.SUCCEEDED} | root
    return EndedRun(
        root=make_job(**values),
        jobs=3,
        ended_at=NOW + timedelta(seconds=2),
        failures=(FAILURE,) * min(failed, 1),
        failed=failed,
        cancelled=cancelled,
    )


def test_the_signals_of_a_run_depend_on_its_result() -> None:
    """A skipped run and a notification have none, and a hook run starts no hooks."""
    routing = make_routing(HOOKS)
    cases = {
        ("c",): [ended_run(), ended_run(failed=1, cancelled=1)],
        ("c", "f"): [ended_run(failed=1), ended_run(failed=2, cancelled=1)],
        (): [
            ended_run(status=JobStatus.SKIPPED),
            ended_run(failed=1, submitted_by="notify"),
            ended_run(failed=1, submitted_by="hook"),
        ],
    }
    for steps, runs in cases.items():
        for run in runs:
            started = signal_run(run, routing).children
            assert tuple(new.step_id for new in started) == steps, run
            assert all(new.own_tree and new.submitted_by == "hook" for new in started), run


def test_a_failed_run_is_noted_with_masked_values() -> None:
    """Also a hook run. The journal never has a secret."""
    routing = make_routing(HOOKS, mask=lambda data: {**data, "message": "***"})
    for submitter in ("api", "hook"):
        (note,) = signal_run(ended_run(failed=1, submitted_by=submitter), routing).notes
        assert (note.kind, note.data["message"]) == ("run.failed", "***")
    assert signal_run(ended_run(failed=1, submitted_by="notify"), routing).notes == ()


def test_each_end_of_a_run_has_its_own_child_key() -> None:
    """So a retried run fires again, and a repeated transaction does not."""
    routing, run = make_routing(HOOKS), ended_run(failed=1)
    later = evolve(run, ended_at=run.ended_at + timedelta(seconds=1))
    keys = [{new.child_key for new in signal_run(each, routing).children} for each in (run, run, later)]
    assert keys[0] == keys[1]
    assert not keys[0] & keys[2]


def test_the_message_of_a_run_is_a_sentence() -> None:
    """It names the pipeline or the plugin, the first failed step and how many more failed."""
    cases = {
        "Pipeline deploy failed: step build: no disk.": ended_run(failed=1, pipeline="deploy"),
        "Pipeline deploy failed: step build: no disk. 2 more jobs failed.": ended_run(failed=3, pipeline="deploy"),
        "emits.handle failed: step build: no disk. 1 more job failed.": ended_run(failed=2),
        "Pipeline deploy was cancelled.": ended_run(failed=1, cancelled=1, pipeline="deploy"),
        "Pipeline deploy succeeded.": ended_run(pipeline="deploy"),
    }
    for message, run in cases.items():
        assert run_payload(run)["message"] == run_payload(run)["text"] == message


def test_a_condition_and_a_source_select_hooks_of_runs() -> None:
    """`from_plugin` is the plugin of the root; `if` reads the payload."""
    text = (
        "[{name: a, on-hook: run.failed, from_plugin: other, steps: [{uses: x}]},"
        " {name: b, on-hook: run.failed, if: {path: payload.pipeline, op: eq, value: deploy}, steps: [{uses: x}]}]"
    )
    (new,) = signal_run(ended_run(failed=1, pipeline="deploy"), make_routing(text)).children
    assert (new.pipeline, payload_of(new)["pipeline"]) == ("b", "deploy")


def test_successful_runs_are_read_only_for_a_hook() -> None:
    """Most installations have no `run.completed` hook."""
    assert run_rule_of(make_routing(HOOKS)).on_success
    assert not run_rule_of(make_routing("[{name: f, on-hook: run.failed, steps: [{uses: x}]}]")).on_success
