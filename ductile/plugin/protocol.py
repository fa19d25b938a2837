"""The plugin protocol, version 2: encode the request for stdin, decode the response from stdout.

Pure functions. `decode_response` returns a value for any output and never raises. The engine decides how to act on
a response (retry, route, record).
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from attrs import field, frozen

from ductile.core.clock import to_text
from ductile.core.errors import Unreadable
from ductile.core.formats.strict_json import Parsed, dumps, parse
from ductile.core.units import quote_text
from ductile.plugin.manifest import PROTOCOL

JsonObject = Mapping[str, Any] | str
"""An object, or its JSON text, which is passed through without parsing."""

SURROGATES_REPLACED = "lone surrogates in the response were replaced by U+FFFD"
_KEYS = ("status", "result", "error", "retry", "retry_after", "events", "state_updates", "logs")


@frozen(kw_only=True)
class ProtocolLimits:
    """`service.limits`: limits on the response of a plugin."""

    stdout_bytes: int = 10 << 20
    depth: int = 64
    events: int = 1_000
    dedupe_key_bytes: int = 512
    state_bytes: int = 1 << 20
    retry_after: timedelta = timedelta(hours=1)
    log_lines: int = 1_000
    log_bytes: int = 256 << 10


DEFAULT_LIMITS = ProtocolLimits()


@frozen(kw_only=True)
class RequestEvent:
    """`event` of a `handle` request. The core sets id, source and time; plugins cannot."""

    type: str
    event_id: str
    source: str
    timestamp: datetime
    payload: JsonObject = field(factory=dict, repr=False)
    dedupe_key: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)


@frozen
class EmittedEvent:
    """An event as emitted by a plugin: only the fields that a plugin may set."""

    type: str
    payload: dict[str, Any] = field(repr=False)
    dedupe_key: str | None = None


class LogLevel(StrEnum):
    """The level of a plugin's log line."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@frozen
class LogLine:
    """One entry of `logs`."""

    level: LogLevel
    message: str


