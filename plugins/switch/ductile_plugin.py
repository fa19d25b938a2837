"""The plugin protocol of Ductile for Python. Standard library only. Copy this file into the folder of your plugin.

def poll(job):
    url = setting(job.config, "url")         # raises Misconfigured, which is not retried
    job.emit("page.changed", {"url": url})
    job.state["last_url"] = url              # a changed state is stored
    return f"checked {url}"                  # or raise Failed or Final

run(poll=poll)
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

EX_CONFIG = 78
REQUIRED = object()
MAX_PAYLOAD_LEVELS = 61  # a response may have 64 levels, and a payload starts at the fourth
_TYPE_NAMES = {str: "text", int: "an integer", float: "a number", bool: "a boolean", list: "a list", dict: "a mapping"}


class Failed(Exception):
    """The attempt failed, and a retry may succeed. `retry_after` is the minimum delay in seconds."""

    retry = True
    exit_code = 0

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Final(Failed):
    """The job failed, and a retry would fail too."""

    retry = False


class Misconfigured(Final):
    """The configuration is invalid. The operator must change it."""

    exit_code = EX_CONFIG


class Job:
    """A request, and the events, logs and state of its response."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.id, self.command = request.get("job_id") or "", request.get("command") or ""
        self.attempt, self.max_attempts = request.get("attempt") or 1, request.get("max_attempts") or 1
        self.deadline_at: str = request.get("deadline_at") or ""
        self.config: dict[str, Any] = request.get("config") or {}
        self.state: dict[str, Any] = request.get("state") or {}
        self.context: dict[str, Any] = request.get("context") or {}
        self.event: dict[str, Any] = request.get("event") or {}
        # For `handle`, the payload of the request is the whole event.
        self.payload: dict[str, Any] = (self.event or request).get("payload") or {}
        self.events: list[dict[str, Any]] = []
        self.logs: list[dict[str, str]] = []

    def emit(self, event_type: str, payload: Mapping[str, Any], *, dedupe_key: str | None = None) -> None:
        """Add an event to the response. Events of a failed attempt are routed only if no retry follows."""
        if exceeds_depth(payload, MAX_PAYLOAD_LEVELS):
            raise Final(f"the payload of {event_type} has more than {MAX_PAYLOAD_LEVELS} levels")
        self.events.append({"type": event_type, "payload": payload, "dedupe_key": dedupe_key})

    def log(self, level: str, message: str) -> None:
        """Add a log line to the response; `level` is debug, info, warn or error."""
        self.logs.append({"level": level, "message": message})

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; one hour if the request has no deadline."""
        from datetime import datetime

        at = self.deadline_at.replace("Z", "+00:00")
        return datetime.fromisoformat(at).timestamp() - time.time() if at else 3600.0


def setting(
    config: Mapping[str, Any],
    key: str,
    kind: type = str,
    default: Any = REQUIRED,
    *,
    minimum: float = 0,
    where: str = "",
) -> Any:
    """Return `config[key]`. Raises Misconfigured for a wrong type, a small number or blank text. Null means absent."""
    value = config.get(key)
    if value is None:
        if default is REQUIRED:
            raise Misconfigured(f"{where}{key} is missing; it must be {_TYPE_NAMES[kind]}")
        return default
    is_kind = isinstance(value, (int, float) if kind is float else kind)
    if not is_kind or isinstance(value, bool) is not (kind is bool):
        raise Misconfigured(f"{where}{key} must be {_TYPE_NAMES[kind]}, not {json.dumps(value)[:80]}")
    if kind in (int, float) and not value >= minimum:
        raise Misconfigured(f"{where}{key} must be at least {minimum}, not {value}")
    if kind is str and not value.strip():
        raise Misconfigured(f"{where}{key} must not be blank")
    return value


def only_known(config: Iterable[str], known: Iterable[str], *, where: str = "") -> None:
    """Raise Misconfigured for an unknown key, with the closest known key as a hint."""
    for key in config:
        if key not in known:
            from difflib import get_close_matches

            close = get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            raise Misconfigured(f"{where}{key} is not a key of this plugin; {hint}")


def exceeds_depth(value: Any, levels: int) -> bool:
    """Return True if lists and mappings are nested deeper than `levels`."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    members = value.values() if isinstance(value, dict) else value
    return levels < 1 or any(exceeds_depth(member, levels - 1) for member in members)


def run(**commands: Callable[[Job], str]) -> None:
    """Read the request, run its command, print the response and exit."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # prints, also of child processes, go to stderr: stdout is for the response only
    try:
        request = json.loads(sys.stdin.buffer.read())
        protocol = request["protocol"]
    except (ValueError, TypeError, KeyError):
        protocol = None
    if protocol != 2:
        print(f"unsupported protocol {protocol}; this plugin supports protocol 2", file=sys.stderr)
        sys.exit(EX_CONFIG)
    job = Job(request)
    before = json.dumps(job.state)
    response, code = _respond(job, commands)
    if response["status"] == "ok" and json.dumps(job.state) != before:
        response["state_updates"] = job.state
    text = json.dumps({**response, "events": job.events, "logs": job.logs}, ensure_ascii=False)
    with open(stdout, "wb") as out:
        out.write(text.encode("utf-8", "backslashreplace"))  # writes a lone surrogate as an escape, which is valid JSON
    sys.exit(code)


def _respond(job: Job, commands: Mapping[str, Callable[[Job], str]]) -> tuple[dict[str, Any], int]:
    try:
        if job.command not in commands:
            raise Final(f"unknown command {job.command!r}; known: {', '.join(commands)}")
        return {"status": "ok", "result": commands[job.command](job)}, 0
    except Failed as failure:
        outcome = {"error": str(failure), "retry": failure.retry, "retry_after": failure.retry_after}
        return {"status": "error", **outcome}, failure.exit_code
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"status": "error", "error": f"{type(error).__name__}: {error}"}, 0
