"""`init` beside a reload: whatever comes first, every plugin is prepared for the configuration that is in use."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define

from ductile.clock import Clock
from ductile.config.snapshot import Snapshot
from ductile.engine.initialise import Health, fingerprint_of, initialise, mark_pending
from ductile.engine.run_job import Surroundings
from ductile.hub import Hub
from ductile.ledger.inits import Init, all_inits, put
from ductile.ledger.writer import Ledger, open_ledger
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.engine.stage import open_log

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
    around: Surroundings
    health: Health
    first: Snapshot

    def reload(self, entry: str) -> Snapshot:
        text = (self.home.path / "config.yaml").read_text()
        self.home.write("config.yaml", text.replace(FIRST, entry))
        snapshot = snapshot_of(self.home)
        mark_pending(self.ledger, snapshot, self.health)
        return snapshot

    async def prepare(self, snapshot: Snapshot) -> None:
        with trio.fail_after(30):
            await initialise(self.ledger, snapshot, self.health, self.around, Hub(), trio.Event())

    def runs(self) -> int:
        return len(self.ran.read_text().split())


@asynccontextmanager
async def open_preparation(path: Path) -> AsyncIterator[Preparation]:
    home, ran = Home.make(path / "ductile"), path / "ran"
    home.plugin("echo", PREPARES.format(ran=ran), commands="poll: {}, init: {}")
    home.add(f"plugins:\n  echo: {FIRST}\n")
    first, health = snapshot_of(home), Health()
    with open_log(path / "log") as log:
        async with open_ledger(path / "ledger" / "state.db", synchronous="off") as ledger:
            around = Surroundings(log=log, clock=Clock(), instance="test", state_of=lambda _: "{}")
            mark_pending(ledger, first, health)
            yield Preparation(home, ran, ledger, around, health, first)


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
        write, reloaded = Ledger.write, list[Snapshot]()

        async def written_beside_a_reload(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            result = await write(ledger, *args, **kwargs)
            if not reloaded:
                reloaded.append(one.reload(entry))
            return result

        monkeypatch.setattr(Ledger, "write", written_beside_a_reload)
        await one.prepare(one.first)

        assert set(one.health.held()) == ({"echo"} if is_wanted_again else set())
        assert one.health.at_work == set()
        await one.prepare(reloaded[0])
        assert (one.runs(), one.health.held()) == (2 if is_wanted_again else 1, frozenset())
        if is_wanted_again:
            assert one.ledger.read(all_inits)["echo"].fingerprint == fingerprint_of(reloaded[0].lanes["echo"])


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
        await one.ledger.write(put, before, now=one.around.clock.now(), job_id="x")
        begun, go = tmp_path / "begun", tmp_path / "go"
        for pipe in (begun, go):
            os.mkfifo(pipe)
        (one.home.path / "plugins" / "echo" / "run").write_text(WAITS.format(begun=begun, go=go))
        mark_pending(one.ledger, snapshot := snapshot_of(one.home), one.health)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.prepare, snapshot)
            await trio.to_thread.run_sync(begun.read_text)
            meanwhile = one.ledger.read(all_inits)
            await trio.to_thread.run_sync(go.write_text, "")
        assert meanwhile == {}
        assert one.ledger.read(all_inits)["echo"].error is None


async def test_a_failure_is_over_when_no_init_is_wanted_any_more(tmp_path: Path) -> None:
    """The plugin is no longer unhealthy, and the ledger does not say that it is."""
    async with open_preparation(tmp_path) as one:
        failed = Init(plugin="echo", fingerprint="f", error="no login")
        await one.ledger.write(put, failed, now=one.around.clock.now(), job_id="x")
        manifest = one.home.path / "plugins" / "echo" / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace(", init: {}", ""))
        await one.prepare(one.reload(FIRST))
        assert (one.ledger.read(all_inits), one.health.held()) == ({}, frozenset())


async def test_an_init_whose_end_is_being_written_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at work until it is on record."""
    async with open_preparation(tmp_path) as one:
        write = Ledger.write

        async def written_beside_another_start(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(Ledger, "write", write)
            await one.prepare(one.first)
            return await write(ledger, *args, **kwargs)

        monkeypatch.setattr(Ledger, "write", written_beside_another_start)
        await one.prepare(one.first)
        assert one.runs() == 1
