"""The single-instance lock: the kernel decides, the text in the file only informs."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ductile.core.errors import AlreadyRunning, LedgerError
from ductile.core.instance import lock
from ductile.core.instance.lock import holder, instance_lock, is_held, lock_paths

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
HOLD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.core.instance.lock import instance_lock
with instance_lock(Path(sys.argv[1]), Path(sys.argv[2]), now=datetime.now(UTC)):
    print("held", flush=True)
    sys.stdin.read()
"""
ORIGINAL = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(descriptor, str(os.getpid()).encode())
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(program: str, *arguments: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_instance_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    """Exit 75, with the pid of the holder as information."""
    with another_process(HOLD, tmp_path, tmp_path / "ductile.db") as first:
        with (
            pytest.raises(AlreadyRunning, match=f"held by process {first.pid} since 20") as refused,
            instance_lock(tmp_path, tmp_path / "ductile.db", now=NOW),
        ):
            pass
        assert (refused.value.exit_code, refused.value.context["pid"]) == (75, first.pid)


def test_old_and_new_never_run_together(tmp_path: Path) -> None:
    """The original locks `<database without extension>.pid`; so do we."""
    database = tmp_path / "state" / "ductile.db"
    database.parent.mkdir()
    with (
        another_process(ORIGINAL, database.with_suffix(".pid")) as original,
        pytest.raises(AlreadyRunning, match=rf"ductile\.pid: held by process {original.pid}"),
        instance_lock(tmp_path, database, now=NOW),
    ):
        pass
    with instance_lock(tmp_path, database, now=NOW):
        assert is_held(database.with_suffix(".pid"))


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel releases the lock; a stale file with a strange pid does not matter."""
    with another_process(HOLD, tmp_path, tmp_path / "ductile.db") as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    with instance_lock(tmp_path, tmp_path / "ductile.db", now=NOW):
        assert holder(tmp_path / "ductile.lock") == (os.getpid(), "2026-02-08T09:30:00.000000Z")


def test_files_are_private_and_stay(tmp_path: Path) -> None:
    """0600 whatever the umask; never removed, so that a name cannot be locked twice."""
    before = os.umask(0)
    try:
        with instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
            assert all(is_held(path) for path in lock_paths(tmp_path, tmp_path / "x.db"))
    finally:
        os.umask(before)
    for path in lock_paths(tmp_path, tmp_path / "x.db"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not is_held(path)


@pytest.mark.parametrize("content", ["", "garbage", "99999999999999999999", "-1 x", "٣"])
def test_any_text_in_a_free_lock_file_is_fine(tmp_path: Path, content: str) -> None:
    """Only the lock counts."""
    (tmp_path / "ductile.lock").write_text(content)
    assert holder(tmp_path / "ductile.lock")[0] is None
    with instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
        pass


def test_the_first_lock_is_given_back_when_the_second_is_refused(tmp_path: Path) -> None:
    """A refused start leaves nothing locked."""
    with another_process(ORIGINAL, tmp_path / "x.pid"):
        with pytest.raises(AlreadyRunning), instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
            pass
        assert not is_held(tmp_path / "ductile.lock")


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """Nobody makes us truncate a stranger's file."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "ductile.lock").symlink_to(precious)
    with pytest.raises(LedgerError), instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
        pass
    assert precious.read_text() == "keep"


def test_a_lock_whose_file_is_no_longer_in_its_place_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore exchanges the directory between opening and locking: another process may lock the new file."""
    state = tmp_path / "state"
    state.mkdir()
    take = lock._take

    def exchange_and_take(descriptor: int) -> None:
        if not (tmp_path / "aside").exists():
            state.rename(tmp_path / "aside")
            state.mkdir()
            (state / lock.LOCK_NAME).touch()
        take(descriptor)

    monkeypatch.setattr(lock, "_take", exchange_and_take)

    with pytest.raises(AlreadyRunning), instance_lock(state, state / "ductile.db", now=NOW):
        pass
    with instance_lock(state, state / "ductile.db", now=NOW):
        assert is_held(state / lock.LOCK_NAME)
