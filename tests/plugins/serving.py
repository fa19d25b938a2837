"""A bundled plugin in a whole service: copied into a configuration, configured, started."""

from collections.abc import Callable, Mapping
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


def events_of(job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Type and payload of what a job that succeeded has emitted."""
    assert job["status"] == "succeeded", job
    return [(event["type"], event["payload"]) for event in job["result"].get("events", [])]
