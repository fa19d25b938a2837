"""`init` and concurrent reloads: every plugin is initialised for the current configuration."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve

from ductile.config.snapshot import Snapshot
from ductile.core.errors import LedgerError
from ductile.engine.job_context import JobContext
from ductile.engine.maintenance.plugin_init import PluginHealth, fingerprint_of, initialise_plugins, mark_pending
from ductile.engine.process.descendants import ProcessTable, SweepResult
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.connections import Synchronous
from ductile.ledger.tables.plugin_inits import PluginInit, all_inits, put
from tests.e2e.service import Home
from tests.engine.builders import job_context, snapshot_of
from tests.engine.dispatcher_service import Disk, disk, wait_until
from tests.engine.scheduler_service import open_log
from tests.ledger.reading import read_now

__all__ = ["disk"]  # a fixture

pytestmark = pytest.mark.process

SUCCEEDS = """#!/bin/sh
cat >/dev/null
echo once >> {ran}
echo '{{"status": "ok", "result": "done"}}'
"""
FIRST_ENTRY = "{config: {a: 1}}"


@define
class InitService:
    """A service with a plugin that has an `init` command. A reload replaces its configuration."""

    home: Home
    ran: Path
    ledger: Ledger
    ctx: JobContext
    health: PluginHealth
    first: Snapshot

    async def reload(self, entry: str) -> Snapshot:
        text = (self.home.path / "config.yaml").read_text()
        self.home.write("config.yaml", text.replace(FIRST_ENTRY, entry))
        snapshot = snapshot_of(self.home)
        await mark_pending(self.ledger, snapshot, self.health)
        return snapshot

    async def initialise(self, snapshot: Snapshot) -> None:
        with trio.fail_after(30):
            await initialise_plugins(snapshot, self.health, self.ctx, trio.Event())

    def runs(self) -> int:
        return len(self.ran.read_text().split())


@asynccontextmanager
async def open_init_service(path: Path, *, synchronous: Synchronous = "off") -> AsyncIterator[InitService]:
    home, ran = Home.make(path / "ductile"), path / "ran"
    home.plugin("echo", SUCCEEDS.format(ran=ran), commands="poll: {}, init: {}")
    home.add(f"plugins:\n  echo: {FIRST_ENTRY}\n")
    first, health = snapshot_of(home), PluginHealth()
    with open_log(path / "log") as log:
        async with open_ledger(path / "ledger" / "state.db", synchronous=synchronous) as ledger:
            await mark_pending(ledger, first, health)
            yield InitService(home, ran, ledger, job_context(ledger, log, first), health, first)


@pytest.mark.parametrize(
    ("entry", "runs_again"),
    [(FIRST_ENTRY, False), ("{enabled: false}", False), ("{config: {a: 2}}", True)],
    ids=["same", "disabled", "changed"],
)
async def test_a_reload_while_the_result_of_init_is_written_takes_effect(
    entry: str, runs_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin whose configuration changed stays blocked until it is initialised again."""
    async with open_init_service(tmp_path) as service:
        transact, reloaded = Ledger.transact, list[Snapshot]()

        async def transact_then_reload(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            result = await transact(ledger, *args, **kwargs)
            if not reloaded:
                reloaded.append(await service.reload(entry))
            return result

        monkeypatch.setattr(Ledger, "transact", transact_then_reload)
        await service.initialise(service.first)

        assert set(service.health.blocked()) == ({"echo"} if runs_again else set())
        assert service.health.running == set()
        await service.initialise(reloaded[0])
        assert (service.runs(), service.health.blocked()) == (2 if runs_again else 1, {})
        if runs_again:
            assert read_now(service.ledger, all_inits)["echo"].fingerprint == fingerprint_of(
                reloaded[0].plugins["echo"]
            )


WAITS = """#!/bin/sh
cat >/dev/null
echo started > {started}
cat {go}
echo '{{"status": "ok", "result": "done"}}'
"""


@pytest.mark.parametrize("error", [None, "no login"], ids=["good", "failed"])
async def test_the_result_of_the_last_init_is_deleted_when_another_starts(error: str | None, tmp_path: Path) -> None:
    """While `init` runs, the ledger has no result."""
    async with open_init_service(tmp_path) as service:
        before = PluginInit(plugin="echo", fingerprint="another", error=error)
        await service.ledger.write(put, before, now=service.ctx.clock.now(), job_id="x")
        started, go = tmp_path / "started", tmp_path / "go"
        for pipe in (started, go):
            os.mkfifo(pipe)
        (service.home.path / "plugins" / "echo" / "run").write_text(WAITS.format(started=started, go=go))
        await mark_pending(service.ledger, snapshot := snapshot_of(service.home), service.health)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.initialise, snapshot)
            await trio.to_thread.run_sync(started.read_text)
            meanwhile = read_now(service.ledger, all_inits)
            await trio.to_thread.run_sync(go.write_text, "")
        assert meanwhile == {}
        assert read_now(service.ledger, all_inits)["echo"].error is None


