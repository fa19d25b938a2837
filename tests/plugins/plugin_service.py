"""Start a service with a bundled plugin."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.service import Home, Service
from tests.plugins.bundled import PLUGINS

Start = Callable[..., Service]


def start_with_plugin(
    home: Home, start: Start, name: str, config: Mapping[str, Any] | None = None, **more: Any
) -> Service:
    """Start a service with one plugin. `more` are other keys of `plugins.<name>`."""
    home.copy_plugin(PLUGINS / name)
    home.add(yaml.safe_dump({"plugins": {name: {"config": dict(config or {}), "retry": {"max_attempts": 1}, **more}}}))
    return start()


@contextmanager
def service_with_aliases(folder: Path, name: str, aliases: Mapping[str, Any], more: str = "") -> Iterator[Service]:
    """Start a service for a test module. Each alias of the plugin has its own keys."""
    home = Home.make(folder / "ductile")
    home.copy_plugin(PLUGINS / name)
    entries = {alias: {"uses": name, "retry": {"max_attempts": 1}, **keys} for alias, keys in aliases.items()}
    if more:
        home.copy_plugin(PLUGINS / "echo")
    home.add(yaml.safe_dump({"plugins": entries}) + more)
    service = home.start()
    try:
        yield service
    finally:
        service.kill()


def events_of(job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return type and payload of the events of a succeeded job."""
    assert job["status"] == "succeeded", job
    return [(event["type"], event["payload"]) for event in job["result"].get("events", [])]
