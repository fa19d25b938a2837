"""The single-instance lock: only the kernel lock counts, the text in the file is informational."""

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
from ductile.core.instance.lock import instance_lock, is_locked, lock_paths, read_holder

pytestmark = pytest.mark.process

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


def test_a_second_instance_fails_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """Exit code 75."""
    with another_process(HOLD, tmp_path, tmp_path / "ductile.db") as first:
        with (
            pytest.raises(AlreadyRunning, match=f"held by process {first.pid} since 20") as refused,
            instance_lock(tmp_path, tmp_path / "ductile.db", now=NOW),
        ):
            pass
        assert (refused.value.exit_code, refused.value.context["pid"]) == (75, first.pid)


def test_the_original_and_this_ductile_exclude_each_other(tmp_path: Path) -> None:
    """Both lock `<database without extension>.pid`."""
    database = tmp_path / "state" / "ductile.db"
    database.parent.mkdir()
    with (
        another_process(ORIGINAL, database.with_suffix(".pid")) as original,
        pytest.raises(AlreadyRunning, match=rf"ductile\.pid: held by process {original.pid}"),
        instance_lock(tmp_path, database, now=NOW),
    ):
        pass
    with instance_lock(tmp_path, database, now=NOW):
        assert is_locked(database.with_suffix(".pid"))


def test_a_killed_process_releases_the_lock(tmp_path: Path) -> None:
    """The stale pid in the file does not matter."""
    with another_process(HOLD, tmp_path, tmp_path / "ductile.db") as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    with instance_lock(tmp_path, tmp_path / "ductile.db", now=NOW):
        assert read_holder(tmp_path / "ductile.lock") == (os.getpid(), "2026-02-08T09:30:00.000000Z")


def test_lock_files_are_private_and_never_removed(tmp_path: Path) -> None:
    """Mode 0600 regardless of the umask."""
    before = os.umask(0)
    try:
        with instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
            assert all(is_locked(path) for path in lock_paths(tmp_path, tmp_path / "x.db"))
    finally:
        os.umask(before)
    for path in lock_paths(tmp_path, tmp_path / "x.db"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not is_locked(path)


@pytest.mark.parametrize("content", ["", "garbage", "99999999999999999999", "-1 x", "٣"])
def test_the_text_in_an_unlocked_file_does_not_matter(tmp_path: Path, content: str) -> None:
    (tmp_path / "ductile.lock").write_text(content)
    assert read_holder(tmp_path / "ductile.lock")[0] is None
    with instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
        pass


def test_the_first_lock_is_released_if_the_second_is_refused(tmp_path: Path) -> None:
    with another_process(ORIGINAL, tmp_path / "x.pid"):
        with pytest.raises(AlreadyRunning), instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
            pass
        assert not is_locked(tmp_path / "ductile.lock")


def test_a_symlink_as_lock_file_is_refused(tmp_path: Path) -> None:
    """Otherwise the target would be truncated."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "ductile.lock").symlink_to(precious)
    with pytest.raises(LedgerError), instance_lock(tmp_path, tmp_path / "x.db", now=NOW):
        pass
    assert precious.read_text() == "keep"


def test_a_lock_on_a_replaced_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore may replace the directory between opening and locking."""
    state = tmp_path / "state"
    state.mkdir()
    real_lock = lock._lock

    def exchange_and_lock(descriptor: int) -> None:
        if not (tmp_path / "aside").exists():
            state.rename(tmp_path / "aside")
            state.mkdir()
            (state / lock.LOCK_NAME).touch()
        real_lock(descriptor)

    monkeypatch.setattr(lock, "_lock", exchange_and_lock)

    with pytest.raises(AlreadyRunning), instance_lock(state, state / "ductile.db", now=NOW):
        pass
    with instance_lock(state, state / "ductile.db", now=NOW):
        assert is_locked(state / lock.LOCK_NAME)
