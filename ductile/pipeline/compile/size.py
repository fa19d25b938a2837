"""How large a pipeline becomes when its calls are inlined: computed before anything is built.

Adding up costs nothing, so a pipeline that would explode is refused here and never built.
"""

from collections.abc import Mapping

from attrs import evolve, frozen

from ductile.pipeline.language.parse import Beside, Calls, InTurn, ReadPipeline, ReadStep


@frozen
class Size:
    """What a step or a pipeline adds to a plan."""

    jobs: int = 0
    """Places that have a job."""
    longest: int = 0
    """Jobs on the longest way through it."""
    least: int = 0
    """Jobs on the shortest way through it."""
    levels: int = 0
    """Groups, splits and calls inside each other."""
    calls: int = 0
    """Calls inside each other."""


ONE_JOB = Size(jobs=1, longest=1, least=1)
Sizes = dict[ReadStep | ReadPipeline, Size]


def measure(pipeline: ReadPipeline, pipelines: Mapping[str, ReadPipeline], sizes: Sizes) -> None:
    """`sizes` has the pipeline and its every step; what it calls must be there already."""
    sizes[pipeline] = _in_turn(pipeline.steps, pipelines, sizes)


def _in_turn(steps: tuple[ReadStep, ...], pipelines: Mapping[str, ReadPipeline], sizes: Sizes) -> Size:
    found = [_step(step, pipelines, sizes) for step in steps]
    return evolve(
        _together(found), longest=sum(size.longest for size in found), least=sum(size.least for size in found)
    )


def _together(found: list[Size]) -> Size:
    """Next to each other."""
    return Size(
        jobs=sum(size.jobs for size in found),
        longest=max((size.longest for size in found), default=0),
        least=min((size.least for size in found), default=0),
        levels=max((size.levels for size in found), default=0) + 1,
        calls=max((size.calls for size in found), default=0),
    )


def _step(step: ReadStep, pipelines: Mapping[str, ReadPipeline], sizes: Sizes) -> Size:
    size = _action(step, pipelines, sizes)
    if step.on_error:
        handling = _in_turn(step.on_error, pipelines, sizes)
        size = evolve(
            size,
            jobs=size.jobs + handling.jobs,
            longest=size.longest + (handling.longest if step.tolerated else 0),
            levels=max(size.levels, handling.levels),
            calls=max(size.calls, handling.calls),
        )
    if step.condition or step.foreach:
        size = evolve(size, least=0)
    if step.join:
        # A join goes on with the context in which it was opened, so its branches do not count on the shortest way.
        is_skippable = step.condition and not step.foreach
        size = evolve(size, jobs=size.jobs + 1, longest=size.longest + 1, least=0 if is_skippable else 1)
    sizes[step] = size
    return size


def _action(step: ReadStep, pipelines: Mapping[str, ReadPipeline], sizes: Sizes) -> Size:
    match step.action:
        case InTurn(steps):
            return _in_turn(steps, pipelines, sizes)
        case Beside(branches):
            return _together([_step(branch, pipelines, sizes) for branch in branches])
        case Calls(name):
            called = sizes[pipelines[name]]
            least = 0 if pipelines[name].condition else called.least
            return evolve(called, least=least, levels=called.levels + 1, calls=called.calls + 1)
        case _:
            return ONE_JOB
