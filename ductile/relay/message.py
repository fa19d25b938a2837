"""What a relay job sends: the event in its envelope, and the instance it is for. Pure.

The same for every attempt under the same configuration, so that its receiver recognises it. An event that can never
be sent ends here with its reason. Called by `relay`.
"""

from typing import Any

from attrs import evolve, field, frozen

from ductile.config.sections.relay import instance_for, secret_named
from ductile.config.sections.settings import Instance
from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.model import Dead, Failed, Job
from ductile.core.secret import Secret
from ductile.engine.judge import LONGEST_ERROR
from ductile.pipeline.compile.plan import Relay
from ductile.pipeline.language.baggage import BaggageRefused
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.events import derived_id
from ductile.pipeline.run.outgoing import outgoing
from ductile.pipeline.run.step_input import step_of
from ductile.relay.protocol import Envelope, Origin, encode, envelope_of


@frozen(kw_only=True)
class RelayMessage:
    """An event, ready to be sent."""

    instance: Instance
    envelope: Envelope
    secret: Secret = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def words(self) -> str:
        return f"{self.envelope.type} to {self.instance.name}"


def build_message(snapshot: Snapshot, job: Job) -> RelayMessage | Failed | Dead:
    """The event as it leaves, or why it never will."""
    settings = snapshot.config.settings
    try:
        node = step_of(snapshot.plans, job)
        if node is not None and node.relay is None:
            return Dead(f"step {job.step_id} of pipeline {job.pipeline} does not relay any more")
        own = settings.service.name
        to, envelope = _of_step(job, node.relay, own) if node and node.relay else _asked_for(job, own)
        instance = instance_for(settings, to, envelope.type)
    except (PathAbsent, BaggageRefused, Unreadable) as error:
        return Failed(snapshot.config.mask(str(error))[:LONGEST_ERROR])
    except DuctileError as error:
        return Dead(str(error))
    secret = secret_named(settings, instance.secret_ref)
    if secret is None:
        return Dead(f"instance {to} has no secret: its secret_ref is not in tokens.yaml")
    return RelayMessage(instance=instance, envelope=envelope, secret=secret, body=encode(envelope))


def _of_step(job: Job, relay: Relay, own: str) -> tuple[str, Envelope]:
    sent = outgoing(job, relay)
    return sent.to, Envelope(
        type=sent.type,
        payload=sent.payload,
        dedupe_key=sent.dedupe_key,
        origin=_origin(job, own, Origin(plugin=sent.source)),
        baggage=sent.baggage,
    )


def _asked_for(job: Job, own: str) -> tuple[str, Envelope]:
    """The event of a job that no step made."""
    content: dict[str, Any] = strict_json.loads(job.payload or "{}")
    envelope = envelope_of(content)
    return str(content.get("to", "")), evolve(envelope, origin=_origin(job, own, envelope.origin))


def _origin(job: Job, own: str, said: Origin) -> Origin:
    """Ids of this job where nobody says others."""
    return Origin(
        instance=own,
        plugin=said.plugin,
        job_id=said.job_id or job.id,
        event_id=said.event_id or derived_id(job.id, "relay"),
    )
