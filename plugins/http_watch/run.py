#!/usr/bin/env python3
"""Watch URLs and emit an event for each change. See README.md."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_guard import GUARD_KEYS, Guard
from ductile_http import Response, request
from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KEYS = ("watches", "user_agent", "timeout_seconds", "max_redirects", "max_response_bytes", *GUARD_KEYS)
WATCH_KEYS = ("id", "url", "event_type", "strategy", "json_path", "emit_initial", "include_text", "headers")
STRATEGIES = ("hash", "etag", "last_modified", "json")
HEADERS = {"etag": "ETag", "last_modified": "Last-Modified"}
MAX_WATCHES = 100
MAX_ID_CHARS = 64
MAX_VALUE_BYTES = 4096
MAX_VALIDATOR_CHARS = 1024
MAX_TEXT_BYTES = 4 << 20
"""A response is limited to 10 MiB, and its state to 1 MiB."""
MARGIN_SECONDS = 2.0
"""The time to write the response before the deadline."""


class Watch:
    """One entry of `watches`, validated."""

    def __init__(self, config: Any, where: str) -> None:
        if not isinstance(config, dict):
            raise Misconfigured(f"{where[:-1]} must be a mapping with the keys id and url")
        only_known(config, WATCH_KEYS, where=where)
        self.id: str = setting(config, "id", where=where)
        self.url: str = setting(config, "url", where=where)
        self.event_type: str = setting(config, "event_type", str, "http_watch.changed", where=where)
        self.json_path: str = setting(config, "json_path", str, "", where=where)
        self.strategy: str = setting(config, "strategy", str, "json" if self.json_path else "hash", where=where)
        self.emit_initial: bool = setting(config, "emit_initial", bool, False, where=where)
        self.include_text: bool = setting(config, "include_text", bool, False, where=where)
        self.headers: dict[str, str] = setting(config, "headers", dict, {}, where=where)
        if len(self.id) > MAX_ID_CHARS:
            raise Misconfigured(f"{where}id must have at most {MAX_ID_CHARS} characters")
        if self.strategy not in STRATEGIES:
            raise Misconfigured(f"{where}strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy}")
        if (self.strategy == "json") is not bool(self.json_path):
            raise Misconfigured(f"{where}json_path requires strategy json, and strategy json requires json_path")
        if not all(isinstance(value, str) for value in self.headers.values()):
            raise Misconfigured(f"{where}headers must map names to strings")

    @property
    def source(self) -> str:
        """Identify what is compared. If it changes, the stored fingerprint is not used."""
        return f"{self.strategy} {self.json_path} {self.url}"


class Settings:
    """The configuration, validated."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        only_known(config, KEYS)
        entries = setting(config, "watches", list)
        if not 0 < len(entries) <= MAX_WATCHES:
            raise Misconfigured(f"watches must have 1 to {MAX_WATCHES} entries, not {len(entries)}")
        self.watches = [Watch(entry, f"watches[{number}].") for number, entry in enumerate(entries)]
        ids = [watch.id for watch in self.watches]
        if duplicates := {name for name in ids if ids.count(name) > 1}:
            raise Misconfigured(f"watches: duplicate id {min(duplicates)!r}")
        self.guard = Guard.of(config, trusted_urls=[watch.url for watch in self.watches])
        self.user_agent = setting(config, "user_agent", str, "ductile-http-watch")
        self.timeout = float(setting(config, "timeout_seconds", float, 10, minimum=0.1))
        self.max_redirects = setting(config, "max_redirects", int, 3)
        self.max_bytes = setting(config, "max_response_bytes", int, 1 << 20, minimum=1)


def poll(job: Job) -> str:
    settings = Settings(job.config)
    before: dict[str, Any] = job.state.get("watches") or {}
    after = {watch.id: before[watch.id] for watch in settings.watches if watch.id in before}
    ordered = rotated(settings.watches, job.state.get("next"))
    failures: list[Failed] = []
    checked = changed = 0
    for watch in ordered:
        if checked and job.seconds_left() < settings.timeout + MARGIN_SECONDS:
            break
        checked += 1
        known = after.get(watch.id, {})
        known = known if known.get("question") == watch.source else {}
        try:
            after[watch.id], is_changed = check(job, watch, known, settings)
            changed += is_changed
        except Failed as failure:
            failures.append(failure)
            after[watch.id] = report_failure(job, watch, known, failure)
    if len(failures) == len(ordered):
        raise next((failure for failure in failures if failure.retry), failures[0])
    job.state.clear()
    job.state["watches"] = after
    if checked < len(ordered):
        job.state["next"] = ordered[checked].id
        job.log("warn", f"not enough time for all watches; the next poll starts with {ordered[checked].id}")
    return f"{checked} checked, {changed} changed, {len(failures)} failed"


def health(job: Job) -> str:
    return f"healthy ({len(Settings(job.config).watches)} URLs)"


