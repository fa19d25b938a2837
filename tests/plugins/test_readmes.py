"""The READMEs of the bundled plugins are complete, and their examples are valid."""

import re
from pathlib import Path

import pytest
import yaml

from ductile.plugin.manifest import parse_manifest
from tests.config.conftest import ConfigDir as Configuration
from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS

KEY = "0123456789abcdef" * 2
FOLDERS = sorted(path.parent for path in PLUGINS.glob("*/manifest.yaml"))


def examples(folder: Path) -> list[dict[str, str]]:
    """Return the example configurations by file name. Blocks with a file name belong to one configuration."""
    blocks = re.findall(
        r"(?:^`([a-z]+\.yaml)`[^\n]*:\n\n)?^```yaml\n(.*?)^```",
        (folder / "README.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    named = {name: text for name, text in blocks if name}
    return [named] * bool(named) + [{"config.yaml": text} for name, text in blocks if not name]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_readme_documents_every_name_of_the_manifest(folder: Path) -> None:
    """Commands, configuration keys, events and facts."""
    text = (folder / "README.md").read_text()
    manifest = parse_manifest((folder / "manifest.yaml").read_bytes(), source=folder.name)
    assert manifest.warnings == ()
    emitted = {emission.event for command in manifest.commands.values() for emission in command.values.emit}
    names = {*manifest.commands, *manifest.config_keys.required, *manifest.config_keys.optional}
    names |= {event for event in emitted if "<" not in event} | {rule.fact_type for rule in manifest.fact_outputs}
    assert {name for name in names if f"`{name}" not in text} == set()
    assert all(command.description for command in manifest.commands.values())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_examples_of_a_readme_are_valid_configurations(folder: Path, tmp_path: Path) -> None:
    """`config check` reports no errors."""
    assert examples(folder)
    for number, files in enumerate(examples(folder)):
        home = Home.make(tmp_path / str(number))
        whole = "\n".join(files.values())
        for plugin in {folder.name, *_used(whole)}:
            home.copy_plugin(PLUGINS / plugin)
            if plugin == "c-greet":
                (home.path / "plugins" / plugin / "run").write_text("#!/bin/sh\n")
                (home.path / "plugins" / plugin / "run").chmod(0o700)
        others = {name: text for name, text in files.items() if name != "config.yaml"}
        if secrets := re.findall(r"secret_ref: *(\w+)", whole):  # secrets that the example refers to
            others["tokens.yaml"] = yaml.safe_dump({"tokens": [{"name": name, "key": KEY} for name in secrets]})
        for name, text in others.items():
            home.write(name, text)
        home.add(files.get("config.yaml", "") + f"\ninclude: [{', '.join(others)}]\n" * bool(others))
        if others:
            home.seal()
        assert Configuration(home.path).examine().report.errors == ()


def _used(example: str) -> set[str]:
    """Return the bundled plugins that an example uses."""
    named = set(re.findall(r"^  ([\w-]+):", example, re.MULTILINE)) | set(re.findall(r"uses: *([\w-]+)", example))
    return named & {folder.name for folder in FOLDERS}
