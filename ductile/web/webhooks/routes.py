"""Routes that list webhook deliveries and deliver a stored one again.

A redelivery runs the stored body under the current configuration. Its signature was verified when it arrived.
"""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from attrs import frozen

from ductile.core.errors import WrongState
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count
from ductile.core.model import FollowUps
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredResponse
from ductile.ledger.webhooks import deliveries
from ductile.ledger.webhooks.deliveries import MAX_STORED_BODY, VERDICTS, DeliveryRecord
from ductile.pipeline.run.run_signals import run_rule_of
from ductile.web.api.lists import PAGE, TIME_RANGE, read_cursor, read_limit, usage_as_bad_request
from ductile.web.context import DRY_RUN, AppContext, read_flag
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.webhooks.deliveries import Delivery, Endpoint, create_event, parse_body
from ductile.web.webhooks.receiver import build_endpoints, plan_runs, start_runs
from ductile.web.webhooks.records import verified_record
from ductile.web.webhooks.views import (
    DeliveryPageView,
    DeliveryView,
    delivery_page,
    delivery_view,
    endpoint_name,
    parse_delivery_filter,
    require_delivery,
)

FILTERS = (
    Argument("endpoint", str, "The name or path of an endpoint"),
    Argument("verdict", Literal[VERDICTS], "accepted, unmatched, repeated or refused"),
    Argument("delivery_id", str, "The id that the sender gave it"),
    *TIME_RANGE,
    *PAGE,
)


class RedeliveredView(TypedDict):
    """A delivery that was delivered again."""

    id: Annotated[int, "The new delivery; null for a dry run"] | None
    redelivery_of: int
    endpoint: str
    verdict: Annotated[Literal["accepted", "unmatched"], "unmatched: nothing handles it"]
    event_type: str
    runs: Annotated[Count, "The number of runs that it starts"]
    job_ids: list[str]
    dry_run: bool


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes of webhook deliveries."""
    read = partial(Route, method="GET", scope="jobs:ro", group="webhooks")
    yield read(
        path="/webhooks/deliveries",
        handler=partial(show_deliveries, ctx),
        summary="List webhook deliveries, newest first: accepted, unmatched, repeated and refused ones",
        query=FILTERS,
        responses={200: DeliveryPageView},
        error_statuses=(404,),
    )
    yield read(
        path="/webhooks/deliveries/{id}",
        handler=partial(show_delivery, ctx),
        summary="Get a webhook delivery",
        responses={200: DeliveryView},
    )
    yield Route(
        method="POST",
        path="/webhooks/deliveries/{id}/redeliver",
        handler=partial(redeliver, ctx),
        scope="plugin:rw",
        summary="Deliver a stored delivery again, under the current configuration",
        group="webhooks",
        query=(DRY_RUN,),
        headers=(KEY_HEADER,),
        responses={200: RedeliveredView, 202: RedeliveredView},
        error_statuses=(400, 409, 415, 422, 429, 503),
    )


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def show_deliveries(ctx: AppContext, request: Request) -> Response:
    config = ctx.snapshot().config
    with usage_as_bad_request():
        wanted = parse_delivery_filter(config, {argument.name: request.argument(argument.name) for argument in FILTERS})
    before, limit = read_cursor(request), read_limit(request)
    return json_response(await ctx.ledger.read(delivery_page, config, wanted, before=before, limit=limit))


async def show_delivery(ctx: AppContext, request: Request) -> Response:
    record = await ctx.ledger.read(require_delivery, request.params["id"])
    return json_response(delivery_view(ctx.snapshot().config, record))


async def redeliver(ctx: AppContext, request: Request) -> Response:
    """Return 202 when the new jobs are durable, or 200 for a dry run."""
    key = read_idempotency_key(request)
    stored = await find_stored_response(ctx, key)
    if stored is None:
        planned = await _plan(ctx, request.params["id"])
        if read_flag(request, "dry_run"):
            return json_response(planned.view(None, planned.record))
        snapshot = ctx.snapshot()
        act = partial(
            planned.start,
            actor=request.principal.actor,
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
            run_rule=run_rule_of(snapshot.routing),
        )
        stored = await submit_once(ctx, key, act, planned.runs, actor=request.principal.actor)
    return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))


@frozen(kw_only=True)
class Redelivery:
    """A stored delivery with the runs that it starts under the current configuration."""

    endpoint: Endpoint
    event_type: str
    record: DeliveryRecord
    runs: tuple[FollowUps, ...]

    def start(self, db: Db, **rules: Any) -> StoredResponse:
        """Start the runs and store the record, in the caller's transaction."""
        stored_id, record = start_runs(db, self.record, self.runs, **rules)
        return StoredResponse(
            job_id=record.job_ids[0] if record.job_ids else None,
            text=strict_json.dumps(self.view(stored_id, record)),
        )

    def view(self, stored_id: int | None, record: DeliveryRecord) -> RedeliveredView:
        """Return the response; `stored_id` is None for a dry run."""
        started = [run for run in self.runs if run.children]
        assert record.redelivery_of is not None, "it was read from the ledger"
        return {
            "id": stored_id,
            "redelivery_of": record.redelivery_of,
            "endpoint": endpoint_name(self.endpoint.settings),
            "verdict": "accepted" if started else "unmatched",
            "event_type": self.event_type,
            "runs": len(started),
            "job_ids": list(record.job_ids),
            "dry_run": stored_id is None,
        }


async def _plan(ctx: AppContext, delivery_id: str) -> Redelivery:
    """Decide what the redelivery starts. Raises a DuctileError if it is not possible."""
    snapshot, now = ctx.snapshot(), ctx.clock.now()
    record, body = await ctx.ledger.read(_read_redeliverable, delivery_id)
    endpoint = build_endpoints(snapshot.config).get(record.path)
    if endpoint is None:
        raise WrongState(f"the endpoint {record.path} no longer exists", hint="Add it under webhooks.endpoints.")
    headers = {name: tuple(values) for name, values in record.headers.items()}
    request = Request(method="POST", path=record.path, headers=headers, body=body, peer=record.peer)
    event = create_event(endpoint, request, parse_body(endpoint, request), now=now)
    delivery = Delivery(event=event, id=record.delivery_id, key=None, body_hash=None)
    return Redelivery(
        endpoint=endpoint,
        event_type=event.type,
        record=verified_record(endpoint, request, delivery, status=202, now=now, redelivery_of=record.id),
        runs=plan_runs(endpoint, event, snapshot),
    )


def _read_redeliverable(db: Db, delivery_id: str) -> tuple[DeliveryRecord, bytes]:
    record = require_delivery(db, delivery_id)
    body = deliveries.read_body(db, int(delivery_id))
    if body is None:
        raise WrongState(f"delivery {delivery_id} cannot be delivered again: {_why_no_body(record)}", hint=NO_BODY_HINT)
    return record, body


def _why_no_body(record: DeliveryRecord) -> str:
    match record.verdict:
        case "refused":
            return "it was refused, so its body is not stored"
        case "repeated":
            return "it was a repeated delivery; redeliver the first one"
        case _ if record.body_bytes > MAX_STORED_BODY:
            return f"its body of {record.body_bytes} bytes is larger than the {MAX_STORED_BODY} that are stored"
        case _:
            return "its body is not stored"


NO_BODY_HINT = "Let the sender send it again, or run `ductile webhook send` with the body."
