"""The fault injection library: records what a service does to its files, makes calls fail, or shifts its wall clock.

Builds the library and returns the environment that activates it; fault_library.c documents the variables.
"""

import errno
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

SOURCE = Path(__file__).parent / "fault_library.c"


class UnsupportedHost(Exception):
    """This host cannot run the test. The message names what is missing."""


@frozen
class FaultLibrary:
    """The compiled library, for services whose ledger is in `watched`."""

    library: Path
    watched: Path

    @classmethod
    def build(cls, directory: Path, watched: Path) -> "FaultLibrary":
        """Compile the library into `directory`. Raises UnsupportedHost if there is no compiler."""
        compiler, library = shutil.which("cc") or shutil.which("gcc"), directory / "fault_library.so"
        if compiler is None:
            raise UnsupportedHost("there is no C compiler (Debian: apt install gcc libc6-dev)")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnsupportedHost(f"{SOURCE.name} cannot be compiled: {done.stderr.strip().splitlines()[-1]}")
        return cls(library, watched)

    def recording(self, log: Path, *, kill_before: int | None = None) -> Mapping[str, str]:
        """Return the environment that records changes in `log` and kills the process before change `kill_before`."""
        return self._environ(log=log, kill_before=kill_before)

    def failing(self, log: Path, call: str, number: int, *, times: int, code: int = errno.EIO) -> Mapping[str, str]:
        """Return the environment that makes `times` calls fail from the `number`-th on, and records changes."""
        return self._environ(log=log, fail=f"{call}:{number}:{code}:{times}")

    def shifting_clock(self, clock: Path) -> Mapping[str, str]:
        """Return the environment that shifts the wall clock by the offset in the file `clock`."""
        return self._environ(clock=clock)

    def _environ(self, **settings: object) -> dict[str, str]:
        variables = {f"FAULT_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
        return {"LD_PRELOAD": str(self.library), "FAULT_WATCH": str(self.watched), **variables}


def set_clock_offset(clock: Path, seconds: float) -> None:
    """Shift the wall clock of every process that reads the file `clock`."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("=q", round(seconds * 1e9)))
