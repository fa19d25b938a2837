"""The size of a pipeline with its calls inlined, computed before the plan is built.

Lets `compile` reject a pipeline that is too large without building it.
"""

from collections.abc import Mapping

from attrs import evolve, frozen

from ductile.pipeline.language.parse import CallAction, ParsedPipeline, ParsedStep, SplitAction, StepsAction


@frozen
class Size:
    """The size that a step or pipeline adds to a plan."""

    jobs: int = 0
    """Nodes, without the switches of its conditions."""
    longest_path: int = 0
    """Jobs on the longest path through it."""
    shortest_path: int = 0
    """Jobs on the shortest path through it."""
    levels: int = 0
    """Nesting depth of groups, splits and calls."""
    calls: int = 0
    """Nesting depth of calls."""


ONE_JOB = Size(jobs=1, longest_path=1, shortest_path=1)
Sizes = dict[ParsedStep | ParsedPipeline, Size]


def measure_pipeline(pipeline: ParsedPipeline, pipelines: Mapping[str, ParsedPipeline], sizes: Sizes) -> None:
    """Add the sizes of the pipeline and all its steps to `sizes`, which must contain every called pipeline."""
    sizes[pipeline] = _sequence_size(pipeline.steps, pipelines, sizes)


def _sequence_size(steps: tuple[ParsedStep, ...], pipelines: Mapping[str, ParsedPipeline], sizes: Sizes) -> Size:
    found = [_step_size(step, pipelines, sizes) for step in steps]
    return evolve(
        _parallel_size(found),
        longest_path=sum(size.longest_path for size in found),
        shortest_path=sum(size.shortest_path for size in found),
    )


def _parallel_size(found: list[Size]) -> Size:
    return Size(
        jobs=sum(size.jobs for size in found),
        longest_path=max((size.longest_path for size in found), default=0),
        shortest_path=min((size.shortest_path for size in found), default=0),
        levels=max((size.levels for size in found), default=0) + 1,
        calls=max((size.calls for size in found), default=0),
    )


def _step_size(step: ParsedStep, pipelines: Mapping[str, ParsedPipeline], sizes: Sizes) -> Size:
    size = _action_size(step, pipelines, sizes)
    if step.on_error:
        handling = _sequence_size(step.on_error, pipelines, sizes)
        size = evolve(
            size,
            jobs=size.jobs + handling.jobs,
            longest_path=size.longest_path + (handling.longest_path if step.tolerated else 0),
            levels=max(size.levels, handling.levels),
            calls=max(size.calls, handling.calls),
        )
    if step.condition:
        size = _behind_switch(size)
    if step.foreach:
        size = evolve(size, shortest_path=0)
    if step.join:
        # A join continues with the context in which it was opened, so its branches do not count for the shortest path.
        size = evolve(size, jobs=size.jobs + 1, longest_path=size.longest_path + 1, shortest_path=1)
    sizes[step] = size
    return size


def _behind_switch(size: Size) -> Size:
    """Add the switch of an `if`. The shortest path is the one on which the `if` is false."""
    return evolve(size, longest_path=size.longest_path + 1, shortest_path=1)


def _action_size(step: ParsedStep, pipelines: Mapping[str, ParsedPipeline], sizes: Sizes) -> Size:
    match step.action:
        case StepsAction(steps):
            return _sequence_size(steps, pipelines, sizes)
        case SplitAction(branches):
            return _parallel_size([_step_size(branch, pipelines, sizes) for branch in branches])
        case CallAction(name):
            called = sizes[pipelines[name]]
            called = _behind_switch(called) if pipelines[name].condition else called
            return evolve(called, levels=called.levels + 1, calls=called.calls + 1)
        case _:
            return ONE_JOB
