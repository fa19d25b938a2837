"""`init` beside a reload: whatever comes first, every plugin is prepared for the configuration that is in use."""

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
from ductile.engine.maintenance.plugin_init import PluginHealth, fingerprint_of, initialise, mark_pending
from ductile.engine.process.descendants import ProcessTable, Swept
from ductile.ledger.storage.connections import Synchronous
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables.plugin_inits import Init, all_inits, put
from tests.e2e.service import Home
from tests.engine.builders import job_context, snapshot_of
from tests.engine.dispatching import Disk, disk, until
from tests.engine.stage import open_log
from tests.ledger.reading import look

__all__ = ["disk"]  # a fixture

PREPARES = """#!/bin/sh
cat >/dev/null
echo once >> {ran}
echo '{{"status": "ok", "result": "done"}}'
"""
FIRST = "{config: {a: 1}}"


@define
class Preparation:
    """A plugin that wants to be prepared, and a configuration for it that a reload replaces."""

    home: Home
    ran: Path
    ledger: Ledger
    ctx: JobContext
    health: PluginHealth
    first: Snapshot

    async def reload(self, entry: str) -> Snapshot:
        text = (self.home.path / "config.yaml").read_text()
        self.home.write("config.yaml", text.replace(FIRST, entry))
        snapshot = snapshot_of(self.home)
        await mark_pending(self.ledger, snapshot, self.health)
        return snapshot

    async def prepare(self, snapshot: Snapshot) -> None:
        with trio.fail_after(30):
            await initialise(snapshot, self.health, self.ctx, trio.Event())

    def runs(self) -> int:
        return len(self.ran.read_text().split())


@asynccontextmanager
async def open_preparation(path: Path, *, synchronous: Synchronous = "off") -> AsyncIterator[Preparation]:
    home, ran = Home.make(path / "ductile"), path / "ran"
    home.plugin("echo", PREPARES.format(ran=ran), commands="poll: {}, init: {}")
    home.add(f"plugins:\n  echo: {FIRST}\n")
    first, health = snapshot_of(home), PluginHealth()
    with open_log(path / "log") as log:
        async with open_ledger(path / "ledger" / "state.db", synchronous=synchronous) as ledger:
            await mark_pending(ledger, first, health)
            yield Preparation(home, ran, ledger, job_context(ledger, log, first), health, first)


