"""A Ductile to measure: its configuration, its backlog, its process and its jobs.

Whoever watches shares the cores with what it measures, so the log goes into a file and the ledger is looked at rarely.
"""

import http.client
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text
from ductile.core.model import NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from scripts.benches.bench import Bench
from scripts.benches.histories import filled
from scripts.benches.usage import cpu_seconds
from tests.e2e.service import TOKEN, Home

PLUGIN = "least"
SECRET = "bench-secret-0123456789abcdef"
CONNECTIONS = 16
MANIFEST = f"""\
manifest_spec: ductile.plugin
manifest_version: 1
name: {PLUGIN}
version: 1.0.0
protocol: 2
entrypoint: run
commands: {{poll: {{}}, handle: {{}}}}
"""
SETTINGS = f"""\
include: [tokens.yaml, webhooks.yaml]
pipelines:
  - {{name: one, on: bench.one, execution_mode: synchronous, timeout: 20s, steps: [{{uses: {PLUGIN}}}]}}
  - name: three
    on: bench.three
    execution_mode: synchronous
    timeout: 20s
    steps: [{{uses: {PLUGIN}}}, {{uses: {PLUGIN}}}, {{uses: {PLUGIN}}}]
plugins:
  {PLUGIN}:
"""
WEBHOOKS = f"""\
webhooks:
  listen: localhost:0
  endpoints: [{{path: /hook, plugin: {PLUGIN}, scheme: github, secret_ref: bench}}]
"""
PAYLOAD = json.dumps({"filler": "x" * 100})