async def test_a_failure_is_deleted_when_the_plugin_loses_its_init(tmp_path: Path) -> None:
    """The plugin is healthy, and the ledger has no failure."""
    async with open_init_service(tmp_path) as service:
        failed = PluginInit(plugin="echo", fingerprint="f", error="no login")
        await service.ledger.write(put, failed, now=service.ctx.clock.now(), job_id="x")
        manifest = service.home.path / "plugins" / "echo" / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace(", init: {}", ""))
        await service.initialise(await service.reload(FIRST_ENTRY))
        assert (read_now(service.ledger, all_inits), service.health.blocked()) == ({}, {})


async def test_a_failure_while_another_reload_starts_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload reads the outdated failures while the first `init` fails. That failure is not outdated."""
    async with open_init_service(tmp_path) as service, trio.open_nursery() as nursery:
        started, go = tmp_path / "started", tmp_path / "go"
        for pipe in (started, go):
            os.mkfifo(pipe)
        script = f"#!/bin/sh\ncat >/dev/null\necho >{started}\nread -r _ <{go}\nexit 1\n"
        (service.home.path / "plugins" / "echo" / "run").write_text(script)
        nursery.start_soon(service.initialise, service.first)
        await trio.to_thread.run_sync(started.read_text)
        read = Ledger.read

        async def read_after_the_failure(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(Ledger, "read", read)
            await trio.to_thread.run_sync(go.write_text, "\n")
            await wait_until(lambda: "echo" in service.health.unhealthy)
            return await read(ledger, *args, **kwargs)

        monkeypatch.setattr(Ledger, "read", read_after_the_failure)
        await service.initialise(service.first)
        assert read_now(service.ledger, all_inits)["echo"].error is not None


async def test_an_init_whose_result_is_being_written_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as running until its result is stored."""
    async with open_init_service(tmp_path) as service:
        transact = Ledger.transact

        async def transact_after_another_start(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(Ledger, "transact", transact)
            await service.initialise(service.first)
            return await transact(ledger, *args, **kwargs)

        monkeypatch.setattr(Ledger, "transact", transact_after_another_start)
        await service.initialise(service.first)
        assert service.runs() == 1


async def test_an_init_that_succeeded_while_a_reload_read_the_ledger_is_not_run_again(tmp_path: Path) -> None:
    """The reload marks it as pending, but the ledger has its success."""
    async with open_init_service(tmp_path) as service:
        pending = dict(service.health.initialising)
        await service.initialise(service.first)
        service.health.initialising = pending
        await service.initialise(service.first)
        assert (service.runs(), service.health.blocked()) == (1, {})


async def test_an_init_is_killed_with_all_processes(tmp_path: Path) -> None:
    """A second signal or a broken ledger kills it without waiting."""
    async with open_init_service(tmp_path) as service, trio.open_nursery() as nursery:
        started, go = tmp_path / "started", tmp_path / "go"
        for pipe in (started, go):
            os.mkfifo(pipe)
        (service.home.path / "plugins" / "echo" / "run").write_text(WAITS.format(started=started, go=go))
        await mark_pending(service.ledger, snapshot := snapshot_of(service.home), service.health)
        nursery.start_soon(service.initialise, snapshot)
        await trio.to_thread.run_sync(started.read_text)
        service.ctx.processes.kill_all()
    assert "SIGKILL" in service.health.unhealthy["echo"]


class FaultyTable(ProcessTable):
    """A process table that cannot sweep."""

    async def sweep(self, tag: int) -> SweepResult:
        raise RuntimeError("a bug")


async def test_an_internal_error_in_an_init_makes_its_plugin_unhealthy_and_ends_nothing_else(tmp_path: Path) -> None:
    """If it were raised, it would end the service at every start."""
    async with open_init_service(tmp_path) as service:
        await initialise_plugins(
            service.first, service.health, evolve(service.ctx, processes=FaultyTable()), trio.Event()
        )
        assert "a bug" in service.health.unhealthy["echo"]
        assert "a bug" in str(read_now(service.ledger, all_inits)["echo"].error)


async def test_an_init_waits_for_a_slow_disk(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk does not end the service."""
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.SYNC_TIMEOUT", 0.05)
    async with open_init_service(tmp_path, synchronous="full") as service, trio.open_nursery() as nursery:
        with disk.blocked():
            nursery.start_soon(service.initialise, service.first)
            await wait_until(lambda: "echo" in read_now(service.ledger, all_inits))
            with pytest.raises(LedgerError):  # a caller that asked later has waited long enough
                await service.ledger.write(
                    put, PluginInit(plugin="other", fingerprint="f"), now=service.ctx.clock.now(), job_id="x"
                )
            assert service.health.blocked() == {"echo": "initialising"}
            disk.release()
    assert service.health.blocked() == {}
