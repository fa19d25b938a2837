"""Crashes, drains and refused starts: what is left in the ledger, and what the next start does with it."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.clock import from_text
from tests.e2e.service import Home, Service
from tests.e2e.torture_runs import run_torture

Start = Callable[..., Service]

OK = """#!/bin/sh
echo "$DUCTILE_JOB_ID" >> effects
echo '{"status": "ok", "result": "done"}'
"""
WAITS_FOR_GO = """#!/bin/sh
echo "$DUCTILE_JOB_ID" >> effects
until [ -e go ] || [ $((tries += 1)) -gt 3000 ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
"""
NEVER_ENDS = """#!/bin/sh
echo $$ >> pids
exec sleep 600
"""
KILLS_THE_SERVICE = """#!/bin/sh
until [ -e answered ] || [ $((tries += 1)) -gt 3000 ]; do sleep 0.02; done
kill -9 $PPID
exec sleep 600
"""
"""Waits until the test has the response to its request."""


def wait_for(find: Callable[[], Any]) -> Any:
    """Poll `find` and return its first true result."""
    deadline = time.monotonic() + 30
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def is_alive(pid: str) -> bool:
    """Return True unless the process has exited, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def attempts(home: Home, job_id: str) -> list[tuple[int, str]]:
    rows = home.rows("SELECT attempt, status FROM job_log WHERE job_id = ? ORDER BY attempt", job_id)
    return [(row["attempt"], row["status"]) for row in rows]


@pytest.mark.timeout(400)
def test_thirty_random_kills_lose_nothing_and_repeat_nothing() -> None:
    """kill -9 at any moment under load.

    Every acknowledged job ends, every attempt runs once, every child exists once, and every run of a pipeline has all
    its steps, joins and hooks.
    """
    run = run_torture("kill", "--cycles", "30", "--seed", "10", "--hurry")

    summary = run.summary
    assert (run.exit_code, run.violations) == (0, {}), run.stderr
    assert summary["cycles"] == 30
    assert summary["acknowledged"] > 0
    assert summary["lost_attempts"] > 0, "no kill hit a running job: the test tests nothing"
    assert min(summary[part] for part in ("runs", "steps", "joins", "hooks")) > 0, "no pipeline ran"


def test_after_a_crash_only_running_jobs_run_again(home: Home, start: Start) -> None:
    """A finished job stays finished, a queued job keeps its first attempt, a running job gets its next attempt."""
    home.plugin("quick", OK)
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {parallelism: 1}\n")
    service = start()
    ended = service.run("quick")["job_id"]
    running, waiting = service.post("waits"), service.post("waits")
    wait_for(lambda: running in lines(home.path / "effects"))

    service.kill()
    (home.path / "go").touch()
    service = start()

    assert service.job(running, wait="30s")["status"] == "succeeded"
    assert service.job(waiting, wait="30s")["status"] == "succeeded"
    assert attempts(home, ended) == attempts(home, waiting) == [(1, "succeeded")]
    assert attempts(home, running) == [(1, "failed"), (2, "succeeded")]
    assert lines(home.path / "effects") == [ended, running, running, waiting]
    assert service.wait_for_log("was running when the service died", job_id=running)["level"] == "warn"
    assert home.rows("SELECT last_error FROM job_log WHERE job_id = ? AND attempt = 1", running) == [
        {"last_error": "core restart"}
    ]


def test_a_leftover_process_is_ended_before_its_job_runs_again(home: Home, start: Start) -> None:
    """Two attempts of one job never run at the same time, not even if the service was killed between them."""
    reports_first_process = """#!/bin/sh
    if [ -e first ]; then
        state=$(cut -d ' ' -f 3 "/proc/$(cat first)/stat" 2>/dev/null || echo gone)
        echo '{"status": "ok", "result": "'"$state"'"}'
        exit
    fi
    echo $$ > first.new && mv first.new first
    exec sleep 600
    """.replace("\n    ", "\n")
    home.plugin("sleeper", reports_first_process)
    service = start()
    job_id = service.post("sleeper")
    wait_for(lambda: (home.path / "first").exists())

    service.kill()
    assert is_alive((home.path / "first").read_text().strip()), "killing the service does not end its plugins"
    service = start()

    job = service.job(job_id, wait="30s")
    assert job["result"]["result"] in ("gone", "Z")
    service.wait_for_log("killed a plugin process of an earlier run")


def test_a_recovery_that_is_killed_repeatedly_counts_each_lost_attempt_once(home: Home, start: Start) -> None:
    """Recovery is one transaction: five kills during it leave every orphan unchanged."""
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {}\n")
    service = start()
    jobs = [service.post("waits") for _ in range(3)]
    wait_for(lambda: len(lines(home.path / "effects")) == 3)
    service.kill()

    for _ in range(5):
        recovering = home.launch(environ={"DUCTILE_FAILPOINT": "recover.after_first"})
        assert recovering.wait() == -signal.SIGKILL
    (home.path / "go").touch()
    service = start()

    assert [service.job(job_id, wait="30s")["status"] for job_id in jobs] == ["succeeded"] * 3
    assert [attempts(home, job_id) for job_id in jobs] == [[(1, "failed"), (2, "succeeded")]] * 3
    assert home.rows("SELECT DISTINCT recoveries FROM job_queue") == [{"recoveries": 1}]


def test_a_job_that_repeatedly_kills_the_service_is_dead_and_others_run(home: Home, start: Start) -> None:
    """Each death of the service counts as an attempt; when the attempts are used up, the job is dead."""
    home.plugin("poison", KILLS_THE_SERVICE)
    home.plugin("quick", OK)
    home.add("plugins:\n  poison: {retry: {max_attempts: 2}}\n")
    service = start()
    poison = service.post("poison")
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL

    assert home.launch().wait() == -signal.SIGKILL, "the second attempt kills the second service"
    service = start()

    dead = service.job(poison, wait="30s")
    assert dead["status"] == "dead"
    assert dead["last_error"] == "core restart: the core died 2 times while it ran; attempts used up"
    assert attempts(home, poison) == [(1, "failed"), (2, "failed")]
    assert service.run("quick")["status"] == "succeeded"


def test_a_job_that_killed_the_service_twice_is_delayed(home: Home, start: Start) -> None:
    """After the second crash the job waits 30 seconds, so that other jobs can run."""
    home.plugin("poison", KILLS_THE_SERVICE)
    home.plugin("quick", OK)
    service = start()
    service.post("poison")
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL
    assert home.launch().wait() == -signal.SIGKILL

    service = start()

    (row,) = home.rows("SELECT status, attempt, failed_at, next_retry_at FROM job_queue")
    assert (row["status"], row["attempt"]) == ("queued", 3)
    assert from_text(row["next_retry_at"]) - from_text(row["failed_at"]) == timedelta(seconds=30)
    assert service.run("quick")["status"] == "succeeded"


def test_a_join_is_resolved_when_recovery_ends_its_last_member(home: Home, start: Start) -> None:
    """The failure of the member is allowed, so the run continues."""
    home.plugin("poison", KILLS_THE_SERVICE)
    home.plugin("quick", OK)
    home.add(
        "plugins:\n  quick: {}\n  poison: {retry: {max_attempts: 1}}\n"
        "pipelines:\n"
        "  - name: risky\n"
        "    on: risky.asked\n"
        "    steps:\n"
        "      - id: both\n"
        "        join: true\n"
        "        split:\n"
        "          - {id: safe, uses: quick}\n"
        "          - {id: deadly, uses: poison, continue: true, on_error: [{id: repair, uses: quick}]}\n"
        "      - {id: last, uses: quick}\n"
    )
    service = start()
    status, run = service.ask("POST", "/pipeline/risky", {"payload": {}})
    assert status == 202, run
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL

    service = start()

    _, tree = service.ask("GET", f"/job/{run['job_id']}/tree?wait=30s")
    ends = {node["step_id"]: node["status"] for node in tree if "step_id" in node}
    assert ends == {
        "safe": "succeeded",
        "deadly": "dead",
        "repair": "succeeded",
        "both__join": "succeeded",
        "last": "succeeded",
    }
    (last,) = home.rows("SELECT payload FROM job_queue WHERE step_id = 'last'")
    results = json.loads(last["payload"])["payload"]["results"]
    assert [result.get("status") for result in results] == [None, "dead"]


def test_a_hook_fires_once_for_a_job_that_died_with_its_service(home: Home, start: Start) -> None:
    """Recovery fires the hooks of a job that it ends, and the next recovery does not fire them again."""
    home.plugin("poison", KILLS_THE_SERVICE)
    home.plugin("quick", OK)
    home.add(
        "plugins:\n  quick: {}\n  poison: {retry: {max_attempts: 1}, notify_on_complete: true}\n"
        "pipelines:\n"
        "  - {name: on-dead, on-hook: job.dead, steps: [{id: report, uses: quick}]}\n"
    )
    service = start()
    poison = service.post("poison")
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL

    for _ in range(2):
        recovering = home.launch(environ={"DUCTILE_FAILPOINT": "recover.after_first"})
        assert recovering.wait() == -signal.SIGKILL
    service = start()

    assert service.job(poison, wait="30s")["status"] == "dead"
    (report,) = home.rows("SELECT id, parent_job_id FROM job_queue WHERE step_id = 'report'")
    assert report["parent_job_id"] == poison
    assert service.job(report["id"], wait="30s")["status"] == "succeeded"
    service.kill()
    start()
    assert home.rows("SELECT id, parent_job_id FROM job_queue WHERE step_id = 'report'") == [report]


def test_sigterm_lets_a_running_job_finish(home: Home, start: Start) -> None:
    """The drain waits for running jobs, starts no others, and the exit code is 0."""
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {parallelism: 1}\n")
    service = start()
    running, waiting = service.post("waits"), service.post("waits")
    wait_for(lambda: running in lines(home.path / "effects"))

    service.signal(signal.SIGTERM)
    service.wait_for_log("SIGTERM: draining")
    (home.path / "go").touch()

    assert service.wait() == 0
    assert attempts(home, running) == [(1, "succeeded")]
    assert home.rows("SELECT status, attempt FROM job_queue WHERE id = ?", waiting) == [
        {"status": "queued", "attempt": 1}
    ]
    assert service.wait_for_log("stopped")


def test_a_job_that_outlasts_the_drain_is_interrupted_without_losing_an_attempt(tmp_path: Path) -> None:
    """At the end of `drain_timeout` the process is ended and the job is queued with its only attempt left."""
    home = Home.make(tmp_path / "ductile", drain="200ms")
    home.plugin("sleeper", NEVER_ENDS)
    home.add("plugins:\n  sleeper: {retry: {max_attempts: 1}}\n")
    service = home.start()
    job_id = service.post("sleeper")
    (pid,) = wait_for(lambda: lines(home.path / "pids"))

    assert service.stop() == 0

    assert not is_alive(pid)
    assert attempts(home, job_id) == [(1, "interrupted")]
    assert home.rows("SELECT status, attempt, interruptions FROM job_queue") == [
        {"status": "queued", "attempt": 2, "interruptions": 1}
    ]
    (home.path / "plugins" / "sleeper" / "run").write_text(OK)
    service = home.start()
    assert service.job(job_id, wait="30s")["status"] == "succeeded"
    assert service.stop() == 0


def test_a_second_ctrl_c_ends_the_service_at_once(home: Home, start: Start) -> None:
    """The drain is skipped, no process is left, and the job runs again after the next start."""
    home.plugin("sleeper", NEVER_ENDS)
    service = start()
    job_id = service.post("sleeper")
    (pid,) = wait_for(lambda: lines(home.path / "pids"))

    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)

    assert service.wait() == 128 + signal.SIGINT
    wait_for(lambda: not is_alive(pid))
    assert home.rows("SELECT status FROM job_queue") == [{"status": "running"}]
    service = start()
    wait_for(lambda: len(lines(home.path / "pids")) == 2)
    assert service.job(job_id)["attempt"] == 2
    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)
    service.wait()


