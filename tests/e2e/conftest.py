"""Whole services for tests, ended when the test is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Home, Service


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A configuration directory with an API on a free port and no plugins."""
    return Home.make(tmp_path / "ductile")


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., Service]]:
    """Start the service of `home`, as often as wanted; whatever still runs at the end is killed."""
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
