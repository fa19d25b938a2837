"""Listening sockets: TCP and unix, and the set of listeners of a configuration.

Synchronous, so that a busy address is a plain error before anything starts, and the CLI finds the local socket without
an event loop. Does not accept connections and imports no HTTP server.
"""

import errno
import hashlib
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ductile.core.errors import Complaint, ConfigInvalid, DuctileError, NotAllowed, RestartNeeded

if TYPE_CHECKING:
    from ductile.config.load.load import Config

# Large, because a client waits for seconds when this queue is full; the connection limiter responds immediately.
BACKLOG = 4096
# The size of sockaddr_un.sun_path without its terminating NUL.
MAX_SOCKET_PATH_BYTES = 107
SHARED_DIRECTORY = Path("/tmp")


class AddressBusy(DuctileError):
    """The address is already in use."""

    code, exit_code, status = "address_in_use", 75, 503
    hint = "Stop the process that uses it, or set another address with `listen`."


@frozen
class Listener:
    """A listening socket. `address` is its display form, `identity` the device and inode of its socket file."""

    sock: socket.socket
    address: str
    port: int = 0
    path: Path | None = None
    identity: tuple[int, int] | None = None

    def close(self) -> None:
        """Close the socket and remove its file, unless another process has replaced the file."""
        self.sock.close()
        if self.path is not None and _identity(self.path) == self.identity:
            self.path.unlink(missing_ok=True)


def open_tcp(listen: str, *, stall_seconds: float = 30.0) -> Listener:
    """Listen on `host:port`. Port 0 selects a free port; an empty host means every interface."""
    sock = bind_tcp(listen)
    try:
        # Accepted sockets inherit these two.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_seconds * 1000))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _listen_error(listen, error) from error
    bound_host, bound_port = sock.getsockname()[:2]
    shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host
    return Listener(sock, f"http://{shown_host}:{bound_port}", port=bound_port)


def bind_tcp(listen: str) -> socket.socket:
    """Bind a socket to `host:port` without listening. Raises the error that `open_tcp` would raise."""
    host, port = parse_listen(listen)
    family, address = _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _listen_error(listen, error) from error
    return sock


def open_unix(path: Path) -> Listener:
    """Listen on a unix socket with mode 0600, whatever the umask. Replaces a stale socket file."""
    _prepare_directory(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if require_free_socket(path):
            path.unlink(missing_ok=True)
        # The file inherits the mode of the socket, so it never exists with another mode.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fspath(path))
        path.chmod(0o600)  # the umask can have removed bits
        sock.listen(BACKLOG)
        return Listener(sock, f"unix:{path}", path=path, identity=_identity(path))
    except OSError as error:
        sock.close()
        raise _listen_error(str(path), error) from error
    except DuctileError:
        sock.close()
        raise


def is_socket_left(state_dir: Path) -> bool:
    """True if the local socket exists. While no service runs, the last one did not shut down."""
    path = local_socket_path(state_dir)
    return os.path.lexists(path) and stat.S_ISSOCK(path.lstat().st_mode)


def local_socket_path(state_dir: Path) -> Path:
    """Return the path of the local socket of the service with this state directory.

    A path that is too long for the OS is replaced by a short one in a private directory below /tmp. Raises NotAllowed
    if that directory is not private: another user could have created it to impersonate the service.
    """
    path = state_dir.absolute() / "ductile.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    try:
        owner = state_dir.stat().st_uid
    except OSError:
        owner = os.geteuid()
    folder = SHARED_DIRECTORY / f"ductile-{owner}"
    if os.path.lexists(folder):
        _require_private(folder, owner, 0, os.geteuid())
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return folder / f"{digest}.sock"


def parse_listen(listen: str) -> tuple[str, int]:
    """Parse `host:port`, `[v6]:port` or `:port`. Raises ConfigInvalid."""
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match["port"]) > 65535:
        raise ConfigInvalid(
            [Complaint(f"{listen!r} is not an address; write host:port, such as 127.0.0.1:8080", "listen")]
        )
    return match["v6"] or match["host"] or "", int(match["port"])


_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^\[\]:\s]*)):(?P<port>[0-9]{1,5})", re.ASCII)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    if not host:
        return (socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("0.0.0.0", port))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigInvalid([Complaint(f"{host!r} is not an address of this host: {error}", "listen")]) from error
    # "localhost" has two addresses; clients try IPv4 first.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _prepare_directory(path: Path) -> None:
    """Create the private directory below /tmp if the path needs it. Raises NotAllowed if it is not private."""
    if path.parent.parent != SHARED_DIRECTORY or not path.parent.name.startswith("ductile-"):
        return
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _require_private(path.parent, os.geteuid())
    except OSError as error:
        raise _listen_error(str(path), error) from error


