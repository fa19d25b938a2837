"""Rules for one plugin process: it is fed, read, bounded, ended and swept, whatever it does."""

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
from ductile.engine.process.procfs import identify, is_same
from ductile.engine.process.run import PIPE_DRAIN_SECONDS, Cause, Finished, StopRequest
from ductile.engine.process.start import Process, ProcessSpec, SpawnFailed, start_process
from ductile.engine.process.streams import Caps, HeadBuffer, TailBuffer
from tests.engine.builders import run_plugin
from tests.engine.conftest import MakePlugin, request_for
from tests.zoo.catalogue import ANIMALS, MIB, STDOUT_CAP, ZOO, Animal, Expected, break_entrypoint, copy_of

ANSWER = b'{"status":"ok","result":"done"}'
# Long enough for a busy machine; only a run that hangs would ever need it.
PATIENCE = 60.0
CHUNK = 65_536

MakeScript = Callable[[str], list[str]]
Env = dict[str, str]


async def run(argv: list[str], env: Env, request: bytes = b"{}", timeout: float = PATIENCE, **more: object) -> Finished:  # noqa: ASYNC109
    finished = await run_plugin(argv, request, timeout=timeout, env=env, **more)  # type: ignore[arg-type]
    assert isinstance(finished, Finished), finished
    return finished


def animal(folder: str) -> list[str]:
    return [str(ZOO / folder / "run")]


# --- the whole zoo ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("creature", [one for one in ANIMALS if not one.runs_alone], ids=str)
async def test_every_animal_ends_the_way_the_catalogue_says(creature: Animal, env: Env, tmp_path: Path) -> None:
    """Whatever a plugin does is a value, and nothing of it is left."""
    folder = copy_of(creature, tmp_path) if creature.on_a_copy else creature.path
    hangs = creature.expected in (Expected.TIMED_OUT, Expected.SUCCESS_OR_TIMED_OUT)
    ended = await run_plugin(
        [str(folder / "run")],
        request_for(dict(creature.config), creature.request_bytes),
        timeout=0.3 if hangs else PATIENCE,
        grace=0.2,
        env=env,
        limits=creature.limits,
    )
    require_expected(creature, ended)


def require_expected(creature: Animal, ended: Finished | SpawnFailed) -> None:
    """The run is what the catalogue says."""
    match creature.expected:
        case Expected.SPAWN_ERROR:
            assert isinstance(ended, SpawnFailed)
        case Expected.TIMED_OUT:
            assert isinstance(ended, Finished)
            assert ended.timed_out
        case Expected.SUCCESS:
            assert isinstance(ended, Finished)
            assert (ended.cause, ended.exit_code, ended.stdout_over_cap) == (Cause.EXITED, 0, False), ended.stderr
            assert ended.stdout.lstrip().startswith(b"{")
        case _:
            assert isinstance(ended, Finished)


def test_the_zoo_has_all_66_animals() -> None:
    """Each animal has a folder with a manifest and an executable, and each folder is in the catalogue."""
    folders = {path.parent.name for path in ZOO.glob("z*/manifest.yaml") if os.access(path.parent / "run", os.X_OK)}
    assert folders == {one.folder for one in ANIMALS}
    assert {one.id for one in ANIMALS} == {f"Z{number:02}" for number in range(1, 67)}


async def test_a_plugin_gets_its_request_even_if_the_service_dies_in_the_moment_of_its_start(
    make_script: MakeScript, env: Env, tmp_path: Path
) -> None:
    """It must not take the end of an empty pipe for its request."""
    request, table = os.urandom(4000), ProcessTable()
    argv = make_script(f"cat > '{tmp_path}/got'")
    spec = ProcessSpec(argv=argv, request=request, environment=env, timeout_seconds=PATIENCE)
    process = start_process(spec, table.new_tag())
    assert isinstance(process, Process)
    process.stdin.close()  # as the kernel does when this process ends
    await process.wait()
    process.reap()
    process.close()
    assert (tmp_path / "got").read_bytes() == request


