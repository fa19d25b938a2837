"""Builders for configurations on disk: everything has a default, a test says what it is about."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import frozen

from ductile.config.checks.doctor import Examination, examine
from ductile.config.load.load import Config, load
from ductile.config.seal.approve import Sealed, seal_configuration
from ductile.core.errors import Complaint, ConfigInvalid
from ductile.core.formats import strict_yaml

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


@frozen
class Home:
    """A configuration directory that nothing speaks against."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "config.yaml"

    def write(self, name: str, content: str | bytes, *, mode: int = 0o600) -> Path:
        """`name` holds `content` and is private, as is every folder on the way."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def plugin(self, name: str, *, commands: str = "poll handle", required: str = "", root: str = "plugins") -> Path:
        """A plugin that can be used, in `root`."""
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
        """What is in config.yaml, which holds `text` if there is one. The environment is `env` alone."""
        if text is not None:
            self.write("config.yaml", text)
        return load(self.root, environ=env or {})

    def complaints(self, text: str | None = None, env: Mapping[str, str] | None = None) -> tuple[Complaint, ...]:
        """What a load complains about; it must complain."""
        with pytest.raises(ConfigInvalid) as caught:
            self.load(text, env)
        return caught.value.complaints

    def refusal(self, text: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """The same as one text, with paths relative to the directory."""
        return "\n".join(map(str, self.complaints(text, env))).replace(f"{self.folder}/", "")

    def examine(self, text: str | None = None, env: Mapping[str, str] | None = None) -> Examination:
        return examine(self.load(text, env))

    def lock(self, *, dry_run: bool = False) -> Sealed:
        return seal_configuration(self.root, now=NOW, dry_run=dry_run)

    def contents(self) -> Mapping[str, bytes]:
        """Every file below the directory."""
        found = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}


def spelled(path: str, value: str) -> str:
    """YAML that says `value` at `path` (`plugins.a.schedules[0].every`) and nothing else."""
    lines: list[str] = []
    for depth, part in enumerate(re.findall(r"[^.\[]+|\[0\]", path)):
        lines.append("  " * depth + ("-" if part == "[0]" else f"{part}:"))
    return "\n".join(lines) + f" {value}\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty private directory for a configuration."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o700)
    return Home(folder)


@pytest.fixture
def with_umask(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Sets the umask for the rest of the test."""

    def set_umask(mask: int) -> None:
        before = os.umask(mask)
        request.addfinalizer(lambda: _restore(before))

    def _restore(mask: int) -> None:
        os.umask(mask)

    return set_umask
