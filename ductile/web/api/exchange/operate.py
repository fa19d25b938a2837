"""The routes of operators: requeue a message; pause, resume and purge a topic."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, TypedDict

import trio

from ductile.core.formats.json_schema import Count
from ductile.core.message import MessageState, checked_topic
from ductile.ledger.exchange import operate
from ductile.ledger.exchange.rows import require_message
from ductile.ledger.exchange.topics import topic_report
from ductile.ledger.storage.db import Db
from ductile.web.api.exchange.requests import exchange_handler
from ductile.web.api.job_actions import ReasonBody, read_reason
from ductile.web.auth.auth import require_scope
from ductile.web.context import DRY_RUN, AppContext, read_flag
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

PURGE_TIME_SLICE = 1.0
"""The seconds that one request spends on ending messages."""
OPERATOR_SCOPE = "system:rw"


class RequeuedView(TypedDict):
    message_id: str
    topic: str
    state: Annotated[MessageState, "ready, or waiting for another message of its ordering key"]
    dry_run: bool


class TopicPausedView(TypedDict):
    topic: str
    paused: Annotated[bool, "True if it is paused"]
    changed: Annotated[bool, "False if the state was the same before"]
    dry_run: bool


class TopicPurgedView(TypedDict):
    topic: str
    purged: Annotated[Count, "Messages that this request has ended"]
    remaining: Annotated[Count, "Messages that wait for a worker; repeat the request to end them, too"]
    dry_run: bool


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes of operators."""
    act = partial(Route, method="POST", scope="exchange:rw", group="exchange", query=(DRY_RUN,))
    yield act(
        path="/exchange/messages/{id}/requeue",
        handler=exchange_handler(ctx, requeue),
        summary="Offer a failed, timed-out or dead message to workers again; requires system:rw, too",
        responses={200: RequeuedView},
        error_statuses=(409,),
    )
    yield act(
        path="/exchange/topics/{topic}/pause",
        handler=exchange_handler(ctx, partial(change_pause, is_pause=True)),
        summary="Pause a topic: messages are accepted but not delivered; requires system:rw, too",
        request_body=ReasonBody,
        responses={200: TopicPausedView},
    )
    yield act(
        path="/exchange/topics/{topic}/resume",
        handler=exchange_handler(ctx, partial(change_pause, is_pause=False)),
        summary="Resume a topic; requires system:rw, too",
        responses={200: TopicPausedView},
    )
    yield act(
        path="/exchange/topics/{topic}/purge",
        handler=exchange_handler(ctx, purge),
        summary="End the messages of a topic that no worker has claimed, for about a second; requires system:rw, too",
        responses={200: TopicPurgedView},
    )


async def requeue(ctx: AppContext, request: Request) -> Response:
    """Return the new state of the message when it is durable. Raises MessageUnknown and WrongState."""
    require_scope(request, OPERATOR_SCOPE)
    message_id, actor, dry_run = request.params["id"], request.principal.actor, read_flag(request, "dry_run")

    def work(db: Db) -> tuple[str, MessageState]:
        topic = require_message(db, message_id).topic
        return topic, operate.requeue(db, message_id, now=ctx.clock.now(), actor=actor)

    topic, state = await (ctx.exchange.try_out(work) if dry_run else ctx.ledger.write(work))
    if state is MessageState.READY and not dry_run:
        ctx.exchange.wake([topic])
    return json_response(RequeuedView(message_id=message_id, topic=topic, state=state, dry_run=dry_run))


async def change_pause(ctx: AppContext, request: Request, *, is_pause: bool) -> Response:
    """Return 200 when the topic is paused or resumed, even if nothing changed. A topic need not have messages."""
    require_scope(request, OPERATOR_SCOPE)
    topic, actor, dry_run = (
        checked_topic(request.params["topic"]),
        request.principal.actor,
        read_flag(request, "dry_run"),
    )
    reason = (read_reason(request) if is_pause else None) or f"by {request.principal.name}"

    def work(db: Db) -> bool:
        if is_pause:
            return operate.pause_topic(db, topic, reason, now=ctx.clock.now(), actor=actor)
        return operate.resume_topic(db, topic, now=ctx.clock.now(), actor=actor)

    changed = await (ctx.exchange.try_out(work) if dry_run else ctx.ledger.write(work))
    if not (is_pause or dry_run):
        ctx.exchange.waiters.wake_topic(topic)
    return json_response(TopicPausedView(topic=topic, paused=is_pause, changed=changed, dry_run=dry_run))


async def purge(ctx: AppContext, request: Request) -> Response:
    """Return the number of ended and of remaining messages."""
    require_scope(request, OPERATOR_SCOPE)
    topic, actor, dry_run = (
        checked_topic(request.params["topic"]),
        request.principal.actor,
        read_flag(request, "dry_run"),
    )
    purged, deadline = 0, trio.current_time() + PURGE_TIME_SLICE
    batch = 0 if dry_run else operate.MAX_PURGED
    while batch == operate.MAX_PURGED and trio.current_time() < deadline:
        batch = await ctx.ledger.transact(
            lambda db: operate.purge(db, topic, now=ctx.clock.now(), actor=actor), in_thread=True
        )
        purged += batch
    report = await ctx.ledger.read(topic_report, topic, ctx.exchange.rules)
    remaining = report.unclaimed if report else 0
    return json_response(TopicPurgedView(topic=topic, purged=purged, remaining=remaining, dry_run=dry_run))
