"""The routes of workers: claim messages, extend, end and release claims."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Keywords
from ductile.core.instance.threads import run_in_thread_if_large
from ductile.core.message import (
    MAX_CLAIMS,
    TIMEOUT_SUFFIX,
    ClaimStatus,
    FollowUp,
    MessageInvalid,
    MessageState,
    TopicInvalid,
    checked_delay,
    checked_follow_up,
    checked_lease,
    checked_name,
    checked_topic,
    default_reply_topics,
)
from ductile.ledger.exchange.claim import ClaimedMessage, Worker
from ductile.ledger.exchange.rows import require_own_claim
from ductile.web.api.exchange.publish import NameText, Span, TopicText
from ductile.web.api.exchange.requests import (
    MAX_WAIT_SECONDS,
    exchange_handler,
    max_request_bytes,
    read_members,
    read_seconds,
    require_running,
)
from ductile.web.auth.auth import TOPIC_SCOPES, require_topic
from ductile.web.context import AppContext, BadRequest, wait_slot
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Route
from ductile.web.views.exchange import (
    ClaimedListView,
    ClaimEndView,
    ClaimView,
    claim_end_view,
    claim_view,
    message_view,
)

MAX_TOPICS = 20
"""Topics in one claim request."""
MAX_REASON_BYTES = 200
Reason = Annotated[str, "Reason, stored with the claim", Keywords(maxLength=MAX_REASON_BYTES)]


class ClaimBody(TypedDict):
    topic: NotRequired[Annotated[TopicText, "The topic; or send `topics`"]]
    topics: NotRequired[Annotated[list[TopicText], "Topics; the oldest message of any", Keywords(maxItems=MAX_TOPICS)]]
    worker_group: Annotated[NameText, "Name of this kind of worker"]
    worker_instance_id: NotRequired[Annotated[NameText, "Name of this worker; default: its group"]]
    lease: NotRequired[Annotated[Span, "Time to handle the message; 1s to 12h; default: the rule of the topic"]]
    wait: NotRequired[Annotated[Span, f"Time to wait for a message; at most {MAX_WAIT_SECONDS:.0f}s"]]
    max: NotRequired[Annotated[int, "Number of messages", Keywords(minimum=1, maximum=MAX_CLAIMS)]]


class ExtendBody(TypedDict, total=False):
    lease: Annotated[Span, "Length of the lease from now; default: as before"]


class EndBody(TypedDict, total=False):
    topic: Annotated[TopicText, "Topic of the follow-up; default for X.request: X.done or X.failed"]
    body: Annotated[str, "Body of the follow-up; without it there is none"]
    metadata: Annotated[dict[str, Any], "Metadata of the follow-up"]
    reason: Reason


class ReleaseBody(TypedDict, total=False):
    delay: Annotated[Span, "Time until the message is ready again"]
    reason: Reason
    uncounted: Annotated[bool, "Do not count this delivery"]
    to: Annotated[TopicText, "Hand over: complete the claim, and publish the same message on this topic"]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes of workers."""
    yield Route(
        method="POST",
        path="/exchange/claims",
        handler=exchange_handler(ctx, claim),
        scope=TOPIC_SCOPES["claim"],
        summary="Claim the oldest ready messages of topics; waits for the first one if `wait` is given",
        group="exchange",
        request_body=ClaimBody,
        responses={200: ClaimedListView},
        error_statuses=(429,),
        waits=True,
    )
    act = partial(Route, method="POST", scope=TOPIC_SCOPES["claim"], group="exchange", error_statuses=(409, 422))
    yield act(
        path="/exchange/claims/{id}/extend",
        handler=exchange_handler(ctx, extend),
        summary="Begin the lease of a claim again",
        request_body=ExtendBody,
        responses={200: ClaimView},
    )
    for verb, status, effect in (
        ("complete", ClaimStatus.COMPLETED, "completed"),
        ("fail", ClaimStatus.FAILED, "failed; it is not delivered again"),
        ("time_out", ClaimStatus.TIMED_OUT, "timed out; it is not delivered again"),
    ):
        yield act(
            path=f"/exchange/claims/{{id}}/{verb}",
            handler=exchange_handler(ctx, partial(end, status=status)),
            summary=f"End a claim and publish its follow-up: the message is {effect}",
            request_body=EndBody,
            responses={200: ClaimEndView},
            max_body=max_request_bytes(ctx),
        )
    yield act(
        path="/exchange/claims/{id}/release",
        handler=exchange_handler(ctx, release),
        summary="Return a message to its topic, or hand it over to another topic",
        request_body=ReleaseBody,
        responses={200: ClaimEndView},
    )


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def claim(ctx: AppContext, request: Request) -> Response:
    """Return the claimed messages when the claims are durable; none after `wait`, or when the service stops."""
    members = await read_members(request, ClaimBody.__annotations__.keys())
    topics = _read_topics(members)
    for topic in topics:
        require_topic(request, topic, "claim")
    group = checked_name("worker_group", members.get("worker_group"), required=True) or ""
    instance = checked_name("worker_instance_id", members.get("worker_instance_id")) or group
    lease = max(ctx.exchange.rules(topic).lease for topic in topics)
    if "lease" in members:
        lease = checked_lease(members["lease"])
    limit, wait_seconds = _read_max(members), read_seconds("wait", members.get("wait"))
    require_running(ctx)
    worker = Worker(group=group, instance_id=instance, actor=request.principal.actor)
    with wait_slot(ctx, request, wait_seconds):
        claimed = await ctx.exchange.claim(topics, worker, lease=lease, limit=limit, wait_seconds=wait_seconds)
    size = sum(len(each.message.body) for each in claimed)
    return encoded_json_response(await run_in_thread_if_large(partial(_encode, ctx, claimed), size))


