"""Plans as pictures: everything of a plan is in the Mermaid text, and nothing an author wrote breaks it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.core.model import Job, JobStatus
from ductile.pipeline.compile.graph import edges
from ductile.pipeline.draw import LONGEST_LINE, StepMark, draw, marks_of
from tests.pipeline.random_pipelines import Data, some_pipelines
from tests.pipeline.written import compiled, plan_of

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
"""The part of Mermaid's language that is used here."""
CODES = {"quot": '"', "lt": "<", "gt": ">", "amp": "&"}
NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def decoded(label: str) -> str:
    """What Mermaid shows for a label."""
    text = label.replace("<br/>", "\n")
    return re.sub(r"#(\w+);", lambda code: CODES.get(code[1]) or chr(int(code[1])), text)


def boxes(picture: str) -> dict[str, str]:
    """Name of a box → what is written in it."""
    found = re.findall(r'^\s+(n\d+|start|finish)[\[({/]+"([^"]*)"', picture, re.MULTILINE)
    return {name: decoded(label) for name, label in found}


def arrows(picture: str) -> list[str]:
    """Every arrow, with the first lines of its boxes instead of their names."""
    names = {name: label.split("\n")[0] for name, label in boxes(picture).items()}
    found = re.findall(r'^\s+(\w+) (-->|-\.->)(?:\|"([^"]*)"\|)? (\w+)$', picture, re.MULTILINE)
    return [
        " ".join(filter(None, (names[source], line, decoded(label), names[target])))
        for source, line, label, target in found
    ]


def test_every_kind_of_place_has_its_shape() -> None:
    """Rectangles run plugins, slanted ones relay, diamonds decide, hexagons wait."""
    plan = plan_of(
        "{id: a, uses: a.poll, if: {path: payload.n, op: gt, value: 3}},"
        "{id: r, relay: {to: lab, event: seen}},"
        "{id: fan, split: [{id: b, uses: b}, {id: c, uses: c}], join: true}"
    )

    picture = draw(plan)

    assert 'n0{"if payload.n gt 3"}' in picture
    assert 'n1["a<br/>a.poll"]' in picture
    assert 'n2[/"r<br/>relay seen to lab"/]' in picture
    assert 'n5{{"fan__join"}}' in picture
    assert 'start(["p<br/>on e"])' in picture


def test_arrows_say_what_takes_the_way() -> None:
    """Decisions say yes or no, failures are dashed, loops name their list."""
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


def test_a_called_pipeline_is_a_frame_in_the_picture() -> None:
    """Frames nest as calls do, and say which pipeline they show."""
    plan = plan_of("{id: go, call: q}", "name: q, steps: [{id: on, call: r}]", "name: r, steps: [{id: last, uses: a}]")

    frames = [decoded(line) for line in draw(plan).splitlines() if "subgraph" in line]

    assert frames == ['  subgraph c1["call go"]', '    subgraph c2["call on → r"]']


def test_the_trigger_of_a_pipeline_is_told_in_full() -> None:
    """What starts it, from whom, and under which condition."""
    text = "- {name: p, on-hook: job.failed, from_plugin: a, if: {any: [%s, {not: %s}]}, steps: [{uses: b}]}"
    plan = compiled(text % ("{path: payload.x, op: eq, value: 1}", "{path: payload.y, op: exists}")).named("p")

    told = "p\non hook job.failed from a\nif (payload.x eq 1 or not payload.y exists)"
    assert boxes(draw(plan))["start"] == told


def test_a_value_of_a_condition_is_shown_as_it_is_written() -> None:
    """Quotes, brackets, entities and comments of Mermaid are letters in a label."""
    value = 'a"]; %%{init}%% <b> #35; `x` | é 🎈 \\'
    plan = compiled(
        [{"name": "p", "on": "e", "steps": [{"uses": "a", "if": {"path": "payload.x", "op": "eq", "value": value}}]}]
    ).named("p")

    picture = draw(plan)

    assert well_formed(picture)
    assert boxes(picture)["n0"] == f"if payload.x eq {value_as_json(value)}"


