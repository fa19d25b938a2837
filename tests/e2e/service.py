"""A Ductile service in a process of its own: its configuration, requests to it, signals, and its ledger."""

import http.client
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field

from ductile.config.edit.approve import seal_configuration

TOKEN = "e2e-token-0123456789abcdef"
WAIT_SECONDS = 30.0
"""Limit of every wait for the service."""

CONFIG = """\
plugin_roots: [plugins]
state: {{path: data/state.db}}
service:
  max_workers: {workers}
  drain_timeout: {drain}
  log_level: debug
api:
  enabled: true
  listen: 127.0.0.1:0
  auth:
    tokens:
      - {{name: e2e, token: {token}, scopes: ["*"]}}
"""


@define
class Home:
    """A configuration directory and the ledger in it."""

    path: Path

    @classmethod
    def make(cls, path: Path, *, workers: int = 4, drain: str = "10s") -> "Home":
        for folder in (path, path / "plugins"):
            folder.mkdir(mode=0o700, parents=True)
        home = cls(path)
        home.write("config.yaml", CONFIG.format(workers=workers, drain=drain, token=TOKEN))
        return home

    def write(self, name: str, text: str) -> None:
        """Write a configuration file."""
        file = self.path / name
        file.write_text(text)
        file.chmod(0o600)

    def add(self, text: str) -> None:
        """Append YAML to config.yaml."""
        self.write("config.yaml", (self.path / "config.yaml").read_text() + text)

    def replace(self, old: str, new: str) -> None:
        """Replace text that config.yaml contains."""
        text = (self.path / "config.yaml").read_text()
        assert old in text, old
        self.write("config.yaml", text.replace(old, new))

    def copy_plugin(self, folder: Path) -> None:
        """Copy a plugin folder with permissions that the service accepts."""
        target = self.path / "plugins" / folder.name
        shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for directory, _, names in os.walk(target):
            os.chmod(directory, 0o700)
            for name in names:
                inside = Path(directory) / name
                if inside.is_file() and not inside.is_symlink():
                    inside.chmod(0o700 if os.access(inside, os.X_OK) else 0o600)

    def plugin(self, name: str, script: str, *, commands: str = "poll: {}, handle: {}", more: str = "") -> None:
        """Add a plugin whose entrypoint is `script` (with its shebang line)."""
        folder = self.path / "plugins" / name
        folder.mkdir(mode=0o700)
        manifest = (
            f"manifest_spec: ductile.plugin\nmanifest_version: 1\nname: {name}\nversion: 1.0.0\nprotocol: 2\n"
            f"entrypoint: run\ncommands: {{{commands}}}\n{more}"
        )
        (folder / "manifest.yaml").write_text(manifest)
        (folder / "run").write_text(script)
        (folder / "run").chmod(0o700)

    def seal(self) -> None:
        from datetime import UTC, datetime

        seal_configuration(self.path / "config.yaml", now=datetime.now(UTC))

    @property
    def ledger(self) -> Path:
        return self.path / "data" / "state.db"

    @contextmanager
    def read_ledger(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            yield db

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with self.read_ledger() as db:
            return [dict(row) for row in db.execute(statement, values)]

    def start(self, *, environ: Mapping[str, str] | None = None) -> "Service":
        """Start the service and wait until it is ready."""
        service = self.launch(environ=environ)
        try:
            service.wait_until_ready()
        except BaseException:
            service.kill()
            raise
        return service

    def launch(self, *, environ: Mapping[str, str] | None = None) -> "Service":
        """Start the service without waiting until it is ready."""
        command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(self.path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
            process_group=0,
        )
        return Service(self, process)


@define
class Service:
    """A service process with its log lines and its stderr."""

    home: Home
    process: "subprocess.Popen[bytes]"
    lines: list[dict[str, Any]] = field(factory=list)
    stderr: list[str] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)
    _closed: int = 0
    _readers: list[threading.Thread] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        for stream, take in ((self.process.stdout, self._take_log), (self.process.stderr, self._take_stderr)):
            reader = threading.Thread(target=self._read_lines, args=(stream, take), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read_lines(self, stream: Any, take: Callable[[str], None]) -> None:
        with stream:
            for raw in stream:
                with self._changed:
                    take(raw.decode("utf-8", "replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._closed += 1
            self._changed.notify_all()

    def _take_log(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def _take_stderr(self, line: str) -> None:
        self.stderr.append(line)

    def wait_for(self, fact: Callable[["Service"], Any], what: str) -> Any:
        """Wait until `fact` is true of the output, or the process has closed it, and return the fact."""
        with self._changed:
            done = self._changed.wait_for(lambda: fact(self) or self._closed == 2, WAIT_SECONDS)
            assert done, f"{what}: not within {WAIT_SECONDS} s; stderr: {self.stderr}; log: {self.lines[-5:]}"
            return fact(self)

    def wait_for_log(self, message: str, **fields: Any) -> dict[str, Any]:
        """Wait for a log line that contains `message` and has these fields."""

        def found(service: Service) -> dict[str, Any] | None:
            for line in service.lines:
                if message in line["message"] and all(line.get(name) == value for name, value in fields.items()):
                    return line
            return None

        line: dict[str, Any] | None = self.wait_for(found, f"log line {message!r}")
        assert line is not None, f"the service ended without the log line {message!r}: {self.stderr} {self.lines[-5:]}"
        return line

    def wait_until_ready(self) -> None:
        ready = self.wait_for(lambda service: any(" is ready: " in line for line in service.stderr), "ready")
        assert ready, f"the service did not start: {self.stderr}"

    @property
    def ready_line(self) -> str:
        (line,) = [line for line in self.stderr if " is ready: " in line]
        return line

    @property
    def urls(self) -> list[str]:
        """The addresses of the API and, if there is one, of the webhook listener."""
        return re.findall(r"http://[^,\s]+", self.ready_line)

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def socket_path(self) -> str:
        return self.ready_line.rpartition("unix:")[2].strip()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Send a request over TCP and return status and decoded body."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)
        sent = {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        with closing(connection):
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def post(self, plugin: str, command: str = "poll", payload: Any = None) -> str:
        """Trigger a plugin and return the id of its job."""
        status, body = self.ask(
            "POST", f"/plugin/{plugin}/{command}", {"payload": payload} if payload is not None else None
        )
        assert status == 202, (status, body)
        job_id: str = body["job_id"]
        return job_id

    def job(self, job_id: str, *, wait: str | None = None) -> dict[str, Any]:
        status, body = self.ask("GET", f"/job/{job_id}{f'?wait={wait}' if wait else ''}")
        assert status == 200, (status, body)
        return dict(body)

    def run(self, plugin: str, command: str = "poll", payload: Any = None) -> dict[str, Any]:
        """Trigger a plugin and wait until its job has ended."""
        return self.job(self.post(plugin, command, payload), wait="30s")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process has ended and its output is read, and return its exit code."""
        code = self.process.wait(WAIT_SECONDS)
        for reader in self._readers:
            reader.join(WAIT_SECONDS)
        return code

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, as in a crash."""
        self.process.kill()
        self.wait()


Start = Callable[..., Service]
"""The type of the fixture `start`."""


def poll_until(find: Callable[[], Any]) -> Any:
    """Call `find` until its result is true and return it: for files and rows, which send no notification."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := find()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s"
        time.sleep(0.01)
    return found
