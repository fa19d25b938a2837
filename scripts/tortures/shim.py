"""The host in our hands: a library under the core that records what it does to its files, fails, or turns the clock.

Builds the library and says what to put into a core's environment; shim.c explains what comes of it.
"""

import errno
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

HERE = Path(__file__).parent


class Unavailable(Exception):
    """This host cannot do it, and nothing was proved; the message says what is missing."""


@frozen
class Shim:
    """The library, for cores whose ledger is in `watched`."""

    library: Path
    watched: Path

    @classmethod
    def build(cls, directory: Path, watched: Path) -> "Shim":
        """Compiled into the directory. Raises Unavailable where there is no compiler."""
        compiler, library = shutil.which("cc") or shutil.which("gcc"), directory / "shim.so"
        if compiler is None:
            raise Unavailable("there is no C compiler (Debian: apt install gcc libc6-dev)")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "shim.c"), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"shim.c cannot be compiled: {done.stderr.strip().splitlines()[-1]}")
        return cls(library, watched)

    def _with(self, **asked: object) -> dict[str, str]:
        names = {f"SHIM_{name.upper()}": str(value) for name, value in asked.items() if value is not None}
        return {"LD_PRELOAD": str(self.library), "SHIM_WATCH": str(self.watched), **names}

    def recording(self, log: Path, *, die: int | None = None) -> Mapping[str, str]:
        """Changes to files are added to the log; the process is killed just before the `die`-th."""
        return self._with(log=log, die=die)

    def failing(self, log: Path, call: str, number: int, *, times: int, code: int = errno.EIO) -> Mapping[str, str]:
        """The `number`-th call and the next ones, `times` in all, fail; the log tells when, and what came of it."""
        return self._with(log=log, fail=f"{call}:{number}:{code}:{times}")

    def turning(self, clock: Path) -> Mapping[str, str]:
        """The wall clock is ahead by what `turn` has put into the file."""
        return self._with(clock=clock)


def turn(clock: Path, seconds: float) -> None:
    """The clock of every process that reads this file is ahead by so much from now on."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("=q", round(seconds * 1e9)))
