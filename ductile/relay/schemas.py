"""The shapes of what relay routes take and give, for the description of the API. Values only."""

from ductile.core.formats.yaml_fields import EVENT_TYPE
from ductile.relay.protocol import LONGEST_KEY, LONGEST_NAME
from ductile.web.openapi.schemas import (
    Schema,
    anything,
    boolean,
    by_name,
    choice,
    integer,
    listing,
    moment,
    nullable,
    record,
    text,
)

_NAMES = {
    "instance": "The sender's service name",
    "plugin": "Who emitted the event there",
    "job_id": "The job that sends it",
    "event_id": "What the event is known by if it comes again",
}


def _envelope(title: str, *, is_closed: bool) -> Schema:
    event = record(
        {"type": text("What happened", **EVENT_TYPE.schema, maxLength=LONGEST_NAME)},
        {
            "payload": nullable(by_name(anything(), "What the event carries")),
            "dedupe_key": nullable(text("The receiver takes events with the same key once", maxLength=LONGEST_KEY)),
        },
        is_closed=is_closed,
    )
    names = {name: nullable(text(said, maxLength=LONGEST_NAME)) for name, said in _NAMES.items()}
    more = {
        "origin": nullable(record({}, names, is_closed=is_closed)),
        "baggage": nullable(by_name(anything(), "Values for the context of the runs")),
    }
    return record({"event": event}, more, title=title, is_closed=is_closed)


ENVELOPE = _envelope("RelayEvent", is_closed=True)
ON_THE_WIRE = _envelope("RelayEnvelope", is_closed=False)
"""What a peer sends may have members that only a later version knows."""
ACCEPTED = record(
    {
        "status": choice(["accepted"]),
        "accepted": boolean("Whether a run was started for it"),
        "peer": text(),
        "event_type": text(),
        "receiver_event_id": text("The id of the event in this instance"),
    },
    {
        "job_id": text("The first job of its run"),
        "job_ids": listing(text(), "The first jobs, if it started several runs"),
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
        "address": text("Where its events are sent to"),
        "allow": listing(text(), "Event types that may be sent; empty: all"),
        "state": choice(["closed", "open", "half_open"], "Of its breaker: closed while it answers"),
        "failure_count": integer("Attempts in a row that failed"),
    },
    {"probe_from": moment("When the next attempt is made, if the breaker is open"), "last_failure_at": moment()},
)
RECEIVED_FROM = record(
    {
        "name": text(),
        "enabled": boolean(),
        "accept": listing(text(), "Event types that are taken; empty: all"),
        "baggage": listing(text(), "Names of its baggage that are taken"),
        "received": integer("Events that are still known by their receipts"),
    },
    {"last_received_at": moment()},
)
OVERVIEW = record(
    {
        "name": text("Who this instance is to its peers"),
        "waiting": integer("Events that are not delivered yet"),
        "instances": listing(INSTANCE),
        "listen_path": nullable(text("Where peers send to; null: nowhere")),
        "peers": listing(RECEIVED_FROM),
    },
    {"waiting_since": moment("When the oldest of those was made")},
    title="RelayOverview",
)
