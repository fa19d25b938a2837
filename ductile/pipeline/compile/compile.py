"""Pipelines as written → plans: calls inlined, every step a place with what follows it, every mistake found.

Pure. Knows the names the author may use, not the plugins behind them; the doctor holds plans against manifests.
The values it makes (Node, the kinds of Entry, Plan, Plans) are in `plan`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from blake3 import blake3

from ductile.core.errors import Complaint, PipelineInvalid, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.units import shown
from ductile.pipeline.compile.build import build
from ductile.pipeline.compile.graph import circles, last_first, way
from ductile.pipeline.compile.plan import Plan, Plans
from ductile.pipeline.compile.size import Sizes, measure
from ductile.pipeline.language.dsl import Pipeline, written
from ductile.pipeline.language.parse import CATEGORY, ReadPipeline, read

MOST_JOBS = 5_000
MOST_LEVELS = 100
MOST_JOBS_IN_ALL = 100_000
MOST_CALLS = 20
MOST_COMPLAINTS = 500


def compile_pipelines(
    pipelines: Sequence[Pipeline], *, names: Collection[str] = (), most_calls: int = MOST_CALLS
) -> Plans:
    """The plans of all pipelines; PipelineInvalid lists everything that is wrong, each with its path.

    `names` are the configured plugins and aliases: they decide what a dot in `uses` means.
    """
    complaints: list[Complaint] = []
    readings = [read(each, f"pipelines[{index}]", names, complaints) for index, each in enumerate(pipelines)]
    by_name: dict[str, ReadPipeline] = {}
    for reading in readings:
        by_name.setdefault(reading.name, reading)
    _refuse(chain(complaints, _repeated(readings), _dangling(readings, by_name), _circular(by_name)))
    callees_first = last_first(by_name, lambda name: [called for called, _ in by_name[name].calls()])
    sizes: Sizes = {}
    for name in callees_first:
        measure(by_name[name], by_name, sizes)
    _refuse(_too_large(by_name, callees_first, sizes, most_calls))
    fingerprints = _fingerprints(by_name, callees_first)
    plans = [build(reading, by_name, sizes, fingerprints[reading.name]) for reading in readings]
    _refuse(_unreachable(plans))
    return _sorted_by_trigger(plans)


def _refuse(complaints: Iterable[Complaint]) -> None:
    """Nobody reads more than some, and guessing what each was meant to be takes its time."""
    told = list(islice(complaints, MOST_COMPLAINTS + 1))
    if len(told) > MOST_COMPLAINTS:
        told[-1] = _complaint("pipelines", f"there is more; these are the first {MOST_COMPLAINTS} mistakes")
    if told:
        raise PipelineInvalid(told)


def _sorted_by_trigger(plans: list[Plan]) -> Plans:
    by_event: dict[str, tuple[Plan, ...]] = {}
    by_hook: dict[str, tuple[Plan, ...]] = {}
    for plan in plans:
        if plan.on is not None:
            by_event[plan.on] = (*by_event.get(plan.on, ()), plan)
        if plan.hook is not None:
            by_hook[plan.hook] = (*by_hook.get(plan.hook, ()), plan)
    return Plans({plan.name: plan for plan in plans}, by_event, by_hook)


# ── between pipelines ───────────────────────────────────────────────────────────────────────────────────────────────


def _repeated(readings: list[ReadPipeline]) -> Iterator[Complaint]:
    """Told at every place that has the name."""
    places: dict[str, list[str]] = {}
    for reading in readings:
        places.setdefault(reading.name, []).append(reading.where)
    for name, found in places.items():
        for place in found if len(found) > 1 else ():
            other = found[1] if place == found[0] else found[0]
            yield _complaint(f"{place}.name", f"{shown(name)} is also the name of {other}; names are unique")


def _dangling(readings: list[ReadPipeline], by_name: Mapping[str, ReadPipeline]) -> Iterator[Complaint]:
    for reading in readings:
        for called, where in reading.calls():
            if called not in by_name:
                yield _complaint(where, f"there is no pipeline {shown(called)}{did_you_mean(called, by_name)}")


def _circular(by_name: Mapping[str, ReadPipeline]) -> Iterator[Complaint]:
    calls = {name: dict(reading.calls()) for name, reading in by_name.items()}
    for circle in circles(calls):
        yield _complaint(calls[circle[0]][circle[1]], f"pipelines call each other in a circle: {way(circle)}")


def _too_large(
    by_name: Mapping[str, ReadPipeline], callees_first: list[str], sizes: Sizes, most_calls: int
) -> Iterator[Complaint]:
    """Told of the innermost ones that are; their callers are too large because of them."""
    refused: set[str] = set()
    total = 0
    for name in callees_first:
        reading, size = by_name[name], sizes[by_name[name]]
        told = [
            message
            for much, most, message in (
                (size.jobs, MOST_JOBS, f"has {size.jobs:,} jobs with all its calls; {MOST_JOBS:,} are allowed"),
                (size.levels, MOST_LEVELS, f"nests groups and calls {size.levels} deep; {MOST_LEVELS} are allowed"),
                (size.calls, most_calls, f"nests calls {size.calls} deep; service.limits.hops allows {most_calls}"),
            )
            if much > most
        ]
        if not any(called in refused for called, _ in reading.calls()):
            hint = "start the other pipelines with an event instead"
            yield from (_complaint(f"{reading.where}.steps", f"{message}; {hint}") for message in told)
            total += size.jobs
        if told:
            refused.add(name)
    if not refused and total > MOST_JOBS_IN_ALL:
        message = f"have {total:,} jobs with all their calls; {MOST_JOBS_IN_ALL:,} are allowed in all"
        yield _complaint("pipelines", message)


def _unreachable(plans: list[Plan]) -> Iterator[Complaint]:
    for plan in plans:
        far = [node for node in plan.nodes.values() if plan.max_depth and node.nearest > plan.max_depth]
        if far:
            message = f"step {shown(far[0].path)} can never be reached: it is job {far[0].nearest} at the earliest"
            yield _complaint(f"{plan.where}.max_depth", f"{plan.max_depth} is too little; {message}")


def _complaint(where: str, message: str) -> Complaint:
    return Complaint(message, where, category=CATEGORY)


# ── fingerprints ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fingerprints(by_name: Mapping[str, ReadPipeline], callees_first: list[str]) -> dict[str, str]:
    """Each changes when the pipeline's shape does, or that of one it calls; the order of keys does not count."""
    found: dict[str, str] = {}
    for name in callees_first:
        reading = by_name[name]
        called = {callee: found[callee] for callee, _ in reading.calls()}
        content = strict_json.dumps(_normal([written(reading.written), called]))
        found[name] = f"blake3:{blake3(content.encode()).hexdigest()}"
    return found


def _normal(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _normal(data[key]) for key in sorted(data)}
    return [_normal(item) for item in data] if isinstance(data, list | tuple) else data
