"""JSON Schemas of the requests and responses of the relay routes, for the OpenAPI document."""

from ductile.core.formats.yaml_fields import EVENT_TYPE
from ductile.relay.protocol import MAX_KEY_BYTES, MAX_NAME_LENGTH
from ductile.web.openapi.schemas import (
    Schema,
    any_value,
    array,
    boolean,
    choice,
    integer,
    mapping,
    nullable,
    record,
    text,
    timestamp,
)

_NAMES = {
    "instance": "The sender's service name",
    "plugin": "The plugin that emitted the event",
    "job_id": "The job that sends the event",
    "event_id": "Identifies a repeated event",
}


def _envelope(title: str, *, is_closed: bool) -> Schema:
    event = record(
        {"type": text("The event type", **EVENT_TYPE.schema, maxLength=MAX_NAME_LENGTH)},
        {
            "payload": nullable(mapping(any_value(), "The payload of the event")),
            "dedupe_key": nullable(text("The receiver runs events with the same key once", maxLength=MAX_KEY_BYTES)),
        },
        is_closed=is_closed,
    )
    names = {name: nullable(text(description, maxLength=MAX_NAME_LENGTH)) for name, description in _NAMES.items()}
    more = {
        "origin": nullable(record({}, names, is_closed=is_closed)),
        "baggage": nullable(mapping(any_value(), "Values for the context of the runs")),
    }
    return record({"event": event}, more, title=title, is_closed=is_closed)


ENVELOPE = _envelope("RelayEvent", is_closed=True)
WIRE_ENVELOPE = _envelope("RelayEnvelope", is_closed=False)
"""Allows unknown members: a peer may have a later version."""
ACCEPTED = record(
    {
        "status": choice(["accepted"]),
        "accepted": boolean("Whether a run was started"),
        "peer": text(),
        "event_type": text(),
        "receiver_event_id": text("The id of the event in this instance"),
    },
    {
        "job_id": text("The first job of its run"),
        "job_ids": array(text(), "The first jobs, if it started several runs"),
        "reason": choice(["no_route"], "Why no run was started"),
    },
    title="RelayAccepted",
)
_SENT = {"instance": text(), "event_type": text()}
ENQUEUED = record({"job_id": text(), "status": text(), **_SENT}, title="RelayEnqueued")
PLANNED = record({"status": choice(["planned"]), "dry_run": boolean(), **_SENT}, title="RelayPlanned")
INSTANCE = record(
    {
        "name": text(),
        "enabled": boolean(),
        "address": text("The URL to which events are sent"),
        "allow": array(text(), "Event types that may be sent; empty: all"),
        "state": choice(["closed", "open", "half_open"], "The state of its breaker: closed while it responds"),
        "failure_count": integer("Consecutive failed attempts"),
    },
    {"probe_from": timestamp("The time of the next attempt, if the breaker is open"), "last_failure_at": timestamp()},
)
RECEIVED_FROM = record(
    {
        "name": text(),
        "enabled": boolean(),
        "accept": array(text(), "Event types that are accepted; empty: all"),
        "baggage": array(text(), "Names of baggage that are accepted"),
        "received": integer("Events received within the retention of receipts"),
    },
    {"last_received_at": timestamp()},
)
OVERVIEW = record(
    {
        "name": text("The name of this instance"),
        "waiting": integer("Undelivered events"),
        "instances": array(INSTANCE),
        "listen_path": nullable(text("The path for peers; null if not configured")),
        "peers": array(RECEIVED_FROM),
    },
    {"waiting_since": timestamp("The creation time of the oldest undelivered event")},
    title="RelayOverview",
)
