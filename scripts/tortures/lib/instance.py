"""The instance under test: a configuration directory with the workload's plugins, and the service that runs in it.

Starts, kills and stops a service process and finds the plugin processes that it left behind.
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
from scripts.tortures.lib.workload import (
    PLUGINS,
    WorkloadPipeline,
    WorkloadPlugin,
    pipelines_between,
    routes_between,
)

LIB = Path(__file__).parent
TOKEN = "torture-token-d41d8cd98f00b204"
CANARY = "torture-canary-9e107d9d372bb682"
"""A secret in the configuration. The checker searches logs and the ledger for it."""
START_TIMEOUT = STOP_TIMEOUT = 60.0
MAX_OUTSTANDING_POLLS = 20


@define
class Instance:
    """One configuration directory, one ledger, one effects log."""

    path: Path
    workers: int = 4
    service_settings: str = ""
    """More settings for the `service` section, each after a comma."""
    plugins: tuple[WorkloadPlugin, ...] = PLUGINS
    max_attempts: int = 4
    plugin_program: Path | None = None
    """The executable of every plugin; built by `build` if it is None."""

    @property
    def ledger(self) -> Path:
        return self.path / "data" / "state.db"

    @property
    def effects_log(self) -> Path:
        return self.path / "effects"

    @property
    def routes(self) -> tuple[tuple[str, str, str], ...]:
        return routes_between(self.plugins)

    @property
    def pipelines(self) -> tuple[WorkloadPipeline, ...]:
        return pipelines_between(self.plugins)

    @property
    def service_log(self) -> Path:
        return self.path / "service.log"

    @property
    def stderr_log(self) -> Path:
        return self.path / "service.stderr"

    def build(self) -> None:
        """Write the configuration and the plugins."""
        program = self.plugin_program or build_plugin_program(self.path)
        for plugin in self.plugins:
            folder = self.path / "plugins" / plugin.name
            folder.mkdir(mode=0o700, parents=True)
            (folder / "manifest.yaml").write_text(manifest(plugin))
            shutil.copy(program, folder / "run")
            (folder / "run").chmod(0o700)
        self.configure()
        for folder in (self.path, self.path / "plugins"):
            folder.chmod(0o700)

    def configure(self, *, scheduled: bool = True) -> None:
        """Write `config.yaml`. Without schedules the queue can become empty."""
        config = self.path / "config.yaml"
        config.write_text(self.config_text(scheduled=scheduled))
        config.chmod(0o600)

    def config_text(self, *, scheduled: bool = True) -> str:
        settings = f"max_workers: {self.workers}, drain_timeout: 5s, log_level: info{self.service_settings}"
        lines = [
            "plugin_roots: [plugins]",
            "state: {path: data/state.db}",
            f"service: {{{settings}}}",
            "api:",
            "  enabled: true",
            "  listen: 127.0.0.1:0",
            f"  auth: {{tokens: [{{name: torture, token: {TOKEN}, scopes: ['*']}}]}}",
            "plugins:",
        ]
        for plugin in self.plugins:
            lines += self._plugin_lines(plugin, scheduled=scheduled)
        lines.append("routes:" if self.routes else "routes: []")
        lines += [f"  - {{from: {source}, event_type: {kind}, to: {to}}}" for source, kind, to in self.routes]
        lines.append("pipelines:" if self.pipelines else "pipelines: []")
        lines += [pipeline.yaml.strip("\n") for pipeline in self.pipelines]
        return "\n".join(lines) + "\n"

    def _plugin_lines(self, plugin: WorkloadPlugin, *, scheduled: bool) -> list[str]:
        environ = ", ".join(f"{name}: '{value}'" for name, value in plugin.environ(self.effects_log).items())
        lines = [
            f"  {plugin.name}:",
            f"    retry: {{max_attempts: {self.max_attempts}, backoff_base: 100ms}}",
            f"    timeouts: {{poll: {plugin.timeout}, handle: {plugin.timeout}}}",
            f"    config: {{api_key: {CANARY}}}",
            f"    env: {{{environ}}}",
            f"    notify_on_complete: {str(plugin.notifies).lower()}",
        ]
        if plugin.every and scheduled:
            lines += [
                f"    schedules: [{{every: {plugin.every}, if_running: {plugin.if_running}}}]",
                f"    max_outstanding_polls: {MAX_OUTSTANDING_POLLS}",
                "    circuit_breaker: {threshold: 1000}",
            ]
        return lines

    @contextmanager
    def read_ledger(self) -> Iterator[sqlite3.Connection]:
        """Open the ledger read-only. A service must have created it."""
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True, timeout=10)) as db:
            yield db

    def launch(self, environ: Mapping[str, str] | None = None) -> "ServiceProcess":
        """Start a service process without waiting until it is ready. Its log is appended to `service_log`."""
        command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(self.path)]
        started_at = time.monotonic()
        with self.service_log.open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        return ServiceProcess(process, started_at, self.stderr_log, self.service_log, log_start)

    def plugin_processes(self) -> dict[int, int]:
        """Find the live plugin processes of this instance: pid → start time in clock ticks.

        Looks for the path of the effects log in their environment, not for Ductile's own marker.
        """
        marker = f"WORKLOAD_EFFECTS_LOG={self.effects_log}".encode()
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if marker in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        found[int(name)] = start_ticks(int(name))
                except OSError:
                    continue
        return found


def build_plugin_program(directory: Path) -> Path:
    """Compile the workload's plugin into `directory`, or return the Python version if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return LIB / "workload_plugin.py"
    built = directory / "workload_plugin"
    command = [compiler, "-O2", "-static", "-o", str(built), str(LIB / "workload_plugin.c")]
    done = subprocess.run(command, capture_output=True, check=False)
    return built if done.returncode == 0 else LIB / "workload_plugin.py"


