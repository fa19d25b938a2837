"""Listening sockets: TCP and unix, bound before anything else starts, and those that a configuration asks for.

Plain synchronous functions, so that a busy address is a plain error and the CLI finds the local socket without an event
loop. Does not accept connections and imports no HTTP server.
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

# A client that finds this queue full waits for seconds in the kernel; the connection limiter answers at once.
BACKLOG = 4096
# Bytes of a path that fit into sockaddr_un, without its closing NUL.
LONGEST_SOCKET_PATH = 107
SHARED_DIRECTORY = Path("/tmp")


class AddressBusy(DuctileError):
    """The address is in use by another process."""

    code, exit_code, status = "address_in_use", 75, 503
    hint = "stop what listens there, or choose another address with `listen`"


@frozen
class Listener:
    """A listening socket. `address` is for people; `identity` tells this socket file from a later one at its path."""

    sock: socket.socket
    address: str
    port: int = 0
    path: Path | None = None
    identity: tuple[int, int] | None = None

    def close(self) -> None:
        """Close the socket and remove its file, unless another process has created a new one there."""
        self.sock.close()
        if self.path is not None and _identity(self.path) == self.identity:
            self.path.unlink(missing_ok=True)


def open_tcp(listen: str, *, stall_seconds: float = 30.0) -> Listener:
    """Listen at `host:port`; port 0 takes a free one. An empty host means every interface."""
    sock = bound_tcp(listen)
    try:
        # Accepted sockets inherit these two.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_seconds * 1000))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _cannot_listen(listen, error) from error
    bound_host, bound_port = sock.getsockname()[:2]
    shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host
    return Listener(sock, f"http://{shown_host}:{bound_port}", port=bound_port)


def bound_tcp(listen: str) -> socket.socket:
    """Bind a socket to `host:port` without listening. Raises the error that prevents it."""
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
        raise _cannot_listen(listen, error) from error
    return sock


def open_unix(path: Path) -> Listener:
    """Listen at `path`, for its owner only, whatever the umask. A socket file without a listener is replaced."""
    _prepare(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if require_free_socket(path):
            path.unlink(missing_ok=True)
        # The mode given to the open socket is the one the file gets, so there is no moment with another.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fspath(path))
        path.chmod(0o600)  # a umask can only have taken away more
        sock.listen(BACKLOG)
        return Listener(sock, f"unix:{path}", path=path, identity=_identity(path))
    except OSError as error:
        sock.close()
        raise _cannot_listen(str(path), error) from error
    except DuctileError:
        sock.close()
        raise


def local_socket_path(state_dir: Path) -> Path:
    """Where the service with this state directory listens for its operator; the CLI asks the same question.

    A name too long for the OS becomes a short one in a directory of the owner alone; NotAllowed if one is there that is
    not: in a shared place another user could have made it, to receive what is meant for the service.
    """
    path = state_dir.absolute() / "ductile.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
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
    """Host and port of `host:port`, `[v6]:port` or `:port`."""
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match["port"]) > 65535:
        raise ConfigInvalid(
            [Complaint(f"{listen!r} is not an address: write host:port, like 127.0.0.1:8080", "listen")]
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
    # "localhost" has two addresses; the older one is where clients look first.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _prepare(path: Path) -> None:
    """The fallback directory exists and is ours alone; in a shared place another user could have made it."""
    if path.parent.parent != SHARED_DIRECTORY or not path.parent.name.startswith("ductile-"):
        return
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _require_private(path.parent, os.geteuid())
    except OSError as error:
        raise _cannot_listen(str(path), error) from error


def _require_private(folder: Path, *owners: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o077:
        raise NotAllowed(
            f"{folder} is not a directory of this user alone",
            hint="remove it, or give the service a state directory with a shorter path",
        )


def require_free_socket(path: Path) -> bool:
    """True if a socket without a listener is there, False if there is nothing; anything else is raised."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise DuctileError(f"{path} is there already and is not a socket", hint="move it away and start again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:  # its queue is full, so it has a listener
            pass
    raise AddressBusy(f"{path} is in use", hint="another instance is listening there; stop it first")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _cannot_listen(address: str, error: OSError) -> DuctileError:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.EADDRINUSE:
            return AddressBusy(
                f"cannot listen on {address}: {reason}",
                hint="another program has this address: stop it, or choose another one with `listen`",
                context={"address": address},
            )
        case errno.EACCES | errno.EPERM:
            return NotAllowed(
                f"cannot listen on {address}: {reason}",
                hint="ports below 1024 and foreign directories need more rights",
            )
        case _:
            return ConfigInvalid([Complaint(f"cannot listen on {address}: {reason}", "listen")])


# ── of a configuration ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_listeners(config: "Config") -> Iterator[list[Listener]]:
    """Open the API's address and the local socket. A busy port is a plain error, before anything runs."""
    settings = config.settings
    with ExitStack() as opened:
        listeners = [open_unix(local_socket_path(settings.state.path.parent))]
        opened.callback(listeners[0].close)
        if _listens(config):
            listeners.insert(0, open_tcp(settings.api.listen))
            opened.callback(listeners[0].close)
        yield listeners


@contextmanager
def open_webhook_listener(config: "Config") -> Iterator[list[Listener]]:
    """Open the address for deliveries, if the configuration has endpoints."""
    with ExitStack() as opened:
        listeners = []
        if listen := _listens_for_webhooks(config):
            listeners.append(open_tcp(listen))
            opened.callback(listeners[0].close)
        yield listeners


def require_free_listeners(config: "Config") -> None:
    """Raise the error that would prevent opening the listeners now. Accepts no connection and creates no file."""
    require_free_socket(local_socket_path(config.settings.state.path.parent))
    with ExitStack() as bound:  # together: two names may mean one address
        if _listens(config):
            bound.enter_context(bound_tcp(config.settings.api.listen))
        if listen := _listens_for_webhooks(config):
            bound.enter_context(bound_tcp(listen))


def require_same_places(old: "Config", new: "Config") -> None:
    """Raise RestartNeeded if a setting differs that cannot change while the service runs."""
    fixed = {
        "service.synchronous": (old.settings.service.synchronous, new.settings.service.synchronous),
        "service.log_format": (old.settings.service.log_format, new.settings.service.log_format),
        "state.path": (old.settings.state.path, new.settings.state.path),
        "api.enabled": (_listens(old), _listens(new)),
        "api.listen": (old.settings.api.listen, new.settings.api.listen),
        "api.max_body_size": (old.settings.api.max_body_size, new.settings.api.max_body_size),
        "webhooks.listen": (_listens_for_webhooks(old), _listens_for_webhooks(new)),
        "remote_ingress.listen_path": (_listens_for_peers(old), _listens_for_peers(new)),
        "remote_ingress.max_body_size": (_takes_from_peers(old), _takes_from_peers(new)),
    }
    moved = [
        new.complaint("cannot change while the service runs; restart it", path, "service")
        for path, (was, now) in fixed.items()
        if was != now
    ]
    if moved:
        raise RestartNeeded(moved)


def _listens(config: "Config") -> bool:
    """True if the API's address is open: for callers, or for peers alone, which need no token there."""
    return config.settings.api.enabled or config.settings.remote_ingress is not None


def _listens_for_webhooks(config: "Config") -> str | None:
    section = config.settings.webhooks
    return section.listen if section.endpoints else None


def _listens_for_peers(config: "Config") -> str | None:
    ingress = config.settings.remote_ingress
    return ingress.listen_path if ingress else None


def _takes_from_peers(config: "Config") -> int | None:
    ingress = config.settings.remote_ingress
    return ingress.max_body_size if ingress else None
