"""Build the records of deliveries: what is stored about a request. Pure.

The headers of a record are those that explain a delivery or that a redelivery needs. Credentials are never stored, a
signature only with a refused delivery, to verify it again.
"""

from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import TypedDict

from attrs import evolve

from ductile.core.formats import strict_json
from ductile.core.model import FollowUps
from ductile.ledger.webhooks.deliveries import UNREAD_BODY, DeliveryRecord
from ductile.web.messages import Request
from ductile.web.server.site import AccessLogEntry
from ductile.web.webhooks.deliveries import MAX_DELIVERY_ID_CHARS, Delivery, Endpoint
from ductile.web.webhooks.views import CONDITIONS_FALSE, NO_PIPELINE

MAX_HEADER_CHARS = 512
RECORDED_HEADERS = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "user-agent", "x-github-event"}
)
SIGNATURE_ENDINGS = ("-signature", "-signature-256", "-timestamp", "-id")


def refused_record(
    endpoint: Endpoint, request: Request, code: str, reason: str, status: int, *, now: datetime
) -> DeliveryRecord:
    """Return the record of a refused delivery: selected headers and a digest of the body."""
    names = {*_known_headers(endpoint), endpoint.verifier.header}
    headers = {name for name in request.headers if name in names or name.endswith(SIGNATURE_ENDINGS)}
    claimed = request.header(endpoint.id_header) if endpoint.id_header is not None else None
    return DeliveryRecord(
        at=now,
        path=request.path,
        verdict="refused",
        code=code,
        reason=reason,
        status=status,
        delivery_id=claimed[:MAX_DELIVERY_ID_CHARS] if claimed else None,
        **_describe(request, headers),
    )


def unread_record(entry: AccessLogEntry, path: str, code: str, reason: str, *, now: datetime) -> DeliveryRecord:
    """Return the record of a delivery that was refused before its body was read."""
    return DeliveryRecord(
        at=now,
        path=path,
        verdict="refused",
        code=code,
        reason=reason,
        status=entry.status,
        peer=entry.peer,
        body_sha256=UNREAD_BODY,
        body_bytes=0,
        headers={},
    )


def verified_record(
    endpoint: Endpoint,
    request: Request,
    delivery: Delivery,
    *,
    status: int,
    now: datetime,
    redelivery_of: int | None = None,
) -> DeliveryRecord:
    """Return the record of a verified delivery, with its body, as if it were accepted."""
    return DeliveryRecord(
        at=now,
        path=endpoint.path,
        verdict="accepted",
        status=status,
        delivery_id=delivery.id,
        body=request.body,
        redelivery_of=redelivery_of,
        **_describe(request, _known_headers(endpoint)),
    )


def repeated_record(record: DeliveryRecord, response: str) -> DeliveryRecord:
    """Return the record of a repeated delivery, with the jobs of the first one."""
    first = strict_json.loads(response)
    jobs = first.get("job_ids") or [first["job_id"]] if first.get("job_id") else []
    return evolve(record, verdict="repeated", job_ids=tuple(jobs), body=None)


def stored_record(record: DeliveryRecord, job_ids: Iterable[str], runs: Iterable[FollowUps]) -> DeliveryRecord:
    """Return the record with the jobs that it became; unmatched if there are none."""
    jobs = tuple(job_ids)
    if jobs:
        return evolve(record, job_ids=jobs)
    is_skipped = any(note.kind == "pipeline.skipped" for run in runs for note in run.notes)
    return evolve(record, verdict="unmatched", code=CONDITIONS_FALSE if is_skipped else NO_PIPELINE)


def _known_headers(endpoint: Endpoint) -> set[str]:
    names = {*RECORDED_HEADERS, *endpoint.forwarded, *endpoint.event_type.headers}
    return names | ({endpoint.id_header} if endpoint.id_header is not None else set())


class _Described(TypedDict):
    peer: str
    headers: dict[str, list[str]]
    body_sha256: str
    body_bytes: int


def _describe(request: Request, names: Iterable[str]) -> _Described:
    return {
        "peer": request.peer,
        "headers": {
            name: [value[:MAX_HEADER_CHARS] for value in request.headers[name]]
            for name in sorted(names)
            if name in request.headers
        },
        "body_sha256": sha256(request.body).hexdigest(),
        "body_bytes": len(request.body),
    }
