"""The HTTP server: accepts connections on open listeners, limits them, serves them with Hypercorn, and stops.

Owns the nursery of connections: an error in one connection does not affect another. Does not know routes (the site
does) or HTTP (the connection does). The runtime starts one server per site.
"""

import errno
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext

from ductile.web.server.app import App
from ductile.web.server.connection import HttpConnection, ServerContext, make_hypercorn_config
from ductile.web.server.limits import (
    LOCAL_PEER,
    ConnectionLimiter,
    ConnectionLimits,
    GuardedStream,
    max_local_connections,
)
from ductile.web.server.listeners import Listener
from ductile.web.server.site import Site

GRACE_SECONDS = 10.0
# accept() raises these while the process or the host lacks a resource; the condition is temporary.
RESOURCE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
ACCEPT_RETRY_INTERVAL = 0.1
PEER_CREDENTIALS = struct.Struct("3i")
"""`struct ucred` of Linux: process, user and group id."""


async def serve(
    site: Site,
    listeners: Sequence[Listener],
    *,
    stopping: trio.Event,
    limits: ConnectionLimits | None = None,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `site` on every listener until `stopping`, then drain: close listeners and idle connections at once, and
    give requests in progress `grace_seconds`. Reports the addresses when it accepts connections.
    """
    hosting = ServerContext(site, ASGIWrapper(cast(Any, App(site))), make_hypercorn_config(), WorkerContext(None))
    limiters = [
        ConnectionLimiter(_limits_of(each, limits), lambda peer: site.trusted_proxies().includes(peer))
        for each in listeners
    ]
    try:
        async with trio.open_nursery() as serving:
            serving.start_soon(_abort_when_cancelled, limiters, name="cancellation watch")
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener, limiter in zip(listeners, limiters, strict=True):
                        name = f"listener {listener.address}"
                        accepting.start_soon(_accept, listener, limiter, hosting, connections, name=name)
                    task_status.started(tuple(listener.address for listener in listeners))
                    await stopping.wait()
                    accepting.cancel_scope.cancel()
                for listener, limiter in zip(listeners, limiters, strict=True):
                    listener.close()
                    limiter.close_idle()
                await hosting.context.terminated.set()
                serving.cancel_scope.deadline = trio.current_time() + grace_seconds
            serving.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


def _limits_of(listener: Listener, limits: ConnectionLimits | None) -> ConnectionLimits:
    if limits is not None or listener.path is None:
        return limits or ConnectionLimits()
    return ConnectionLimits(connections=max_local_connections())


async def _abort_when_cancelled(limiters: Sequence[ConnectionLimiter]) -> None:
    """Close every socket when the server is cancelled, because Hypercorn shields its writes."""
    try:
        await trio.sleep_forever()
    finally:
        for limiter in limiters:
            limiter.abort()


async def _accept(
    listener: Listener,
    limiter: ConnectionLimiter,
    hosting: ServerContext,
    connections: trio.Nursery,
) -> None:
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener.sock))
    while True:
        try:
            stream = await accepting.accept()
        except OSError as error:
            if error.errno not in RESOURCE_ERRNOS:
                raise
            hosting.site.on_fault(error, f"accepting at {listener.address}")
            await trio.sleep(ACCEPT_RETRY_INTERVAL)
        else:
            guarded = GuardedStream(stream, _peer_of(stream, listener), limiter.limits, _uid_of(stream, listener))
            connections.start_soon(_serve_connection, guarded, limiter, hosting, name=f"connection {guarded.peer}")


async def _serve_connection(stream: GuardedStream, limiter: ConnectionLimiter, hosting: ServerContext) -> None:
    """Serve one connection until it is closed. Exceptions are reported and not propagated."""
    try:
        if not limiter.admit(stream):
            stream.reject()
        await HttpConnection(hosting, stream).run()
    except* Exception as errors:
        hosting.site.on_fault(errors, f"connection from {stream.peer}")
    finally:
        limiter.release(stream)
        stream.abort()


def _peer_of(stream: trio.SocketStream, listener: Listener) -> str:
    if listener.path is not None:
        return LOCAL_PEER
    try:
        return str(stream.socket.getpeername()[0]).removeprefix("::ffff:")
    except OSError:  # already disconnected; the first read reports it
        return "unknown"


def _uid_of(stream: trio.SocketStream, listener: Listener) -> int | None:
    """Return the user id of the process at the other end of a unix socket; None for TCP."""
    if listener.path is None:
        return None
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    _, uid, _ = PEER_CREDENTIALS.unpack(credentials)
    return int(uid)