def value_as_json(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/"), min_size=1))
@settings(max_examples=200, deadline=None)
def test_whatever_a_pipeline_is_called_the_picture_is_mermaid(name: str) -> None:
    """A label gives back the text it was made of."""
    name = name.strip()
    if not name or not name[0].isprintable() or name.split(".")[0] == "ductile":
        return  # nothing may be called so, or wait for such an event
    step = {"uses": "a", "if": {"path": "payload.x", "op": "eq", "value": name}}
    picture = draw(compiled([{"name": "p", "on": name, "steps": [step]}]).named("p"))

    assert well_formed(picture)
    assert boxes(picture)["start"] == f"p\n{cut(f'on {name}')}"


def cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def well_formed(picture: str) -> bool:
    written = picture.removesuffix("\n").split("\n")
    lines = [LINES.fullmatch(line) for line in written]
    assert all(lines), [text for line, text in zip(lines, written, strict=True) if not line]
    assert picture.count("subgraph ") == len(re.findall(r"^\s+end$", picture, re.MULTILINE))
    defined = [line["box"] for line in lines if line and line["box"]]
    used = {name for line in lines if line for name in (line["source"], line["target"]) if name}
    assert len(defined) == len(set(defined))
    return used <= set(defined)


@given(some_pipelines())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_place_and_every_way_of_any_plan_is_drawn(listed: list[Data]) -> None:
    """One box for each place, one arrow for each way."""
    for plan in compiled(listed).by_name.values():
        picture = draw(
            plan, {place.path: StepMark(status=JobStatus.SUCCEEDED, jobs=1, took=None) for place in plan.places}
        )

        assert well_formed(picture)
        assert len([name for name in boxes(picture) if name.startswith("n")]) == len(plan.places)
        assert len(arrows(picture)) == len(list(edges(plan)))


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_job(step: str, status: str = "succeeded", millis: int | None = None, *, tolerated: bool = False) -> Job:
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


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([a_job("a", millis=12)], "succeeded, 12ms"),
        ([a_job("a", millis=1200), a_job("a", millis=34)], "succeeded, 2 jobs, 1s234ms"),
        ([a_job("a", millis=1), a_job("a", "failed", 2)], "failed, 2 jobs, 3ms"),
        ([a_job("a", "failed", 2), a_job("a", "dead")], "dead, 2 jobs, 2ms"),
        ([a_job("a", "dead"), a_job("a", "running")], "running, 2 jobs"),
        ([a_job("a", "queued"), a_job("a", "failed")], "queued, 2 jobs"),
        ([a_job("a", "skipped")], "skipped"),
        ([a_job("a", "failed", 5, tolerated=True)], "failed (tolerated), 5ms"),
        ([a_job("a", "failed", tolerated=True), a_job("a", "failed")], "failed, 2 jobs"),
        ([a_job("a", tolerated=True)], "succeeded"),
    ],
)
def test_a_step_looks_like_the_job_that_matters_most(jobs: list[Job], told: str) -> None:
    """What goes on comes before what went wrong, and that before what went well."""
    assert {path: str(mark) for path, mark in marks_of(jobs, "p").items()} == {"a": told}


def test_jobs_of_other_pipelines_leave_no_mark() -> None:
    """A tree can hold runs of several pipelines; a picture shows one."""
    assert marks_of([a_job("a")], "q") == {}


def test_a_run_is_drawn_with_the_state_of_every_place() -> None:
    """Class and words of a box follow its jobs; a place without a job is visibly unreached."""
    plan = plan_of("{id: a, uses: a}, {id: b, uses: b}, {id: c, uses: c}")
    jobs = [a_job("a", millis=7), a_job("b", "failed", 9)]

    picture = draw(plan, marks_of(jobs, "p"))

    assert well_formed(picture)
    assert [boxes(picture)[name] for name in ("n0", "n1", "n2")] == [
        "a\na\nsucceeded, 7ms",
        "b\nb\nfailed, 9ms",
        "c\nc",
    ]
    classes = dict(re.findall(r"^  class ([n\d,]+) (\w+)$", picture, re.MULTILINE))
    assert classes == {"n0": "succeeded", "n1": "failed", "n2": "unreached"}
    assert {name for name, _ in re.findall(r"classDef (\w+) (\S+)", picture)} == set(classes.values())


CALLED = {"name": "q", "on": "e", "steps": [{"uses": "a"}]}
MANY_CALLS = [{"name": "p", "on": "e", "steps": [{"call": "q"}] * 1000}, CALLED]
LONG_CHAIN = [{"name": "p", "on": "e", "steps": [{"uses": "a"}] * 2000}]


@pytest.mark.parametrize("listed", [MANY_CALLS, LONG_CHAIN], ids=["a thousand calls", "a chain of two thousand"])
def test_a_large_plan_is_drawn(listed: list[Data]) -> None:
    """Neither length nor breadth hurts."""
    plan = compiled(listed).named("p")

    assert len(arrows(draw(plan))) == len(plan.places) + 1
