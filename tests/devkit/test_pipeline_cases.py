"""`pipeline test`: a case holds when the run goes as it was written down, and what differs is told."""

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


def play(run: Run, home: Home, *cases: dict[str, Any]) -> Any:
    """The told cases, and the exit code."""
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


def test_a_case_that_goes_as_written_holds(run: Run, home: Home) -> None:
    """Start, status, path, payloads after `with` and baggage, items of a loop, ways after a failure."""
    assert play(run, home, GOOD) == ([[]], 0)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"type": "other", "source": "say"}, "it waits for report.wanted, not for other"),
        ({"type": "report.wanted", "source": "somebody"}, "it takes events of say, not of somebody"),
        ({"type": "report.wanted"}, "it takes events of say, not of nobody"),
        ({"type": "report.wanted", "source": "say", "payload": {}}, "its own `if` is false"),
    ],
)
def test_an_event_may_be_expected_not_to_start_it(run: Run, home: Home, event: dict[str, Any], why: str) -> None:
    """By its type, by who sent it, by the pipeline's own condition; and the reason is told when it should have."""
    refused, wanted = {"event": event, "expect": {"starts": False}}, {"event": event}

    differences, code = play(run, home, refused, wanted)

    assert differences == [[], [f"starts: expected true, but it does not start: {why}"]]
    assert code == 1


@pytest.mark.parametrize(
    ("expect", "told"),
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
        ({"steps": {"fetsch": {}}}, ["steps.fetsch: there is no such step (did you mean 'fetch'?)"]),
        ({"starts": False}, ["starts: expected false, but it starts"]),
    ],
)
def test_what_differs_is_told(run: Run, home: Home, expect: dict[str, Any], told: list[str]) -> None:
    """Each difference with its place; of a path both ways, and why a step did not run."""
    answers = {"fetch": [{"type": "fetched", "payload": {"rows": []}}]}
    differences, code = play(run, home, {"payload": {"day": "x"}, "answers": answers, "expect": expect})

    assert (differences[0], code) == (told, 1)


def test_an_answer_for_a_step_that_is_not_there_fails_the_case_alone(run: Run, home: Home) -> None:
    """The other cases are played."""
    differences, code = play(run, home, {"answers": {"fetchh": []}}, {"expect": {"starts": True}}, {"pipeline": "no"})

    assert "there is no step 'fetchh'" in differences[0][0]
    assert differences[1] == []
    assert "there is no pipeline 'no'" in differences[2][0]
    assert code == 1


@pytest.mark.parametrize(
    ("text", "says"),
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
        ("cases: [{pipeline: report, event: {payload: {}}}]", "an event has a `type`"),
        ("cases: [{pipeline: report, payload: {}, event: {type: x}}]", "carries the payload itself"),
        ("cases: [{pipeline: report, payload: [1]}]", "payload must be an object"),
        ("cases: [", "cases.yaml"),
        ("x: " + "[" * 10_000, "deep"),
        ("x: " + "x" * (1 << 20), "1048576"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(run: Run, home: Home, text: str, says: str) -> None:
    """With the place and what is allowed, never a traceback."""
    file = home.path / "cases.yaml"
    file.write_text(text)

    answer = run("pipeline", "test", file, "--config", home.path, "--json")

    assert answer.exit_code == 78
    assert says in answer.json["error"]


def test_the_lines_for_people_say_which_case_failed(run: Run, home: Home) -> None:
    """Pass or FAIL, the pipeline, the case, the differences below it."""
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
        "1 of 2 cases hold",
    ]


def test_a_case_that_expects_nothing_in_particular_expects_success(run: Run, home: Home) -> None:
    """Otherwise it would hold however the run goes."""
    failing = {"payload": {"day": "monday"}, "answers": {"fetch": {"fail": "no network"}}}

    differences, exit_code = play(run, home, failing)

    assert (differences, exit_code) == ([["status: expected succeeded, found failed"]], 1)


def test_a_case_is_played_to_its_end_or_does_not_hold(run: Run, home: Home) -> None:
    """A long list is no reason to miss what comes behind it; more than a service would run is told."""
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("service:\n", "service:\n  limits: {tree_jobs: 1500}\n"))
    home.add("  - {name: long, on: x, steps: [{uses: say, foreach: payload.n}, {id: last, uses: say}]}\n")
    last = {"pipeline": "long", "answers": {"last": {"fail": "no"}}}
    whole, cut = ({**last, "payload": {"n": list(range(count))}} for count in (700, 800))

    differences, exit_code = play(run, home, whole, cut, {**cut, "expect": {"status": "failed"}})

    status = "status: expected succeeded, found failed"
    told = "the run has more jobs than service.limits.tree_jobs allows; it was not played to its end"
    assert (differences, exit_code) == ([[status], [told, status], [told]], 1)