@frozen(kw_only=True)
class PluginResponse:
    """A valid response. `state_json` is `state_updates` as compact JSON, whose size was checked.

    `notes` are warnings for the author of the plugin.
    """

    ok: bool
    text: str = field(default="", repr=False, eq=False)
    """The complete response as written by the plugin."""
    result: str = ""
    error: str = ""
    retry: bool = True
    retry_after: timedelta | None = None
    events: tuple[EmittedEvent, ...] = ()
    state_updates: dict[str, Any] | None = field(default=None, repr=False)
    state_json: str | None = field(default=None, repr=False)
    logs: tuple[LogLine, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()


@frozen
class InvalidResponse:
    """An invalid response. `final` if a limit was exceeded, so that a retry would not help."""

    reason: str
    final: bool = False
    limit_key: str | None = None
    """The configuration key of the limit that was exceeded."""


def encode_request(
    *,
    job_id: str,
    command: str,
    deadline_at: datetime,
    attempt: int,
    max_attempts: int,
    config: JsonObject | None = None,
    state: JsonObject | None = None,
    payload: JsonObject | None = None,
    context: JsonObject | None = None,
    event: RequestEvent | str | None = None,
) -> bytes:
    """Encode a request as one line of JSON. An absent `payload` or `event` and an empty `context` are omitted."""
    head = {
        "protocol": PROTOCOL,
        "job_id": job_id,
        "command": command,
        "attempt": attempt,
        "max_attempts": max_attempts,
        "deadline_at": to_text(deadline_at),
    }
    members = {"config": _object_text(config), "state": _object_text(state)}
    if payload is not None:
        members["payload"] = _object_text(payload)
    if (context_text := _object_text(context)) != "{}":
        members["context"] = context_text
    if event is not None:
        members["event"] = _object_text(event) if isinstance(event, str) else _event_text(event)
    return _join_members(head, members).encode() + b"\n"


def decode_response(stdout: bytes, limits: ProtocolLimits = DEFAULT_LIMITS) -> PluginResponse | InvalidResponse:
    """Decode the complete stdout of a plugin."""
    try:
        return _response(_envelope(stdout, limits), limits)
    except _Invalid as error:
        return error.response


class _Invalid(Exception):
    """An error while decoding, caught by `decode_response`."""

    def __init__(self, reason: str, *, final: bool = False, limit_key: str | None = None) -> None:
        super().__init__(reason)
        self.response = InvalidResponse(reason, final, limit_key)


def _object_text(value: JsonObject | None) -> str:
    if value is None:
        return "{}"
    if not isinstance(value, str):
        return dumps(value)
    # Raw line breaks in JSON are whitespace between tokens; the request must be one line.
    return value.replace("\r", " ").replace("\n", " ").strip()


def _event_text(event: RequestEvent) -> str:
    head: dict[str, Any] = {
        "type": event.type,
        "source": event.source,
        "timestamp": to_text(event.timestamp),
        "event_id": event.event_id,
    }
    if event.dedupe_key is not None:
        head["dedupe_key"] = event.dedupe_key
    if event.headers:
        head["headers"] = event.headers
    return _join_members(head, {"payload": _object_text(event.payload)})


def _join_members(head: Mapping[str, Any], members: Mapping[str, str]) -> str:
    """Build one JSON object from the values in `head` and the encoded texts in `members`."""
    texts = "".join([f',"{key}":{text}' for key, text in members.items()])
    return f"{dumps(head)[:-1]}{texts}}}"


def _envelope(stdout: bytes, limits: ProtocolLimits) -> Parsed:
    if len(stdout) > limits.stdout_bytes:
        reason = f"output limit: stdout is longer than {limits.stdout_bytes} bytes"
        raise _Invalid(reason, limit_key="service.limits.stdout")
    if not stdout or stdout.isspace():
        raise _Invalid("plugin produced no output on stdout")
    try:
        parsed = parse(stdout, source="stdout", max_depth=limits.depth)
    except Unreadable as error:
        raise _Invalid(f"stdout is not one JSON object: {error.reason} (line {error.mark.line})") from error
    envelope = parsed.value
    if not isinstance(envelope, dict):
        raise _Invalid(f"stdout must be one JSON object, not {_kind(envelope)}")
    for key in envelope:
        if key not in _KEYS and key.lower() in _KEYS and key.lower() not in envelope:
            raise _Invalid(f"the key {quote_text(key)} must be written {key.lower()!r}")
    return parsed


def _response(parsed: Parsed, limits: ProtocolLimits) -> PluginResponse:
    envelope: dict[str, Any] = parsed.value
    status = envelope.get("status")
    if status not in ("ok", "error") or not isinstance(status, str):
        raise _Invalid(f"status must be 'ok' or 'error', not {_described(envelope, 'status')}")
    ok = status == "ok"
    result, error = _text(envelope, "result"), _text(envelope, "error")
    if ok and _is_blank(result):
        raise _Invalid("status is 'ok' but result is missing or blank")
    if not ok and _is_blank(error):
        raise _Invalid("status is 'error' but error is missing or blank")
    retry = envelope.get("retry")
    if not isinstance(retry, bool | None):
        raise _Invalid(f"retry must be true or false, not {_kind(retry)}")
    state_updates, state_json = _state(envelope, limits)
    return PluginResponse(
        ok=ok,
        text=parsed.text,
        result=result,
        error=error,
        retry=retry is not False,
        retry_after=_retry_after(envelope, limits),
        events=_events(envelope, limits),
        state_updates=state_updates,
        state_json=state_json,
        logs=_logs(envelope.get("logs"), limits),
        notes=(f"{SURROGATES_REPLACED}: {parsed.replaced}",) if parsed.replaced else (),
    )


def _is_blank(text: str) -> bool:
    return not text or text.isspace()  # `strip` would copy a text that may be long


def _text(envelope: Mapping[str, Any], key: str) -> str:
    value = envelope.get(key)
    if not isinstance(value, str | None):
        raise _Invalid(f"{key} must be text, not {_kind(value)}")
    return value or ""


def _retry_after(envelope: Mapping[str, Any], limits: ProtocolLimits) -> timedelta | None:
    seconds = envelope.get("retry_after")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise _Invalid(f"retry_after must be a number of seconds from 0 up, not {_kind(seconds)}")
    # `min` before `timedelta`: an int from JSON can be larger than any float.
    return timedelta(seconds=min(seconds, limits.retry_after.total_seconds()))


def _events(envelope: Mapping[str, Any], limits: ProtocolLimits) -> tuple[EmittedEvent, ...]:
    events = envelope.get("events")
    if events is None:
        return ()
    if not isinstance(events, list):
        raise _Invalid(f"events must be a list, not {_kind(events)}")
    if len(events) > limits.events:
        reason = f"{len(events)} events, more than the {limits.events} allowed"
        raise _Invalid(reason, final=True, limit_key="service.limits.events")
    return tuple(_event(event, f"events[{index}]", limits) for index, event in enumerate(events))


def _event(event: Any, path: str, limits: ProtocolLimits) -> EmittedEvent:
    if not isinstance(event, dict):
        raise _Invalid(f"{path} must be an object with type and payload, not {_kind(event)}")
    kind = event.get("type")
    if not isinstance(kind, str) or not kind.strip():
        raise _Invalid(f"{path}.type must be text that is not blank, not {_described(event, 'type')}")
    payload = event.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise _Invalid(f"{path}.payload must be an object, not {_kind(payload)}")
    dedupe_key = event.get("dedupe_key")
    if not isinstance(dedupe_key, str | None):
        raise _Invalid(f"{path}.dedupe_key must be text, not {_kind(dedupe_key)}")
    if dedupe_key and len(dedupe_key.encode()) > limits.dedupe_key_bytes:
        reason = f"{path}.dedupe_key is longer than {limits.dedupe_key_bytes} bytes"
        raise _Invalid(reason, limit_key="service.limits.dedupe_key")
    return EmittedEvent(kind, payload or {}, dedupe_key if dedupe_key and dedupe_key.strip() else None)


def _state(envelope: Mapping[str, Any], limits: ProtocolLimits) -> tuple[dict[str, Any] | None, str | None]:
    state = envelope.get("state_updates")
    if state is not None and not isinstance(state, dict):
        raise _Invalid(f"state_updates must be an object, not {_kind(state)}")
    if not state:
        return None, None
    text = dumps(state)
    if (size := len(text.encode())) > limits.state_bytes:
        reason = f"state_updates has {size} bytes, more than the {limits.state_bytes} allowed"
        raise _Invalid(reason, final=True, limit_key="service.limits.state")
    return state, text


def _logs(logs: Any, limits: ProtocolLimits) -> tuple[LogLine, ...]:
    """Return the lines within the limits, and a last line that counts the dropped ones. Logs never fail a job."""
    if logs is None:
        return ()
    if not isinstance(logs, list):
        return (LogLine(LogLevel.WARN, f"logs ignored: must be a list, not {_kind(logs)}"),)
    lines: list[LogLine] = []
    remaining = limits.log_bytes
    for entry in logs[: limits.log_lines]:
        if remaining <= 0:
            break
        line = _log_line(entry)
        message = line.message.encode()
        if len(message) > remaining:
            head = message[:remaining].decode(errors="ignore")
            line = LogLine(line.level, f"{head}… [{len(message) - remaining} more bytes dropped]")
        remaining -= len(message)
        lines.append(line)
    if dropped := len(logs) - len(lines):
        limit = f"{limits.log_lines} lines or {limits.log_bytes} bytes"
        lines.append(LogLine(LogLevel.WARN, f"{dropped} more log lines dropped: more than {limit}"))
    return tuple(lines)


def _log_line(entry: Any) -> LogLine:
    if not isinstance(entry, dict):
        return LogLine(LogLevel.INFO, entry if isinstance(entry, str) else dumps(entry))
    message = entry.get("message", "")
    level = str(entry.get("level", "")).lower()
    return LogLine(_LEVELS.get(level, LogLevel.INFO), message if isinstance(message, str) else dumps(message))


_LEVELS = {str(level): level for level in LogLevel} | {
    "warning": LogLevel.WARN,
    "err": LogLevel.ERROR,
    "fatal": LogLevel.ERROR,
}


def _described(envelope: Mapping[str, Any], key: str) -> str:
    return _kind(envelope[key]) if key in envelope else "missing"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}" if _is_short(value) else "a number"
        case str():
            return f"the text {quote_text(value)}"
        case list():
            return "a list"
    return "an object"


def _is_short(value: int | float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 64
