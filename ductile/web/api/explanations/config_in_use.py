"""The route of the configuration in use, without secrets."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NotRequired, TypedDict, cast

from ductile.config.load.load import Config
from ductile.config.load.redaction import redact_settings
from ductile.pipeline.compile.graph import compiled_routes
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

_Section = dict[str, Any]


class ConfigView(TypedDict):
    """The settings in use, without secrets."""

    service: _Section
    api: _Section
    state: _Section
    plugins: dict[str, _Section]
    pipelines: list[_Section]
    webhooks: _Section
    tokens: list[_Section]
    routes: list[_Section]
    compiled_routes: dict[str, list[_Section]]
    plugin_roots: NotRequired[Any]
    include: NotRequired[Any]
    environment_vars: NotRequired[Any]
    instances: NotRequired[Any]
    remote_ingress: NotRequired[Any]
    exchange: NotRequired[Any]
    notify: NotRequired[Any]
    heartbeat: NotRequired[Any]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route of the configuration in use."""
    yield Route(
        method="GET",
        path="/config/view",
        handler=partial(view_config, ctx),
        scope="system:ro",
        summary="Get the configuration in use without secrets, and the compiled pipelines",
        group="system",
        responses={200: ConfigView},
    )


async def view_config(ctx: AppContext, request: Request) -> Response:
    return json_response(config_view(ctx.snapshot().config))


def config_view(config: Config) -> ConfigView:
    """Return the settings in use as JSON data without secrets. Tokens are reduced to names and scopes."""
    shown = redact_settings(config.settings, config.mask)
    api = dict(shown["api"])
    tokens = api.pop("auth")["tokens"]
    shown["api"] = {**api, "tokens": [{"name": token["name"], "scopes": token["scopes"]} for token in tokens]}
    public = ("name", "description", "created_at", "scopes_file")
    shown["tokens"] = [{key: token.get(key) for key in public} for token in shown["tokens"]]
    shown["compiled_routes"] = {
        name: config.mask.mask_data(compiled_routes(plan)) for name, plan in config.plans.by_name.items()
    }
    return cast(ConfigView, {name: value for name, value in shown.items() if name in ConfigView.__annotations__})
