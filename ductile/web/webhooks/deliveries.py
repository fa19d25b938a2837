"""What comes to a webhook: the endpoint it is for, and the delivery as an event with what makes it unique. Pure.

A body is read only after its signature was found good, and only as what the endpoint says it is; it becomes a payload
and can never pose as an event. Does not know what a delivery leads to; `webhooks` does.
"""

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

from attrs import field, frozen
from blake3 import blake3

from ductile.config.checks.rules import CREDENTIALS
from ductile.config.sections.settings import WebhookEndpoint
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.secret import Secret
from ductile.ledger.tables.rejected_deliveries import UNREAD_BODY, RejectedDelivery
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.ingress import EventType, TypeRefused
from ductile.web.messages import Request
from ductile.web.site import Served
from ductile.web.webhooks.signatures import SignatureVerdict, Verifier

DEEPEST = strict_json.MAX_DEPTH - 4
"""The core wraps a body in an event, and what becomes of it in more; all of that is read again."""
MOST_FIELDS = 1000
LONGEST_ID = 256
LONGEST_HEADER = 512
KEPT_HEADERS = frozenset({"content-type", "content-encoding", "content-length", "host", "user-agent", "x-github-event"})
GITHUB_EVENT = "x-github-event"
FORM, JSON = "application/x-www-form-urlencoded", "application/json"


