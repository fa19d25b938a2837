"""The JSON views of webhook deliveries, shared by the API and the command line.

Imports no Trio, so that commands start quickly.
"""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from ductile.config.load.load import Config
from ductile.config.sections.settings import WebhookEndpoint
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.formats.json_schema import Count, Keywords, Timestamp
from ductile.ledger.reports.filters import MAX_PAGE_SIZE, PageFields, page_fields, parse_moment, parse_text
from ductile.ledger.storage.db import Db
from ductile.ledger.webhooks import deliveries
from ductile.ledger.webhooks.deliveries import (
    VERDICTS,
    DeliveryFilter,
    DeliveryRecord,
    DeliveryVerdict,
    list_deliveries,
)

MAX_ID_DIGITS = 18
NO_PIPELINE, CONDITIONS_FALSE = "no_pipeline", "conditions_false"
REASONS = {
    NO_PIPELINE: "no pipeline is triggered by this event",
    CONDITIONS_FALSE: "the conditions of the pipelines for this event were false",
}
"""Code of an unmatched delivery → the reason."""


class DeliveryView(TypedDict):
    """A delivery to a webhook endpoint."""

    id: int
    at: Timestamp
    endpoint: Annotated[str, "The name of the endpoint; its path if it no longer exists"]
    path: str
    verdict: Annotated[
        DeliveryVerdict, "unmatched: accepted, but nothing handles it; repeated: its first delivery counts"
    ]
    code: Annotated[str, "Why it is refused or unmatched"] | None
    reason: str | None
    status: Annotated[int, "The HTTP status of the response"]
    delivery_id: Annotated[str, "The id that the sender gave it"] | None
    job_ids: Annotated[list[str], "The jobs that it became; those of the first delivery if it is repeated"]
    peer: Annotated[str, "The address of the sender"]
    headers: Annotated[dict[str, list[str]], "Selected headers"]
    body_sha256: Annotated[str, "Empty if the body was not read"]
    body_bytes: Count
    can_redeliver: Annotated[bool, "The body is stored"]
    redelivery_of: Annotated[int, "The delivery that was delivered again"] | None


class DeliveryPageView(PageFields):
    deliveries: Annotated[list[DeliveryView], Keywords(maxItems=MAX_PAGE_SIZE)]


def endpoint_name(entry: WebhookEndpoint) -> str:
    return entry.name or entry.path.rstrip("/").rpartition("/")[2] or entry.path


def find_endpoint(config: Config, name: str) -> WebhookEndpoint:
    """Return the endpoint with this name or path."""
    entries = config.settings.webhooks.endpoints
    for entry in entries:
        if name in (endpoint_name(entry), entry.path):
            return entry
    known = [endpoint_name(entry) for entry in entries]
    hint = f"Known endpoints: {', '.join(known)}." if known else "Add endpoints under webhooks.endpoints."
    raise NotFound(f"endpoint {name[:80]!r} does not exist{did_you_mean(name, known)}", hint=hint)


def parse_delivery_filter(config: Config, arguments: Mapping[str, str | None]) -> DeliveryFilter:
    """Parse the filters by the names of FILTERS. Raises UsageInvalid, or NotFound for an unknown endpoint."""
    endpoint, verdict = arguments.get("endpoint"), arguments.get("verdict")
    if verdict and verdict not in VERDICTS:
        hint = f"Use one of: {', '.join(VERDICTS)}."
        raise UsageInvalid(f"verdict: unknown verdict {verdict[:80]!r}{did_you_mean(verdict, VERDICTS)}", hint=hint)
    return DeliveryFilter(
        path=find_endpoint(config, endpoint).path if endpoint else None,
        verdict=verdict or None,
        delivery_id=parse_text(arguments.get("delivery_id"), "delivery_id"),
        since=parse_moment(arguments.get("from"), "from"),
        until=parse_moment(arguments.get("to"), "to"),
    )


def delivery_page(db: Db, config: Config, wanted: DeliveryFilter, *, before: int, limit: int) -> DeliveryPageView:
    page = list_deliveries(db, wanted, before=before, limit=limit)
    return {"deliveries": [delivery_view(config, record) for record in page.items], **page_fields(page, limit)}


def delivery_view(config: Config, record: DeliveryRecord) -> DeliveryView:
    names = {entry.path: endpoint_name(entry) for entry in config.settings.webhooks.endpoints}
    assert record.id is not None, "a delivery that was read has an id"
    return {
        "id": record.id,
        "at": to_text(record.at),
        "endpoint": names.get(record.path, record.path),
        "path": record.path,
        "verdict": record.verdict,
        "code": record.code,
        "reason": reason_of(record),
        "status": record.status,
        "delivery_id": record.delivery_id,
        "job_ids": list(record.job_ids),
        "peer": record.peer,
        "headers": record.headers,
        "body_sha256": record.body_sha256,
        "body_bytes": record.body_bytes,
        "can_redeliver": record.has_body,
        "redelivery_of": record.redelivery_of,
    }


def require_delivery(db: Db, text: str) -> DeliveryRecord:
    """Return the delivery with this id. Raises NotFound."""
    is_id = text.isascii() and text.isdecimal() and len(text) <= MAX_ID_DIGITS
    record = deliveries.get(db, int(text)) if is_id else None
    if record is None:
        raise NotFound(f"delivery {text[:80]!r} does not exist", hint="Run `ductile webhook deliveries`.")
    return record


def reason_of(record: DeliveryRecord) -> str | None:
    """Return the reason why a delivery is refused or unmatched."""
    return record.reason or REASONS.get(record.code or "")
