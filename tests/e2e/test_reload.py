"""Reload by command, configurations on record, and plugins that want to be prepared."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

from tests.e2e.service import Home, Service

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
COUNTS_INITS = """#!/usr/bin/python3
import json, sys
request = json.load(sys.stdin)
if request["command"] == "init":
    with open("inits", "a") as file:
        file.write(request["config"].get("name", "") + "\\n")
    if request["config"].get("broken"):
        print(json.dumps({"status": "error", "error": "no such account"}))
        sys.exit()
print(json.dumps({"status": "ok", "result": str(request["state"].get("prepared")),
                  "state_updates": {"prepared": True} if request["command"] == "init" else {}}))
"""
COMMANDS = "poll: {}, init: {}"


def ductile(home: Home, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "ductile", *arguments, "--config", str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def change(home: Home, old: str, new: str) -> None:
    text = (home.path / "config.yaml").read_text()
    assert old in text
    home.write("config.yaml", text.replace(old, new))


def inits(home: Home) -> list[str]:
    file = home.path / "inits"
    return file.read_text().splitlines() if file.exists() else []


def test_the_command_waits_for_the_reload_and_says_what_changed(home: Home, start: Start) -> None:
    """Planned first, then done: the same words, and only the second changes anything."""
    home.plugin("one", OK)
    home.plugin("two", OK)
    home.add("plugins: {one: {}, two: {}}\n")
    service = start()
    change(home, "two: {}", "two: {enabled: false}")

    planned = ductile(home, "system", "reload", "--dry-run")
    assert planned[0] == 0
    assert "planned" in planned[1]
    assert service.run("two")["status"] == "succeeded"
    code, out, _ = ductile(home, "system", "reload", "--json")

    answer = json.loads(out)
    assert (code, answer["status"]) == (0, "reloaded")
    assert answer["changes"]["plugins"]["changed"] == {"two": ["enabled"]}
    assert answer["changes"]["unavailable"] == {"two": "is disabled (enabled: false)"}
    assert service.ask("POST", "/plugin/two/poll")[0] == 409


def test_what_only_a_start_can_change_is_refused(home: Home, start: Start) -> None:
    """Nobody believes in a durability that is not there yet."""
    change(home, "log_level: debug", "log_level: debug\n  synchronous: normal")
    service = start()
    change(home, "synchronous: normal", "synchronous: full\n  log_format: text")

    status, answer = service.ask("POST", "/system/reload")

    assert status == 422, answer
    told = json.dumps(answer)
    assert "service.synchronous" in told
    assert "service.log_format" in told


def test_a_configuration_that_cannot_be_used_is_told_and_changes_nothing(home: Home, start: Start) -> None:
    """The caller over HTTP hears the reason with its place."""
    home.plugin("one", OK)
    service = start()
    change(home, "max_workers: 4", "max_wurkers: 4")

    status, answer = service.ask("POST", "/system/reload")

    assert (status, answer["code"]) == (422, "config_invalid")
    assert "config.yaml:4" in answer["error"]
    assert service.run("one")["status"] == "succeeded"


def test_jobs_carry_the_configurations_they_were_asked_for_and_started_under(home: Home, start: Start) -> None:
    """Every start and reload is on record without secrets, with a hash that a new secret changes."""
    home.plugin("one", OK)
    service = start()
    service.run("one")
    change(home, "e2e-token-0123456789abcdef", "e2e-token-of-another-kind")
    assert ductile(home, "system", "reload")[0] == 0

    first, second = home.rows("SELECT * FROM config_snapshots ORDER BY loaded_at")
    (job,) = home.rows("SELECT enqueued_config_snapshot_id AS asked, started_config_snapshot_id AS run FROM job_queue")

    assert (first["reason"], second["reason"]) == ("startup", "reload")
    assert first["config_hash"] != second["config_hash"]
    assert job == {"asked": first["id"], "run": first["id"]}
    assert "e2e-token" not in str(first) + str(second)
    assert list(json.loads(second["secret_fingerprints"])) == ["api.auth.tokens[0].token"]


def test_init_runs_once_for_each_manifest_and_configuration(home: Home, start: Start) -> None:
    """Not again at the next start, but again when its configuration is another; its state is there for the jobs."""
    home.plugin("careful", COUNTS_INITS, commands=COMMANDS)
    home.add("plugins: {careful: {config: {name: first}}}\n")
    service = start()
    assert service.run("careful")["result"]["result"] == "True"
    service.stop()
    service = start()
    service.run("careful")
    assert inits(home) == ["first"]
    change(home, "name: first", "name: second")
    assert ductile(home, "system", "reload")[0] == 0
    service.run("careful")

    assert inits(home) == ["first", "second"]


def test_a_plugin_whose_init_fails_is_unhealthy_until_it_is_put_right(home: Home, start: Start) -> None:
    """Triggers are told why; after a reload that helps, it runs."""
    home.plugin("careful", COUNTS_INITS, commands=COMMANDS)
    home.add("plugins: {careful: {config: {broken: true}}}\n")
    service = start()
    service.wait_for_log("init failed", plugin="careful")

    status, answer = service.ask("POST", "/plugin/careful/poll")
    assert (status, answer["error"]) == (409, "plugin careful is unhealthy: init failed: no such account")
    for arguments in (("show", "careful"), ("list",)):
        assert "init failed: no such account" in ductile(home, "plugin", *arguments)[1]
    code, out, _ = ductile(home, "system", "status")
    assert (code, "careful: init failed: no such account" in out) == (1, True)
    change(home, "broken: true", "broken: false")
    assert ductile(home, "system", "reload")[0] == 0
    service.wait_for_log("initialised", plugin="careful")

    assert service.run("careful")["status"] == "succeeded"
    assert ductile(home, "system", "status")[0] == 0
    kinds = [row["kind"] for row in home.rows("SELECT kind FROM journal WHERE kind LIKE 'plugin.%' ORDER BY seq")]
    assert kinds == ["plugin.unhealthy", "plugin.initialised"]


WAITS = """#!/bin/sh
cat >/dev/null
while [ ! -e go ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done", "events": [{"type": "made"}]}'
"""


def test_a_job_from_before_a_reload_strands_nothing(home: Home, start: Start) -> None:
    """What it asks of a plugin that is gone by then ends with the reason, and so does its tree."""
    home.plugin("early", WAITS)
    home.plugin("late", OK)
    home.add("plugins: {early: {}, late: {}}\nroutes: [{from: early, event_type: made, to: late}]\n")
    service = start()
    job_id = service.post("early")
    while service.job(job_id)["status"] != "running":
        pass
    change(home, "late: {}", "late: {enabled: false}")
    assert ductile(home, "system", "reload")[0] == 0
    (home.path / "go").touch()

    status, tree = service.ask("GET", f"/job/{job_id}/tree?wait=25s")

    assert status == 200
    assert [(node["plugin"], node["status"]) for node in tree] == [("early", "succeeded"), ("late", "dead")]
    assert tree[1]["last_error"] == "plugin late is disabled (enabled: false)"


def test_an_entry_of_a_schedule_that_cannot_be_read_does_not_end_the_service_at_its_reload(
    home: Home, start: Start
) -> None:
    """Nor does any other fault of ours: what runs goes on."""
    home.plugin("one", OK)
    home.add("plugins: {one: {schedules: [{id: a, every: 1h}]}}\n")
    service = start()
    service.wait_for(lambda _: home.rows("SELECT 1 FROM schedule_entries WHERE next_run_at > ''"), "the first look")
    with closing(sqlite3.connect(home.ledger, timeout=30)) as db, db:
        db.execute("UPDATE schedule_entries SET last_fired_at = 'x'")

    change(home, "every: 1h", "every: 2h")
    code, out, _ = ductile(home, "system", "reload", "--json")

    assert (code, json.loads(out)["status"]) == (0, "reloaded")
    assert service.run("one")["status"] == "succeeded"
