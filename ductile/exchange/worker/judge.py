"""Decide how a claim ends: the result of its process → the follow-up, or a release. Pure.

The bodies and metadata of follow-ups are those of Plugboard, but the metadata does not repeat stdout.
"""

import signal
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from attrs import evolve

from ductile.core.errors import DuctileError
from ductile.core.message import ClaimStatus
from ductile.core.units import format_size
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.exchange.worker.values import ClaimEnd, GiveBack, HeldClaim, WorkSettings

TEMPORARY_EXIT = 75
"""EX_TEMPFAIL: the command asks for another delivery."""
FIRST_BACKOFF, MAX_BACKOFF = timedelta(seconds=1), timedelta(minutes=5)
MAX_METADATA_CHARS = 8_192
"""Of stderr. A character has at most 6 bytes in JSON, so that the metadata stays below its limit."""


def decide(result: Finished | SpawnFailed, claim: HeldClaim, work: WorkSettings) -> ClaimEnd | GiveBack:
    """Decide how the claim ends after its process has ended by itself, by its time limit or by too much output."""
    end = _decide(result, claim, work)
    return evolve(end, body=_shortened(end.body, claim.max_body_size)) if isinstance(end, ClaimEnd) else end


def _decide(result: Finished | SpawnFailed, claim: HeldClaim, work: WorkSettings) -> ClaimEnd | GiveBack:
    if isinstance(result, SpawnFailed):
        return _failed(work, f"command cannot be started: {result.reason}", code="cannot_start")
    stderr = result.stderr.decode(errors="replace")
    details = _details(result, stderr)
    if result.cause is Cause.OUTPUT_LIMIT:
        text = f"output too large: stdout exceeds {format_size(claim.max_body_size)}"
        return _failed(work, text, details, code="output_too_large")
    if result.timed_out:
        return _timed_out(work, stderr, details)
    if result.exit_code == TEMPORARY_EXIT:
        return GiveBack(reason=f"exit code {TEMPORARY_EXIT}", delay=backoff(claim.delivery))
    try:
        stdout = result.stdout.decode(errors="replace" if work.replace_invalid or result.exit_code else "strict")
    except UnicodeDecodeError as error:
        return _failed(
            work, f"output is not UTF-8 text: invalid byte at position {error.start}", details, code="output_not_text"
        )
    if result.exit_code == 0:
        return ClaimEnd(
            status=ClaimStatus.COMPLETED, topic=work.topics.success, body=stdout, metadata=_metadata(work, details)
        )
    return _failed(work, stderr or stdout or _exit_text(result), details)


def refused_result(work: WorkSettings, error: DuctileError) -> ClaimEnd:
    """Return the end of a claim whose result the service has refused."""
    return _failed(work, f"the result was refused: {error}", code=error.code)


def backoff(delivery: int) -> timedelta:
    """Return the delay after the nth delivery: 1 s, 2 s, 4 s …, at most 5 minutes."""
    doublings = min(max(delivery, 1) - 1, 16)
    return min(FIRST_BACKOFF * (1 << doublings), MAX_BACKOFF)


def _timed_out(work: WorkSettings, stderr: str, details: Mapping[str, Any]) -> ClaimEnd:
    text = f"command timed out after {work.timeout_seconds:g} seconds"
    more = {"status": ClaimStatus.TIMED_OUT.value, "exit_code": None}
    return ClaimEnd(
        status=ClaimStatus.TIMED_OUT,
        topic=work.topics.timeout,
        body=f"{text}\n{stderr}" if stderr else text,
        metadata=_metadata(work, {**details, **more}),
    )


def _failed(work: WorkSettings, body: str, details: Mapping[str, Any] | None = None, *, code: str = "") -> ClaimEnd:
    more = {"status": ClaimStatus.FAILED.value} | ({"code": code} if code else {})
    metadata = _metadata(work, {**(details or {}), **more})
    return ClaimEnd(status=ClaimStatus.FAILED, topic=work.topics.failure, body=body, metadata=metadata)


def _details(result: Finished, stderr: str) -> dict[str, Any]:
    return {
        "stderr": stderr[-MAX_METADATA_CHARS:],
        "exit_code": -1 if result.exit_code is None else result.exit_code,
        "signal": result.signal,
        "status": ClaimStatus.COMPLETED.value,
        "duration_ms": round(result.duration * 1000),
    }


def _metadata(work: WorkSettings, details: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"plugin": work.argv[0][:MAX_METADATA_CHARS], **details}
    return {name: value for name, value in shown.items() if value is not None}


def _exit_text(result: Finished) -> str:
    if result.signal is None:
        return f"command exited with code {result.exit_code}"
    try:
        return f"command was killed by {signal.Signals(result.signal).name}"
    except ValueError:  # a real-time signal
        return f"command was killed by signal {result.signal}"


def _shortened(text: str, max_bytes: int) -> str:
    """Return the end of the text that fits into a body. Only error texts can be too long."""
    content = text.encode()
    return text if len(content) <= max_bytes else content[-max_bytes:].decode(errors="ignore")