def _require_private(folder: Path, *owners: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o077:
        raise NotAllowed(
            f"{folder} is not a private directory of this user",
            hint="Remove it, or use a state directory with a shorter path.",
        )


def require_free_socket(path: Path) -> bool:
    """Return True for a stale socket file, False if there is no file. Raises if the path is in use."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise DuctileError(f"{path} exists and is not a socket", hint="Move it away, then start again.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:  # its queue is full, so it is in use
            pass
    raise AddressBusy(f"{path} is in use", hint="Another instance uses it. Stop that instance first.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _listen_error(address: str, error: OSError) -> DuctileError:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.EADDRINUSE:
            return AddressBusy(
                f"cannot listen on {address}: {reason}",
                hint="Another process uses this address. Stop it, or set another address with `listen`.",
                context={"address": address},
            )
        case errno.EACCES | errno.EPERM:
            return NotAllowed(
                f"cannot listen on {address}: {reason}",
                hint="Ports below 1024 and directories of other users need more privileges.",
            )
        case _:
            return ConfigInvalid([Complaint(f"cannot listen on {address}: {reason}", "listen")])


# ── listeners of a configuration ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_listeners(config: "Config") -> Iterator[list[Listener]]:
    """Open the API address and the local socket."""
    settings = config.settings
    with ExitStack() as opened:
        listeners = [open_unix(local_socket_path(settings.state.path.parent))]
        opened.callback(listeners[0].close)
        if _api_address_is_open(config):
            listeners.insert(0, open_tcp(settings.api.listen))
            opened.callback(listeners[0].close)
        yield listeners


@contextmanager
def open_webhook_listener(config: "Config") -> Iterator[list[Listener]]:
    """Open the webhook address, if the configuration has endpoints."""
    with ExitStack() as opened:
        listeners = []
        if listen := _webhook_address(config):
            listeners.append(open_tcp(listen))
            opened.callback(listeners[0].close)
        yield listeners


def require_free_listeners(config: "Config") -> None:
    """Raise the error that opening the listeners would raise. Accepts no connection and creates no file."""
    require_free_socket(local_socket_path(config.settings.state.path.parent))
    with ExitStack() as bound:  # all at once: two names may resolve to one address
        if _api_address_is_open(config):
            bound.enter_context(bind_tcp(config.settings.api.listen))
        if listen := _webhook_address(config):
            bound.enter_context(bind_tcp(listen))


def require_reloadable(old: "Config", new: "Config") -> None:
    """Raise RestartNeeded if a setting differs that a reload cannot change."""
    fixed = {
        "service.synchronous": (old.settings.service.synchronous, new.settings.service.synchronous),
        "service.log_format": (old.settings.service.log_format, new.settings.service.log_format),
        "state.path": (old.settings.state.path, new.settings.state.path),
        "api.enabled": (_api_address_is_open(old), _api_address_is_open(new)),
        "api.listen": (old.settings.api.listen, new.settings.api.listen),
        "api.max_body_size": (old.settings.api.max_body_size, new.settings.api.max_body_size),
        "webhooks.listen": (_webhook_address(old), _webhook_address(new)),
        "remote_ingress.listen_path": (_peer_path(old), _peer_path(new)),
        "remote_ingress.max_body_size": (_peer_max_body(old), _peer_max_body(new)),
    }
    changed = [
        new.complaint("cannot change while the service runs; restart the service", path, "service")
        for path, (was, now) in fixed.items()
        if was != now
    ]
    if changed:
        raise RestartNeeded(changed)


def _api_address_is_open(config: "Config") -> bool:
    """True if the configuration opens `api.listen`, for the API or for relay peers alone."""
    return config.settings.api.enabled or config.settings.remote_ingress is not None


def _webhook_address(config: "Config") -> str | None:
    section = config.settings.webhooks
    return section.listen if section.endpoints else None


def _peer_path(config: "Config") -> str | None:
    ingress = config.settings.remote_ingress
    return ingress.listen_path if ingress else None


def _peer_max_body(config: "Config") -> int | None:
    ingress = config.settings.remote_ingress
    return ingress.max_body_size if ingress else None
