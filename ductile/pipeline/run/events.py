"""Events: their ids, their envelopes, and the internal events of steps. Pure values.

Ids are derived from the emitting attempt, so that a repeated commit cannot create duplicates.
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
"""The prefix of internal event types, which never start a pipeline."""


@frozen
class Event:
    """An event with the id, source and time that Ductile assigned."""

    id: str
    type: str
    payload: Mapping[str, Any]
    source: str
    at: datetime
    dedupe_key: str | None = None
    headers: Mapping[str, str] | None = None
    message: Mapping[str, Any] | None = None
    """What a consumer of the exchange knows about the message of the event, apart from its body."""

    @property
    def is_internal(self) -> bool:
        return self.type.startswith(INTERNAL)

    def envelope(self) -> str:
        """Return the event as JSON text: the payload of a `handle` job."""
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
        if self.message:
            content["message"] = dict(self.message)
        return strict_json.dumps(content)


@frozen(kw_only=True)
class JobResult:
    """The final result of a job, as seen by its follow-up jobs."""

    status: JobStatus
    error: str | None = None
    timed_out: bool = False
    duration: timedelta | None = None
    result: str | None = None
    """The `result` text of the plugin."""

    @property
    def is_failure(self) -> bool:
        return self.status in (JobStatus.FAILED, JobStatus.DEAD)


def derived_id(*parts: object) -> str:
    """Return the version 5 UUID of the parts. The result must never change between releases."""
    # The algorithm of `uuid.uuid5` without its objects: every hop of a run computes two or three ids.
    name = "/".join(map(str, parts)).encode()
    text = hashlib.sha1(NAMESPACE + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def event_id(job_id: str, attempt: int, index: int | str) -> str:
    return derived_id(job_id, attempt, index)


def input_payload(job: Job) -> Mapping[str, Any]:
    """Return the payload of the event that a job was created for."""
    if job.payload is None:
        return {}
    content: Mapping[str, Any] = strict_json.loads(job.payload)
    if job.command == "handle":
        payload = content.get("payload")
        return payload if isinstance(payload, dict) else {}
    return content


def step_succeeded_event(job: Job, result: str | None, *, now: datetime) -> Event:
    """Create the event of a step that emitted none: its input payload and its result."""
    payload = {**input_payload(job), "result": result}
    return Event(event_id(job.id, job.attempt, "silent"), STEP_SUCCEEDED, payload, job.plugin, now)


def step_failed_event(job: Job, job_result: JobResult, *, now: datetime) -> Event:
    """Create the event for the `on_error` steps of a failed step."""
    payload = {**outcome_payload(job, job_result), "input": input_payload(job)}
    return Event(event_id(job.id, job.attempt, "failed"), STEP_FAILED, payload, job.plugin, now)


def outcome_payload(job: Job, job_result: JobResult) -> dict[str, Any]:
    """Return the outcome of a job, for hooks and `on_error` steps. `message` is a sentence for display."""
    payload: dict[str, Any] = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job_result.status.value,
        "attempt": job.attempt,
        "message": _message(job, job_result),
        "text": _message(job, job_result),
    }
    if job_result.duration is not None:
        payload["duration_ms"] = job_result.duration // timedelta(milliseconds=1)
    if job_result.error is not None:
        payload["error"] = job_result.error
    if job_result.result is not None:
        payload["result"] = job_result.result
    return payload


def _message(job: Job, job_result: JobResult) -> str:
    if not job_result.is_failure:
        return f"Job {job_result.status} [{job.plugin}]"
    return f"Job timed out [{job.plugin}]" if job_result.timed_out else f"Job failed [{job.plugin}]: {job_result.error}"
