"""What every command has without saying so: `-v`, shared flags anywhere, a line about it, and for every noun `help`.

Given when a command's file is imported, so that no command can lack it and none has to repeat it.
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
"""Set by a shell that wants to know what could come next."""
VERBOSE = click.Option(
    ["-v", "--verbose"], is_flag=True, help="Say on stderr what is used, what is asked and how long it takes."
)

SHARED = dict.fromkeys(("--json", "-v", "--verbose", "--dry-run"), 0)
SHARED |= dict.fromkeys(("--config", "--config-dir", "--api-url", "--api-key"), 1)
"""Flags that mean the same wherever they are taken → how many values they have."""


class SuggestingGroup(click.Group):
    """Its commands are imported when they are asked for; whoever mistypes one may mean any of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows only of those that are imported
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None


class LazyGroup(SuggestingGroup):
    """A noun whose actions are imported when they are used."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **more: Any) -> None:
        """`modules`: action → its command, as `module.name` below `ductile.cli`."""
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
    """A noun that has a usual action: the one that is meant when none is named."""

    def __init__(self, *args: Any, usual: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.usual = usual

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = any(arg in ctx.help_option_names for arg in args)
        if not asks_for_help and all(arg.startswith("-") for arg in args[:1]) and not self.commands.keys() & set(args):
            args = [self.usual, *args]
        return super().parse_args(ctx, args)


def flags_behind(args: Sequence[str]) -> list[str]:
    """The same command line; shared flags that stand before or between the words of the command are behind them."""
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
    """The same command, it and all below it with manners."""
    command.short_help = command.short_help or _first_clause(command.help or "")
    if isinstance(command, click.Group):
        name = command.name or ""
        for below in command.commands.values():
            decorate(below, f"{noun} {name}" if noun else name)
        command.add_command(_help)
        return command
    has_own = any("--verbose" in option.opts for option in command.params)
    if not has_own:
        command.params.append(VERBOSE)
    assert command.callback is not None, command.name
    command.callback = _accounting(command.callback, wants_verbose=has_own)
    if COMPLETING in os.environ:
        from ductile.cli.base.completion import offer_values

        offer_values(command, noun)
    return command


def _first_clause(text: str) -> str:
    """What a list of commands says about one: click would cut the whole sentence off where the line ends."""
    clause = re.split(r"[.:;](?: |$)", " ".join(text.partition("\n\n")[0].split()))[0]
    return f"{clause}."


@click.command("help", hidden=True)
@click.argument("words", nargs=-1)
@click.pass_context
def _help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of this noun, or of what WORDS name below it."""
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


def _accounting(action: Callable[..., Any], *, wants_verbose: bool) -> Callable[..., Any]:
    """The action; with `-v` it is told around it what it works with and how long it took."""

    @wraps(action)
    def account(**given: Any) -> Any:
        is_verbose = given["verbose"] if wants_verbose else given.pop("verbose")
        if not is_verbose:
            return action(**given)
        context, began = click.get_current_context(), time.perf_counter()
        context.meta[output.DETAILED] = True
        _tell_places(context.params)
        try:
            return action(**given)
        finally:
            output.detail(f"{context.command_path}: {(time.perf_counter() - began) * 1000:.0f} ms")

    return account


def _tell_places(given: Mapping[str, Any]) -> None:
    """Which configuration, ledger and service the command is about; what cannot be found it will say itself."""
    if given.get("api_url"):
        output.detail(f"service: {given['api_url']}")
    if "config_path" not in given:
        return
    from ductile.cli.base import options
    from ductile.config.load.ledger_path import ledger_of
    from ductile.config.load.sources import find
    from ductile.web.server.listeners import local_socket_path

    try:
        found = find(options.chosen(given["config_path"], given.get("config_dir")), os.environ)
        output.detail(f"configuration: {found.path} ({found.origin})")
        ledger = ledger_of(found.path, os.environ)
    except DuctileError:
        return
    output.detail(f"ledger: {ledger}")
    output.detail(f"socket: {local_socket_path(ledger.parent)}")
