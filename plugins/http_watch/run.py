#!/usr/bin/env python3
"""The http_watch plugin: asks URLs and tells which have changed. See README.md."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_guard import GUARD_KEYS, Guard
from ductile_http import Answer, request
from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KEYS = ("watches", "user_agent", "timeout_seconds", "max_redirects", "max_response_bytes", *GUARD_KEYS)
WATCH_KEYS = ("id", "url", "event_type", "strategy", "json_path", "emit_initial", "include_text", "headers")
STRATEGIES = ("hash", "etag", "last_modified", "json")
HEADERS = {"etag": "ETag", "last_modified": "Last-Modified"}
MOST_WATCHES = 100
MOST_ID = 64
MOST_VALUE = 4096
MOST_VALIDATOR = 1024
MOST_TEXT = 4 << 20
"""An answer of Ductile's protocol has room for 10 MiB, and its state for 1 MiB."""
MARGIN = 2.0
"""Seconds to write the answer in, before Ductile ends the process."""


class Watch:
    """One entry of `watches`, checked."""

    def __init__(self, config: Any, where: str) -> None:
        if not isinstance(config, dict):
            raise Misconfigured(f"{where[:-1]} must be a mapping with id and url")
        only_known(config, WATCH_KEYS, where=where)
        self.id: str = setting(config, "id", where=where)
        self.url: str = setting(config, "url", where=where)
        self.event_type: str = setting(config, "event_type", str, "http_watch.changed", where=where)
        self.json_path: str = setting(config, "json_path", str, "", where=where)
        self.strategy: str = setting(config, "strategy", str, "json" if self.json_path else "hash", where=where)
        self.emit_initial: bool = setting(config, "emit_initial", bool, False, where=where)
        self.include_text: bool = setting(config, "include_text", bool, False, where=where)
        self.headers: dict[str, str] = setting(config, "headers", dict, {}, where=where)
        if len(self.id) > MOST_ID:
            raise Misconfigured(f"{where}id must have {MOST_ID} characters or less")
        if self.strategy not in STRATEGIES:
            raise Misconfigured(f"{where}strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy}")
        if (self.strategy == "json") is not bool(self.json_path):
            raise Misconfigured(f"{where}json_path and strategy json belong together")
        if not all(isinstance(value, str) for value in self.headers.values()):
            raise Misconfigured(f"{where}headers must be a mapping of names to texts")

    @property
    def question(self) -> str:
        """What is asked; if that is another than before, there is nothing to compare with."""
        return f"{self.strategy} {self.json_path} {self.url}"


