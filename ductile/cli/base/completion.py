"""`ductile completion`: the script with which a shell completes commands, and the values it offers.

Click makes the script and completes nouns, actions and flags; this room knows which words a value may be. Whatever
goes wrong, a shell that completes sees no words and no message.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from ductile.cli.base import options, output
from ductile.cli.base.click_base import COMPLETING
from ductile.core.errors import DuctileError

SHELLS = ("bash", "fish", "zsh")
MOST_OFFERED = 20


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@options.as_json
def command(shell: str, as_json: bool) -> None:
    """Print the script with which SHELL completes commands, flags, and the names and ids there are.

    bash: `source <(ductile completion bash)` in ~/.bashrc; zsh the same in ~/.zshrc; fish: save it as
    ~/.config/fish/completions/ductile.fish.

    Example: ductile completion bash
    """
    from ductile.cli import ductile

    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(ductile, {}, "ductile", COMPLETING).source()
    output.show({"shell": shell, "script": script}, as_json=as_json, human=lambda shown: shown["script"].splitlines())


# ── words for values ────────────────────────────────────────────────────────────────────────────────────────────────

Given = Mapping[str, Any]


def offer_values(command: click.Command, noun: str) -> None:
    """Texts of the command that name something are completed with what there is."""
    for parameter in command.params:
        words = WORDS.get(f"{noun} {parameter.name}") or WORDS.get(parameter.name or "")
        if words is not None and parameter.type is click.STRING:
            parameter.type = _Named(words)


class _Named(click.ParamType[str]):
    """A text that names something there is."""

    name = "text"

    def __init__(self, words: Callable[[Given], Iterable[str]]) -> None:
        self._words = words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            words = list(self._words(ctx.params))
        except (DuctileError, OSError, ValueError):
            return []
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _members(given: Given, *path: str) -> Any:
    """What the configuration has at this path, as it is written; its files are read, not checked."""
    import os

    from ductile.config.load.sources import find, read_sources

    found = find(options.chosen(given.get("config_path"), given.get("config_dir")), os.environ)
    value = read_sources(found.path, os.environ).root.value
    for name in path:
        value = value[name].value if isinstance(value, dict) and name in value else None
    return value


def _named(given: Given, *path: str, key: str = "name") -> list[str]:
    """The names of the members of a list."""
    members = _members(given, *path)
    entries = [entry.value for entry in members] if isinstance(members, tuple) else []
    names = [entry[key].value for entry in entries if isinstance(entry, dict) and key in entry]
    return [name for name in names if isinstance(name, str)]


def _plugins(given: Given) -> list[str]:
    members = _members(given, "plugins")
    return sorted(members) if isinstance(members, dict) else []


def _schedules(given: Given) -> list[str]:
    return _named(given, "plugins", given.get("plugin") or "", "schedules", key="id")


def _newest_jobs(given: Given) -> list[str]:
    from ductile.cli.base.connect import ledger_path
    from ductile.ledger.reports import job_list
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_path(options.chosen(given.get("config_path"), given.get("config_dir")))
    with open_reader(path) as db:
        return [job["job_id"] for job in job_list.jobs(db, limit=MOST_OFFERED).items]


WORDS: Mapping[str, Callable[[Given], Iterable[str]]] = {
    "job_id": _newest_jobs,
    "root": _newest_jobs,
    "plugin": _plugins,
    "plugin name": _plugins,
    "config plugin name": _plugins,
    "schedule_id": _schedules,
    "pipeline": lambda given: _named(given, "pipelines"),
    "pipeline name": lambda given: _named(given, "pipelines"),
    "webhook name": lambda given: _named(given, "webhooks", "endpoints"),
    "config token name": lambda given: _named(given, "tokens"),
    "token_name": lambda given: _named(given, "tokens"),
    "status": lambda _given: ("queued", "running", "succeeded", "failed", "dead", "skipped"),
}
"""Parameter → the words for it; with its noun in front where the name alone does not tell."""
