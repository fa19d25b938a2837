"""What `config check` calls an error and the service tolerates on purpose: it is told wherever it is taken."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home, Service
from tests.e2e.test_reload import OK, change, ductile

Start = Callable[..., Service]
BROKEN = """\
plugins: {one: {}}
pipelines:
  - {name: unknown-plugin, on: start, steps: [{id: first, uses: ecko}]}
  - {name: unknown-command, on: begin, steps: [{id: first, uses: one.foo}]}
"""
MESSAGES = ["plugin ecko is in none of the plugin_roots", "plugin one has no command 'foo'; it has poll, handle"]


@pytest.fixture
def broken(home: Home) -> Home:
    """Two steps that cannot run: one has no plugin, the other no command."""
    home.plugin("one", OK)
    home.add("plugins: {one: {}}\n")
    home.seal()
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("plugins: {one: {}}\n", BROKEN))
    return home


def told(service: Service) -> list[dict[str, Any]]:
    return [line for line in service.lines if line["component"] == "config" and line["level"] == "warn"]


def test_a_start_logs_each_error_and_what_is_not_sealed(broken: Home, start: Start) -> None:
    """Component, place and words, as `config check` has them."""
    service = start()

    code, out, _ = ductile(broken, "config", "check", "--json")
    assert code == 78
    found = json.loads(out)
    assert [one["message"] for one in found["errors"]] == MESSAGES
    for one in (*found["errors"], *found["warnings"]):
        line = service.wait_for_log(one["message"], component="config", level="warn", line=one["line"])
        assert line["file"] == one["file"]


def test_a_reload_says_what_does_not_work_in_text_json_and_log(broken: Home, start: Start) -> None:
    """So does the plan of one; a caller need not know `config check` to hear of it."""
    whole = (broken.path / "config.yaml").read_text()
    broken.write("config.yaml", whole.replace(BROKEN, "plugins: {one: {}}\n"))
    service = start()
    assert told(service) == []
    broken.write("config.yaml", whole)

    planned = json.loads(ductile(broken, "config", "plan", "--json")[1])
    lines = ductile(broken, "system", "reload")[1]
    code, out, _ = ductile(broken, "system", "reload", "--json")

    assert code == 0
    for answer in (planned, json.loads(out)):
        assert [one["message"] for one in answer["errors"]] == MESSAGES
        assert [one["category"] for one in answer["warnings"]] == ["integrity"]
    assert "2 errors, 1 warning; run `ductile config check`" in lines
    assert f"error: {broken.path}/config.yaml:" in lines
    service.wait_for_log(MESSAGES[0], component="config", level="warn")


def test_a_plan_without_a_service_and_a_rehearsed_start_say_it_too(broken: Home) -> None:
    """Neither needs a running service."""
    for command in (("config", "plan"), ("system", "start", "--dry-run")):
        code, out, _ = ductile(broken, *command, "--json")
        assert (code, [one["message"] for one in json.loads(out)["errors"]]) == (0, MESSAGES)
        assert "2 errors, 1 warning; run `ductile config check`" in ductile(broken, *command)[1]


def test_a_step_whose_plugin_never_was_there_does_not_claim_that_it_is_gone(broken: Home, start: Start) -> None:
    """The job says what the doctor says."""
    service = start()

    status, answer = service.ask("POST", "/pipeline/unknown-plugin?async=true")

    assert status == 409
    assert answer["error"].endswith("cannot start: first: plugin ecko is in none of the plugin_roots")


def test_where_the_operator_wants_it_errors_refuse_a_reload(broken: Home, start: Start) -> None:
    """`validate_config_on_boot` is the switch; without it they are tolerated."""
    start()
    change(broken, "  max_workers: 4", "  max_workers: 4\n  admission: {validate_config_on_boot: true}")

    code, out, _ = ductile(broken, "system", "reload", "--json")

    assert (code, json.loads(out)["code"]) == (78, "config_invalid")


# ── plugins without an entry ────────────────────────────────────────────────────────────────────────────────────────


def test_a_plugin_that_came_without_an_entry_is_named(home: Home, start: Start) -> None:
    """It can be run from now on, and the seal does not know it."""
    home.plugin("one", OK)
    home.add("plugins: {one: {}}\n")
    home.seal()
    service = start()
    home.plugin("extra", OK)

    planned = ductile(home, "config", "plan")[1]
    answer = json.loads(ductile(home, "system", "reload", "--json")[1])

    assert [line.split()[:4] for line in planned.splitlines() if "extra" in line] == [["+", "plugins", "extra", "not"]]
    assert "not sealed" in planned
    assert (answer["status"], answer["changes"]["plugins"]["added"]) == ("reloaded", ["extra"])
    assert answer["changes"]["unsealed"] == ["extra"]
    assert service.run("extra")["status"] == "succeeded"


def test_without_a_service_the_plan_names_it_too(home: Home, start: Start) -> None:
    """Compared with the configuration that the ledger saw last."""
    home.plugin("one", OK)
    home.seal()
    start().stop()
    home.plugin("extra", OK)

    planned = json.loads(ductile(home, "config", "plan", "--json")[1])

    assert planned["changes"]["plugins"]["added"] == ["extra"]
    assert planned["changes"]["unsealed"] == ["extra"]


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def webhooks_at(home: Home, port: int) -> None:
    home.write("tokens.yaml", "tokens: [{name: line, key: a secret of the tests 0123456789}]\n")
    endpoint = "{path: /hook, plugin: one, secret_ref: line, signature_header: X-Signature-256}"
    home.add(f"include: [tokens.yaml]\nwebhooks: {{listen: '127.0.0.1:{port}', endpoints: [{endpoint}]}}\n")
    home.seal()


@pytest.mark.parametrize("door", ["api", "webhooks"])
def test_a_rehearsed_start_finds_an_address_taken_as_the_start_does(home: Home, door: str) -> None:
    """The same code, the same exit code, the same address."""
    home.plugin("one", OK)
    with taken_port() as port:
        if door == "api":
            change(home, "127.0.0.1:0", f"127.0.0.1:{port}")
        else:
            webhooks_at(home, port)
        rehearsed = ductile(home, "system", "start", "--dry-run", "--json")
        real = ductile(home, "system", "start", "--json")

    assert (rehearsed[0], real[0]) == (75, 75)
    assert json.loads(rehearsed[1]) == json.loads(real[1].splitlines()[-1])
    assert f"127.0.0.1:{port}" in json.loads(rehearsed[1])["error"]


def test_a_rehearsed_start_finds_what_lies_where_the_local_socket_goes(home: Home) -> None:
    """And leaves it there; a socket that nobody answers at is no obstacle."""
    path = home.path / "data" / "ductile.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert ductile(home, "system", "start", "--dry-run")[0] == 0
    assert path.is_socket()
    path.unlink()
    path.write_text("mine")

    assert ductile(home, "system", "start", "--dry-run")[0] == ductile(home, "system", "start")[0] == 1
    assert path.read_text() == "mine"


# ── stdout of a start ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_with_json_every_line_of_a_start_is_one_object(home: Home, log_format: str) -> None:
    """Log lines first, the error last, whatever the configuration says of the log."""
    change(home, "  log_level: debug", f"  log_level: debug\n  log_format: {log_format}")
    with taken_port() as port:
        change(home, "127.0.0.1:0", f"127.0.0.1:{port}")
        code, out, _ = ductile(home, "system", "start", "--json")

    first, *_, last = [json.loads(line) for line in out.splitlines()]
    assert first["message"] == "starting"
    assert (code, last["code"], last["exit_code"]) == (75, "address_in_use", 75)


def test_a_start_that_fails_before_its_log_begins_is_one_object(tmp_path: Path) -> None:
    """There is nothing on stdout but the error."""
    code, out, _ = ductile(Home(tmp_path / "nowhere"), "system", "start", "--json")

    assert (code, json.loads(out)["code"]) == (78, "config_missing")
