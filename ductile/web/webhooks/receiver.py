"""Signed ingress: a delivery becomes durable work, once, before it is acknowledged.

Route, method, size and time limits are the server's; then signature, body, commit, 202. Secrets and paths are those of
the configuration of the moment. The runtime serves the site on `webhooks.listen`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address

from attrs import define, frozen

from ductile.config.load.load import Config
from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError, LedgerError, NotAllowed, NotFound
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, FollowUps, are_few
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import receipts
from ductile.ledger.tables.receipts import Receipt
from ductile.pipeline.compile.plan import HANDLE
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.ingress import arrive, begin_with, hand_over, refused_plugin
from ductile.pipeline.run.route import TooManyFollowUps
from ductile.web.api.jobs import health
from ductile.web.context import AppContext, submit
from ductile.web.messages import SAFE_HEADERS, Request, Response, encoded_json_response, json_response
from ductile.web.routes import PATHS_HINT, AnyRoute, Match, Route, Table
from ductile.web.server.proxies import trusted_proxies
from ductile.web.site import Served, Site
from ductile.web.webhooks.deliveries import (
    Delivery,
    DeliveryRefused,
    Endpoint,
    Forbidden,
    IdReused,
    RunRefused,
    Unavailable,
    challenge_in,
    is_ping,
    payload_of_body,
    read_delivery,
    refused_delivery,
    unread_delivery,
)
from ductile.web.webhooks.rejections import PING, REFUSED, REPEATED, RejectionCounter

KEPT = timedelta(days=7)
"""How long a delivery is known."""
UNREAD = {408: "too slow", 413: "the body is too large"}
"""What is refused before there is a body to look at, by its answer."""
PROXIED = ("forwarded", "x-forwarded-for", "x-real-ip")


def site(
    desk: AppContext,
    tally: RejectionCounter,
    *,
    on_request: Callable[[Served], None] = lambda _: None,
    on_fault: Callable[[BaseException, str], None] = lambda _error, _where: None,
) -> Site:
    """What `webhooks.listen` serves: every endpoint, and /healthz."""

    def served(exchange: Served) -> None:
        if exchange.route is not None and exchange.status in UNREAD:
            tally.count(REFUSED, exchange.path, UNREAD[exchange.status])
            tally.keep_one(exchange.path, partial(unread_delivery, exchange, UNREAD[exchange.status]))
            desk.meters.deliveries[exchange.path, "refused"] += 1
        on_request(exchange)

    return Site(
        table=EndpointTable(Receiver(desk, tally)),
        authorize=lambda _, request: request,
        trusted_proxies=lambda: trusted_proxies(desk.snapshot().config.settings.webhooks.trusted_proxies),
        on_request=served,
        on_fault=on_fault,
    )


class EndpointTable(Table):
    """The endpoints of the configuration of the moment, each at exactly its path."""

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
    """Whoever takes deliveries."""

    desk: AppContext
    tally: RejectionCounter
    _known: tuple[Config, Mapping[str, Endpoint]] | None = None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """By path; made once for each configuration."""
        config = self.desk.snapshot().config
        if self._known is None or self._known[0] is not config:
            self._known = (config, endpoints_of(config))
        return self._known[1]

    async def show_health(self, request: Request) -> Response:
        if not (self.desk.snapshot().config.settings.webhooks.public_health or is_local(request)):
            raise NotAllowed("/healthz answers this host only", hint="webhooks.public_health: true opens it")
        return await health(self.desk, request)

    async def receive(self, request: Request) -> Response:
        """202 with the job's id, after the job is durable; the same again for the same delivery."""
        endpoint = self.endpoints().get(request.path)
        if endpoint is None:  # a reload took it away while the body came
            raise NotFound("there is nothing at this path", hint=PATHS_HINT)
        try:
            return await self._take(endpoint, request)
        except DeliveryRefused as refused:
            self.tally.count(REFUSED, endpoint.path, refused.reason)
            self.tally.keep_one(endpoint.path, partial(refused_delivery, endpoint, request, refused))
            self.desk.meters.deliveries[endpoint.path, "refused"] += 1
            raise

    async def _take(self, endpoint: Endpoint, request: Request) -> Response:
        now = self.desk.clock.now()
        verdict = endpoint.verifier.verdict(request.headers, request.body, now=now)
        if not verdict.is_valid:
            raise Forbidden(reason=verdict.reason or "")
        if is_ping(endpoint, request):
            self.tally.count(PING, endpoint.path, request.header(endpoint.id_header or "") or "")
            return json_response({"status": "pong"})
        payload = payload_of_body(endpoint, request)
        challenge = challenge_in(endpoint, payload)
        if challenge is not None:
            return json_response({"challenge": challenge})
        delivery = read_delivery(endpoint, request, verdict, payload, now=now)
        try:
            taken = await self._store(endpoint, delivery, now)
        except LedgerError as error:
            raise Unavailable("the delivery was not stored", reason=str(error), hint="send it again later") from error
        self.desk.meters.deliveries[endpoint.path, "repeated" if taken.is_repeat else "accepted"] += 1
        if taken.is_repeat:
            self.tally.count(REPEATED, endpoint.path, delivery.key or "")
        return _acknowledged(endpoint, taken.answer)

    async def _again(self, endpoint: Endpoint, delivery: Delivery, now: datetime) -> "AcceptedDelivery | None":
        """The first answer to a delivery that is known already, whatever has become of its target."""
        if delivery.key is None:
            return None
        receipt = await self.desk.ledger.read(receipts.get, endpoint.source, delivery.key, now=now)
        return _repeated(receipt, delivery) if receipt is not None else None

    async def _store(self, endpoint: Endpoint, delivery: Delivery, now: datetime) -> "AcceptedDelivery":
        snapshot = self.desk.snapshot()
        try:
            runs = runs_of(endpoint, delivery.event, snapshot)
        except DuctileError:
            if (taken := await self._again(endpoint, delivery, now)) is None:
                raise
            await self.desk.ledger.until_durable()  # the first request may still wait for the disk
            return taken
        service = snapshot.config.settings.service
        failpoint("enqueue.before_begin")
        work = partial(
            accept,
            delivery=delivery,
            runs=runs,
            scope=endpoint.source,
            now=now,
            default_ttl=service.dedupe_ttl,
            budget=snapshot.budget,
        )
        taken = await submit(self.desk, work, is_large=not are_few(*runs))
        failpoint("enqueue.after_commit")
        return taken


