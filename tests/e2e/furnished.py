"""A home full of pipelines, and a plugin that waits until the test lets it through."""

import os
from typing import Any

from attrs import define

from tests.e2e.service import Home

ASKS = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": "asked", "state_updates": {"request": request}}))
"""
DOOR = """#!/bin/sh
cat > /dev/null
printf x > here
dd bs=1 count=1 < door > /dev/null 2>&1
echo '{"status": "ok", "result": "let through"}'
"""
PIPELINES = """
plugins:
  ok: {}
  asks: {parallelism: 1}
  broken: {}
  worn: {retry: {max_attempts: 1}}
  off: {enabled: false}
  told: {notify_on_complete: true}
pipelines:
  - name: chain
    on: chain.wanted
    execution_mode: synchronous
    steps: [{id: first, uses: ok}, {id: last, uses: asks}]
  - name: later
    on: later.wanted
    steps: [{id: only, uses: ok}]
  - name: joined
    on: joined.wanted
    execution_mode: synchronous
    steps:
      - {id: fan, join: true, split: [{id: left, uses: ok}, {id: right, uses: ok}]}
      - {id: last, uses: asks}
  - name: wide
    on: wide.wanted
    execution_mode: synchronous
    steps: [{id: each, foreach: payload.items, uses: ok}]
  - name: fails
    on: fails.wanted
    execution_mode: synchronous
    steps: [{id: first, uses: ok}, {id: bad, uses: broken}, {id: never, uses: ok}]
  - name: dies
    on: dies.wanted
    execution_mode: synchronous
    steps: [{id: worn, uses: worn}]
  - name: tolerant
    on: tolerant.wanted
    execution_mode: synchronous
    steps: [{id: bad, uses: broken, continue: true}, {id: last, uses: ok}]
  - name: bypassed
    on: bypassed.wanted
    execution_mode: synchronous
    steps: [{id: first, uses: asks}, {id: maybe, uses: ok, if: {path: payload.go, op: exists}}]
  - name: skipped
    on: skipped.wanted
    execution_mode: synchronous
    steps: [{id: maybe, uses: ok, if: {path: payload.go, op: exists}}]
  - name: skipped-join
    on: skipped-join.wanted
    execution_mode: synchronous
    steps:
      - id: fan
        join: true
        split:
          - {id: left, uses: ok, if: {path: payload.go, op: exists}}
          - {id: right, uses: ok, if: {path: payload.go, op: exists}}
  - name: noticed
    on: noticed.wanted
    execution_mode: synchronous
    steps: [{id: only, uses: told}]
  - name: on-end
    on-hook: job.completed
    steps: [{uses: ok}]
  - name: keeps
    on: keeps.wanted
    steps: [{id: only, uses: ok, baggage: {one: payload.blob, two: payload.blob}}]
  - name: idle
    on: idle.wanted
    steps: [{id: only, uses: off}]
  - name: guarded
    on: guarded.wanted
    from_plugin: ok
    if: {path: payload.go, op: exists}
    steps: [{id: only, uses: ok}]
"""


def furnish(home: Home) -> Home:
    """Plugins and pipelines of all kinds."""
    home.plugin("ok", """#!/bin/sh\ncat >/dev/null\necho '{"status": "ok", "result": "done"}'\n""")
    home.plugin("told", """#!/bin/sh\ncat >/dev/null\necho '{"status": "ok", "result": "done"}'\n""")
    home.plugin("off", "#!/bin/sh\nexit 1\n")
    home.plugin("asks", ASKS)
    home.plugin("broken", "#!/bin/sh\ncat >/dev/null\necho not an answer\nexit 78\n")
    home.plugin("worn", "#!/bin/sh\ncat >/dev/null\nexit 3\n")
    home.add(PIPELINES)
    return home


@define
class Door:
    """A plugin `door` whose every job waits until the test lets it through."""

    _here: int
    _door: int

    @classmethod
    def make(cls, home: Home) -> "Door":
        for name in ("here", "door"):
            os.mkfifo(home.path / name)
        home.plugin("door", DOOR)
        # Both ends are open here, so that nobody waits for the other side to come.
        return cls(*(os.open(home.path / name, os.O_RDWR) for name in ("here", "door")))

    def reached(self) -> None:
        """A job has come to the door."""
        os.read(self._here, 1)

    def let_through(self, jobs: int = 1) -> None:
        os.write(self._door, b"x" * jobs)

    def close(self) -> None:
        os.close(self._here)
        os.close(self._door)


def steps(tree: list[dict[str, Any]]) -> list[str]:
    """Every job of a tree in a few words."""
    return [f"{node.get('step_id', node['plugin'])} {node['status']}" for node in tree]
