"""The bundled plugins are what an author is told to write: the highest level of `plugin check` holds for each."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, build

FOLDERS = sorted(path.parent for path in PLUGINS.glob("*/manifest.yaml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_bundled_plugin_is_exemplary(folder: Path, home: Home) -> None:
    """Manifest, protocol, robustness, and everything that a reader would copy."""
    if folder.name == "node-greet" and shutil.which("node") is None:
        pytest.skip("needs node")
    home.copy_plugin(folder)
    copy = home.path / "plugins" / folder.name
    build(copy)
    command = [sys.executable, "-m", "ductile", "plugin", "check", str(copy), "--level", "exemplary", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home.path)

    assert done.returncode == 0, json.dumps(json.loads(done.stdout), indent=1)


def test_the_list_of_plugins_is_complete() -> None:
    """plugins/README.md leads to each of them."""
    text = (PLUGINS / "README.md").read_text()

    assert [folder.name for folder in FOLDERS if f"({folder.name}/README.md)" not in text] == []