@frozen
class AcceptedDelivery:
    """A delivery that is in the ledger, and what its sender is told."""

    answer: str
    is_repeat: bool = False


def endpoints_of(config: Config) -> dict[str, Endpoint]:
    secrets = {token.name: token.key for token in config.settings.tokens}
    return {entry.path: Endpoint.of(entry, secrets) for entry in config.settings.webhooks.endpoints}


def runs_of(endpoint: Endpoint, event: Event, snapshot: Snapshot) -> tuple[FollowUps, ...]:
    """What the delivery starts. Unavailable where it could only end at once, because of the configuration."""
    entry, world, by = endpoint.settings, snapshot.world, endpoint.source
    if entry.event is not None:
        return arrive(event, world, submitted_by=by)
    if entry.plugin is not None:
        lane = snapshot.lanes.get(entry.plugin)
        lacks_handle = lane is not None and HANDLE not in lane.plugin.manifest.commands
        if why := world.target(entry.plugin).refused or ("has no command handle" if lacks_handle else None):
            raise Unavailable(reason=f"plugin {entry.plugin} {why}")
        return (hand_over(entry.plugin, event, world, submitted_by=by),)
    try:
        run = begin_with(snapshot.plans.named(entry.pipeline or ""), event, world, submitted_by=by)
    except TooManyFollowUps as error:
        raise RunRefused(f"the run cannot begin: {error}") from error
    if why := refused_plugin(run, world):
        raise Unavailable(reason=why)
    return (run,)


def accept(
    db: Db,
    delivery: Delivery,
    runs: tuple[FollowUps, ...],
    *,
    scope: str,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> AcceptedDelivery:
    """Insert the receipt of the delivery, then start its runs; for a repeated delivery return the first answer."""
    key, body_hash = delivery.key, delivery.body_hash
    if key is not None and not receipts.put(db, scope, key, now=now, keep=KEPT, body_hash=body_hash):
        receipt = receipts.get(db, scope, key, now=now)
        assert receipt is not None, "a valid receipt stood in the way"
        return _repeated(receipt, delivery)
    roots = []
    for run in runs:
        made = start_run(db, run, now=now, default_ttl=default_ttl, budget=budget)
        roots += [made[0].job_id] if made else []
    first = roots[0] if roots else None
    answer = strict_json.dumps({"job_id": first, "job_ids": roots} if len(roots) > 1 else {"job_id": first})
    if key is not None:
        receipts.note_answer(db, scope, key, job_id=first, response=answer)
    return AcceptedDelivery(answer)


def is_local(request: Request) -> bool:
    """Whether somebody on this host asks; a proxy on this host asks for others."""
    if any(name in request.headers for name in PROXIED):
        return False
    try:
        return ip_address(request.peer).is_loopback
    except ValueError:
        return False


def _repeated(receipt: Receipt, delivery: Delivery) -> AcceptedDelivery:
    if delivery.body_hash is not None and receipt.body_hash not in (None, delivery.body_hash):
        raise IdReused("another delivery had this id", reason=f"another body came under the id {receipt.key}")
    return AcceptedDelivery(receipt.response or "{}", is_repeat=True)


def _acknowledged(endpoint: Endpoint, answer: str) -> Response:
    # Slack shows the answer to a command to whoever typed it, and takes nothing but 200 for success.
    if endpoint.settings.scheme == "slack" and endpoint.settings.body == "form":
        return Response(status=200, headers=SAFE_HEADERS)
    return encoded_json_response(answer.encode(), 202)
