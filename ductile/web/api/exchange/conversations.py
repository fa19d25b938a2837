"""The routes of requests and replies: whether a conversation has its reply, and which ones a caller tracks."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, TypedDict

from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Ordinal
from ductile.core.message import checked_topic
from ductile.core.statuses import ReplyState
from ductile.exchange.service import MESSAGES, conversation_hint
from ductile.ledger.exchange.tracking import mark_notified
from ductile.ledger.storage.db import Db
from ductile.web.api.exchange.reading import WAIT_FOR_MESSAGE, readable_topics, wait_for
from ductile.web.api.exchange.requests import exchange_handler
from ductile.web.auth.auth import TOPIC_SCOPES, require_topic
from ductile.web.context import AppContext, BadRequest, read_number
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.exchange_lists import (
    ConversationView,
    TrackedListView,
    conversation_view,
    reply_topics,
    tracked_view,
)

MAX_TRACKED = 1_000


class NotifiedView(TypedDict):
    conversation_id: str
    changed: Annotated[bool, "False if the caller does not track it, or was notified before"]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes of conversations."""
    read = partial(Route, method="GET", scope=TOPIC_SCOPES["ro"], group="exchange", error_statuses=(429,), waits=True)
    yield read(
        path="/exchange/conversations/{id}",
        handler=exchange_handler(ctx, show_conversation),
        summary="Get the state of a conversation and its reply; ?wait=30s waits for it",
        query=(
            Argument("success_topic", str, "Topic of successful replies; default for X.request: X.done"),
            Argument("failure_topic", str, "Topic of failed replies; default for X.request: X.failed"),
            Argument("timeout_topic", str, "Topic of replies after a timeout; default: TOPIC.timed_out"),
            Argument("request", str, "Only replies after this message"),
            Argument("reply", str, "first, or last (default)"),
            WAIT_FOR_MESSAGE,
        ),
        responses={200: ConversationView},
    )
    yield read(
        path="/exchange/tracked",
        handler=exchange_handler(ctx, list_tracked),
        summary="List the tracked conversations of the caller; ?wait=30s waits until one has its reply",
        query=(
            Argument("limit", Ordinal, f"Number of conversations; default 100, at most {MAX_TRACKED:,}"),
            WAIT_FOR_MESSAGE,
        ),
        responses={200: TrackedListView},
    )
    yield Route(
        method="POST",
        path="/exchange/tracked/{id}/notified",
        handler=exchange_handler(ctx, note_notified),
        scope=TOPIC_SCOPES["ro"],
        summary="Note that the caller was notified of the reply in a tracked conversation",
        group="exchange",
        responses={200: NotifiedView},
    )


async def show_conversation(ctx: AppContext, request: Request) -> Response:
    """Return the conversation. With `wait`, it is pending only if no reply came in time."""
    conversation_id, allowed = request.params["id"], readable_topics(request)
    names = {name: request.argument(f"{name}_topic") for name in ("success", "failure", "timeout")}
    for topic in filter(None, names.values()):
        require_topic(request, checked_topic(topic), "ro")
    which = request.argument("reply") or "last"
    if which not in ("first", "last"):
        raise BadRequest(f"reply: expected first or last, got {which[:80]!r}")
    request_id = request.argument("request")

    def read(db: Db) -> tuple[bytes, bool]:
        topics = reply_topics(db, conversation_id, request_id=request_id, **names)
        view = conversation_view(
            db, conversation_id, topics, request_id=request_id, first=which == "first", allowed=allowed
        )
        return strict_json.dumps(view).encode(), view["state"] is not ReplyState.PENDING

    return encoded_json_response(await wait_for(ctx, request, conversation_hint(conversation_id), read))


async def list_tracked(ctx: AppContext, request: Request) -> Response:
    """Return the tracked conversations. With `wait`, all are pending only if no reply came in time."""
    actor, allowed = request.principal.actor, readable_topics(request)
    limit = read_number(request, "limit", 100, least=1, most=MAX_TRACKED)

    def read(db: Db) -> tuple[bytes, bool]:
        view = tracked_view(db, actor, limit=limit, allowed=allowed)
        is_complete = any(each["state"] is not ReplyState.PENDING for each in view["tracked"])
        return strict_json.dumps(view).encode(), is_complete

    return encoded_json_response(await wait_for(ctx, request, MESSAGES, read))


async def note_notified(ctx: AppContext, request: Request) -> Response:
    conversation_id, actor = request.params["id"], request.principal.actor
    changed = await ctx.ledger.write(mark_notified, conversation_id, actor, now=ctx.clock.now())
    return json_response(NotifiedView(conversation_id=conversation_id, changed=changed))
