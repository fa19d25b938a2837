"""`ductile system status` and `selfcheck`."""

import signal
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ductile.core.instance.lock import instance_lock
from tests.cli.conftest import Run
from tests.cli.system.conftest import A_JOB, CONFIG, SICK, WELL, add_plugin, change, ledger_of

# ── status ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_reports_queue_breakers_runs_and_plugin_health(run: Run, installed: Path) -> None:
    """Health commands are not recorded."""
    answer = run("status", "--config", installed, "--json")

    assert answer.exit_code == 0, answer.stdout
    report = answer.json
    assert report["healthy"]
    assert report["queue"]["queued"] == 0
    assert report["breakers"] == report["last_runs"] == []
    assert [(one["plugin"], one["ok"]) for one in report["plugins"]] == [("echo", True)]
    with closing(sqlite3.connect(ledger_of(installed))) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (0,)


def test_an_unhealthy_plugin_fails_the_status(run: Run, installed: Path) -> None:
    add_plugin(installed, "pump", SICK)

    answer = run("system", "status", "--config", installed)

    assert answer.exit_code == 1
    assert answer.stdout.startswith("System Status: FAILED")
    assert "pump: the pump is dry" in answer.stdout


def test_only_a_configured_plugin_that_cannot_run_fails_the_status(run: Run, installed: Path) -> None:
    """An installed plugin without an entry may lack configuration, such as the base of an alias."""
    add_plugin(installed, "pager", WELL)
    manifest = installed / "plugins" / "pager" / "manifest.yaml"
    manifest.write_text(f"{manifest.read_text()}config_keys: {{required: [channel]}}\n")
    status = ("system", "status", "--config", installed)

    assert run(*status).stdout.startswith("System Status: HEALTHY")
    assert "plugin_unusable" not in run("system", "doctor", "--config", installed).stdout
    (installed / "plugins.yaml").write_text("plugins: {pager: {}}\n")
    assert "plugin_health: pager: lacks required config: channel" in run(*status).stdout


def test_a_stopped_service_is_reported_and_no_failure(run: Run, installed: Path) -> None:
    answer = run("system", "status", "--config", installed)

    assert answer.exit_code == 0
    assert answer.stdout.startswith("System Status: HEALTHY, NOT RUNNING\n")
    assert "next: ductile system start" in answer.stdout
    assert run("system", "status", "--config", installed, "--json").json["running"] is False


def test_a_missing_configuration_is_not_running(run: Run, tmp_path: Path) -> None:
    answer = run("system", "status", "--config", tmp_path / "nowhere", "--json")

    assert (answer.exit_code, answer.json["running"]) == (1, False)


def test_no_health_skips_the_health_commands(run: Run, installed: Path) -> None:
    add_plugin(installed, "pump", SICK)

    report = run("system", "status", "--config", installed, "--no-health", "--json").json

    assert report["healthy"]
    assert report["plugins"] == []


