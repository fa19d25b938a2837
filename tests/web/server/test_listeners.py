"""Doors: who can use them, and what an operator reads when one cannot be opened."""

import os
import socket
import stat
from pathlib import Path

import pytest

from ductile.core.errors import ConfigInvalid, DuctileError
from ductile.web.server import listeners
from ductile.web.server.listeners import (
    LONGEST_SOCKET_PATH,
    AddressBusy,
    local_socket_path,
    open_tcp,
    open_unix,
    parse_listen,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        (":8080", ("", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
    ],
)
def test_an_address_is_host_and_port(text: str, parsed: tuple[str, int]) -> None:
    """The forms people write, with an empty host for every interface."""
    assert parse_listen(text) == parsed


@pytest.mark.parametrize("text", ["", "8080", "localhost", "::1:8080", "host:port", "host:99999", "host:-1", "a b:1"])
def test_a_wrong_address_is_a_configuration_error(text: str) -> None:
    """It says what was written and how it should be written."""
    with pytest.raises(ConfigInvalid, match="write host:port") as invalid:
        parse_listen(text)
    assert invalid.value.exit_code == 78


def test_a_busy_port_is_a_plain_error_that_says_what_to_do() -> None:
    """No group, no traceback: the address, a hint, and the exit code for "try again"."""
    first = open_tcp("127.0.0.1:0")
    try:
        with pytest.raises(AddressBusy, match=f"127.0.0.1:{first.port}") as busy:
            open_tcp(f"127.0.0.1:{first.port}")
    finally:
        first.close()
    assert busy.value.exit_code == 75
    assert busy.value.hint


def test_an_address_of_another_host_is_a_configuration_error() -> None:
    """Not every address can be listened on."""
    with pytest.raises(ConfigInvalid, match=r"192\.0\.2\.1"):
        open_tcp("192.0.2.1:0")


def test_a_listening_socket_is_not_inherited_by_plugins() -> None:
    """A plugin that outlives the service must not keep its port."""
    listener = open_tcp("127.0.0.1:0")
    assert not os.get_inheritable(listener.sock.fileno())
    listener.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_local_socket_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """The local socket needs no token, so its mode is the lock."""
    before = os.umask(umask)
    try:
        listener = open_unix(tmp_path / "ductile.sock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ductile.sock").stat().st_mode) == 0o600
    listener.close()
    assert not (tmp_path / "ductile.sock").exists()


def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    """Nobody answers there, so nobody is disturbed."""
    path = tmp_path / "ductile.sock"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))

    listener = open_unix(path)

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    """Another instance keeps its listener."""
    path = tmp_path / "ductile.sock"
    first = open_unix(path)

    with pytest.raises(AddressBusy) as busy:
        open_unix(path)

    assert busy.value.exit_code == 75
    assert path.is_socket()
    first.close()


@pytest.mark.parametrize("kind", ["file", "symlink", "directory"])
def test_what_is_not_a_socket_is_never_removed(tmp_path: Path, kind: str) -> None:
    """A file with that name is somebody's data."""
    path = tmp_path / "ductile.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere.sock")
    else:
        path.mkdir()

    with pytest.raises(DuctileError, match="not a socket"):
        open_unix(path)

    assert path.is_symlink() or path.exists()


def test_closing_leaves_a_successor_its_socket(tmp_path: Path) -> None:
    """An instance that stops late must not take away the file of the one that came after it."""
    path = tmp_path / "ductile.sock"
    old = open_unix(path)
    path.rename(tmp_path / "moved.sock")
    new = open_unix(path)

    old.close()

    assert path.is_socket()
    new.close()


def test_a_path_too_long_for_the_os_gets_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service and CLI find the same socket from the same state directory, however deep that lies."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    path = local_socket_path(deep)

    assert len(os.fsencode(path)) <= LONGEST_SOCKET_PATH
    assert path == local_socket_path(deep) != local_socket_path(deep / "other")
    assert local_socket_path(Path("/short")) == Path("/short/ductile.sock")
    open_unix(path).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_fallback_directory_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared place somebody else could have prepared it to listen in."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    path = local_socket_path(tmp_path / ("d" * 120))
    path.parent.mkdir()
    path.parent.chmod(0o755)

    with pytest.raises(DuctileError, match="not a directory of this user alone") as refused:
        open_unix(path)
    assert refused.value.exit_code == 77


@pytest.mark.parametrize("made_by", ["another user", "nobody in particular", "a link"])
def test_nobody_is_asked_in_a_fallback_directory_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: str
) -> None:
    """Whoever made it first could listen there to what an operator says, and answer as if it were the service."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    folder = local_socket_path(deep).parent
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if made_by == "a link":
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o700)
    if made_by == "nobody in particular":
        folder.chmod(0o777)
    if made_by == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(folder, 12345, -1)

    with pytest.raises(DuctileError, match="not a directory of this user alone") as refused:
        local_socket_path(deep)
    assert refused.value.exit_code == 77
