"""Configuration edits by command while the service runs, and the plan that shows them before the reload."""

import json
import subprocess
import sys
from typing import Any

from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Start


def config(home: Home, *args: str) -> Any:
    """Run `ductile config ARGS… --json`, check that it succeeds, and return its output."""
    command = [sys.executable, "-m", "ductile", "config", *args, "--config", str(home.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_reload_applies_every_kind_of_edit(home: Home, start: Start) -> None:
    """The edits keep the seal valid. A new token has exactly the scopes that it was given."""
    home.plugin("one", OK)
    home.plugin("two", OK)
    home.add("plugins:\n  one: {}  # the first\n  two: {}\nenvironment_vars: {include: [.env]}\n")
    home.write(".env", "# keys\n")
    home.seal()
    service = start()

    config(home, "set", "plugins.two.enabled=false")
    planned = config(home, "plan")
    assert planned["compared_with"] == "the running service"
    assert planned["changes"]["plugins"]["changed"] == {"two": ["enabled"]}
    config(home, "set", "plugins.two.enabled=true")
    config(home, "route", "add", "--from", "one", "--event", "x", "--to", "two")
    key = config(home, "token", "create", "--name", "deploy", "--scopes", "plugin:rw")["token_key"]
    config(home, "scope", "add", "deploy", "jobs:ro")

    status, answer = service.ask("POST", "/system/reload")
    assert (status, answer["status"]) == (200, "ok"), answer
    assert answer["changes"]["routes"]["added"] == ["one x → two"]
    assert service.ask("GET", "/jobs", token=key)[0] == 200
    assert service.ask("POST", "/system/reload", token=key)[0] == 403


def test_a_plan_without_a_service_compares_with_the_last_loaded_configuration(home: Home, start: Start) -> None:
    """It lists changed settings, plugins with changed files, and replaced secrets."""
    home.plugin("one", OK)
    home.plugin("two", OK)
    home.add("plugins: {one: {}, two: {}}\n")
    home.seal()
    start().stop()
    assert config(home, "plan")["changes"] == {"settings": [], "unavailable": {}, "unsealed": []}

    config(home, "set", "service.log_level=warn")
    config(home, "set", "plugins.two.enabled=false")
    config(home, "set", "api.auth.tokens[0].token=another-token-0123456789")
    script = home.path / "plugins" / "one" / "run"
    script.write_text(OK + "# more\n")

    planned = config(home, "plan")

    assert planned["compared_with"].startswith("the configuration of ")
    assert planned["changes"]["settings"] == ["service.log_level"]
    assert planned["changes"]["plugins"]["changed"] == {"two": ["enabled"], "one": ["files"]}
    assert planned["changes"]["tokens"]["changed"] == {"e2e": ["token"]}
    assert planned["changes"]["unavailable"] == {"two": "is disabled (enabled: false)"}
