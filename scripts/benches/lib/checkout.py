"""A checkout of Ductile whose benches can be run: this one, or another worktree with its own code and `.venv`."""

import json
import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path

from attrs import frozen

from scripts.benches.lib.bench import Line
from scripts.benches.lib.programs import FOLDER_VARIABLE

BUILD_MODULES = ("scripts.benches.lib.programs", "scripts.benches.bench")
"""Modules that define `build(folder)`: the current one, and the one of checkouts without `scripts/benches/lib`."""


class BenchFailed(Exception):
    """A bench ended with an error. It has printed the error on stderr."""


@frozen
class Checkout:
    """The root of a working tree. Its benches run with its own `.venv`."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def commit(self) -> str:
        """The commit that is checked out, followed by + if files were modified."""
        command = ["git", "-C", str(self.root), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def build_module(self) -> str:
        """The module of this checkout that builds the C programs. Raises SystemExit if there is none."""
        for module in BUILD_MODULES:
            if (self.root / f"{module.replace('.', '/')}.py").is_file():
                return module
        raise SystemExit(f"{self.root} is not a checkout of Ductile: it has no scripts/benches")

    def prepare(self) -> None:
        """Create or update `.venv`. Raises SystemExit if `root` is not a checkout with benches."""
        _ = self.build_module
        subprocess.run([self.root / "scripts" / "venv", "dev"], check=True)

    def build(self, folder: Path) -> None:
        """Build the C programs of the benches in `folder`."""
        code = f"import sys; from pathlib import Path; from {self.build_module} import build; build(Path(sys.argv[1]))"
        subprocess.run([self.python, "-P", "-c", code, folder], cwd=self.root, env=self._environ(), check=True)

    def lines(self, name: str, options: Sequence[str], folder: Path) -> Generator[Line]:
        """Run one bench and yield its lines. Closing the generator interrupts the bench, which then cleans up."""
        command = [str(self.python), "-P", str(self.root / "scripts" / "benches" / f"{name}.py"), *options]
        environ = {**self._environ(), FOLDER_VARIABLE: str(folder)}
        with subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, text=True, env=environ, process_group=0
        ) as process:
            assert process.stdout
            try:
                for line in process.stdout:
                    yield json.loads(line)
            except BaseException:
                process.send_signal(signal.SIGINT)
                raise
        if process.returncode:
            raise BenchFailed(name)

    def _environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root)}


THIS_CHECKOUT = Checkout(Path(__file__).parents[3])
