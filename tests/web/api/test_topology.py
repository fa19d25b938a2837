"""Who talks to whom: told from manifests, routes and the first steps of pipelines."""

from pathlib import Path
from typing import Any

import pytest

from ductile.config.checks.doctor import examine
from ductile.config.load.load import load
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.web.api.topology import first_nodes, topology
from tests.e2e.service import Home

SETTINGS = """
plugins:
  off: {enabled: false}
routes:
  - {from: source, event_type: found, to: sink}
pipelines:
  - name: plain
    on: found
    steps: [{id: a, uses: sink.poll}, {id: b, uses: source}]
  - name: gated
    on: found
    steps: [{id: a, uses: source, if: {path: payload.go, op: exists}}, {id: b, uses: sink}]
  - name: wide
    on: other
    steps: [{id: fan, split: [{id: l, uses: source}, {id: r, uses: sink}]}]
  - name: hooked
    on-hook: job.failed
    steps: [{id: a, uses: sink}]
"""
EMITS = "poll: {values: {emit: [{event: found, values: [payload.x]}]}}, handle: {}"


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    home = Home.make(tmp_path / "ductile")
    home.plugin("source", "#!/bin/sh\n", commands=EMITS)
    home.plugin("sink", "#!/bin/sh\n")
    home.plugin("off", "#!/bin/sh\n")
    home.add(SETTINGS)
    return take_snapshot(examine(load(home.path / "config.yaml")), {})


def test_a_signal_has_those_who_emit_it_and_those_who_take_it(snapshot: Snapshot) -> None:
    """Each once, however many ways lead there."""
    signals = {signal["name"]: signal for signal in topology(snapshot)["signals"]}
    assert signals["found"] == {
        "name": "found",
        "producers": [{"plugin": "source", "command": "poll"}],
        "consumers": [
            {"plugin": "sink", "command": "handle"},
            {"plugin": "sink", "command": "poll"},
            {"plugin": "source", "command": "handle"},
        ],
    }
    assert signals["job.failed"]["consumers"] == [{"plugin": "sink", "command": "handle"}]


def test_a_plugin_has_its_inputs_and_outputs(snapshot: Snapshot) -> None:
    """One that cannot run is there, but not active."""
    plugins: dict[str, Any] = {plugin["name"]: plugin for plugin in topology(snapshot)["plugins"]}
    assert plugins["source"]["outputs"] == [{"signal": "found", "command": "poll"}]
    assert {one["signal"] for one in plugins["sink"]["inputs"]} == {"found", "other", "job.failed"}
    assert [name for name, plugin in plugins.items() if not plugin["active"]] == ["off"]


@pytest.mark.parametrize(
    ("pipeline", "steps"), [("plain", ["a"]), ("gated", ["a", "b"]), ("wide", ["l", "r"]), ("hooked", ["a"])]
)
def test_a_run_may_begin_with_whatever_its_switches_let_through(
    snapshot: Snapshot, pipeline: str, steps: list[str]
) -> None:
    """The step behind an `if`, and the one that comes instead."""
    found = first_nodes(snapshot.plans.named(pipeline))
    assert [node.path.rpartition("/")[2] for node in found] == steps
