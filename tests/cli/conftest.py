"""The command line as a stranger uses it: arguments in; exit code, stdout and stderr out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from ductile.cli import ductile
from ductile.cli.base import output


@frozen
class Answer:
    """What one command did."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `ductile ARGS…` with an empty home and no configuration in the environment."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DUCTILE_CONFIG_DIR", raising=False)

    def run_command(*args: str | Path) -> Answer:
        exit_code = output.run(ductile, [str(arg) for arg in args])
        captured = capsys.readouterr()
        return Answer(exit_code, captured.out, captured.err)

    return run_command


@pytest.fixture
def demo(run: Run, tmp_path: Path) -> Path:
    """The directory of a fresh demo configuration."""
    directory = tmp_path / "demo"
    answer = run("config", "init", "--demo", "--config-dir", directory)
    assert answer.exit_code == 0, answer.stderr
    return directory
