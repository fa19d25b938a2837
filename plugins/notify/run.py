#!/usr/bin/env python3
"""Send a message over the configured channel. See README.md."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from channels import Command, Mail, Ntfy, Webhook
from ductile_plugin import Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

SHARED_KEYS = ("channel", "title", "max_chars", "timeout_seconds")


class Message:
    """The text and title to send. `id` is the job id, which is the same for every attempt."""

    def __init__(self, job: Job, config: Mapping[str, Any]) -> None:
        payload = job.payload
        self.id, self.payload = job.id, payload
        max_chars = setting(config, "max_chars", int, 4000, minimum=10)
        self.text = truncated(text_of(payload, "text") or text_of(payload, "message") or as_json(payload), max_chars)
        if not self.text:
            raise Final("nothing to send: the payload is empty")
        title = text_of(payload, "title") or setting(config, "title", str, "") or default_title(job)
        # One line, because it becomes a mail header.
        self.title = truncated(" ".join(title.split()), 200)


def text_of(payload: Mapping[str, Any], key: str) -> str:
    value = payload.get(key)
    return value.strip() if isinstance(value, str) else ""


def as_json(payload: Mapping[str, Any]) -> str:
    return json.dumps(payload, indent=2, ensure_ascii=False) if payload else ""


def default_title(job: Job) -> str:
    """Return plugin, command and status for a job event; otherwise the event type."""
    parts = [text_of(job.payload, key) for key in ("plugin", "command", "status")]
    return f"{parts[0]} {parts[1]}: {parts[2]}" if all(parts) else str(job.event.get("type") or "Ductile")


def truncated(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def handle(job: Job) -> str:
    send = channel(job.config)
    message = Message(job, job.config)
    outcome = send(job, message)
    name = job.config["channel"]
    job.emit("notify.sent", {"channel": name, "title": message.title, "text": message.text})
    return f"sent over {name}: {outcome}"


def health(job: Job) -> str:
    channel(job.config)
    setting(job.config, "max_chars", int, 4000, minimum=10)
    return f"healthy (channel {job.config['channel']})"


def channel(config: Mapping[str, Any]) -> Callable[[Job, Message], str]:
    """Create the configured channel. Raises Misconfigured."""
    channels: dict[str, Any] = {"webhook": Webhook, "ntfy": Ntfy, "smtp": Mail, "command": Command}
    name = setting(config, "channel")
    if name not in channels:
        raise Misconfigured(f"channel must be one of {', '.join(channels)}, not {name!r}")
    only_known(config, (*SHARED_KEYS, *channels[name].KEYS), where=f"channel {name}: ")
    configured: Callable[[Job, Message], str] = channels[name](config)
    return configured


if __name__ == "__main__":
    run(handle=handle, health=health)
