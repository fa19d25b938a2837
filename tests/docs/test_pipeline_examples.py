"""docs/pipelines.md shows the whole language, and every example runs as its cases say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from ductile.core.formats.yaml_fields import YAML_NAME
from ductile.pipeline.language.dsl import Pipeline, RelayStep, Step
from ductile.pipeline.language.operators import OPERATORS
from tests.cli.conftest import Run, run
from tests.e2e.service import Home

__all__ = ["run"]

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [(shown, cases) for shown, cases in zip(BLOCKS, [*BLOCKS[1:], ""], strict=True) if "pipelines:" in shown]
"""Each example with the block after it."""
INSTANCE = "instances: [{name: lab, base_url: 'https://lab', ingress_path: /i, secret_ref: t, allow: [backup.ready]}]\n"
TOKENS = "tokens: [{name: t, key: 0123456789012345678901234}]\n"


def names(example: str) -> list[str]:
    return [pipeline["name"] for pipeline in yaml.load(example, yaml.BaseLoader)["pipelines"]]


def words(node: Any) -> Iterator[str]:
    """Every key of the YAML, and every operator that is asked."""
    if isinstance(node, dict):
        yield from node
        yield from (node["op"],) if "op" in node else ()
        for value in node.values():
            yield from words(value)
    elif isinstance(node, list):
        for value in node:
            yield from words(value)


@pytest.mark.parametrize(("example", "cases"), EXAMPLES, ids=["+".join(names(example)) for example, _ in EXAMPLES])
def test_an_example_runs_as_its_cases_say(run: Run, tmp_path: Path, example: str, cases: str) -> None:
    """`ductile pipeline test`, in a configuration that has its plugins; no pipeline without a case."""
    home = Home.make(tmp_path / "ductile")
    aliases = set(re.findall(r"^  (\w+): {uses:", example, re.MULTILINE))
    for plugin in set(re.findall(r"(?:uses|from_plugin): (\w+)", example)) - aliases:
        home.plugin(plugin, "#!/bin/sh\n", commands="handle: {}, poll: {}, send: {}")
    home.write("tokens.yaml", TOKENS)
    home.add(f"include: [tokens.yaml]\n{INSTANCE}{example}")
    home.seal()
    assert run("config", "check", "--config", home.path).exit_code == 0
    (tmp_path / "cases.yaml").write_text(cases)

    told = run("pipeline", "test", tmp_path / "cases.yaml", "--config", home.path)

    assert told.exit_code == 0, told.stdout + told.stderr
    assert {case["pipeline"] for case in yaml.safe_load(cases)["cases"]} == set(names(example))


def test_every_word_of_the_language_is_in_an_example() -> None:
    """Keys of pipelines, steps and relays; the parts of a condition; every operator."""
    keys = {key.metadata.get(YAML_NAME, key.name) for kind in (Pipeline, Step, RelayStep) for key in attrs.fields(kind)}
    shown = {word for example, _ in EXAMPLES for word in words(yaml.load(example, yaml.BaseLoader)["pipelines"])}

    assert {*keys, *OPERATORS, "all", "any", "not", "path", "op", "value"} - shown == set()
