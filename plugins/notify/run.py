#!/usr/bin/env python3
"""The notify plugin: a message in, sent over the one channel that is configured. See README.md."""

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
    """What is to be said. `id` is that of the job: the same for every attempt."""

    def __init__(self, job: Job, config: Mapping[str, Any]) -> None:
        payload = job.payload
        self.id, self.payload = job.id, payload
        most = setting(config, "max_chars", int, 4000, least=10)
        self.text = shortened(said(payload, "text") or said(payload, "message") or as_json(payload), most)
        if not self.text:
            raise Final("there is nothing to say: the payload has neither text nor message")
        title = said(payload, "title") or setting(config, "title", str, "") or default_title(job)
        # One line: it becomes a header of a mail.
        self.title = shortened(" ".join(title.split()), 200)


def said(payload: Mapping[str, Any], key: str) -> str:
    value = payload.get(key)
    return value.strip() if isinstance(value, str) else ""


def as_json(payload: Mapping[str, Any]) -> str:
    return json.dumps(payload, indent=2, ensure_ascii=False) if payload else ""


def default_title(job: Job) -> str:
    """For the end of a job, what ended and how; otherwise the type of the event."""
    parts = [said(job.payload, key) for key in ("plugin", "command", "status")]
    return f"{parts[0]} {parts[1]}: {parts[2]}" if all(parts) else str(job.event.get("type") or "Ductile")


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def handle(job: Job) -> str:
    send = channel(job.config)
    message = Message(job, job.config)
    outcome = send(job, message)
    name = job.config["channel"]
    job.emit("notify.sent", {"channel": name, "title": message.title, "text": message.text})
    return f"sent over {name}: {outcome}"


def health(job: Job) -> str:
    channel(job.config)
    setting(job.config, "max_chars", int, 4000, least=10)
    return f"notify is well, channel {job.config['channel']}"


def channel(config: Mapping[str, Any]) -> Callable[[Job, Message], str]:
    """The way messages go, its configuration checked."""
    ways: dict[str, Any] = {"webhook": Webhook, "ntfy": Ntfy, "smtp": Mail, "command": Command}
    name = setting(config, "channel")
    if name not in ways:
        raise Misconfigured(f"channel must be one of {', '.join(ways)}, not {name!r}")
    only_known(config, (*SHARED_KEYS, *ways[name].KEYS), where=f"channel {name}: ")
    way: Callable[[Job, Message], str] = ways[name](config)
    return way


if __name__ == "__main__":
    run(handle=handle, health=health)
