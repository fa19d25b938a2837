"""What the routes of the exchange share: when they refuse a request, and how they read its body."""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from ductile.core.errors import DuctileError, Unreadable, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.instance.threads import run_in_thread_if_large
from ductile.core.message import MAX_METADATA_DEPTH, BodyNotText
from ductile.core.units import parse_duration
from ductile.web.context import AppContext, BadRequest
from ductile.web.messages import Request, Response
from ductile.web.routing import MIB, Handler

MAX_WAIT_SECONDS = 600.0
"""The longest that one request waits."""
MAX_ESCAPED_LENGTH = len("\\u0001")
"""Of one byte of a body in JSON."""
BODY_DEPTH = MAX_METADATA_DEPTH + 4
"""Metadata is in a message, which may be in a list."""


class ExchangeDisabled(DuctileError):
    """The exchange is disabled (exchange.enabled: false)."""

    code, exit_code, status = "exchange_disabled", 1, 404
    hint = "Set `exchange.enabled: true` in the configuration, then run `ductile system reload`."


class ServiceStopping(DuctileError):
    """The service is stopping."""

    code, exit_code, status = "stopping", 75, 503
    hint = "Nothing was stored. Try again when the service runs."


def exchange_handler(ctx: AppContext, handler: Callable[[AppContext, Request], Awaitable[Response]]) -> Handler:
    """Return the handler of a route of the exchange. It raises ExchangeDisabled while the exchange is disabled."""

    async def handle(request: Request) -> Response:
        require_enabled(ctx)
        return await handler(ctx, request)

    return handle


def require_enabled(ctx: AppContext) -> None:
    if not ctx.snapshot().config.settings.exchange.enabled:
        raise ExchangeDisabled


def require_running(ctx: AppContext) -> None:
    """Raise ServiceStopping during the drain, for requests that bring or fetch work. Claims can still be ended."""
    if ctx.is_stopping():
        raise ServiceStopping


def max_request_bytes(ctx: AppContext) -> int:
    """Return the limit of a request with bodies: room for the largest one, however its characters are escaped."""
    settings = ctx.snapshot().config.settings
    return max(settings.api.max_body_size, MAX_ESCAPED_LENGTH * settings.exchange.max_body_size + MIB)


async def read_members(request: Request, known: Collection[str]) -> dict[str, Any]:
    """Return the members of the body, an object, without those that are null. Raises BadRequest for unknown members."""
    if not request.body.strip():
        return {}
    members = await run_in_thread_if_large(partial(_parse, request, known), len(request.body))
    require_known(members, known)
    return {name: value for name, value in members.items() if value is not None}


def _parse(request: Request, known: Collection[str]) -> dict[str, Any]:
    """Return the JSON object in the body. Raises BodyNotText if a text in it is not UTF-8, and BadRequest."""
    try:
        parsed = strict_json.parse(request.body, source="body", max_depth=BODY_DEPTH)
    except Unreadable as error:
        if isinstance(error.__cause__, UnicodeError):
            raise BodyNotText(f"the request is not UTF-8: {error.reason}") from error
        raise BadRequest(f"the body is not JSON: {error.reason}", hint=_members_hint(known)) from error
    if parsed.replaced:
        raise BodyNotText("the request has a text with lone surrogates")
    if not isinstance(parsed.value, dict):
        raise BadRequest("the body must be a JSON object", hint=_members_hint(known))
    return parsed.value


def _members_hint(known: Collection[str]) -> str:
    return f"Members: {', '.join(sorted(known))}."


def require_known(members: dict[str, Any], known: Collection[str]) -> None:
    """Raise BadRequest for the first unknown member."""
    unknown = next((name for name in members if name not in known), None)
    if unknown is not None:
        close = did_you_mean(unknown[:80], known)
        raise BadRequest(f"unknown member {unknown[:80]!r}{close}", hint=_members_hint(known))


def read_seconds(name: str, value: object) -> float:
    """Return a waiting time: a duration such as `30s`, or a number of seconds; None is 0. At most MAX_WAIT_SECONDS."""
    if value is None:
        return 0.0
    if isinstance(value, str):
        try:
            seconds = parse_duration(value).total_seconds()
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from error
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise BadRequest(f"{name}: expected a duration such as 30s, not {type(value).__name__}")
    if not seconds >= 0:
        raise BadRequest(f"{name}: expected 0s or more")
    return min(seconds, MAX_WAIT_SECONDS)
