"""The route that publishes messages: one, or a list of which all are stored or none."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from attrs import evolve

from ductile.core.errors import DuctileError
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Keywords
from ductile.core.message import (
    MAX_NAME_BYTES,
    MAX_PUBLISH,
    MAX_TOPIC_BYTES,
    BodyTooLarge,
    MessageInvalid,
    NewMessage,
    ReplyTopics,
    checked_message,
    checked_topic,
    default_reply_topics,
)
from ductile.core.units import quote_text
from ductile.ledger.exchange.publish import Published
from ductile.ledger.tables.receipts import StoredResponse
from ductile.web.api.exchange.requests import (
    exchange_handler,
    max_request_bytes,
    read_members,
    require_known,
    require_running,
)
from ductile.web.auth.auth import TOPIC_SCOPES, require_topic
from ductile.web.context import DRY_RUN, AppContext, BadRequest, read_flag
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers
from ductile.web.messages import Request, Response, encoded_json_response
from ductile.web.routing import AnyRoute, Route
from ductile.web.views.exchange import PublishedListView, PublishedView, published_view

TopicText = Annotated[str, Keywords(maxLength=MAX_TOPIC_BYTES)]
NameText = Annotated[str, Keywords(minLength=1, maxLength=MAX_NAME_BYTES)]
Span = Annotated[str, "A duration such as 90s"] | Annotated[float, "A number of seconds"]


class ReplyTopicsBody(TypedDict):
    success: TopicText
    failure: TopicText
    timeout: NotRequired[Annotated[TopicText, "Default: `<topic>.timed_out`"]]


class MessageBody(TypedDict):
    topic: TopicText
    body: Annotated[str, "Text; at most exchange.max_body_size bytes"]
    parent_id: NotRequired[Annotated[str, "The message that it replies to"]]
    conversation_id: NotRequired[Annotated[NameText, "Default: that of the parent, else the id of the message"]]
    producer: NotRequired[NameText]
    metadata: NotRequired[dict[str, Any]]
    ordering_key: NotRequired[NameText]
    delay: NotRequired[Annotated[Span, "Time until the message is ready"]]
    track: NotRequired[Annotated[bool, "List the conversation in /exchange/tracked until its reply was notified"]]
    reply_topics: NotRequired[Annotated[ReplyTopicsBody, "With track; default for X.request: X.done and X.failed"]]


class MessageListBody(TypedDict):
    messages: Annotated[list[MessageBody], Keywords(minItems=1, maxItems=MAX_PUBLISH)]


MEMBERS = MessageBody.__annotations__.keys()
LIST_MEMBERS = MessageListBody.__annotations__.keys()


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route that publishes."""
    yield Route(
        method="POST",
        path="/exchange/messages",
        handler=exchange_handler(ctx, publish_messages),
        scope=TOPIC_SCOPES["publish"],
        summary="Publish a message, or a list of messages of which all are stored or none",
        group="exchange",
        query=(DRY_RUN,),
        headers=(KEY_HEADER,),
        request_body=MessageBody | MessageListBody,
        responses={200: PublishedView | PublishedListView, 201: PublishedView | PublishedListView},
        error_statuses=(422, 429),
        max_body=max_request_bytes(ctx),
    )


async def publish_messages(ctx: AppContext, request: Request) -> Response:
    """Return 201 when the messages are durable, 200 for a dry run."""
    key = read_idempotency_key(request)
    if (known := await find_stored_response(ctx, key)) is not None:
        return _response(known)
    require_running(ctx)
    members = await read_members(request, MEMBERS | LIST_MEMBERS)
    is_list, dry_run = "messages" in members, read_flag(request, "dry_run")
    actor = request.principal.actor
    try:
        news = _new_messages(ctx, request, members) if is_list else [_new_message(ctx, request, members)]
    except BodyTooLarge as error:
        await ctx.exchange.journal_refusal(error, actor=actor)
        raise

    def respond(published: list[Published]) -> StoredResponse:
        views = [published_view(each, dry_run=dry_run) for each in published]
        view = PublishedListView(messages=views, dry_run=dry_run) if is_list else views[0]
        return StoredResponse(job_id=None, text=strict_json.dumps(view))

    if dry_run:
        return _response(await ctx.exchange.try_to_publish(news, respond, actor=actor), 200)
    return _response(await ctx.exchange.publish(news, respond, actor=actor, key=key))


def _response(stored: StoredResponse, status: int = 201) -> Response:
    return encoded_json_response(stored.text.encode(), status, replay_headers(stored))


def _new_messages(ctx: AppContext, request: Request, members: Mapping[str, Any]) -> list[NewMessage]:
    """Return the messages of a list. An error names the position of its message."""
    listed = members["messages"]
    if len(members) > 1 or not isinstance(listed, list) or not 1 <= len(listed) <= MAX_PUBLISH:
        raise BadRequest(f"messages: expected a list of 1 to {MAX_PUBLISH:,} messages and no other member")
    news = []
    for index, one in enumerate(listed):
        try:
            news.append(_new_message(ctx, request, one))
        except DuctileError as error:
            raise type(error)(f"messages[{index}]: {error}", hint=error.hint, context=error.context) from error
    return news


def _new_message(ctx: AppContext, request: Request, members: Any) -> NewMessage:
    if not isinstance(members, dict):
        raise BadRequest("a message must be a JSON object")
    require_known(members, MEMBERS)
    fields = {name: value for name, value in members.items() if name not in ("track", "reply_topics")}
    max_body_size = ctx.snapshot().config.settings.exchange.max_body_size
    new = checked_message(**{"topic": None, "body": None, **fields}, max_body_size=max_body_size)
    require_topic(request, new.topic, "publish")
    return evolve(new, reply_topics=_reply_topics(new.topic, members))


def _reply_topics(topic: str, members: Mapping[str, Any]) -> ReplyTopics | None:
    """Return the topics of the replies that the caller wants to be notified of."""
    track, named = members.get("track"), members.get("reply_topics")
    if track not in (None, True, False):
        raise MessageInvalid("track: expected true or false")
    if named is not None:
        if not track or not isinstance(named, dict) or not {"success", "failure"} <= named.keys():
            raise MessageInvalid("reply_topics: expected an object with success and failure, together with track")
        require_known(named, ReplyTopicsBody.__annotations__.keys())
        timeout = named.get("timeout") or f"{topic}.timed_out"
        success, failure = checked_topic(named["success"]), checked_topic(named["failure"])
        return ReplyTopics(success=success, failure=failure, timeout=checked_topic(timeout))
    topics = default_reply_topics(topic) if track else None
    if track and topics is None:
        raise MessageInvalid(
            f"track: {quote_text(topic)} has no default reply topics", hint="Name them in reply_topics."
        )
    return topics
