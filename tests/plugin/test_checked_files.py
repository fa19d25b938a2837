"""The check of a plugin's files before each start."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ductile.plugin.checked_files import FileChecker, changes_on_disk
from ductile.plugin.registry import Plugin, discover
from tests.plugin.conftest import MakePlugin


@pytest.fixture
def plugin(root: Path, make_plugin: MakePlugin) -> Plugin:
    """A plugin with a helper file and a folder."""
    folder = make_plugin("sample")
    (folder / "helper.py").write_text("one")
    (folder / "lib").mkdir()
    (folder / "lib" / "inner.py").write_text("two")
    return discover([root]).plugins["sample"]


def _edit_unseen(file: Path) -> None:
    """Change a file and restore its size and modification time."""
    before = file.stat()
    file.write_text(file.read_text().swapcase())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(file: Path) -> None:
    file.with_suffix(".new").write_text("other")
    file.with_suffix(".new").rename(file)


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "helper edited": (lambda folder: (folder / "helper.py").write_text("longer text"), {"helper.py"}),
    "helper edited, times restored": (lambda folder: _edit_unseen(folder / "helper.py"), {"helper.py"}),
    "helper replaced": (lambda folder: _replace(folder / "helper.py"), {"helper.py"}),
    "helper removed": (lambda folder: (folder / "helper.py").unlink(), {"helper.py"}),
    "inner file edited": (lambda folder: _edit_unseen(folder / "lib" / "inner.py"), {"lib/inner.py"}),
    "file added": (lambda folder: (folder / "lib" / "json.py").touch(), {"lib/json.py"}),
    "entrypoint edited": (lambda folder: (folder / "run.sh").write_text("#!/bin/sh\nexit\n"), {"run.sh"}),
    "entrypoint removed": (lambda folder: (folder / "run.sh").unlink(), {"run.sh"}),
    "manifest edited": (lambda folder: _edit_unseen(folder / "manifest.yaml"), {"manifest.yaml"}),
    "manifest removed": (lambda folder: (folder / "manifest.yaml").unlink(), {"manifest.yaml"}),
}


def test_every_change_of_a_file_is_found_and_every_restored_file_is_accepted(plugin: Plugin, tmp_path: Path) -> None:
    """Also one that keeps size and modification time. A restored file has the same bytes, not the same inode."""
    checker, missed = FileChecker(), {}
    shutil.copytree(plugin.folder, tmp_path / "copy", symlinks=True)
    assert not checker.check(plugin).has_drifted
    for what, (change, names) in CHANGES.items():
        change(plugin.folder)
        found = checker.check(plugin)
        if set(found.changed) != names:
            missed[what] = found.changed
        shutil.rmtree(plugin.folder)
        shutil.copytree(tmp_path / "copy", plugin.folder, symlinks=True)
        if checker.check(plugin).has_drifted:
            missed[f"{what}, then restored"] = checker.check(plugin).changed
    assert missed == {}


def test_new_entries_that_no_hash_covers_are_found(plugin: Plugin) -> None:
    """Caches, bytecode, hidden files, virtualenvs, and symlinks out of the folder. Those inside it are covered."""
    folder = plugin.folder
    for name in ("__pycache__/run.pyc", "helper.pyc", ".hidden", "node_modules/left/pad.js", "env/pyvenv.cfg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "inside").symlink_to("helper.py")
    (folder / "outside").symlink_to("/etc/hostname")
    found = FileChecker().check(plugin)
    assert set(found.uncovered) == {"__pycache__", "helper.pyc", ".hidden", "node_modules", "env", "outside"}
    assert set(found.changed) == {"inside", "outside"}


def test_entries_that_were_there_at_the_load_are_no_drift(root: Path, make_plugin: MakePlugin) -> None:
    (make_plugin("sample") / "__pycache__").mkdir()
    plugin = discover([root]).plugins["sample"]
    assert plugin.loaded.uncovered == ("__pycache__",)
    assert not FileChecker().check(plugin).has_drifted


def test_the_fingerprint_is_that_of_the_files_on_disk(plugin: Plugin) -> None:
    checker = FileChecker()
    assert checker.check(plugin).fingerprint == plugin.fingerprint.digest
    (plugin.folder / "helper.py").write_text("three")
    changed = checker.check(plugin).fingerprint
    assert changed not in (None, plugin.fingerprint.digest)
    (plugin.folder / "run.sh").unlink()
    assert checker.check(plugin).fingerprint is None


def test_files_from_the_future_are_not_hashed_before_every_start(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the clock was set back, all files of a plugin can be newer than now."""
    real_time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_time_ns() - 3_600_000_000_000)
    assert plugin.hash_files().state.is_settled
    monkeypatch.undo()
    assert not plugin.hash_files().state.is_settled


def test_changes_on_disk_are_found_from_the_stored_fingerprint(plugin: Plugin) -> None:
    assert changes_on_disk(plugin.fingerprint) == {}
    (plugin.folder / "helper.py").unlink()
    assert changes_on_disk(plugin.fingerprint) == {"helper.py": None}
    shutil.rmtree(plugin.folder)
    assert changes_on_disk(plugin.fingerprint) == {"manifest.yaml": None}