@contextmanager
def furnished(
    bench: Bench,
    entrypoint: Path | str | None = None,
    *,
    workers: int = 2,
    mode: str = "",
    schedules: Sequence[str] = (),
    history: int = 0,
) -> Iterator[Home]:
    """A sealed configuration with one plugin, `least`, one webhook and a few pipelines; and a ledger of that length."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        home = Home.make(Path(directory) / "home", workers=workers)
        text = (home.path / "config.yaml").read_text()
        text = text.replace("  log_level: debug\n", f"  log_level: info\n  synchronous: {mode or bench.mode}\n")
        text = text.replace("api:\n", f"api:\n  max_concurrent_sync: {CONNECTIONS}\n")
        listed = "".join(f"\n      - {one}" for one in schedules)
        listed = f"    schedules:{listed}\n" if schedules else ""
        home.write("config.yaml", f"{text}{SETTINGS}    parallelism: {workers}\n{listed}")
        home.write("tokens.yaml", f"tokens: [{{name: bench, key: {SECRET}}}]\n")
        home.write("webhooks.yaml", WEBHOOKS)
        install(home, entrypoint or bench.plugin)
        home.seal()
        home.ledger.parent.mkdir(mode=0o700)
        if history:
            shutil.copyfile(filled(bench.folder, history), home.ledger)
            home.ledger.chmod(0o600)
            os.sync()  # or the disk would still be writing the copy while we measure
        yield home


def asleep(count: int) -> list[str]:
    """Cron schedules that are due half a year from now, each at a time of its own."""
    month = (datetime.now(UTC).month + 5) % 12 + 1
    return [
        f"{{id: c{number}, cron: '{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} {month} *'}}"
        for number in range(count)
    ]


def install(home: Home, entrypoint: Path | str) -> None:
    folder = home.path / "plugins" / PLUGIN
    folder.mkdir(mode=0o700)
    (folder / "manifest.yaml").write_text(MANIFEST)
    entry = plugin_of(home)
    entry.write_bytes(entrypoint.read_bytes() if isinstance(entrypoint, Path) else entrypoint.encode())
    entry.chmod(0o700)


def plugin_of(home: Home) -> Path:
    return home.path / "plugins" / PLUGIN / "run"


def backlog(home: Home, count: int, payload: str = PAYLOAD) -> None:
    """`count` more jobs are queued; no service runs."""
    new = NewJob(plugin=PLUGIN, command="poll", submitted_by="bench", payload=payload)
    with closing(open_writer(home.ledger)) as db, transaction(db):
        for _ in range(count):
            enqueue(db, new, now=datetime.now(UTC))
    os.sync()


# ── its process ─────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Running:
    """A service that is ready."""

    home: Home
    pid: int
    port: int
    hook_port: int
    asked_at: datetime
    """When it was told to start."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to one request."""
        with closing(http.client.HTTPConnection("localhost", self.port, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
        assert answer.status < 300, (method, path, answer.status, content)
        return content


@contextmanager
def running(home: Home) -> Iterator[Running]:
    """The service runs from here on, and is killed in the end."""
    command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(home.path)]
    asked_at = datetime.now(UTC)
    with (
        (home.path / "log.jsonl").open("ab") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr
        try:
            heard: list[str] = []
            while " is ready: " not in "".join(heard[-1:]):
                heard.append(process.stderr.readline())
                if not heard[-1]:
                    raise SystemExit(f"the service did not start: {''.join(heard)}")
            port, hook_port = (int(port) for port in re.findall(r"http://[^,\s]+:(\d+)", heard[-1]))
            yield Running(home, process.pid, port, hook_port, asked_at)
        finally:
            process.kill()


# ── its jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Drained:
    """What became of a number of jobs."""

    jobs: int
    jobs_per_second: float
    own_cpu_ms: float
    """A job's share of the processor time of the service itself."""
    first_run_seconds: float
    """From the order to start until the first of them ran."""


def drain(home: Home, count: int, *, within: float | None = None) -> Drained:
    """A service was started on a backlog and killed when the last of `count` jobs was recorded, or its time was up."""
    before, deadline = attempts(home), time.monotonic() + (within or float("inf"))
    with running(home) as service, home.read_ledger() as db:
        wait_for_attempt(db, before + 1, most=60, pause=0.02)
        used, already = cpu_seconds(service.pid), last_attempt(db) - before
        wait_until(lambda: last_attempt(db) >= before + count or time.monotonic() > deadline)
        used, seen = cpu_seconds(service.pid) - used, last_attempt(db) - before
    recorded = attempts(home) - before
    first, last = span(home, before, recorded)
    return Drained(
        jobs=recorded,
        jobs_per_second=recorded / (last - first).total_seconds(),
        own_cpu_ms=used * 1000 / max(seen - already, 1),
        first_run_seconds=(first - service.asked_at).total_seconds(),
    )


def span(home: Home, after: int, count: int) -> tuple[datetime, datetime]:
    """When the first of the attempts after that one began, and the last ended; each of them succeeded."""
    (row,) = home.rows(
        "SELECT MIN(started_at) AS first, MAX(completed_at) AS last, COUNT(*) AS n FROM job_log"
        " WHERE seq > ? AND status = 'succeeded'",
        after,
    )
    if row["n"] != count:
        raise SystemExit(f"{row['n']} of {count} jobs succeeded; {others(home, after)}")
    return from_text(row["first"]), from_text(row["last"])


def others(home: Home, after: int) -> str:
    """What the ledger says of the attempts that did not succeed, of three of them at most."""
    rows = home.rows(
        "SELECT job_id, status, exit_code, signal, last_error, stderr, duration_ms FROM job_log"
        " WHERE seq > ? AND status <> 'succeeded' LIMIT 3",
        after,
    )
    return "; ".join(str(dict(row)) for row in rows)


def attempts(home: Home) -> int:
    """The number of the last attempt on record."""
    if not home.ledger.exists():
        return 0
    with home.read_ledger() as db:
        return last_attempt(db)


def last_attempt(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM job_log").fetchone()[0])


def wait_for_attempt(db: sqlite3.Connection, number: int, *, most: float = 300.0, pause: float = 0.1) -> None:
    """So many attempts are on record."""
    wait_until(lambda: last_attempt(db) >= number, most=most, pause=pause)


def wait_until(is_so: Callable[[], bool], *, most: float = 300.0, pause: float = 0.1) -> None:
    deadline = time.monotonic() + most
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit("the service did not finish its jobs")
        time.sleep(pause)
