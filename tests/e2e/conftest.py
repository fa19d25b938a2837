"""Fixtures that start services and kill them at the end of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.sample_plugins import BlockingPlugin
from tests.e2e.service import Home, Service


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Make a configuration directory with an API on a free port and no plugins."""
    return Home.make(tmp_path / "ductile")


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., Service]]:
    """Return a function that starts the service of `home`. Running services are killed at the end."""
    started: list[Service] = []

    def start_service(**options: object) -> Service:
        service = home.launch(**options)  # type: ignore[arg-type]
        started.append(service)
        service.wait_until_ready()
        return service

    yield start_service
    for service in started:
        if service.process.poll() is None:
            service.kill()


@pytest.fixture
def blocking(home: Home) -> Iterator[BlockingPlugin]:
    """Add a plugin to `home` whose jobs wait until the test releases them."""
    plugin = BlockingPlugin.make(home)
    yield plugin
    plugin.close()