class Settings:
    """The configuration, checked."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        only_known(config, KEYS)
        entries = setting(config, "watches", list)
        if not 0 < len(entries) <= MOST_WATCHES:
            raise Misconfigured(f"watches must have 1 to {MOST_WATCHES} entries, not {len(entries)}")
        self.watches = [Watch(entry, f"watches[{number}].") for number, entry in enumerate(entries)]
        ids = [watch.id for watch in self.watches]
        if twice := {name for name in ids if ids.count(name) > 1}:
            raise Misconfigured(f"watches: the id {min(twice)!r} is used twice")
        self.guard = Guard.of(config, trusted_urls=[watch.url for watch in self.watches])
        self.user_agent = setting(config, "user_agent", str, "ductile-http-watch")
        self.timeout = float(setting(config, "timeout_seconds", float, 10, least=0.1))
        self.max_redirects = setting(config, "max_redirects", int, 3)
        self.max_bytes = setting(config, "max_response_bytes", int, 1 << 20, least=1)


def poll(job: Job) -> str:
    settings = Settings(job.config)
    before: dict[str, Any] = job.state.get("watches") or {}
    after = {watch.id: before[watch.id] for watch in settings.watches if watch.id in before}
    turn = in_turn(settings.watches, job.state.get("next"))
    failures: list[Failed] = []
    looked = changed = 0
    for watch in turn:
        if looked and job.seconds_left() < settings.timeout + MARGIN:
            break
        looked += 1
        known = after.get(watch.id, {})
        known = known if known.get("question") == watch.question else {}
        try:
            after[watch.id], is_changed = look(job, watch, known, settings)
            changed += is_changed
        except Failed as failure:
            failures.append(failure)
            after[watch.id] = failing(job, watch, known, failure)
    if len(failures) == len(turn):
        raise next((failure for failure in failures if failure.retry), failures[0])
    job.state.clear()
    job.state["watches"] = after
    if looked < len(turn):
        job.state["next"] = turn[looked].id
        job.log("warn", f"no time left; the next poll begins with {turn[looked].id}")
    return f"{looked} watched, {changed} changed, {len(failures)} failed"


def health(job: Job) -> str:
    return f"http_watch is well, {len(Settings(job.config).watches)} URLs"


def in_turn(watches: list[Watch], name: str | None) -> list[Watch]:
    """All of them, beginning with the one that there was no time for."""
    start = next((number for number, watch in enumerate(watches) if watch.id == name), 0)
    return watches[start:] + watches[:start]


def failing(job: Job, watch: Watch, known: dict[str, Any], failure: Failed) -> dict[str, Any]:
    """What is known afterwards: what was, and that it fails, which is told once."""
    job.log("warn", f"{watch.id}: {failure}")
    if not known.get("error"):
        payload = {"watch_id": watch.id, "url": watch.url, "error": str(failure)}
        job.emit("http_watch.failed", {**payload, "text": f"{watch.id} cannot be watched: {failure}"})
    return {**known, "question": watch.question, "error": str(failure)[:500]}


def look(job: Job, watch: Watch, known: dict[str, Any], settings: Settings) -> tuple[dict[str, Any], bool]:
    """What is known afterwards, and whether it is something else than before."""
    answer = ask(watch, known, settings)
    recovered = {key: value for key, value in known.items() if key != "error"}
    if answer.status == 304 and "fingerprint" in known:
        return recovered, False
    if answer.status == 304:
        raise Failed("the server says that nothing is new, but was not asked")
    answer.require_success()
    fingerprint, value = observed(watch, answer)
    now: dict[str, Any] = {"question": watch.question, "fingerprint": fingerprint, "changes": known.get("changes", 0)}
    for key, name in (("etag", "etag"), ("modified", "last-modified")):
        if 0 < len(answer.headers.get(name, "")) <= MOST_VALIDATOR:
            now[key] = answer.headers[name]
    if watch.strategy == "json" and len(json.dumps(value)) <= MOST_VALUE:
        now["value"] = value
    is_first, is_same = "fingerprint" not in known, known.get("fingerprint") == fingerprint
    if is_same or (is_first and not watch.emit_initial):
        return now, False
    now["changes"] += 1
    # The number makes it unique when a page returns to what it was; repeating the poll makes the same key.
    key = f"http_watch:{watch.id}:{now['changes']}:{fingerprint}"
    job.emit(watch.event_type, told(job, watch, known, now, answer), dedupe_key=key)
    return now, True


def told(job: Job, watch: Watch, known: Mapping[str, Any], now: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The payload of the event about a change."""
    payload: dict[str, Any] = {
        "watch_id": watch.id,
        "url": watch.url,
        "strategy": watch.strategy,
        "fingerprint": now["fingerprint"],
        "previous_fingerprint": known.get("fingerprint"),
        "status_code": answer.status,
        "content_type": answer.content_type,
    }
    if watch.strategy == "json":
        payload |= {"value": now.get("value"), "previous_value": known.get("value")}
    if watch.include_text:
        text = answer.text()
        texts = [text, *(event["payload"].get("text", "") for event in job.events)]
        if len(json.dumps(texts, ensure_ascii=False).encode("utf-8", "replace")) <= MOST_TEXT:
            payload["text"] = text
        else:
            job.log("warn", f"{watch.id}: its text does not fit into this answer")
    return payload


def ask(watch: Watch, known: Mapping[str, Any], settings: Settings) -> Answer:
    """The answer of the server; 304 when it says that nothing is new."""
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


def observed(watch: Watch, answer: Answer) -> tuple[str, Any]:
    """What decides whether something has changed, and the value for strategy json."""
    from hashlib import sha256

    if watch.strategy in HEADERS:
        header = HEADERS[watch.strategy]
        if not (text := answer.headers.get(header.lower(), "").strip()):
            raise Final(f"the answer has no {header}; use strategy hash")
        return text if len(text) <= 100 else sha256(text.encode()).hexdigest(), None
    if watch.strategy == "hash":
        return sha256(answer.body).hexdigest(), None
    try:
        value = member(answer.json(), watch.json_path)
    except ValueError as error:
        raise Failed(f"the answer is not JSON: {str(error)[:200]}") from error
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest(), value


def member(value: Any, path: str) -> Any:
    """What is at `a.b.0.c`; None if there is nothing."""
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
