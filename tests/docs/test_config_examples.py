"""The configuration examples in the documentation are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Run, run
from tests.e2e.service import Home

__all__ = ["run"]

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(
    r"(?<! -->\n)^```yaml\n((?:plugins|webhooks|routes|service|api):\n.*?)^```", re.MULTILINE | re.DOTALL
)
EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    if page.name != "pipelines.md"  # tested by test_pipeline_examples.py
    for number, text in enumerate(BLOCK.findall(page.read_text()))
]
KEY = "whsec_" + "0123456789abcdef" * 2


def values(node: Any, *keys: str) -> set[str]:
    """Return the string values of these keys at any depth."""
    if isinstance(node, list):
        return {value for member in node for value in values(member, *keys)}
    if not isinstance(node, dict):
        return set()
    own = [value for key, value in node.items() if key in keys]
    texts = {text for value in own for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)}
    return texts | {value for member in node.values() for value in values(member, *keys)}


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_configuration_example_is_valid(run: Run, tmp_path: Path, text: str) -> None:
    """Plugins and secrets that it refers to are added."""
    shown = yaml.load(text, yaml.BaseLoader)
    entries = shown.get("plugins") or {}
    aliases = {name for name, entry in entries.items() if "uses" in entry}
    home = Home.make(tmp_path / "ductile")
    for plugin in ({*entries, *values(shown, "plugin", "uses", "from", "to")} - aliases) | {"notify"}:
        home.plugin(plugin, "#!/bin/sh\n", commands="handle: {}, poll: {}, health: {}")
    tokens = [{"name": name, "key": KEY} for name in sorted(values(shown, "secret_ref"))]
    home.write("tokens.yaml", yaml.safe_dump({"tokens": tokens}))
    home.add(f"include: [tokens.yaml]\n{text}")
    home.seal()

    checked = run("config", "check", "--config", home.path)

    assert checked.exit_code == 0, checked.stdout + checked.stderr


def test_the_pages_have_enough_examples() -> None:
    """For webhooks of every provider, schedules and aliases."""
    assert len(EXAMPLES) >= 7
