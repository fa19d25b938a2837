"""Identify processes, and kill the leftovers of a dead instance."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from ductile.engine.process import procfs
from ductile.engine.process.limits import ResourceLimits, with_limits
from ductile.engine.process.procfs import (
    INSTANCE_MARKER,
    ProcessId,
    adopted_children,
    boot_id,
    find_marked,
    identify,
    is_alive,
    kill_marked,
    read_stat,
)
from tests.zoo.catalogue import ZOO

Sleeper = Callable[[dict[str, str]], ProcessId]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Return a function that starts a sleeping process in its own session."""
    started = []

    def start(env: dict[str, str]) -> ProcessId:
        started.append(subprocess.Popen(["/bin/sleep", "3600"], env=env, start_new_session=True))
        process = identify(started[-1].pid)
        assert process is not None
        return process

    yield start
    for child in started:
        child.kill()
        child.wait()


# --- identity ---------------------------------------------------------------------------------------------------------


def test_a_process_is_identified_by_pid_start_time_and_boot(sleeper: Sleeper) -> None:
    """A pid alone can be reused."""
    process = sleeper({})
    assert is_alive(process)
    assert not is_alive(evolve(process, start_ticks=process.start_ticks - 1))
    assert not is_alive(evolve(process, boot_id="another boot"))


def test_a_zombie_is_not_alive() -> None:
    """Neither is a reaped process."""
    child = subprocess.Popen(["/bin/true"])
    process = identify(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process is not None
    assert not is_alive(process)
    child.wait()
    assert identify(child.pid) != process


def test_a_command_name_can_contain_parentheses(tmp_path: Path) -> None:
    """A plugin can choose the name that procfs shows."""
    program = tmp_path / "a) R 1 (b c"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "3600"])
    try:
        seen = read_stat(child.pid)
        assert seen is not None
        assert (seen.parent, seen.session) == (os.getpid(), os.getsid(0))
    finally:
        child.kill()
        child.wait()


def test_an_unused_pid_has_no_identity() -> None:
    """The result is None, not an exception."""
    with subprocess.Popen(["/bin/true"]) as child:
        pass
    assert identify(child.pid) is None


# --- leftovers of a dead instance -------------------------------------------------------------------------------------


async def test_leftovers_are_found_by_their_marker_and_killed(sleeper: Sleeper, instance: str) -> None:
    """Every process of the instance is killed, and no other."""
    ours = [sleeper({INSTANCE_MARKER: instance, "DUCTILE_JOB_ID": str(number)}) for number in range(3)]
    others = [sleeper({INSTANCE_MARKER: instance + "0"}), sleeper({}), sleeper({"OTHER": instance})]
    assert find_marked(instance, "1") == [ours[1]]
    swept = await kill_marked(instance)
    assert set(swept.killed) == set(ours)
    assert swept.survivors == ()
    assert [is_alive(process) for process in (*ours, *others)] == [False] * 3 + [True] * 3


async def test_an_unkillable_leftover_does_not_protect_the_others(
    sleeper: Sleeper, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported as a survivor."""
    ours = [sleeper({INSTANCE_MARKER: instance}) for _ in range(4)]
    stuck, send = min(ours, key=lambda process: process.pid), signal.pidfd_send_signal

    def send_in_vain(pidfd: int, number: int) -> None:
        with open(f"/proc/self/fdinfo/{pidfd}") as facts:
            if f"Pid:\t{stuck.pid}\n" not in facts.read():
                send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_in_vain)
    swept = await kill_marked(instance, timeout_seconds=1.0)
    assert (set(swept.killed), swept.survivors) == ({*ours} - {stuck}, (stuck,))


async def test_a_stored_leader_that_takes_long_to_die_is_waited_for(
    sleeper: Sleeper, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without a marker: its job must not run twice at the same time."""
    stored, send, tries = sleeper({}), signal.pidfd_send_signal, list[int]()

    def send_in_vain_at_first(pidfd: int, number: int) -> None:
        tries.append(pidfd)
        if len(tries) > 1:
            send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_in_vain_at_first)
    swept = await kill_marked(instance, [stored])
    assert (swept.killed, swept.survivors, len(tries)) == ((stored,), (), 2)


async def test_a_stored_leader_without_a_marker_is_killed(sleeper: Sleeper, instance: str) -> None:
    """The stored identity is enough if it still matches."""
    stored = sleeper({})
    swept = await kill_marked(instance, [stored])
    assert swept.killed == (stored,)
    assert not is_alive(stored)