# --- in and out -------------------------------------------------------------------------------------------------------


async def test_a_large_request_is_fed_while_the_answer_is_read(make_script: MakeScript, env: Env) -> None:
    """Neither side waits for the other: what goes in can come out while it is still going in."""
    request = os.urandom(5 * MIB)
    finished = await run(make_script("exec cat"), env, request)
    assert finished.exit_code == 0
    assert finished.stdout == request
    assert finished.stdout_total == len(request)


async def test_the_late_event_of_another_process_does_not_end_a_plugin(
    make_script: MakeScript, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a descriptor is used again at once, but the event loop can still hear of what had it before, for as
    long as a process that is just being started has a copy of that. The plugin is not taken for dead and killed."""
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


async def test_a_silent_plugin_can_be_stopped_and_outlive_no_deadline(make_plugin: MakePlugin, env: Env) -> None:
    """Waiting for nothing but the exit is still waiting under a deadline, and for whoever asks it to stop."""
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
    """Stdin ends after the request, for an empty one too."""
    assert (await run(make_script("wc -c"), env, b"12345")).stdout.strip() == b"5"
    assert (await run(make_script("wc -c"), env, b"")).stdout.strip() == b"0"


@pytest.mark.parametrize("folder", ["z41_never_reads", "z42_closes_stdin"])
async def test_a_plugin_need_not_read_its_request(folder: str, env: Env) -> None:
    """An unread request is no failure and no noise."""
    finished = await run(animal(folder), env, b"x" * 2 * MIB)
    assert (finished.exit_code, finished.stdout.strip(), finished.stderr) == (0, ANSWER, b"")


async def test_a_plugin_inherits_nothing_but_what_it_is_given(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the given environment, a session of its own, no ignored or blocked signal (Python ignores SIGPIPE)."""
    monkeypatch.setenv("CANARY", "sings")
    finished = await run(animal("z61_spy"), env)
    seen = json.loads(json.loads(finished.stdout)["result"])
    assert {name: seen["environ"].get(name) for name in env} == env
    assert set(seen["environ"]) - set(env) <= {"LC_CTYPE"}  # set by the interpreter itself
    assert seen["session_is_own"]
    finished = await run(["/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], env)
    masks = [int(line.split()[1], 16) for line in finished.stdout.splitlines()]
    assert [mask & (1 << 31) - 1 for mask in masks] == [0, 0]  # above are the C library's own two


# --- caps -------------------------------------------------------------------------------------------------------------


async def test_output_of_exactly_the_cap_is_an_answer(env: Env) -> None:
    """The cap itself is allowed."""
    finished = await run(animal("z34_exactly_at_the_cap"), env, request_for({"bytes": STDOUT_CAP}))
    assert finished.cause is Cause.EXITED
    assert len(finished.stdout) == finished.stdout_total == STDOUT_CAP
    assert not finished.stdout_over_cap


async def test_one_byte_over_the_cap_ends_the_run_at_once(env: Env) -> None:
    """A plugin that says too much is killed without grace, and the prefix is kept."""
    finished = await run(animal("z35_one_byte_over"), env, request_for({"bytes": STDOUT_CAP}), grace=PATIENCE)
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert finished.signal == signal.SIGKILL
    assert finished.stdout_over_cap
    assert len(finished.stdout) == STDOUT_CAP
    assert finished.stdout_total == STDOUT_CAP + 1


async def test_a_cap_that_a_pipe_can_hold_counts_for_a_plugin_that_is_soon_done(env: Env, tmp_path: Path) -> None:
    """What it said is read before it is decided why it ended."""
    brief = tmp_path / "brief"
    brief.write_text("#!/bin/sh\nprintf '%1000s' x\n")
    brief.chmod(0o700)
    finished = await run_plugin([str(brief)], b"", timeout=PATIENCE, env=env, caps=Caps(stdout=100))
    assert isinstance(finished, Finished)
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert finished.stdout_over_cap


async def test_endless_output_is_cut_off(env: Env) -> None:
    """Memory is bounded by the cap, not by the plugin."""
    finished = await run(animal("z36_endless_stdout"), env, caps=Caps(stdout=100_000))
    assert finished.cause is Cause.OUTPUT_LIMIT
    assert len(finished.stdout) == 100_000


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])), cap=st.integers(0, 5 * CHUNK)
)
def test_of_a_stream_the_beginning_is_kept_in_whatever_pieces_it_comes(sizes: list[int], cap: int) -> None:
    """Up to the cap, byte for byte; what is beyond it is only counted."""
    said = random.Random(0).randbytes(sum(sizes))
    beginning, at = HeadBuffer(cap), 0
    for size in sizes:
        beginning.write(said[at : at + size])
        at += size
        assert beginning.read() == said[:at][:cap]
    assert beginning.total == len(said)


