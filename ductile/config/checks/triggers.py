"""Warnings about pipelines and routes whose event type no plugin, webhook, consumer or relay declares.

A pipeline may also be started by name, or by an event that is sent over the API. So apart from likely typos, only event
types that begin like those of a plugin or webhook are reported, unless a plugin without declarations may emit them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, get_args

from ductile.config.load.load import Config
from ductile.config.sections.settings import Peer, WebhookEndpoint
from ductile.core.errors import Complaint, did_you_mean
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.language.dsl import Signal
from ductile.plugin.registry import Plugin

ALARMS = ("schedule.late", "job.overdue")
"""Events that the scheduler emits for `expect`."""
WEBHOOK = "webhook"
_HEADER = re.compile(r"\{[^{}]*\}")


def find_undeclared_triggers(config: Config, plugins: Mapping[str, Plugin]) -> Iterator[Complaint]:
    """Yield a warning for each pipeline that no declared event starts."""
    plans = config.plans.by_name.values()
    started = {node.pipeline for plan in plans for node in plan.nodes.values() if node.call_depth}
    started |= {endpoint.pipeline for endpoint in config.settings.webhooks.endpoints if endpoint.pipeline}
    started |= {consumer.pipeline for consumer in config.settings.exchange.consumers if consumer.pipeline}
    for plan in plans:
        if plan.on is None or plan.name in started:
            continue
        sources = _sources(config, plugins, plan)
        peers = _peers(config, plan)
        declared = {*ALARMS, *chain(*sources.values()), *chain(*(peer.accept for peer in peers))}
        declared |= _consumer_events(config, plan)
        if plan.on in declared or _is_configured(config, sources, plan.on) or _comes_from_webhook(config, plan):
            continue
        if plan.on in get_args(Signal):
            hint = f"for the end of jobs or runs, use on-hook: {plan.on}"
            message = f"no plugin, webhook, consumer or relay declares {plan.on!r}; {hint}"
            yield config.complaint(message, f"{plan.where}.on", "pipelines")
            continue
        hint = did_you_mean(plan.on, sorted(declared))
        is_unavailable = plan.from_plugin is not None and not sources
        is_open = is_unavailable or not all(sources.values()) or not all(peer.accept for peer in peers)
        owners = {WEBHOOK, *sources, *map(_namespace, declared)}
        if hint or (not is_open and _namespace(plan.on) in owners):
            message = f"no plugin, webhook, consumer or relay declares the event type {plan.on!r}{hint}"
            yield config.complaint(message, f"{plan.where}.on", "pipelines")


def find_undeclared_routes(config: Config, plugins: Mapping[str, Plugin]) -> Iterator[Complaint]:
    """Yield a warning for each route whose event type is probably a misspelled event of its plugin."""
    for index, route in enumerate(config.settings.routes):
        source = plugins.get(route.source)
        declared = {*ALARMS, *(_declared_events(source) if source else ())}
        is_known = route.event_type in declared or _is_configured(config, [route.source], route.event_type)
        if not is_known and (hint := did_you_mean(route.event_type, sorted(declared))):
            message = f"plugin {route.source} declares no event type {route.event_type!r}{hint}"
            yield config.complaint(message, f"routes[{index}].event_type", "routes")


def _declared_events(plugin: Plugin) -> set[str]:
    return {emission.event for command in plugin.manifest.commands.values() for emission in command.values.emit}


def _namespace(event_type: str) -> str:
    return event_type.partition(".")[0]


def _sources(config: Config, plugins: Mapping[str, Plugin], plan: Plan) -> dict[str, set[str]]:
    """Return the events that each plugin declares, for the plugins that can start the pipeline."""
    entries = config.settings.plugins
    return {
        name: _declared_events(plugin)
        for name, plugin in plugins.items()
        if (name not in entries or entries[name].enabled) and plan.accepts_source(name)
    }


def _is_configured(config: Config, sources: Iterable[str], event_type: str) -> bool:
    """True if the configuration of a plugin contains the event type, as `event_type` of sys_exec does."""
    entries = config.settings.plugins
    return any(_contains(entries[name].config, event_type) for name in sources if name in entries)


def _contains(value: Any, text: str) -> bool:
    if isinstance(value, Mapping):
        return any(_contains(member, text) for member in value.values())
    return any(_contains(item, text) for item in value) if isinstance(value, list | tuple) else value == text


def _peers(config: Config, plan: Plan) -> list[Peer]:
    """Return the peers whose events can start the pipeline."""
    ingress = config.settings.remote_ingress
    if ingress is None or plan.from_plugin is not None:
        return []
    return [peer for peer in ingress.peers if peer.enabled]


def _consumer_events(config: Config, plan: Plan) -> set[str]:
    """Return the events of consumers that can start the pipeline."""
    consumers = config.settings.exchange.consumers if plan.from_plugin is None else ()
    return {consumer.event for consumer in consumers if consumer.event}


def _comes_from_webhook(config: Config, plan: Plan) -> bool:
    endpoints = config.settings.webhooks.endpoints if plan.from_plugin is None else ()
    return any(_can_emit(endpoint, plan.on or "") for endpoint in endpoints)


def _can_emit(endpoint: WebhookEndpoint, event_type: str) -> bool:
    """True if a delivery can have this event type. A part such as `{header.X-GitHub-Event}` stands for any text."""
    if endpoint.event is None:
        return False
    literal = map(re.escape, _HEADER.split(endpoint.event))
    return re.fullmatch(".+".join(literal), event_type) is not None
