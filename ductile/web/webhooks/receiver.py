"""The webhook receiver: verifies a delivery, stores its jobs and its receipt in one transaction, then responds.

The server enforces method, size and time limits. Paths and secrets come from the current configuration. The runtime
serves the site on `webhooks.listen`.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from ipaddress import ip_address

from attrs import define, frozen

from ductile.config.load.load import Config
from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError, LedgerError, NotAllowed, NotFound
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, FollowUps, RunRule
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import receipts
from ductile.ledger.tables.receipts import Receipt
from ductile.ledger.webhooks import deliveries as webhook_deliveries
from ductile.ledger.webhooks.deliveries import DeliveryRecord
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.ingress import (
    create_handle_job,
    route_external_event,
    trigger_run_with,
    unavailable_plugin_reason,
)
from ductile.pipeline.run.route import TooManyFollowUps
from ductile.pipeline.run.run_signals import run_rule_of
from ductile.web.api.jobs import health
from ductile.web.caller_limits.queue_quota import QueueLimitReached
from ductile.web.context import AppContext, RunRefused, submit
from ductile.web.messages import SAFE_HEADERS, Request, Response, encoded_json_response, json_response
from ductile.web.routing import PATHS_HINT, AnyRoute, Match, Route, RouteTable
from ductile.web.server.proxies import parse_proxies
from ductile.web.server.site import AccessLogEntry, Site
from ductile.web.webhooks.deliveries import (
    Delivery,
    DeliveryRefused,
    Endpoint,
    Forbidden,
    IdReused,
    Unavailable,
    find_challenge,
    is_ping,
    parse_body,
    read_delivery,
)
from ductile.web.webhooks.records import (
    refused_record,
    repeated_record,
    stored_record,
    unread_record,
    verified_record,
)
from ductile.web.webhooks.rejections import PING, REFUSED, REPEATED, RejectionCounter

RECEIPT_LIFETIME = timedelta(days=7)
"""How long repeated deliveries are recognized, at least."""
UNREAD_REASONS = {408: ("too_slow", "too slow"), 413: ("body_too_large", "the body is too large")}
"""Code and reason of responses that the server sends before the body is read, by status."""
NO_ENDPOINT = "(none)"
"""The path of the records of deliveries to unknown paths. They share its limit, so they cannot fill the disk."""
MAX_PATH_CHARS = 200
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")


def build_site(
    ctx: AppContext,
    rejections: RejectionCounter,
    *,
    on_request: Callable[[AccessLogEntry], None] = lambda _: None,
    on_fault: Callable[[BaseException, str], None] = lambda _error, _where: None,
) -> Site:
    """Build the site of `webhooks.listen`: every endpoint, and /healthz."""

    def count_unread(entry: AccessLogEntry) -> None:
        if (found := _unread(entry)) is not None:
            path, code, reason = found
            rejections.count(REFUSED, path, reason)
            rejections.record(unread_record(entry, path, code, reason, now=ctx.clock.now()))
            ctx.metrics.deliveries[path, "refused"] += 1
        on_request(entry)

    return Site(
        table=EndpointTable(Receiver(ctx, rejections)),
        authorize=lambda _, request: request,
        trusted_proxies=lambda: parse_proxies(ctx.snapshot().config.settings.webhooks.trusted_proxies),
        on_request=count_unread,
        on_fault=on_fault,
    )


def _unread(entry: AccessLogEntry) -> tuple[str, str, str] | None:
    """Return path, code and reason of a delivery that was refused before its body was read; None for other requests."""
    if entry.route is None:
        is_delivery = entry.method == "POST" and entry.status == NotFound.status
        return (
            (NO_ENDPOINT, NotFound.code, f"no endpoint has the path {entry.path[:MAX_PATH_CHARS]}")
            if is_delivery
            else None
        )
    found = UNREAD_REASONS.get(entry.status)
    return (entry.path, *found) if found else None


class EndpointTable(RouteTable):
    """The endpoints of the current configuration, matched by their exact paths."""

    def __init__(self, receiver: "Receiver") -> None:
        super().__init__([Route(method="GET", path="/healthz", handler=receiver.show_health)])
        self._receiver = receiver
        self._made: tuple[Mapping[str, Endpoint], dict[str, dict[str, AnyRoute]]] = ({}, {})

    def match(self, method: str, path: str) -> Match:
        endpoints = self._receiver.endpoints()
        if self._made[0] is not endpoints:
            self._made = (endpoints, {path: {"POST": self._route(endpoint)} for path, endpoint in endpoints.items()})
        found = self._made[1].get(path)
        return Match(self._choose(found, method), {}) if found is not None else super().match(method, path)

    def _route(self, endpoint: Endpoint) -> Route:
        return Route(
            method="POST",
            path=endpoint.path,
            handler=self._receiver.receive,
            max_body=endpoint.settings.max_body_size,
        )


@define(eq=False)
class Receiver:
    """The handler of deliveries."""

    ctx: AppContext
    rejections: RejectionCounter
    _known: tuple[Config, Mapping[str, Endpoint]] | None = None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoints by path, cached for each configuration."""
        config = self.ctx.snapshot().config
        if self._known is None or self._known[0] is not config:
            self._known = (config, build_endpoints(config))
        return self._known[1]

    async def show_health(self, request: Request) -> Response:
        if not (self.ctx.snapshot().config.settings.webhooks.public_health or is_local(request)):
            raise NotAllowed(
                "/healthz is available on this host only", hint="Set webhooks.public_health: true to make it public."
            )
        return await health(self.ctx, request)

    async def receive(self, request: Request) -> Response:
        """Return 202 with the job id when the job is durable. A repeated delivery gets the same response."""
        endpoint = self.endpoints().get(request.path)
        if endpoint is None:  # removed by a reload while the body was read
            raise NotFound("no such path", hint=PATHS_HINT)
        try:
            return await self._accept(endpoint, request)
        except (DeliveryRefused, RunRefused, QueueLimitReached) as error:
            code, reason = _operator_reason(error)
            self.rejections.count(REFUSED, endpoint.path, reason)
            self.ctx.metrics.deliveries[endpoint.path, "refused"] += 1
            now = self.ctx.clock.now()
            self.rejections.record(refused_record(endpoint, request, code, reason, error.status, now=now))
            await self.rejections.write_records()
            raise

    async def _accept(self, endpoint: Endpoint, request: Request) -> Response:
        now = self.ctx.clock.now()
        verdict = endpoint.verifier.verify(request.headers, request.body, now=now)
        if not verdict.is_valid:
            raise Forbidden(reason=verdict.reason or "", reason_code=verdict.code or "")
        if is_ping(endpoint, request):
            self.rejections.count(PING, endpoint.path, request.header(endpoint.id_header or "") or "")
            return json_response({"status": "pong"})
        payload = parse_body(endpoint, request)
        challenge = find_challenge(endpoint, payload)
        if challenge is not None:
            return json_response({"challenge": challenge})
        delivery = read_delivery(endpoint, request, verdict, payload, now=now)
        record = verified_record(endpoint, request, delivery, status=_success_status(endpoint), now=now)
        try:
            accepted = await self._store(endpoint, delivery, record)
        except LedgerError as error:
            raise Unavailable("the delivery was not stored", reason=str(error), hint="Send it again later.") from error
        self.ctx.metrics.deliveries[endpoint.path, "repeated" if accepted.is_repeat else "accepted"] += 1
        if accepted.is_repeat:
            self.rejections.count(REPEATED, endpoint.path, delivery.id or delivery.key or "")
            self.rejections.record(repeated_record(record, accepted.response))
            await self.rejections.write_records()
        return _acknowledge(endpoint, accepted.response)

    async def _find_repeat(self, endpoint: Endpoint, delivery: Delivery) -> "AcceptedDelivery | None":
        """Return the first response to a repeated delivery, even if it would be refused now."""
        if delivery.key is None:
            return None
        receipt = await self.ctx.ledger.read(receipts.get, endpoint.source, delivery.key)
        return _repeat_response(receipt, delivery) if receipt is not None else None

    async def _store(self, endpoint: Endpoint, delivery: Delivery, record: DeliveryRecord) -> "AcceptedDelivery":
        try:
            return await self._start(endpoint, delivery, record)
        except LedgerError:
            raise
        except DuctileError:
            if (accepted := await self._find_repeat(endpoint, delivery)) is None:
                raise
            await self.ctx.ledger.until_durable()  # the first request may still be waiting for the disk
            return accepted

    async def _start(self, endpoint: Endpoint, delivery: Delivery, record: DeliveryRecord) -> "AcceptedDelivery":
        snapshot = self.ctx.snapshot()
        runs = plan_runs(endpoint, delivery.event, snapshot)
        service = snapshot.config.settings.service
        failpoint("enqueue.before_begin")
        work = partial(
            store_delivery,
            delivery=delivery,
            record=record,
            runs=runs,
            scope=endpoint.source,
            default_ttl=service.dedupe_ttl,
            budget=snapshot.budget,
            run_rule=run_rule_of(snapshot.routing),
        )
        accepted = await submit(self.ctx, work, runs, actor=endpoint.source)
        failpoint("enqueue.after_commit")
        return accepted


