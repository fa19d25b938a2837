"""A checkout of Ductile whose benches can be run: this one, or another worktree with its own code and environment."""

import json
import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path

from attrs import frozen

from scripts.benches.bench import SHARED, Line

BUILD = "import sys; from pathlib import Path; from scripts.benches.bench import build; build(Path(sys.argv[1]))"


class BenchFailed(Exception):
    """A bench ended with an error; it has printed it on stderr."""


@frozen
class Checkout:
    """The root of a working tree. Its benches run with its own `.venv`."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def commit(self) -> str:
        """The commit that is checked out, with a + if files differ from it."""
        command = ["git", "-C", str(self.root), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def prepare(self) -> None:
        """Create or update `.venv`. Raises SystemExit if there is no checkout."""
        if not (self.root / "scripts" / "benches").is_dir():
            raise SystemExit(f"{self.root} is not a checkout of Ductile: it has no scripts/benches")
        subprocess.run([self.root / "scripts" / "venv", "dev"], check=True)

    def build(self, folder: Path) -> None:
        """Build the C programs that the benches use."""
        subprocess.run([self.python, "-P", "-c", BUILD, folder], cwd=self.root, env=self._environ(), check=True)

    def lines(self, name: str, options: Sequence[str], folder: Path) -> Generator[Line]:
        """Run one bench and yield its lines. Ctrl-C is passed on once, so that the bench can clean up."""
        command = [str(self.python), "-P", str(self.root / "scripts" / "benches" / f"{name}.py"), *options]
        environ = {**self._environ(), SHARED: str(folder)}
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


HERE = Checkout(Path(__file__).parents[2])
