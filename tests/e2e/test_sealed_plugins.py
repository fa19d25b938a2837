"""A plugin whose files change while the service runs: blocked under strict mode, reported without it."""

import os
from pathlib import Path

import pytest

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.service import Home, Service, Start, poll_until

SCRIPT = """#!/bin/sh
cat >/dev/null
. "$DUCTILE_PLUGIN_DIR/helper.sh"
printf '{"status": "ok", "result": "%s"}' "$WORD"
"""
PRINT_ENVIRONMENT = """#!/bin/sh
cat >/dev/null
printf '{"status": "ok", "result": "%s"}' "$(env | grep ^PYTHON | tr '\\n' ' ')"
"""


@pytest.fixture
def helper(home: Home) -> Path:
    """Add the plugin `hello`, which responds with the word in its helper file. Return that file."""
    home.plugin("hello", SCRIPT)
    home.add("plugins: {hello: {}}\n")
    helper = home.path / "plugins" / "hello" / "helper.sh"
    helper.write_text("WORD=sealed\n")
    helper.chmod(0o600)
    return helper


@pytest.fixture
def strict(home: Home, helper: Path, start: Start) -> Service:
    """A service with `strict_mode` whose files are sealed."""
    home.replace("service:\n", "service:\n  strict_mode: true\n")
    home.seal()
    return start()


def drifts(home: Home, kind: str = "plugin.drifted") -> list[dict[str, object]]:
    return home.rows("SELECT plugin, data FROM journal WHERE kind = ?", kind)


def test_a_changed_plugin_waits_until_its_file_is_restored(home: Home, strict: Service, helper: Path) -> None:
    """No attempt counts, and `job why` names the file with a code."""
    assert strict.run("hello", "poll")["result"]["result"] == "sealed"
    helper.write_text("WORD=changed\n")
    waiting = strict.post("hello", "poll")
    poll_until(lambda: drifts(home))
    later = strict.post("hello", "poll")
    for job_id in (waiting, later):
        reason = ductile_json(home, "job", "why", job_id)["reasons"][0]
        assert (reason["code"], reason["files"]) == ("plugin_changed", ["helper.sh"])
        diagnosis = ductile_json(home, "job", "diagnose", job_id)
        assert diagnosis["since_last_success"]["changes"]["plugin"] == ["files.helper.sh"]
    listed = {one["name"]: one["state"] for one in ductile_json(home, "plugin", "list")["plugins"]}
    assert listed["hello"] == "changed"
    status = ductile_json(home, "system", "status", exit_code=1)
    assert "plugin_changed" in [one["code"] for one in status["reasons"]]
    helper.write_text("WORD=sealed\n")
    for job_id in (waiting, later):
        job = strict.job(job_id, wait="30s")
        assert (job["status"], job["attempt"], job["result"]["result"]) == ("succeeded", 1, "sealed")
    assert (len(drifts(home)), len(drifts(home, "plugin.restored"))) == (1, 1)


def test_a_changed_plugin_runs_once_it_is_sealed_and_reloaded(home: Home, strict: Service, helper: Path) -> None:
    helper.write_text("WORD=approved\n")
    waiting = strict.post("hello", "poll")
    poll_until(lambda: drifts(home))
    home.seal()
    assert strict.ask("POST", "/system/reload")[0] == 200
    assert strict.job(waiting, wait="30s")["result"]["result"] == "approved"


def test_a_planted_bytecode_file_blocks_the_plugin(home: Home, strict: Service, helper: Path) -> None:
    """The seal does not cover it. `config check` reports it as an error."""
    cache = helper.parent / "__pycache__"
    cache.mkdir(mode=0o700)
    (cache / "json.cpython-311.pyc").write_bytes(b"planted")
    waiting = strict.post("hello", "poll")
    poll_until(lambda: drifts(home))
    reason = ductile_json(home, "job", "why", waiting)["reasons"][0]
    assert (reason["code"], reason["files"]) == ("plugin_not_sealed", ["__pycache__"])
    checked = ductile_json(home, "config", "check", "--strict", exit_code=78)
    assert "that the seal does not cover: __pycache__;" in checked["errors"][0]["message"]
    (cache / "json.cpython-311.pyc").unlink()
    cache.rmdir()
    assert strict.job(waiting, wait="30s")["status"] == "succeeded"


def test_a_changed_plugin_runs_with_one_report_without_strict_mode(home: Home, helper: Path, start: Start) -> None:
    """The journal has each change once, and the attempt log the fingerprint of the bytes that ran."""
    service = start()
    first = service.run("hello", "poll")
    helper.write_text("WORD=changed\n")
    second, third = service.run("hello", "poll"), service.run("hello", "poll")
    assert [job["result"]["result"] for job in (first, second, third)] == ["sealed", "changed", "changed"]
    assert len(drifts(home)) == 1
    service.wait_for_log("helper.sh", level="warn", plugin="hello")
    prints = [row["plugin_fingerprint"] for row in home.rows("SELECT plugin_fingerprint FROM job_log ORDER BY seq")]
    assert prints[0] != prints[1] == prints[2]
    assert all(isinstance(text, str) and text.startswith("blake3:") for text in prints)


def test_diagnose_and_replay_name_the_changed_file(home: Home, helper: Path, start: Start) -> None:
    service = start()
    first = service.run("hello", "poll")["job_id"]
    helper.write_text("exit 1\n")
    failed = service.post("hello", "poll")
    poll_until(lambda: home.rows("SELECT id FROM job_log WHERE job_id = ?", failed))
    diagnosis = ductile_json(home, "job", "diagnose", failed)
    assert diagnosis["since_last_success"]["changes"]["plugin"] == ["files.helper.sh"]
    assert "plugin files: helper.sh" in ductile(home, "job", "diagnose", failed).stdout
    replayed = ductile_json(home, "job", "replay", first, "--dry-run")
    assert replayed["changes"]["plugin"] == ["files.helper.sh"]


def test_python_writes_no_bytecode_beside_a_plugin(home: Home, start: Start) -> None:
    """Under strict mode it also reads none."""
    home.plugin("env", PRINT_ENVIRONMENT)
    home.add("plugins: {env: {}}\n")
    home.replace("service:\n", "service:\n  strict_mode: true\n")
    home.seal()
    result = start().run("env", "poll")["result"]["result"]
    names = dict(pair.split("=") for pair in result.split())
    assert names["PYTHONDONTWRITEBYTECODE"] == "1"
    assert not os.path.exists(names["PYTHONPYCACHEPREFIX"])


def test_a_reload_without_strict_mode_unblocks_the_plugin(home: Home, strict: Service, helper: Path) -> None:
    """Its reason is gone although no job of it runs afterwards."""
    helper.write_text("WORD=changed\n")
    waiting = strict.post("hello", "poll")
    poll_until(lambda: drifts(home))
    strict.ask("POST", "/job/" + waiting + "/cancel", {})
    home.replace("  strict_mode: true\n", "")
    home.seal()
    assert strict.ask("POST", "/system/reload")[0] == 200
    poll_until(lambda: not home.rows("SELECT * FROM drifted_plugins"))
    assert ductile_json(home, "system", "status")["verdict"] == "healthy"
