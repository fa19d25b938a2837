"""Route events that no job emitted: external events and alerts. Pure.

An external event has no plugin, so `routes:` and `from_plugin` never match it. An alert is routed like an event of the
plugin it is about. Webhooks, relays and the scheduler call it.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from ductile.core.model import HANDLE, FollowUps, JobStatus, NewJob, Note
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.run.cursor import RunCursor
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.execute import plugin_unavailable
from ductile.pipeline.run.route import RoutingConfig, TooManyFollowUps, enter_pipeline, initial_cursor_fields, may_start

NO_PLUGIN = ""
"""The source plugin of an external event."""
NO_BAGGAGE: Mapping[str, Any] = MappingProxyType({})


class EventTypeInvalid(Exception):
    """An event type that cannot be built from the request; the message is the reason."""


@frozen
class EventTypeTemplate:
    """A template for event types, such as `github.{header.X-GitHub-Event}`."""

    parts: tuple[str, ...]
    """Literal text and, at every odd index, the lower-case name of a header."""

    @classmethod
    def parse(cls, text: str) -> "EventTypeTemplate":
        parts = _HEADER.split(text)
        return cls(tuple(part.lower() if index % 2 else part for index, part in enumerate(parts)))

    @property
    def headers(self) -> tuple[str, ...]:
        return self.parts[1::2]

    def render(self, header: Callable[[str], str | None]) -> str:
        """Insert the header values. Raises EventTypeInvalid if one is missing or not allowed in a type."""
        if len(self.parts) == 1:
            return self.parts[0]
        return "".join(
            _header_value(part, header(part)) if index % 2 else part for index, part in enumerate(self.parts)
        )


def create_handle_job(plugin: str, event: Event, routing: RoutingConfig, *, submitted_by: str) -> FollowUps:
    """Create one `handle` job as a separate tree. If the plugin cannot run, the job is dead with the reason."""
    target = routing.target(plugin)
    job = NewJob(
        plugin=plugin,
        command=HANDLE,
        submitted_by=submitted_by,
        payload=event.envelope(),
        max_attempts=target.max_attempts,
        source_event_id=event.id,
        snapshot_id=routing.snapshot_id,
        notify=target.notify,
        prefinished=plugin_unavailable(plugin, target.refused) if target.refused else None,
    )
    return FollowUps(children=(job,))


def trigger_run_with(
    plan: Plan, event: Event, routing: RoutingConfig, *, submitted_by: str, baggage: Mapping[str, Any] = NO_BAGGAGE
) -> FollowUps:
    """Start a run of `plan` without evaluating its conditions; the root job comes first.

    Raises TooManyFollowUps.
    """
    execution = routing.new_execution()
    enter_pipeline(
        plan,
        event,
        execution,
        RunCursor(**initial_cursor_fields(plan, event), baggage=baggage, submitted_by=submitted_by),
    )
    return execution.follow_ups()


def route_external_event(
    event: Event, routing: RoutingConfig, *, submitted_by: str, baggage: Mapping[str, Any] = NO_BAGGAGE
) -> tuple[FollowUps, ...]:
    """Start every pipeline that the event triggers, each as a separate tree with `baggage` in its context.

    A pipeline that does not start is noted.
    """
    runs = tuple(
        _triggered(plan, event, routing, submitted_by, baggage=baggage) for plan in routing.plans.for_event(event.type)
    )
    if any(follow_ups.children for follow_ups in runs):
        return runs
    details = {"event_id": event.id, "type": event.type, "source": event.source}
    return (*runs, FollowUps(notes=(Note(kind="event.unmatched", data=details),)))


def route_alert(event: Event, routing: RoutingConfig, plugin: str, *, submitted_by: str) -> tuple[FollowUps, ...]:
    """Start the routes, pipelines and hooks that an alert about `plugin` triggers, each as a separate tree."""
    routed = tuple(
        create_handle_job(target, event, routing, submitted_by=submitted_by)
        for _, target in routing.routes.targets.get((plugin, event.type), ())
    )
    plans = (*routing.plans.for_event(event.type), *routing.plans.for_hook(event.type))
    return (*routed, *(_triggered(plan, event, routing, submitted_by, plugin) for plan in plans))


def unavailable_plugin_reason(follow_ups: FollowUps, routing: RoutingConfig) -> str | None:
    """Return the reason if a plugin that cannot run prevents the run from starting."""
    for new in follow_ups.children:
        is_dead = new.prefinished is not None and new.prefinished.status is JobStatus.DEAD and not new.tolerated
        if is_dead and (why := routing.target(new.plugin).refused):
            return f"plugin {new.plugin} {why}"
    return None


def _triggered(
    plan: Plan,
    event: Event,
    routing: RoutingConfig,
    submitted_by: str,
    source: str = NO_PLUGIN,
    baggage: Mapping[str, Any] = NO_BAGGAGE,
) -> FollowUps:
    execution = routing.new_execution()
    if not may_start(plan, event, source, baggage, execution):
        return execution.follow_ups()
    try:
        follow_ups = trigger_run_with(plan, event, routing, submitted_by=submitted_by, baggage=baggage)
    except TooManyFollowUps as error:
        details = {"pipeline": plan.name, "event_id": event.id, "type": event.type, "reason": str(error)}
        return FollowUps(notes=(Note(kind="pipeline.skipped", data=details),))
    return evolve(follow_ups, notes=(*execution.notes, *follow_ups.notes))


_HEADER = re.compile(r"\{header\.([!#$%&'*+.^_`|~0-9A-Za-z-]+)\}")
_PART_OF_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


def _header_value(name: str, value: str | None) -> str:
    if value is None:
        raise EventTypeInvalid(f"the header {name} is missing; the event type is built from it")
    if not _PART_OF_TYPE.fullmatch(value):
        raise EventTypeInvalid(f"the value of header {name} is not allowed in an event type")
    return value
