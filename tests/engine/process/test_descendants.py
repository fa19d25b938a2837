"""The sweep kills the descendants of an attempt that has ended, and no others."""

import errno
import os
import signal
import subprocess
from collections.abc import Sequence

import pytest
import trio

from ductile.engine.process import descendants
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.procfs import ProcessStat, adopted_children
from ductile.engine.process.run import Finished
from tests.engine.builders import run_plugin
from tests.engine.conftest import MakePlugin

TIMEOUT = 60.0
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.execve("/bin/sleep", ["sleep", "3600"], {})
os.wait()
"""
"""Start a process without the session, the environment and the pipes of the plugin."""
UNTIL_SIGNALLED = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
checkpoint()
signal.sigwait([signal.SIGUSR1])
"""

Env = dict[str, str]


async def run(argv: list[str], env: Env, table: ProcessTable, pids: list[int] | None = None) -> Finished:
    started = pids if pids is not None else []
    ended = await run_plugin(
        argv, b"{}", timeout=TIMEOUT, env=env, table=table, on_start=lambda process: started.append(process.pid)
    )
    assert isinstance(ended, Finished)
    return ended


async def test_a_daemon_is_killed_while_an_older_job_runs(make_plugin: MakePlugin, env: Env) -> None:
    """Its tag identifies the attempt that started it."""
    table, older, pids = ProcessTable(), make_plugin(UNTIL_SIGNALLED), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, older.argv, env, table, pids)
        await older.reached_checkpoint()
        ended = await run(make_plugin(DAEMON).argv, env, table)
        os.kill(pids[0], signal.SIGUSR1)
    assert (ended.exit_code, ended.swept, ended.lost) == (0, 1, False)


async def test_the_daemon_of_a_running_attempt_survives_the_end_of_another(make_plugin: MakePlugin, env: Env) -> None:
    """A daemon is killed when its own attempt ends."""
    table, longer, pids = ProcessTable(), make_plugin(DAEMON + UNTIL_SIGNALLED), list[int]()
    ended: list[Finished] = []

    async def run_longer() -> None:
        ended.append(await run(longer.argv, env, table, pids))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_longer)
        await longer.reached_checkpoint()
        beside = await run(make_plugin("pass").argv, env, table)
        os.kill(pids[0], signal.SIGUSR1)
    assert beside.swept == 0
    assert ended[0].swept == 1


async def test_an_orphan_without_a_tag_is_reported_and_killed_when_no_other_attempt_runs(
    make_plugin: MakePlugin, env: Env
) -> None:
    """A descendant that changed the inherited limit could belong to any running attempt."""
    hidden = DAEMON.replace("os.setsid()", "os.setsid(); resource.setrlimit(resource.RLIMIT_RTTIME, (1000, -1))")
    load = "sys.path.append([p for p in sys.path if p.endswith('lib-dynload')][0])\nimport resource\n"
    table, older, pids = ProcessTable(), make_plugin(UNTIL_SIGNALLED), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, older.argv, env, table, pids)
        await older.reached_checkpoint()
        ended = await run(make_plugin(load + hidden).argv, env, table)
        os.kill(pids[0], signal.SIGUSR1)
    assert (ended.swept, ended.lost) == (0, True)
    assert adopted_children(known=()) == []


async def test_an_unkillable_descendant_does_not_delay_other_attempts(
    make_plugin: MakePlugin, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the attempt that left it behind waits for it."""
    table, waits, dies = ProcessTable(), trio.Event(), trio.Event()
    kill_children = descendants.kill_children

    async def kill_late(children: Sequence[ProcessStat]) -> int:
        waits.set()
        await dies.wait()
        return await kill_children(children)

    monkeypatch.setattr(descendants, "kill_children", kill_late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, make_plugin(DAEMON).argv, env, table)
        await waits.wait()
        beside = await run(make_plugin("pass").argv, env, table)
        dies.set()
    assert (beside.exit_code, beside.swept, beside.lost) == (0, 0, False)


async def test_a_killed_descendant_counts_for_its_own_attempt(
    make_plugin: MakePlugin, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent sweep of another attempt does not reap it."""
    table, waits, dies = ProcessTable(), trio.Event(), trio.Event()
    kill_children, ended = descendants.kill_children, list[Finished]()

    async def kill_twice(children: Sequence[ProcessStat]) -> int:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        waits.set()
        await dies.wait()
        return await kill_children(children)

    async def run_first() -> None:
        ended.append(await run(make_plugin(DAEMON).argv, env, table))

    monkeypatch.setattr(descendants, "kill_children", kill_twice)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_first)
        await waits.wait()
        beside = await run(make_plugin("pass").argv, env, table)
        dies.set()
    assert [one.swept for one in (beside, *ended)] == [0, 1]


async def test_a_descendant_of_another_user_is_reported_and_not_waited_for(
    make_plugin: MakePlugin, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that sudo started would otherwise delay every attempt."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr("ductile.engine.process.descendants.os.kill", refuse)
        ended = await run(make_plugin(DAEMON).argv, env, ProcessTable())
    assert await descendants.kill_children(adopted_children(known=())) == 1
    assert (ended.exit_code, ended.swept, ended.lost) == (0, 0, True)
    assert ended.duration < descendants.KILL_TIMEOUT_SECONDS


def start_daemon() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True)


async def test_a_child_from_before_the_start_is_not_killed(make_plugin: MakePlugin, env: Env) -> None:
    """The entrypoint of a container can start a daemon and then exec the service."""
    child = start_daemon()
    try:
        ended = await run(make_plugin("pass").argv, env, ProcessTable())
        assert (ended.swept, ended.lost, child.poll()) == (0, False, None)
    finally:
        child.kill()
        child.wait()


async def test_an_orphan_of_another_user_is_reported_once(
    make_plugin: MakePlugin, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later attempts do not report it again."""
    table = ProcessTable()
    child = start_daemon()
    monkeypatch.setattr(descendants, "may_signal", lambda pid: pid != child.pid)
    try:
        first = await run(make_plugin("pass").argv, env, table)
        second = await run(make_plugin("pass").argv, env, table)
        assert (first.lost, second.lost, child.poll()) == (True, False, None)
    finally:
        child.kill()
        child.wait()
