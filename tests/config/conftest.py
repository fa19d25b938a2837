"""Builders for configurations on disk. Everything has a default; a test states only what it is about."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import frozen

from ductile.config.checks.examine import Examination, examine
from ductile.config.edit.approve import SealResult, seal_configuration
from ductile.config.load.load import Config, load
from ductile.core.errors import Complaint, ConfigInvalid
from ductile.core.formats import strict_yaml

UNSET = "environment variable GONE is not set; set it in the environment or in a file of environment_vars.include"
NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


@frozen
class ConfigDir:
    """A private configuration directory."""

    path: Path

    @property
    def root(self) -> Path:
        return self.path / "config.yaml"

    def write(self, name: str, content: str | bytes, *, mode: int = 0o600) -> Path:
        """Write a file with `mode`; create missing directories with mode 0700."""
        path = self.path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def plugin(self, name: str, *, commands: str = "poll handle", required: str = "", root: str = "plugins") -> Path:
        """Create a usable plugin in `root`."""
        manifest = {
            "manifest_spec": "ductile.plugin",
            "manifest_version": 1,
            "name": name,
            "version": "0.1.0",
            "protocol": 2,
            "entrypoint": "run.sh",
            "commands": [{"name": command, "type": "write"} for command in commands.split()],
            "config_keys": {"required": required.split()},
        }
        folder = self.write(f"{root}/{name}/manifest.yaml", strict_yaml.dump(manifest)).parent
        self.write(f"{root}/{name}/run.sh", "#!/bin/sh\n", mode=0o700)
        return folder

    def load(self, text: str | None = None, env: Mapping[str, str] | None = None) -> Config:
        """Load config.yaml, after writing `text` to it if given. `env` is the complete environment."""
        if text is not None:
            self.write("config.yaml", text)
        return load(self.root, environ=env or {})

    def complaints(self, text: str | None = None, env: Mapping[str, str] | None = None) -> tuple[Complaint, ...]:
        """Load config.yaml and return the complaints of the expected error."""
        with pytest.raises(ConfigInvalid) as caught:
            self.load(text, env)
        return caught.value.complaints

    def errors(self, text: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Load config.yaml and return the expected errors as text, with paths relative to the directory."""
        return "\n".join(map(str, self.complaints(text, env))).replace(f"{self.path}/", "")

    def examine(self, text: str | None = None, env: Mapping[str, str] | None = None) -> Examination:
        return examine(self.load(text, env))

    def seal(self, *, dry_run: bool = False) -> SealResult:
        return seal_configuration(self.root, now=NOW, dry_run=dry_run)

    def read_files(self) -> Mapping[str, bytes]:
        """Return the content of every file below the directory."""
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}


def yaml_at(path: str, value: str) -> str:
    """Return YAML that contains only `value` at `path`, such as `plugins.a.schedules[0].every`."""
    lines: list[str] = []
    for depth, part in enumerate(re.findall(r"[^.\[]+|\[0\]", path)):
        lines.append("  " * depth + ("-" if part == "[0]" else f"{part}:"))
    return "\n".join(lines) + f" {value}\n"


@pytest.fixture
def config_dir(tmp_path: Path) -> ConfigDir:
    """An empty private directory for a configuration."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o700)
    return ConfigDir(folder)


@pytest.fixture
def with_umask(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Set the umask for the rest of the test."""

    def set_umask(mask: int) -> None:
        before = os.umask(mask)
        request.addfinalizer(lambda: _restore(before))

    def _restore(mask: int) -> None:
        os.umask(mask)

    return set_umask
