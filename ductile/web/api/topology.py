"""The topology route: which plugins emit and consume which events.

Computed from manifests, routes and pipelines. The events that plugins really emit are in the journal.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, TypedDict

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Timestamp
from ductile.core.model import HANDLE
from ductile.pipeline.compile.graph import edges
from ductile.pipeline.compile.plan import Gate, Plan, PlanNode
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route


class EndpointView(TypedDict):
    """A command of a plugin that emits or consumes a signal."""

    plugin: str
    command: str


class SignalView(TypedDict):
    name: str
    producers: list[EndpointView]
    consumers: list[EndpointView]


class SignalUseView(TypedDict):
    signal: str
    command: str


class PluginSignalsView(TypedDict):
    name: str
    version: str
    active: bool
    inputs: list[SignalUseView]
    outputs: list[SignalUseView]


class _Topology(TypedDict):
    version: Annotated[str, "Digest of the configuration"]
    plugins: list[PluginSignalsView]
    signals: list[SignalView]


class TopologyView(_Topology):
    captured_at: Timestamp


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the topology route."""

    async def show_topology(request: Request) -> Response:
        return json_response(TopologyView(captured_at=to_text(ctx.clock.now()), **topology(ctx.snapshot())))

    yield Route(
        method="GET",
        path="/topology",
        handler=show_topology,
        scope="system:ro",
        summary="Get the producers and consumers of each event type",
        group="discovery",
        responses={200: TopologyView},
    )


def topology(snapshot: Snapshot) -> _Topology:
    """Return the declared signals with their producers and consumers, and the inputs and outputs of each plugin."""
    produced, consumed = sorted(set(_producers(snapshot))), sorted(set(_consumers(snapshot)))
    names = sorted({*snapshot.plugins, *snapshot.unavailable})
    return {
        "version": snapshot.config.digest,
        "plugins": [
            {
                "name": name,
                "version": _version(snapshot, name),
                "active": name in snapshot.plugins,
                "inputs": [{"signal": at, "command": command} for at, plugin, command in consumed if plugin == name],
                "outputs": [{"signal": at, "command": command} for at, plugin, command in produced if plugin == name],
            }
            for name in names
        ],
        "signals": [
            {"name": signal, "producers": _endpoints(produced, signal), "consumers": _endpoints(consumed, signal)}
            for signal in sorted({signal for signal, _, _ in (*produced, *consumed)})
        ],
    }


SignalUse = tuple[str, str, str]
"""Signal, plugin, command."""


def _producers(snapshot: Snapshot) -> Iterator[SignalUse]:
    for name, configured in snapshot.plugins.items():
        for command in configured.plugin.manifest.commands.values():
            yield from ((emission.event, name, command.name) for emission in command.values.emit)


def _consumers(snapshot: Snapshot) -> Iterator[SignalUse]:
    """Yield the consumers: targets of routes, and first steps of pipelines."""
    settings = snapshot.config.settings
    yield from ((route.event_type, route.to, HANDLE) for route in settings.routes)
    for plan in snapshot.plans.by_name.values():
        signal = plan.on or plan.hook or ""
        yield from ((signal, node.plugin, node.command) for node in first_nodes(plan))


def first_nodes(plan: Plan) -> list[PlanNode]:
    """Return the steps that a run can start with, for every outcome of its switches."""
    targets: dict[PlanNode | Gate | None, list[PlanNode | Gate]] = {}
    for edge in edges(plan):
        if edge.target is not None:
            targets.setdefault(edge.source, []).append(edge.target)
    found: dict[PlanNode, None] = {}
    pending, seen = list(targets.get(None, ())), set[Gate]()
    while pending:
        target = pending.pop(0)
        if isinstance(target, PlanNode):
            found[target] = None
        elif target not in seen:
            seen.add(target)
            pending += targets.get(target, ())
    return list(found)


def _endpoints(uses: Iterable[SignalUse], signal: str) -> list[EndpointView]:
    return [{"plugin": plugin, "command": command} for at, plugin, command in uses if at == signal]


def _version(snapshot: Snapshot, name: str) -> str:
    return snapshot.plugins[name].plugin.manifest.version if name in snapshot.plugins else ""
