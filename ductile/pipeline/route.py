"""Events and routes → the next jobs. Pure: values in, values out.

`routes:` match the emitting plugin and the event's type exactly, in the order they are written; every match is a job.
An event that matches nothing is noted, never an error.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile import strict_json
from ductile.clock import to_text
from ductile.model import Job, JobStatus, NewJob, Note, Settled

NAMESPACE = uuid.UUID("6c0f7a7e-5f0b-5d0a-9c2a-0d1b6a5e4f3c")
"""Ids of events are derived from who emitted them, so that the same attempt can never make twins."""


MOST_BYTES = 64 << 20


@frozen
class Event:
    """An event as the core knows it: id, source and time are the core's own."""

    id: str
    type: str
    payload: Mapping[str, Any]
    source: str
    at: datetime
    dedupe_key: str | None = None
    headers: Mapping[str, str] | None = None

    def envelope(self) -> str:
        """The event as JSON text: the payload of a `handle` job."""
        content: dict[str, Any] = {
            "type": self.type,
            "payload": self.payload,
            "source": self.source,
            "timestamp": to_text(self.at),
            "event_id": self.id,
        }
        if self.dedupe_key is not None:
            content["dedupe_key"] = self.dedupe_key
        if self.headers:
            content["headers"] = dict(self.headers)
        return strict_json.dumps(content)


@frozen
class Routes:
    """Which plugins get which events."""

    targets: Mapping[tuple[str, str], tuple[tuple[int, str], ...]]
    """(source plugin, event type) → (place in the configuration, target plugin)."""

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str, str]]) -> "Routes":
        targets: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
        for index, (source, event_type, target) in enumerate(entries):
            targets[source, event_type] = (*targets.get((source, event_type), ()), (index, target))
        return cls(targets)


@frozen
class Target:
    """What is to be known of a plugin that gets an event: its attempts, and why it cannot run if it cannot."""

    max_attempts: int = 4
    refused: str | None = None


@frozen
class FollowUps:
    """What follows from an ended job: new jobs, and what was decided on the way; or why it is too much."""

    children: tuple[NewJob, ...] = ()
    notes: tuple[Note, ...] = ()
    refused: str | None = None


def event_id(job_id: str, attempt: int, index: int) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{job_id}/{attempt}/{index}"))


def follow_ups(
    job: Job,
    events: Iterable[Event],
    routes: Routes,
    *,
    target: Callable[[str], Target] = lambda _: Target(),
    most_bytes: int = MOST_BYTES,
    snapshot_id: str | None = None,
) -> FollowUps:
    """One job for every event and route that match; a note for every event that nobody waits for.

    A job for a plugin that cannot run is dead from the start and says why. More than `most_bytes` of payload in all
    is refused as a whole.
    """
    children: list[NewJob] = []
    notes: list[Note] = []
    total = 0
    for event in events:
        matches = routes.targets.get((job.plugin, event.type), ())
        if not matches:
            notes.append(Note(kind="event.unmatched", data={"event_id": event.id, "type": event.type}))
            continue
        envelope = event.envelope()
        total += len(envelope) * len(matches)
        if total > most_bytes:
            return FollowUps(refused=f"its events carry more than {most_bytes} bytes to the next jobs")
        for index, plugin in matches:
            known = target(plugin)
            dead = Settled(status=JobStatus.DEAD, error=f"plugin {plugin} {known.refused}") if known.refused else None
            children.append(
                NewJob(
                    plugin=plugin,
                    command="handle",
                    submitted_by="route",
                    payload=envelope,
                    max_attempts=known.max_attempts,
                    dedupe_key=event.dedupe_key,
                    parent_job_id=job.id,
                    source_event_id=event.id,
                    child_key=f"{event.id}/route/{index}",
                    hops=job.hops + 1,
                    snapshot_id=snapshot_id,
                    settled=dead,
                )
            )
    return FollowUps(tuple(children), tuple(notes))
