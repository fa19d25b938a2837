"""Run one plugin process: input, output, limits, deadline, termination and sweep."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ductile.engine.process import procfs
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.procfs import adopted_children, find_marked, identify, is_alive
from ductile.engine.process.run import PIPE_DRAIN_SECONDS, Cause, Finished, StopRequest
from ductile.engine.process.start import Process, ProcessSpec, SpawnFailed, start_process
from ductile.engine.process.streams import Caps, HeadBuffer, TailBuffer
from tests.engine.builders import run_plugin
from tests.engine.conftest import MakePlugin, open_descriptors, request_for
from tests.zoo.catalogue import (
    HOSTILE_PLUGINS,
    MIB,
    STDOUT_CAP,
    ZOO,
    Expected,
    HostilePlugin,
    break_entrypoint,
    copy_plugin,
)

ANSWER = b'{"status":"ok","result":"done"}'
# Long enough for a busy machine. Only a run that hangs reaches it.
TIMEOUT = 60.0
CHUNK = 65_536

MakeScript = Callable[[str], list[str]]
Env = dict[str, str]


async def run(argv: list[str], env: Env, request: bytes = b"{}", timeout: float = TIMEOUT, **more: object) -> Finished:  # noqa: ASYNC109
    finished = await run_plugin(argv, request, timeout=timeout, env=env, **more)  # type: ignore[arg-type]
    assert isinstance(finished, Finished), finished
    return finished


def hostile_argv(folder: str) -> list[str]:
    return [str(ZOO / folder / "run")]


# --- hostile plugins --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
async def test_every_hostile_plugin_ends_as_the_catalogue_says(env: Env, instance: str, tmp_path: Path) -> None:
    """Its run is a value, never an exception, and leaves no process, zombie or descriptor behind."""
    failures: list[str] = []
    for plugin in HOSTILE_PLUGINS:
        if plugin.runs_alone:
            continue
        before = open_descriptors()
        try:
            ended = await run_hostile_plugin(plugin, env, tmp_path / str(plugin))
        except Exception as error:
            failures.append(f"{plugin}: raised {error!r}")
            continue
        if not is_expected(plugin, ended):
            failures.append(f"{plugin}: not {plugin.expected}: {ended}")
        left = (adopted_children(known=()), find_marked(instance), open_descriptors().items() ^ before.items())
        if any(left):
            failures.append(f"{plugin}: left {left}")
    assert failures == []


async def run_hostile_plugin(plugin: HostilePlugin, env: Env, into: Path) -> Finished | SpawnFailed:
    folder = copy_plugin(plugin, into) if plugin.on_a_copy else plugin.path
    hangs = plugin.expected in (Expected.TIMED_OUT, Expected.SUCCESS_OR_TIMED_OUT)
    return await run_plugin(
        [str(folder / "run")],
        request_for(dict(plugin.config), plugin.request_bytes),
        timeout=0.3 if hangs else TIMEOUT,
        grace=0.2,
        env=env,
        limits=plugin.limits,
    )


def is_expected(plugin: HostilePlugin, ended: Finished | SpawnFailed) -> bool:
    """True if the run ended as the catalogue says."""
    if isinstance(ended, SpawnFailed):
        return plugin.expected is Expected.SPAWN_ERROR
    match plugin.expected:
        case Expected.SPAWN_ERROR:
            return False
        case Expected.TIMED_OUT:
            return ended.timed_out
        case Expected.SUCCESS:
            has_exited_well = (ended.cause, ended.exit_code, ended.stdout_over_cap) == (Cause.EXITED, 0, False)
            return has_exited_well and ended.stdout.lstrip().startswith(b"{")
        case _:
            return True


def test_the_catalogue_has_all_66_hostile_plugins() -> None:
    """Each has a folder with a manifest and an executable, and each folder is in the catalogue."""
    folders = {path.parent.name for path in ZOO.glob("z*/manifest.yaml") if os.access(path.parent / "run", os.X_OK)}
    assert folders == {plugin.folder for plugin in HOSTILE_PLUGINS}
    assert {plugin.id for plugin in HOSTILE_PLUGINS} == {f"Z{number:02}" for number in range(1, 67)}


async def test_a_plugin_gets_its_request_even_if_the_service_dies_right_after_the_start(
    make_script: MakeScript, env: Env, tmp_path: Path
) -> None:
    """An empty stdin must not look like its request."""
    request, table = os.urandom(4000), ProcessTable()
    argv = make_script(f"cat > '{tmp_path}/got'")
    spec = ProcessSpec(argv=argv, request=request, environment=env, timeout_seconds=TIMEOUT)
    process = start_process(spec, table.new_tag())
    assert isinstance(process, Process)
    process.stdin.close()  # as the kernel does when this process ends
    await process.wait()
    process.reap()
    process.close()
    assert (tmp_path / "got").read_bytes() == request


# --- input and output -------------------------------------------------------------------------------------------------


async def test_a_large_request_is_written_while_the_response_is_read(make_script: MakeScript, env: Env) -> None:
    """Neither direction blocks the other."""
    request = os.urandom(5 * MIB)
    finished = await run(make_script("exec cat"), env, request)
    assert finished.exit_code == 0
    assert finished.stdout == request
    assert finished.stdout_total == len(request)


async def test_a_late_event_of_another_process_does_not_end_a_plugin(
    make_script: MakeScript, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor number is reused immediately, but the event loop can still get an event of its former owner while
    a starting process has a copy of it. The plugin must not be treated as exited."""
    number, open_pidfd = 500, os.pidfd_open
    os.mkfifo(path := tmp_path / "gate")
    gate = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def pidfd_with_that_number(pid: int) -> int:
        descriptor = open_pidfd(pid)
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)
        return number

    earlier = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})  # noqa: ASYNC221
    pidfd_with_that_number(earlier)
    with trio.move_on_after(0):
        await trio.lowlevel.wait_readable(number)
    copy = os.dup(number)
    os.close(number)
    monkeypatch.setattr(os, "pidfd_open", pidfd_with_that_number)

    async def end_the_earlier() -> None:
        await trio.testing.wait_all_tasks_blocked()
        os.kill(earlier, signal.SIGKILL)
        os.waitid(os.P_PID, earlier, os.WEXITED)  # noqa: ASYNC222 (the loop must not look before it is reaped)
        await trio.testing.wait_all_tasks_blocked()
        os.write(gate, b"\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_the_earlier)
        finished = await run(make_script(f"read -r _ < {path}; echo '{ANSWER.decode()}'"), env)
    for descriptor in (copy, gate):
        os.close(descriptor)
    assert (finished.exit_code, finished.signal, finished.stdout.strip()) == (0, None, ANSWER)


async def test_a_plugin_without_output_can_be_stopped_and_times_out(make_plugin: MakePlugin, env: Env) -> None:
    """The deadline and a stop request apply while the run waits for the exit only."""
    stop, silent = StopRequest(), make_plugin("checkpoint(); signal.pause()")
    async with trio.open_nursery() as nursery:

        async def ask_to_stop() -> None:
            await silent.reached_checkpoint()
            stop.request("enough")

        nursery.start_soon(ask_to_stop)
        stopped = await run(silent.argv, env, stop=stop)
    assert (stopped.cause, stopped.stopped) == (Cause.STOPPED, "enough")
    assert (await run(make_plugin("signal.pause()").argv, env, timeout=0.02)).timed_out


async def test_a_plugin_sees_the_end_of_its_request(make_script: MakeScript, env: Env) -> None:
    """Stdin ends after the request, even if it is empty."""
    assert (await run(make_script("wc -c"), env, b"12345")).stdout.strip() == b"5"
    assert (await run(make_script("wc -c"), env, b"")).stdout.strip() == b"0"


@pytest.mark.parametrize("folder", ["z41_never_reads", "z42_closes_stdin"])
async def test_a_plugin_may_ignore_its_request(folder: str, env: Env) -> None:
    """An unread request causes no failure and no output."""
    finished = await run(hostile_argv(folder), env, b"x" * 2 * MIB)
    assert (finished.exit_code, finished.stdout.strip(), finished.stderr) == (0, ANSWER, b"")


async def test_a_plugin_inherits_only_its_environment_and_streams(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets exactly the given environment, its own session, and no ignored or blocked signals."""
    monkeypatch.setenv("CANARY", "sings")
    finished = await run(hostile_argv("z61_inspects_environment"), env)
    seen = json.loads(json.loads(finished.stdout)["result"])
    assert {name: seen["environ"].get(name) for name in env} == env
    assert set(seen["environ"]) - set(env) <= {"LC_CTYPE"}  # set by the interpreter itself
    assert seen["session_is_own"]
    finished = await run(["/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], env)
    masks = [int(line.split()[1], 16) for line in finished.stdout.splitlines()]
    assert [mask & (1 << 31) - 1 for mask in masks] == [0, 0]  # the higher ones belong to the C library


# --- caps -------------------------------------------------------------------------------------------------------------


async def test_output_of_exactly_the_cap_is_accepted(env: Env) -> None:
    """The cap is inclusive."""
    finished = await run(hostile_argv("z34_exactly_at_the_cap"), env, request_for({"bytes": STDOUT_CAP}))
    assert finished.cause is Cause.EXITED
    assert len(finished.stdout) == finished.stdout_total == STDOUT_CAP
    assert not finished.stdout_over_cap


async def test_one_byte_over_the_cap_ends_the_run_immediately(env: Env) -> None:
    """The plugin is killed without grace, and the prefix is stored."""
    finished = await run(hostile_argv("z35_one_byte_over"), env, request_for({"bytes": STDOUT_CAP}), grace=TIMEOUT)
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert finished.signal == signal.SIGKILL
    assert finished.stdout_over_cap
    assert len(finished.stdout) == STDOUT_CAP
    assert finished.stdout_total == STDOUT_CAP + 1


async def test_a_short_run_can_exceed_a_small_cap(env: Env, tmp_path: Path) -> None:
    """The output is read to its end before the cause is decided."""
    brief = tmp_path / "brief"
    brief.write_text("#!/bin/sh\nprintf '%1000s' x\n")
    brief.chmod(0o700)
    finished = await run_plugin([str(brief)], b"", timeout=TIMEOUT, env=env, caps=Caps(stdout=100))
    assert isinstance(finished, Finished)
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert finished.stdout_over_cap


async def test_endless_output_is_truncated(env: Env) -> None:
    """The cap bounds the memory."""
    finished = await run(hostile_argv("z36_endless_stdout"), env, caps=Caps(stdout=100_000))
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert len(finished.stdout) == 100_000


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])), cap=st.integers(0, 5 * CHUNK)
)
def test_a_head_buffer_stores_the_beginning_of_a_stream(sizes: list[int], cap: int) -> None:
    """It stores bytes up to the cap and counts the rest, whatever the size of the chunks."""
    said = random.Random(0).randbytes(sum(sizes))
    beginning, at = HeadBuffer(cap), 0
    for size in sizes:
        beginning.write(said[at : at + size])
        at += size
        assert beginning.read() == said[:at][:cap]
    assert beginning.total == len(said)


def test_a_head_buffer_stores_single_bytes_without_overhead() -> None:
    """A plugin that writes single bytes does not become a million objects."""
    tracemalloc.start()
    try:
        beginning = HeadBuffer(1 << 20)
        for _ in range(1 << 18):
            beginning.write(b"x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


async def test_the_end_of_a_long_stderr_is_stored(env: Env) -> None:
    """Stderr is read to its end and never fails a run."""
    finished = await run(hostile_argv("z37_large_stderr"), env)
    assert (finished.exit_code, finished.stdout.strip()) == (0, ANSWER)
    assert len(finished.stderr) == 64 << 10
    assert finished.stderr.endswith(b"last line\n")
    assert finished.stderr_truncated
    assert finished.stderr_total > 20_000_000


async def test_stderr_can_be_read_while_the_plugin_runs(
    make_plugin: MakePlugin, env: Env, nursery: trio.Nursery
) -> None:
    """The tail buffer is readable while the process runs."""
    plugin = make_plugin("""
        print("half way", file=sys.stderr, flush=True)
        sys.stdin.read()
        checkpoint()
        signal.pause()
    """)
    tail, stop = TailBuffer(), StopRequest()

    async def stop_when_seen() -> None:
        await plugin.reached_checkpoint()
        while tail.read() != b"half way\n":
            await trio.lowlevel.checkpoint()
        stop.request("seen")

    nursery.start_soon(stop_when_seen)
    finished = await run(plugin.argv, env, stop=stop, tail=tail)
    assert finished.stderr == b"half way\n"


# --- the deadline -----------------------------------------------------------------------------------------------------


async def test_a_plugin_gets_sigterm_at_its_deadline(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Its output up to then is stored."""
    plugin = make_plugin("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        print("half done", file=sys.stderr, flush=True)
        checkpoint()
        signal.pause()
    """)

    async def let_the_deadline_pass() -> None:
        await plugin.reached_checkpoint()
        mock_clock.jump(60)

    nursery.start_soon(let_the_deadline_pass)
    finished = await run(plugin.argv, env, timeout=60)
    assert finished.timed_out
    assert finished.exit_code == 3
    assert finished.stderr == b"half done\n"


async def test_a_plugin_that_ignores_sigterm_is_killed_after_the_grace_period(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """SIGKILL follows the grace period."""
    plugin = make_plugin("""
        signal.signal(signal.SIGTERM, lambda *_: checkpoint())
        checkpoint()
        while True:
            signal.pause()
    """)

    async def let_time_pass() -> None:
        await plugin.reached_checkpoint()
        mock_clock.jump(60)
        await plugin.reached_checkpoint()
        mock_clock.jump(5)

    nursery.start_soon(let_time_pass)
    finished = await run(plugin.argv, env, timeout=60, grace=5)
    assert finished.timed_out
    assert finished.signal == signal.SIGKILL
    assert finished.exit_code is None


async def test_a_plugin_that_stopped_itself_can_handle_sigterm(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """SIGCONT is sent with SIGTERM, because a stopped process does not handle SIGTERM."""
    plugin = make_plugin("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
        checkpoint()
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
    """)

    async def let_the_deadline_pass() -> None:
        await plugin.reached_checkpoint()
        mock_clock.jump(60)

    nursery.start_soon(let_the_deadline_pass)
    finished = await run(plugin.argv, env, timeout=60)
    assert finished.timed_out
    assert finished.exit_code == 4


async def test_a_process_that_exited_before_the_deadline_is_noticed_counts(
    make_script: MakeScript, env: Env, mock_clock: trio.testing.MockClock
) -> None:
    """A leader that has exited when the deadline is handled has finished, however late that is."""

    def wait_for_its_exit_then_miss_the_deadline(process: Process) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        mock_clock.jump(1000)

    script = make_script("echo done")
    finished = await run(script, env, timeout=60, on_start=wait_for_its_exit_then_miss_the_deadline)
    assert finished.cause is Cause.EXITED
    assert finished.stdout == b"done\n"


async def test_around_the_deadline_a_run_is_either_finished_or_timed_out(make_script: MakeScript, env: Env) -> None:
    """A finished run is complete. No run is both or neither."""
    script, endings, table = make_script("echo done; exec sleep 0.04"), [], ProcessTable()

    async def one(timeout: float) -> None:  # noqa: ASYNC109
        finished = await run(script, env, timeout=timeout, table=table)
        assert finished.cause in (Cause.EXITED, Cause.TIMED_OUT)
        if finished.cause is Cause.EXITED:
            assert (finished.exit_code, finished.stdout) == (0, b"done\n")
        endings.append(finished.cause)

    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for step in range(8):
                nursery.start_soon(one, 0.036 + step / 1000)
    assert len(endings) == 80


# --- stop and cancel --------------------------------------------------------------------------------------------------


async def test_a_stopped_run_has_the_reason_and_its_output(
    make_plugin: MakePlugin, env: Env, nursery: trio.Nursery
) -> None:
    """A stop request ends a run like a deadline does. The first reason counts."""
    plugin = make_plugin("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("so far", flush=True)
        checkpoint()
        signal.pause()
    """)
    stop = StopRequest()

    async def ask() -> None:
        await plugin.reached_checkpoint()
        stop.request("drain")
        stop.request("a later reason")

    nursery.start_soon(ask)
    finished = await run(plugin.argv, env, stop=stop)
    assert finished.cause is Cause.STOPPED
    assert not finished.timed_out
    assert (finished.stopped, finished.exit_code, finished.stdout) == ("drain", 5, b"so far\n")


async def test_a_stop_request_before_the_start_takes_effect(make_script: MakeScript, env: Env) -> None:
    """No request is lost between the claim and the spawn."""
    stop = StopRequest()
    stop.request("cancelled by the operator")
    finished = await run(make_script("exec sleep 3600"), env, stop=stop)
    assert finished.stopped == "cancelled by the operator"


async def test_a_stop_request_after_the_exit_changes_nothing(make_script: MakeScript, env: Env) -> None:
    """A finished run stays finished."""
    stop = StopRequest()

    def wait_for_its_exit_then_ask(process: Process) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        stop.request("drain")

    finished = await run(make_script("echo done"), env, stop=stop, on_start=wait_for_its_exit_then_ask)
    assert finished.cause is Cause.EXITED
    assert finished.stopped is None


async def test_cancellation_terminates_the_process_first(make_plugin: MakePlugin, env: Env) -> None:
    """No process survives the cancelled scope."""
    plugin = make_plugin("checkpoint(); signal.pause()")
    started: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run, plugin.argv, env, on_start=lambda process: started.append(process.pid)))
        await plugin.reached_checkpoint()
        process = identify(started[0])
        assert process is not None
        nursery.cancel_scope.cancel()
    assert not is_alive(process)


# --- exits and starts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
async def test_a_run_reports_the_signal_that_killed_it(name: str, env: Env) -> None:
    """It has an exit code or a signal, never both."""
    finished = await run(hostile_argv("z49_kills_itself"), env, request_for({"signal": name}))
    assert (finished.cause, finished.exit_code) == (Cause.EXITED, None)
    assert finished.signal == signal.Signals[name]


SPAWN_REFUSALS = {
    "missing_interpreter": (errno.ENOENT, "interpreter /nowhere/interpreter does not exist"),
    "crlf_shebang": (errno.ENOENT, "carriage return"),
    "no_shebang": (errno.ENOEXEC, "#! line"),
    "not_executable": (errno.EACCES, "chmod +x"),
    "deleted": (errno.ENOENT, "no such file"),
    "directory": (errno.EACCES, "is a directory"),
    "fifo": (errno.EACCES, "not a regular file"),
}


@pytest.mark.parametrize("limits", [None, ResourceLimits(open_files=64)], ids=["direct", "with_limits"])
@pytest.mark.parametrize("how", SPAWN_REFUSALS)
async def test_a_failed_spawn_has_a_reason(
    how: str, limits: ResourceLimits | None, make_script: MakeScript, env: Env
) -> None:
    """The reason is text and errno, with and without the shell that sets limits."""
    script = make_script("echo hello")
    break_entrypoint(Path(script[0]), how)
    failed = await run_plugin(script, b"{}", timeout=TIMEOUT, env=env, limits=limits)
    code, words = SPAWN_REFUSALS[how]
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == code
    assert failed.reason.startswith(script[0])
    assert words in failed.reason


async def test_an_environment_too_large_for_the_kernel_is_a_spawn_failure(make_script: MakeScript, env: Env) -> None:
    """E2BIG does not raise."""
    failed = await run_plugin(make_script("true"), b"{}", timeout=TIMEOUT, env=env | {"HUGE": "x" * 300_000})
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.E2BIG


@pytest.mark.parametrize("bad", [{"NUL": "a\0b"}, {"A=B": "x"}, {"HALF": "\ud800"}], ids=["nul", "equals", "surrogate"])
async def test_an_invalid_environment_is_a_spawn_failure(bad: Env, make_script: MakeScript, env: Env) -> None:
    """Values of the configuration can be anything."""
    failed = await run_plugin(make_script("true"), b"{}", timeout=TIMEOUT, env=env | bad)
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.EINVAL


@pytest.mark.parametrize("free", range(9))
async def test_without_free_descriptors_the_spawn_fails_and_leaks_none(
    free: int, make_script: MakeScript, env: Env
) -> None:
    """Whichever descriptor cannot be opened, the run fails or succeeds, and the next run succeeds."""
    script = make_script("echo done")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + free, hard))
    try:
        ended = await run_plugin(script, b"{}", timeout=TIMEOUT, env=env)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(ended, SpawnFailed) == (free < 7)
    assert isinstance(ended, Finished) or ended.errno == errno.EMFILE
    assert (await run(script, env)).stdout == b"done\n"


async def test_a_program_that_is_open_for_writing_is_retried(tmp_path: Path, env: Env) -> None:
    """The number of retries is limited."""
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        failed = await run_plugin([str(program)], b"", timeout=TIMEOUT, env=env)
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.ETXTBSY
    assert (await run([str(program)], env)).exit_code == 0


async def test_a_stall_of_the_event_loop_loses_no_output(make_script: MakeScript, env: Env) -> None:
    """The output of a finished plugin is read from the pipe, however late."""

    async def stall() -> None:
        time.sleep(PIPE_DRAIN_SECONDS + 0.2)  # noqa: ASYNC251 - the point of the test

    def exit_then_stall(process: Process) -> None:
        os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
        trio.lowlevel.spawn_system_task(stall)

    finished = await run(make_script("echo said >&2; echo done"), env, on_start=exit_then_stall)
    assert (finished.stdout, finished.stderr, finished.pipe_left_open) == (b"done\n", b"said\n", False)


# --- descendants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["z54_child_keeps_pipes", "z55_daemon_keeps_pipes", "z56_detached_daemon"])
async def test_a_descendant_that_outlives_its_plugin_is_killed(folder: str, env: Env) -> None:
    """In the group of the leader, in its own session, or with another session, environment and pipes."""
    finished = await run(hostile_argv(folder), env)
    assert (finished.cause, finished.exit_code, finished.stdout.strip()) == (Cause.EXITED, 0, ANSWER)
    assert not finished.pipe_left_open
    assert finished.swept == 1
    assert not finished.lost


async def test_a_run_counts_although_its_descendants_cannot_be_swept(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor, the sweep of a later run kills them. The output counts."""
    read, table = procfs._read, ProcessTable()

    def no_descriptor_left(path: str) -> bytes:
        if path.endswith("/stat"):
            raise OSError(errno.EMFILE, "too many open files", path)
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(procfs, "_read", no_descriptor_left)
        finished = await run(hostile_argv("z56_detached_daemon"), env, table=table)
    assert (finished.exit_code, finished.stdout.strip(), finished.lost) == (0, ANSWER, True)
    assert (await run(hostile_argv("z56_detached_daemon"), env, table=table)).swept == 2


async def test_a_fork_bomb_is_swept(env: Env) -> None:
    """Every descendant is killed."""
    finished = await run(hostile_argv("z57_fork_bomb"), env)
    assert json.loads(finished.stdout)["result"] == f"forked {finished.swept}"


async def test_a_child_in_the_session_of_the_service_is_not_swept(env: Env) -> None:
    """It was started by the service, not by a plugin."""
    ours = await trio.lowlevel.open_process(["/bin/sleep", "3600"])
    try:
        finished = await run(hostile_argv("z56_detached_daemon"), env)
        assert finished.swept == 1
        assert ours.poll() is None
    finally:
        ours.kill()
        await ours.wait()


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_plugin_gets_its_configured_limits(make_plugin: MakePlugin, env: Env) -> None:
    """Sizes are in bytes, whatever unit the shell uses."""
    plugin = make_plugin("""
        sys.path.append([p for p in sys.path if p.endswith("lib-dynload")][0])
        import resource
        for name in ("AS", "NOFILE", "NPROC", "CPU", "FSIZE"):
            print(name, *resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
    """)
    limits = ResourceLimits(address_space=512 * MIB, open_files=64, processes=1000, cpu_seconds=30, file_size=4 * MIB)
    finished = await run(plugin.argv, env, limits=limits)
    assert finished.stdout.decode().split("\n")[:-1] == [
        f"AS {512 * MIB} {512 * MIB}",
        "NOFILE 64 64",
        "NPROC 1000 1000",
        "CPU 30 30",
        f"FSIZE {4 * MIB} {4 * MIB}",
    ]


async def test_a_plugin_with_limits_is_still_the_leader_of_its_session(env: Env) -> None:
    """The shell that sets limits executes the plugin in the same process."""
    finished = await run(hostile_argv("z61_inspects_environment"), env, limits=ResourceLimits(open_files=64))
    assert json.loads(json.loads(finished.stdout)["result"])["session_is_own"]


# --- concurrency ------------------------------------------------------------------------------------------------------


async def test_runs_that_end_at_random_times_leave_nothing_behind(make_script: MakeScript, env: Env) -> None:
    """Deadlines, stop requests and cancellations at any time leave no process, zombie or descriptor."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    scripts = [
        make_script("cat >/dev/null; echo done"),
        make_script("exec sleep 3600"),
        make_script("sleep 3600 & echo done"),
        make_script("trap '' TERM; sleep 3600 & wait"),
        make_script("exec yes"),
    ]

    table = ProcessTable()

    async def one(moment: float, how: str, script: list[str]) -> None:
        stop = StopRequest()
        with trio.move_on_after(moment if how == "cancel" else TIMEOUT):
            async with trio.open_nursery() as nursery:
                if how == "stop":
                    nursery.start_soon(stop_after, moment, stop)
                timeout = moment if how == "deadline" else TIMEOUT
                await run(script, env, timeout=timeout, grace=0.02, stop=stop, caps=Caps(stdout=1 << 20), table=table)
                nursery.cancel_scope.cancel()

    async def stop_after(moment: float, stop: StopRequest) -> None:
        await trio.sleep(moment)
        stop.request("storm")

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            how = dice.choice(["cancel", "stop", "deadline"])
            nursery.start_soon(one, dice.uniform(0, 1.0), how, dice.choice(scripts))
