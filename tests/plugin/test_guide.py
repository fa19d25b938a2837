"""The plugin guide is correct: its example works, and it documents every key."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from ductile.plugin import manifest, protocol
from ductile.plugin.protocol import PluginResponse, decode_response, encode_request
from ductile.plugin.registry import Plugin, discover

pytestmark = pytest.mark.process

GUIDE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


@pytest.fixture
def plugin(root: Path) -> Plugin:
    blocks = re.findall(r"```(yaml|python)\n(.*?)```", GUIDE, re.DOTALL)
    folder = root / "disk"
    folder.mkdir()
    (folder / "manifest.yaml").write_text(next(text for kind, text in blocks if kind == "yaml"))
    (folder / "run.py").write_text(next(text for kind, text in blocks if kind == "python"))
    (folder / "run.py").chmod(0o755)
    found = discover([root])
    assert found.rejected == ()
    assert not any(str(root) in str(warning) for warning in found.warnings)
    return found.plugins["disk"]


def run_command(plugin: Plugin, command: str, config: dict[str, Any]) -> PluginResponse:
    request = encode_request(
        job_id="j", command=command, deadline_at=datetime.now(UTC), attempt=1, max_attempts=4, config=config
    )
    run = subprocess.run([plugin.entrypoint], input=request, capture_output=True, check=True)
    response = decode_response(run.stdout)
    assert isinstance(response, PluginResponse), response
    return response


def test_the_plugin_of_the_guide_works(plugin: Plugin, tmp_path: Path) -> None:
    calm = run_command(plugin, "poll", {"path": str(tmp_path), "min_free_percent": 0})
    alarmed = run_command(plugin, "poll", {"path": str(tmp_path), "min_free_percent": 101})
    failed = run_command(plugin, "health", {"path": str(tmp_path / "no")})
    assert (calm.ok, calm.events) == (True, ())
    assert [event.type for event in alarmed.events] == ["disk.low"]
    assert alarmed.state_updates is not None
    assert set(alarmed.state_updates) == {"free_percent"}
    assert (failed.ok, failed.retry) == (False, True)


def test_the_plugin_of_the_guide_declares_its_events_facts_and_keys(plugin: Plugin) -> None:
    assert plugin.manifest.missing_keys({}) == ("path",)
    assert [rule.fact_type for rule in plugin.manifest.facts_of("poll")] == ["disk.snapshot"]
    assert plugin.manifest.commands["poll"].values.emit[0].event == "disk.low"


def test_the_guide_names_every_key_of_a_manifest_and_every_field_of_the_protocol() -> None:
    fields = [field.name for kind in (manifest.Manifest, manifest.Command) for field in attrs.fields(kind)]
    response = [field.name for field in attrs.fields(protocol.PluginResponse)]
    request = ["deadline_at", "job_id", "attempt", "max_attempts", "config", "state", "payload", "context", "event"]
    internal = {"warnings", "ok", "text", "state_json", "notes"}
    missing = [name for name in (*fields, *response, *request) if name not in internal and f"`{name}" not in GUIDE]
    assert missing == []
