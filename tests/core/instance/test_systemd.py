"""systemd notifications over a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ductile.core.instance.systemd import MAX_STUCK_SECONDS, Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def received(manager: socket.socket) -> list[str]:
    states = []
    while True:
        try:
            states.append(manager.recv(4096).decode())
        except BlockingIOError:
            return states


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    notifier = Notifier.from_environment(environment(manager))
    notifier.send("READY=1")
    notifier.send("STOPPING=1")
    assert received(manager) == ["READY=1", "STOPPING=1"]


def test_an_abstract_address_begins_with_an_at_sign() -> None:
    """As systemd sets it in a container."""
    name = f"ductile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.setblocking(False)
        Notifier.from_environment({"NOTIFY_SOCKET": f"@{name}"}).send("READY=1")
        assert received(listening) == ["READY=1"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_usable_socket_nothing_is_sent(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environ)
    notifier.send("READY=1")
    assert notifier == Notifier()


def test_a_missing_or_full_socket_is_ignored(tmp_path: Path, manager: socket.socket) -> None:
    """Sending neither raises nor blocks."""
    Notifier(str(tmp_path / "missing")).send("READY=1")
    for _ in range(10_000):  # far more than the socket's buffer holds
        Notifier(manager.getsockname()).send("WATCHDOG=1")
    assert 0 < len(received(manager)) < 10_000


@pytest.mark.parametrize(
    ("micros", "seconds"), [("20000000", 10.0), ("1000", 0.0005), ("0", None), ("", None), ("-5", None), ("x", None)]
)
def test_the_watchdog_is_notified_twice_per_interval(
    manager: socket.socket, micros: str, seconds: float | None
) -> None:
    """An invalid interval disables it."""
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC=micros))
    assert notifier.watchdog_seconds == seconds


async def test_watchdog_notifications_stop_while_the_ledger_is_stuck(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    """systemd then restarts the service."""
    stuck_seconds = 0.0
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC="20000000"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.run_watchdog, lambda: stuck_seconds)
        await trio.sleep(25)
        assert received(manager) == ["WATCHDOG=1"] * 3
        stuck_seconds = MAX_STUCK_SECONDS
        await trio.sleep(50)
        assert received(manager) == []
        stuck_seconds = 0.0
        await trio.sleep(10)
        assert received(manager) == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_without_an_interval_there_are_no_watchdog_notifications(manager: socket.socket) -> None:
    with trio.fail_after(30):
        await Notifier.from_environment(environment(manager)).run_watchdog(lambda: 0.0)
    assert received(manager) == []
