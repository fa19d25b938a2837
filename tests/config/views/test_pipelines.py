"""Compiled pipelines as JSON data."""

from pathlib import Path
from typing import Any

from ductile.config.views.pipelines import pipeline_graph_view, pipelines_view
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of

PIPELINES = """
plugins: {echo: {}}
pipelines:
  - name: all
    on: said
    steps:
      - {id: fan, join: true, split: [{id: left, uses: echo}, {id: right, uses: echo}]}
      - {id: maybe, uses: echo, if: {path: payload.go, op: exists}}
"""


def graph(tmp_path: Path) -> Any:
    home = Home.make(tmp_path / "ductile")
    home.plugin("echo", "#!/bin/sh\n")
    home.write("more.yaml", PIPELINES)
    home.add("include: [more.yaml]\n")
    return snapshot_of(home).config


def test_a_plan_is_shown_as_nodes_and_edges_with_joins_and_switches(tmp_path: Path) -> None:
    view = pipeline_graph_view(graph(tmp_path), "all")

    assert {node["path"]: node["kind"] for node in view["nodes"]} == {
        "left": "uses",
        "right": "uses",
        "fan__join": "join",
        "maybe__switch": "switch",
        "maybe": "uses",
    }
    edges = {(edge["source"], edge["target"]) for edge in view["edges"]}
    assert {("left", "fan__join"), ("right", "fan__join"), ("fan__join", "maybe__switch"), ("maybe", None)} <= edges
    assert {(None, "left"), (None, "right"), ("maybe__switch", "maybe"), ("maybe__switch", None)} <= edges


def test_every_pipeline_is_listed_with_its_trigger(tmp_path: Path) -> None:
    (pipeline,) = pipelines_view(graph(tmp_path))["pipelines"]
    assert (pipeline["name"], pipeline["on"], pipeline["on_hook"], pipeline["jobs"]) == ("all", "said", None, 4)
    assert pipeline["where"].endswith("more.yaml:4")
