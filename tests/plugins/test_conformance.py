"""The bundled plugins are what an author is told to write: the highest level of `plugin check` holds for each."""

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
def bench() -> Iterator[ProcessPoolExecutor]:
    """A process that checks, as `ductile plugin check` is one; it hardens itself, which this one must not."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_bundled_plugin_is_exemplary(folder: Path, home: Home, bench: ProcessPoolExecutor) -> None:
    """Manifest, protocol, robustness, and everything that a reader would copy."""
    if folder.name == "node-greet" and shutil.which("node") is None:
        pytest.skip("needs node")
    home.copy_plugin(folder)
    copy = home.path / "plugins" / folder.name
    build(copy)
    report = bench.submit(
        check_plugin, str(copy), None, "exemplary", run_writes=False, plugin_config=None, deadline=None
    ).result()

    assert report["holds"], json.dumps(report, indent=1)


def test_the_list_of_plugins_is_complete() -> None:
    """plugins/README.md leads to each of them."""
    text = (PLUGINS / "README.md").read_text()

    assert [folder.name for folder in FOLDERS if f"({folder.name}/README.md)" not in text] == []
