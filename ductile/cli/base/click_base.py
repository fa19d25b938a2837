"""Click base classes: lazy groups, `-v` on every command, shared flags in any position, and `NOUN help`.

`decorate` adds these when the module of a command is imported. Knows nothing of what commands do.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

import click

from ductile.cli.base import output
from ductile.core.errors import DuctileError

COMPLETING = "_DUCTILE_COMPLETE"
"""Environment variable that a shell sets to request completions."""
VERBOSE = click.Option(["-v", "--verbose"], is_flag=True, help="Print configuration, requests and timing to stderr.")

SHARED = dict.fromkeys(("--json", "-v", "--verbose", "--dry-run"), 0)
SHARED |= dict.fromkeys(("--config", "--config-dir", "--api-url", "--api-key"), 1)
"""Flag with the same meaning on every command → the number of its values."""


class SuggestingGroup(click.Group):
    """A group that suggests the closest command name, including commands not imported yet."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests imported commands only
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None


class LazyGroup(SuggestingGroup):
    """A noun that imports the module of an action on first use."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **more: Any) -> None:
        """Take `modules`: action → command, as `module.name` below `ductile.cli`."""
        super().__init__(*args, **more)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.modules, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.modules and cmd_name not in self.commands:
            module, _, name = self.modules[cmd_name].rpartition(".")
            command = getattr(import_module(f"ductile.cli.{module}"), name)
            self.add_command(decorate(command, self.name or ""), cmd_name)
        return super().get_command(ctx, cmd_name)


class DefaultActionGroup(click.Group):
    """A noun with a default action."""

    def __init__(self, *args: Any, default: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        requests_help = any(arg in ctx.help_option_names for arg in args)
        if not requests_help and all(arg.startswith("-") for arg in args[:1]) and not self.commands.keys() & set(args):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def move_flags_last(args: Sequence[str]) -> list[str]:
    """Move shared flags behind the words of the command."""
    words: list[str] = []
    flags: list[str] = []
    rest = list(args)
    while rest and (not rest[0].startswith("-") or rest[0].partition("=")[0] in SHARED):
        first = rest.pop(0)
        if not first.startswith("-"):
            words.append(first)
            continue
        count = 0 if "=" in first else SHARED[first]
        flags += [first, *rest[:count]]
        del rest[:count]
    return [*words, *flags, *rest]


def decorate(command: click.Command, noun: str = "") -> click.Command:
    """Add the shared options and help to the command and its subcommands, and return it."""
    command.short_help = command.short_help or _first_clause(command.help or "")
    if isinstance(command, click.Group):
        name = command.name or ""
        for subcommand in command.commands.values():
            decorate(subcommand, f"{noun} {name}" if noun else name)
        command.add_command(_help)
        return command
    has_own = any("--verbose" in option.opts for option in command.params)
    if not has_own:
        command.params.append(VERBOSE)
    assert command.callback is not None, command.name
    command.callback = _with_details(command.callback, takes_verbose=has_own)
    if COMPLETING in os.environ:
        from ductile.cli.base.completion import complete_values

        complete_values(command, noun)
    return command


def _first_clause(text: str) -> str:
    """Return the first clause of a help text. Click would truncate a long sentence in a list of commands."""
    clause = re.split(r"[.:;](?: |$)", " ".join(text.partition("\n\n")[0].split()))[0]
    return f"{clause}."


@click.command("help", hidden=True)
@click.argument("words", nargs=-1)
@click.pass_context
def _help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of this noun, or of the action that WORDS name."""
    shown = ctx.parent
    assert shown is not None
    for word in words:
        group = shown.command
        known = group.list_commands(shown) if isinstance(group, click.Group) else []
        found = group.get_command(shown, word) if isinstance(group, click.Group) else None
        if found is None:
            raise click.NoSuchCommand(word, possibilities=known, ctx=shown)
        shown = click.Context(found, info_name=word, parent=shown)
    click.echo(shown.get_help())


def _with_details(action: Callable[..., Any], *, takes_verbose: bool) -> Callable[..., Any]:
    """Wrap the action: with `-v`, print its configuration, its service and its duration."""

    @wraps(action)
    def run(**params: Any) -> Any:
        is_verbose = params["verbose"] if takes_verbose else params.pop("verbose")
        if not is_verbose:
            return action(**params)
        context, started = click.get_current_context(), time.perf_counter()
        context.meta[output.DETAILED] = True
        _print_paths(context.params)
        try:
            return action(**params)
        finally:
            output.detail(f"{context.command_path}: {(time.perf_counter() - started) * 1000:.0f} ms")

    return run


def _print_paths(params: Mapping[str, Any]) -> None:
    """Print the configuration, ledger and service of the command. Errors are left to the command itself."""
    if params.get("api_url"):
        output.detail(f"service: {params['api_url']}")
    if "config_path" not in params:
        return
    from ductile.cli.base import options
    from ductile.config.files.ledger_path import find_ledger
    from ductile.config.files.sources import find_config
    from ductile.web.server.listeners import local_socket_path

    try:
        found = find_config(options.selected_config(params["config_path"], params.get("config_dir")), os.environ)
        output.detail(f"configuration: {found.path} ({found.origin})")
        ledger = find_ledger(found.path, os.environ)
    except DuctileError:
        return
    output.detail(f"ledger: {ledger}")
    output.detail(f"socket: {local_socket_path(ledger.parent)}")