async def test_another_process_with_the_pid_of_a_stored_leader_is_not_killed(sleeper: Sleeper, instance: str) -> None:
    """A reused pid, or one from before the last boot, does not match."""
    other = sleeper({})
    stored = [evolve(other, start_ticks=other.start_ticks - 1), evolve(other, boot_id="another boot")]
    swept = await kill_marked(instance, stored)
    assert swept.killed == ()
    assert is_alive(other)


async def test_a_process_does_not_kill_itself_as_a_leftover(instance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service can itself have the marker in its environment."""
    script = f"""
import sys, trio
from ductile.engine.process.procfs import kill_marked
print(trio.run(kill_marked, {instance!r}))
"""
    monkeypatch.setenv(INSTANCE_MARKER, instance)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: ASYNC221
    assert done.stdout == "Leftovers(killed=(), survivors=())\n"


def test_children_are_found_on_a_kernel_without_children_lists(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower, but complete."""
    process = sleeper({})
    monkeypatch.setattr(procfs, "HAS_CHILDREN_LIST", False)
    assert process.pid in [child.pid for child in adopted_children(known=())]
    assert adopted_children(known={process.pid}) == []


@pytest.mark.parametrize("max_bytes", [2048, 2], ids=["short", "too_long_for_one_read"])
def test_the_children_list_is_current(max_bytes: int, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many reads it takes."""
    monkeypatch.setattr(procfs, "_MAX_COMPLETE_READ_BYTES", max_bytes)
    first = sleeper({})
    assert [child.pid for child in adopted_children(known=())] == [first.pid]
    second = sleeper({})
    assert [child.pid for child in adopted_children(known=())] == [first.pid, second.pid]
    os.kill(first.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED)
    assert [child.pid for child in adopted_children(known=())] == [second.pid]


# --- the service itself -----------------------------------------------------------------------------------------------

SERVICE = """
import ctypes, functools, json, os, resource, sys, trio
from ductile.engine.process.procfs import harden_self, is_subreaper
from tests.engine.builders import run_plugin

def dumpable():
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)

before = [dumpable(), is_subreaper()]
refused = harden_self()
spy = functools.partial(run_plugin, [sys.argv[1]], b"{}", timeout=60, env={"PATH": "/usr/bin:/bin"})
seen = json.loads(json.loads(trio.run(spy).stdout)["result"])
json.dump({"before": before, "after": [dumpable(), is_subreaper()], "refused": refused, "seen": seen}, sys.stderr)
"""


def test_a_hardened_service_has_no_core_dumps_adopts_orphans_and_leaks_no_descriptor() -> None:
    """Even if it was started with an extra descriptor and with stdin and stdout closed."""
    extra = os.open(os.devnull, os.O_RDONLY)
    try:
        service = subprocess.run(
            [
                "/bin/sh",
                "-c",
                'exec "$@" <&- >&-',
                "sh",
                sys.executable,
                "-c",
                SERVICE,
                str(ZOO / "z61_inspects_environment" / "run"),
            ],
            stderr=subprocess.PIPE,
            pass_fds=[extra],
            check=False,
        )
    finally:
        os.close(extra)
    assert service.returncode == 0, service.stderr.decode()
    report = json.loads(service.stderr)
    assert report["before"] == [1, False]
    assert report["after"] == [0, True]
    assert report["refused"] == []
    assert report["seen"]["descriptors"] == [0, 1, 2]
    assert report["seen"]["core_limit"] == ["0", "0"]
    if report["seen"]["uid"] != 0:  # root can read all processes
        assert report["seen"]["parent_environ"] == "errno 13"


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_plugin_without_limits_needs_no_shell() -> None:
    """The usual spawn stays fast."""
    assert with_limits(["/plugin"], None) == with_limits(["/plugin"], ResourceLimits()) == ["/plugin"]


def test_a_limit_above_the_hard_limit_of_the_service_is_lowered_to_it() -> None:
    """Only root can raise it, so the plugin would not start."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert f"ulimit -n {hard} " in with_limits(["/plugin"], ResourceLimits(open_files=hard + 1))[2] + " "


def test_the_boot_id_does_not_change() -> None:
    """It is cached."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_zombie_is_not_a_leftover(instance: str) -> None:
    """It is dead already."""
    child = subprocess.Popen(["/bin/sleep", "3600"], env={INSTANCE_MARKER: instance})
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert find_marked(instance) == []
    child.wait()
