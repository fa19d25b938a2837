"""The command line: `ductile NOUN ACTION`.

One module or package per noun, imported only when that noun is used.
"""

import gc
import io
import os
import sys
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any

import click

from ductile.cli.base import click_base, output

NOUNS = {
    "config": "Create, check, edit and seal the configuration.",
    "event": "Send an event, and show what an event led to.",
    "exchange": "Publish, read, claim and reply to messages.",
    "job": "List, inspect, explain, retry, replay and cancel jobs.",
    "pipeline": "List, draw, dry-run, test and run pipelines.",
    "plugin": "List, create, check, test, run and pause plugins.",
    "queue": "List, pause, resume and purge queued jobs.",
    "relay": "Send events to other instances; list instances and peers.",
    "run": "List runs and show one.",
    "schedule": "List, explain, simulate, run and pause schedules.",
    "system": "Run, monitor, back up and repair the service.",
    "webhook": "List webhook endpoints and deliveries; redeliver, send and verify deliveries.",
}

SINGLE = {
    "api": "Send a request to the HTTP API and print the response.",
    "completion": "Print a shell completion script.",
    "logs": "Show recent events; with --follow, stream new ones.",
    "version": "Print the version, the commit and the build time.",
}
"""Commands without a noun. Each module has a `command`."""

SHORT_FORMS = {
    "plugins": ("plugin", "list"),
    "reload": ("system", "reload"),
    "reset": ("system", "reset"),
    "skills": ("system", "skills"),
    "status": ("system", "status"),
}
"""Alias → noun and action. `queue` alone is `queue status`."""

MODULES = {name: f"{name}.group" for name in NOUNS} | {
    "api": "agents.api",
    "completion": "base.completion",
    "event": "event",
    "logs": "logs.command",
    "queue": "queue",
    "relay": "relay",
    "run": "job.run",
    "version": "base.version",
}
"""Command → its module below `ductile.cli`, if the names differ."""


class Nouns(click_base.SuggestingGroup):
    """The top-level group. Imports the module of a noun on first use."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, click_base.move_flags_last(args))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. For an unknown one, suggest the nouns that have an action with this name."""
        try:
            return super().invoke(ctx)
        except click.NoSuchCommand as error:
            if not (commands := _commands_with_action(error.command_name, is_exact=bool(error.possibilities))):
                raise
            one_of = "" if len(commands) == 1 else "one of "
            message = f"{error.message} Did you mean {one_of}{', '.join(f'`ductile {name}`' for name in commands)}?"
            raise click.NoSuchCommand(error.command_name, message, ctx=error.ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*NOUNS, *SINGLE, *SHORT_FORMS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SHORT_FORMS:
            return self._short_form(ctx, cmd_name)
        if cmd_name in NOUNS or cmd_name in SINGLE:
            return _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def _short_form(self, ctx: click.Context, name: str) -> click.Command:
        """Copy the action under its alias, and use the alias in its help."""
        noun, action = SHORT_FORMS[name]
        group = self.get_command(ctx, noun)
        command = group.get_command(ctx, action) if isinstance(group, click.Group) else None
        assert command is not None, f"{noun} has no {action}"
        short = copy(command)
        short.name = name
        short.help = (command.help or "").replace(f"ductile {noun} {action}", f"ductile {name}")
        return short

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Nouns"):
            formatter.write_dl(list(NOUNS.items()))
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SINGLE.items()))
        with formatter.section("Aliases"):
            formatter.write_dl([(name, f"Alias of `{' '.join(action)}`.") for name, action in SHORT_FORMS.items()])


def _commands_with_action(word: str, *, is_exact: bool) -> list[str]:
    """Return the commands whose action is `word`; unless `is_exact`, else those with the closest action."""
    from difflib import get_close_matches

    commands = [(noun, action) for noun in NOUNS for action in _actions(noun)]
    actions = {action for _, action in commands}
    close = [word] if is_exact or word in actions else get_close_matches(word, actions, n=1)
    return [f"{noun} {action}" for noun, action in commands if action in close]


def _actions(noun: str) -> list[str]:
    group = _load(noun)
    return group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []


@cache
def _load(name: str) -> click.Command:
    module = import_module(f"ductile.cli.{MODULES.get(name, name)}")
    return click_base.decorate(module.group if name in NOUNS else module.command)


@click.group(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, value: _print_version(ctx, value),
    help="Print the version and exit.",
)
def ductile() -> None:
    """Ductile: an automation runtime you can run, debug, explain, test and extend.

    Commands have the form `ductile NOUN ACTION`. Run `ductile NOUN --help` to list the actions of a noun.
    """


click_base.decorate(ductile)


def _print_version(ctx: click.Context, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        ctx.invoke(_load("version"), as_json="--json" in sys.argv)
        ctx.exit()


def main() -> None:
    """Run the console script."""
    _open_closed_streams()
    _use_utf8()
    code = output.run(ductile, sys.argv[1:])
    gc.freeze()  # saves about 10 ms: the collection at exit would visit every imported module
    sys.exit(code)


def _open_closed_streams() -> None:
    """Replace a closed stdin, stdout or stderr by /dev/null, so that no file gets its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            empty = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (gets the lowest free descriptor)
            setattr(sys, name, empty)


def _use_utf8() -> None:
    """Read and write UTF-8 in every locale: JSON requires it."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
