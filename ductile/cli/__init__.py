"""The command line: `ductile NOUN ACTION`. One file per noun, imported only when that noun is used."""

import gc
import io
import os
import sys
from copy import copy
from functools import cache
from importlib import import_module

import click

from ductile.cli.base import click_base, options, output

NOUNS = {
    "config": "Make, check, change, seal and look at the configuration.",
    "event": "See what an event led to, and why not more.",
    "job": "See what became of jobs and why, and act on them.",
    "pipeline": "See which pipelines there are, draw, rehearse, test and run one.",
    "plugin": "See which plugins there are, make, check, test and run one, pause and resume one.",
    "queue": "See what waits and why, pause it, resume it and empty it.",
    "relay": "Send an event to another instance, and see which instances and peers there are.",
    "schedule": "See when schedules fire and why not, pause, resume, run and simulate them.",
    "system": "Run the service and see how it is.",
    "webhook": "See endpoints and what came to them, send a signed delivery, check a signature.",
}

SINGLE = {
    "api": "Send one request to the HTTP API and print the answer.",
    "completion": "Print the script with which a shell completes commands.",
    "logs": "Show what happened, and with --follow what happens, one event per line.",
}
"""Commands that are no noun's: `command` in the file of that name, imported when it is used."""

SHORT_FORMS = {
    "plugins": ("plugin", "list"),
    "reload": ("system", "reload"),
    "reset": ("system", "reset"),
    "run": ("plugin", "run"),
    "skills": ("system", "skills"),
    "status": ("system", "status"),
}
"""Other names of actions; `queue` alone is `queue status`."""


MODULES = {name: f"{name}.group" for name in NOUNS} | {
    "completion": "base.completion",
    "logs": "logs.command",
    "relay": "relay",
}
"""The module of a name below `ductile.cli`, where it is not the name itself."""


class Nouns(click_base.SuggestingGroup):
    """Knows every noun's name and one line about it; imports a noun's file when it is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, click_base.flags_behind(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*NOUNS, *SINGLE, *SHORT_FORMS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SHORT_FORMS:
            return self._short_form(ctx, cmd_name)
        if cmd_name in NOUNS or cmd_name in SINGLE:
            return _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def _short_form(self, ctx: click.Context, name: str) -> click.Command:
        """The action under its other name, also in its own words."""
        noun, action = SHORT_FORMS[name]
        group = self.get_command(ctx, noun)
        command = group.get_command(ctx, action) if isinstance(group, click.Group) else None
        assert command is not None, f"{noun} has no {action}"
        short = copy(command)
        short.name = name
        short.help = (command.help or "").replace(f"ductile {noun} {action}", f"ductile {name}")
        return short

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(80)) for name, command in self.commands.items() if not command.hidden]
        with formatter.section("Nouns"):
            formatter.write_dl(list(NOUNS.items()))
        with formatter.section("Single commands"):
            formatter.write_dl(sorted([*SINGLE.items(), *own]))
        with formatter.section("Short forms"):
            formatter.write_dl([(name, f"The same as `{' '.join(action)}`.") for name, action in SHORT_FORMS.items()])


@cache
def _load(name: str) -> click.Command:
    module = import_module(f"ductile.cli.{MODULES.get(name, name)}")
    return click_base.decorate(module.group if name in NOUNS else module.command)


@click.group(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda ctx, _, on: _print_version(ctx, on)
)
def ductile() -> None:
    """Ductile: an automation runtime you can run, debug, explain, test and extend.

    Commands read `ductile NOUN ACTION`; `ductile NOUN --help` lists a noun's actions.
    """


@ductile.command()
@options.as_json
def version(as_json: bool) -> None:
    """Print which Ductile this is.

    Example: ductile version --json
    """
    from ductile.cli.system.build import build_info

    output.show(build_info(), as_json=as_json, human=lambda info: [f"{name}: {value}" for name, value in info.items()])


click_base.decorate(ductile)


def _print_version(ctx: click.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.invoke(version, as_json="--json" in sys.argv)
        ctx.exit()


def main() -> None:
    """The console script."""
    _open_what_is_closed()
    _speak_utf8()
    code = output.run(ductile, sys.argv[1:])
    gc.freeze()  # the collection at exit would visit every imported module: about 10 ms
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Who is started without stdin, stdout or stderr has empty ones, and no file of ours gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            empty = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (takes the lowest number that is free)
            setattr(sys, name, empty)


def _speak_utf8() -> None:
    """Whatever the locale says: JSON is UTF-8, and what people wrote does not fit into less."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
