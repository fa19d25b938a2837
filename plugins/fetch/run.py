#!/usr/bin/env python3
"""The fetch plugin: one URL in, one event with what was there out. See README.md."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_guard import GUARD_KEYS, Guard, split_url
from ductile_http import Answer, request, within
from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KEYS = (
    "user_agent",
    "timeout_seconds",
    "follow_redirects",
    "max_redirects",
    "max_response_bytes",
    "output_format",
    "content_types",
    "headers",
    *GUARD_KEYS,
)
FORMATS = ("html", "text", "markdown")
METHODS = ("GET", "POST", "HEAD")
MOST_BYTES = 6 << 20
MOST_EVENT = 9 << 20
"""An answer of Ductile's protocol has room for 10 MiB, and a body grows when it is written as JSON."""


class Settings:
    """The configuration, checked."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        only_known(config, KEYS)
        self.guard = Guard.of(config)
        self.user_agent = setting(config, "user_agent", str, "ductile-fetch")
        self.timeout = float(setting(config, "timeout_seconds", float, 30, least=0.1))
        follows = setting(config, "follow_redirects", bool, True)
        self.max_redirects = setting(config, "max_redirects", int, 5) if follows else 0
        self.max_bytes = setting(config, "max_response_bytes", int, 1 << 20, least=1)
        if self.max_bytes > MOST_BYTES:
            raise Misconfigured(f"max_response_bytes must be {MOST_BYTES} or less, not {self.max_bytes}")
        self.output_format = one_of(
            setting(config, "output_format", str, "html"), FORMATS, "output_format", Misconfigured
        )
        self.content_types = texts(setting(config, "content_types", list, []), "content_types")
        self.headers = header_lines(setting(config, "headers", dict, {}), Misconfigured)
        if self.headers and not self.guard.allowed_hosts:
            raise Misconfigured("headers would go to whatever host an event names; set allowed_hosts too")


def handle(job: Job) -> str:
    settings = Settings(job.config)
    url = job.payload.get("url")
    try:
        if not isinstance(url, str) or not url:
            raise Final("payload.url is missing; it must be the text of a URL")
        answer = fetch(job.payload, url, settings)
        if answer.status >= 400:
            answer.require_success()
        # A page can be written so that reading it takes hours.
        with within(settings.timeout, "the text of the page", Final):
            page = described(url, answer, job.payload.get("output_format") or settings.output_format)
        if len(json.dumps(page, ensure_ascii=False).encode("utf-8", "backslashreplace")) > MOST_EVENT:
            raise Final("the answer is too large for an event; lower max_response_bytes")
    except Failed as failure:
        job.emit("fetch.failed", {"source_url": url, "error": str(failure), "text": f"fetch failed: {failure}"})
        raise
    job.emit("fetch.completed", page)
    return f"{page['status_code']} from {split_url(page['url']).hostname}, {page['bytes']} bytes"


def health(job: Job) -> str:
    settings = Settings(job.config)
    return (
        f"fetch is well: {settings.timeout:g} s, {settings.max_bytes} bytes, {settings.max_redirects} redirects at most"
    )


def fetch(payload: Mapping[str, Any], url: str, settings: Settings) -> Answer:
    """The answer that the event asks for. Raises Final for what cannot be asked."""
    one_of(payload.get("output_format") or "html", FORMATS, "payload.output_format", Final)
    method = one_of(payload.get("method") or "GET", METHODS, "payload.method", Final)
    body = payload.get("body")
    if body is not None and method != "POST":
        raise Final(f"payload.body is sent with POST, not with {method}")
    headers = {"User-Agent": settings.user_agent, "Accept": "*/*"}
    if method == "POST" and not isinstance(body, str):
        headers["Content-Type"] = "application/json"
    headers |= header_lines(payload.get("headers") or {}, Final) | settings.headers
    answer = request(
        method,
        url,
        guard=settings.guard,
        timeout=settings.timeout,
        headers=headers,
        body=encoded(body) if method == "POST" else None,
        max_bytes=settings.max_bytes,
        max_redirects=settings.max_redirects,
    )
    kind = answer.content_type
    if (
        settings.content_types
        and answer.status < 300
        and not any(fits(kind, wanted) for wanted in settings.content_types)
    ):
        raise Final(f"the answer is {kind or 'of no content type'}, which is not one of content_types")
    return answer


def described(url: str, answer: Answer, output_format: str) -> dict[str, Any]:
    """What the event says about the answer."""
    from hashlib import sha256

    page: dict[str, Any] = {
        "url": answer.hops[-1],
        "source_url": url,
        "source_type": "web",
        "status_code": answer.status,
        "content_type": answer.content_type,
        "bytes": len(answer.body),
        "sha256": sha256(answer.body).hexdigest(),
        "redirects": answer.hops[:-1],
    }
    if 300 <= answer.status < 400 and "location" in answer.headers:
        page["location"] = answer.headers["location"]
    return page | content(answer, output_format)


def content(answer: Answer, output_format: str) -> dict[str, Any]:
    """The body in the form that fits its content type."""
    kind = answer.content_type
    if kind in ("text/html", "application/xhtml+xml"):
        from html_text import convert, title_of

        text = answer.text()
        shown = text if output_format == "html" else convert(text, markdown=output_format == "markdown")
        return {"title": title_of(text), "text": shown}
    if fits(kind, "application/json") or kind.endswith("+json"):
        try:
            value = answer.json()
        except ValueError as error:
            raise Final(f"the answer says that it is JSON and is not: {str(error)[:200]}") from error
        return {"text": answer.text(), "json": value}
    if fits(kind, "text/*") or kind.endswith(("/xml", "+xml")) or kind in ("", "application/javascript"):
        return {"text": answer.text()}
    from base64 import b64encode

    return {"body_base64": b64encode(answer.body).decode("ascii")}


def encoded(body: Any) -> bytes:
    return (body if isinstance(body, str) else json.dumps({} if body is None else body)).encode("utf-8", "replace")


def fits(kind: str, wanted: str) -> bool:
    """`text/*` stands for every text."""
    return kind.startswith(wanted[:-1]) if wanted.endswith("/*") else kind == wanted.lower()


def one_of(value: Any, allowed: tuple[str, ...], name: str, failure: type[Failed]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise failure(f"{name} must be one of {', '.join(allowed)}, not {json.dumps(value)[:80]}")
    return value


def texts(entries: list[Any], name: str) -> list[str]:
    if not all(isinstance(entry, str) for entry in entries):
        raise Misconfigured(f"{name} must be a list of texts")
    return entries


def header_lines(headers: Any, failure: type[Failed]) -> dict[str, str]:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise failure("headers must be a mapping of names to texts")
    return {name.title(): value for name, value in headers.items()}  # no two that differ in case alone


if __name__ == "__main__":
    run(handle=handle, health=health)
