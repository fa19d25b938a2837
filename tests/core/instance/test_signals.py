"""No signal is lost before somebody listens, and none ends the process when nobody does."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, trio
from ductile.core.instance.signals import heard
{before}
async def main():
    with heard(signal.SIGTERM, signal.SIGHUP) as signals:
{inside}

trio.run(main)
{after}
print("over")
"""


def run(*, inside: str, before: str = "", after: str = "") -> tuple[int, str]:
    """How a process ends that listens like the service, and what it says."""
    body = "\n".join(f"        {line}" for line in inside.splitlines())
    program = PROGRAM.format(before=before, inside=body, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_nobody_takes_does_not_end_the_process(name: str) -> None:
    assert run(inside=f"signal.raise_signal(signal.{name})\nawait trio.sleep(0)") == (0, "over\n")


def test_a_signal_while_the_process_is_on_its_way_out_is_ignored() -> None:
    assert run(inside="pass", after="signal.raise_signal(signal.SIGTERM)") == (0, "over\n")


def test_a_failure_is_still_what_the_process_ends_with() -> None:
    code, said = run(inside="signal.raise_signal(signal.SIGTERM)\nawait trio.sleep(0)\nraise SystemExit(7)")
    assert (code, said) == (7, "")


def test_signals_are_heard_in_their_order() -> None:
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


def test_a_signal_that_comes_before_anybody_listens_is_heard() -> None:
    """The moment between the handler and the receiver, made longer."""
    inside = "async for number in signals:\n    print(number)\n    break"
    assert run(before=LATE, inside=inside) == (0, f"{signal.SIGTERM.value}\nover\n")


def test_a_second_signal_ends_a_process_that_does_not_get_out() -> None:
    """As while it runs: once more ends at once."""
    after = "signal.raise_signal(signal.SIGTERM)\nprint('goes on', flush=True)\nsignal.raise_signal(signal.SIGTERM)"
    assert run(inside="pass", after=after) == (128 + signal.SIGTERM, "goes on\n")
