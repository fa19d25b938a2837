"""The topology, computed from manifests, routes and the first steps of pipelines."""

from pathlib import Path
from typing import Any

import pytest

from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.config.snapshot import Snapshot, build_snapshot
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
    return build_snapshot(examine(load(home.path / "config.yaml")), {})


def test_a_signal_has_its_producers_and_consumers(snapshot: Snapshot) -> None:
    """Each is listed once."""
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
    """A disabled plugin is listed as inactive."""
    plugins: dict[str, Any] = {plugin["name"]: plugin for plugin in topology(snapshot)["plugins"]}
    assert plugins["source"]["outputs"] == [{"signal": "found", "command": "poll"}]
    assert {item["signal"] for item in plugins["sink"]["inputs"]} == {"found", "other", "job.failed"}
    assert [name for name, plugin in plugins.items() if not plugin["active"]] == ["off"]


@pytest.mark.parametrize(
    ("pipeline", "steps"), [("plain", ["a"]), ("gated", ["a", "b"]), ("wide", ["l", "r"]), ("hooked", ["a"])]
)
def test_first_steps_include_every_outcome_of_a_switch(snapshot: Snapshot, pipeline: str, steps: list[str]) -> None:
    """The step with an `if`, and the step that follows if it is false."""
    found = first_nodes(snapshot.plans.require(pipeline))
    assert [node.path.rpartition("/")[2] for node in found] == steps
