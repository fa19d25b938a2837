#!/usr/bin/env python3
"""Route events by one value of their payload. See README.md."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MATCHERS = ("contains", "startswith", "endswith", "equals", "regex", "default")
REGEX_SECONDS = 2
FOUND, FAILED = 1, 2
ABSENT = object()


def handle(job: Job) -> str:
    field, checks = read_config(job)
    value = lookup(job.payload, field)
    for index, (matcher, expected, event_type) in enumerate(checks):
        if is_match(matcher, expected, value):
            # The suffix keeps events of different checks distinct.
            key = job.event.get("dedupe_key")
            job.emit(event_type, job.payload, dedupe_key=f"{key}:{event_type}" if key else None)
            return f"checks[{index}] ({matcher}) matches {field}: {event_type}"
    return f"no check matches {field}; nothing emitted"


def health(job: Job) -> str:
    field, checks = read_config(job)
    return f"healthy ({len(checks)} checks of {field})"


def read_config(job: Job) -> tuple[str, list[tuple[str, Any, str]]]:
    only_known(job.config, ("field", "checks"))
    field = setting(job.config, "field")
    entries = setting(job.config, "checks", list)
    if not entries:
        raise Misconfigured("checks is empty; add at least `- {default: true, emit: some.event}`")
    return field, [parse_check(raw, f"checks[{index}].") for index, raw in enumerate(entries)]


def parse_check(raw: Any, where: str) -> tuple[str, Any, str]:
    if not isinstance(raw, dict):
        raise Misconfigured(f"{where[:-1]} must be a mapping with the key `emit` and one of {', '.join(MATCHERS)}")
    only_known(raw, (*MATCHERS, "emit"), where=where)
    used = [matcher for matcher in MATCHERS if matcher in raw]
    if len(used) != 1:
        raise Misconfigured(f"{where[:-1]} must have exactly one of {', '.join(MATCHERS)}, not {len(used)}")
    matcher, expected = used[0], raw[used[0]]
    if matcher == "default" and expected is not True:
        raise Misconfigured(f"{where}default must be true")
    if matcher == "regex":
        try:
            expected = re.compile(setting(raw, "regex", where=where))
        except re.error as error:
            raise Misconfigured(f"{where}regex is not a valid regular expression: {error}") from error
    elif matcher not in ("equals", "default"):
        expected = setting(raw, matcher, where=where)
    return matcher, expected, setting(raw, "emit", where=where)


def lookup(payload: dict[str, Any], field: str) -> Any:
    """Return the value at a dotted path; the prefix `payload.` is optional. A key that contains dots has precedence."""
    for path in (field, field[len("payload.") :] if field.startswith("payload.") else field):
        if path in payload:
            return payload[path]
        value: Any = payload
        for name in path.split("."):
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name, ABSENT) if isinstance(value, dict) else ABSENT
        if value is not ABSENT:
            return value
    return ABSENT


def is_match(matcher: str, expected: Any, value: Any) -> bool:
    """Compare text as is and other values as JSON. `contains` matches a substring or an item of a list."""
    if matcher == "default":
        return True
    if value is ABSENT:
        return False
    if matcher == "equals":
        return text_of(value) == text_of(expected)
    if matcher == "contains" and isinstance(value, list):
        return any(text_of(item) == expected for item in value)
    text = text_of(value)
    if matcher == "regex":
        return regex_matches(expected, text)
    return {"contains": expected in text, "startswith": text.startswith(expected), "endswith": text.endswith(expected)}[
        matcher
    ]


def regex_matches(pattern: re.Pattern[str], text: str) -> bool:
    """Search the text in a child process with a time limit. Raises Final if the limit is exceeded.

    Payloads are untrusted, and Python cannot interrupt a regular expression: only killing its process stops it.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(REGEX_SECONDS)
        code = FAILED
        try:
            code = FOUND if pattern.search(text) else 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status == signal.SIGALRM:
        raise Final(f"the regex {pattern.pattern!r} took longer than {REGEX_SECONDS} s on this text")
    if os.waitstatus_to_exitcode(status) not in (0, FOUND):
        raise Final(f"the regex {pattern.pattern!r} failed on this text")
    return os.waitstatus_to_exitcode(status) == FOUND


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


if __name__ == "__main__":
    run(handle=handle, health=health)
