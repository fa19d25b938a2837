"""Where the torture happens: a configuration directory with plugins that testify, and the core that runs on it.

Knows how to start, kill and stop a core and how to find the processes it left; not when, and not what it should do.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from attrs import define, field

from ductile.core.clock import to_text
from scripts.tortures.play import ROLES, Role, Script, routes_of, scripts_of

__all__ = ["CANARY", "TOKEN", "Arena", "Core", "Role", "build_actor", "cpu_seconds", "start_ticks"]

HERE = Path(__file__).parent
TOKEN = "torture-token-d41d8cd98f00b204"
CANARY = "torture-canary-9e107d9d372bb682"
PATIENCE = 60.0
MOST_OUTSTANDING = 20


@define
class Arena:
    """One configuration directory, one ledger, one effect ledger."""

    path: Path
    workers: int = 4
    service: str = ""
    roles: tuple[Role, ...] = ROLES
    max_attempts: int = 4
    actor: Path | None = None
    """The plugins' program; made here if there is none."""

    @property
    def ledger(self) -> Path:
        return self.path / "data" / "state.db"

    @property
    def effects(self) -> Path:
        return self.path / "effects"

    @property
    def routes(self) -> tuple[tuple[str, str, str], ...]:
        return routes_of(self.roles)

    @property
    def scripts(self) -> tuple[Script, ...]:
        return scripts_of(self.roles)

    @property
    def log(self) -> Path:
        return self.path / "core.log"

    def build(self) -> None:
        """The directory has its configuration and plugins."""
        actor = self.actor or build_actor(self.path)
        for role in self.roles:
            folder = self.path / "plugins" / role.name
            folder.mkdir(mode=0o700, parents=True)
            (folder / "manifest.yaml").write_text(manifest(role))
            shutil.copy(actor, folder / "run")
            (folder / "run").chmod(0o700)
        self.configure()
        for folder in (self.path, self.path / "plugins"):
            folder.chmod(0o700)

    def configure(self, *, scheduled: bool = True) -> None:
        """The next core finds this configuration; without schedules it comes to rest some day."""
        config = self.path / "config.yaml"
        config.write_text(self.text(scheduled=scheduled))
        config.chmod(0o600)

    def text(self, *, scheduled: bool = True) -> str:
        lines = [
            "plugin_roots: [plugins]",
            "state: {path: data/state.db}",
            f"service: {{max_workers: {self.workers}, drain_timeout: 5s, log_level: info{self.service}}}",
            "api:",
            "  enabled: true",
            "  listen: 127.0.0.1:0",
            f"  auth: {{tokens: [{{name: torture, token: {TOKEN}, scopes: ['*']}}]}}",
            "plugins:",
        ]
        for role in self.roles:
            environment = ", ".join(f"{name}: '{value}'" for name, value in role.environment(self.effects).items())
            lines += [
                f"  {role.name}:",
                f"    retry: {{max_attempts: {self.max_attempts}, backoff_base: 100ms}}",
                f"    timeouts: {{poll: {role.timeout}, handle: {role.timeout}}}",
                f"    config: {{api_key: {CANARY}}}",
                f"    env: {{{environment}}}",
                f"    notify_on_complete: {str(role.notifies).lower()}",
            ]
            if role.every and scheduled:
                lines += [
                    f"    schedules: [{{every: {role.every}, if_running: {role.if_running}}}]",
                    f"    max_outstanding_polls: {MOST_OUTSTANDING}",
                    "    circuit_breaker: {threshold: 1000}",
                ]
        lines.append("routes:" if self.routes else "routes: []")
        lines += [f"  - {{from: {source}, event_type: {kind}, to: {to}}}" for source, kind, to in self.routes]
        lines.append("pipelines:" if self.scripts else "pipelines: []")
        lines += [script.text.strip("\n") for script in self.scripts]
        return "\n".join(lines) + "\n"

    @contextmanager
    def read_ledger(self) -> Iterator[sqlite3.Connection]:
        """A read-only look; only while a core runs or after one ended."""
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True, timeout=10)) as db:
            yield db

    def launch(self, environ: Mapping[str, str] | None = None) -> "Core":
        """A core on its way; its log lines are added to the arena's."""
        command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(self.path)]
        begun = time.monotonic()
        with self.log.open("ab") as log:
            end_of_log = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        return Core(process, begun, self.path / "core.stderr", self.log, end_of_log)

    def processes(self) -> dict[int, int]:
        """The plugin processes of this arena that live: pid → start in clock ticks. Found without Ductile's marker."""
        mark = f"ACTOR_EFFECTS={self.effects}".encode()
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        found[int(name)] = start_ticks(int(name))
                except OSError:
                    continue
        return found


