"""Mermaid diagrams: they show every part of a plan, and configured text cannot break them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.core.model import Job, JobStatus
from ductile.pipeline.compile.graph import edges
from ductile.pipeline.draw import MAX_LABEL_LENGTH, StepStatus, draw, step_statuses
from tests.pipeline.cases import check_all
from tests.pipeline.compiling import compile_text, plan_of
from tests.pipeline.random_pipelines import Data, pipelines_strategy

LABEL = r'"[^"\n]*"'
LINES = re.compile(
    rf"""flowchart\ TD
    |\s+(?P<box>n\d+|start|finish)(?:\[{LABEL}\]|\[/{LABEL}/\]|\{{{LABEL}\}}|\{{\{{{LABEL}\}}\}}|\(\[{LABEL}\]\)|\(\({LABEL}\)\))
    |\s+subgraph\ c\d+\[{LABEL}\]
    |\s+end
    |\s+(?P<source>n\d+|start)\ (?:-->|-\.->)(?:\|{LABEL}\|)?\ (?P<target>n\d+|finish)
    |\s+classDef\ [a-z]+\ [a-z0-9:,\#-]+
    |\s+class\ [n\d,]+\ [a-z]+""",
    re.VERBOSE,
)
"""The subset of Mermaid that `draw` writes."""
CODES = {"quot": '"', "lt": "<", "gt": ">", "amp": "&"}
NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def decode(label: str) -> str:
    """Return the text that Mermaid shows for a label."""
    text = label.replace("<br/>", "\n")
    return re.sub(r"#(\w+);", lambda code: CODES.get(code[1]) or chr(int(code[1])), text)


def boxes(diagram: str) -> dict[str, str]:
    """Return the text of every box by name."""
    found = re.findall(r'^\s+(n\d+|start|finish)[\[({/]+"([^"]*)"', diagram, re.MULTILINE)
    return {name: decode(label) for name, label in found}


def arrows(diagram: str) -> list[str]:
    """Return every arrow, with the first lines of its boxes instead of their names."""
    names = {name: label.split("\n")[0] for name, label in boxes(diagram).items()}
    found = re.findall(r'^\s+(\w+) (-->|-\.->)(?:\|"([^"]*)"\|)? (\w+)$', diagram, re.MULTILINE)
    return [
        " ".join(filter(None, (names[source], line, decode(label), names[target])))
        for source, line, label, target in found
    ]


def test_every_kind_of_vertex_has_its_shape() -> None:
    """Rectangles are plugins, slanted boxes relays, diamonds conditions, hexagons joins."""
    plan = plan_of(
        "{id: a, uses: a.poll, if: {path: payload.n, op: gt, value: 3}},"
        "{id: r, relay: {to: lab, event: seen}},"
        "{id: fan, split: [{id: b, uses: b}, {id: c, uses: c}], join: true}"
    )

    diagram = draw(plan)

    assert 'n0{"if payload.n gt 3"}' in diagram
    assert 'n1["a<br/>a.poll"]' in diagram
    assert 'n2[/"r<br/>relay seen to lab"/]' in diagram
    assert 'n5{{"fan__join"}}' in diagram
    assert 'start(["p<br/>on e"])' in diagram


def test_arrows_are_labelled() -> None:
    """Conditions with yes or no, errors dashed, loops with their list."""
    plan = plan_of(
        "{id: a, uses: a, if: {path: payload.x, op: exists}, on_error: [{id: b, uses: b}]},"
        "{id: c, uses: c, foreach: payload.items}"
    )

    assert arrows(draw(plan)) == [
        "p --> if payload.x exists",
        "if payload.x exists --> yes a",
        "if payload.x exists --> no, each of payload.items c",
        "if payload.x exists --> no end",
        "a --> each of payload.items c",
        "a --> end",
        "a -.-> on error b",
        "b --> end",
        "c --> end",
    ]


def test_a_called_pipeline_is_a_subgraph() -> None:
    """Nested like the calls, with the name of the pipeline."""
    plan = plan_of("{id: go, call: q}", "name: q, steps: [{id: on, call: r}]", "name: r, steps: [{id: last, uses: a}]")

    frames = [decode(line) for line in draw(plan).splitlines() if "subgraph" in line]

    assert frames == ['  subgraph c1["call go"]', '    subgraph c2["call on → r"]']


def test_the_trigger_shows_event_source_and_condition() -> None:
    """For a hook pipeline."""
    text = "- {name: p, on-hook: job.failed, from_plugin: a, if: {any: [%s, {not: %s}]}, steps: [{uses: b}]}"
    plan = compile_text(text % ("{path: payload.x, op: eq, value: 1}", "{path: payload.y, op: exists}")).require("p")

    label = "p\non hook job.failed from a\nif (payload.x eq 1 or not payload.y exists)"
    assert boxes(draw(plan))["start"] == label


def test_special_characters_in_a_condition_are_escaped() -> None:
    """The label shows the original text."""
    value = 'a"]; %%{init}%% <b> #35; `x` | é 🎈 \\'
    plan = compile_text(
        [{"name": "p", "on": "e", "steps": [{"uses": "a", "if": {"path": "payload.x", "op": "eq", "value": value}}]}]
    ).require("p")

    diagram = draw(plan)

    assert is_well_formed(diagram)
    assert boxes(diagram)["n0"] == f"if payload.x eq {value_as_json(value)}"


def value_as_json(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/"), min_size=1))
@settings(max_examples=200, deadline=None)
def test_any_name_gives_valid_mermaid(name: str) -> None:
    """The label decodes to the original text."""
    name = name.strip()
    if not name or not name[0].isprintable() or name.split(".")[0] == "ductile":
        return  # not a valid name or event type
    step = {"uses": "a", "if": {"path": "payload.x", "op": "eq", "value": name}}
    diagram = draw(compile_text([{"name": "p", "on": name, "steps": [step]}]).require("p"))

    assert is_well_formed(diagram)
    assert boxes(diagram)["start"] == f"p\n{shorten(f'on {name}')}"


def shorten(line: str) -> str:
    return line if len(line) <= MAX_LABEL_LENGTH else f"{line[: MAX_LABEL_LENGTH - 1]}…"


def is_well_formed(diagram: str) -> bool:
    written = diagram.removesuffix("\n").split("\n")
    lines = [LINES.fullmatch(line) for line in written]
    assert all(lines), [text for line, text in zip(lines, written, strict=True) if not line]
    assert diagram.count("subgraph ") == len(re.findall(r"^\s+end$", diagram, re.MULTILINE))
    defined = [line["box"] for line in lines if line and line["box"]]
    used = {name for line in lines if line for name in (line["source"], line["target"]) if name}
    assert len(defined) == len(set(defined))
    return used <= set(defined)


@given(pipelines_strategy())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_vertex_and_edge_is_drawn(listed: list[Data]) -> None:
    """For random pipelines."""
    for plan in compile_text(listed).by_name.values():
        diagram = draw(
            plan,
            {vertex.path: StepStatus(status=JobStatus.SUCCEEDED, jobs=1, duration=None) for vertex in plan.vertices},
        )

        assert is_well_formed(diagram)
        assert len([name for name in boxes(diagram) if name.startswith("n")]) == len(plan.vertices)
        assert len(arrows(diagram)) == len(list(edges(plan)))


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_job(step: str, status: str = "succeeded", millis: int | None = None, *, tolerated: bool = False) -> Job:
    return Job(
        id=step,
        plugin="a",
        command="handle",
        status=JobStatus(status),
        attempt=1,
        max_attempts=1,
        submitted_by="test",
        created_at=NOW,
        pipeline="p",
        step_id=step,
        started_at=NOW if millis is not None else None,
        completed_at=NOW + timedelta(milliseconds=millis) if millis is not None else None,
        tolerated=tolerated,
    )


STATUSES: list[tuple[Any, ...]] = [
    ([make_job("a", millis=12)], "succeeded, 12ms"),
    ([make_job("a", millis=1200), make_job("a", millis=34)], "succeeded, 2 jobs, 1s234ms"),
    ([make_job("a", millis=1), make_job("a", "failed", 2)], "failed, 2 jobs, 3ms"),
    ([make_job("a", "failed", 2), make_job("a", "dead")], "dead, 2 jobs, 2ms"),
    ([make_job("a", "dead"), make_job("a", "running")], "running, 2 jobs"),
    ([make_job("a", "queued"), make_job("a", "failed")], "queued, 2 jobs"),
    ([make_job("a", "skipped")], "skipped"),
    ([make_job("a", "failed", 5, tolerated=True)], "failed (tolerated), 5ms"),
    ([make_job("a", "failed", tolerated=True), make_job("a", "failed")], "failed, 2 jobs"),
    ([make_job("a", tolerated=True)], "succeeded"),
]


def test_a_step_shows_its_most_important_job() -> None:
    """Unfinished before failed before succeeded."""

    def check(jobs: list[Job], label: str) -> None:
        assert {path: str(mark) for path, mark in step_statuses(jobs, "p").items()} == {"a": label}

    check_all(STATUSES, check)


def test_jobs_of_other_pipelines_are_ignored() -> None:
    """A tree can contain runs of several pipelines."""
    assert step_statuses([make_job("a")], "q") == {}


def test_a_run_is_drawn_with_the_status_of_every_step() -> None:
    """A step without a job is styled as unreached."""
    plan = plan_of("{id: a, uses: a}, {id: b, uses: b}, {id: c, uses: c}")
    jobs = [make_job("a", millis=7), make_job("b", "failed", 9)]

    diagram = draw(plan, step_statuses(jobs, "p"))

    assert is_well_formed(diagram)
    assert [boxes(diagram)[name] for name in ("n0", "n1", "n2")] == [
        "a\na\nsucceeded, 7ms",
        "b\nb\nfailed, 9ms",
        "c\nc",
    ]
    classes = dict(re.findall(r"^  class ([n\d,]+) (\w+)$", diagram, re.MULTILINE))
    assert classes == {"n0": "succeeded", "n1": "failed", "n2": "unreached"}
    assert {name for name, _ in re.findall(r"classDef (\w+) (\S+)", diagram)} == set(classes.values())


CALLED = {"name": "q", "on": "e", "steps": [{"uses": "a"}]}
MANY_CALLS = [{"name": "p", "on": "e", "steps": [{"call": "q"}] * 1000}, CALLED]
LONG_CHAIN = [{"name": "p", "on": "e", "steps": [{"uses": "a"}] * 2000}]


@pytest.mark.parametrize("listed", [MANY_CALLS, LONG_CHAIN], ids=["a thousand calls", "a chain of two thousand"])
def test_a_large_plan_is_drawn(listed: list[Data]) -> None:
    """1000 calls, or a chain of 2000 steps."""
    plan = compile_text(listed).require("p")

    assert len(arrows(draw(plan))) == len(plan.vertices) + 1
