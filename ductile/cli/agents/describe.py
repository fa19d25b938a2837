"""`ductile system describe`: a machine-readable description of commands, error codes, plugins and pipelines.

Commands are read from click. Plugins and pipelines come from the service, or from the files while it is stopped.
`skills` renders the same data as Markdown.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import ConfigMissing, NotFound, ServiceUnreachable, did_you_mean


@click.command("describe")
@click.argument("words", nargs=-1, metavar="[NOUN [ACTION]]")
@options.config
@options.service
@options.as_json
def describe(words: tuple[str, ...], as_json: bool, **where: Any) -> None:
    """Describe commands, side effects, scopes, error codes, plugins and pipelines in machine-readable form.

    Plugins and pipelines come from the running service, or from the configuration files while it is stopped. The full
    description is large; NOUN, or NOUN and ACTION, selects single commands.

    Example: ductile system describe job why --json
    """
    if words:
        output.show(describe_commands(words), as_json=as_json, human=_command_lines)
    else:
        output.show(describe_all(where), as_json=as_json, human=_lines)


def describe_all(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full description; `where` has the flags that select a configuration or a service."""
    from ductile import __version__
    from ductile.cli import NOUNS, SHORT_FORMS, ductile
    from ductile.cli.agents.side_effects import KINDS
    from ductile.cli.base.error_codes import ERROR_CODES, EXIT_CODES

    return {
        "version": __version__,
        "nouns": NOUNS,
        "commands": [_command(name, command) for name, command in actions(ductile)],
        "short_forms": {name: " ".join(action) for name, action in SHORT_FORMS.items()},
        "side_effects": KINDS,
        "exit_codes": {str(code): meaning for code, meaning in EXIT_CODES.items()},
        "error_codes": ERROR_CODES,
        **describe_installed(where),
    }


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def actions(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, except aliases and hidden commands."""
    from ductile.cli import SHORT_FORMS

    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from actions(command, (*path, name))
        elif command is not None and not command.hidden and (path or name not in SHORT_FORMS):
            yield " ".join((*path, name)), command


def describe_commands(words: tuple[str, ...]) -> dict[str, Any]:
    """Describe the commands that start with these words. Raise NotFound if there are none."""
    from ductile import __version__
    from ductile.cli import ductile
    from ductile.cli.agents.side_effects import KINDS

    every, prefix = dict(actions(ductile)), " ".join(words)
    found = [_command(name, command) for name, command in every.items() if f"{name} ".startswith(f"{prefix} ")]
    if not found:
        known = {*every, *(name.partition(" ")[0] for name in every)}
        hint = "Run `ductile system describe` to list all commands."
        raise NotFound(f"command {prefix[:80]!r} does not exist{did_you_mean(prefix, known)}", hint=hint)
    kinds = {command["side_effect"] for command in found}
    return {
        "version": __version__,
        "commands": found,
        "side_effects": {kind: meaning for kind, meaning in KINDS.items() if kind in kinds},
    }


def _command(name: str, command: click.Command) -> dict[str, Any]:
    from ductile.cli.agents.side_effects import EFFECTS

    effect = EFFECTS[name]
    help_text, _, example = (command.help or "").partition("Example: ")
    paragraphs = [" ".join(part.split()) for part in help_text.split("\n\n") if part.strip()]
    return {
        "command": name,
        "summary": paragraphs[0].partition(". ")[0].rstrip("."),
        "help": "\n\n".join(paragraphs),
        "example": example.strip(),
        "side_effect": effect.kind,
        "routes": list(effect.routes),
        "scopes": effect.scopes,
        "arguments": [_argument(parameter) for parameter in command.params if isinstance(parameter, click.Argument)],
        "options": [_option(parameter) for parameter in command.params if isinstance(parameter, click.Option)],
    }


def _argument(argument: click.Argument) -> dict[str, Any]:
    return {
        "name": argument.name,
        "type": _type(argument),
        "required": argument.required,
        "repeatable": argument.nargs == -1,
        **_choices(argument),
    }


def _option(option: click.Option) -> dict[str, Any]:
    shown = {
        "flags": [*option.opts, *option.secondary_opts],
        "type": _type(option),
        "required": option.required,
        "repeatable": option.multiple,
        **_choices(option),
        "help": option.help or "",
    }
    default = option.to_info_dict()["default"]
    return shown | ({"default": default} if isinstance(default, str | int | float) and not option.is_flag else {})


def _type(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    names = {"text": "string", "path": "path", "integer range": "integer", "float range": "number", "float": "number"}
    return names.get(parameter.type.name, parameter.type.name)


def _choices(parameter: click.Parameter) -> dict[str, Any]:
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return {"choices": [str(choice) for choice in kind.choices]}
    if isinstance(kind, click.IntRange | click.FloatRange):
        return {"minimum": kind.min, "maximum": kind.max}
    return {}


# ── plugins and pipelines ─────────────────────────────────────────────────────────────────────────────────────────────


def describe_installed(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plugins, the pipelines and their source: the service or the files."""
    from ductile.cli.base.connect import client_for

    try:
        return {"source": "service", **_in_service(client_for(where))}
    except ServiceUnreachable:
        if where["api_url"]:
            raise
        return {"source": "files", **_in_files(options.selected_config(where["config_path"], where["config_dir"]))}
    except ConfigMissing:
        if where["config_path"] or where["config_dir"]:
            raise
        return {"source": "none: no configuration found", "plugins": [], "pipelines": []}


def _in_service(service: Any) -> dict[str, Any]:
    from urllib.parse import quote

    names = [plugin["name"] for plugin in service.request("GET", "/plugins")["plugins"]]
    skills = service.request("GET", "/skills")["skills"]
    return {
        "plugins": [service.request("GET", f"/plugin/{quote(name, safe='')}") for name in names],
        "pipelines": [_pipeline(skill) for skill in skills if skill["kind"] == "pipeline"],
    }


def _in_files(explicit: Path | None) -> dict[str, Any]:
    from ductile.cli.base.connect import load_snapshot
    from ductile.web.views.catalog import pipeline_view, plugin_view

    snapshot = load_snapshot(explicit)
    return {
        "plugins": [plugin_view(plugin) for _, plugin in sorted(snapshot.plugins.items())],
        "pipelines": [_pipeline(pipeline_view(plan)) for plan in snapshot.plans.by_name.values()],
    }


def _pipeline(skill: Mapping[str, Any]) -> dict[str, Any]:
    names = ("trigger", "execution_mode", "timeout_secs", "description", "endpoint")
    return {"name": skill["pipeline"], **{name: skill[name] for name in names}}


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _command_lines(shown: dict[str, Any]) -> Iterator[str]:
    rows = [
        (command["command"], command["side_effect"], ", ".join(command["scopes"]) or "-", command["summary"])
        for command in shown["commands"]
    ]
    yield from output.table([("COMMAND", "SIDE EFFECT", "SCOPES", "SUMMARY"), *rows])


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"Ductile {shown['version']}"
    yield ""
    yield "Commands and their side effects:"
    yield from _command_lines(shown)
    yield ""
    yield f"Plugins and pipelines ({shown['source']}):"
    runs = [
        (f"{plugin['name']}.{command['name']}", command["type"], command["description"])
        for plugin in shown["plugins"]
        for command in plugin["commands"]
    ]
    runs += [
        (pipeline["name"], pipeline["execution_mode"], f"on {pipeline['trigger']}") for pipeline in shown["pipelines"]
    ]
    yield from output.table(runs) or ["none"]
    yield ""
    yield "Run `ductile system describe --json` for flags, schemas, exit codes and error codes."
