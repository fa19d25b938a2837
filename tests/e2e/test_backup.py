"""Backup and restore of a real service: under load, to another directory, in place, and interrupted."""

import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from scripts.tortures.lib.checker import check
from scripts.tortures.lib.clients import WorkloadClients
from scripts.tortures.lib.history import Effect, History
from scripts.tortures.lib.instance import Instance, ServiceProcess
from tests.e2e.service import WAIT_SECONDS, Home, Service
from tests.e2e.test_torture_checker import NO_OPEN_JOBS, PLUGINS

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
BUSY = """
    SELECT (SELECT COUNT(*) FROM job_queue WHERE status = 'running') > 0
       AND (SELECT COUNT(*) FROM job_queue WHERE status = 'succeeded') > 60
"""


def ductile(*args: str | Path) -> Any:
    """Return the output of `ductile ARGS… --json`, which must succeed."""
    command = [sys.executable, "-m", "ductile", *map(str, args), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def wait_until(instance: Instance, service: ServiceProcess, statement: str) -> None:
    with instance.read_ledger() as db:
        while not db.execute(statement).fetchone()[0]:
            assert not service.wait_for_exit(0.02), service.stderr


def known_to(ledger: Path) -> set[tuple[str, int]]:
    """Return the finished and running attempts in a ledger."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        over = db.execute("SELECT job_id, attempt FROM job_log").fetchall()
        return {*over, *db.execute("SELECT id, attempt FROM job_queue WHERE status = 'running'")}


def test_a_restored_service_keeps_every_job_acknowledged_before_the_backup(tmp_path: Path) -> None:
    """The backup is taken under load and restored to another directory; every invariant holds afterwards."""
    instance = Instance(tmp_path / "instance", plugins=PLUGINS)
    instance.path.mkdir()
    instance.build()
    service = instance.launch()
    assert service.wait_until_ready(), service.stderr
    clients = WorkloadClients(instance, per_second=20, seed=1, record=tmp_path / "acknowledged")
    clients.start()
    clients.use_url(service.url)
    try:
        wait_until(instance, service, BUSY)
        acknowledged = tuple(clients.acknowledged)
        made = ductile("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", instance.path)
        after = tuple(clients.acknowledged)
    finally:
        clients.stop()
        dead_at = service.kill()
    assert made["verified"]
    assert len(after) > len(acknowledged), "no request succeeded during the backup"

    restored = evolve(instance, path=tmp_path / "restored")
    done = ductile("system", "restore", tmp_path / "b.tar.gz", "--config-dir", restored.path)
    assert done["warnings"] == []
    past = known_to(restored.ledger)
    restored.configure()  # its plugins write to its own effects log
    service = restored.launch()
    assert service.wait_until_ready(), service.stderr
    wait_until(restored, service, NO_OPEN_JOBS)
    assert service.stop() == 0

    def is_past(effect: Effect) -> bool:
        return (effect.job_id, effect.attempt) in past

    before = filter(is_past, History.of(instance, ()).effects)
    history = History.of(restored, acknowledged, deaths=[dead_at])
    history = evolve(history, effects=[*before, *history.effects])
    assert {name: found for name, found in check(history).items() if found} == {}
    assert ductile("system", "selfcheck", "--config", restored.path)["healthy"]


def test_a_restored_service_ends_no_process_of_the_original_service(home: Home, start: Start, tmp_path: Path) -> None:
    """Both run on one host: the job of the first one continues, and the restored one runs it again."""
    home.plugin("slow", '#!/bin/sh\ncat >/dev/null\nsleep 4\necho \'{"status": "ok", "result": "done"}\'\n')
    service = start()
    job_id = service.post("slow")
    deadline = time.monotonic() + WAIT_SECONDS
    while not home.rows("SELECT 1 FROM job_queue WHERE pid IS NOT NULL"):
        assert time.monotonic() < deadline, home.rows("SELECT * FROM job_queue")
        time.sleep(0.02)
    ductile("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home.path)
    ductile("system", "restore", tmp_path / "b.tar.gz", "--config-dir", tmp_path / "copy")

    copy = Home(tmp_path / "copy").start()
    try:
        assert service.job(job_id, wait="30s")["status"] == "succeeded"
        assert service.job(job_id)["attempt"] == 1
        again = copy.job(job_id, wait="30s")
        assert (again["status"], again["attempt"]) == ("succeeded", 2)
        assert copy.run("slow")["status"] == "succeeded"
    finally:
        copy.stop()


def test_status_of_a_running_service_runs_the_health_commands(home: Home, start: Start) -> None:
    """With --no-health, only the service is checked."""
    home.plugin("one", OK, commands="poll: {}, health: {}")
    start().run("one")

    full = ductile("status", "--config", home.path)
    quick = ductile("status", "--no-health", "--config", home.path)

    assert full["healthy"]
    assert quick["healthy"]
    assert [one["plugin"] for one in full["plugins"]] == ["one"]
    assert [one["status"] for one in full["last_runs"]] == ["succeeded"]
    assert quick["service"]["status"] == "ok"


@pytest.mark.parametrize(
    ("written", "instead", "code"),
    [("state:", "plugins: {ghost: {}}\nstate:", 1), ("127.0.0.1:0", "127.0.0.1:1", 0), ("state:", "stat:", 1)],
    ids=["a plugin that is not there", "a place that waits for a restart", "a mistake"],
)
def test_status_without_health_checks_the_configuration_in_the_same_way(
    home: Home, start: Start, written: str, instead: str, code: int
) -> None:
    """`--no-health` only omits the health commands. Files that wait for a restart do not make a service unhealthy."""
    start()
    home.write("config.yaml", (home.path / "config.yaml").read_text().replace(written, instead))

    def shown(*flags: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "ductile", "status", *flags, "--config", str(home.path), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = json.loads(done.stdout)
        return done.returncode, [one for one in report["checks"] if one["name"] == "config_load"]

    assert shown("--no-health") == shown()
    assert shown("--no-health")[0] == code


def test_status_without_health_imports_no_event_loop_and_no_converter(home: Home, start: Start) -> None:
    """The command shows the checks of the running service instead of repeating them."""
    start()
    script = (
        "import sys; from ductile.cli import ductile; from ductile.cli.base import output;"
        "output.run(ductile, sys.argv[1:]);"
        "print(sorted({'trio', 'quart', 'cattrs'} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "status", "--no-health", "--config", str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("System Status: HEALTHY")
    assert done.stderr.strip() == "[]"


def test_a_restore_refuses_to_replace_a_running_service(home: Home, start: Start, tmp_path: Path) -> None:
    """Exit code 75. After a stop, the restore replaces it and the restored service starts."""
    home.plugin("one", OK)
    service = start()
    first = service.run("one")["job_id"]
    ductile("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home.path)
    service.run("one")
    command = [sys.executable, "-m", "ductile", "system", "restore", str(tmp_path / "b.tar.gz")]
    command += ["--config-dir", str(home.path), "--replace", "--json"]

    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, json.loads(refused.stdout)["code"]) == (75, "already_running")
    assert service.run("one")["status"] == "succeeded"
    assert service.stop() == 0

    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0
    assert [row["id"] for row in home.rows("SELECT id FROM job_queue")] == [first]
    assert start().run("one")["status"] == "succeeded"


DIES = """
import os, signal, sys
from importlib import import_module
from ductile.cli import ductile, output

module, name, when, *args = sys.argv[1:]
real = getattr(import_module(module), name)

def step(*given, **named):
    if when == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(import_module(module), name, step)
output.run(ductile, args)
"""


@pytest.mark.parametrize(
    ("module", "name", "when", "is_new"),
    [
        ("os", "fsync", "after", False),
        ("ductile.ops.backup.unpack", "detach_copy", "after", False),
        ("ductile.ops.backup.swap", "put_directory", "before", False),
        ("ductile.ops.backup.swap", "_exchange", "before", False),
        ("ductile.ops.backup.swap", "_exchange", "after", True),
        ("ductile.ops.backup.swap", "put_directory", "after", True),
    ],
)
def test_a_killed_restore_leaves_either_the_old_or_the_new_state(
    home: Home, tmp_path: Path, module: str, name: str, when: str, is_new: bool
) -> None:
    """Never a mixture. The same command completes it."""
    home.plugin("one", OK)
    service = home.start()
    first = service.run("one")["job_id"]
    ductile("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home.path)
    second = service.run("one")["job_id"]
    assert service.stop() == 0
    home.add("# edited after the backup\n")
    args = ["system", "restore", str(tmp_path / "b.tar.gz"), "--config-dir", str(home.path), "--replace", "--json"]

    died = subprocess.run([sys.executable, "-c", DIES, module, name, when, *args], capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr

    assert ("# edited after the backup" not in (home.path / "config.yaml").read_text()) == is_new
    assert [row["id"] for row in home.rows("SELECT id FROM job_queue ORDER BY seq")] == (
        [first] if is_new else [first, second]
    )
    assert ductile("system", "selfcheck", "--config", home.path)["healthy"]
    ductile(*args[:-1])
    assert [row["id"] for row in home.rows("SELECT id FROM job_queue")] == [first]
    assert home.start().stop() == 0


def test_a_killed_backup_leaves_no_archive(home: Home, tmp_path: Path) -> None:
    """The incomplete file has another name."""
    home.plugin("one", OK)
    assert home.start().stop() == 0
    target = tmp_path / "b.tar.gz"
    args = ["system", "backup", "--to", str(target), "--config", str(home.path)]

    died = subprocess.run([sys.executable, "-c", DIES, "os", "link", "before", *args], capture_output=True, check=False)

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not target.exists()
    ductile(*args)
    with tarfile.open(target) as archive:
        assert archive.getnames()[0] == "MANIFEST.json"
