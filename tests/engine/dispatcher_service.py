"""A dispatcher with a real ledger and real plugin processes. The test controls the disk and when plugins respond."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from attrs import define, field

from ductile.config.snapshot import Snapshot
from ductile.core.errors import LedgerError
from ductile.core.model import NewJob
from ductile.engine.control.cancel import JobCanceller
from ductile.engine.dispatcher import dispatch
from ductile.engine.job_context import JobContext
from ductile.engine.process.procfs import JOB_MARKER
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.connections import Synchronous
from ductile.ledger.storage.db import Db
from tests.e2e.service import Home
from tests.engine.builders import job_context, snapshot_of
from tests.engine.scheduler_service import NOON, open_log
from tests.ledger.reading import read_now

TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.005
ANSWER = """echo '{"status": "ok", "result": "done"}'"""
GATED = f"""cd "{{gates}}" && mkfifo "go.${JOB_MARKER}"
echo $$ >> "started.${JOB_MARKER}"
read -r _ < "go.${JOB_MARKER}"
{ANSWER}"""
"""Runs until the test calls `finish`."""


@define(eq=False)
class Disk:
    """A disk whose syncs a test can block or fail. By default every sync succeeds immediately."""

    syncs: int = 0
    """The number of completed syncs."""
    fails: bool = False
    _may_sync: threading.Event = field(factory=threading.Event)

    def __attrs_post_init__(self) -> None:
        self._may_sync.set()

    def sync(self, _: int) -> None:
        """Replace `os.fdatasync`. Called in a thread."""
        self._may_sync.wait(TIMEOUT_SECONDS)
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        self.syncs += 1

    def release(self) -> None:
        self._may_sync.set()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block syncs within the block, until the test calls `release`."""
        self._may_sync.clear()
        syncs = self.syncs
        try:
            yield
            assert self._may_sync.is_set() or self.syncs <= syncs
        finally:
            self.release()


@define(eq=False)
class FaultyLedger:
    """A ledger whose transactions raise `error` while it is set."""

    ledger: Ledger
    error: LedgerError | None = None
    refused: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
        if self.error is not None:
            self.refused += 1
            raise self.error
        return await self.ledger.transact(work, **options)


@define(eq=False)
class DispatcherService:
    """One configuration, one ledger and one dispatcher."""

    home: Home
    ctx: JobContext
    ledger: Ledger
    faults: FaultyLedger
    snapshot: Snapshot
    blocked_plugins: set[str]
    gates: Path
    lines: Path
    _nursery: trio.Nursery
    stopping: trio.Event = field(factory=trio.Event)

    async def start(self, nursery: trio.Nursery | None = None) -> None:
        """Start the dispatcher in `nursery`, or until the test ends."""
        await (nursery or self._nursery).start(dispatch, self.ctx, self.stopping, name="dispatcher")

    async def queue(self, plugin: str = "echo", *, is_durable: bool = True, **values: Any) -> str:
        """Queue a job and announce it. With `is_durable=False` do not wait for the disk."""
        new = NewJob(**{"plugin": plugin, "command": "poll", "submitted_by": "test"} | values)
        made = await self.ledger.transact(lambda db: enqueue(db, new, now=NOON), wait=is_durable)
        self.ctx.hub.announce_work()
        return made.job_id

    async def queue_many(self, count: int, **values: Any) -> list[str]:
        return [await self.queue(**values) for _ in range(count)]

    async def cancel(self, job_id: str, reason: str) -> bool:
        """Cancel a job as the API does."""
        ctx = self.ctx
        return await JobCanceller(
            self.ledger, ctx.hub, ctx.clock, ctx.snapshot, ctx.running.stop_job, ctx.metrics
        ).cancel(job_id, reason, "token:test")

    async def finish(self, *job_ids: str) -> None:
        """Let gated jobs respond. Waits until they have started."""
        for job_id in job_ids:
            await self.until_started(job_id)
            await trio.to_thread.run_sync((self.gates / f"go.{job_id}").write_text, "\n")

    async def until_started(self, *job_ids: str) -> None:
        await wait_until(lambda: all(self.pids(job_id) for job_id in job_ids))

    async def until_ended(self, *job_ids: str) -> None:
        """Wait until these jobs have ended and that is committed."""
        await wait_until(lambda: all(self.status(job_id) not in ("queued", "running") for job_id in job_ids))

    def pids(self, job_id: str) -> list[int]:
        """Return the process ids of a gated job, one per attempt."""
        started = self.gates / f"started.{job_id}"
        return [int(line) for line in started.read_text().split()] if started.exists() else []

    def status(self, job_id: str) -> str:
        ((status,),) = self.rows("SELECT status FROM job_queue WHERE id = ?", job_id)
        return str(status)

    def error(self, job_id: str) -> Any:
        ((error,),) = self.rows("SELECT last_error FROM job_queue WHERE id = ?", job_id)
        return error

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return committed rows, durable or not."""
        return read_now(self.ledger, lambda db: db.execute(statement, values).fetchall())

    async def execute(self, statement: str, *values: Any) -> None:
        await self.ledger.write(lambda db: db.execute(statement, values))

    def log(self) -> str:
        return self.lines.read_text()

    @contextmanager
    def busy_ledger(self) -> Iterator[None]:
        """Keep another transaction open within the block."""
        may_end = threading.Event()
        self._nursery.start_soon(lambda: self.ledger.transact(lambda _: may_end.wait(TIMEOUT_SECONDS), in_thread=True))
        try:
            yield
        finally:
            may_end.set()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true. Fails after TIMEOUT_SECONDS."""
    with trio.fail_after(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - the ledger and the plugins have no trio.Event
            await trio.sleep(POLL_SECONDS)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.os.fdatasync", made.sync)
    yield made
    made.release()


@asynccontextmanager
async def open_dispatcher(
    path: Path,
    script: str = GATED,
    *,
    workers: int = 4,
    drain: str = "10s",
    config: str = "plugins: {echo: {}}\n",
    synchronous: Synchronous = "off",
    **plugins: str,
) -> AsyncIterator[DispatcherService]:
    """Open a ledger and a dispatcher that is not started. Plugin `echo` runs `script`; `plugins` are name=script."""
    gates = path / "gates"
    gates.mkdir()
    home = Home.make(path / "ductile", workers=workers, drain=drain)
    for name, body in {"echo": script, **plugins}.items():
        home.plugin(name, f"#!/bin/sh\n{body.replace('{gates}', str(gates))}\n")
    home.write("tokens.yaml", "tokens: [{name: line, key: line-secret-0123456789abcdef}]\n")
    home.add(config)
    home.seal()
    blocked_plugins: set[str] = set()
    with open_log(path / "log") as log:
        async with (
            open_ledger(path / "ledger" / "state.db", synchronous=synchronous) as ledger,
            trio.open_nursery() as nursery,  # inside: the dispatcher ends before the ledger is closed
        ):
            faults, snapshot = FaultyLedger(ledger), snapshot_of(home)
            service: DispatcherService
            current: dict[str, Any] = {
                "snapshot": lambda: service.snapshot,
                "blocked_plugins": lambda: dict.fromkeys(blocked_plugins, "paused"),
            }
            ctx = job_context(cast(Ledger, faults), log, snapshot, **current)
            service = DispatcherService(
                home, ctx, ledger, faults, snapshot, blocked_plugins, gates, path / "log", nursery
            )
            yield service
            nursery.cancel_scope.cancel()
