"""A bundled plugin in a whole service: copied into a configuration, configured, started."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.service import Home, Service
from tests.plugins.bundled import PLUGINS

Start = Callable[..., Service]


def serve(home: Home, start: Start, name: str, config: Mapping[str, Any] | None = None, **more: Any) -> Service:
    """The service with this plugin; `more` are other keys of `plugins.<name>`."""
    home.copy_plugin(PLUGINS / name)
    home.add(yaml.safe_dump({"plugins": {name: {"config": dict(config or {}), "retry": {"max_attempts": 1}, **more}}}))
    return start()


@contextmanager
def serving_all(folder: Path, name: str, aliases: Mapping[str, Any], more: str = "") -> Iterator[Service]:
    """One service for the tests of a module, with the plugin under several names, each with keys of its own."""
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
    """Type and payload of what a job that succeeded has emitted."""
    assert job["status"] == "succeeded", job
    return [(event["type"], event["payload"]) for event in job["result"].get("events", [])]
