"""Run the command line in the test process: arguments in; exit code, stdout and stderr out."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from attrs import frozen

from ductile.cli import ductile
from ductile.cli.base import output

T = TypeVar("T")


@frozen
class Answer:
    """The result of one command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Run = Callable[..., Answer]


def failures(cases: Iterable[T], check: Callable[[T], None]) -> list[str]:
    """Run `check` for every case and return what failed: one rule is one test that reports every counterexample."""
    found = []
    for case in cases:
        try:
            check(case)
        except Exception as error:
            found.append(f"{case}: {type(error).__name__}: {error}")
    return found


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
    """The directory of a new demo configuration."""
    directory = tmp_path / "demo"
    answer = run("config", "init", "--demo", "--config-dir", directory)
    assert answer.exit_code == 0, answer.stderr
    return directory


def imported_by(*args: str, exit_code: int = 0) -> set[str]:
    """Run `ductile ARGS` in a process of its own and return the modules it imported."""
    script = (
        "import sys; from ductile.cli import ductile; from ductile.cli.base import output;"
        "code = output.run(ductile, sys.argv[1:]);"
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    return set(done.stderr.split())
