#!/usr/bin/env python3
"""Fetch the URL of an event and emit its content. See README.md."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_guard import GUARD_KEYS, Guard, split_url
from ductile_http import Response, request, time_limit
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
MAX_BODY_BYTES = 6 << 20
MAX_EVENT_BYTES = 9 << 20
"""A plugin response is limited to 10 MiB, and a body grows when it is encoded as JSON."""


class Settings:
    """The configuration, validated."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        only_known(config, KEYS)
        self.guard = Guard.of(config)
        self.user_agent = setting(config, "user_agent", str, "ductile-fetch")
        self.timeout = float(setting(config, "timeout_seconds", float, 30, minimum=0.1))
        follows = setting(config, "follow_redirects", bool, True)
        self.max_redirects = setting(config, "max_redirects", int, 5) if follows else 0
        self.max_bytes = setting(config, "max_response_bytes", int, 1 << 20, minimum=1)
        if self.max_bytes > MAX_BODY_BYTES:
            raise Misconfigured(f"max_response_bytes must be at most {MAX_BODY_BYTES}, not {self.max_bytes}")
        self.output_format = one_of(
            setting(config, "output_format", str, "html"), FORMATS, "output_format", Misconfigured
        )
        self.content_types = texts(setting(config, "content_types", list, []), "content_types")
        self.headers = header_lines(setting(config, "headers", dict, {}), Misconfigured)
        if self.headers and not self.guard.allowed_hosts:
            raise Misconfigured("headers require allowed_hosts, because events choose the host")


def handle(job: Job) -> str:
    settings = Settings(job.config)
    url = job.payload.get("url")
    try:
        if not isinstance(url, str) or not url:
            raise Final("payload.url is missing; it must be a URL")
        response = fetch(job.payload, url, settings)
        if response.status >= 400:
            response.require_success()
        # Hostile HTML can take hours to parse.
        with time_limit(settings.timeout, "conversion of the page", Final):
            page = page_of(url, response, job.payload.get("output_format") or settings.output_format)
        if len(json.dumps(page, ensure_ascii=False).encode("utf-8", "backslashreplace")) > MAX_EVENT_BYTES:
            raise Final("the response is too large for an event; reduce max_response_bytes")
    except Failed as failure:
        job.emit("fetch.failed", {"source_url": url, "error": str(failure), "text": f"fetch failed: {failure}"})
        raise
    job.emit("fetch.completed", page)
    return f"{page['status_code']} from {split_url(page['url']).hostname}, {page['bytes']} bytes"


def health(job: Job) -> str:
    settings = Settings(job.config)
    return f"healthy (at most {settings.timeout:g} s, {settings.max_bytes} bytes, {settings.max_redirects} redirects)"


def fetch(payload: Mapping[str, Any], url: str, settings: Settings) -> Response:
    """Send the request that the payload describes. Raises Final if the payload is invalid."""
    one_of(payload.get("output_format") or "html", FORMATS, "payload.output_format", Final)
    method = one_of(payload.get("method") or "GET", METHODS, "payload.method", Final)
    body = payload.get("body")
    if body is not None and method != "POST":
        raise Final(f"payload.body requires POST, not {method}")
    headers = {"User-Agent": settings.user_agent, "Accept": "*/*"}
    if method == "POST" and not isinstance(body, str):
        headers["Content-Type"] = "application/json"
    headers |= header_lines(payload.get("headers") or {}, Final) | settings.headers
    response = request(
        method,
        url,
        guard=settings.guard,
        timeout=settings.timeout,
        headers=headers,
        body=encoded(body) if method == "POST" else None,
        max_bytes=settings.max_bytes,
        max_redirects=settings.max_redirects,
    )
    kind = response.content_type
    if (
        settings.content_types
        and response.status < 300
        and not any(matches(kind, expected) for expected in settings.content_types)
    ):
        raise Final(f"the content type {kind or '(none)'} is not in content_types")
    return response


def page_of(url: str, response: Response, output_format: str) -> dict[str, Any]:
    """Return the payload of `fetch.completed`."""
    from hashlib import sha256

    page: dict[str, Any] = {
        "url": response.hops[-1],
        "source_url": url,
        "source_type": "web",
        "status_code": response.status,
        "content_type": response.content_type,
        "bytes": len(response.body),
        "sha256": sha256(response.body).hexdigest(),
        "redirects": response.hops[:-1],
    }
    if 300 <= response.status < 400 and "location" in response.headers:
        page["location"] = response.headers["location"]
    return page | content(response, output_format)


def content(response: Response, output_format: str) -> dict[str, Any]:
    """Return the body in the form for its content type."""
    kind = response.content_type
    if kind in ("text/html", "application/xhtml+xml"):
        from html_text import convert, title_of

        text = response.text()
        shown = text if output_format == "html" else convert(text, markdown=output_format == "markdown")
        return {"title": title_of(text), "text": shown}
    if matches(kind, "application/json") or kind.endswith("+json"):
        try:
            value = response.json()
        except ValueError as error:
            raise Final(f"the response has a JSON content type, but is not JSON: {str(error)[:200]}") from error
        return {"text": response.text(), "json": value}
    if matches(kind, "text/*") or kind.endswith(("/xml", "+xml")) or kind in ("", "application/javascript"):
        return {"text": response.text()}
    from base64 import b64encode

    return {"body_base64": b64encode(response.body).decode("ascii")}


def encoded(body: Any) -> bytes:
    return (body if isinstance(body, str) else json.dumps({} if body is None else body)).encode("utf-8", "replace")


def matches(kind: str, expected: str) -> bool:
    """Return True if the content type matches; `text/*` matches every text type."""
    return kind.startswith(expected[:-1]) if expected.endswith("/*") else kind == expected.lower()


def one_of(value: Any, allowed: tuple[str, ...], name: str, failure: type[Failed]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise failure(f"{name} must be one of {', '.join(allowed)}, not {json.dumps(value)[:80]}")
    return value


def texts(entries: list[Any], name: str) -> list[str]:
    if not all(isinstance(entry, str) for entry in entries):
        raise Misconfigured(f"{name} must be a list of strings")
    return entries


def header_lines(headers: Any, failure: type[Failed]) -> dict[str, str]:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise failure("headers must map names to strings")
    return {name.title(): value for name, value in headers.items()}  # normalize the case, so that names are unique


if __name__ == "__main__":
    run(handle=handle, health=health)
