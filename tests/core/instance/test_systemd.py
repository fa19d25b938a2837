"""What systemd hears from us, over a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ductile.core.instance.systemd import STUCK_SECONDS, Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    states = []
    while True:
        try:
            states.append(manager.recv(4096).decode())
        except BlockingIOError:
            return states


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_what_is_sent_arrives(manager: socket.socket) -> None:
    """One datagram for each state."""
    notifier = Notifier.from_environment(environment(manager))
    notifier.send("READY=1")
    notifier.send("STOPPING=1")
    assert heard(manager) == ["READY=1", "STOPPING=1"]


def test_an_abstract_address_begins_with_an_at_sign() -> None:
    """As systemd writes it in the environment of a container."""
    name = f"ductile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.setblocking(False)
        Notifier.from_environment({"NOTIFY_SOCKET": f"@{name}"}).send("READY=1")
        assert heard(listening) == ["READY=1"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_socket_we_can_use_nothing_happens(environ: dict[str, str]) -> None:
    """The service runs the same without systemd."""
    notifier = Notifier.from_environment(environ)
    notifier.send("READY=1")
    assert notifier == Notifier()


def test_a_manager_that_is_gone_or_does_not_listen_is_no_error(tmp_path: Path, manager: socket.socket) -> None:
    """Best effort: never an exception, never a wait."""
    Notifier(str(tmp_path / "nobody")).send("READY=1")
    for _ in range(10_000):  # far more than the socket's buffer holds
        Notifier(manager.getsockname()).send("WATCHDOG=1")
    assert 0 < len(heard(manager)) < 10_000


@pytest.mark.parametrize(
    ("micros", "seconds"), [("20000000", 10.0), ("1000", 0.0005), ("0", None), ("", None), ("-5", None), ("x", None)]
)
def test_a_sign_of_life_is_due_twice_per_interval(manager: socket.socket, micros: str, seconds: float | None) -> None:
    """What is not a number of microseconds asks for none."""
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC=micros))
    assert notifier.watchdog_seconds == seconds


async def test_signs_of_life_stop_while_the_ledger_is_stuck(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    """A service that cannot write is not alive, and systemd should find out."""
    stuck = 0.0
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC="20000000"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.keep_alive, lambda: stuck)
        await trio.sleep(25)
        assert heard(manager) == ["WATCHDOG=1"] * 3
        stuck = STUCK_SECONDS
        await trio.sleep(50)
        assert heard(manager) == []
        stuck = 0.0
        await trio.sleep(10)
        assert heard(manager) == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_without_an_interval_there_are_no_signs_of_life(manager: socket.socket) -> None:
    """Nothing is left running for nobody."""
    with trio.fail_after(30):
        await Notifier.from_environment(environment(manager)).keep_alive(lambda: 0.0)
    assert heard(manager) == []
