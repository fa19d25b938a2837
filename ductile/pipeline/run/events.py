"""Events as the core knows them: their ids, their envelopes, and the ones the core makes itself.

Ids are derived from who emitted the event, so that the same attempt can never make twins. Pure values.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.model import Job, JobStatus
from ductile.pipeline.compile.plan import STEP_FAILED, STEP_SUCCEEDED

NAMESPACE = bytes.fromhex("6c0f7a7e5f0b5d0a9c2a0d1b6a5e4f3c")
INTERNAL = "ductile."
"""Events whose type begins so are the core's own; they never start a pipeline."""


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

    @property
    def is_internal(self) -> bool:
        return self.type.startswith(INTERNAL)

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


@frozen(kw_only=True)
class Ended:
    """How a job came to its final end, as far as those care who come after it."""

    status: JobStatus
    error: str | None = None
    timed_out: bool = False
    duration: timedelta | None = None
    result: str | None = None
    """The plugin's own words."""

    @property
    def is_failure(self) -> bool:
        return self.status in (JobStatus.FAILED, JobStatus.DEAD)


def derived_id(*parts: object) -> str:
    """The same id for the same parts, always: their UUID (version 5) in our namespace."""
    # As `uuid.uuid5` does it, without the objects around it: every hop of a run asks for two or three of these.
    name = "/".join(map(str, parts)).encode()
    text = hashlib.sha1(NAMESPACE + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def event_id(job_id: str, attempt: int, index: int | str) -> str:
    return derived_id(job_id, attempt, index)


def entered_with(job: Job) -> Mapping[str, Any]:
    """The payload of the event that a job was made for."""
    if job.payload is None:
        return {}
    content: Mapping[str, Any] = strict_json.loads(job.payload)
    if job.command == "handle":
        payload = content.get("payload")
        return payload if isinstance(payload, dict) else {}
    return content


def silent_success(job: Job, result: str | None, *, now: datetime) -> Event:
    """What a step that emits nothing hands on: what it was entered with, and its result."""
    payload = {**entered_with(job), "result": result}
    return Event(event_id(job.id, job.attempt, "silent"), STEP_SUCCEEDED, payload, job.plugin, now)


def step_failure(job: Job, ended: Ended, *, now: datetime) -> Event:
    """What the `on_error` steps of a failed step are entered with."""
    payload = {**outcome_payload(job, ended), "input": entered_with(job)}
    return Event(event_id(job.id, job.attempt, "failed"), STEP_FAILED, payload, job.plugin, now)


def outcome_payload(job: Job, ended: Ended) -> dict[str, Any]:
    """How a job ended, for hooks and `on_error` steps; `message` can be shown to a person as it is."""
    payload: dict[str, Any] = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": ended.status.value,
        "attempt": job.attempt,
        "message": _message(job, ended),
        "text": _message(job, ended),
    }
    if ended.duration is not None:
        payload["duration_ms"] = ended.duration // timedelta(milliseconds=1)
    if ended.error is not None:
        payload["error"] = ended.error
    if ended.result is not None:
        payload["result"] = ended.result
    return payload


def _message(job: Job, ended: Ended) -> str:
    if not ended.is_failure:
        return f"Job {ended.status} [{job.plugin}]"
    return f"Job timed out [{job.plugin}]" if ended.timed_out else f"Job failed [{job.plugin}]: {ended.error}"