def test_a_second_instance_is_refused_with_the_process_id_of_the_first(home: Home, start: Start) -> None:
    """Exit code 75; the first service is not affected."""
    home.plugin("quick", OK)
    service = start()

    second = home.launch()

    assert second.wait() == os.EX_TEMPFAIL
    output = "\n".join(second.stderr)
    assert f"held by process {service.process.pid} since" in output
    assert "ductile.lock" in output
    assert service.run("quick")["status"] == "succeeded"


def damage(ledger: Path) -> None:
    content = bytearray(ledger.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    ledger.write_bytes(content)


def raise_schema_version(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    db.execute("PRAGMA user_version = 99")
    db.close()


def replace_with_text(ledger: Path) -> None:
    ledger.write_bytes(b"not a database\n" * 400)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damage, "damaged"),
        (raise_schema_version, "written by a newer Ductile (schema 99"),
        (replace_with_text, "not a SQLite database"),
    ],
)
def test_an_invalid_ledger_is_refused_and_left_unchanged(
    home: Home, start: Start, change: Callable[[Path], None], reason: str
) -> None:
    """Exit code 78, and one line with the file and the reason."""
    home.plugin("quick", OK)
    service = start()
    service.run("quick")
    assert service.stop() == 0
    change(home.ledger)
    before = home.ledger.read_bytes()

    refused = home.launch()

    assert refused.wait() == os.EX_CONFIG
    errors = [line for line in refused.stderr if line.startswith("error: ")]
    assert len(errors) == 1, refused.stderr
    assert errors[0].startswith(f"error: {home.ledger}: ")
    assert reason in errors[0]
    assert home.ledger.read_bytes() == before
