"""Routes for discovery: plugins, pipelines, and the ai-plugin manifest.

Reads the current configuration, not the ledger. A caller with scopes for single plugins sees only those plugins.
"""

from collections.abc import Iterable
from functools import partial

from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.plugin.manifest import CommandType
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routes import AnyRoute, Route
from ductile.web.schema.schemas import (
    Schema,
    any_value,
    array,
    boolean,
    choice,
    integer,
    nullable,
    record,
    text,
)
from ductile.web.views.catalog import TIERS, pipeline_view, plugin_summary, plugin_view, skill_view

_SCHEMA = nullable(any_value("As declared in the manifest"))
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
_PLUGIN_SUMMARY: dict[str, Schema] = {"name": text(), "version": text(), "description": text()}
PLUGINS = record({"plugins": array(record({**_PLUGIN_SUMMARY, "commands": array(text())}))})
PLUGIN = record({**_PLUGIN_SUMMARY, "protocol": integer(), "commands": array(_COMMAND)}, title="Plugin")
SKILLS = record(
    {
        "skills": array(
            record(
                {
                    "name": text("plugin.X.Y or pipeline.N"),
                    "kind": choice(("plugin", "pipeline")),
                    "description": text(),
                    "endpoint": text("Method and path of the request that runs it"),
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


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the discovery routes."""
    yield Route(
        method="GET",
        path="/plugins",
        handler=partial(list_plugins, ctx),
        scope="token",
        summary="List available plugins and their commands",
        group="discovery",
        responses={200: PLUGINS},
    )
    yield Route(
        method="GET",
        path="/plugin/{plugin}",
        handler=partial(show_plugin, ctx),
        scope="plugin:catalog:ro",
        summary="Get a plugin with its commands and their schemas",
        group="discovery",
        responses={200: PLUGIN},
        error_statuses=(409,),
    )
    yield Route(
        method="GET",
        path="/skills",
        handler=partial(list_skills, ctx),
        scope="token",
        summary="List plugin commands and pipelines with their endpoints",
        group="discovery",
        responses={200: SKILLS},
    )
    yield Route(
        method="GET",
        path="/.well-known/ai-plugin.json",
        handler=partial(show_ai_plugin, ctx),
        scope="token",
        summary="Get the ai-plugin manifest of this API",
        group="discovery",
        responses={200: AI_PLUGIN},
    )


def visible_plugins(snapshot: Snapshot, request: Request) -> list[ConfiguredPlugin]:
    """Return the plugins that the caller may see, sorted by name."""
    return [configured for name, configured in sorted(snapshot.plugins.items()) if request.principal.can_see(name)]


async def list_plugins(ctx: AppContext, request: Request) -> Response:
    plugins = [
        {**plugin_summary(configured), "commands": list(configured.plugin.manifest.commands)}
        for configured in visible_plugins(ctx.snapshot(), request)
    ]
    return json_response({"plugins": plugins})


async def show_plugin(ctx: AppContext, request: Request) -> Response:
    return json_response(plugin_view(ctx.snapshot().plugin(request.params["plugin"])))


async def list_skills(ctx: AppContext, request: Request) -> Response:
    snapshot = ctx.snapshot()
    plugins = visible_plugins(snapshot, request)
    skills = [
        skill_view(configured, command)
        for configured in plugins
        for command in configured.plugin.manifest.commands.values()
    ]
    return json_response({"skills": [*skills, *map(pipeline_view, snapshot.plans.by_name.values())]})


async def show_ai_plugin(ctx: AppContext, request: Request) -> Response:
    return json_response(
        {
            "schema_version": "v1",
            "name_for_human": "Ductile Gateway",
            "name_for_model": "ductile",
            "description_for_human": "Run plugins and pipelines, and read their results.",
            "description_for_model": (
                "Runs plugins and pipelines as durable jobs. GET /skills lists them. POST to an endpoint with "
                '{"payload": {…}} starts a job. GET /job/{job_id}?wait=30s returns its result.'
            ),
            "auth": {"type": "user_http", "authorization_type": "bearer"},
            "api": {"type": "openapi", "url": "/openapi.json"},
        }
    )
