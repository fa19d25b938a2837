"""Webhook endpoints, and the conversion of a delivery to an event with its idempotency key. Pure.

A body is parsed only after its signature was verified, and only in the format of the endpoint. It becomes the payload
of an event and cannot set other event fields. Does not start runs; the receiver does.
"""

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from attrs import field, frozen
from blake3 import blake3

from ductile.config.load.rules import CREDENTIAL_HEADERS
from ductile.config.sections.settings import WebhookEndpoint
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.secret import Secret
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.ingress import EventTypeInvalid, EventTypeTemplate
from ductile.web.messages import Request
from ductile.web.webhooks.signatures import SignatureVerdict, Verifier

MAX_BODY_DEPTH = strict_json.MAX_DEPTH - 4
"""Lower than the JSON limit, because the body is nested in an event and in job payloads that are parsed again."""
MAX_FORM_FIELDS = 1000
MAX_DELIVERY_ID_CHARS = 256
GITHUB_EVENT = "x-github-event"
FORM, JSON = "application/x-www-form-urlencoded", "application/json"


class DeliveryRefused(DuctileError):
    """The delivery is invalid."""

    code, exit_code, status = "delivery_refused", 1, 400
    hint = "The operator sees the reason with `ductile webhook deliveries`."

    def __init__(
        self, message: str | None = None, *, reason: str = "", reason_code: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason, self.reason_code = reason or str(self), reason_code or self.code
        """For the operator. They may be more detailed than the message and the code for the sender."""


class Forbidden(DeliveryRefused):
    """forbidden"""

    code, exit_code, status = "forbidden", 77, 403
    hint = f"Sign the raw body with the secret of the endpoint. {DeliveryRefused.hint}"


class WrongMediaType(DeliveryRefused):
    """The media type of the body is not supported by this endpoint."""

    code, status = "wrong_media_type", 415
    hint = "Send JSON, or a form if the `body` of the endpoint is `form`."


class IdReused(DeliveryRefused):
    """The delivery id was used by another delivery."""

    code, status = "delivery_id_reused", 409
    hint = "Send each delivery with a unique id."


class Unavailable(DeliveryRefused):
    """The endpoint is temporarily unavailable."""

    code, exit_code, status = "endpoint_unavailable", 75, 503
    hint = f"Send the delivery again later. {DeliveryRefused.hint}"


@frozen(kw_only=True)
class Endpoint:
    """A webhook endpoint with everything that its settings determine."""

    settings: WebhookEndpoint
    path: str
    source: str
    """The `submitted_by` of its jobs and the `source` of its events."""
    verifier: Verifier
    event_type: EventTypeTemplate
    id_header: str | None
    forwarded: tuple[str, ...]

    @classmethod
    def of(cls, settings: WebhookEndpoint, secrets: Mapping[str, Secret]) -> "Endpoint":
        known = (secrets[name] for name in settings.secret_ref if name in secrets)
        verifier = Verifier.of(settings.scheme, known, settings.signature_header)
        id_header = settings.delivery_id_header or verifier.scheme.delivery_id_header
        private = CREDENTIAL_HEADERS | {verifier.header}
        names = (name.lower() for name in (*verifier.scheme.event_headers, *settings.forward_headers))
        return cls(
            settings=settings,
            path=settings.path,
            source=f"webhook:{settings.path}",
            verifier=verifier,
            event_type=EventTypeTemplate.parse(settings.event or _default_type(settings)),
            id_header=id_header.lower() if id_header else None,
            forwarded=tuple(name for name in dict.fromkeys(names) if name not in private),
        )


@frozen(kw_only=True)
class Delivery:
    """A verified and well-formed delivery."""

    event: Event = field(repr=False)
    id: str | None
    """The id that the sender gave it, signed or not."""
    key: str | None
    """Identifies repeated deliveries; None if every delivery is new."""
    body_hash: str | None
    """Distinguishes a repetition from another delivery with the same key; None if the key is sufficient."""


def parse_body(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    """Parse the body as an object. Other JSON values are wrapped as `{"body": value}`. Raises DeliveryRefused."""
    encoding = (request.header("content-encoding") or "identity").lower()
    if encoding != "identity":
        raise WrongMediaType(f"the body is compressed ({encoding[:40]})", hint="Send it without compression.")
    if endpoint.settings.body == "form":
        if _declared_media_type(request) == JSON:
            raise WrongMediaType("the body is JSON, but this endpoint takes forms", hint=f"Send {FORM}.")
        return _parse_form(request.body)
    try:
        content = strict_json.loads(request.body, source="body", max_depth=MAX_BODY_DEPTH)
    except Unreadable as error:
        # Content-Type does not select the parser: many senders of JSON declare a form.
        if _declared_media_type(request) == FORM:
            raise WrongMediaType("the body is a form, but this endpoint takes JSON", hint=f"Send {JSON}.") from error
        raise DeliveryRefused(f"the body is not JSON: {error.reason}") from error
    return content if isinstance(content, dict) else {"body": content}


def _declared_media_type(request: Request) -> str:
    return (request.header("content-type") or "").partition(";")[0].strip().lower()


def create_event(endpoint: Endpoint, request: Request, payload: Mapping[str, Any], *, now: datetime) -> Event:
    """Create the event of a verified request. Raises DeliveryRefused."""
    try:
        kind = endpoint.event_type.render(request.header)
    except EventTypeInvalid as refused:
        raise DeliveryRefused(str(refused)) from refused
    headers = {name: value for name in endpoint.forwarded if (value := request.header(name)) is not None}
    return Event(str(uuid.uuid4()), kind, payload, endpoint.source, now, headers=headers or None)


def read_delivery(
    endpoint: Endpoint, request: Request, verdict: SignatureVerdict, payload: Mapping[str, Any], *, now: datetime
) -> Delivery:
    """Convert a verified request to a delivery. Raises DeliveryRefused."""
    event = create_event(endpoint, request, payload, now=now)
    in_body = _id_in_body(endpoint, payload)
    in_header = _single_header(endpoint.id_header, request) if endpoint.id_header is not None else None
    # Signed values come first: a delivery that was recorded on its way could be sent again with another header.
    # Senders with the event id in the body may also count their attempts there, so bodies of retries can differ.
    own_id = verdict.delivery_id or in_body or in_header
    key: str | None
    if endpoint.settings.once == "body":
        key, is_sufficient = blake3(request.body).hexdigest(), True
    elif verdict.delivery_id is None and (signed := in_body or verdict.signed_digest) is not None:
        key, is_sufficient = signed, True
    else:
        key, is_sufficient = own_id, False
    return Delivery(
        event=event,
        id=own_id,
        key=key,
        body_hash=blake3(request.body).hexdigest() if key is not None and not is_sufficient else None,
    )


def is_ping(endpoint: Endpoint, request: Request) -> bool:
    """True for a GitHub ping that the endpoint answers itself."""
    settings = endpoint.settings
    return settings.scheme == "github" and settings.ping == "answer" and request.header(GITHUB_EVENT) == "ping"


def find_challenge(endpoint: Endpoint, payload: Mapping[str, Any]) -> str | None:
    """Return the challenge of a Slack URL verification; None for every other payload."""
    if endpoint.settings.scheme != "slack" or payload.get("type") != "url_verification":
        return None
    challenge = payload.get("challenge")
    return challenge if isinstance(challenge, str) else None


def _default_type(settings: WebhookEndpoint) -> str:
    name = settings.name or settings.path.rstrip("/").rpartition("/")[2]
    return f"webhook.{name}" if name else "webhook"


def _id_in_body(endpoint: Endpoint, payload: Mapping[str, Any]) -> str | None:
    member = endpoint.verifier.scheme.delivery_id_member
    found = payload.get(member) if member is not None else None
    return found if isinstance(found, str) and 0 < len(found) <= MAX_DELIVERY_ID_CHARS else None


def _single_header(header: str, request: Request) -> str | None:
    values: Iterable[str] = request.headers.get(header, ())
    match tuple(values):
        case () | ("",):
            return None
        case (found,) if len(found) <= MAX_DELIVERY_ID_CHARS:
            return found
        case _:
            raise DeliveryRefused(f"the header {header} is repeated or longer than {MAX_DELIVERY_ID_CHARS} characters")


def _parse_form(body: bytes) -> dict[str, Any]:
    """Parse a form to fields by name; repeated fields become a list.

    A single `payload` field with a JSON object is unwrapped: GitHub and Slack send it.
    """
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
    except UnicodeDecodeError as error:
        raise DeliveryRefused("the body is not a form: it is not UTF-8") from error
    except ValueError as error:
        raise DeliveryRefused(f"the body is not a form: it has more than {MAX_FORM_FIELDS} fields") from error
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return _unwrap_payload(fields)


def _unwrap_payload(fields: dict[str, Any]) -> dict[str, Any]:
    wrapped = fields.get("payload")
    if len(fields) != 1 or not isinstance(wrapped, str):
        return fields
    try:
        content = strict_json.loads(wrapped, source="payload", max_depth=MAX_BODY_DEPTH)
    except Unreadable:
        return fields
    return content if isinstance(content, dict) else fields
