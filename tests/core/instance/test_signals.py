"""No signal is lost before the receiver opens, and a late one does not kill the process."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import signal, trio
from ductile.core.instance.signals import receive_signals
{before}
async def main():
    with receive_signals(signal.SIGTERM, signal.SIGHUP) as signals:
{inside}

trio.run(main)
{after}
print("over")
"""


def run(*, inside: str, before: str = "", after: str = "") -> tuple[int, str]:
    """Run a process that receives signals like the service; return its exit code and output."""
    body = "\n".join(f"        {line}" for line in inside.splitlines())
    program = PROGRAM.format(before=before, inside=body, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_an_unread_signal_does_not_kill_the_process(name: str) -> None:
    assert run(inside=f"signal.raise_signal(signal.{name})\nawait trio.sleep(0)") == (0, "over\n")


def test_a_signal_during_exit_is_ignored() -> None:
    assert run(inside="pass", after="signal.raise_signal(signal.SIGTERM)") == (0, "over\n")


def test_an_unread_signal_does_not_replace_the_exit_code() -> None:
    code, output = run(inside="signal.raise_signal(signal.SIGTERM)\nawait trio.sleep(0)\nraise SystemExit(7)")
    assert (code, output) == (7, "")


def test_signals_are_received_in_order() -> None:
    inside = "signal.raise_signal(signal.SIGHUP)\nsignal.raise_signal(signal.SIGTERM)\n"
    inside += "async for number in signals:\n    print(number)\n    if number == signal.SIGTERM:\n        break"
    assert run(inside=inside) == (0, f"{signal.SIGHUP.value}\n{signal.SIGTERM.value}\nover\n")


LATE = """
real = trio.open_signal_receiver
def late(*numbers):
    signal.raise_signal(signal.SIGTERM)
    return real(*numbers)
trio.open_signal_receiver = late
"""


def test_a_signal_before_the_receiver_opens_is_received() -> None:
    """Extends the time between handler and receiver."""
    inside = "async for number in signals:\n    print(number)\n    break"
    assert run(before=LATE, inside=inside) == (0, f"{signal.SIGTERM.value}\nover\n")


def test_a_second_signal_during_exit_kills_the_process() -> None:
    after = (
        "signal.raise_signal(signal.SIGTERM)\nprint('still running', flush=True)\nsignal.raise_signal(signal.SIGTERM)"
    )
    assert run(inside="pass", after=after) == (128 + signal.SIGTERM, "still running\n")
