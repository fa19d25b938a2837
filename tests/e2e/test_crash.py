"""The service dies, is stopped, or must not start: what is left, and what the next start makes of it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.clock import from_text
from tests.e2e.service import Home, Service

Start = Callable[..., Service]

OK = """#!/bin/sh
echo "$DUCTILE_JOB_ID" >> effects
echo '{"status": "ok", "result": "done"}'
"""
WAITS_FOR_GO = """#!/bin/sh
echo "$DUCTILE_JOB_ID" >> effects
until [ -e go ] || [ $((turns += 1)) -gt 3000 ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
"""
NEVER_ENDS = """#!/bin/sh
echo $$ >> pids
exec sleep 600
"""
KILLS_ITS_CORE = """#!/bin/sh
until [ -e answered ] || [ $((turns += 1)) -gt 3000 ]; do sleep 0.02; done
kill -9 $PPID
exec sleep 600
"""
"""Waits until the test has the answer to its request."""


def until(look: Callable[[], Any]) -> Any:
    """What `look` finds, as soon as it finds something: for facts in files, which cannot call."""
    deadline = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return found


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def is_alive(pid: str) -> bool:
    """True unless the process is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def attempts(home: Home, job_id: str) -> list[tuple[int, str]]:
    rows = home.rows("SELECT attempt, status FROM job_log WHERE job_id = ? ORDER BY attempt", job_id)
    return [(row["attempt"], row["status"]) for row in rows]


@pytest.mark.timeout(400)
def test_thirty_random_kills_lose_nothing_and_double_nothing() -> None:
    """kill -9 at any moment under load: every acknowledged job ends, every attempt runs once, every child exists once,
    and every run of a pipeline has all its steps, joins and hooks.

    In a process of its own, because it adopts and reaps what the dead cores leave behind.
    """
    command = [sys.executable, "-m", "scripts.tortures", "kill", "--cycles", "30", "--seed", "10", "--hurry"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert done.returncode == 0, (done.stderr, summary)
    assert set(summary["violations"].values()) == {0}
    assert summary["cycles"] == 30
    assert summary["acknowledged"] > 0
    assert summary["lost_attempts"] > 0, "no kill hit a running job: the torture does not torture"
    assert min(summary[part] for part in ("runs", "steps", "joins", "hooks")) > 0, "no pipelines were tortured"


def test_a_job_in_flight_is_run_again_and_nothing_else_is(home: Home, start: Start) -> None:
    """After a crash: what had ended stays ended, what waited keeps its first attempt, what ran gets its next one."""
    home.plugin("quick", OK)
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {parallelism: 1}\n")
    service = start()
    ended = service.run("quick")["job_id"]
    running, waiting = service.post("waits"), service.post("waits")
    until(lambda: running in lines(home.path / "effects"))

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
    """Two attempts of one job never work at the same time, not even when the core between them was killed."""
    looks_back = """#!/bin/sh
    if [ -e first ]; then
        state=$(cut -d ' ' -f 3 "/proc/$(cat first)/stat" 2>/dev/null || echo gone)
        echo '{"status": "ok", "result": "'"$state"'"}'
        exit
    fi
    echo $$ > first.new && mv first.new first
    exec sleep 600
    """.replace("\n    ", "\n")
    home.plugin("sleeper", looks_back)
    service = start()
    job_id = service.post("sleeper")
    until(lambda: (home.path / "first").exists())

    service.kill()
    assert is_alive((home.path / "first").read_text().strip()), "killing the core alone does not end its plugins"
    service = start()

    job = service.job(job_id, wait="30s")
    assert job["result"]["result"] in ("gone", "Z")
    service.wait_for_log("killed a plugin process of an earlier run")


def test_a_recovery_that_is_killed_again_and_again_counts_each_lost_attempt_once(home: Home, start: Start) -> None:
    """Recovery is all or nothing: five kills in the middle of it leave every orphan as it was."""
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {}\n")
    service = start()
    jobs = [service.post("waits") for _ in range(3)]
    until(lambda: len(lines(home.path / "effects")) == 3)
    service.kill()

    for _ in range(5):
        recovering = home.launch(environ={"DUCTILE_FAILPOINT": "recover.after_first"})
        assert recovering.wait() == -signal.SIGKILL
    (home.path / "go").touch()
    service = start()

    assert [service.job(job_id, wait="30s")["status"] for job_id in jobs] == ["succeeded"] * 3
    assert [attempts(home, job_id) for job_id in jobs] == [[(1, "failed"), (2, "succeeded")]] * 3
    assert home.rows("SELECT DISTINCT recoveries FROM job_queue") == [{"recoveries": 1}]


def test_a_job_that_kills_the_core_is_given_up_and_the_others_run(home: Home, start: Start) -> None:
    """A poison pill: each death of the core counts as an attempt; when they are used up, the job is dead."""
    home.plugin("poison", KILLS_ITS_CORE)
    home.plugin("quick", OK)
    home.add("plugins:\n  poison: {retry: {max_attempts: 2}}\n")
    service = start()
    poison = service.post("poison")
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL

    assert home.launch().wait() == -signal.SIGKILL, "the second attempt kills the second core"
    service = start()

    given_up = service.job(poison, wait="30s")
    assert given_up["status"] == "dead"
    assert given_up["last_error"] == "core restart: the core died 2 times while it ran; attempts used up"
    assert attempts(home, poison) == [(1, "failed"), (2, "failed")]
    assert service.run("quick")["status"] == "succeeded"


def test_a_job_that_killed_the_core_twice_is_held_back(home: Home, start: Start) -> None:
    """The first crash may be chance; after the second the job waits, so that the service is not down all the time."""
    home.plugin("poison", KILLS_ITS_CORE)
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


def test_a_step_that_kills_the_core_is_given_up_and_its_join_is_decided(home: Home, start: Start) -> None:
    """The last member of a join ends in a recovery: if its failure is tolerated, the run goes on from there."""
    home.plugin("poison", KILLS_ITS_CORE)
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
        "          - {id: deadly, uses: poison, continue: true, on_error: [{id: mend, uses: quick}]}\n"
        "      - {id: last, uses: quick}\n"
    )
    service = start()
    status, answer = service.ask("POST", "/pipeline/risky", {"payload": {}})
    assert status == 202, answer
    (home.path / "answered").touch()
    assert service.wait() == -signal.SIGKILL

    service = start()

    _, tree = service.ask("GET", f"/job/{answer['job_id']}/tree?wait=30s")
    ends = {node["step_id"]: node["status"] for node in tree if "step_id" in node}
    assert ends == {
        "safe": "succeeded",
        "deadly": "dead",
        "mend": "succeeded",
        "both__join": "succeeded",
        "last": "succeeded",
    }
    (last,) = home.rows("SELECT payload FROM job_queue WHERE step_id = 'last'")
    results = json.loads(last["payload"])["payload"]["results"]
    assert [result.get("status") for result in results] == [None, "dead"]


def test_a_hook_fires_once_for_a_job_that_died_with_the_core(home: Home, start: Start) -> None:
    """The end that a recovery gives to a job is announced like any other, and not again by the next recovery."""
    home.plugin("poison", KILLS_ITS_CORE)
    home.plugin("quick", OK)
    home.add(
        "plugins:\n  quick: {}\n  poison: {retry: {max_attempts: 1}, notify_on_complete: true}\n"
        "pipelines:\n"
        "  - {name: toll, on-hook: job.dead, steps: [{id: bell, uses: quick}]}\n"
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
    (bell,) = home.rows("SELECT id, parent_job_id FROM job_queue WHERE step_id = 'bell'")
    assert bell["parent_job_id"] == poison
    assert service.job(bell["id"], wait="30s")["status"] == "succeeded"
    service.kill()
    start()
    assert home.rows("SELECT id, parent_job_id FROM job_queue WHERE step_id = 'bell'") == [bell]


def test_sigterm_lets_a_running_job_finish(home: Home, start: Start) -> None:
    """The drain waits for what runs, starts nothing new, and ends with 0."""
    home.plugin("waits", WAITS_FOR_GO)
    home.add("plugins:\n  waits: {parallelism: 1}\n")
    service = start()
    running, waiting = service.post("waits"), service.post("waits")
    until(lambda: running in lines(home.path / "effects"))

    service.signal(signal.SIGTERM)
    service.wait_for_log("SIGTERM: draining")
    (home.path / "go").touch()

    assert service.wait() == 0
    assert attempts(home, running) == [(1, "succeeded")]
    assert home.rows("SELECT status, attempt FROM job_queue WHERE id = ?", waiting) == [
        {"status": "queued", "attempt": 1}
    ]
    assert service.wait_for_log("stopped")


def test_a_job_that_outlasts_the_drain_is_interrupted_and_not_charged_for_it(tmp_path: Path) -> None:
    """At the end of `drain_timeout` the process is ended, the job is queued, and its only attempt is still to come."""
    home = Home.make(tmp_path / "ductile", drain="200ms")
    home.plugin("sleeper", NEVER_ENDS)
    home.add("plugins:\n  sleeper: {retry: {max_attempts: 1}}\n")
    service = home.start()
    job_id = service.post("sleeper")
    (pid,) = until(lambda: lines(home.path / "pids"))

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


def test_a_second_ctrl_c_ends_at_once(home: Home, start: Start) -> None:
    """No drain, no process left behind; the job runs again after the next start."""
    home.plugin("sleeper", NEVER_ENDS)
    service = start()
    job_id = service.post("sleeper")
    (pid,) = until(lambda: lines(home.path / "pids"))

    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)

    assert service.wait() == 128 + signal.SIGINT
    until(lambda: not is_alive(pid))
    assert home.rows("SELECT status FROM job_queue") == [{"status": "running"}]
    service = start()
    until(lambda: len(lines(home.path / "pids")) == 2)
    assert service.job(job_id)["attempt"] == 2
    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)
    service.wait()


