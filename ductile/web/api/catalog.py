"""What there is to use, over HTTP: plugins, pipelines, and where to read about the API.

Shown from the configuration of the moment; nothing is asked of the ledger. A caller whose rights are over some plugins
alone sees only these.
"""

from collections.abc import Iterable

from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.plugin.manifest import CommandType
from ductile.web.context import AppContext, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.schemas import (
    Schema,
    anything,
    boolean,
    choice,
    integer,
    listing,
    nullable,
    record,
    text,
)
from ductile.web.routes import AnyRoute, Route
from ductile.web.views.catalog import TIERS, about, plugin_view, run_view, skill_view

_SCHEMA = nullable(anything("As written in the manifest"))
_COMMAND = record(
    {
        "name": text(),
        "type": choice(CommandType),
        "description": text(),
        "idempotent": boolean(),
        "retry_safe": boolean(),
        "input_schema": _SCHEMA,
        "output_schema": _SCHEMA,
    }
)
_ABOUT: dict[str, Schema] = {"name": text(), "version": text(), "description": text()}
PLUGINS = record({"plugins": listing(record({**_ABOUT, "commands": listing(text())}))})
PLUGIN = record({**_ABOUT, "protocol": integer(), "commands": listing(_COMMAND)}, title="Plugin")
SKILLS = record(
    {
        "skills": listing(
            record(
                {
                    "name": text("plugin.X.Y or pipeline.N"),
                    "kind": choice(("plugin", "pipeline")),
                    "description": text(),
                    "endpoint": text("Method and path"),
                    "tier": choice(TIERS.values()),
                },
                {
                    "plugin": text(),
                    "command": text(),
                    "idempotent": boolean(),
                    "retry_safe": boolean(),
                    "pipeline": text(),
                    "trigger": text(),
                    "execution_mode": text(),
                    "timeout_secs": integer(minimum=0),
                },
            )
        )
    }
)
AI_PLUGIN = record(
    {
        "schema_version": text(),
        "name_for_human": text(),
        "name_for_model": text(),
        "description_for_human": text(),
        "description_for_model": text(),
        "auth": record({"type": text(), "authorization_type": text()}),
        "api": record({"type": text(), "url": text()}),
    }
)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers about what can be used."""

    on = seated(desk)

    yield Route(
        method="GET",
        path="/plugins",
        handler=on(list_plugins),
        scope="token",
        summary="Every plugin that can run, with its commands",
        group="discovery",
        gives={200: PLUGINS},
    )
    yield Route(
        method="GET",
        path="/plugin/{plugin}",
        handler=on(show_plugin),
        scope="plugin:catalog:ro",
        summary="One plugin: its commands, what they take and give",
        group="discovery",
        gives={200: PLUGIN},
        refuses=(409,),
    )
    yield Route(
        method="GET",
        path="/skills",
        handler=on(list_skills),
        scope="token",
        summary="Everything that can be asked for, each with its endpoint",
        group="discovery",
        gives={200: SKILLS},
    )
    yield Route(
        method="GET",
        path="/.well-known/ai-plugin.json",
        handler=on(introduce),
        scope="token",
        summary="This API in a few words for programs that use it by themselves",
        group="discovery",
        gives={200: AI_PLUGIN},
    )


def seen_lanes(snapshot: Snapshot, request: Request) -> list[ConfiguredPlugin]:
    """The plugins the caller may know of, by name."""
    return [lane for name, lane in sorted(snapshot.lanes.items()) if request.principal.sees(name)]


async def list_plugins(desk: AppContext, request: Request) -> Response:
    plugins = [
        {**about(lane), "commands": list(lane.plugin.manifest.commands)}
        for lane in seen_lanes(desk.snapshot(), request)
    ]
    return json_response({"plugins": plugins})


async def show_plugin(desk: AppContext, request: Request) -> Response:
    return json_response(plugin_view(desk.snapshot().lane(request.params["plugin"])))


async def list_skills(desk: AppContext, request: Request) -> Response:
    snapshot = desk.snapshot()
    lanes = seen_lanes(snapshot, request)
    skills = [skill_view(lane, command) for lane in lanes for command in lane.plugin.manifest.commands.values()]
    return json_response({"skills": [*skills, *map(run_view, snapshot.plans.by_name.values())]})


async def introduce(desk: AppContext, request: Request) -> Response:
    return json_response(
        {
            "schema_version": "v1",
            "name_for_human": "Ductile Gateway",
            "name_for_model": "ductile",
            "description_for_human": "Run plugins and pipelines, and see what became of them.",
            "description_for_model": (
                "Runs plugins and pipelines as durable jobs. GET /skills lists what can be run, POST to its endpoint "
                'with {"payload": {…}} starts it, GET /job/{job_id}?wait=30s has the result.'
            ),
            "auth": {"type": "user_http", "authorization_type": "bearer"},
            "api": {"type": "openapi", "url": "/openapi.json"},
        }
    )
