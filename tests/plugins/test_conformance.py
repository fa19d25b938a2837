"""Every bundled plugin passes `plugin check --level exemplary`."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from ductile.cli.plugin.devkit import check_plugin
from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, build

FOLDERS = sorted(path.parent for path in PLUGINS.glob("*/manifest.yaml"))


@pytest.fixture(scope="module")
def check_process() -> Iterator[ProcessPoolExecutor]:
    """A separate process for the checks, because they harden their process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_bundled_plugin_reaches_the_level_exemplary(
    folder: Path, home: Home, check_process: ProcessPoolExecutor
) -> None:
    if folder.name == "node-greet" and shutil.which("node") is None:
        pytest.skip("needs node")
    home.copy_plugin(folder)
    copy = home.path / "plugins" / folder.name
    build(copy)
    report = check_process.submit(
        check_plugin, str(copy), None, "exemplary", run_writes=False, plugin_config=None, deadline=None
    ).result()

    assert report["holds"], json.dumps(report, indent=1)


def test_the_readme_links_every_plugin() -> None:
    text = (PLUGINS / "README.md").read_text()

    assert [folder.name for folder in FOLDERS if f"({folder.name}/README.md)" not in text] == []
