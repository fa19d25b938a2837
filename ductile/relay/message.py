"""Build the message of a relay job: the event in its envelope, and the target instance. Pure.

Every attempt under the same configuration builds the same bytes, so that the receiver recognises a repetition. An
event that can never be sent fails here with its reason.
"""

from typing import Any

from attrs import evolve, field, frozen

from ductile.config.sections.relay import find_instance, find_secret
from ductile.config.sections.settings import Instance
from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.model import Dead, Failed, Job, OutcomeCode
from ductile.core.secret import Secret
from ductile.engine.judge import MAX_ERROR_CHARS
from ductile.pipeline.language.baggage import BaggageRefused
from ductile.pipeline.language.parse import Relay
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.events import derived_id
from ductile.pipeline.run.outgoing import build_outgoing_event
from ductile.pipeline.run.step_input import find_step
from ductile.relay.protocol import Envelope, Origin, encode, parse_envelope


@frozen(kw_only=True)
class RelayMessage:
    """An encoded event and its target."""

    instance: Instance
    envelope: Envelope
    secret: Secret = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def label(self) -> str:
        return f"{self.envelope.type} to {self.instance.name}"


def build_message(snapshot: Snapshot, job: Job) -> RelayMessage | Failed | Dead:
    """Build the message, or return the outcome of an event that can never be sent."""
    settings = snapshot.config.settings
    try:
        node = find_step(snapshot.plans, job)
        if node is not None and node.relay is None:
            changed = f"step {job.step_id} of pipeline {job.pipeline} is no longer a relay step"
            return Dead(changed, code=OutcomeCode.STEP_REMOVED)
        own = settings.service.name
        to, envelope = _of_step(job, node.relay, own) if node and node.relay else _of_request(job, own)
        instance = find_instance(settings, to, envelope.type)
    except (PathAbsent, BaggageRefused, Unreadable) as error:
        return Failed(snapshot.config.mask(str(error))[:MAX_ERROR_CHARS], code=OutcomeCode.REFUSED)
    except DuctileError as error:
        return Dead(str(error), code=OutcomeCode.INSTANCE_UNAVAILABLE)
    secret = find_secret(settings, instance.secret_ref)
    if secret is None:
        missing = f"instance {to} has no secret: its secret_ref is not in tokens.yaml"
        return Dead(missing, code=OutcomeCode.INSTANCE_UNAVAILABLE)
    return RelayMessage(instance=instance, envelope=envelope, secret=secret, body=encode(envelope))


def _of_step(job: Job, relay: Relay, own: str) -> tuple[str, Envelope]:
    sent = build_outgoing_event(job, relay)
    return sent.to, Envelope(
        type=sent.type,
        payload=sent.payload,
        dedupe_key=sent.dedupe_key,
        origin=_origin(job, own, Origin(plugin=sent.source)),
        baggage=sent.baggage,
    )


def _of_request(job: Job, own: str) -> tuple[str, Envelope]:
    """Build the event of a job that was enqueued by the API or CLI."""
    content: dict[str, Any] = strict_json.loads(job.payload or "{}")
    envelope = parse_envelope(content)
    return str(content.get("to", "")), evolve(envelope, origin=_origin(job, own, envelope.origin))


def _origin(job: Job, own: str, given: Origin) -> Origin:
    """Complete a given origin with the ids of this job."""
    return Origin(
        instance=own,
        plugin=given.plugin,
        job_id=given.job_id or job.id,
        event_id=given.event_id or derived_id(job.id, "relay"),
    )
