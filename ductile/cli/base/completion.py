"""`ductile completion`: the completion script of a shell, and completions for names and ids.

Click completes nouns, actions and flags. A failure while completing yields no suggestions and no message.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from ductile.cli.base import options, output
from ductile.cli.base.click_base import COMPLETING
from ductile.core.errors import DuctileError

SHELLS = ("bash", "fish", "zsh")
MAX_JOB_SUGGESTIONS = 20
MAX_MESSAGE_SUGGESTIONS = 100


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@options.as_json
def command(shell: str, as_json: bool) -> None:
    """Print the completion script for SHELL. It completes commands, flags, names and job ids.

    bash: add `source <(ductile completion bash)` to ~/.bashrc. zsh: the same in ~/.zshrc. fish: save the script as
    ~/.config/fish/completions/ductile.fish.

    Example: ductile completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "ductile", COMPLETING).source()
    output.show({"shell": shell, "script": script}, as_json=as_json, human=lambda shown: shown["script"].splitlines())


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Params = Mapping[str, Any]


def complete_values(command: click.Command, noun: str) -> None:
    """Add completions to the text parameters of the command that take a name or an id."""
    for parameter in command.params:
        values = COMPLETIONS.get(f"{noun} {parameter.name}") or COMPLETIONS.get(parameter.name or "")
        if values is not None and parameter.type is click.STRING:
            parameter.type = _ExistingName(values)


class _ExistingName(click.ParamType[str]):
    """A text that is the name or id of something that exists."""

    name = "text"

    def __init__(self, values: Callable[[Params], Iterable[str]]) -> None:
        self._values = values

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            values = list(self._values(ctx.params))
        except (DuctileError, OSError, ValueError):
            return []
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]


def _config_value(params: Params, *path: str) -> Any:
    """Return the value at `path` of the configuration files, without validating them."""
    import os

    from ductile.config.files.sources import find_config, read_sources

    found = find_config(options.selected_config(params.get("config_path"), params.get("config_dir")), os.environ)
    value = read_sources(found.path, os.environ).root.value
    for name in path:
        value = value[name].value if isinstance(value, dict) and name in value else None
    return value


def _named(params: Params, *path: str, key: str = "name") -> list[str]:
    """Return the names of the entries of a list."""
    members = _config_value(params, *path)
    entries = [entry.value for entry in members] if isinstance(members, tuple) else []
    names = [entry[key].value for entry in entries if isinstance(entry, dict) and key in entry]
    return [name for name in names if isinstance(name, str)]


def _plugins(params: Params) -> list[str]:
    members = _config_value(params, "plugins")
    return sorted(members) if isinstance(members, dict) else []


def _schedules(params: Params) -> list[str]:
    return _named(params, "plugins", params.get("plugin") or "", "schedules", key="id")


def _newest_jobs(params: Params) -> list[str]:
    from ductile.cli.base.connect import ledger_path
    from ductile.ledger.reports import job_list
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_path(options.selected_config(params.get("config_path"), params.get("config_dir")))
    with open_reader(path) as db:
        return [job["job_id"] for job in job_list.jobs(db, limit=MAX_JOB_SUGGESTIONS).items]


def _messages(params: Params) -> list[Any]:
    """Return the newest messages of the exchange."""
    from ductile.cli.base.connect import ledger_path
    from ductile.ledger.exchange.message_list import NEWEST, list_messages
    from ductile.ledger.storage.open_file import open_reader

    chosen = options.selected_config(params.get("config_path"), params.get("config_dir"))
    with open_reader(ledger_path(chosen or options.served_here())) as db:
        page = list_messages(db, before=NEWEST, limit=MAX_MESSAGE_SUGGESTIONS, with_body=False)
    return [item.message for item in page.items]


def _topics(params: Params) -> list[str]:
    return sorted({message.topic for message in _messages(params)})


def _newest_messages(params: Params) -> list[str]:
    return [message.id for message in _messages(params)]


def _conversations(params: Params) -> list[str]:
    return list(dict.fromkeys(message.conversation_id for message in _messages(params)))


COMPLETIONS: Mapping[str, Callable[[Params], Iterable[str]]] = {
    "exchange conversation": _conversations,
    "exchange conversation_id": _conversations,
    "exchange message_id": _newest_messages,
    "exchange topic": _topics,
    "exchange topics": _topics,
    "job_id": _newest_jobs,
    "root": _newest_jobs,
    "plugin": _plugins,
    "plugin name": _plugins,
    "config plugin name": _plugins,
    "schedule_id": _schedules,
    "pipeline": lambda params: _named(params, "pipelines"),
    "pipeline name": lambda params: _named(params, "pipelines"),
    "webhook name": lambda params: _named(params, "webhooks", "endpoints"),
    "config token name": lambda params: _named(params, "tokens"),
    "token_name": lambda params: _named(params, "tokens"),
    "status": lambda _params: ("queued", "running", "succeeded", "failed", "dead", "skipped"),
}
"""Parameter → its completions; prefixed with the noun where the name alone is ambiguous."""
