"""The life of the service: start, reload, stop, and what keeps it from running twice or for nothing."""

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.service import Home, Service

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
SLOW = "#!/bin/sh\ncat >/dev/null\nexec sleep 60\n"


def test_a_ledger_reached_through_a_link_is_the_same_ledger(home: Home, start: Start, tmp_path: Path) -> None:
    """Two names for one file cannot be served by two services."""
    home.plugin("ok", OK)
    start()
    other = Home.make(tmp_path / "other")
    (other.path / "data").mkdir(mode=0o700)
    (other.path / "data" / "state.db").symlink_to(home.ledger)

    second = other.launch()

    assert second.wait() == 75
    assert any("held by process" in line for line in second.stderr)


def test_waiting_jobs_of_a_disabled_plugin_end_with_the_reason(home: Home, start: Start) -> None:
    """Nothing that was acknowledged waits for ever without a word."""
    home.plugin("slow", SLOW)
    home.add("plugins:\n  slow: {parallelism: 1}\n")
    service = start()
    first, waiting = service.post("slow"), service.post("slow")
    service.kill()
    home.write("config.yaml", (home.path / "config.yaml").read_text().replace("{parallelism: 1}", "{enabled: false}"))

    again = start()

    for job_id in (first, waiting):
        job = again.job(job_id)
        assert (job["status"], job["last_error"]) == ("dead", "plugin slow is disabled (enabled: false)")


def test_waiting_jobs_of_a_plugin_that_fails_to_load_wait_and_say_why(home: Home, start: Start) -> None:
    """What may be put right is not thrown away."""
    home.plugin("slow", SLOW)
    home.add("plugins:\n  slow: {parallelism: 1}\n")
    service = start()
    service.post("slow")
    waiting = service.post("slow")
    service.kill()
    (home.path / "plugins" / "slow" / "run").chmod(0o600)

    start()

    (row,) = home.rows("SELECT status, blocked_reason FROM job_queue WHERE id = ?", waiting)
    assert row["status"] == "queued"
    assert "plugin slow" in row["blocked_reason"]


def test_jobs_of_a_plugin_that_was_put_right_no_longer_say_that_it_cannot_run(home: Home, start: Start) -> None:
    """The first of them runs; what keeps the other is that one, not a fault that is gone."""
    home.plugin("slow", SLOW)
    home.add("plugins:\n  slow: {parallelism: 1}\n")
    service = start()
    service.post("slow")
    waiting = service.post("slow")
    service.kill()
    (home.path / "plugins" / "slow" / "run").chmod(0o600)
    again = start()
    (home.path / "plugins" / "slow" / "run").chmod(0o700)

    status, body = again.ask("POST", "/system/reload")

    assert status == 200, body
    assert home.rows("SELECT status, blocked_reason FROM job_queue WHERE id = ?", waiting) == [
        {"status": "queued", "blocked_reason": None}
    ]


def test_an_event_for_a_disabled_plugin_is_a_dead_job_with_the_reason(home: Home, start: Start) -> None:
    """The tree of a route to nowhere ends."""
    emits = {"status": "ok", "result": "out", "events": [{"type": "made"}]}
    home.plugin("emits", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(emits)}'\n")
    home.plugin("off", OK)
    home.add("plugins:\n  emits: {}\n  off: {enabled: false}\nroutes:\n  - {from: emits, event_type: made, to: off}\n")

    parent = start().run("emits")

    (child,) = home.rows("SELECT status, last_error FROM job_queue WHERE parent_job_id = ?", parent["job_id"])
    assert child == {"status": "dead", "last_error": "plugin off is disabled (enabled: false)"}


def test_sighup_uses_the_configuration_on_disk_for_new_jobs(home: Home, start: Start) -> None:
    """Running jobs, listeners and the process stay; a plugin that is new can be called."""
    home.plugin("ok", OK)
    service = start()
    assert service.ask("POST", "/plugin/late/poll")[0] == 404
    home.plugin("late", OK)

    service.signal(signal.SIGHUP)

    service.wait_for_log("reloaded")
    assert service.run("late")["status"] == "succeeded"


def test_a_configuration_that_cannot_be_used_changes_nothing_at_reload(home: Home, start: Start) -> None:
    """The old one stays, and the log says why."""
    home.plugin("ok", OK)
    service = start()
    home.add("nonsense: true\n")

    service.signal(signal.SIGHUP)

    line = service.wait_for_log("not reloaded, the old configuration stays")
    assert "nonsense: unknown key" in line["message"]
    assert service.run("ok")["status"] == "succeeded"


def test_where_the_service_listens_cannot_change_at_reload(home: Home, start: Start) -> None:
    """A changed address needs a restart, and says so."""
    service = start()
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:0", "127.0.0.1:1"))

    service.signal(signal.SIGHUP)

    assert "api.listen" in service.wait_for_log("not reloaded")["message"]


def test_systemd_hears_of_readiness_reload_and_stop(home: Home, start: Start, tmp_path: Path) -> None:
    """READY only when it is, RELOADING around a reload, STOPPING before the end."""
    address = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(address))
        notified.settimeout(30)
        service = start(environ={"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "60000000"})
        heard = [notified.recv(4096).decode()]
        while "READY=1" not in heard:
            heard.append(notified.recv(4096).decode())
        service.signal(signal.SIGHUP)
        while not heard[-1].startswith("RELOADING=1\nMONOTONIC_USEC="):
            heard.append(notified.recv(4096).decode())
        assert notified.recv(4096) == b"READY=1"
        service.signal(signal.SIGTERM)
        assert notified.recv(4096) == b"STOPPING=1"
        assert service.wait() == 0
    assert set(heard[:2]) <= {"READY=1", "WATCHDOG=1"}


def test_a_waiting_client_is_answered_when_the_service_stops(home: Home, start: Start) -> None:
    """A long poll does not hold up the end, and gets the job as it is."""
    home.plugin("slow", SLOW)
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("drain_timeout: 10s", "drain_timeout: 0s"))
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


def test_a_wrong_timeout_is_a_usage_error_and_runs_nothing(home: Home, start: Start) -> None:
    """Whatever is wrong with the command line is found before anything is asked for."""
    home.plugin("ok", OK)
    start()
    command = [sys.executable, "-m", "ductile", "plugin", "run", "ok", "--wait", "--timeout", "soon"]

    done = subprocess.run([*command, "--config", str(home.path)], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert home.rows("SELECT * FROM job_queue") == []


def test_a_ledger_that_cannot_be_written_any_more_ends_the_service_with_1(home: Home, start: Start) -> None:
    """A supervisor starts it again; nothing of what failed was acknowledged."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    # From now on every write beyond the first page fails, as on a disk that breaks.
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))

    status, body = service.ask("POST", "/plugin/ok/poll")

    assert (status, body["code"]) == (503, "ledger_error")
    assert service.wait() == 1
    assert any("write failed" in line for line in service.stderr)
