"""A plan as a picture: Mermaid text, and on it what became of the steps where jobs of a run are given.

Only looks at plans and jobs. Labels are written so that nothing an author wrote can be taken for Mermaid. The command
line shows what comes out.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from attrs import define, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import Job, JobStatus
from ductile.core.units import format_duration
from ductile.pipeline.compile.graph import Edge, edges
from ductile.pipeline.compile.plan import HANDLE, STEP_FAILED, SWITCH_TRUE, Gate, Plan, PlanNode
from ductile.pipeline.language.conditions import AllOf, AnyOf, Condition, Not, Predicate

LONGEST_LINE = 120
UNREACHED = "unreached"
SHAPES = {"uses": ("[", "]"), "relay": ("[/", "/]"), "join": ("{{", "}}"), "if": ("{", "}")}
LOOKS = {
    JobStatus.RUNNING: "fill:#cfe2ff,stroke:#0d6efd,color:#000",
    JobStatus.QUEUED: "fill:#f8f9fa,stroke:#0d6efd,stroke-dasharray:4,color:#000",
    JobStatus.DEAD: "fill:#f1aeb5,stroke:#842029,stroke-width:3px,color:#000",
    JobStatus.FAILED: "fill:#f8d7da,stroke:#dc3545,color:#000",
    JobStatus.SKIPPED: "fill:#fff3cd,stroke:#997404,color:#000",
    JobStatus.SUCCEEDED: "fill:#d1e7dd,stroke:#198754,color:#000",
    UNREACHED: "fill:#fff,stroke:#adb5bd,stroke-dasharray:4,color:#6c757d",
}
"""How a place looks, by the status that matters most among its jobs: the first one here that any of them has."""


@frozen(kw_only=True)
class StepMark:
    """What became of one place of a plan."""

    status: JobStatus
    jobs: int
    took: timedelta | None
    """All its finished jobs together; None if none of them ran."""
    tolerated: bool = False
    """True if it failed and was allowed to."""

    def __str__(self) -> str:
        words = [f"{self.status}{' (tolerated)' if self.tolerated else ''}"]
        words += [f"{self.jobs} jobs"] if self.jobs > 1 else []
        words += [format_duration(_in_milliseconds(self.took))] if self.took is not None else []
        return ", ".join(words)


def marks_of(jobs: Iterable[Job], pipeline: str) -> dict[str, StepMark]:
    """What became of every step of `pipeline` that has a job among `jobs`, by its path."""
    by_step: dict[str, list[Job]] = {}
    for job in jobs:
        if job.pipeline == pipeline and job.step_id is not None:
            by_step.setdefault(job.step_id, []).append(job)
    return {path: _mark(found) for path, found in by_step.items()}


def _mark(jobs: list[Job]) -> StepMark:
    status = next(JobStatus(look) for look in LOOKS if any(job.status == look for job in jobs))
    took = [job.completed_at - job.started_at for job in jobs if job.completed_at and job.started_at]
    return StepMark(
        status=status,
        jobs=len(jobs),
        took=sum(took, timedelta()) if took else None,
        tolerated=status in (JobStatus.FAILED, JobStatus.DEAD)
        and all(job.tolerated for job in jobs if job.status == status),
    )


def _in_milliseconds(took: timedelta) -> timedelta:
    return timedelta(milliseconds=took // timedelta(milliseconds=1))


def draw(plan: Plan, marks: Mapping[str, StepMark] | None = None) -> str:
    """The plan as a Mermaid flowchart; with `marks`, each place looks like what became of it."""
    names = {place: f"n{number}" for number, place in enumerate(plan.places)}
    ways = list(edges(plan))
    lines = ["flowchart TD", f"  start([{_quoted(_trigger(plan))}])", *_boxes(_frames(plan), "", names, marks)]
    if any(way.target is None for way in ways):
        lines.append('  finish(("end"))')
    lines += [f"  {_arrow(way, names)}" for way in ways]
    return "\n".join([*lines, *(_looks(names, marks) if marks is not None else ())]) + "\n"


def worded(condition: Condition) -> str:
    """A condition in one line, as people say it."""
    match condition:
        case Predicate():
            value = "" if condition.op == "exists" else f" {strict_json.dumps(condition.value)}"
            return f"{condition.path} {condition.op}{value}"
        case AllOf(members):
            return f"({' and '.join(map(worded, members))})"
        case AnyOf(members):
            return f"({' or '.join(map(worded, members))})"
        case Not(member):
            return f"not {worded(member)}"


def _trigger(plan: Plan) -> str:
    source = f" from {plan.from_plugin}" if plan.from_plugin else ""
    gate = f"\nif {worded(plan.condition)}" if plan.condition else ""
    return f"{plan.name}\n{'on' if plan.on else 'on hook'} {plan.on or plan.hook}{source}{gate}"


@define
class _Frame:
    """What is written in one pipeline: its places, and the paths of the calls among them."""

    name: str
    places: list[PlanNode | Gate] = field(factory=list)
    calls: list[str] = field(factory=list)


def _frames(plan: Plan) -> dict[str, _Frame]:
    """Every call by its path, the pipeline itself by an empty one."""
    frames = {"": _Frame("c0")}
    for place in plan.places:
        path = ""
        for call in place.path.split("/")[:-1]:
            above, path = path, f"{path}/{call}" if path else call
            if path not in frames:
                frames[path] = _Frame(f"c{len(frames)}")
                frames[above].calls.append(path)
        frames[path].places.append(place)
    return frames


def _boxes(
    frames: Mapping[str, _Frame], path: str, names: Mapping[PlanNode | Gate, str], marks: Mapping[str, StepMark] | None
) -> Iterator[str]:
    """The places of one frame, those of the calls inside it in frames of their own."""
    frame = frames[path]
    indent = "  " * (len(path.split("/")) + 1 if path else 1)
    for place in frame.places:
        yield f"{indent}{names[place]}{_box(place, marks)}"
    for call in frame.calls:
        called = next((f" → {place.pipeline}" for place in frames[call].places), "")
        title = _quoted(f"call {call.rpartition('/')[2]}{called}")
        yield f"{indent}subgraph {frames[call].name}[{title}]"
        yield from _boxes(frames, call, names, marks)
        yield f"{indent}end"


def _box(place: PlanNode | Gate, marks: Mapping[str, StepMark] | None) -> str:
    match place:
        case Gate():
            kind, lines = "if", [f"if {worded(place.condition)}"]
        case PlanNode(kind="uses"):
            command = "" if place.command == HANDLE else f".{place.command}"
            kind, lines = "uses", [place.step_id, f"{place.plugin}{command}"]
        case PlanNode(kind="relay", relay=relay) if relay is not None:
            kind, lines = "relay", [place.step_id, f"relay {relay.event} to {relay.to}"]
        case _:
            kind, lines = "join", [place.step_id]
    if marks is not None and place.path in marks:
        lines.append(str(marks[place.path]))
    before, after = SHAPES[kind]
    return f"{before}{_quoted(chr(10).join(lines))}{after}"


def _arrow(way: Edge, names: Mapping[PlanNode | Gate, str]) -> str:
    source = names[way.source] if way.source else "start"
    target = names[way.target] if way.target else "finish"
    line, words = ("-.->", ["on error"]) if way.event == STEP_FAILED else ("-->", [])
    if isinstance(way.source, Gate):
        words.append("yes" if way.event == SWITCH_TRUE else "no")
    if way.foreach:
        words.append(f"each of {way.foreach}")
    label = f"|{_quoted(', '.join(words))}|" if words else ""
    return f"{source} {line}{label} {target}"


def _looks(names: Mapping[PlanNode | Gate, str], marks: Mapping[str, StepMark]) -> Iterator[str]:
    for look, style in LOOKS.items():
        alike = [name for place, name in names.items() if _look(marks.get(place.path)) == look]
        if alike:
            yield f"  classDef {look} {style}"
            yield f"  class {','.join(alike)} {look}"


def _look(mark: StepMark | None) -> str:
    return mark.status if mark else UNREACHED


_PLAIN = frozenset(" ._-+=/(),!?…→'")
_NAMED = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}


def _quoted(text: str) -> str:
    """Text as a Mermaid label: letters and a few signs as they are, everything that could mean something as a code."""
    return f'"{"<br/>".join(map(_coded, text.split(chr(10))))}"'


def _coded(line: str) -> str:
    cut = line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
    return "".join(c if c.isalnum() or c in _PLAIN else _NAMED.get(c, f"#{ord(c)};") for c in cut)
