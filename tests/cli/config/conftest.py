"""A demo configuration with an alias and a token, and a function that runs `ductile config` on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Run

Contents = dict[str, bytes]
Config = Callable[..., Answer]


def contents(directory: Path) -> Contents:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.fixture
def configured(run: Run, demo: Path) -> Path:
    """The demo with an alias and a token with scopes."""
    assert run("config", "set", "plugins.copy.uses=echo", "--config", demo).exit_code == 0
    made = run("config", "token", "create", "--name", "deploy", "--scopes", "plugin:rw,jobs:ro", "--config", demo)
    assert made.exit_code == 0
    return demo


@pytest.fixture
def config(run: Run, configured: Path) -> Callable[..., Answer]:
    """Run `ductile config ARGS…` on that configuration."""
    return lambda *args: run("config", *args, "--config", configured)
