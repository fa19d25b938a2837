"""What a relay step sends and what a publish step publishes, rendered from the job. Pure.

Does not know instances, the transport or the exchange; `relay` adds the envelope and sends it.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ductile.core.formats import strict_json
from ductile.core.model import Job
from ductile.pipeline.language.baggage import CONTROL, apply_claims
from ductile.pipeline.language.parse import Publish, Relay
from ductile.pipeline.language.paths import ABSENT, Scope
from ductile.pipeline.language.templates import remap, render
from ductile.pipeline.run.events import input_payload

UPSTREAM_PREFIX = "ductile_upstream_"
"""The prefix of payload keys that name the previous step; they are not sent to other instances."""


@frozen(kw_only=True)
class OutgoingEvent:
    """An event to send to another instance."""

    to: str
    type: str
    payload: Mapping[str, Any]
    dedupe_key: str | None
    baggage: Mapping[str, Any]
    source: str
    """The plugin that emitted the input event; empty if it has none."""


def build_outgoing_event(job: Job, relay: Relay) -> OutgoingEvent:
    """Render the event of a relay job. Raises PathAbsent or BaggageRefused."""
    received, scope = _scope_of(job)
    key = render(relay.dedupe_key, scope) if relay.dedupe_key is not None else None
    return OutgoingEvent(
        to=relay.to,
        type=relay.event,
        payload=received if relay.with_ is None else remap(relay.with_, {}, scope),
        dedupe_key=None if key in (None, "") else key if isinstance(key, str) else strict_json.dumps(key),
        baggage=apply_claims(relay.baggage, scope, {}).values if relay.baggage is not None else {},
        source=_source(job),
    )


@frozen(kw_only=True)
class OutgoingMessage:
    """The rendered parts of a message."""

    body: str
    metadata: Mapping[str, Any]


def build_outgoing_message(job: Job, publish: Publish) -> OutgoingMessage:
    """Render the message of a publish job. Raises PathAbsent."""
    received, scope = _scope_of(job)
    body = received if publish.body is None else render(publish.body, scope)
    return OutgoingMessage(
        body=body if isinstance(body, str) else strict_json.dumps(body),
        metadata=remap(publish.metadata, {}, scope),
    )


def _scope_of(job: Job) -> tuple[dict[str, Any], Scope]:
    """Return the payload that the job received, and what its templates can read."""
    context: dict[str, Any] = strict_json.loads(job.context) if job.context else {}
    control = context.pop(CONTROL, {})
    received = {name: value for name, value in input_payload(job).items() if not name.startswith(UPSTREAM_PREFIX)}
    items = control.get("items")
    return received, Scope(payload={**context, **received}, context=context, item=items[-1] if items else ABSENT)


def _source(job: Job) -> str:
    content = strict_json.loads(job.payload) if job.payload else {}
    upstream = content.get("payload", {}).get("ductile_upstream_plugin") if isinstance(content, dict) else None
    return upstream if isinstance(upstream, str) else ""
