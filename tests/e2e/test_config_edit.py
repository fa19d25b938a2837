"""Edits by command while the service runs: it takes them at the next reload, and a plan tells it beforehand."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.e2e.service import Home, Service

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'


def config(home: Home, *args: str) -> Any:
    """What `ductile config ARGS… --json` answers; it must succeed."""
    command = [sys.executable, "-m", "ductile", "config", *args, "--config", str(home.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_running_service_takes_every_kind_of_edit(home: Home, start: Start) -> None:
    """Sealed completely: a reload never asks for `config lock`, and a new token opens what its scopes say."""
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
    assert (status, answer["status"]) == (200, "reloaded"), answer
    assert answer["changes"]["routes"]["added"] == ["one x → two"]
    assert service.ask("GET", "/jobs", token=key)[0] == 200
    assert service.ask("POST", "/system/reload", token=key)[0] == 403


def test_without_a_service_a_plan_compares_with_what_ran_last(home: Home, start: Start) -> None:
    """From the ledger: settings, plugins with other files, and secrets that were replaced."""
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
