"""The verdict about a running instance: `system status`, `doctor`, `watch` and `/healthz` agree."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_plugins import FAILING, OK, BlockingPlugin
from tests.e2e.service import TOKEN, Home, Service, Start

LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(ledger: Path) -> Iterator[int]:
    """Lock the ledger in another process. Yield its pid."""
    command = [sys.executable, "-c", LOCKER, str(ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def codes_of_all(service: Service, verdict: str) -> list[list[str]]:
    """Return the codes that status, doctor, the dashboard and /healthz report with this verdict."""
    exit_code = int(verdict != "healthy")
    status = ductile_json(service.home, "system", "status", exit_code=exit_code)
    doctor = ductile_json(service.home, "system", "doctor", exit_code=exit_code)
    shown = ductile_json(service.home, "system", "watch", "--once")["health"]
    answer = service.ask("GET", "/healthz", token=None)[1]
    assert [status["verdict"], shown["verdict"], answer["verdict"]] == [verdict] * 3
    assert status["healthy"] is doctor["healthy"] is (verdict == "healthy")
    problems = [finding["name"] for finding in doctor["findings"] if finding["severity"] == "problem"]
    return [[reason["code"] for reason in status["reasons"]], problems, shown["reasons"], answer["reasons"]]


def test_all_reports_agree(home: Home, start: Start) -> None:
    """While the service works, needs attention, and has lost its ledger to another process."""
    home.plugin("ok", OK)
    home.plugin("failing", FAILING)
    home.add("plugins: {ok: {}, failing: {retry: {max_attempts: 1}}}\n")
    home.seal()
    service = start()
    assert codes_of_all(service, "healthy") == [[]] * 4

    service.run("failing")
    assert ductile(home, "queue", "pause").exit_code == 0
    assert codes_of_all(service, "attention") == [["queue_paused", "failing"]] * 4
    assert service.ask("GET", "/healthz")[0] == 200

    ductile(home, "queue", "resume")
    service.run("ok")
    with locked(home.ledger) as pid:
        assert codes_of_all(service, "failed") == [["ledger_locked", "failing"]] * 4
        status = ductile_json(home, "system", "status", exit_code=1)
        assert (status["verdict"], status["reasons"][0]["code"], status["reasons"][0]["pid"]) == (
            "failed",
            "ledger_locked",
            pid,
        )
        assert f"Process {pid} (python" in ductile(home, "system", "doctor").stdout
        code, refused = service.ask("POST", "/plugin/ok/poll", {})
        assert (code, refused["code"], refused["context"]["pid"]) == (503, "ledger_busy", pid)


def test_a_killed_service_needs_attention(home: Home, start: Start) -> None:
    """Until the next start."""
    home.plugin("ok", OK)
    home.add("plugins: {ok: {}}\n")
    home.seal()
    service = start()
    service.kill()

    shown = ductile(home, "system", "status")
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (1, "System Status: ATTENTION, NOT RUNNING")
    assert "next: ductile system start" in shown.stdout
    findings = ductile_json(home, "system", "doctor", exit_code=1)["findings"]
    assert "stopped_uncleanly" in [finding["name"] for finding in findings]
    service = start()
    assert ductile_json(home, "system", "status")["verdict"] == "healthy"
    service.stop()
    assert ductile(home, "system", "status").stdout.startswith("System Status: HEALTHY, NOT RUNNING\n")


def test_a_cancelled_job_is_no_failure(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """The metric has its outcome code, which the recommended alert excludes, and the verdict stays healthy."""
    service = start()
    job_id = service.post("blocking")
    blocking.wait_until_started()
    service.post("blocking")
    assert ductile(home, "queue", "purge", "--all").exit_code == 0
    assert ductile(home, "job", "cancel", job_id).exit_code == 0
    assert service.job(job_id, wait="30s")["outcome_code"] == "cancelled"

    with urlopen(Request(f"{service.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})) as answer:
        dead = [line for line in answer.read().decode().splitlines() if 'status="dead"' in line]
    labels = 'plugin="blocking",command="poll",status="dead"'
    assert sorted(dead) == [
        f'ductile_jobs_total{{{labels},outcome_code="{code}"}} 1' for code in ("cancelled", "purged")
    ]
    assert ductile_json(home, "system", "status")["verdict"] == "healthy"
    summary = service.ask("GET", "/analytics/summary")[1]
    assert (summary["stats"], summary["cancelled"]) == ({"dead": 2}, 2)
