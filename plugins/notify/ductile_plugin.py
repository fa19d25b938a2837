"""Ductile's plugin protocol for Python, standard library only. Copy this file into your plugin's folder.

def poll(job):
    url = setting(job.config, "url")         # raises Misconfigured, which is not tried again
    job.emit("thing.changed", {"url": url})
    job.state["seen"] = url                  # if `state` is another one at the end, it is kept
    return f"looked at {url}"                # or raise Failed, Final

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
MOST_LEVELS = 61  # of a payload: Ductile takes answers of 64, and an event begins at the third
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "a flag", list: "a list", dict: "a mapping"}


class Failed(Exception):
    """This attempt failed; another one may succeed, `retry_after` seconds from now if that is known."""

    retry = True
    exit_code = 0

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Final(Failed):
    """No other attempt would succeed."""

    retry = False


class Misconfigured(Final):
    """The operator has to change the configuration first."""

    exit_code = EX_CONFIG


class Job:
    """What is asked, and what the answer will say besides its result."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.id, self.command = request.get("job_id") or "", request.get("command") or ""
        self.attempt, self.max_attempts = request.get("attempt") or 1, request.get("max_attempts") or 1
        self.deadline_at: str = request.get("deadline_at") or ""
        self.config: dict[str, Any] = request.get("config") or {}
        self.state: dict[str, Any] = request.get("state") or {}
        self.context: dict[str, Any] = request.get("context") or {}
        self.event: dict[str, Any] = request.get("event") or {}
        # For `handle` the payload of the request is the whole event.
        self.payload: dict[str, Any] = (self.event or request).get("payload") or {}
        self.events: list[dict[str, Any]] = []
        self.logs: list[dict[str, str]] = []

    def emit(self, event_type: str, payload: Mapping[str, Any], *, dedupe_key: str | None = None) -> None:
        """The answer has this event. Of an answer that failed it is routed only when no attempt follows."""
        if is_deeper(payload, MOST_LEVELS):
            raise Final(f"the payload of {event_type} has more than {MOST_LEVELS} levels; an event cannot")
        self.events.append({"type": event_type, "payload": payload, "dedupe_key": dedupe_key})

    def log(self, level: str, message: str) -> None:
        """The answer has this line; `level` is debug, info, warn or error."""
        self.logs.append({"level": level, "message": message})

    def seconds_left(self) -> float:
        """Until Ductile ends this process; an hour when it does not say."""
        from datetime import datetime

        at = self.deadline_at.replace("Z", "+00:00")
        return datetime.fromisoformat(at).timestamp() - time.time() if at else 3600.0


def setting(
    config: Mapping[str, Any], key: str, kind: type = str, default: Any = REQUIRED, *, least: float = 0, where: str = ""
) -> Any:
    """`config[key]`, of this kind; numbers from `least` up, text not blank. Null is the same as absent."""
    value = config.get(key)
    if value is None:
        if default is REQUIRED:
            raise Misconfigured(f"{where}{key} is missing; it must be {_NAMES[kind]}")
        return default
    is_kind = isinstance(value, (int, float) if kind is float else kind)
    if not is_kind or isinstance(value, bool) is not (kind is bool):
        raise Misconfigured(f"{where}{key} must be {_NAMES[kind]}, not {json.dumps(value)[:80]}")
    if kind in (int, float) and not value >= least:
        raise Misconfigured(f"{where}{key} must be {least} or more, not {value}")
    if kind is str and not value.strip():
        raise Misconfigured(f"{where}{key} is blank")
    return value


def only_known(config: Iterable[str], known: Iterable[str], *, where: str = "") -> None:
    """Raises Misconfigured for a key that is not one of `known`, with the one that was probably meant."""
    for key in config:
        if key not in known:
            from difflib import get_close_matches

            close = get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            raise Misconfigured(f"{where}{key} is not a key of this plugin; {hint}")


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested in more levels than that."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    members = value.values() if isinstance(value, dict) else value
    return levels < 1 or any(is_deeper(member, levels - 1) for member in members)


def run(**commands: Callable[[Job], str]) -> None:
    """Read the request, run its command, print the answer, end the process."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever is printed, also by programs that are run: stdout is for the answer alone
    try:
        request = json.loads(sys.stdin.buffer.read())
        spoken = request["protocol"]
    except (ValueError, TypeError, KeyError):
        spoken = "something else"
    if spoken != 2:
        print(f"this plugin speaks protocol 2, not {spoken}", file=sys.stderr)
        sys.exit(EX_CONFIG)
    job = Job(request)
    before = json.dumps(job.state)
    answer, code = _answer(job, commands)
    if answer["status"] == "ok" and json.dumps(job.state) != before:
        answer["state_updates"] = job.state
    text = json.dumps({**answer, "events": job.events, "logs": job.logs}, ensure_ascii=False)
    with open(stdout, "wb") as out:
        out.write(text.encode("utf-8", "backslashreplace"))  # a lone surrogate becomes its escape, which is JSON
    sys.exit(code)


def _answer(job: Job, commands: Mapping[str, Callable[[Job], str]]) -> tuple[dict[str, Any], int]:
    try:
        if job.command not in commands:
            raise Final(f"there is no command {job.command!r}; known: {', '.join(commands)}")
        return {"status": "ok", "result": commands[job.command](job)}, 0
    except Failed as failure:
        answer = {"status": "error", "error": str(failure), "retry": failure.retry, "retry_after": failure.retry_after}
        return answer, failure.exit_code
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"status": "error", "error": f"{type(error).__name__}: {error}"}, 0
