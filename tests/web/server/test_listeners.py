"""Listeners: addresses, permissions, and errors that tell the operator what to do."""

import os
import socket
import stat
from pathlib import Path

import pytest

from ductile.core.errors import ConfigInvalid, DuctileError
from ductile.web.server import listeners
from ductile.web.server.listeners import (
    MAX_SOCKET_PATH_BYTES,
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
    """An empty host means every interface."""
    assert parse_listen(text) == parsed


@pytest.mark.parametrize("text", ["", "8080", "localhost", "::1:8080", "host:port", "host:99999", "host:-1", "a b:1"])
def test_a_wrong_address_is_a_configuration_error(text: str) -> None:
    """The error shows the value and the expected form."""
    with pytest.raises(ConfigInvalid, match="write host:port") as invalid:
        parse_listen(text)
    assert invalid.value.exit_code == 78


def test_a_busy_port_is_a_plain_error_with_a_hint() -> None:
    """No exception group, and the exit code for a temporary failure."""
    first = open_tcp("127.0.0.1:0")
    try:
        with pytest.raises(AddressBusy, match=f"127.0.0.1:{first.port}") as busy:
            open_tcp(f"127.0.0.1:{first.port}")
    finally:
        first.close()
    assert busy.value.exit_code == 75
    assert busy.value.hint


def test_an_address_of_another_host_is_a_configuration_error() -> None:
    """A listener needs an address of this host."""
    with pytest.raises(ConfigInvalid, match=r"192\.0\.2\.1"):
        open_tcp("192.0.2.1:0")


def test_a_listening_socket_is_not_inherited_by_plugins() -> None:
    """A plugin that outlives the service must not block its port."""
    listener = open_tcp("127.0.0.1:0")
    assert not os.get_inheritable(listener.sock.fileno())
    listener.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_local_socket_has_mode_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """The local socket needs no token, so only its mode protects it."""
    before = os.umask(umask)
    try:
        listener = open_unix(tmp_path / "ductile.sock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ductile.sock").stat().st_mode) == 0o600
    listener.close()
    assert not (tmp_path / "ductile.sock").exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """A crash leaves a socket file without a listener."""
    path = tmp_path / "ductile.sock"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))

    listener = open_unix(path)

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    """The listener of another instance keeps working."""
    path = tmp_path / "ductile.sock"
    first = open_unix(path)

    with pytest.raises(AddressBusy) as busy:
        open_unix(path)

    assert busy.value.exit_code == 75
    assert path.is_socket()
    first.close()


@pytest.mark.parametrize("kind", ["file", "symlink", "directory"])
def test_a_file_that_is_not_a_socket_is_not_removed(tmp_path: Path, kind: str) -> None:
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


def test_closing_does_not_remove_the_socket_of_a_later_instance(tmp_path: Path) -> None:
    path = tmp_path / "ductile.sock"
    old = open_unix(path)
    path.rename(tmp_path / "moved.sock")
    new = open_unix(path)

    old.close()

    assert path.is_socket()
    new.close()


def test_a_socket_path_that_is_too_long_is_replaced_by_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Service and CLI compute the same path from the same state directory."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    path = local_socket_path(deep)

    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    assert path == local_socket_path(deep) != local_socket_path(deep / "other")
    assert local_socket_path(Path("/short")) == Path("/short/ductile.sock")
    open_unix(path).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_fallback_directory_with_access_for_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could have created it below /tmp."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    path = local_socket_path(tmp_path / ("d" * 120))
    path.parent.mkdir()
    path.parent.chmod(0o755)

    with pytest.raises(DuctileError, match="not a private directory of this user") as refused:
        open_unix(path)
    assert refused.value.exit_code == 77


@pytest.mark.parametrize("kind", ["other owner", "open mode", "symlink"])
def test_the_cli_does_not_use_a_fallback_directory_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its owner could impersonate the service."""
    monkeypatch.setattr(listeners, "SHARED_DIRECTORY", tmp_path)
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    folder = local_socket_path(deep).parent
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if kind == "symlink":
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o700)
    if kind == "open mode":
        folder.chmod(0o777)
    if kind == "other owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(folder, 12345, -1)

    with pytest.raises(DuctileError, match="not a private directory of this user") as refused:
        local_socket_path(deep)
    assert refused.value.exit_code == 77
