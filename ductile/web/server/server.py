"""The HTTP server: accepts connections of open listeners, limits them, serves them with Hypercorn, and stops.

Owns the nursery of connections; an error in one never reaches another or the listener. Knows nothing of paths and
handlers (the site does) or of HTTP (the connection does). The runtime starts one server per site.
"""

import errno
from collections.abc import Sequence
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext

from ductile.web.server.app import App
from ductile.web.server.connection import Hosting, HttpConnection, hypercorn_config
from ductile.web.server.limits import LOCAL_PEER, ConnectionLimiter, ConnectionLimits, GuardedStream
from ductile.web.server.listeners import Listener
from ductile.web.site import Site

GRACE_SECONDS = 10.0
# accept() reports these when the process or the host has run out of something; it will have it again.
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
RETRY_ACCEPT_SECONDS = 0.1


async def serve(
    site: Site,
    listeners: Sequence[Listener],
    *,
    stopping: trio.Event,
    limits: ConnectionLimits | None = None,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `site` at every listener until `stopping`. Then listeners and idle connections close at once, and requests
    in progress have `grace_seconds`. Reports the addresses once it accepts.
    """
    limits = limits or ConnectionLimits()
    hosting = Hosting(site, ASGIWrapper(cast(Any, App(site))), hypercorn_config(), WorkerContext(None))
    limiters = [ConnectionLimiter(limits, lambda peer: site.trusted_proxies().includes(peer)) for _ in listeners]
    try:
        async with trio.open_nursery() as serving:
            serving.start_soon(_abort_when_cancelled, limiters, name="cancellation watch")
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener, limiter in zip(listeners, limiters, strict=True):
                        name = f"listener {listener.address}"
                        accepting.start_soon(_accept, listener, limiter, hosting, limits, connections, name=name)
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


async def _abort_when_cancelled(limiters: Sequence[ConnectionLimiter]) -> None:
    """Close every socket when the server is cancelled: Hypercorn's shielded writes end only then."""
    try:
        await trio.sleep_forever()
    finally:
        for limiter in limiters:
            limiter.abort()


async def _accept(
    listener: Listener,
    limiter: ConnectionLimiter,
    hosting: Hosting,
    limits: ConnectionLimits,
    connections: trio.Nursery,
) -> None:
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener.sock))
    while True:
        try:
            stream = await accepting.accept()
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            hosting.site.on_fault(error, f"accepting at {listener.address}")
            await trio.sleep(RETRY_ACCEPT_SECONDS)
        else:
            guarded = GuardedStream(stream, _peer_of(stream, listener), limits)
            connections.start_soon(_serve_connection, guarded, limiter, hosting, name=f"connection {guarded.peer}")


async def _serve_connection(stream: GuardedStream, limiter: ConnectionLimiter, hosting: Hosting) -> None:
    """Serve one connection from accepted to closed. An error in it is reported and goes no further."""
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
    except OSError:  # it has left already; the first read reports that
        return "unknown"
