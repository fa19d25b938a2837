"""Draw a plan as a Mermaid flowchart, optionally with the status of each step in a run.

Read-only. Labels are escaped, so that configured text cannot be interpreted as Mermaid syntax.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from attrs import define, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import HANDLE, Job, JobStatus
from ductile.core.statuses import ENDED_BY_OPERATOR
from ductile.core.units import format_duration
from ductile.pipeline.compile.graph import Edge, edges
from ductile.pipeline.compile.plan import STEP_FAILED, SWITCH_TRUE, Gate, Plan, PlanNode
from ductile.pipeline.language.conditions import AllOf, AnyOf, Condition, Not, Predicate

MAX_LABEL_LENGTH = 120
UNREACHED = "unreached"
SHAPES = {"uses": ("[", "]"), "relay": ("[/", "/]"), "publish": ("[/", "/]"), "join": ("{{", "}}"), "if": ("{", "}")}
STYLES = {
    JobStatus.RUNNING: "fill:#cfe2ff,stroke:#0d6efd,color:#000",
    JobStatus.QUEUED: "fill:#f8f9fa,stroke:#0d6efd,stroke-dasharray:4,color:#000",
    JobStatus.DEAD: "fill:#f1aeb5,stroke:#842029,stroke-width:3px,color:#000",
    JobStatus.FAILED: "fill:#f8d7da,stroke:#dc3545,color:#000",
    JobStatus.SKIPPED: "fill:#fff3cd,stroke:#997404,color:#000",
    JobStatus.SUCCEEDED: "fill:#d1e7dd,stroke:#198754,color:#000",
    UNREACHED: "fill:#fff,stroke:#adb5bd,stroke-dasharray:4,color:#6c757d",
}
"""Style by status. A step has the first status in this order that any of its jobs has."""


@frozen(kw_only=True)
class StepStatus:
    """The combined status of the jobs of one step."""

    status: JobStatus
    jobs: int
    duration: timedelta | None
    """The sum over its finished jobs; None if none ran."""
    tolerated: bool = False
    """True if it failed and the failure is tolerated."""
    outcome_code: str | None = None
    """The code of its jobs with that status, if all of them have the same."""

    def __str__(self) -> str:
        shown = self.outcome_code if self.outcome_code in ENDED_BY_OPERATOR else self.status
        parts = [f"{shown}{' (tolerated)' if self.tolerated else ''}"]
        parts += [f"{self.jobs} jobs"] if self.jobs > 1 else []
        parts += [format_duration(_in_milliseconds(self.duration))] if self.duration is not None else []
        return ", ".join(parts)


def step_statuses(jobs: Iterable[Job], pipeline: str) -> dict[str, StepStatus]:
    """Return the status of every step of `pipeline` that has a job, by path."""
    by_step: dict[str, list[Job]] = {}
    for job in jobs:
        if job.pipeline == pipeline and job.step_id is not None:
            by_step.setdefault(job.step_id, []).append(job)
    return {path: combined_status(found) for path, found in by_step.items()}


def combined_status(jobs: list[Job]) -> StepStatus:
    """Return the status of a step from its jobs: the first in the order of STYLES that any of them has."""
    status = next(JobStatus(status) for status in STYLES if any(job.status == status for job in jobs))
    decisive = [job for job in jobs if job.status == status]
    codes = {job.outcome_code for job in decisive}
    durations = [job.completed_at - job.started_at for job in jobs if job.completed_at and job.started_at]
    return StepStatus(
        status=status,
        jobs=len(jobs),
        duration=sum(durations, timedelta()) if durations else None,
        tolerated=status in (JobStatus.FAILED, JobStatus.DEAD) and all(job.tolerated for job in decisive),
        outcome_code=codes.pop() if len(codes) == 1 else None,
    )


def _in_milliseconds(duration: timedelta) -> timedelta:
    return timedelta(milliseconds=duration // timedelta(milliseconds=1))


def draw(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the plan as a Mermaid flowchart, styled by `statuses` if given."""
    names = {vertex: f"n{number}" for number, vertex in enumerate(plan.vertices)}
    all_edges = list(edges(plan))
    lines = ["flowchart TD", f"  start([{_label(_trigger(plan))}])", *_boxes(_frames(plan), "", names, statuses)]
    if any(edge.target is None for edge in all_edges):
        lines.append('  finish(("end"))')
    lines += [f"  {_arrow(edge, names)}" for edge in all_edges]
    return "\n".join([*lines, *(_style_lines(names, statuses) if statuses is not None else ())]) + "\n"


def format_condition(condition: Condition) -> str:
    """Format a condition on one line."""
    match condition:
        case Predicate():
            value = "" if condition.op == "exists" else f" {strict_json.dumps(condition.value)}"
            return f"{condition.path} {condition.op}{value}"
        case AllOf(members):
            return f"({' and '.join(map(format_condition, members))})"
        case AnyOf(members):
            return f"({' or '.join(map(format_condition, members))})"
        case Not(member):
            return f"not {format_condition(member)}"


