"""Expected runs: the pipelines of the workload, written a second time by hand, and the invariants I11 to I14.

Follows the real responses of the plugins through the pipelines. Each expected row must exist, and no other row may.
"""

from collections.abc import Iterator
from functools import lru_cache

from scripts.tortures.lib.expected_rows import (
    HOOKS,
    JOINS,
    STEPS,
    BranchResult,
    ExpectedRows,
    Output,
    RunPosition,
    payload_of,
)
from scripts.tortures.lib.history import FAILURES, FINAL, History, Row, fails_its_tree

LAST_STEPS = frozenset({"ship", "prices__join"})


@lru_cache(maxsize=1)
def expected_rows_of(history: History) -> ExpectedRows:
    """Match all runs of a history, once for all invariants that use the result."""
    # A hook is a separate tree and may be pruned before or after the job that triggered it.
    runs = (job for job in history.jobs.values() if job["pipeline"] not in (None, "", *history.unchecked_pipelines))
    rows = ExpectedRows.of(history, (job for job in runs if not (history.is_pruned and job["submitted_by"] == "hook")))
    for job in history.jobs.values():
        _expect_runs_of(rows, job)
    rows.finish()
    return rows


def _expect_runs_of(rows: ExpectedRows, job: Row) -> None:
    """Expect the runs that this job starts."""
    history = rows.history
    pipeline = {"deliver": deliver, "quote": quote}.get(job["pipeline"])
    if pipeline and job["parent_job_id"] is None:
        pipeline(rows, Output(job["id"], payload_of(job)), RunPosition(job["pipeline"], job["id"]))
    if job["plugin"] == "order" and "deliver" in history.pipelines:
        for output in rows.outputs_of(job):
            deliver(rows, output, RunPosition("deliver", job["root_job_id"]))
    notifies = any(plugin.notifies for plugin in history.plugins if plugin.name == job["plugin"])
    is_ended_root = job["root_job_id"] == job["id"] and job["status"] in FINAL - {"skipped"}
    if notifies and is_ended_root and not history.is_pruned:
        hooks(rows, job)


def deliver(rows: ExpectedRows, begin: Output, at: RunPosition) -> None:
    rows.counts["runs"] += 1
    picked = rows.step("pick", "pick", begin, at)
    wrapped = picked.then(lambda output: rows.join("wrap__join", output, at, _wrap(rows, output, at)))
    inspected = wrapped.then(lambda output: _inspect(rows, output, at))
    sides = inspected.then(lambda output: rows.join("sides__join", output, at, _sides(rows, output, at)))
    sides.then(lambda output: rows.step("ship", "keep", output, at))


def _wrap(rows: ExpectedRows, output: Output, at: RunPosition) -> list[BranchResult]:
    """Expect a branch for every item, with the item in its baggage."""
    items = enumerate(output.payload["items"])
    return [_wrap_item(rows, output, at.inside(index, item, {"part": item})) for index, item in items]


def _wrap_item(rows: ExpectedRows, output: Output, at: RunPosition) -> BranchResult:
    return rows.step("cut", "press", output, at).then(lambda output: _bundle(rows, output, at))


def _bundle(rows: ExpectedRows, output: Output, at: RunPosition) -> BranchResult:
    paper = rows.step("around/paper", "press", output, at)
    ribbon = rows.step("around/ribbon", "brittle", output, at)
    return rows.join("around/both__join", output, at, [paper, ribbon])


def _inspect(rows: ExpectedRows, output: Output, at: RunPosition) -> BranchResult:
    holds = output.payload["even"]
    passed = rows.switch("inspect__switch", output, at, holds)
    return passed.then(lambda output: rows.step("inspect", "keep", output, at)) if holds else passed


def _sides(rows: ExpectedRows, output: Output, at: RunPosition) -> list[BranchResult]:
    def patch(failure: Output) -> BranchResult:
        return rows.step("patch", "keep", failure, at)

    printed = rows.step("print", "twin", output, at)
    return [
        rows.step("invoice", "press", output, at),
        printed.then(lambda output: rows.step("glue", "brittle", output, at, on_error=patch)),
    ]


def quote(rows: ExpectedRows, begin: Output, at: RunPosition) -> None:
    rows.counts["runs"] += 1
    picked = rows.step("pick", "pick", begin, at)
    picked.then(lambda output: rows.join("prices__join", output, at, _prices(rows, output, at)))


def _prices(rows: ExpectedRows, output: Output, at: RunPosition) -> list[BranchResult]:
    items = enumerate(output.payload["items"])
    return [rows.step("prices", "press", output, at.inside(index, item, {})) for index, item in items]


def hooks(rows: ExpectedRows, job: Row) -> None:
    """Expect a separate tree for every pipeline with a hook for this end."""
    fires = {
        ("on-completed", "record"): True,
        ("on-failed", "alert"): job["status"] in FAILURES and job["plugin"] == "flaky",
        ("on-dead", "report"): job["status"] == "dead",
    }
    known = {"job_id": job["id"], **{name: job[name] for name in ("plugin", "command", "status", "attempt")}}
    for (pipeline, step), does_fire in fires.items():
        if does_fire and pipeline in rows.history.pipelines:
            rows.counts["hooks"] += 1
            rows.step(step, "keep", Output(job["id"], known, is_complete=False), RunPosition(pipeline, None, HOOKS))


# ── the invariants ────────────────────────────────────────────────────────────────────────────────────────────────────


def runs_are_complete(history: History) -> Iterator[str]:
    """I11: every run has exactly the steps that its events and conditions lead to, with their payload and baggage.

    A run that was acknowledged started with the payload of its request.
    """
    yield from expected_rows_of(history).violations[STEPS]
    for one in history.acknowledged:
        job = history.jobs.get(one.job_id)
        if one.target not in history.pipelines or job is None:
            continue
        if (job["pipeline"], payload_of(job)) != (one.target, {"number": one.number}):
            yield f"{one.job_id} is {job['pipeline']} with {payload_of(job)}, not {one.target} with {one.number}"


def joins_are_correct(history: History) -> Iterator[str]:
    """I12: every join is one row, waited for all its branches, and passed on the result of each, in order."""
    yield from expected_rows_of(history).violations[JOINS]


def hooks_fire_once(history: History) -> Iterator[str]:
    """I13: the end of a root job that notifies starts every matching hook once; nothing else starts one."""
    yield from expected_rows_of(history).violations[HOOKS]


def responses_match_runs(history: History) -> Iterator[str]:
    """I14: a client that waited for a run got its real status, result and tree."""
    for one in history.acknowledged:
        if one.response is None or one.job_id not in history.jobs:
            continue
        jobs = history.trees[one.job_id]
        failures = [job["status"] for job in jobs if fails_its_tree(job)]
        last = [job for job in jobs if job["step_id"] in LAST_STEPS] or jobs[:1]
        expected = {
            "status": failures[-1] if failures else "succeeded",
            "result": history.plugin_response(last[-1]["id"]) or None,
            "tree": [(job["id"], job["status"], job["attempt"]) for job in jobs],
        }
        tree = [(node["job_id"], node["status"], node["attempt"]) for node in one.response["tree"]]
        found = {"status": one.response["status"], "result": one.response["result"], "tree": tree}
        for name, value in expected.items():
            if found[name] != value:
                yield f"the response for {one.job_id} has the {name} {found[name]}, not {value}"