class DeliveryRefused(DuctileError):
    """The delivery cannot be taken."""

    code, exit_code, status = "delivery_refused", 1, 400
    hint = "whoever runs this Ductile sees the reason with `ductile webhook receipts`"

    def __init__(self, message: str | None = None, *, reason: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason or str(self)
        """What the operator hears; it may say more than the sender is told."""


class Forbidden(DeliveryRefused):
    """forbidden"""

    code, exit_code, status = "forbidden", 77, 403
    hint = f"sign the raw body with the endpoint's secret; {DeliveryRefused.hint}"


class WrongMediaType(DeliveryRefused):
    """The body is not encoded as this endpoint expects."""

    code, status = "wrong_media_type", 415
    hint = "send what the endpoint takes: JSON, or a form where its `body` is `form`"


class IdReused(DeliveryRefused):
    """Another delivery had this id."""

    code, status = "delivery_id_reused", 409
    hint = "send every delivery under an id of its own"


class RunRefused(DeliveryRefused):
    """A run with this payload cannot begin."""

    code, status = "run_refused", 422


class Unavailable(DeliveryRefused):
    """This endpoint takes nothing at the moment."""

    code, exit_code, status = "endpoint_unavailable", 75, 503
    hint = "send it again later; whoever runs this Ductile sees the reason with `ductile webhook receipts`"


@frozen(kw_only=True)
class Endpoint:
    """One address, with everything that is decided before a delivery comes."""

    settings: WebhookEndpoint
    path: str
    source: str
    """Who its jobs and events come from."""
    verifier: Verifier
    event_type: EventType
    id_header: str | None
    forwarded: tuple[str, ...]

    @classmethod
    def of(cls, settings: WebhookEndpoint, secrets: Mapping[str, Secret]) -> "Endpoint":
        known = (secrets[name] for name in settings.secret_ref if name in secrets)
        verifier = Verifier.of(settings.scheme, known, settings.signature_header)
        id_header = settings.delivery_id_header or verifier.scheme.delivery_id_header
        private = CREDENTIALS | {verifier.header}
        names = (name.lower() for name in settings.forward_headers)
        return cls(
            settings=settings,
            path=settings.path,
            source=f"webhook:{settings.path}",
            verifier=verifier,
            event_type=EventType.of(settings.event or _default_type(settings)),
            id_header=id_header.lower() if id_header else None,
            forwarded=tuple(name for name in dict.fromkeys(names) if name not in private),
        )


@frozen(kw_only=True)
class Delivery:
    """A signed and well-formed delivery."""

    event: Event = field(repr=False)
    key: str | None
    """What it is known by if it comes again; None: every delivery is a new one."""
    body_hash: str | None
    """Tells a repetition from another delivery under the same key; None where the key says enough."""


def payload_of_body(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    """The body as an object; what is none is its only member `body`."""
    encoding = (request.header("content-encoding") or "identity").lower()
    if encoding != "identity":
        raise WrongMediaType(f"the body is compressed ({encoding[:40]})", hint="send it as it is")
    if endpoint.settings.body == "form":
        if _declared(request) == JSON:
            raise WrongMediaType("the body is JSON, this endpoint takes forms", hint=f"send {FORM}")
        return _form(request.body)
    try:
        content = strict_json.loads(request.body, source="body", max_depth=DEEPEST)
    except Unreadable as error:
        # The declared type never chooses how a body is read: many senders of JSON declare a form.
        if _declared(request) == FORM:
            raise WrongMediaType("the body is a form, this endpoint takes JSON", hint=f"send {JSON}") from error
        raise DeliveryRefused(f"the body is not JSON: {error.reason}") from error
    return content if isinstance(content, dict) else {"body": content}


def _declared(request: Request) -> str:
    return (request.header("content-type") or "").partition(";")[0].strip().lower()


def read_delivery(
    endpoint: Endpoint, request: Request, verdict: SignatureVerdict, payload: Mapping[str, Any], *, now: datetime
) -> Delivery:
    """The event that the delivery becomes, and what it is known by."""
    try:
        kind = endpoint.event_type.filled(request.header)
    except TypeRefused as refused:
        raise DeliveryRefused(str(refused)) from refused
    headers = {name: value for name in endpoint.forwarded if (value := request.header(name)) is not None}
    key, is_whole = _key(endpoint, request, verdict, payload)
    return Delivery(
        event=Event(str(uuid.uuid4()), kind, payload, endpoint.source, now, headers=headers or None),
        key=key,
        body_hash=blake3(request.body).hexdigest() if key is not None and not is_whole else None,
    )


def is_ping(endpoint: Endpoint, request: Request) -> bool:
    """Whether GitHub only wants to know that somebody listens here."""
    settings = endpoint.settings
    return settings.scheme == "github" and settings.ping == "answer" and request.header(GITHUB_EVENT) == "ping"


def refused_delivery(
    endpoint: Endpoint, request: Request, refused: DeliveryRefused, *, now: datetime
) -> RejectedDelivery:
    """What is kept of a delivery that was not taken: enough to find out why, no body and no credentials."""
    names = {*KEPT_HEADERS, endpoint.verifier.header, endpoint.id_header, *endpoint.forwarded}
    kept = {
        name: [value[:LONGEST_HEADER] for value in values]
        for name, values in request.headers.items()
        if name in names or name.endswith(("-signature", "-signature-256", "-timestamp", "-id"))
    }
    return RejectedDelivery(
        at=now,
        path=request.path,
        reason=refused.reason,
        status=refused.status,
        peer=request.peer,
        body_sha256=sha256(request.body).hexdigest(),
        body_bytes=len(request.body),
        headers=kept,
    )


def unread_delivery(exchange: Served, reason: str, *, now: datetime) -> RejectedDelivery:
    """What is kept of one that was sent away before its body was read: when, from where and why."""
    return RejectedDelivery(
        at=now,
        path=exchange.path,
        reason=reason,
        status=exchange.status,
        peer=exchange.peer,
        body_sha256=UNREAD_BODY,
        body_bytes=0,
        headers={},
    )


def challenge_in(endpoint: Endpoint, payload: Mapping[str, Any]) -> str | None:
    """What Slack wants to hear when an address is entered there; None for everything else."""
    if endpoint.settings.scheme != "slack" or payload.get("type") != "url_verification":
        return None
    challenge = payload.get("challenge")
    return challenge if isinstance(challenge, str) else None


def _default_type(settings: WebhookEndpoint) -> str:
    name = settings.name or settings.path.rstrip("/").rpartition("/")[2]
    return f"webhook.{name}" if name else "webhook"


def _key(
    endpoint: Endpoint, request: Request, verdict: SignatureVerdict, payload: Mapping[str, Any]
) -> tuple[str | None, bool]:
    """What the delivery is known by, and whether that alone says that two are the same."""
    if endpoint.id_header is not None and (found := _only(endpoint.id_header, request)) is not None:
        return found, False
    if verdict.delivery_id is not None:
        return verdict.delivery_id, False
    # Senders that name the event inside of the body may count their attempts in there, too.
    member = endpoint.verifier.scheme.delivery_id_member
    named = payload.get(member) if member is not None else None
    if isinstance(named, str) and 0 < len(named) <= LONGEST_ID:
        return named, True
    return verdict.once, True


def _only(header: str, request: Request) -> str | None:
    values: Iterable[str] = request.headers.get(header, ())
    match tuple(values):
        case () | ("",):
            return None
        case (found,) if len(found) <= LONGEST_ID:
            return found
        case _:
            raise DeliveryRefused(f"the header {header} is given twice, or longer than {LONGEST_ID} characters")


def _form(body: bytes) -> dict[str, Any]:
    """Fields by name, a list where a name is repeated. GitHub and Slack put a JSON object into a lone `payload`."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError as error:
        raise DeliveryRefused("the body is not a form: it is not UTF-8") from error
    except ValueError as error:
        raise DeliveryRefused(f"the body is not a form: it has more than {MOST_FIELDS} fields") from error
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return _unwrapped(fields)


def _unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    wrapped = fields.get("payload")
    if len(fields) != 1 or not isinstance(wrapped, str):
        return fields
    try:
        content = strict_json.loads(wrapped, source="payload", max_depth=DEEPEST)
    except Unreadable:
        return fields
    return content if isinstance(content, dict) else fields