def test_a_health_command_times_out(run: Run, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ductile.ops import health

    monkeypatch.setattr(health, "HEALTH_TIMEOUT", timedelta(milliseconds=200))
    add_plugin(installed, "pump", "#!/bin/sh\nexec sleep 600\n")

    report = run("system", "status", "--config", installed, "--json").json

    (pump,) = [one for one in report["plugins"] if one["plugin"] == "pump"]
    assert not pump["ok"]
    assert pump["detail"] == "timed out after 200ms"


def test_a_health_command_leaves_no_process_running(run: Run, installed: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = WELL.replace("cat >", f"setsid sh -c 'echo $$ >{note}; exec sleep 600' >{note}.out 2>&1 </dev/null &\n"
                          f"while ! test -s {note}; do :; done\ncat >")  # fmt: skip
    add_plugin(installed, "pump", script)

    assert run("system", "status", "--config", installed).exit_code == 0
    assert not Path(f"/proc/{int(note.read_text())}").exists()


def test_strict_mode_does_not_run_the_health_command_of_a_changed_plugin(
    run: Run, installed: Path, tmp_path: Path
) -> None:
    """Neither `status` nor `doctor` starts it."""
    (installed / "config.yaml").write_text(CONFIG + "service: {strict_mode: true}\n")
    assert run("config", "lock", "--config", installed).exit_code == 0
    script = installed / "plugins" / "echo" / "run"
    script.write_text(script.read_text().replace("cat >", f"touch {tmp_path}/started\ncat >"))

    report = run("system", "status", "--config", installed, "--json").json
    findings = run("system", "doctor", "--config", installed, "--json").json["findings"]

    (echo,) = report["plugins"]
    assert not echo["ok"]
    assert echo["detail"].startswith("not run: plugin echo has a different entrypoint than sealed")
    assert [one["advice"] for one in findings if one["name"] == "plugin_unwell"] == ["Run `ductile config check`."]
    assert not (tmp_path / "started").exists()


def test_health_commands_work_with_an_ignored_sigchld(run: Run, installed: Path) -> None:
    """An ignored SIGCHLD is inherited, and the kernel then reaps plugins itself."""
    add_plugin(installed, "pump", WELL)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        answer = run("system", "status", "--config", installed)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert answer.exit_code == 0


def test_a_health_command_runs_in_the_configuration_directory(
    run: Run, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_plugin(installed, "pump", '#!/bin/sh\ncat >/dev/null\nprintf \'{"status": "ok", "result": "%s"}\' "$(pwd)"\n')
    monkeypatch.chdir(tmp_path)

    report = run("system", "status", "--config", installed, "--json").json

    (pump,) = [one for one in report["plugins"] if one["plugin"] == "pump"]
    assert pump["detail"] == str(installed)
    assert Path.cwd() == tmp_path


def test_an_invalid_configuration_degrades_the_status(run: Run, installed: Path) -> None:
    (installed / "config.yaml").write_text("servcie: {}\n")

    report = run("system", "status", "--config", installed, "--json")

    assert report.exit_code == 1
    (check,) = [check for check in report.json["checks"] if check["name"] == "config_load"]
    assert "servcie" in check["detail"]


# ── selfcheck ─────────────────────────────────────────────────────────────────────────────────────────────────────────


A_MESSAGE = (
    "INSERT INTO messages (seq, id, topic, created_at, conversation_id, ordering_key, published_by, body)"
    " VALUES (1, 'm', 'a', '', 'm', 'k', 't', '')"
)
A_DELIVERY = (
    "INSERT INTO deliveries (seq, message_id, topic, lane, ready_at, ordering_key) VALUES (1, 'm', 'a', 'a', '', 'k')"
)
BROKEN = [
    ("trees_counted", (A_JOB, "UPDATE job_queue SET open_jobs = 2, tree_jobs = 2")),
    ("trees_closed", (A_JOB, "UPDATE job_queue SET tree_completed_at = created_at")),
    ("jobs_rooted", (A_JOB, "UPDATE job_queue SET root_job_id = 'other', open_jobs = NULL, tree_jobs = NULL")),
    ("contexts_kept", (A_JOB, "UPDATE job_queue SET event_context_id = 'gone'")),
    ("endings_logged", (A_JOB, "UPDATE job_queue SET status = 'dead', started_at = created_at, lane = NULL,"
                        " completed_at = created_at, open_jobs = 0, tree_completed_at = created_at")),
    ("deliveries_rooted", (A_MESSAGE, A_DELIVERY, "UPDATE deliveries SET topic = 'b', lane = 'b'")),
    ("claims_delivered", (A_MESSAGE, A_DELIVERY, "UPDATE deliveries SET lane = NULL, claim_id = 'none'")),
    ("keys_ordered", (A_MESSAGE, A_DELIVERY, "UPDATE deliveries SET lane = NULL, waits = 1")),
    ("messages_decided", (A_MESSAGE,
                          "INSERT INTO journal (at, kind, message_id) VALUES ('', 'message.published', 'm')")),
    ("follow_ups_kept", (A_MESSAGE, A_DELIVERY,
                         "INSERT INTO claims (id, message_id, topic, worker_group, worker_instance_id, claimed_at,"
                         " status, completed_at, delivery, claimed_by, follow_up_id)"
                         " VALUES ('c', 'm', 'a', 'g', 'i', '', 'completed', '', 1, 'w', 'gone')")),
    ("db_schema", ("DROP INDEX job_queue_lanes",)),
    ("db_schema", ("DROP TRIGGER messages_never_change",)),
    ("db_schema", ("DROP VIEW job_attempts",)),
]  # fmt: skip


def test_selfcheck_passes_while_a_service_runs(run: Run, installed: Path) -> None:
    with instance_lock(installed / "data", ledger_of(installed), now=datetime.now(UTC)):
        answer = run("system", "selfcheck", "--config", installed)

    assert answer.exit_code == 0, answer.stdout
    assert answer.stdout.startswith("Selfcheck: PASS")
    assert "held by process" in answer.stdout


@pytest.mark.parametrize(("invariant", "statements"), BROKEN)
def test_a_violated_invariant_fails_the_selfcheck(
    run: Run, installed: Path, invariant: str, statements: tuple[str, ...]
) -> None:
    change(installed, *statements)

    answer = run("system", "selfcheck", "--config", installed, "--json")

    assert answer.exit_code == 1
    assert invariant in {check["name"] for check in answer.json["checks"] if not check["ok"]}


def test_selfcheck_checks_the_ledger_of_an_invalid_configuration(run: Run, installed: Path) -> None:
    (installed / ".checksums").unlink()
    change(installed, "DROP VIEW job_attempts")

    answer = run("system", "selfcheck", "--config", installed, "--json")

    assert {check["name"] for check in answer.json["checks"] if not check["ok"]} == {"config_load", "db_schema"}


def test_a_damaged_page_fails_the_selfcheck(run: Run, installed: Path) -> None:
    with ledger_of(installed).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)

    answer = run("system", "selfcheck", "--config", installed, "--json")

    assert answer.exit_code == 1
    assert "db_integrity" in {check["name"] for check in answer.json["checks"] if not check["ok"]}