@frozen
class AcceptedDelivery:
    """A stored delivery with the response for its sender."""

    response: str
    is_repeat: bool = False


def build_endpoints(config: Config) -> dict[str, Endpoint]:
    secrets = {token.name: token.key for token in config.settings.tokens}
    return {entry.path: Endpoint.of(entry, secrets) for entry in config.settings.webhooks.endpoints}


def plan_runs(endpoint: Endpoint, event: Event, snapshot: Snapshot) -> tuple[FollowUps, ...]:
    """Return the runs that the delivery starts. Raises Unavailable if the configuration prevents them."""
    entry, routing, by = endpoint.settings, snapshot.routing, endpoint.source
    if entry.event is not None:
        return route_external_event(event, routing, submitted_by=by)
    if entry.plugin is not None:
        if why := routing.target(entry.plugin).refused:
            raise Unavailable(reason=f"plugin {entry.plugin} {why}")
        return (create_handle_job(entry.plugin, event, routing, submitted_by=by),)
    try:
        run = trigger_run_with(snapshot.plans.require(entry.pipeline or ""), event, routing, submitted_by=by)
    except TooManyFollowUps as error:
        raise RunRefused(f"the run cannot start: {error}", hint=DeliveryRefused.hint) from error
    if why := unavailable_plugin_reason(run, routing):
        raise Unavailable(reason=why)
    return (run,)


