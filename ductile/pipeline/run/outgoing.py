"""What a relay step sends: the event as it is to be on the other side. Pure.

Renders the step's `with`, `dedupe_key` and `baggage` from the job's event and context. Knows nothing of instances or
wires; the engine's relay puts the envelope around it.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ductile.core.formats import strict_json
from ductile.core.model import Job
from ductile.pipeline.compile.plan import Relay
from ductile.pipeline.language.baggage import CONTROL, claim
from ductile.pipeline.language.paths import ABSENT, Scope
from ductile.pipeline.language.templates import remap, render
from ductile.pipeline.run.events import entered_with

OUR_OWN = "ductile_upstream_"
"""Names that the core adds to payloads on their way; they mean nothing elsewhere."""


@frozen(kw_only=True)
class Outgoing:
    """An event for another instance."""

    to: str
    type: str
    payload: Mapping[str, Any]
    dedupe_key: str | None
    baggage: Mapping[str, Any]
    source: str
    """The plugin that emitted the event the step was entered with; empty if none did."""


def outgoing(job: Job, relay: Relay) -> Outgoing:
    """The event of a relay job; PathAbsent or BaggageRefused if something it asks for is not there."""
    context: dict[str, Any] = strict_json.loads(job.context) if job.context else {}
    control = context.pop(CONTROL, {})
    came = {name: value for name, value in entered_with(job).items() if not name.startswith(OUR_OWN)}
    items = control.get("items")
    scope = Scope(payload={**context, **came}, context=context, item=items[-1] if items else ABSENT)
    key = render(relay.dedupe_key, scope) if relay.dedupe_key is not None else None
    return Outgoing(
        to=relay.to,
        type=relay.event,
        payload=came if relay.with_ is None else remap(relay.with_, {}, scope),
        dedupe_key=None if key in (None, "") else key if isinstance(key, str) else strict_json.dumps(key),
        baggage=claim(relay.baggage, scope, {}).values if relay.baggage is not None else {},
        source=_source(job),
    )


def _source(job: Job) -> str:
    content = strict_json.loads(job.payload) if job.payload else {}
    upstream = content.get("payload", {}).get("ductile_upstream_plugin") if isinstance(content, dict) else None
    return upstream if isinstance(upstream, str) else ""