def _trigger(plan: Plan) -> str:
    source = f" from {plan.from_plugin}" if plan.from_plugin else ""
    gate = f"\nif {format_condition(plan.condition)}" if plan.condition else ""
    return f"{plan.name}\n{'on' if plan.on else 'on hook'} {plan.on or plan.hook}{source}{gate}"


@define
class _Frame:
    """The nodes and gates of one pipeline or call, and the paths of its calls."""

    name: str
    vertices: list[PlanNode | Gate] = field(factory=list)
    calls: list[str] = field(factory=list)


def _frames(plan: Plan) -> dict[str, _Frame]:
    """Return every call by its path, and the pipeline itself by an empty path."""
    frames = {"": _Frame("c0")}
    for vertex in plan.vertices:
        path = ""
        for call in vertex.path.split("/")[:-1]:
            parent, path = path, f"{path}/{call}" if path else call
            if path not in frames:
                frames[path] = _Frame(f"c{len(frames)}")
                frames[parent].calls.append(path)
        frames[path].vertices.append(vertex)
    return frames


def _boxes(
    frames: Mapping[str, _Frame],
    path: str,
    names: Mapping[PlanNode | Gate, str],
    statuses: Mapping[str, StepStatus] | None,
) -> Iterator[str]:
    """Yield the lines of one frame, with nested frames for its calls."""
    frame = frames[path]
    indent = "  " * (len(path.split("/")) + 1 if path else 1)
    for vertex in frame.vertices:
        yield f"{indent}{names[vertex]}{_box(vertex, statuses)}"
    for call in frame.calls:
        called = next((f" → {vertex.pipeline}" for vertex in frames[call].vertices), "")
        title = _label(f"call {call.rpartition('/')[2]}{called}")
        yield f"{indent}subgraph {frames[call].name}[{title}]"
        yield from _boxes(frames, call, names, statuses)
        yield f"{indent}end"


def _box(vertex: PlanNode | Gate, statuses: Mapping[str, StepStatus] | None) -> str:
    match vertex:
        case Gate():
            kind, lines = "if", [f"if {format_condition(vertex.condition)}"]
        case PlanNode(kind="uses"):
            command = "" if vertex.command == HANDLE else f".{vertex.command}"
            kind, lines = "uses", [vertex.step_id, f"{vertex.plugin}{command}"]
        case PlanNode(kind="relay", relay=relay) if relay is not None:
            kind, lines = "relay", [vertex.step_id, f"relay {relay.event} to {relay.to}"]
        case PlanNode(kind="publish", publish=publish) if publish is not None:
            wait = " and wait" if publish.wait else ""
            kind, lines = "publish", [vertex.step_id, f"publish {publish.topic}{wait}"]
        case _:
            kind, lines = "join", [vertex.step_id]
    if statuses is not None and vertex.path in statuses:
        lines.append(str(statuses[vertex.path]))
    opening, closing = SHAPES[kind]
    return f"{opening}{_label(chr(10).join(lines))}{closing}"


def _arrow(edge: Edge, names: Mapping[PlanNode | Gate, str]) -> str:
    source = names[edge.source] if edge.source else "start"
    target = names[edge.target] if edge.target else "finish"
    line, parts = ("-.->", ["on error"]) if edge.event == STEP_FAILED else ("-->", [])
    if isinstance(edge.source, Gate):
        parts.append("yes" if edge.event == SWITCH_TRUE else "no")
    if edge.foreach:
        parts.append(f"each of {edge.foreach}")
    label = f"|{_label(', '.join(parts))}|" if parts else ""
    return f"{source} {line}{label} {target}"


def _style_lines(names: Mapping[PlanNode | Gate, str], statuses: Mapping[str, StepStatus]) -> Iterator[str]:
    for status, style in STYLES.items():
        styled = [name for vertex, name in names.items() if _style_name(statuses.get(vertex.path)) == status]
        if styled:
            yield f"  classDef {status} {style}"
            yield f"  class {','.join(styled)} {status}"


def _style_name(step: StepStatus | None) -> str:
    return step.status if step else UNREACHED


_UNESCAPED = frozenset(" ._-+=/(),!?…→'")
_ENTITIES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}


def _label(text: str) -> str:
    """Format text as a Mermaid label, with every special character escaped."""
    return f'"{"<br/>".join(map(_escape_line, text.split(chr(10))))}"'


def _escape_line(line: str) -> str:
    shortened = line if len(line) <= MAX_LABEL_LENGTH else line[: MAX_LABEL_LENGTH - 1] + "…"
    return "".join(c if c.isalnum() or c in _UNESCAPED else _ENTITIES.get(c, f"#{ord(c)};") for c in shortened)
