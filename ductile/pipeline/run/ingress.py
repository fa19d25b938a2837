"""An event that no job has emitted: the jobs it becomes. Pure.

One from outside has no plugin, so no `routes:` entry and no `from_plugin` ever matches it; an alarm speaks of a plugin
and goes the ways of that plugin's events. Knows nothing of how it came; webhooks and the scheduler call it.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from ductile.core.model import FollowUps, JobStatus, NewJob, Note, Prefinished
from ductile.pipeline.compile.plan import HANDLE, Plan
from ductile.pipeline.run.cursor import Position
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.route import TooManyFollowUps, World, fresh, may_begin, start

NOBODY = ""
"""The plugin that an event from outside comes from."""
NO_BAGGAGE: Mapping[str, Any] = MappingProxyType({})


class TypeRefused(Exception):
    """The event's type cannot be made from what came with it; the message says why."""


@frozen
class EventType:
    """The type of the events of one source, such as `github.{header.X-GitHub-Event}`."""

    parts: tuple[str, ...]
    """Literal texts and, at every odd place, the lower-case name of a header."""

    @classmethod
    def of(cls, text: str) -> "EventType":
        parts = _HEADER.split(text)
        return cls(tuple(part.lower() if index % 2 else part for index, part in enumerate(parts)))

    def filled(self, header: Callable[[str], str | None]) -> str:
        """The type with the values of the headers in it; TypeRefused if one is missing or no part of a type."""
        if len(self.parts) == 1:
            return self.parts[0]
        return "".join(_value(part, header(part)) if index % 2 else part for index, part in enumerate(self.parts))


def hand_over(plugin: str, event: Event, world: World, *, submitted_by: str) -> FollowUps:
    """One `handle` job that is a tree of its own; for a plugin that cannot run it is dead and says why."""
    known = world.target(plugin)
    job = NewJob(
        plugin=plugin,
        command=HANDLE,
        submitted_by=submitted_by,
        payload=event.envelope(),
        max_attempts=known.max_attempts,
        source_event_id=event.id,
        snapshot_id=world.snapshot_id,
        notify=known.notify,
        settled=Prefinished(status=JobStatus.DEAD, error=f"plugin {plugin} {known.refused}") if known.refused else None,
    )
    return FollowUps(children=(job,))


def begin_with(
    plan: Plan, event: Event, world: World, *, submitted_by: str, baggage: Mapping[str, Any] = NO_BAGGAGE
) -> FollowUps:
    """Start a run of `plan` without evaluating its conditions; the root job comes first.

    Raises TooManyFollowUps if the run begins with too many jobs.
    """
    walk = world.walk()
    start(plan, event, walk, Position(**fresh(plan, event), baggage=baggage, submitted_by=submitted_by))
    return walk.following()


def arrive(
    event: Event, world: World, *, submitted_by: str, baggage: Mapping[str, Any] = NO_BAGGAGE
) -> tuple[FollowUps, ...]:
    """A run for every pipeline that waits for the event, each a tree of its own; what does not begin is noted.

    The context of each begins with `baggage`.
    """
    arrived = tuple(
        _triggered(plan, event, world, submitted_by, baggage=baggage) for plan in world.plans.on(event.type)
    )
    if any(following.children for following in arrived):
        return arrived
    about = {"event_id": event.id, "type": event.type, "source": event.source}
    return (*arrived, FollowUps(notes=(Note(kind="event.unmatched", data=about),)))


def sound(event: Event, world: World, plugin: str, *, submitted_by: str) -> tuple[FollowUps, ...]:
    """Everything that waits for an alarm about `plugin`, each a tree of its own: routes, pipelines, hooks."""
    routed = tuple(
        hand_over(target, event, world, submitted_by=submitted_by)
        for _, target in world.routes.targets.get((plugin, event.type), ())
    )
    plans = (*world.plans.on(event.type), *world.plans.on_hook(event.type))
    return (*routed, *(_triggered(plan, event, world, submitted_by, plugin) for plan in plans))


def refused_plugin(following: FollowUps, world: World) -> str | None:
    """Why the run is over before it began, if that is because a plugin must not run now."""
    for new in following.children:
        is_dead = new.settled is not None and new.settled.status is JobStatus.DEAD and not new.tolerated
        if is_dead and (why := world.target(new.plugin).refused):
            return f"plugin {new.plugin} {why}"
    return None


def _triggered(
    plan: Plan,
    event: Event,
    world: World,
    submitted_by: str,
    source: str = NOBODY,
    baggage: Mapping[str, Any] = NO_BAGGAGE,
) -> FollowUps:
    walk = world.walk()
    if not may_begin(plan, event, source, baggage, walk):
        return walk.following()
    try:
        following = begin_with(plan, event, world, submitted_by=submitted_by, baggage=baggage)
    except TooManyFollowUps as error:
        about = {"pipeline": plan.name, "event_id": event.id, "type": event.type, "reason": str(error)}
        return FollowUps(notes=(Note(kind="pipeline.skipped", data=about),))
    return evolve(following, notes=(*walk.notes, *following.notes))


_HEADER = re.compile(r"\{header\.([!#$%&'*+.^_`|~0-9A-Za-z-]+)\}")
_PART_OF_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise TypeRefused(f"the header {name} is missing; the event's type is made from it")
    if not _PART_OF_TYPE.fullmatch(value):
        raise TypeRefused(f"the header {name} cannot be part of an event's type")
    return value
