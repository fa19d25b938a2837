"""Builders for plugins on disk, with a default for everything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ductile.core.formats import strict_yaml

MANIFEST: dict[str, Any] = {
    "manifest_spec": "ductile.plugin",
    "manifest_version": 1,
    "name": "sample",
    "version": "0.1.0",
    "protocol": 2,
    "entrypoint": "run.sh",
    "commands": [{"name": "poll", "type": "read"}],
}

MakePlugin = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A plugin root without findings."""
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def make_plugin(root: Path) -> MakePlugin:
    """Create a plugin folder and return it. Keywords replace manifest values; None removes one."""

    def make(where: str | Path = "sample", *, script: bytes = b"#!/bin/sh\n", **changes: Any) -> Path:
        folder = root / where
        folder.mkdir(parents=True)
        manifest = {**MANIFEST, "name": folder.name, **changes}
        manifest = {key: value for key, value in manifest.items() if value is not None}
        (folder / "manifest.yaml").write_text(strict_yaml.dump(manifest))
        entrypoint = folder / str(manifest.get("entrypoint", "run.sh"))
        entrypoint.parent.mkdir(parents=True, exist_ok=True)
        entrypoint.write_bytes(script)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path == entrypoint else 0o644)
        return folder

    return make
