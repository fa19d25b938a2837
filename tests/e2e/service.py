"""A whole Ductile in a process of its own, driven from outside: start, post, wait, signal, kill, look at the rest."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field

from ductile.config.edit.approve import seal_configuration

TOKEN = "e2e-token-0123456789abcdef"
PATIENCE = 30.0

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
    """A configuration directory under construction."""

    path: Path

    @classmethod
    def make(cls, path: Path, *, workers: int = 4, drain: str = "10s") -> "Home":
        for folder in (path, path / "plugins"):
            folder.mkdir(mode=0o700, parents=True)
        home = cls(path)
        home.write("config.yaml", CONFIG.format(workers=workers, drain=drain, token=TOKEN))
        return home

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.write_text(text)
        file.chmod(0o600)

    def add(self, text: str) -> None:
        """More YAML at the end of config.yaml."""
        self.write("config.yaml", (self.path / "config.yaml").read_text() + text)

    def copy_plugin(self, folder: Path) -> None:
        target = self.path / "plugins" / folder.name
        shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for directory, _, names in os.walk(target):
            os.chmod(directory, 0o700)
            for name in names:
                inside = Path(directory) / name
                if inside.is_file() and not inside.is_symlink():
                    inside.chmod(0o700 if os.access(inside, os.X_OK) else 0o600)

    def plugin(self, name: str, script: str, *, commands: str = "poll: {}, handle: {}", more: str = "") -> None:
        """A plugin whose entrypoint is `script` (with its shebang line)."""
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
        """The service, ready."""
        service = self.launch(environ=environ)
        try:
            service.wait_until_ready()
        except BaseException:
            service.kill()  # nobody else will
            raise
        return service

    def launch(self, *, environ: Mapping[str, str] | None = None) -> "Service":
        """The service, on its way."""
        command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(self.path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        return Service(self, process)


@define
class Service:
    """A running service and everything it has said."""

    home: Home
    process: "subprocess.Popen[bytes]"
    lines: list[dict[str, Any]] = field(factory=list)
    stderr: list[str] = field(factory=list)
    _heard: threading.Condition = field(factory=threading.Condition)
    _closed: int = 0
    _listeners: list[threading.Thread] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        for stream, take in ((self.process.stdout, self._take_log), (self.process.stderr, self._take_stderr)):
            listener = threading.Thread(target=self._listen, args=(stream, take), daemon=True)
            listener.start()
            self._listeners.append(listener)

    def _listen(self, stream: Any, take: Callable[[str], None]) -> None:
        with stream:
            for raw in stream:
                with self._heard:
                    take(raw.decode("utf-8", "replace").rstrip("\n"))
                    self._heard.notify_all()
        with self._heard:
            self._closed += 1
            self._heard.notify_all()

    def _take_log(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def _take_stderr(self, line: str) -> None:
        self.stderr.append(line)

    def wait_for(self, fact: Callable[["Service"], Any], what: str) -> Any:
        """Until `fact` is true of what was heard, or the service is gone."""
        with self._heard:
            done = self._heard.wait_for(lambda: fact(self) or self._closed == 2, PATIENCE)
            assert done, f"{what}: not within {PATIENCE} s; stderr: {self.stderr}; log: {self.lines[-5:]}"
            return fact(self)

    def wait_for_log(self, message: str, **fields: Any) -> dict[str, Any]:
        def found(service: Service) -> dict[str, Any] | None:
            for line in service.lines:
                if message in line["message"] and all(line.get(name) == value for name, value in fields.items()):
                    return line
            return None

        line: dict[str, Any] | None = self.wait_for(found, f"log line {message!r}")
        assert line is not None, f"the service ended without saying {message!r}: {self.stderr} {self.lines[-5:]}"
        return line

    def wait_until_ready(self) -> None:
        ready = self.wait_for(lambda service: any(" is ready: " in line for line in service.stderr), "ready")
        assert ready, f"the service did not start: {self.stderr}"

    @property
    def url(self) -> str:
        (line,) = [line for line in self.stderr if " is ready: " in line]
        found = re.search(r"http://[^,\s]+", line)
        assert found, line
        return found[0]

    @property
    def socket_path(self) -> str:
        (line,) = [line for line in self.stderr if " is ready: " in line]
        return line.rpartition("unix:")[2].strip()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One request over TCP: status and decoded body."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
        sent = {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        with closing(connection):
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def post(self, plugin: str, command: str = "poll", payload: Any = None) -> str:
        """Trigger a plugin; the acknowledged job's id."""
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
        """Trigger a plugin and wait until its job is over."""
        return self.job(self.post(plugin, command, payload), wait="30s")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, when it has ended and everything it said was heard."""
        code = self.process.wait(PATIENCE)
        for listener in self._listeners:
            listener.join(PATIENCE)
        return code

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9, as a crash does it."""
        self.process.kill()
        self.wait()