def store_delivery(
    db: Db,
    delivery: Delivery,
    record: DeliveryRecord,
    runs: tuple[FollowUps, ...],
    *,
    scope: str,
    default_ttl: timedelta,
    budget: Budget,
    run_rule: RunRule,
) -> AcceptedDelivery:
    """Insert the receipt of the delivery and start its runs. A repeated delivery returns the first response."""
    key, body_hash, now = delivery.key, delivery.body_hash, record.at
    if key is not None and not receipts.put(db, scope, key, now=now, ttl=RECEIPT_LIFETIME, body_hash=body_hash):
        receipt = receipts.get(db, scope, key)
        assert receipt is not None, "a receipt prevented the insert"
        return _repeat_response(receipt, delivery)
    roots = start_runs(db, record, runs, default_ttl=default_ttl, budget=budget, run_rule=run_rule)[1].job_ids
    first = roots[0] if roots else None
    response = strict_json.dumps({"job_id": first, "job_ids": roots} if len(roots) > 1 else {"job_id": first})
    if key is not None:
        receipts.set_response(db, scope, key, job_id=first, response=response)
    return AcceptedDelivery(response)


def start_runs(
    db: Db,
    record: DeliveryRecord,
    runs: tuple[FollowUps, ...],
    *,
    default_ttl: timedelta,
    budget: Budget,
    run_rule: RunRule,
    actor: str | None = None,
) -> tuple[int, DeliveryRecord]:
    """Start the runs of a delivery and store its record. Return the id of the record, and the record.

    `actor` is the caller of a redelivery.
    """
    roots = []
    for run in runs:
        enqueued = start_run(
            db, run, now=record.at, actor=actor, default_ttl=default_ttl, budget=budget, run_rule=run_rule
        )
        roots += [enqueued[0].job_id] if enqueued else []
    stored = stored_record(record, roots, runs)
    return webhook_deliveries.put(db, stored), stored


def _operator_reason(error: DeliveryRefused | RunRefused | QueueLimitReached) -> tuple[str, str]:
    return (error.reason_code, error.reason) if isinstance(error, DeliveryRefused) else (error.code, str(error))


def is_local(request: Request) -> bool:
    """True if the client is on this host. A request with forwarding headers comes from a proxy for another host."""
    if any(name in request.headers for name in FORWARDING_HEADERS):
        return False
    try:
        return ip_address(request.peer).is_loopback
    except ValueError:
        return False


def _repeat_response(receipt: Receipt, delivery: Delivery) -> AcceptedDelivery:
    if delivery.body_hash is not None and receipt.body_hash not in (None, delivery.body_hash):
        raise IdReused(
            "the delivery id was used by another delivery", reason=f"the id {receipt.key} was used with another body"
        )
    return AcceptedDelivery(receipt.response or "{}", is_repeat=True)


def _success_status(endpoint: Endpoint) -> int:
    # Slack shows the response to the user who typed the command, and accepts only 200 as success.
    return 200 if endpoint.settings.scheme == "slack" and endpoint.settings.body == "form" else 202


def _acknowledge(endpoint: Endpoint, response: str) -> Response:
    status = _success_status(endpoint)
    if status == 200:
        return Response(status=status, headers=SAFE_HEADERS)
    return encoded_json_response(response.encode(), status)
