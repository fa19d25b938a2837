#!/usr/bin/env python3
"""A minimal plugin in Python. See README.md."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Job, only_known, run, setting


def greeting(job: Job) -> tuple[str, str]:
    only_known(job.config, ("greeting", "name"))
    name = setting(job.config, "name", default="World")
    return name, f"{setting(job.config, 'greeting', default='Hello')}, {name}!"


def poll(job: Job) -> str:
    name, message = greeting(job)
    job.emit("py-greet.greeted", {"message": message, "name": name})
    job.state = {"last_greeting": message}
    return message


def health(job: Job) -> str:
    return f"healthy (greeting: {greeting(job)[1]})"


if __name__ == "__main__":
    run(poll=poll, health=health)
