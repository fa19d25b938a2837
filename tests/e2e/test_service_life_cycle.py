"""The life cycle of the service: start, reload, stop and fatal errors."""

import json
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Start

SLOW = "#!/bin/sh\ncat >/dev/null\nexec sleep 60\n"


def test_two_paths_of_one_ledger_have_one_lock(home: Home, start: Start, tmp_path: Path) -> None:
    """A service with a symbolic link to the ledger of another service does not start."""
    home.plugin("ok", OK)
    start()
    other = Home.make(tmp_path / "other")
    (other.path / "data").mkdir(mode=0o700)
    (other.path / "data" / "state.db").symlink_to(home.ledger)

    second = other.launch()

    assert second.wait() == 75
    assert any("held by process" in line for line in second.stderr)


def test_queued_jobs_of_a_disabled_plugin_are_dead_with_the_reason(home: Home, start: Start) -> None:
    """This happens at the next start."""
    home.plugin("slow", SLOW)
    home.add("plugins:\n  slow: {parallelism: 1}\n")
    service = start()
    first, waiting = service.post("slow"), service.post("slow")
    service.kill()
    home.replace("{parallelism: 1}", "{enabled: false}")

    again = start()

    for job_id in (first, waiting):
        job = again.job(job_id)
        assert (job["status"], job["last_error"]) == ("dead", "plugin slow is disabled (enabled: false)")


def queue_job_and_break_plugin(home: Home, start: Start) -> str:
    """Kill a service with two jobs of one plugin, make its entrypoint not executable, and return the queued job."""
    home.plugin("slow", SLOW)
    home.add("plugins:\n  slow: {parallelism: 1}\n")
    service = start()
    service.post("slow")
    waiting = service.post("slow")
    service.kill()
    (home.path / "plugins" / "slow" / "run").chmod(0o600)
    return waiting


def test_queued_jobs_of_a_plugin_that_fails_to_load_stay_queued_with_the_reason(home: Home, start: Start) -> None:
    """They run when the plugin is repaired."""
    waiting = queue_job_and_break_plugin(home, start)

    start()

    (row,) = home.rows("SELECT status, blocked_reason FROM job_queue WHERE id = ?", waiting)
    assert row["status"] == "queued"
    assert "plugin slow" in row["blocked_reason"]


def test_a_reload_clears_the_blocked_reason_of_a_repaired_plugin(home: Home, start: Start) -> None:
    """The first job runs, and the second waits for it without a blocked reason."""
    waiting = queue_job_and_break_plugin(home, start)
    again = start()
    (home.path / "plugins" / "slow" / "run").chmod(0o700)

    status, body = again.ask("POST", "/system/reload")

    assert status == 200, body
    assert home.rows("SELECT status, blocked_reason FROM job_queue WHERE id = ?", waiting) == [
        {"status": "queued", "blocked_reason": None}
    ]


def test_an_event_for_a_disabled_plugin_is_a_dead_job_with_the_reason(home: Home, start: Start) -> None:
    """Its tree ends."""
    response = {"status": "ok", "result": "out", "events": [{"type": "made"}]}
    home.plugin("emitter", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(response)}'\n")
    home.plugin("off", OK)
    home.add(
        "plugins:\n  emitter: {}\n  off: {enabled: false}\nroutes:\n  - {from: emitter, event_type: made, to: off}\n"
    )

    parent = start().run("emitter")

    (child,) = home.rows("SELECT status, last_error FROM job_queue WHERE parent_job_id = ?", parent["job_id"])
    assert child == {"status": "dead", "last_error": "plugin off is disabled (enabled: false)"}


def test_sighup_reloads_the_configuration(home: Home, start: Start) -> None:
    """The process and its listeners stay. New plugins can be called."""
    home.plugin("ok", OK)
    service = start()
    assert service.ask("POST", "/plugin/late/poll")[0] == 404
    home.plugin("late", OK)

    service.signal(signal.SIGHUP)

    service.wait_for_log("reloaded")
    assert service.run("late")["status"] == "succeeded"


def test_an_invalid_configuration_is_not_loaded_by_sighup(home: Home, start: Start) -> None:
    """The old one stays, and the log has the reason."""
    home.plugin("ok", OK)
    service = start()
    home.add("nonsense: true\n")

    service.signal(signal.SIGHUP)

    line = service.wait_for_log("not reloaded, the old configuration stays")
    assert "nonsense: unknown key" in line["message"]
    assert service.run("ok")["status"] == "succeeded"


def test_listen_addresses_cannot_change_at_a_reload(home: Home, start: Start) -> None:
    """The log names the setting that needs a restart."""
    service = start()
    home.replace("127.0.0.1:0", "127.0.0.1:1")

    service.signal(signal.SIGHUP)

    assert "api.listen" in service.wait_for_log("not reloaded")["message"]


def test_systemd_is_notified_of_readiness_reload_and_stop(home: Home, start: Start, tmp_path: Path) -> None:
    """READY=1 after the start, RELOADING=1 and READY=1 around a reload, STOPPING=1 before the end."""
    address = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(address))
        notified.settimeout(30)
        service = start(environ={"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "60000000"})
        messages = [notified.recv(4096).decode()]
        while "READY=1" not in messages:
            messages.append(notified.recv(4096).decode())
        service.signal(signal.SIGHUP)
        while not messages[-1].startswith("RELOADING=1\nMONOTONIC_USEC="):
            messages.append(notified.recv(4096).decode())
        assert notified.recv(4096) == b"READY=1"
        service.signal(signal.SIGTERM)
        assert notified.recv(4096) == b"STOPPING=1"
        assert service.wait() == 0
    assert set(messages[:2]) <= {"READY=1", "WATCHDOG=1"}


def test_a_stop_answers_waiting_clients(home: Home, start: Start) -> None:
    """The running job is interrupted and queued again."""
    home.plugin("slow", SLOW)
    home.replace("drain_timeout: 10s", "drain_timeout: 0s")
    service = start()
    job_id = service.post("slow")
    waiting = [sys.executable, "-m", "ductile", "plugin", "run", "slow", "--wait", "--json", "--config", str(home.path)]
    client = subprocess.Popen(waiting, stdout=subprocess.PIPE)
    service.wait_for_log("POST /plugin/slow/poll 202", peer="unix")

    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    client.communicate(timeout=30)
    (row,) = home.rows("SELECT status, attempt, interruptions FROM job_queue WHERE id = ?", job_id)
    assert row == {"status": "queued", "attempt": 2, "interruptions": 1}


def test_an_invalid_timeout_is_a_usage_error(home: Home, start: Start) -> None:
    """The error is found before a request is sent."""
    home.plugin("ok", OK)
    start()
    command = [sys.executable, "-m", "ductile", "plugin", "run", "ok", "--wait", "--timeout", "soon"]

    done = subprocess.run([*command, "--config", str(home.path)], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert home.rows("SELECT * FROM job_queue") == []


def test_a_ledger_that_cannot_be_written_ends_the_service_with_exit_code_1(home: Home, start: Start) -> None:
    """The request that failed is not acknowledged."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    # Every write beyond the first page fails, as on a broken disk.
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))

    status, body = service.ask("POST", "/plugin/ok/poll")

    assert (status, body["code"]) == (503, "ledger_error")
    assert service.wait() == 1
    assert any("write failed" in line for line in service.stderr)
