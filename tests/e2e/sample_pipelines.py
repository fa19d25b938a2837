"""A configuration with pipelines of all kinds."""

from typing import Any

from tests.e2e.sample_plugins import OK, REQUEST_TO_STATE
from tests.e2e.service import Home

PIPELINES = """
plugins:
  ok: {}
  recorder: {parallelism: 1}
  broken: {}
  one-attempt: {retry: {max_attempts: 1}}
  disabled: {enabled: false}
  notifying: {notify_on_complete: true}
pipelines:
  - name: chain
    on: chain.requested
    execution_mode: synchronous
    steps: [{id: first, uses: ok}, {id: last, uses: recorder}]
  - name: later
    on: later.requested
    steps: [{id: only, uses: ok}]
  - name: joined
    on: joined.requested
    execution_mode: synchronous
    steps:
      - {id: fan, join: true, split: [{id: left, uses: ok}, {id: right, uses: ok}]}
      - {id: last, uses: recorder}
  - name: wide
    on: wide.requested
    execution_mode: synchronous
    steps: [{id: each, foreach: payload.items, uses: ok}]
  - name: fails
    on: fails.requested
    execution_mode: synchronous
    steps: [{id: first, uses: ok}, {id: bad, uses: broken}, {id: never, uses: ok}]
  - name: dies
    on: dies.requested
    execution_mode: synchronous
    steps: [{id: one-attempt, uses: one-attempt}]
  - name: tolerant
    on: tolerant.requested
    execution_mode: synchronous
    steps: [{id: bad, uses: broken, continue: true}, {id: last, uses: ok}]
  - name: bypassed
    on: bypassed.requested
    execution_mode: synchronous
    steps: [{id: first, uses: recorder}, {id: maybe, uses: ok, if: {path: payload.go, op: exists}}]
  - name: skipped
    on: skipped.requested
    execution_mode: synchronous
    steps: [{id: maybe, uses: ok, if: {path: payload.go, op: exists}}]
  - name: skipped-join
    on: skipped-join.requested
    execution_mode: synchronous
    steps:
      - id: fan
        join: true
        split:
          - {id: left, uses: ok, if: {path: payload.go, op: exists}}
          - {id: right, uses: ok, if: {path: payload.go, op: exists}}
  - name: noticed
    on: noticed.requested
    execution_mode: synchronous
    steps: [{id: only, uses: notifying}]
  - name: on-end
    on-hook: job.completed
    steps: [{uses: ok}]
  - name: keeps
    on: keeps.requested
    steps: [{id: only, uses: ok, baggage: {one: payload.blob, two: payload.blob}}]
  - name: idle
    on: idle.requested
    steps: [{id: only, uses: disabled}]
  - name: guarded
    on: guarded.requested
    from_plugin: ok
    if: {path: payload.go, op: exists}
    steps: [{id: only, uses: ok}]
"""


def add_sample_pipelines(home: Home) -> Home:
    """Add the pipelines and their plugins."""
    home.plugin("ok", OK)
    home.plugin("notifying", OK)
    home.plugin("disabled", "#!/bin/sh\nexit 1\n")
    home.plugin("recorder", REQUEST_TO_STATE)
    home.plugin("broken", "#!/bin/sh\ncat >/dev/null\necho not a response\nexit 78\n")
    home.plugin("one-attempt", "#!/bin/sh\ncat >/dev/null\nexit 3\n")
    home.add(PIPELINES)
    return home


def steps(tree: list[dict[str, Any]]) -> list[str]:
    """Return step and status of every job of a tree."""
    return [f"{node.get('step_id', node['plugin'])} {node['status']}" for node in tree]
