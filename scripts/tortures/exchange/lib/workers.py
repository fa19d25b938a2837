"""The worker processes: `ductile exchange run`, each in its own session. They are killed, stopped and replaced."""

import os
import signal
import subprocess
import sys

from attrs import define, field

from scripts.tortures.exchange.lib.instance import (
    POISON,
    STEPS,
    WORK,
    WORKER_LEASE_SECONDS,
    ExchangeInstance,
    command_environ,
)

EXIT_TIMEOUT = 60.0
NO_SERVICE_EXIT = 69
"""A worker that has never reached a service exits."""
TOPICS = (WORK, STEPS, WORK, POISON, WORK, STEPS, WORK, WORK)
"""The topics of eight workers. More of them begin again."""


@define(eq=False)
class WorkerProcess:
    """One worker host."""

    process: "subprocess.Popen[bytes]"
    topic: str
    group: str
    """Its own worker group, which finds its claims."""

    @property
    def pid(self) -> int:
        return self.process.pid


@define
class Workers:
    """All worker hosts. `faults` has those that ended by themselves."""

    instance: ExchangeInstance
    count: int
    running: list[WorkerProcess] = field(factory=list)
    faults: list[str] = field(factory=list)
    _started: int = 0

    def fill(self) -> None:
        """Start a worker for each one that has ended."""
        for worker in list(self.running):
            if (code := worker.process.poll()) is not None:
                self.running.remove(worker)
                if code != NO_SERVICE_EXIT:
                    self.faults.append(f"{worker.group} exited with {code}")
        missing = [TOPICS[number % len(TOPICS)] for number in range(self.count)]
        for worker in self.running:
            missing.remove(worker.topic)
        self.running += [self._start(topic) for topic in missing]

    def _start(self, topic: str) -> WorkerProcess:
        self._started += 1
        group = f"worker-{self._started}"
        flags = ("--topic", topic, "--lease-seconds", str(WORKER_LEASE_SECONDS), "--group", group)
        config = ("--config", str(self.instance.path))
        command = [
            sys.executable,
            "-m",
            "ductile",
            "exchange",
            "run",
            *config,
            *flags,
            "--",
            str(self.instance.command),
        ]
        with self.instance.worker_log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **command_environ(self.instance)},
                start_new_session=True,
            )
        return WorkerProcess(process, topic, group)

    def kill(self, worker: WorkerProcess) -> None:
        """Send SIGKILL. The command that it runs continues without it."""
        worker.process.kill()
        worker.process.wait()
        self.running.remove(worker)

    def stop_all(self) -> None:
        """Send SIGTERM to every worker; each must exit with 0."""
        for worker in self.running:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self.running:
            try:
                code = worker.process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                code = worker.process.wait()
            if code not in (0, NO_SERVICE_EXIT):
                self.faults.append(f"{worker.group} exited with {code} after SIGTERM")
        self.running.clear()
