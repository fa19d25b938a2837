"""`pipeline test`: a case passes if the run is as expected, and every difference is reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, run
from tests.e2e.service import Home

__all__ = ["run"]

PIPELINES = """
plugins:
  say: {}
pipelines:
  - name: report
    on: report.wanted
    from_plugin: say
    if: {path: payload.day, op: exists}
    steps:
      - {id: fetch, uses: say, baggage: {day: payload.day}}
      - {id: urgent, uses: say.poll, if: {path: payload.level, op: gte, value: 3}}
      - id: store
        uses: say
        foreach: payload.rows
        with: {text: "{payload.result}"}
        on_error: [{id: sorry, uses: say}]
"""
SAY = "#!/bin/sh\nexit 1\n"
FETCHED = [{"type": "fetched", "payload": {"level": 5}}]
ROWS = [{"type": "rows", "payload": {"rows": [1, 2]}}]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "ductile")
    made.plugin("say", SAY)
    made.add(PIPELINES)
    return made


def run_cases(run: Run, home: Home, *cases: dict[str, Any]) -> Any:
    """Return the differences of each case, and the exit code."""
    file = home.path / "cases.json"
    file.write_text(json.dumps({"cases": [{"pipeline": "report", **case} for case in cases]}))
    answer = run("pipeline", "test", file, "--config", home.path, "--json")
    return [case["differences"] for case in answer.json["cases"]], answer.exit_code


GOOD = {
    "event": {"type": "report.wanted", "source": "say", "payload": {"day": "monday"}},
    "answers": {"fetch": FETCHED, "urgent": ROWS, "store": {"fail": "disk full"}},
    "expect": {
        "starts": True,
        "status": "failed",
        "path": ["fetch", "urgent", "store[0]", "store[1]", "sorry[0]", "sorry[1]"],
        "steps": {
            "fetch": {"outcome": "simulated", "payload": {"day": "monday"}, "baggage": {"day": "monday"}},
            "urgent": {"command": "poll", "payload": {"level": 5}},
            "store[1]": {"outcome": "failed", "why": "disk full", "payload": {"text": "simulated"}},
        },
    },
}


def test_a_case_with_the_expected_run_passes(run: Run, home: Home) -> None:
    """Start, status, path, payloads after `with`, baggage, items and error steps."""
    assert run_cases(run, home, GOOD) == ([[]], 0)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"type": "other", "source": "say"}, "its trigger is report.wanted, not other"),
        ({"type": "report.wanted", "source": "other"}, "it accepts events of plugin say, not other"),
        ({"type": "report.wanted"}, "it accepts events of plugin say, not events without a source"),
        ({"type": "report.wanted", "source": "say", "payload": {}}, "the `if` of the pipeline is false"),
    ],
)
def test_a_case_can_expect_that_an_event_does_not_start_the_pipeline(
    run: Run, home: Home, event: dict[str, Any], why: str
) -> None:
    """By type, source or condition. Otherwise the difference has the reason."""
    refused, wanted = {"event": event, "expect": {"starts": False}}, {"event": event}

    differences, code = run_cases(run, home, refused, wanted)

    assert differences == [[], [f"starts: expected true, but it does not start: {why}"]]
    assert code == 1


@pytest.mark.parametrize(
    ("expect", "expected_differences"),
    [
        ({"status": "failed"}, ["status: expected failed, found succeeded"]),
        (
            {"path": ["fetch", "urgent"]},
            [
                "path: not as expected (- expected, + found)",
                "    fetch",
                "  - urgent   (bypassed: payload.level gte 3 is false: it is absent)",
            ],
        ),
        (
            {"steps": {"fetch": {"payload": {"day": "friday"}}}},
            ['steps.fetch.payload.day: expected "friday", found "x"'],
        ),
        ({"steps": {"fetch": {"baggage": {"month": 1}}}}, ["steps.fetch.baggage.month: expected 1, but it is absent"]),
        ({"steps": {"fetsch": {}}}, ["steps.fetsch: unknown step (did you mean 'fetch'?)"]),
        ({"starts": False}, ["starts: expected false, but it starts"]),
    ],
)
def test_every_difference_is_reported(
    run: Run, home: Home, expect: dict[str, Any], expected_differences: list[str]
) -> None:
    """With its path. A path difference shows why a step did not run."""
    answers = {"fetch": [{"type": "fetched", "payload": {"rows": []}}]}
    differences, code = run_cases(run, home, {"payload": {"day": "x"}, "answers": answers, "expect": expect})

    assert (differences[0], code) == (expected_differences, 1)


def test_an_answer_for_an_unknown_step_fails_only_its_case(run: Run, home: Home) -> None:
    """The other cases run."""
    differences, code = run_cases(
        run, home, {"answers": {"fetchh": []}}, {"expect": {"starts": True}}, {"pipeline": "no"}
    )

    assert "step 'fetchh' does not exist" in differences[0][0]
    assert differences[1] == []
    assert "pipeline 'no' does not exist" in differences[2][0]
    assert code == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file must be an object"),
        ("cases: []", "must be a list with at least one case"),
        ("cases: [{}]", "cases[0].pipeline must name a pipeline"),
        ("cases: [{pipeline: report, payload: []}]", "cases[0].payload must be an object"),
        ("cases: [{pipeline: report, event: {type: x, payload: []}}]", "cases[0].event.payload must be an object"),
        ("cases: [{pipeline: report, answers: []}]", "cases[0].answers must be an object"),
        ("cases: [{pipeline: report, expct: {}}]", "did you mean 'expect'"),
        ("cases: [{pipeline: report, expect: {paths: []}}]", "did you mean 'path'"),
        ("cases: [{pipeline: report, expect: {path: fetch}}]", "must be a list of steps"),
        ("cases: [{pipeline: report, event: {payload: {}}}]", "an event requires `type`"),
        ("cases: [{pipeline: report, payload: {}, event: {type: x}}]", "contains the payload itself"),
        ("cases: [{pipeline: report, payload: [1]}]", "payload must be an object"),
        ("cases: [", "cases.yaml"),
        ("x: " + "[" * 10_000, "deep"),
        ("x: " + "x" * (1 << 20), "1048576"),
    ],
)
def test_an_invalid_file_is_rejected(run: Run, home: Home, text: str, message: str) -> None:
    """With a path and a message, never with a traceback."""
    file = home.path / "cases.yaml"
    file.write_text(text)

    answer = run("pipeline", "test", file, "--config", home.path, "--json")

    assert answer.exit_code == 78
    assert message in answer.json["error"]


def test_the_text_output_lists_every_case(run: Run, home: Home) -> None:
    """pass or FAIL, the pipeline, the case, and its differences."""
    file = home.path / "cases.yaml"
    file.write_text(
        "cases:\n"
        "  - {name: starts, pipeline: report, expect: {starts: true}}\n"
        "  - {name: ends, pipeline: report, expect: {status: succeeded}}\n"
    )

    answer = run("pipeline", "test", file, "--config", home.path)

    assert answer.stdout.splitlines() == [
        "pass  report: starts",
        "FAIL  report: ends",
        "      status: expected succeeded, found failed",
        "1 of 2 cases passed",
    ]


def test_a_case_expects_success_by_default(run: Run, home: Home) -> None:
    """Otherwise it would pass with any result."""
    failing = {"payload": {"day": "monday"}, "answers": {"fetch": {"fail": "no network"}}}

    differences, exit_code = run_cases(run, home, failing)

    assert (differences, exit_code) == ([["status: expected succeeded, found failed"]], 1)


def test_a_case_runs_to_completion_or_fails(run: Run, home: Home) -> None:
    """Long lists are complete. A run over the job limit is a difference."""
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("service:\n", "service:\n  limits: {tree_jobs: 1500}\n"))
    home.add("  - {name: long, on: x, steps: [{uses: say, foreach: payload.n}, {id: last, uses: say}]}\n")
    last = {"pipeline": "long", "answers": {"last": {"fail": "no"}}}
    whole, cut = ({**last, "payload": {"n": list(range(count))}} for count in (700, 800))

    differences, exit_code = run_cases(run, home, whole, cut, {**cut, "expect": {"status": "failed"}})

    status = "status: expected succeeded, found failed"
    expected_differences = "the run exceeds service.limits.tree_jobs, so it was not completed"
    assert (differences, exit_code) == ([[status], [expected_differences, status], [expected_differences]], 1)
