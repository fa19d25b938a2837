"""Test cases for pipelines: a payload or event, simulated plugin responses, and the expected run.

A case is a dry run whose result is compared with the expectation.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError, did_you_mean
from ductile.core.files import read_regular
from ductile.core.formats import strict_yaml
from ductile.devkit.fixtures.matching import mismatches
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.dry_run.answers import parse_answers
from ductile.pipeline.dry_run.dry_run import NOT_REACHED, DryRunLine, DryRunResult, dry_run_pipeline
from ductile.pipeline.run.route import TooManyFollowUps

_FILE_KEYS = ("cases",)
_CASE_KEYS = ("name", "pipeline", "event", "payload", "answers", "expect")
_EVENT_KEYS = ("type", "source", "payload")
_EXPECTED_KEYS = ("starts", "status", "path", "steps")
SUCCESS = {"status": "succeeded"}
"""The default expectation of a case."""
TRUNCATED = "the run exceeds service.limits.tree_jobs, so it was not completed"
_RUNS = ("uses", "relay", "publish", "route")
"""Kinds of lines that are jobs. The others are decisions and joins."""


class CaseInvalid(DuctileError):
    """An invalid pipeline case."""

    code, exit_code, status = "case_invalid", 78, 400
    hint = "a case is {pipeline: NAME, payload: {…}, expect: {path: [STEP, …]}}"


@frozen(kw_only=True)
class PipelineCase:
    """A test case. With an `event`, it also checks whether the event starts the pipeline."""

    name: str
    pipeline: str
    payload: Mapping[str, Any]
    event: Mapping[str, Any] | None = None
    answers: Mapping[str, Any] = field(factory=dict)
    expect: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class CaseReport:
    """The actual run and its differences from the expectation."""

    case: PipelineCase
    shown: Mapping[str, Any]
    differences: tuple[str, ...]


def read_cases(path: Path) -> list[PipelineCase]:
    """Read the cases of a file. Raises CaseInvalid, FileRefused or Unreadable."""
    content = read_regular(path, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=True).content
    data = _object(path, strict_yaml.load(content, source=str(path)).data(), "the file", _FILE_KEYS)
    cases = data.get("cases")
    if not isinstance(cases, list) or not cases:
        raise CaseInvalid(f"{path}: `cases` must be a list with at least one case")
    return [_case(path, index, case) for index, case in enumerate(cases)]


def _case(path: Path, index: int, data: Any) -> PipelineCase:
    where = f"cases[{index}]"
    content = _object(path, data, where, _CASE_KEYS)
    if not isinstance(content.get("pipeline"), str):
        raise CaseInvalid(f"{path}: {where}.pipeline must name a pipeline")
    event = _object(path, content["event"], f"{where}.event", _EVENT_KEYS) if "event" in content else None
    if event is not None and ("payload" in content or not isinstance(event.get("type"), str)):
        raise CaseInvalid(f"{path}: {where}: an event requires `type` and contains the payload itself")
    source, source_path = (content, where) if event is None else (event, f"{where}.event")
    expect = _object(path, content.get("expect", SUCCESS), f"{where}.expect", _EXPECTED_KEYS)
    path_of_run = expect.get("path", [])
    if not isinstance(path_of_run, list) or not all(isinstance(step, str) for step in path_of_run):
        raise CaseInvalid(f"{path}: {where}.expect.path must be a list of steps")
    return PipelineCase(
        name=str(content.get("name") or f"case {index + 1}"),
        pipeline=content["pipeline"],
        payload=_object(path, source.get("payload", {}), f"{source_path}.payload"),
        event=event,
        answers=_object(path, content.get("answers", {}), f"{where}.answers"),
        expect={**expect, "steps": _object(path, expect.get("steps", {}), f"{where}.expect.steps")},
    )


def _object(path: Path, data: Any, what: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise CaseInvalid(f"{path}: {what} must be an object")
    for name in data:
        if known is not None and name not in known:
            hint = f"known: {', '.join(known)}"
            raise CaseInvalid(f"{path}: {what} has no key {name!r}{did_you_mean(name, known)}", hint=hint)
    return data


# ── running a case ──────────────────────────────────────────────────────────────────────────────────────────────────


def run_case(case: PipelineCase, snapshot: Snapshot) -> CaseReport:
    """Run the case as a dry run and compare the result. Runs and records nothing else."""
    try:
        plan = snapshot.plans.require(case.pipeline)
        answers = parse_answers(dict(case.answers), plan.nodes)
        limits, now = snapshot.config.settings.service.limits, datetime.now(UTC)
        found = dry_run_pipeline(
            plan,
            case.payload,
            snapshot.routing,
            answers,
            now=now,
            max_jobs=limits.tree_jobs,
            max_hops=limits.hops,
        )
    except (DuctileError, TooManyFollowUps) as error:
        return CaseReport(case=case, shown={}, differences=(str(error),))
    reason = _reason_not_started(case, plan, found)
    shown = _not_started(reason) if reason else _run_details(plan, found)
    shown = snapshot.config.mask.mask_data(shown)
    cut = (TRUNCATED,) if shown["starts"] and not found.is_complete else ()
    return CaseReport(case=case, shown=shown, differences=(*cut, *_differences(case, shown, plan)))


def _reason_not_started(case: PipelineCase, plan: Plan, found: DryRunResult) -> str | None:
    """Return the reason why the event does not start the pipeline; None if it does or if there is no event."""
    if case.event is None:
        return None
    kind, source = case.event["type"], case.event.get("source")
    if kind != (plan.on or plan.hook):
        return f"its trigger is {plan.on or plan.hook}, not {kind}"
    if not plan.accepts_source(source):
        return f"it accepts events of plugin {plan.from_plugin}, not {source or 'events without a source'}"
    return None if found.would_start else "the `if` of the pipeline is false"


def _not_started(reason: str) -> dict[str, Any]:
    return {"starts": False, "why": reason, "status": None, "path": [], "steps": {}}


def _run_details(plan: Plan, found: DryRunResult) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    for line in found.lines:
        # An `if` and its step have the same name; only the step is listed.
        if line.outcome != "entered":
            steps[_label(plan, line)] = _line_details(line)
    ran = [_label(plan, line) for line in found.lines if line.kind in _RUNS and line.outcome != NOT_REACHED]
    return {"starts": True, "why": None, "status": str(found.status), "path": ran, "steps": steps}


def _label(plan: Plan, line: DryRunLine) -> str:
    items = f"[{'.'.join(map(str, line.indexes))}]" if line.indexes else ""
    prefix = f"{line.pipeline}: " if line.pipeline not in (plan.name, None) else ""
    return f"{prefix}{line.step}{items}"


def _line_details(line: DryRunLine) -> dict[str, Any]:
    return {
        "outcome": line.outcome,
        "why": line.why,
        "plugin": line.plugin,
        "command": line.command,
        "payload": line.payload,
        "baggage": dict(line.baggage),
        "tolerated": line.tolerated,
    }


def _differences(case: PipelineCase, shown: dict[str, Any], plan: Plan) -> Iterator[str]:
    expect = case.expect
    starts = expect.get("starts", True)
    if starts is not shown["starts"]:
        reason = f": {shown['why']}" if shown["why"] else ""
        found = "starts" if shown["starts"] else "does not start"
        yield f"starts: expected {str(starts).lower()}, but it {found}{reason}"
        return
    if "status" in expect and expect["status"] != shown["status"]:
        yield f"status: expected {expect['status']}, found {shown['status']}"
    if "path" in expect and expect["path"] != shown["path"]:
        yield from _path_differences(expect["path"], shown)
    for step, expected in expect["steps"].items():
        if step in shown["steps"]:
            yield from mismatches(expected, shown["steps"][step], at=f"steps.{step}")
        else:
            yield f"steps.{step}: unknown step{did_you_mean(step, shown['steps'])}"


def _path_differences(expected: list[str], shown: dict[str, Any]) -> Iterator[str]:
    """Yield a diff of the two paths, with the outcome of every step that is in only one of them."""
    from difflib import unified_diff

    yield "path: not as expected (- expected, + found)"
    whole = len(expected) + len(shown["path"])
    _, _, _, *lines = unified_diff(expected, shown["path"], n=whole, lineterm="")
    for line in lines:
        step = shown["steps"].get(line[1:]) if line[0] in "-+" else None
        yield f"  {line[0]} {line[1:]}" + (f"   ({step['outcome']}: {step['why']})" if step else "")
