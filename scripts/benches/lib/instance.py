"""An instance to measure: its configuration, its plugin, its pipelines and the history in its ledger."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from scripts.benches.lib.bench import Bench
from scripts.benches.lib.history import shared_history
from tests.e2e import service as e2e

Instance = e2e.Home
TOKEN = e2e.TOKEN
PLUGIN = "minimal"
SECRET = "bench-secret-0123456789abcdef"
CONNECTIONS = 16
MANIFEST = f"""\
manifest_spec: ductile.plugin
manifest_version: 1
name: {PLUGIN}
version: 1.0.0
protocol: 2
entrypoint: run
commands: {{poll: {{}}, handle: {{}}}}
"""
SETTINGS = f"""\
include: [tokens.yaml, webhooks.yaml]
pipelines:
  - {{name: one, on: bench.one, execution_mode: synchronous, timeout: 20s, steps: [{{uses: {PLUGIN}}}]}}
  - name: three
    on: bench.three
    execution_mode: synchronous
    timeout: 20s
    steps: [{{uses: {PLUGIN}}}, {{uses: {PLUGIN}}}, {{uses: {PLUGIN}}}]
plugins:
  {PLUGIN}:
"""
WEBHOOKS = f"""\
webhooks:
  listen: localhost:0
  endpoints: [{{path: /hook, plugin: {PLUGIN}, scheme: github, secret_ref: bench}}]
"""


@contextmanager
def new_instance(
    bench: Bench,
    entrypoint: Path | str | None = None,
    *,
    workers: int = 2,
    mode: str = "",
    schedules: Sequence[str] = (),
    history: int = 0,
) -> Iterator[Instance]:
    """Yield a sealed instance with one plugin, one webhook and two pipelines.

    `entrypoint` is a program or the text of a script. The ledger contains `history` finished jobs.
    """
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        instance = Instance.make(Path(directory) / "instance", workers=workers)
        config = (instance.path / "config.yaml").read_text()
        config = config.replace("  log_level: debug\n", f"  log_level: info\n  synchronous: {mode or bench.mode}\n")
        config = config.replace("api:\n", f"api:\n  max_concurrent_sync: {CONNECTIONS}\n")
        items = "".join(f"\n      - {schedule}" for schedule in schedules)
        section = f"    schedules:{items}\n" if schedules else ""
        instance.write("config.yaml", f"{config}{SETTINGS}    parallelism: {workers}\n{section}")
        instance.write("tokens.yaml", f"tokens: [{{name: bench, key: {SECRET}}}]\n")
        instance.write("webhooks.yaml", WEBHOOKS)
        install_plugin(instance, entrypoint or bench.plugin)
        instance.seal()
        instance.ledger.parent.mkdir(mode=0o700)
        if history:
            shutil.copyfile(shared_history(bench.folder, history), instance.ledger)
            instance.ledger.chmod(0o600)
            os.sync()  # otherwise the disk is still writing the copy during the measurement
        yield instance


def install_plugin(instance: Instance, entrypoint: Path | str) -> None:
    entry = entrypoint_of(instance)
    entry.parent.mkdir(mode=0o700)
    (entry.parent / "manifest.yaml").write_text(MANIFEST)
    entry.write_bytes(entrypoint.read_bytes() if isinstance(entrypoint, Path) else entrypoint.encode())
    entry.chmod(0o700)


def entrypoint_of(instance: Instance) -> Path:
    return instance.path / "plugins" / PLUGIN / "run"


def distant_schedules(count: int) -> list[str]:
    """Return cron schedules that are due in half a year, each at a different time."""
    month = (datetime.now(UTC).month + 5) % 12 + 1
    return [
        f"{{id: c{number}, cron: '{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} {month} *'}}"
        for number in range(count)
    ]
