"""Errors that `config check` finds and the service tolerates: where they are reported."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ductile
from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Service, Start

BROKEN = """\
plugins: {one: {}}
pipelines:
  - {name: unknown-plugin, on: start, steps: [{id: first, uses: ecko}]}
  - {name: unknown-command, on: begin, steps: [{id: first, uses: one.foo}]}
"""
MESSAGES = ["plugin ecko is in none of the plugin_roots", "plugin one has no command 'foo'; it has poll, handle"]


@pytest.fixture
def broken(home: Home) -> Home:
    """Return a configuration with two steps that cannot run: one has no plugin, the other no command."""
    home.plugin("one", OK)
    home.add("plugins: {one: {}}\n")
    home.seal()
    home.replace("plugins: {one: {}}\n", BROKEN)
    return home


def config_warnings(service: Service) -> list[dict[str, Any]]:
    return [line for line in service.lines if line["component"] == "config" and line["level"] == "warn"]


def test_a_start_logs_each_error_and_each_unsealed_file(broken: Home, start: Start) -> None:
    """File, line and message are those of `config check`."""
    service = start()

    code, out, _ = ductile(broken, "config", "check", "--json")
    assert code == 78
    checked = json.loads(out)
    assert [one["message"] for one in checked["errors"]] == MESSAGES
    for one in (*checked["errors"], *checked["warnings"]):
        line = service.wait_for_log(one["message"], component="config", level="warn", line=one["line"])
        assert line["file"] == one["file"]


def test_a_reload_reports_errors_in_text_json_and_log(broken: Home, start: Start) -> None:
    """`config plan` reports the same errors."""
    broken_text = (broken.path / "config.yaml").read_text()
    broken.write("config.yaml", broken_text.replace(BROKEN, "plugins: {one: {}}\n"))
    service = start()
    assert config_warnings(service) == []
    broken.write("config.yaml", broken_text)

    plan = json.loads(ductile(broken, "config", "plan", "--json")[1])
    lines = ductile(broken, "system", "reload")[1]
    code, out, _ = ductile(broken, "system", "reload", "--json")

    assert code == 0
    for answer in (plan, json.loads(out)):
        assert [one["message"] for one in answer["errors"]] == MESSAGES
        assert [one["category"] for one in answer["warnings"]] == ["integrity"]
    assert "2 errors, 1 warning; run `ductile config check`" in lines
    assert f"error: {broken.path}/config.yaml:" in lines
    service.wait_for_log(MESSAGES[0], component="config", level="warn")


def test_a_plan_and_a_dry_start_report_errors_without_a_service(broken: Home) -> None:
    """The exit code is 0."""
    for command in (("config", "plan"), ("system", "start", "--dry-run")):
        code, out, _ = ductile(broken, *command, "--json")
        assert (code, [one["message"] for one in json.loads(out)["errors"]]) == (0, MESSAGES)
        assert "2 errors, 1 warning; run `ductile config check`" in ductile(broken, *command)[1]


def test_a_step_with_an_unknown_plugin_is_refused_with_the_message_of_the_check(broken: Home, start: Start) -> None:
    """The response is 409."""
    service = start()

    status, answer = service.ask("POST", "/pipeline/unknown-plugin?async=true")

    assert status == 409
    assert answer["error"].endswith("cannot start: first: plugin ecko is in none of the plugin_roots")


def test_errors_refuse_a_reload_with_validate_config_on_boot(broken: Home, start: Start) -> None:
    """Without this setting they are tolerated."""
    start()
    broken.replace("  max_workers: 4", "  max_workers: 4\n  admission: {validate_config_on_boot: true}")

    code, out, _ = ductile(broken, "system", "reload", "--json")

    assert (code, json.loads(out)["code"]) == (78, "config_invalid")


def test_a_pipeline_trigger_is_refused_like_a_plugin_trigger_if_the_plugin_cannot_be_used(
    home: Home, start: Start
) -> None:
    """With the same status, code and reason."""
    home.plugin("needy", OK, more="config_keys: {required: [url]}\n")
    home.add("plugins: {needy: {}}\npipelines: [{name: flow, on: x, steps: [{uses: needy}]}]\n")
    service = start()
    answers = [service.ask("POST", path) for path in ("/plugin/needy/handle", "/pipeline/flow?async=true")]
    assert [(status, answer["code"]) for status, answer in answers] == [(409, "plugin_unavailable")] * 2
    assert all("lacks required config: url" in answer["error"] for _, answer in answers)
    assert home.rows("SELECT id FROM job_queue") == []


def test_a_webhook_whose_plugin_declares_no_handle_prevents_a_start(home: Home) -> None:
    """The error names the endpoint, the plugin and its commands."""
    home.plugin("poller", OK, commands="poll: {}")
    home.write("tokens.yaml", "tokens: [{name: hook, key: 0123456789012345678901234}]\n")
    endpoint = "{path: /in, plugin: poller, scheme: github, secret_ref: hook}"
    home.add("include: [tokens.yaml]\nplugins: {poller: {}}\n")
    home.add(f"webhooks: {{listen: '127.0.0.1:0', endpoints: [{endpoint}]}}\n")
    home.seal()
    done = ductile(home, "system", "start", "--dry-run")
    assert done.exit_code == 78
    assert "webhooks.endpoints[0].plugin: plugin poller has no command 'handle'; it has poll" in done.stderr


def test_a_token_whose_scope_file_cannot_be_used_does_not_prevent_a_start(home: Home, start: Start) -> None:
    """It is reported in the log and in the journal."""
    home.plugin("one", OK)
    home.write("scopes.json", '["plugin:ro"]')
    key, hashed = "0123456789012345678901234", f"blake3:{'0' * 64}"
    home.write(
        "tokens.yaml", f"tokens: [{{name: t, key: '{key}', scopes_file: scopes.json, scopes_hash: '{hashed}'}}]\n"
    )
    home.add("include: [tokens.yaml]\nplugins: {one: {}}\n")
    assert ductile(home, "config", "lock").exit_code == 0
    service = start()
    assert service.ask("GET", "/jobs", token=key)[0] == 401
    (row,) = home.rows("SELECT data FROM journal WHERE kind = 'token.refused'")
    assert json.loads(row["data"])["token"] == "t"
    service.wait_for_log("token t cannot authenticate API requests", category="token_scopes", level="warn")


# ── plugins without an entry ────────────────────────────────────────────────────────────────────────────────────────


def test_a_reload_adds_a_new_plugin_without_a_configuration_entry(home: Home, start: Start) -> None:
    """Plan and reload list it as added and as not sealed, and it can run."""
    home.plugin("one", OK)
    home.add("plugins: {one: {}}\n")
    home.seal()
    service = start()
    home.plugin("extra", OK)

    plan = ductile(home, "config", "plan")[1]
    answer = json.loads(ductile(home, "system", "reload", "--json")[1])

    assert [line.split()[:4] for line in plan.splitlines() if "extra" in line] == [["+", "plugins", "extra", "not"]]
    assert "not sealed" in plan
    assert (answer["status"], answer["changes"]["plugins"]["added"]) == ("ok", ["extra"])
    assert answer["changes"]["unsealed"] == ["extra"]
    assert service.run("extra")["status"] == "succeeded"


def test_a_plan_without_a_service_lists_a_new_plugin(home: Home, start: Start) -> None:
    """The plan compares with the last loaded configuration in the ledger."""
    home.plugin("one", OK)
    home.seal()
    start().stop()
    home.plugin("extra", OK)

    plan = json.loads(ductile(home, "config", "plan", "--json")[1])

    assert plan["changes"]["plugins"]["added"] == ["extra"]
    assert plan["changes"]["unsealed"] == ["extra"]


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def occupied_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def add_webhooks(home: Home, port: int) -> None:
    home.write("tokens.yaml", "tokens: [{name: line, key: a secret of the tests 0123456789}]\n")
    endpoint = "{path: /hook, plugin: one, secret_ref: line, signature_header: X-Signature-256}"
    home.add(f"include: [tokens.yaml]\nwebhooks: {{listen: '127.0.0.1:{port}', endpoints: [{endpoint}]}}\n")
    home.seal()


@pytest.mark.parametrize("listener", ["api", "webhooks"])
def test_a_dry_start_fails_on_an_occupied_address_like_a_start(home: Home, listener: str) -> None:
    """Exit code and output are the same."""
    home.plugin("one", OK)
    with occupied_port() as port:
        if listener == "api":
            home.replace("127.0.0.1:0", f"127.0.0.1:{port}")
        else:
            add_webhooks(home, port)
        dry_run = ductile(home, "system", "start", "--dry-run", "--json")
        real = ductile(home, "system", "start", "--json")

    assert (dry_run[0], real[0]) == (75, 75)
    assert json.loads(dry_run[1]) == json.loads(real[1].splitlines()[-1])
    assert f"127.0.0.1:{port}" in json.loads(dry_run[1])["error"]


def test_a_dry_start_fails_on_a_file_at_the_path_of_the_local_socket(home: Home) -> None:
    """The file is not removed. A socket without a listener is no error."""
    path = home.path / "data" / "ductile.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert ductile(home, "system", "start", "--dry-run")[0] == 0
    assert path.is_socket()
    path.unlink()
    path.write_text("kept")

    assert ductile(home, "system", "start", "--dry-run")[0] == ductile(home, "system", "start")[0] == 1
    assert path.read_text() == "kept"


# ── stdout of a start ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_with_json_every_line_of_a_failed_start_is_one_object(home: Home, log_format: str) -> None:
    """Log lines come first and the error last, for every log format."""
    home.replace("  log_level: debug", f"  log_level: debug\n  log_format: {log_format}")
    with occupied_port() as port:
        home.replace("127.0.0.1:0", f"127.0.0.1:{port}")
        code, out, _ = ductile(home, "system", "start", "--json")

    first, *_, last = [json.loads(line) for line in out.splitlines()]
    assert first["message"] == "starting"
    assert (code, last["code"], last["exit_code"]) == (75, "address_in_use", 75)


def test_a_start_that_fails_before_its_log_opens_prints_one_object(tmp_path: Path) -> None:
    """The error is the only line on stdout."""
    code, out, _ = ductile(Home(tmp_path / "missing"), "system", "start", "--json")

    assert (code, json.loads(out)["code"]) == (78, "config_missing")
