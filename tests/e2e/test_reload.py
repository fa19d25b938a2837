"""Reload by command, stored configuration snapshots, and the `init` command of plugins."""

import json
import sqlite3
from contextlib import closing

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Start

INIT_COUNTER = """#!/usr/bin/python3
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


def inits(home: Home) -> list[str]:
    file = home.path / "inits"
    return file.read_text().splitlines() if file.exists() else []


def test_a_reload_by_command_reports_the_changes(home: Home, start: Start) -> None:
    """A dry run reports the same changes and applies none."""
    home.plugin("one", OK)
    home.plugin("two", OK)
    home.add("plugins: {one: {}, two: {}}\n")
    service = start()
    home.replace("two: {}", "two: {enabled: false}")

    dry_run = ductile(home, "system", "reload", "--dry-run")
    assert dry_run[0] == 0
    assert "planned" in dry_run[1]
    assert service.run("two")["status"] == "succeeded"
    code, out, _ = ductile(home, "system", "reload", "--json")

    answer = json.loads(out)
    assert (code, answer["status"], answer["changed"]) == (0, "ok", True)
    assert answer["changes"]["plugins"]["changed"] == {"two": ["enabled"]}
    assert answer["changes"]["unavailable"] == {"two": "is disabled (enabled: false)"}
    assert service.ask("POST", "/plugin/two/poll")[0] == 409


def test_a_plugin_that_is_on_disk_but_not_loaded_needs_a_reload(home: Home, start: Start) -> None:
    """The error names the command. A plugin that is nowhere does not exist."""
    start()
    home.plugin("late", OK)

    missing = ductile_json(home, "plugin", "run", "late", exit_code=1)
    assert (missing["code"], "ductile system reload" in missing["hint"]) == ("plugin_not_loaded", True)
    assert ductile_json(home, "plugin", "run", "nowhere", exit_code=1)["code"] == "not_found"
    assert ductile(home, "system", "reload").exit_code == 0
    assert ductile(home, "plugin", "run", "late").exit_code == 0


def test_settings_that_need_a_restart_refuse_the_reload(home: Home, start: Start) -> None:
    """The response names each of them."""
    home.replace("log_level: debug", "log_level: debug\n  synchronous: normal")
    service = start()
    home.replace("synchronous: normal", "synchronous: full\n  log_format: text")

    status, answer = service.ask("POST", "/system/reload")

    assert status == 422, answer
    response = json.dumps(answer)
    assert "service.synchronous" in response
    assert "service.log_format" in response


def test_an_invalid_configuration_is_refused_and_changes_nothing(home: Home, start: Start) -> None:
    """The response has the file and the line."""
    home.plugin("one", OK)
    service = start()
    home.replace("max_workers: 4", "max_wurkers: 4")

    status, answer = service.ask("POST", "/system/reload")

    assert (status, answer["code"]) == (422, "config_invalid")
    assert "config.yaml:4" in answer["error"]
    assert service.run("one")["status"] == "succeeded"


def test_jobs_reference_the_configuration_snapshots_of_enqueue_and_start(home: Home, start: Start) -> None:
    """Every start and reload stores a snapshot without secrets. Its hash changes with a secret."""
    home.plugin("one", OK)
    service = start()
    service.run("one")
    home.replace("e2e-token-0123456789abcdef", "e2e-token-of-another-kind")
    assert ductile(home, "system", "reload")[0] == 0

    first, second = home.rows("SELECT * FROM config_snapshots ORDER BY loaded_at")
    (job,) = home.rows(
        "SELECT enqueued_config_snapshot_id AS enqueued, started_config_snapshot_id AS started FROM job_queue"
    )

    assert (first["reason"], second["reason"]) == ("startup", "reload")
    assert first["config_hash"] != second["config_hash"]
    assert job == {"enqueued": first["id"], "started": first["id"]}
    assert "e2e-token" not in str(first) + str(second)
    (use,) = json.loads(second["secret_fingerprints"])
    assert use.pop("fingerprint").startswith("secretfp_blake3:")
    assert use == {"purpose": "api.auth.tokens[0].token", "source": "config", "present": True}


def test_init_runs_once_for_each_manifest_and_configuration(home: Home, start: Start) -> None:
    """It does not run at a restart without changes. Its state updates are available to jobs."""
    home.plugin("initialised", INIT_COUNTER, commands=COMMANDS)
    home.add("plugins: {initialised: {config: {name: first}}}\n")
    service = start()
    assert service.run("initialised")["result"]["result"] == "True"
    service.stop()
    service = start()
    service.run("initialised")
    assert inits(home) == ["first"]
    home.replace("name: first", "name: second")
    assert ductile(home, "system", "reload")[0] == 0
    service.run("initialised")

    assert inits(home) == ["first", "second"]


def test_a_plugin_whose_init_fails_is_unhealthy_until_init_succeeds(home: Home, start: Start) -> None:
    """Requests are refused with the reason. After a reload that fixes the configuration, the plugin runs."""
    home.plugin("initialised", INIT_COUNTER, commands=COMMANDS)
    home.add("plugins: {initialised: {config: {broken: true}}}\n")
    service = start()
    service.wait_for_log("init failed", plugin="initialised")

    status, answer = service.ask("POST", "/plugin/initialised/poll")
    assert (status, answer["error"]) == (409, "plugin initialised is unhealthy: init failed: no such account")
    for arguments in (("show", "initialised"), ("list",)):
        assert "init failed: no such account" in ductile(home, "plugin", *arguments)[1]
    code, out, _ = ductile(home, "system", "status")
    assert (code, "initialised: init failed: no such account" in out) == (1, True)
    home.replace("broken: true", "broken: false")
    assert ductile(home, "system", "reload")[0] == 0
    service.wait_for_log("initialised", plugin="initialised")

    assert service.run("initialised")["status"] == "succeeded"
    assert ductile(home, "system", "status")[0] == 0
    kinds = [row["kind"] for row in home.rows("SELECT kind FROM journal WHERE kind LIKE 'plugin.%' ORDER BY seq")]
    assert kinds == ["plugin.unhealthy", "plugin.initialised"]


WAITING = """#!/bin/sh
cat >/dev/null
while [ ! -e go ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done", "events": [{"type": "made"}]}'
"""


def test_an_event_for_a_plugin_that_a_reload_disabled_is_a_dead_job(home: Home, start: Start) -> None:
    """The tree ends with the reason."""
    home.plugin("early", WAITING)
    home.plugin("late", OK)
    home.add("plugins: {early: {}, late: {}}\nroutes: [{from: early, event_type: made, to: late}]\n")
    service = start()
    job_id = service.post("early")
    while service.job(job_id)["status"] != "running":
        pass
    home.replace("late: {}", "late: {enabled: false}")
    assert ductile(home, "system", "reload")[0] == 0
    (home.path / "go").touch()

    status, tree = service.ask("GET", f"/job/{job_id}/tree?wait=25s")

    assert status == 200
    assert [(node["plugin"], node["status"]) for node in tree] == [("early", "succeeded"), ("late", "dead")]
    assert tree[1]["last_error"] == "plugin late is disabled (enabled: false)"


def test_a_corrupt_schedule_row_does_not_fail_a_reload(home: Home, start: Start) -> None:
    """The service keeps running."""
    home.plugin("one", OK)
    home.add("plugins: {one: {schedules: [{id: a, every: 1h}]}}\n")
    service = start()
    service.wait_for(
        lambda _: home.rows("SELECT 1 FROM schedule_entries WHERE next_run_at > ''"),
        "the first evaluation of the schedule",
    )
    with closing(sqlite3.connect(home.ledger, timeout=30)) as db, db:
        db.execute("UPDATE schedule_entries SET last_fired_at = 'x'")

    home.replace("every: 1h", "every: 2h")
    code, out, _ = ductile(home, "system", "reload", "--json")

    assert (code, json.loads(out)["status"]) == (0, "ok")
    assert service.run("one")["status"] == "succeeded"