@pytest.mark.parametrize(
    ("entry", "is_wanted_again"),
    [(FIRST, False), ("{enabled: false}", False), ("{config: {a: 2}}", True)],
    ids=["same", "disabled", "changed"],
)
async def test_a_reload_while_the_end_of_init_is_written_is_heeded(
    entry: str, is_wanted_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one ends without harm; a plugin that is configured anew waits until it is prepared anew."""
    async with open_preparation(tmp_path) as one:
        transact, reloaded = Ledger.transact, list[Snapshot]()

        async def written_beside_a_reload(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            result = await transact(ledger, *args, **kwargs)
            if not reloaded:
                reloaded.append(await one.reload(entry))
            return result

        monkeypatch.setattr(Ledger, "transact", written_beside_a_reload)
        await one.prepare(one.first)

        assert set(one.health.held()) == ({"echo"} if is_wanted_again else set())
        assert one.health.at_work == set()
        await one.prepare(reloaded[0])
        assert (one.runs(), one.health.held()) == (2 if is_wanted_again else 1, frozenset())
        if is_wanted_again:
            assert look(one.ledger, all_inits)["echo"].fingerprint == fingerprint_of(reloaded[0].lanes["echo"])


WAITS = """#!/bin/sh
cat >/dev/null
echo begun > {begun}
cat {go}
echo '{{"status": "ok", "result": "done"}}'
"""


@pytest.mark.parametrize("error", [None, "no login"], ids=["good", "failed"])
async def test_how_the_last_init_ended_is_forgotten_when_another_begins(error: str | None, tmp_path: Path) -> None:
    """Whoever looks into the ledger meanwhile finds that it has not come to an end, not what was before."""
    async with open_preparation(tmp_path) as one:
        before = Init(plugin="echo", fingerprint="another", error=error)
        await one.ledger.write(put, before, now=one.ctx.clock.now(), job_id="x")
        begun, go = tmp_path / "begun", tmp_path / "go"
        for pipe in (begun, go):
            os.mkfifo(pipe)
        (one.home.path / "plugins" / "echo" / "run").write_text(WAITS.format(begun=begun, go=go))
        await mark_pending(one.ledger, snapshot := snapshot_of(one.home), one.health)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.prepare, snapshot)
            await trio.to_thread.run_sync(begun.read_text)
            meanwhile = look(one.ledger, all_inits)
            await trio.to_thread.run_sync(go.write_text, "")
        assert meanwhile == {}
        assert look(one.ledger, all_inits)["echo"].error is None


async def test_a_failure_is_over_when_no_init_is_wanted_any_more(tmp_path: Path) -> None:
    """The plugin is no longer unhealthy, and the ledger does not say that it is."""
    async with open_preparation(tmp_path) as one:
        failed = Init(plugin="echo", fingerprint="f", error="no login")
        await one.ledger.write(put, failed, now=one.ctx.clock.now(), job_id="x")
        manifest = one.home.path / "plugins" / "echo" / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace(", init: {}", ""))
        await one.prepare(await one.reload(FIRST))
        assert (look(one.ledger, all_inits), one.health.held()) == ({}, frozenset())


async def test_a_failure_during_another_start_of_the_inits_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload reads which failures are outdated while the first `init` fails. That failure is not outdated."""
    async with open_preparation(tmp_path) as one, trio.open_nursery() as nursery:
        begun, go = tmp_path / "begun", tmp_path / "go"
        for pipe in (begun, go):
            os.mkfifo(pipe)
        script = f"#!/bin/sh\ncat >/dev/null\necho >{begun}\nread -r _ <{go}\nexit 1\n"
        (one.home.path / "plugins" / "echo" / "run").write_text(script)
        nursery.start_soon(one.prepare, one.first)
        await trio.to_thread.run_sync(begun.read_text)
        read = Ledger.read

        async def read_after_the_failure(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(Ledger, "read", read)
            await trio.to_thread.run_sync(go.write_text, "\n")
            await until(lambda: "echo" in one.health.unhealthy)
            return await read(ledger, *args, **kwargs)

        monkeypatch.setattr(Ledger, "read", read_after_the_failure)
        await one.prepare(one.first)
        assert look(one.ledger, all_inits)["echo"].error is not None


async def test_an_init_whose_end_is_being_written_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at work until it is on record."""
    async with open_preparation(tmp_path) as one:
        transact = Ledger.transact

        async def written_beside_another_start(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(Ledger, "transact", transact)
            await one.prepare(one.first)
            return await transact(ledger, *args, **kwargs)

        monkeypatch.setattr(Ledger, "transact", written_beside_another_start)
        await one.prepare(one.first)
        assert one.runs() == 1


async def test_an_init_that_ended_while_a_reload_read_the_ledger_is_not_run_again(tmp_path: Path) -> None:
    """The reload takes it for pending; the ledger says that it is done."""
    async with open_preparation(tmp_path) as one:
        pending = dict(one.health.initialising)
        await one.prepare(one.first)
        one.health.initialising = pending
        await one.prepare(one.first)
        assert (one.runs(), one.health.held()) == (1, frozenset())


async def test_an_init_is_killed_with_all_processes(tmp_path: Path) -> None:
    """A second signal, or a ledger that fails, ends the service without waiting."""
    async with open_preparation(tmp_path) as one, trio.open_nursery() as nursery:
        begun, go = tmp_path / "begun", tmp_path / "go"
        for pipe in (begun, go):
            os.mkfifo(pipe)
        (one.home.path / "plugins" / "echo" / "run").write_text(WAITS.format(begun=begun, go=go))
        await mark_pending(one.ledger, snapshot := snapshot_of(one.home), one.health)
        nursery.start_soon(one.prepare, snapshot)
        await trio.to_thread.run_sync(begun.read_text)
        one.ctx.processes.kill_all()
    assert "SIGKILL" in one.health.unhealthy["echo"]


class FaultyTable(ProcessTable):
    """A process table that cannot sweep."""

    async def sweep(self, tag: int) -> Swept:
        raise RuntimeError("a bug")


async def test_an_internal_error_in_an_init_makes_its_plugin_unhealthy_and_ends_nothing_else(tmp_path: Path) -> None:
    """Raised, it would end the service, and every start after it."""
    async with open_preparation(tmp_path) as one:
        await initialise(one.first, one.health, evolve(one.ctx, processes=FaultyTable()), trio.Event())
        assert "a bug" in one.health.unhealthy["echo"]
        assert "a bug" in str(look(one.ledger, all_inits)["echo"].error)


async def test_an_init_waits_for_a_disk_that_takes_long(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other jobs of the service wait for it too; it is no reason to end."""
    monkeypatch.setattr("ductile.ledger.storage.writer.SYNC_TIMEOUT", 0.05)
    async with open_preparation(tmp_path, synchronous="full") as one, trio.open_nursery() as nursery:
        with disk.held():
            nursery.start_soon(one.prepare, one.first)
            await until(lambda: "echo" in look(one.ledger, all_inits))
            with pytest.raises(LedgerError):  # a caller that asked later has waited long enough
                await one.ledger.write(put, Init(plugin="other", fingerprint="f"), now=one.ctx.clock.now(), job_id="x")
            assert one.health.held() == {"echo"}
            disk.release()
    assert one.health.held() == frozenset()
