"""The examples in docs/pipelines.md cover the whole language and pass their test cases."""

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
EXAMPLES = [
    (example, cases) for example, cases in zip(BLOCKS, [*BLOCKS[1:], ""], strict=True) if "pipelines:" in example
]
"""Each example with its cases, which are in the next block."""
INSTANCE = "instances: [{name: lab, base_url: 'https://lab', ingress_path: /i, secret_ref: t, allow: [backup.ready]}]\n"
TOKENS = "tokens: [{name: t, key: 0123456789012345678901234}]\n"


def names(example: str) -> list[str]:
    return [pipeline["name"] for pipeline in yaml.load(example, yaml.BaseLoader)["pipelines"]]


def words(node: Any) -> Iterator[str]:
    """Yield every key and every operator."""
    if isinstance(node, dict):
        yield from node
        yield from (node["op"],) if "op" in node else ()
        for value in node.values():
            yield from words(value)
    elif isinstance(node, list):
        for value in node:
            yield from words(value)


@pytest.mark.parametrize(("example", "cases"), EXAMPLES, ids=["+".join(names(example)) for example, _ in EXAMPLES])
def test_an_example_passes_its_cases(run: Run, tmp_path: Path, example: str, cases: str) -> None:
    """Every pipeline has a case, and `ductile pipeline test` succeeds."""
    home = Home.make(tmp_path / "ductile")
    aliases = set(re.findall(r"^  (\w+): {uses:", example, re.MULTILINE))
    for plugin in set(re.findall(r"(?:uses|from_plugin): (\w+)", example)) - aliases:
        home.plugin(plugin, "#!/bin/sh\n", commands="handle: {}, poll: {}, send: {}")
    home.write("tokens.yaml", TOKENS)
    home.add(f"include: [tokens.yaml]\n{INSTANCE}{example}")
    home.seal()
    assert run("config", "check", "--config", home.path).exit_code == 0
    (tmp_path / "cases.yaml").write_text(cases)

    tested = run("pipeline", "test", tmp_path / "cases.yaml", "--config", home.path)

    assert tested.exit_code == 0, tested.stdout + tested.stderr
    assert {case["pipeline"] for case in yaml.safe_load(cases)["cases"]} == set(names(example))


def test_every_key_and_operator_is_in_an_example() -> None:
    keys = {key.metadata.get(YAML_NAME, key.name) for kind in (Pipeline, Step, RelayStep) for key in attrs.fields(kind)}
    shown = {word for example, _ in EXAMPLES for word in words(yaml.load(example, yaml.BaseLoader)["pipelines"])}

    assert {*keys, *OPERATORS, "all", "any", "not", "path", "op", "value"} - shown == set()
