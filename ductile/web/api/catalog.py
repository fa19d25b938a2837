"""Routes for discovery: plugins, pipelines, and the ai-plugin manifest.

Reads the current configuration, not the ledger. A caller with scopes for single plugins sees only those plugins.
"""

from collections.abc import Iterable
from functools import partial
from typing import TypedDict

from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route
from ductile.web.views.catalog import (
    PluginSummaryView,
    PluginView,
    SkillView,
    pipeline_view,
    plugin_summary,
    plugin_view,
    skill_view,
)


class ListedPluginView(PluginSummaryView):
    commands: list[str]


class PluginsView(TypedDict):
    plugins: list[ListedPluginView]


class SkillsView(TypedDict):
    skills: list[SkillView]


class AiPluginAuthView(TypedDict):
    type: str
    authorization_type: str


class AiPluginApiView(TypedDict):
    type: str
    url: str


class AiPluginView(TypedDict):
    schema_version: str
    name_for_human: str
    name_for_model: str
    description_for_human: str
    description_for_model: str
    auth: AiPluginAuthView
    api: AiPluginApiView


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the discovery routes."""
    yield Route(
        method="GET",
        path="/plugins",
        handler=partial(list_plugins, ctx),
        scope="token",
        summary="List available plugins and their commands",
        group="discovery",
        responses={200: PluginsView},
    )
    yield Route(
        method="GET",
        path="/plugin/{plugin}",
        handler=partial(show_plugin, ctx),
        scope="plugin:catalog:ro",
        summary="Get a plugin with its commands and their schemas",
        group="discovery",
        responses={200: PluginView},
        error_statuses=(409,),
    )
    yield Route(
        method="GET",
        path="/skills",
        handler=partial(list_skills, ctx),
        scope="token",
        summary="List plugin commands and pipelines with their endpoints",
        group="discovery",
        responses={200: SkillsView},
    )
    yield Route(
        method="GET",
        path="/.well-known/ai-plugin.json",
        handler=partial(show_ai_plugin, ctx),
        scope="token",
        summary="Get the ai-plugin manifest of this API",
        group="discovery",
        responses={200: AiPluginView},
    )


def visible_plugins(snapshot: Snapshot, request: Request) -> list[ConfiguredPlugin]:
    """Return the plugins that the caller may see, sorted by name."""
    return [configured for name, configured in sorted(snapshot.plugins.items()) if request.principal.can_see(name)]


async def list_plugins(ctx: AppContext, request: Request) -> Response:
    plugins: list[ListedPluginView] = [
        {**plugin_summary(configured), "commands": list(configured.plugin.manifest.commands)}
        for configured in visible_plugins(ctx.snapshot(), request)
    ]
    return json_response(PluginsView(plugins=plugins))


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
    return json_response(SkillsView(skills=[*skills, *map(pipeline_view, snapshot.plans.by_name.values())]))


async def show_ai_plugin(ctx: AppContext, request: Request) -> Response:
    view: AiPluginView = {
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
    return json_response(view)
