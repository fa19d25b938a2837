"""The editions of a configuration that changes while a service runs, and the change from each to the next.

The changes are those that operators make: plugin settings, a schedule, a token, a pipeline, and sometimes an error.
"""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.edit.approve import seal_configuration
from scripts.tortures.lib.instance import CANARY, TOKEN, Instance
from scripts.tortures.lib.workload import WorkloadPlugin

PIPELINE = "changing"
"""The pipeline whose steps change."""
WEBHOOK_PATH = "/hook/keep"
API_TOKEN = f"{{name: torture, token: {TOKEN}, scopes: ['*']}}"


@frozen
class Edition:
    """The parts of the configuration that change."""

    number: int = 0
    """A value in the configuration of all plugins."""
    keys: tuple[int, ...] = (0,)
    """The valid tokens and secrets; two while one is being replaced."""
    has_second_schedule: bool = False
    steps: int = 1
    """The number of steps of the pipeline."""


def token(key: int) -> str:
    return f"{TOKEN}-{key}"


def secret(key: int) -> str:
    return f"{CANARY}-{key}"


NextEdition = Callable[[Edition], Edition]
INVALID, NEW_KEY, OLD_KEY_REMOVED = "invalid", "new key", "old key removed"
CHANGES: tuple[tuple[str, NextEdition | None], ...] = (
    ("plugin", lambda now: evolve(now, number=now.number + 1)),
    ("schedule", lambda now: evolve(now, has_second_schedule=not now.has_second_schedule)),
    (NEW_KEY, lambda now: evolve(now, keys=(*now.keys, now.keys[-1] + 1))),
    ("pipeline", lambda now: evolve(now, steps=3 - now.steps)),
    (INVALID, None),
    (OLD_KEY_REMOVED, lambda now: evolve(now, keys=now.keys[-1:])),
)
"""The changes of one round. An invalid configuration is no edition."""
ERRORS: tuple[Callable[[str], str], ...] = (
    lambda text: text.replace("max_workers:", "max_wurkers:"),
    lambda text: text.replace("steps: [{id: a, uses: press}", "steps: [{id: a, calls: press}"),
    lambda text: text.replace("if_running: queue", "if_running: perhaps"),
    lambda text: text + "plugins: {keep: {}}\n",
    lambda text: text + "}\n",
    lambda text: text.replace("listen: localhost:0", "listen: localhost:1"),
)
"""Unknown keys and steps, wrong values, duplicate keys, invalid YAML, and an address that needs a restart."""


def write_edition(instance: Instance, edition: Edition, *, scheduled: bool = True) -> None:
    secrets = [f"  - {{name: k{key}, key: {secret(key)}}}" for key in edition.keys]
    _replace_file(instance.path / "tokens.yaml", "\n".join(["tokens:", *secrets, ""]))
    _replace_file(instance.path / "config.yaml", edition_text(instance, edition, scheduled=scheduled))
    seal_configuration(instance.path / "config.yaml", now=datetime.now(UTC))


def write_invalid(instance: Instance, edition: Edition, rng: random.Random) -> None:
    """Write a configuration that the service must refuse."""
    text = edition_text(instance, edition)
    invalid = rng.choice(ERRORS)(text)
    assert invalid != text, "the error was not inserted"
    _replace_file(instance.path / "config.yaml", invalid)


def edition_text(instance: Instance, edition: Edition, *, scheduled: bool = True) -> str:
    plugins = tuple(_in_edition(plugin, edition) for plugin in instance.plugins)
    keys = [f"{{name: k{key}, token: {token(key)}, scopes: ['*']}}" for key in edition.keys]
    text = evolve(instance, plugins=plugins).config_text(scheduled=scheduled)
    text = text.replace(f"api_key: {CANARY}", f"api_key: {CANARY}-{edition.number}")
    text = text.replace(API_TOKEN, ", ".join([API_TOKEN, *keys]))
    steps = ", ".join(f"{{id: {name}, uses: press}}" for name in "ab"[: edition.steps])
    names = ", ".join(f"k{key}" for key in edition.keys)
    return f"""include: [tokens.yaml]
{text}  - name: {PIPELINE}
    on: changing.requested
    execution_mode: synchronous
    timeout: 20s
    steps: [{steps}]
webhooks:
  listen: localhost:0
  endpoints:
    - path: {WEBHOOK_PATH}
      plugin: keep
      secret_ref: [{names}]
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
"""


def _in_edition(plugin: WorkloadPlugin, edition: Edition) -> WorkloadPlugin:
    if plugin.name == "tock":
        return evolve(plugin, every="310ms" if edition.has_second_schedule else None)
    return evolve(plugin, sleep_ms=edition.number % 20) if plugin.name == "keep" else plugin


def _replace_file(file: Path, text: str) -> None:
    """Replace a file atomically, as editors do."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.chmod(0o600)
    os.replace(temporary, file)