def _encode(ctx: AppContext, claimed: list[ClaimedMessage]) -> bytes:
    views = [
        {**claim_view(each.claim, ctx.exchange.seconds_left(each.claim)), "message": message_view(each.message)}
        for each in claimed
    ]
    limit = ctx.snapshot().config.settings.exchange.max_body_size
    return strict_json.dumps({"claims": views, "max_body_size": limit}).encode()


async def extend(ctx: AppContext, request: Request) -> Response:
    """Return the claim with its new lease when that is durable. Raises ClaimLost."""
    members = await read_members(request, ExtendBody.__annotations__.keys())
    lease = checked_lease(members["lease"]) if "lease" in members else None
    claim = await ctx.exchange.extend(request.params["id"], lease=lease, actor=request.principal.actor)
    return json_response(claim_view(claim, ctx.exchange.seconds_left(claim)))


async def end(ctx: AppContext, request: Request, *, status: ClaimStatus) -> Response:
    """Return the ended claim and its follow-up when both are durable. Raises ClaimLost."""
    members = await read_members(request, EndBody.__annotations__.keys())
    claim_id, reason = request.params["id"], _read_reason(members)
    follow_up = await _read_follow_up(ctx, request, members, status)
    ended = await ctx.exchange.end(claim_id, status, actor=request.principal.actor, follow_up=follow_up, reason=reason)
    state = MessageState(ended.claim.status)
    view = claim_end_view(ended.claim, state, ended.follow_up, refused=ended.refused, repeated=ended.is_repeat)
    return json_response(view)


async def release(ctx: AppContext, request: Request) -> Response:
    """Return the ended claim when that is durable. Raises ClaimLost."""
    members = await read_members(request, ReleaseBody.__annotations__.keys())
    claim_id, actor, reason = request.params["id"], request.principal.actor, _read_reason(members)
    delay, uncounted = checked_delay(members.get("delay")), members.get("uncounted", False)
    if not isinstance(uncounted, bool):
        raise MessageInvalid("uncounted: expected true or false")
    if "to" in members:
        if delay or uncounted:
            raise MessageInvalid("to: a message that is handed over has no delay and counts")
        to = checked_topic(members["to"])
        require_topic(request, to, "publish")
        ended = await ctx.exchange.hand_over(claim_id, to, actor=actor, reason=reason)
        state = MessageState(ended.claim.status)
        view = claim_end_view(ended.claim, state, ended.follow_up, refused=ended.refused, repeated=ended.is_repeat)
        return json_response(view)
    returned = await ctx.exchange.release(claim_id, actor=actor, delay=delay, reason=reason, uncounted=uncounted)
    return json_response(
        claim_end_view(returned.claim, returned.state, returned.dead_letter, repeated=returned.is_repeat)
    )


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_topics(members: dict[str, Any]) -> list[str]:
    if ("topic" in members) is ("topics" in members):
        raise TopicInvalid("expected either topic or topics")
    topics = members["topics"] if "topics" in members else [members["topic"]]
    if not isinstance(topics, list) or not 1 <= len(topics) <= MAX_TOPICS:
        raise TopicInvalid(f"topics: expected a list of 1 to {MAX_TOPICS} topics")
    return [checked_topic(topic) for topic in topics]


def _read_max(members: dict[str, Any]) -> int:
    value = members.get("max", 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CLAIMS:
        raise BadRequest(f"max: expected 1 to {MAX_CLAIMS}")
    return value


def _read_reason(members: dict[str, Any]) -> str | None:
    return checked_name("reason", members.get("reason"))


async def _read_follow_up(
    ctx: AppContext, request: Request, members: dict[str, Any], status: ClaimStatus
) -> FollowUp | None:
    """Return the follow-up of the request. Its default topic depends on the topic of the claim and on its end."""
    if not members.keys() & {"topic", "body", "metadata"}:
        return None
    topic = members.get("topic")
    if topic is None:
        claim = await ctx.ledger.read(require_own_claim, request.params["id"], request.principal.actor)
        topic = _default_topic(claim.topic, status)
    max_body_size = ctx.snapshot().config.settings.exchange.max_body_size
    body, metadata = members.get("body"), members.get("metadata")
    follow_up = checked_follow_up(topic=topic, body=body, metadata=metadata, max_body_size=max_body_size)
    require_topic(request, follow_up.topic, "publish")
    return follow_up


def _default_topic(topic: str, status: ClaimStatus) -> str:
    if status is ClaimStatus.TIMED_OUT:
        return topic + TIMEOUT_SUFFIX
    topics = default_reply_topics(topic)
    if topics is None:
        raise TopicInvalid(f"topic: messages of {topic} have no default reply topic", hint="Name the topic.")
    return topics.success if status is ClaimStatus.COMPLETED else topics.failure
