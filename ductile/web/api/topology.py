"""Who talks to whom, over HTTP: which plugin emits which event, and who takes it.

Told from manifests, routes and pipelines; what plugins really emit is in the journal.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.pipeline.compile.graph import edges
from ductile.pipeline.compile.plan import HANDLE, Gate, Plan, PlanNode
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.schemas import boolean, listing, moment, record, text
from ductile.web.routes import AnyRoute, Route

_ENDS = listing(record({"plugin": text(), "command": text()}))
TOPOLOGY = record(
    {
        "version": text("Changes with the configuration"),
        "captured_at": moment(),
        "plugins": listing(
            record(
                {
                    "name": text(),
                    "version": text(),
                    "active": boolean(),
                    "inputs": listing(record({"signal": text(), "command": text()})),
                    "outputs": listing(record({"signal": text(), "command": text()})),
                }
            )
        ),
        "signals": listing(record({"name": text(), "producers": _ENDS, "consumers": _ENDS})),
    }
)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers about events between plugins."""

    async def show_topology(request: Request) -> Response:
        return json_response({"captured_at": to_text(desk.clock.now()), **topology(desk.snapshot())})

    yield Route(
        method="GET",
        path="/topology",
        handler=show_topology,
        scope="system:ro",
        summary="Which plugin emits which event, and who takes it",
        group="discovery",
        gives={200: TOPOLOGY},
    )


def topology(snapshot: Snapshot) -> dict[str, Any]:
    """Which signals the manifests declare and who is waiting for each."""
    produced, consumed = sorted(set(_produced(snapshot))), sorted(set(_consumed(snapshot)))
    names = sorted({*snapshot.lanes, *snapshot.unavailable})
    return {
        "version": snapshot.config.digest,
        "plugins": [
            {
                "name": name,
                "version": _version(snapshot, name),
                "active": name in snapshot.lanes,
                "inputs": [{"signal": at, "command": command} for at, plugin, command in consumed if plugin == name],
                "outputs": [{"signal": at, "command": command} for at, plugin, command in produced if plugin == name],
            }
            for name in names
        ],
        "signals": [
            {"name": signal, "producers": _ends(produced, signal), "consumers": _ends(consumed, signal)}
            for signal in sorted({signal for signal, _, _ in (*produced, *consumed)})
        ],
    }


Use = tuple[str, str, str]
"""Signal, plugin, command."""


def _produced(snapshot: Snapshot) -> Iterator[Use]:
    for name, lane in snapshot.lanes.items():
        for command in lane.plugin.manifest.commands.values():
            yield from ((emission.event, name, command.name) for emission in command.values.emit)


def _consumed(snapshot: Snapshot) -> Iterator[Use]:
    """By routes, webhooks and the first steps of pipelines."""
    settings = snapshot.config.settings
    yield from ((route.event_type, route.to, HANDLE) for route in settings.routes)
    for plan in snapshot.plans.by_name.values():
        signal = plan.on or plan.hook or ""
        yield from ((signal, node.plugin, node.command) for node in first_nodes(plan))


def first_nodes(plan: Plan) -> list[PlanNode]:
    """The steps that a run may begin with, whatever its switches decide."""
    following: dict[PlanNode | Gate | None, list[PlanNode | Gate]] = {}
    for edge in edges(plan):
        if edge.target is not None:
            following.setdefault(edge.source, []).append(edge.target)
    found: dict[PlanNode, None] = {}
    waiting, seen = list(following.get(None, ())), set[Gate]()
    while waiting:
        place = waiting.pop(0)
        if isinstance(place, PlanNode):
            found[place] = None
        elif place not in seen:
            seen.add(place)
            waiting += following.get(place, ())
    return list(found)


def _ends(uses: Iterable[Use], signal: str) -> list[dict[str, str]]:
    return [{"plugin": plugin, "command": command} for at, plugin, command in uses if at == signal]


def _version(snapshot: Snapshot, name: str) -> str:
    return snapshot.lanes[name].plugin.manifest.version if name in snapshot.lanes else ""
