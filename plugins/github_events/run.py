#!/usr/bin/env python3
"""Convert a GitHub webhook delivery to a typed event. See README.md."""

from __future__ import annotations

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import MAX_PAYLOAD_LEVELS, Final, Job, Misconfigured, exceeds_depth, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KEYS = ("events", "repositories", "include_body")
WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")
SUBJECTS = ("pull_request", "issue", "release", "workflow_run", "check_run", "check_suite", "discussion", "alert")
"""Members that contain the subject of a delivery; the first one present is used."""


def handle(job: Job) -> str:
    events, repositories, include_body = settings(job.config)
    body = job.payload
    headers: Mapping[str, Any] = job.event.get("headers") or {}
    event = headers.get("x-github-event")
    if not isinstance(event, str) or not WORD.fullmatch(event):
        hint = "set scheme: github at the webhook endpoint, or forward_headers: [X-GitHub-Event, X-GitHub-Delivery]"
        raise Final(f"the delivery has no usable X-GitHub-Event header; {hint}")
    action = body.get("action")
    action = action if isinstance(action, str) and WORD.fullmatch(action) else None
    name = f"{event}.{action}" if action else event
    payload = payload_of(event, action, headers.get("x-github-delivery"), body)
    repository = payload["repository"] or ""
    if events and not any(matches(expected, candidate) for expected in events for candidate in (event, name)):
        return f"{name} is not in events; nothing emitted"
    if repositories and not any(matches(expected, repository) for expected in repositories):
        return f"{repository or 'no repository'} is not in repositories; nothing emitted"
    if include_body and exceeds_depth(body, MAX_PAYLOAD_LEVELS - 1):
        job.log("warn", f"the body has at least {MAX_PAYLOAD_LEVELS} levels; the event does not include it")
    elif include_body:
        payload["body"] = body
    delivery = payload["delivery_id"]
    job.emit(f"github.{name}", payload, dedupe_key=f"github:{delivery}" if delivery else None)
    return f"github.{name}: {payload['text']}"


def health(job: Job) -> str:
    events, repositories, _ = settings(job.config)
    return f"healthy ({len(events) or 'all'} events, {len(repositories) or 'all'} repositories)"


def settings(config: Mapping[str, Any]) -> tuple[list[str], list[str], bool]:
    only_known(config, KEYS)
    events, repositories = setting(config, "events", list, []), setting(config, "repositories", list, [])
    for key, entries in (("events", events), ("repositories", repositories)):
        if not all(isinstance(entry, str) and entry for entry in entries):
            raise Misconfigured(f"{key} must be a list of strings")
    return events, repositories, setting(config, "include_body", bool, True)


def matches(expected: str, name: str) -> bool:
    """Compare without case; a trailing `*`, as in `octo/*` or `pull_request.*`, matches any suffix."""
    expected, name = expected.lower(), name.lower()
    return name.startswith(expected[:-1]) if expected.endswith("*") else name == expected


def payload_of(event: str, action: str | None, delivery: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of the event, with the same keys for every kind of event."""
    is_id = isinstance(delivery, str) and 0 < len(delivery) <= 200
    payload: dict[str, Any] = {
        "event": event,
        "action": action,
        "delivery_id": delivery if is_id else None,
        "repository": text_at(body, "repository", "full_name"),
        "sender": text_at(body, "sender", "login"),
    }
    values = push_values(body) if event == "push" else subject_values(event, body)
    payload |= {key: value for key, value in values.items() if value is not None}
    payload["text"] = summary(payload, body)
    return payload


def push_values(body: Mapping[str, Any]) -> dict[str, Any]:
    ref = text_at(body, "ref") or ""
    commits = body.get("commits")
    return {
        "ref": ref or None,
        "branch": after("refs/heads/", ref),
        "tag": after("refs/tags/", ref),
        "before": text_at(body, "before"),
        "after": text_at(body, "after"),
        "commits": len(commits) if isinstance(commits, list) else None,
        "url": text_at(body, "compare"),
        "title": (text_at(body, "head_commit", "message") or "").partition("\n")[0] or None,
    }


def subject_values(event: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return title, number, state and URL of the pull request, issue, run or other subject."""
    found = (body[key] for key in (event, *SUBJECTS) if isinstance(body.get(key), dict))
    subject: Mapping[str, Any] = next(found, {})
    number, merged = subject.get("number"), subject.get("merged")
    if event == "status":  # the delivery itself is the subject
        subject = {**body, "name": body.get("context"), "html_url": body.get("target_url")}
    ref, ref_type = text_at(body, "ref"), body.get("ref_type")
    return {
        "ref": ref,
        "number": number if isinstance(number, int) else None,
        "title": text_at(subject, "title") or text_at(subject, "display_title") or text_at(subject, "name"),
        "tag": ref if ref_type == "tag" else text_at(subject, "tag_name"),
        "state": text_at(subject, "state") or text_at(subject, "status"),
        "conclusion": text_at(subject, "conclusion"),
        "merged": merged if isinstance(merged, bool) else None,
        "branch": ref if ref_type == "branch" else text_at(subject, "head", "ref") or text_at(subject, "head_branch"),
        "url": text_at(subject, "html_url"),
    }


def summary(payload: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """Return a line such as `octo/hello: pull_request opened #7 Fix it (by cat)`."""
    if payload["event"] == "ping":
        return f"{payload['repository'] or 'GitHub'}: ping: {text_at(body, 'zen') or 'hello'}"
    words = [
        payload["event"],
        payload["action"],
        payload.get("branch"),
        f"#{payload['number']}" if "number" in payload else None,
    ]
    text = " ".join(word for word in (*words, payload.get("title")) if word)
    return f"{payload['repository'] or 'GitHub'}: {text}" + (f" (by {payload['sender']})" if payload["sender"] else "")


def text_at(value: Any, *path: str) -> str | None:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def after(prefix: str, ref: str) -> str | None:
    return ref[len(prefix) :] if ref.startswith(prefix) else None


if __name__ == "__main__":
    run(handle=handle, health=health)
