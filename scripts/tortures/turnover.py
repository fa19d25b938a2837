"""A configuration that keeps changing under a running core: its editions, and how one follows the other.

What changes is what operators change: a plugin's settings, a schedule, a token, a pipeline; and now and then there is a
mistake. Who asks the core to take it up, and what must hold then, is not known here.
"""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.edit.approve import seal_configuration
from scripts.tortures.arena import CANARY, TOKEN, Arena
from scripts.tortures.play import Role

TURN = "turn"
"""The pipeline that changes."""
HOOK = "/hook/keep"
CALLER = f"{{name: torture, token: {TOKEN}, scopes: ['*']}}"


@frozen
class Edition:
    """What the configuration says at one time, as far as it changes."""

    number: int = 0
    """Plugins are configured with it."""
    keys: tuple[int, ...] = (0,)
    """Tokens and secrets that are valid; two while one is being replaced."""
    ticks_more: bool = False
    """A second plugin is on a schedule."""
    steps: int = 1
    """How long the pipeline is."""


def token(key: int) -> str:
    return f"{TOKEN}-{key}"


def secret(key: int) -> str:
    return f"{CANARY}-{key}"


Change = Callable[[Edition], Edition]
ROUND: tuple[tuple[str, Change | None], ...] = (
    ("plugin", lambda now: evolve(now, number=now.number + 1)),
    ("schedule", lambda now: evolve(now, ticks_more=not now.ticks_more)),
    ("new key", lambda now: evolve(now, keys=(*now.keys, now.keys[-1] + 1))),
    ("pipeline", lambda now: evolve(now, steps=3 - now.steps)),
    ("mistake", None),
    ("old key", lambda now: evolve(now, keys=now.keys[-1:])),
)
MISTAKES: tuple[Callable[[str], str], ...] = (
    lambda text: text.replace("max_workers:", "max_wurkers:"),
    lambda text: text.replace("steps: [{id: a, uses: press}", "steps: [{id: a, calls: press}"),
    lambda text: text.replace("if_running: queue", "if_running: perhaps"),
    lambda text: text + "plugins: {keep: {}}\n",
    lambda text: text + "}\n",
    lambda text: text.replace("listen: localhost:0", "listen: localhost:1"),
)
"""Unknown keys and steps, wrong values, duplicate keys, broken YAML, and what cannot change while the core runs."""


def publish(arena: Arena, edition: Edition, *, scheduled: bool = True) -> None:
    """The directory has this edition."""
    secrets = [f"  - {{name: k{key}, key: {secret(key)}}}" for key in edition.keys]
    _replace(arena.path / "tokens.yaml", "\n".join(["tokens:", *secrets, ""]))
    _replace(arena.path / "config.yaml", text_of(arena, edition, scheduled=scheduled))
    seal_configuration(arena.path / "config.yaml", now=datetime.now(UTC))


def publish_mistake(arena: Arena, edition: Edition, dice: random.Random) -> None:
    """The directory has something that no core may take up."""
    text = text_of(arena, edition)
    wrong = dice.choice(MISTAKES)(text)
    assert wrong != text, "the mistake was not made"
    _replace(arena.path / "config.yaml", wrong)


def text_of(arena: Arena, edition: Edition, *, scheduled: bool = True) -> str:
    roles = [_in_edition(role, edition) for role in arena.roles]
    keys = [f"{{name: k{key}, token: {token(key)}, scopes: ['*']}}" for key in edition.keys]
    text = evolve(arena, roles=tuple(roles)).text(scheduled=scheduled)
    text = text.replace(f"api_key: {CANARY}", f"api_key: {CANARY}-{edition.number}")
    text = text.replace(CALLER, ", ".join([CALLER, *keys]))
    steps = ", ".join(f"{{id: {name}, uses: press}}" for name in "ab"[: edition.steps])
    names = ", ".join(f"k{key}" for key in edition.keys)
    return f"""include: [tokens.yaml]
{text}  - name: {TURN}
    on: turn.asked
    execution_mode: synchronous
    timeout: 20s
    steps: [{steps}]
webhooks:
  listen: localhost:0
  endpoints:
    - path: {HOOK}
      plugin: keep
      secret_ref: [{names}]
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
"""


def _in_edition(role: Role, edition: Edition) -> Role:
    if role.name == "tock":
        return evolve(role, every="310ms" if edition.ticks_more else None)
    return evolve(role, nap_ms=edition.number % 20) if role.name == "keep" else role


def _replace(file: Path, text: str) -> None:
    """All at once, as an editor does it."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, file)
