"""Rules for telling processes apart, and for ending those that nobody owns any more."""

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
from ductile.engine.process.limits import ResourceLimits, limited
from ductile.engine.process.procfs import (
    INSTANCE_MARKER,
    ProcessId,
    adopted_children,
    boot_id,
    find_marked,
    glance,
    identify,
    is_same,
    kill_marked,
)
from tests.zoo.catalogue import ZOO

Sleeper = Callable[[dict[str, str]], ProcessId]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Start a process in a session of its own that would sleep for an hour."""
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


def test_a_process_is_the_same_only_with_its_start_time_and_boot(sleeper: Sleeper) -> None:
    """A pid alone is nobody: it is given out again."""
    process = sleeper({})
    assert is_same(process)
    assert not is_same(evolve(process, start_ticks=process.start_ticks - 1))
    assert not is_same(evolve(process, boot_id="another boot"))


def test_a_dead_process_is_not_the_same_even_while_it_is_a_zombie() -> None:
    """Dead is dead, reaped or not."""
    child = subprocess.Popen(["/bin/true"])
    process = identify(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process is not None
    assert not is_same(process)
    child.wait()
    assert identify(child.pid) != process


def test_a_command_name_full_of_brackets_confuses_nobody(tmp_path: Path) -> None:
    """The name in procfs is the plugin's to choose."""
    program = tmp_path / "a) R 1 (b c"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "3600"])
    try:
        seen = glance(child.pid)
        assert seen is not None
        assert (seen.parent, seen.session) == (os.getpid(), os.getsid(0))
    finally:
        child.kill()
        child.wait()


def test_there_is_no_identity_for_a_pid_that_nobody_has() -> None:
    """None, not an exception."""
    with subprocess.Popen(["/bin/true"]) as child:
        pass
    assert identify(child.pid) is None


# --- leftovers of a dead instance -------------------------------------------------------------------------------------


async def test_leftovers_are_found_by_their_marker_and_killed(sleeper: Sleeper, instance: str) -> None:
    """Every process of the instance ends, and no other."""
    ours = [sleeper({INSTANCE_MARKER: instance, "DUCTILE_JOB_ID": str(number)}) for number in range(3)]
    strangers = [sleeper({INSTANCE_MARKER: instance + "0"}), sleeper({}), sleeper({"OTHER": instance})]
    assert find_marked(instance, "1") == [ours[1]]
    swept = await kill_marked(instance)
    assert set(swept.killed) == set(ours)
    assert swept.survivors == ()
    assert [is_same(process) for process in (*ours, *strangers)] == [False] * 3 + [True] * 3


async def test_a_leftover_that_cannot_be_killed_keeps_no_other_alive(
    sleeper: Sleeper, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job runs again beside it, and that is said; those of the others do not."""
    ours = [sleeper({INSTANCE_MARKER: instance}) for _ in range(4)]
    stuck, send = min(ours, key=lambda process: process.pid), signal.pidfd_send_signal

    def send_in_vain(pidfd: int, number: int) -> None:
        with open(f"/proc/self/fdinfo/{pidfd}") as facts:
            if f"Pid:\t{stuck.pid}\n" not in facts.read():
                send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_in_vain)
    swept = await kill_marked(instance, patience=1.0)
    assert (set(swept.killed), swept.survivors) == ({*ours} - {stuck}, (stuck,))


async def test_a_stored_leader_that_takes_long_to_die_is_waited_for(
    sleeper: Sleeper, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a marker too: its job must not run beside it."""
    stored, send, tries = sleeper({}), signal.pidfd_send_signal, list[int]()

    def send_in_vain_at_first(pidfd: int, number: int) -> None:
        tries.append(pidfd)
        if len(tries) > 1:
            send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_in_vain_at_first)
    swept = await kill_marked(instance, [stored])
    assert (swept.killed, swept.survivors, len(tries)) == ((stored,), (), 2)


async def test_a_stored_leader_is_killed_with_its_session_though_it_has_no_marker(
    sleeper: Sleeper, instance: str
) -> None:
    """What was written down at its start is enough, if it still is that process."""
    stored = sleeper({})
    swept = await kill_marked(instance, [stored])
    assert swept.killed == (stored,)
    assert not is_same(stored)


async def test_a_stranger_with_the_pid_of_a_stored_leader_lives(sleeper: Sleeper, instance: str) -> None:
    """A pid that was given out again, or one from before the last boot, names nobody."""
    stranger = sleeper({})
    stored = [evolve(stranger, start_ticks=stranger.start_ticks - 1), evolve(stranger, boot_id="another boot")]
    swept = await kill_marked(instance, stored)
    assert swept.killed == ()
    assert is_same(stranger)


async def test_leftovers_are_not_ours_to_end_when_they_are_us(instance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that was itself started with a marker does not end itself."""
    script = f"""
import sys, trio
from ductile.engine.process.procfs import kill_marked
print(trio.run(kill_marked, {instance!r}))
"""
    monkeypatch.setenv(INSTANCE_MARKER, instance)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: ASYNC221
    assert done.stdout == "Leftovers(killed=(), survivors=())\n"


def test_a_kernel_without_lists_of_children_shows_the_same_ones(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower, not blind."""
    process = sleeper({})
    monkeypatch.setattr(procfs, "HAS_CHILDREN_LIST", False)
    assert process.pid in [child.pid for child in adopted_children(known=())]
    assert adopted_children(known={process.pid}) == []


@pytest.mark.parametrize("surely_all", [2048, 2], ids=["short", "too_long_for_one_look"])
def test_the_list_of_children_shows_who_is_there_now(
    surely_all: int, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many looks it takes."""
    monkeypatch.setattr(procfs, "_SURELY_ALL", surely_all)
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


def test_a_hardened_service_dumps_nothing_adopts_orphans_and_leaks_no_descriptor() -> None:
    """Also when it was started with odd descriptors: one more than usual, and stdin and stdout closed."""
    extra = os.open(os.devnull, os.O_RDONLY)
    try:
        service = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", SERVICE, str(ZOO / "z61_spy" / "run")],
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
    if report["seen"]["uid"] != 0:  # root may look at everybody
        assert report["seen"]["parent_environ"] == "errno 13"


# --- limits -----------------------------------------------------------------------------------------------------------


def test_without_limits_no_shell_is_in_between() -> None:
    """The ordinary spawn stays fast."""
    assert limited(["/plugin"], None) == limited(["/plugin"], ResourceLimits()) == ["/plugin"]


def test_a_limit_above_the_hard_limit_of_the_service_is_lowered_to_it() -> None:
    """An ordinary user could not raise it, and the plugin would not start."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert f"ulimit -n {hard} " in limited(["/plugin"], ResourceLimits(open_files=hard + 1))[2] + " "


def test_the_name_of_this_boot_does_not_change() -> None:
    """It is read once and compared for ever."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_zombie_of_ours_is_no_leftover(instance: str) -> None:
    """What is dead needs no killing."""
    child = subprocess.Popen(["/bin/sleep", "3600"], env={INSTANCE_MARKER: instance})
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert find_marked(instance) == []
    child.wait()