def test_a_stream_in_tiny_pieces_takes_no_more_memory_than_it_has_bytes() -> None:
    """A plugin that writes single bytes is not kept as a million objects."""
    tracemalloc.start()
    try:
        beginning = HeadBuffer(1 << 20)
        for _ in range(1 << 18):
            beginning.write(b"x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


async def test_of_too_much_stderr_the_end_is_kept(env: Env) -> None:
    """Stderr is always drained and never fails a run; its last lines say most."""
    finished = await run(animal("z37_loud_stderr"), env)
    assert (finished.exit_code, finished.stdout.strip()) == (0, ANSWER)
    assert len(finished.stderr) == 64 << 10
    assert finished.stderr.endswith(b"last words\n")
    assert finished.stderr_truncated
    assert finished.stderr_total > 20_000_000


async def test_stderr_can_be_read_while_the_plugin_runs(
    make_plugin: MakePlugin, env: Env, nursery: trio.Nursery
) -> None:
    """The tail is live."""
    plugin = make_plugin("""
        print("half way", file=sys.stderr, flush=True)
        sys.stdin.read()
        checkpoint()
        signal.pause()
    """)
    tail, stop = TailBuffer(), StopRequest()

    async def look() -> None:
        await plugin.reached_checkpoint()
        while tail.read() != b"half way\n":
            await trio.lowlevel.checkpoint()
        stop.request("seen")

    nursery.start_soon(look)
    finished = await run(plugin.argv, env, stop=stop, tail=tail)
    assert finished.stderr == b"half way\n"


# --- the deadline -----------------------------------------------------------------------------------------------------


async def test_plugin_that_outlives_its_deadline_is_asked_to_stop(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """At its deadline a plugin gets SIGTERM, and what it had said so far is kept."""
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


async def test_plugin_that_ignores_sigterm_is_killed_after_the_grace(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Asking has an end: after the grace comes SIGKILL."""
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


async def test_a_stopped_plugin_still_gets_its_chance_to_end_in_order(
    make_plugin: MakePlugin, env: Env, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """SIGTERM alone would wait for ever in a process that has stopped itself: SIGCONT comes with it."""
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


async def test_what_is_finished_when_the_deadline_fires_counts(
    make_script: MakeScript, env: Env, mock_clock: trio.testing.MockClock
) -> None:
    """The decision is one: a leader that has exited when we look gave a result, however late we look."""

    def wait_for_its_exit_then_miss_the_deadline(process: Process) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        mock_clock.jump(1000)

    script = make_script("echo done")
    finished = await run(script, env, timeout=60, on_start=wait_for_its_exit_then_miss_the_deadline)
    assert finished.cause is Cause.EXITED
    assert finished.stdout == b"done\n"


async def test_around_the_deadline_a_run_is_either_finished_or_timed_out(make_script: MakeScript, env: Env) -> None:
    """A result that counts is complete; never both, never neither."""
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


# --- ended from outside -----------------------------------------------------------------------------------------------


async def test_a_run_that_is_stopped_says_why_and_keeps_what_it_said(
    make_plugin: MakePlugin, env: Env, nursery: trio.Nursery
) -> None:
    """The drain and an operator end a run the way a deadline does, and get its result."""
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
    assert finished.interrupted
    assert not finished.timed_out
    assert (finished.stopped, finished.exit_code, finished.stdout) == ("drain", 5, b"so far\n")


async def test_a_stop_asked_for_before_the_start_is_obeyed(make_script: MakeScript, env: Env) -> None:
    """No request is lost between claim and spawn."""
    stop = StopRequest()
    stop.request("cancelled by the operator")
    finished = await run(make_script("exec sleep 3600"), env, stop=stop)
    assert finished.stopped == "cancelled by the operator"


async def test_a_stop_that_comes_too_late_changes_nothing(make_script: MakeScript, env: Env) -> None:
    """A finished run stays finished."""
    stop = StopRequest()

    def wait_for_its_exit_then_ask(process: Process) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        stop.request("drain")

    finished = await run(make_script("echo done"), env, stop=stop, on_start=wait_for_its_exit_then_ask)
    assert finished.cause is Cause.EXITED
    assert finished.stopped is None


async def test_cancellation_ends_the_process_before_it_goes_on(make_plugin: MakePlugin, env: Env) -> None:
    """Nobody who leaves a cancelled scope leaves a process behind."""
    plugin = make_plugin("checkpoint(); signal.pause()")
    started: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run, plugin.argv, env, on_start=lambda process: started.append(process.pid)))
        await plugin.reached_checkpoint()
        process = identify(started[0])
        assert process is not None
        nursery.cancel_scope.cancel()
    assert not is_same(process)


# --- exits and starts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
async def test_a_plugin_that_dies_of_a_signal_says_which(name: str, env: Env) -> None:
    """An exit code or a signal, never both."""
    finished = await run(animal("z49_kills_itself"), env, request_for({"signal": name}))
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
async def test_what_cannot_be_spawned_says_why(
    how: str, limits: ResourceLimits | None, make_script: MakeScript, env: Env
) -> None:
    """A broken entrypoint is named in words and as errno, with and without the shell that sets limits."""
    script = make_script("echo hello")
    break_entrypoint(Path(script[0]), how)
    failed = await run_plugin(script, b"{}", timeout=PATIENCE, env=env, limits=limits)
    code, words = SPAWN_REFUSALS[how]
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == code
    assert failed.reason.startswith(script[0])
    assert words in failed.reason


async def test_an_environment_too_large_for_the_kernel_is_a_spawn_failure(make_script: MakeScript, env: Env) -> None:
    """E2BIG is the operator's to cure, not a crash."""
    failed = await run_plugin(make_script("true"), b"{}", timeout=PATIENCE, env=env | {"HUGE": "x" * 300_000})
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.E2BIG


@pytest.mark.parametrize("bad", [{"NUL": "a\0b"}, {"A=B": "x"}, {"HALF": "\ud800"}], ids=["nul", "equals", "surrogate"])
async def test_an_environment_that_cannot_exist_is_a_spawn_failure(bad: Env, make_script: MakeScript, env: Env) -> None:
    """Values from a configuration may be anything; the core survives them."""
    failed = await run_plugin(make_script("true"), b"{}", timeout=PATIENCE, env=env | bad)
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.EINVAL


@pytest.mark.parametrize("free", range(9))
async def test_without_free_descriptors_the_spawn_fails_and_leaks_none(
    free: int, make_script: MakeScript, env: Env
) -> None:
    """Whichever descriptor is the first that cannot be had: a failure or a whole run, and the next run is good."""
    script = make_script("echo done")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + free, hard))
    try:
        ended = await run_plugin(script, b"{}", timeout=PATIENCE, env=env)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(ended, SpawnFailed) == (free < 7)
    assert isinstance(ended, Finished) or ended.errno == errno.EMFILE
    assert (await run(script, env)).stdout == b"done\n"


async def test_a_program_that_is_still_being_written_is_tried_again(tmp_path: Path, env: Env) -> None:
    """A busy file passes in a moment: it is waited for, but not for ever."""
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        failed = await run_plugin([str(program)], b"", timeout=PATIENCE, env=env)
    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.ETXTBSY
    assert (await run([str(program)], env)).exit_code == 0


async def test_a_stall_of_the_event_loop_loses_no_output(make_script: MakeScript, env: Env) -> None:
    """What a finished plugin has written is in the pipe, however late it is read."""

    async def stall() -> None:
        time.sleep(PIPE_DRAIN_SECONDS + 0.2)  # noqa: ASYNC251 - the point of the test

    def exit_then_stall(process: Process) -> None:
        os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
        trio.lowlevel.spawn_system_task(stall)

    finished = await run(make_script("echo said >&2; echo done"), env, on_start=exit_then_stall)
    assert (finished.stdout, finished.stderr, finished.pipe_held) == (b"done\n", b"said\n", False)


# --- descendants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["z54_child_keeps_pipes", "z55_daemon_keeps_pipes", "z56_daemon_without_traces"])
async def test_a_descendant_that_stays_behind_is_killed(folder: str, env: Env) -> None:
    """In the group of the leader, in a session of its own, or without session, environment and pipes."""
    finished = await run(animal(folder), env)
    assert (finished.cause, finished.exit_code, finished.stdout.strip()) == (Cause.EXITED, 0, ANSWER)
    assert not finished.pipe_held
    assert finished.swept == 1
    assert not finished.lost


async def test_a_run_counts_though_nobody_can_look_for_what_it_left(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor the sweep comes after another run; what the plugin said is not said in vain."""
    read, table = procfs._read, ProcessTable()

    def no_descriptor_left(path: str) -> bytes:
        if path.endswith("/stat"):
            raise OSError(errno.EMFILE, "too many open files", path)
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(procfs, "_read", no_descriptor_left)
        finished = await run(animal("z56_daemon_without_traces"), env, table=table)
    assert (finished.exit_code, finished.stdout.strip(), finished.lost) == (0, ANSWER, True)
    assert (await run(animal("z56_daemon_without_traces"), env, table=table)).swept == 2


async def test_a_fork_bomb_is_swept(env: Env) -> None:
    """All of them, however many."""
    finished = await run(animal("z57_fork_bomb"), env)
    assert json.loads(finished.stdout)["result"] == f"forked {finished.swept}"


async def test_what_the_process_itself_started_is_never_swept(env: Env) -> None:
    """A child of our own session is somebody else's here, not a stray."""
    ours = await trio.lowlevel.open_process(["/bin/sleep", "3600"])
    try:
        finished = await run(animal("z56_daemon_without_traces"), env)
        assert finished.swept == 1
        assert ours.poll() is None
    finally:
        ours.kill()
        await ours.wait()


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_limits_are_what_the_plugin_gets(make_plugin: MakePlugin, env: Env) -> None:
    """Sizes in bytes, counts as they are, whatever unit the shell speaks."""
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
    """The shell that sets limits becomes the plugin: same pid, same group, same deadline."""
    finished = await run(animal("z61_spy"), env, limits=ResourceLimits(open_files=64))
    assert json.loads(json.loads(finished.stdout)["result"])["session_is_own"]


# --- all at once ------------------------------------------------------------------------------------------------------


async def test_a_storm_of_runs_cancelled_at_random_moments_leaves_nothing(make_script: MakeScript, env: Env) -> None:
    """Deadlines, stops and cancellations at any moment of any run: no survivor, no zombie, no descriptor."""
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
        with trio.move_on_after(moment if how == "cancel" else PATIENCE):
            async with trio.open_nursery() as nursery:
                if how == "stop":
                    nursery.start_soon(stop_after, moment, stop)
                timeout = moment if how == "deadline" else PATIENCE
                await run(script, env, timeout=timeout, grace=0.02, stop=stop, caps=Caps(stdout=1 << 20), table=table)
                nursery.cancel_scope.cancel()

    async def stop_after(moment: float, stop: StopRequest) -> None:
        await trio.sleep(moment)
        stop.request("storm")

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            how = dice.choice(["cancel", "stop", "deadline"])
            nursery.start_soon(one, dice.uniform(0, 1.0), how, dice.choice(scripts))