def build_actor(directory: Path) -> Path:
    """The plugins' program: compiled into the directory if this host can, else the Python one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return HERE / "actor.py"
    built = directory / "actor"
    command = [compiler, "-O2", "-static", "-o", str(built), str(HERE / "actor.c")]
    done = subprocess.run(command, capture_output=True, check=False)
    return built if done.returncode == 0 else HERE / "actor.py"


def manifest(role: Role) -> str:
    text = (
        f"manifest_spec: ductile.plugin\nmanifest_version: 1\nname: {role.name}\nversion: 1.0.0\nprotocol: 2\n"
        "entrypoint: run\ncommands: {poll: {}, handle: {}}\nconfig_keys: {optional: [api_key]}\n"
    )
    if role.keeps_facts:
        text += "fact_outputs:\n" + "".join(
            f"  - {{when: {{command: {command}}}, from: state_updates, fact_type: {role.name}.done}}\n"
            for command in ("poll", "handle")
        )
    return text


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since boot."""
    return int(stat_fields(pid)[19])


def cpu_seconds(pid: int) -> float:
    """The processor time a process has used."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """What procfs says about a process, from its state on."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2 :].split()


@define
class Core:
    """A started core. `url` is known when it is ready."""

    process: "subprocess.Popen[str]"
    begun: float
    stderr: Path
    log: Path
    log_begins: int
    url: str | None = None
    ready_seconds: float | None = None
    said: list[str] = field(factory=list)
    _news: threading.Event = field(factory=threading.Event)
    _listener: threading.Thread | None = None

    def __attrs_post_init__(self) -> None:
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr
        with self.stderr.open("a") as kept:
            for line in self.process.stderr:
                self.said.append(line.rstrip("\n"))
                kept.write(line)
                if " is ready: " in line:
                    self.ready_seconds = time.monotonic() - self.begun
                    self.url = next(part.strip(" ,\n") for part in line.split() if part.startswith("http://"))
                    self._news.set()
        self._news.set()

    def wait_until_starting(self) -> None:
        """It has said its first word: the configuration is read, lock, ledger and recovery come next."""
        while self.log.stat().st_size == self.log_begins and not self.wait_until_gone(0.001):
            pass

    def wait_until_ready(self, seconds: float = PATIENCE) -> bool:
        """True if it became ready in time; False if not, or if it ended first."""
        self._news.wait(seconds)
        return self.url is not None

    def wait_until_gone(self, seconds: float) -> bool:
        """True if it ended by itself in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> str:
        """kill -9, as a crash does it; a moment at which it was dead."""
        self.process.kill()
        self._gone()
        return to_text(datetime.now(UTC))

    def stop(self) -> int:
        """SIGTERM and the exit code; a core that does not end is killed and that is the code."""
        self.process.send_signal(signal.SIGTERM)
        if not self.wait_until_gone(PATIENCE):
            self.process.kill()
        return self._gone()

    def _gone(self) -> int:
        code = self.process.wait()
        if self._listener:
            self._listener.join(PATIENCE)
        if self.process.stderr:
            self.process.stderr.close()
        return code
