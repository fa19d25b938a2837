"""The routes that read messages: lists, one message, why it is not handled; and the topics.

A caller sees messages only on topics that it may read. A list can wait for the next message.
"""

from collections.abc import Callable, Iterable
from functools import partial

import trio

from ductile.core.errors import did_you_mean
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Ordinal
from ductile.core.message import MessageState, TopicInvalid, is_topic_pattern
from ductile.core.units import quote_text
from ductile.exchange.service import MESSAGES, conversation_hint, topic_hint
from ductile.explain.message import MessageWhyView, message_why
from ductile.ledger.exchange.message_list import MessageFilter
from ductile.ledger.storage.db import Db
from ductile.web.api.exchange.requests import MAX_WAIT_SECONDS, exchange_handler, read_seconds
from ductile.web.auth.auth import TOPIC_SCOPES, Principal
from ductile.web.context import RECHECK_INTERVAL, AppContext, BadRequest, read_flag, read_number, wait_slot
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.exchange_lists import (
    Allowed,
    MessageDetailsView,
    MessageListView,
    TopicListView,
    may_read,
    message_details_view,
    message_list_view,
    topic_list_view,
    unknown_message,
)

MAX_PAGE, MAX_TOPIC_PAGE = 1_000, 1_000
MAX_POSITION = (1 << 63) - 1
MIN_READ_INTERVAL = 0.1
"""The shortest time between two reads of a caller that every message wakes."""
WAIT_FOR_MESSAGE = Argument("wait", str, f"Time to wait, such as 30s; at most {MAX_WAIT_SECONDS:.0f}s")
TOPIC_PATTERN = Argument("topic", str, "Only this topic, or topics of a pattern such as review.*")


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that read messages and topics."""
    read = partial(Route, method="GET", scope=TOPIC_SCOPES["ro"], group="exchange")
    yield read(
        path="/exchange/messages",
        handler=exchange_handler(ctx, list_published),
        summary="List messages in the order of publishing; ?wait=30s waits for the next one",
        query=(
            TOPIC_PATTERN,
            Argument("conversation", str, "Only messages of this conversation"),
            Argument("parent", str, "Only messages with this parent"),
            Argument("state", MessageState, "Only messages in this state"),
            Argument("after", Count, "Start after this position; with order=desc, before it"),
            Argument("limit", Ordinal, f"Number of messages; default 100, at most {MAX_PAGE:,}"),
            Argument("order", str, "asc (default) or desc, the newest first"),
            Argument("body", bool, "false omits the bodies"),
            WAIT_FOR_MESSAGE,
        ),
        responses={200: MessageListView},
        error_statuses=(429,),
        waits=True,
    )
    yield read(
        path="/exchange/messages/{id}",
        handler=exchange_handler(ctx, show_message),
        summary="Get a message with its state, claims and replies",
        responses={200: MessageDetailsView},
    )
    yield read(
        path="/exchange/messages/{id}/why",
        handler=exchange_handler(ctx, explain_message),
        summary="Explain why a message is not handled, who has it, or how it ended",
        responses={200: MessageWhyView},
    )
    yield read(
        path="/exchange/topics",
        handler=exchange_handler(ctx, list_topics),
        summary="List topics with the number of their open messages",
        query=(
            TOPIC_PATTERN,
            Argument("after", str, "Start after this name"),
            Argument("limit", Ordinal, f"Number of topics; default and maximum {MAX_TOPIC_PAGE:,}"),
        ),
        responses={200: TopicListView},
    )


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_published(ctx: AppContext, request: Request) -> Response:
    """Return a page of messages. With `wait`, an empty page is returned only when no message came in time."""
    wanted, order = _read_filter(request), request.argument("order") or "asc"
    if order not in ("asc", "desc"):
        raise BadRequest(f"order: expected asc or desc, got {order[:80]!r}")
    read = partial(
        message_list_view,
        wanted=wanted,
        after=read_number(request, "after", 0, least=0, most=MAX_POSITION),
        limit=read_number(request, "limit", 100, least=1, most=MAX_PAGE),
        newest_first=order == "desc",
        with_body=request.argument("body") is None or read_flag(request, "body"),
    )

    def read_page(db: Db) -> tuple[bytes, bool]:
        view = read(db)
        return strict_json.dumps(view).encode(), bool(view["messages"])

    text = await wait_for(ctx, request, _hints_of(wanted), read_page)
    return encoded_json_response(text)


async def show_message(ctx: AppContext, request: Request) -> Response:
    read = partial(message_details_view, lease_seconds=ctx.exchange.seconds_left, allowed=readable_topics(request))
    text = await ctx.ledger.read(lambda db: strict_json.dumps(read(db, request.params["id"])).encode())
    return encoded_json_response(text)


async def explain_message(ctx: AppContext, request: Request) -> Response:
    message_id, allowed = request.params["id"], readable_topics(request)
    view = await ctx.ledger.read(_why, ctx, message_id, allowed)
    return json_response(view)


def _why(db: Db, ctx: AppContext, message_id: str, allowed: Allowed) -> MessageWhyView:
    """Return the explanation. Raises MessageUnknown, also if the caller may not read the topic of the message."""
    view = message_why(db, ctx.ledger.path, message_id)
    topic = view["topic"]
    if allowed is not None and (topic is None or not may_read(allowed, topic)):
        raise unknown_message(message_id)
    if topic is None:
        return view
    return message_why(
        db,
        ctx.ledger.path,
        message_id,
        waiting_workers=ctx.exchange.waiters.count(topic),
        may_name=partial(may_read, allowed),
    )


async def list_topics(ctx: AppContext, request: Request) -> Response:
    read = partial(
        topic_list_view,
        rules=ctx.exchange.rules,
        pattern=read_pattern(request),
        allowed=readable_topics(request),
        after=request.argument("after") or "",
        limit=read_number(request, "limit", MAX_TOPIC_PAGE, least=1, most=MAX_TOPIC_PAGE),
        waiting=ctx.exchange.waiters.count,
    )
    return json_response(await ctx.ledger.read(read))


# ── reading and waiting ──────────────────────────────────────────────────────────────────────────────────────────────


def readable_topics(request: Request) -> Allowed:
    """Return the topics and patterns that the caller may read; None for all."""
    principal: Principal = request.principal
    return None if principal.may_use_topic("*", "ro") else tuple(sorted(principal.topic_patterns("ro")))


def read_pattern(request: Request) -> str | None:
    """Return the topic or pattern of `?topic=`. Raises TopicInvalid."""
    pattern = request.argument("topic")
    if pattern is not None and not is_topic_pattern(pattern):
        raise TopicInvalid(f"topic {quote_text(pattern)}: expected a topic, or a pattern such as review.*")
    return pattern


def _read_filter(request: Request) -> MessageFilter:
    pattern, state = read_pattern(request), request.argument("state")
    if state is not None and state not in set(MessageState):
        close = did_you_mean(state[:80], set(MessageState))
        raise BadRequest(f"state: unknown state {state[:80]!r}{close}", hint=f"States: {', '.join(MessageState)}.")
    return MessageFilter(
        topics=(pattern,) if pattern else None,
        allowed=readable_topics(request),
        conversation_id=request.argument("conversation"),
        parent_id=request.argument("parent"),
        state=MessageState(state) if state else None,
    )


def _hints_of(wanted: MessageFilter) -> str:
    """Return the hub topic that is announced for a message that can match."""
    if wanted.conversation_id:
        return conversation_hint(wanted.conversation_id)
    if wanted.topics and not wanted.topics[0].endswith("*"):
        return topic_hint(wanted.topics[0])
    return MESSAGES


async def wait_for(ctx: AppContext, request: Request, hint: str, read: Callable[[Db], tuple[bytes, bool]]) -> bytes:
    """Read until the result is complete, the time in `?wait=` is over, or the service stops. Return the last result.

    `read` returns the response and whether it is complete. Only what survives a power failure is returned.
    """
    wait_seconds = read_seconds("wait", request.argument("wait"))
    deadline = trio.current_time() + wait_seconds
    with wait_slot(ctx, request, wait_seconds), ctx.hub.watch(hint) as hints:
        while True:
            text, is_complete = await ctx.ledger.read(read)
            if is_complete or ctx.is_stopping() or trio.current_time() >= deadline:
                await ctx.ledger.until_durable()
                return text
            if hint == MESSAGES:
                await trio.sleep(MIN_READ_INTERVAL)
            # A hint can be lost, so the ledger is read again after a while.
            with trio.move_on_at(min(deadline, trio.current_time() + RECHECK_INTERVAL)):
                await hints.receive()