def test_a_second_instance_says_who_is_there_and_leaves(home: Home, start: Start) -> None:
    """Exit 75 (try again later), naming the process; the first one does not notice."""
    home.plugin("quick", OK)
    service = start()

    second = home.launch()

    assert second.wait() == os.EX_TEMPFAIL
    said = "\n".join(second.stderr)
    assert f"held by process {service.process.pid} since" in said
    assert "ductile.lock" in said
    assert service.run("quick")["status"] == "succeeded"


def damaged(ledger: Path) -> None:
    content = bytearray(ledger.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    ledger.write_bytes(content)


def from_the_future(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    db.execute("PRAGMA user_version = 99")
    db.close()


def no_database_at_all(ledger: Path) -> None:
    ledger.write_bytes(b"these are my holiday pictures\n" * 200)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damaged, "damaged"),
        (from_the_future, "written by a newer Ductile (schema 99"),
        (no_database_at_all, "not a SQLite database"),
    ],
)
def test_a_ledger_that_cannot_be_trusted_is_refused_and_left_alone(
    home: Home, start: Start, spoil: Callable[[Path], None], reason: str
) -> None:
    """Exit 78 with one line that says what is wrong and where; the file is not repaired, replaced or emptied."""
    home.plugin("quick", OK)
    service = start()
    service.run("quick")
    assert service.stop() == 0
    spoil(home.ledger)
    before = home.ledger.read_bytes()

    refused = home.launch()

    assert refused.wait() == os.EX_CONFIG
    errors = [line for line in refused.stderr if line.startswith("error: ")]
    assert len(errors) == 1, refused.stderr
    assert errors[0].startswith(f"error: {home.ledger}: ")
    assert reason in errors[0]
    assert home.ledger.read_bytes() == before