def manifest(plugin: WorkloadPlugin) -> str:
    text = (
        f"manifest_spec: ductile.plugin\nmanifest_version: 1\nname: {plugin.name}\nversion: 1.0.0\nprotocol: 2\n"
        "entrypoint: run\ncommands: {poll: {}, handle: {}}\nconfig_keys: {optional: [api_key]}\n"
    )
    if plugin.records_facts:
        text += "fact_outputs:\n" + "".join(
            f"  - {{when: {{command: {command}}}, from: state_updates, fact_type: {plugin.name}.done}}\n"
            for command in ("poll", "handle")
        )
    return text


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot."""
    return int(stat_fields(pid)[19])


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name; the first one is the state."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2 :].split()


@define
class ServiceProcess:
    """A started service. `url` is set when it is ready."""

    process: "subprocess.Popen[str]"
    started_at: float
    stderr_log: Path
    log: Path
    log_start: int
    """The size of the log when this process was started."""
    url: str | None = None
    ready_seconds: float | None = None
    stderr: list[str] = field(factory=list)
    _ready_or_ended: threading.Event = field(factory=threading.Event)
    _reader: threading.Thread | None = None

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr
        with self.stderr_log.open("a") as copy:
            for line in self.process.stderr:
                self.stderr.append(line.rstrip("\n"))
                copy.write(line)
                if " is ready: " in line:
                    self.ready_seconds = time.monotonic() - self.started_at
                    self.url = listen_urls([line])[0]
                    self._ready_or_ended.set()
        self._ready_or_ended.set()

    def wait_until_starting(self) -> None:
        """Wait for the first log line: the configuration is read; the lock, the ledger and recovery come next."""
        while self.log.stat().st_size == self.log_start and not self.wait_for_exit(0.001):
            pass

    def wait_until_ready(self, seconds: float = START_TIMEOUT) -> bool:
        """Return True if the service is ready in time, False if it is not or has ended."""
        self._ready_or_ended.wait(seconds)
        return self.url is not None

    def wait_for_exit(self, seconds: float) -> bool:
        """Return True if the process exits in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> str:
        """Send SIGKILL, wait, and return a time at which the process was dead, in the ledger's format."""
        self.process.kill()
        self._close()
        return to_text(datetime.now(UTC))

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. A service that does not exit in time is killed."""
        self.process.send_signal(signal.SIGTERM)
        if not self.wait_for_exit(STOP_TIMEOUT):
            self.process.kill()
        return self._close()

    def _close(self) -> int:
        code = self.process.wait()
        if self._reader:
            self._reader.join(STOP_TIMEOUT)
        if self.process.stderr:
            self.process.stderr.close()
        return code


def listen_urls(stderr: list[str]) -> list[str]:
    """Return the addresses in the line that reports a ready service: the API first, then webhooks."""
    (line,) = [line for line in stderr if " is ready: " in line]
    return [part.strip(" ,\n") for part in line.split() if part.startswith("http://")]