def rotated(watches: list[Watch], name: str | None) -> list[Watch]:
    """Return all watches, starting with the one named: the first that the last poll had no time for."""
    start = next((number for number, watch in enumerate(watches) if watch.id == name), 0)
    return watches[start:] + watches[:start]


def report_failure(job: Job, watch: Watch, known: dict[str, Any], failure: Failed) -> dict[str, Any]:
    """Return the state of a failed watch. Emits `http_watch.failed` for the first failure in a row."""
    job.log("warn", f"{watch.id}: {failure}")
    if not known.get("error"):
        payload = {"watch_id": watch.id, "url": watch.url, "error": str(failure)}
        job.emit("http_watch.failed", {**payload, "text": f"cannot check {watch.id}: {failure}"})
    return {**known, "question": watch.source, "error": str(failure)[:500]}


def check(job: Job, watch: Watch, known: dict[str, Any], settings: Settings) -> tuple[dict[str, Any], bool]:
    """Request the URL once. Return the new state of the watch, and True if its content changed."""
    response = send_request(watch, known, settings)
    recovered = {key: value for key, value in known.items() if key != "error"}
    if response.status == 304 and "fingerprint" in known:
        return recovered, False
    if response.status == 304:
        raise Failed("the server responded with 304 to an unconditional request")
    response.require_success()
    fingerprint, value = fingerprint_of(watch, response)
    now: dict[str, Any] = {"question": watch.source, "fingerprint": fingerprint, "changes": known.get("changes", 0)}
    for key, name in (("etag", "etag"), ("modified", "last-modified")):
        if 0 < len(response.headers.get(name, "")) <= MAX_VALIDATOR_CHARS:
            now[key] = response.headers[name]
    if watch.strategy == "json" and len(json.dumps(value)) <= MAX_VALUE_BYTES:
        now["value"] = value
    is_first, is_same = "fingerprint" not in known, known.get("fingerprint") == fingerprint
    if is_same or (is_first and not watch.emit_initial):
        return now, False
    now["changes"] += 1
    # The number makes the key unique if a page returns to earlier content. A retry creates the same key.
    key = f"http_watch:{watch.id}:{now['changes']}:{fingerprint}"
    job.emit(watch.event_type, change_payload(job, watch, known, now, response), dedupe_key=key)
    return now, True


def change_payload(
    job: Job, watch: Watch, known: Mapping[str, Any], now: Mapping[str, Any], response: Response
) -> dict[str, Any]:
    """Return the payload of the event for a change."""
    payload: dict[str, Any] = {
        "watch_id": watch.id,
        "url": watch.url,
        "strategy": watch.strategy,
        "fingerprint": now["fingerprint"],
        "previous_fingerprint": known.get("fingerprint"),
        "status_code": response.status,
        "content_type": response.content_type,
    }
    if watch.strategy == "json":
        payload |= {"value": now.get("value"), "previous_value": known.get("value")}
    if watch.include_text:
        text = response.text()
        texts = [text, *(event["payload"].get("text", "") for event in job.events)]
        if len(json.dumps(texts, ensure_ascii=False).encode("utf-8", "replace")) <= MAX_TEXT_BYTES:
            payload["text"] = text
        else:
            job.log("warn", f"{watch.id}: its text does not fit in this response")
    return payload


def send_request(watch: Watch, known: Mapping[str, Any], settings: Settings) -> Response:
    """Send a conditional GET; the status is 304 if the server reports no change."""
    conditions = {"If-None-Match": known.get("etag"), "If-Modified-Since": known.get("modified")}
    headers = {"User-Agent": settings.user_agent, **{name: value for name, value in conditions.items() if value}}
    return request(
        "GET",
        watch.url,
        guard=settings.guard,
        timeout=settings.timeout,
        headers={**headers, **watch.headers},
        max_bytes=settings.max_bytes,
        max_redirects=settings.max_redirects,
    )


def fingerprint_of(watch: Watch, response: Response) -> tuple[str, Any]:
    """Return the fingerprint to compare, and the value for strategy json."""
    from hashlib import sha256

    if watch.strategy in HEADERS:
        header = HEADERS[watch.strategy]
        if not (text := response.headers.get(header.lower(), "").strip()):
            raise Final(f"the response has no {header} header; use strategy hash")
        return text if len(text) <= 100 else sha256(text.encode()).hexdigest(), None
    if watch.strategy == "hash":
        return sha256(response.body).hexdigest(), None
    try:
        value = member(response.json(), watch.json_path)
    except ValueError as error:
        raise Failed(f"the response is not JSON: {str(error)[:200]}") from error
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest(), value


def member(value: Any, path: str) -> Any:
    """Return the value at a path such as `a.b.0.c`; None if it is absent."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and len(name) < 10 and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


if __name__ == "__main__":
    run(poll=poll, health=health)
