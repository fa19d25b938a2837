"""Every plugin process runs in a task of its own, with a nursery for its pipes and a deadline scope.

The owners are found in Trio's task tree and compared with the children of this process in procfs.
"""

import math
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field, frozen

from ductile.engine.maintenance.plugin_init import PluginHealth, initialise_plugins, mark_pending
from ductile.engine.process.procfs import adopted_children
from ductile.engine.process.run import run_process
from ductile.ops.health import check_plugins
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.engine.dispatcher_service import ANSWER, open_dispatcher, wait_until

pytestmark = pytest.mark.process
READS_ALL = f"cat >/dev/null\n{ANSWER}"
UNREAD = f"plugins: {{echo: {{config: {{padding: {'x' * 200_000}}}}}}}\n"
"""A request larger than a pipe, so that a plugin that does not read has a stdin task."""


@frozen
class Owner:
    """The task that runs a process, with the scope and the nursery of the run."""

    task: trio.lowlevel.Task
    deadline: trio.CancelScope
    pipes: trio.Nursery

    @property
    def is_complete(self) -> bool:
        """True if the nursery belongs to the task and the deadline is finite."""
        return self.pipes in self.task.child_nurseries and self.deadline.deadline < math.inf

    @property
    def pipe_tasks(self) -> list[str]:
        return sorted(task.name for task in self.pipes.child_tasks)


def find_owners() -> dict[int, Owner]:
    """Return the owner of every process that a task runs, by process id."""
    top = trio.lowlevel.current_root_task()
    assert top is not None
    owners: dict[int, Owner] = {}
    for task in _tasks_below(top):
        for run in _frames_of_run_process(task.coro):
            if "pipes" in run:
                pid = run["process"].pid
                assert pid not in owners, "two tasks run one process"
                owners[pid] = Owner(task, run["deadline"], run["pipes"])
    return owners


def _tasks_below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _tasks_below(child)


def _frames_of_run_process(coroutine: Any) -> Iterator[dict[str, Any]]:
    """Return the local variables of `run_process` if the task is in it."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if frame.f_code is run_process.__code__:
            yield frame.f_locals
        coroutine = coroutine.cr_await


@frozen
class UntilSeen:
    script: str
    seen: Callable[[], object]


@define(eq=False)
class Inspector(trio.abc.Instrument):
    """An instrument that compares owners and children before the event loop waits for I/O."""

    names: dict[int, str] = field(factory=dict)
    """Process id → the name of the task that ran it."""
    unowned: set[int] = field(factory=set)
    seen: Callable[[], object] = bool
    """Called for each process when it is seen first."""

    def before_io_wait(self, timeout: float) -> None:
        owners = find_owners()
        for child in adopted_children(known=()):
            if child.pid not in self.names.keys() | self.unowned:
                self.seen()
            owner = owners.get(child.pid)
            if owner is not None and owner.is_complete:
                self.names[child.pid] = owner.task.name
            else:
                self.unowned.add(child.pid)


@pytest.fixture
async def inspector() -> Inspector:
    made = Inspector()
    trio.lowlevel.add_instrument(made)
    return made


@pytest.fixture
def until_seen(tmp_path: Path) -> Iterator[UntilSeen]:
    """Return a shell script whose process runs until an inspector has seen it, and what the inspector must call."""
    path = tmp_path / "seen"
    os.mkfifo(path)
    fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    yield UntilSeen(f"#!/bin/sh\nread _ < {path}\n{READS_ALL}\n", lambda: os.write(fifo, b"\n"))
    os.close(fifo)


async def test_a_running_job_has_a_task_a_nursery_for_its_pipes_and_a_deadline(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, config=UNREAD) as dispatcher:
        await dispatcher.start()
        jobs = await dispatcher.queue_many(3)
        await dispatcher.until_started(*jobs)
        owners, children = find_owners(), {child.pid for child in adopted_children(known=())}
        assert set(owners) == children == {pid for job_id in jobs for pid in dispatcher.pids(job_id)}
        for attempt in dispatcher.ctx.running:
            assert attempt.pid is not None
            owner = owners[attempt.pid]
            assert owner.is_complete
            assert owner.deadline is attempt.control.deadline
            assert owner.pipe_tasks == ["stderr", "stdin", "stdout"]
            assert owner.task.name == f"job {attempt.job.id}"
            assert owner.task.parent_nursery is not None
            assert owner.task.parent_nursery.parent_task.name == "dispatcher"
        await dispatcher.finish(*jobs)
        await dispatcher.until_ended(*jobs)


async def test_no_process_of_a_job_runs_without_an_owner(tmp_path: Path, inspector: Inspector) -> None:
    """Checked whenever the loop waits for I/O; a process that exits before that is not seen."""
    async with open_dispatcher(tmp_path, READS_ALL) as dispatcher:
        await dispatcher.start()
        jobs = await dispatcher.queue_many(20)
        await dispatcher.until_ended(*jobs)
    assert inspector.names
    assert set(inspector.names.values()) <= {f"job {job_id}" for job_id in jobs}
    assert inspector.unowned == set()


async def test_the_inspector_finds_a_process_without_an_owner(inspector: Inspector) -> None:
    """Proves that the other tests can fail."""
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:  # noqa: ASYNC220 - quick
        await wait_until(lambda: bool(inspector.unowned))
        process.kill()
    assert inspector.unowned == {process.pid}


async def test_the_deadline_of_the_attempt_ends_its_process(tmp_path: Path) -> None:
    """The scope of the attempt drives the escalation."""
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue(max_attempts=1)
        await dispatcher.until_started(job_id)
        (attempt,) = dispatcher.ctx.running
        assert attempt.control.deadline is not None
        attempt.control.deadline.deadline = trio.current_time()
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "dead"
        assert "timed out" in dispatcher.error(job_id)


async def test_the_process_of_an_init_has_an_owner(tmp_path: Path, inspector: Inspector, until_seen: UntilSeen) -> None:
    inspector.seen = until_seen.seen
    async with open_dispatcher(tmp_path, READS_ALL) as dispatcher:
        dispatcher.home.plugin("pump", until_seen.script, commands="poll: {}, init: {}")
        text = (dispatcher.home.path / "config.yaml").read_text()
        dispatcher.home.write("config.yaml", text.replace("echo: {}", "echo: {}, pump: {}"))
        dispatcher.snapshot, health = snapshot_of(dispatcher.home), PluginHealth()
        await mark_pending(dispatcher.ledger, dispatcher.snapshot, health)
        await initialise_plugins(dispatcher.snapshot, health, dispatcher.ctx, trio.Event())
        assert health.blocked() == {}
    assert list(inspector.names.values()) == ["init pump"]
    assert inspector.unowned == set()


def test_the_process_of_a_health_check_has_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until_seen: UntilSeen
) -> None:
    home, inspector = Home.make(tmp_path / "ductile"), Inspector(seen=until_seen.seen)
    for name in ("pump", "valve"):
        home.plugin(name, until_seen.script, commands="poll: {}, health: {}")
    home.add("plugins: {pump: {}, valve: {}}\n")
    monkeypatch.setattr("trio.run", partial(trio.run, instruments=[inspector]))
    answers = check_plugins(snapshot_of(home), {})
    assert [answer.ok for answer in answers] == [True, True]
    assert sorted(inspector.names.values()) == ["health pump", "health valve"]
    assert inspector.unowned == set()
