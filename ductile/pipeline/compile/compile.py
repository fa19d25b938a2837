"""Compile pipelines into plans: inline calls, check limits, collect all errors. Pure.

Knows the names of plugins, not the plugins themselves; `config.checks` compares plans with manifests.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from blake3 import blake3

from ductile.core.errors import Complaint, PipelineInvalid, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.units import quote_text
from ductile.pipeline.compile.build import build_plan
from ductile.pipeline.compile.graph import find_cycles, format_cycle, reverse_topological_order
from ductile.pipeline.compile.plan import Plan, Plans
from ductile.pipeline.compile.size import Sizes, measure_pipeline
from ductile.pipeline.language.dsl import Pipeline, to_yaml_data
from ductile.pipeline.language.parse import CATEGORY, ParsedPipeline, parse_pipeline

MAX_PLAN_JOBS = 5_000
MAX_NESTING = 100
MAX_TOTAL_JOBS = 100_000
MAX_CALL_DEPTH = 20
MAX_COMPLAINTS = 500


def compile_pipelines(
    pipelines: Sequence[Pipeline], *, names: Collection[str] = (), max_call_depth: int = MAX_CALL_DEPTH
) -> Plans:
    """Compile all pipelines. Raises PipelineInvalid with every error and its configuration path.

    `names` are the configured plugins and aliases; they decide what a dot in `uses` means.
    """
    complaints: list[Complaint] = []
    all_parsed = [
        parse_pipeline(each, f"pipelines[{index}]", names, complaints) for index, each in enumerate(pipelines)
    ]
    by_name: dict[str, ParsedPipeline] = {}
    for parsed in all_parsed:
        by_name.setdefault(parsed.name, parsed)
    _raise_if_any(chain(complaints, _repeated(all_parsed), _dangling(all_parsed, by_name), _circular(by_name)))
    callees_first = reverse_topological_order(by_name, lambda name: [called for called, _ in by_name[name].calls()])
    sizes: Sizes = {}
    for name in callees_first:
        measure_pipeline(by_name[name], by_name, sizes)
    _raise_if_any(_too_large(by_name, callees_first, sizes, max_call_depth))
    fingerprints = _fingerprints(by_name, callees_first)
    plans = [build_plan(parsed, by_name, sizes, fingerprints[parsed.name]) for parsed in all_parsed]
    _raise_if_any(_unreachable(plans))
    return _sorted_by_trigger(plans)


def _raise_if_any(complaints: Iterable[Complaint]) -> None:
    # Suggestions for misspelled names are expensive, so the number of complaints is limited.
    listed = list(islice(complaints, MAX_COMPLAINTS + 1))
    if len(listed) > MAX_COMPLAINTS:
        listed[-1] = _complaint("pipelines", f"too many errors; only the first {MAX_COMPLAINTS} are listed")
    if listed:
        raise PipelineInvalid(listed)


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


def _repeated(all_parsed: list[ParsedPipeline]) -> Iterator[Complaint]:
    """Report a repeated name at every pipeline that has it."""
    paths_by_name: dict[str, list[str]] = {}
    for parsed in all_parsed:
        paths_by_name.setdefault(parsed.name, []).append(parsed.where)
    for name, found in paths_by_name.items():
        for where in found if len(found) > 1 else ():
            other = found[1] if where == found[0] else found[0]
            yield _complaint(f"{where}.name", f"{quote_text(name)} is also the name of {other}; names must be unique")


def _dangling(all_parsed: list[ParsedPipeline], by_name: Mapping[str, ParsedPipeline]) -> Iterator[Complaint]:
    for parsed in all_parsed:
        for called, where in parsed.calls():
            if called not in by_name:
                yield _complaint(where, f"pipeline {quote_text(called)} does not exist{did_you_mean(called, by_name)}")


def _circular(by_name: Mapping[str, ParsedPipeline]) -> Iterator[Complaint]:
    calls = {name: dict(parsed.calls()) for name, parsed in by_name.items()}
    for cycle in find_cycles(calls):
        yield _complaint(calls[cycle[0]][cycle[1]], f"pipelines call each other in a cycle: {format_cycle(cycle)}")


def _too_large(
    by_name: Mapping[str, ParsedPipeline], callees_first: list[str], sizes: Sizes, max_call_depth: int
) -> Iterator[Complaint]:
    """Report only the innermost pipelines that exceed a limit, because they make their callers too large."""
    refused: set[str] = set()
    total = 0
    for name in callees_first:
        parsed, size = by_name[name], sizes[by_name[name]]
        messages = [
            message
            for value, limit, message in (
                (
                    size.jobs,
                    MAX_PLAN_JOBS,
                    f"has {size.jobs:,} jobs including its calls; the limit is {MAX_PLAN_JOBS:,}",
                ),
                (
                    size.levels,
                    MAX_NESTING,
                    f"nests groups and calls {size.levels} levels deep; the limit is {MAX_NESTING}",
                ),
                (
                    size.calls,
                    max_call_depth,
                    f"nests calls {size.calls} levels deep; service.limits.hops allows {max_call_depth}",
                ),
            )
            if value > limit
        ]
        if not any(called in refused for called, _ in parsed.calls()):
            hint = "start the other pipelines with an event instead"
            yield from (_complaint(f"{parsed.where}.steps", f"{message}; {hint}") for message in messages)
            total += size.jobs
        if messages:
            refused.add(name)
    if not refused and total > MAX_TOTAL_JOBS:
        message = f"have {total:,} jobs including their calls; the limit is {MAX_TOTAL_JOBS:,}"
        yield _complaint("pipelines", message)


def _unreachable(plans: list[Plan]) -> Iterator[Complaint]:
    for plan in plans:
        far = [node for node in plan.nodes.values() if plan.max_depth and node.min_depth > plan.max_depth]
        if far:
            message = f"step {quote_text(far[0].path)} is never reached: it is job {far[0].min_depth} at the earliest"
            yield _complaint(f"{plan.where}.max_depth", f"{plan.max_depth} is too small; {message}")


def _complaint(where: str, message: str) -> Complaint:
    return Complaint(message, where, category=CATEGORY)


# ── fingerprints ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fingerprints(by_name: Mapping[str, ParsedPipeline], callees_first: list[str]) -> dict[str, str]:
    """Hash each pipeline together with the pipelines it calls, regardless of the order of keys."""
    fingerprints: dict[str, str] = {}
    for name in callees_first:
        parsed = by_name[name]
        called = {callee: fingerprints[callee] for callee, _ in parsed.calls()}
        content = strict_json.dumps(_sort_keys([to_yaml_data(parsed.source), called]))
        fingerprints[name] = f"blake3:{blake3(content.encode()).hexdigest()}"
    return fingerprints


def _sort_keys(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _sort_keys(data[key]) for key in sorted(data)}
    return [_sort_keys(item) for item in data] if isinstance(data, list | tuple) else data
