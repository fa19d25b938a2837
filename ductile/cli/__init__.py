"""The command line: `ductile NOUN ACTION`. One file per noun, imported only when that noun is used."""

import sys
from copy import copy
from importlib import import_module

import click

from ductile.cli import options, output

NOUNS = {
    "config": "Make, check, change, seal and look at the configuration.",
    "event": "See what an event led to, and why not more.",
    "job": "See what became of jobs and why, and act on them.",
    "pipeline": "See which pipelines there are, draw, rehearse and run one.",
    "plugin": "See which plugins there are, what they can do, run one, pause and resume one.",
    "queue": "See what waits and why, pause it, resume it and empty it.",
    "relay": "Send an event to another instance, and see which instances and peers there are.",
    "schedule": "See when schedules fire and why not, pause, resume, run and simulate them.",
    "system": "Run the service and see how it is.",
    "webhook": "See endpoints and what came to them, send a signed delivery, check a signature.",
}

SHORT_FORMS = {
    "plugins": ("plugin", "list"),
    "reload": ("system", "reload"),
    "reset": ("system", "reset"),
    "run": ("plugin", "run"),
    "status": ("system", "status"),
}
"""Other names of actions; `queue` alone is `queue status`."""


class Nouns(click.Group):
    """Knows every noun's name and one line about it; imports a noun's file when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*NOUNS, *SHORT_FORMS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SHORT_FORMS:
            return self._short_form(ctx, cmd_name)
        if cmd_name not in NOUNS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(f"ductile.cli.{cmd_name}").group
        return command

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
        own = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        with formatter.section("Nouns"):
            formatter.write_dl(sorted([*NOUNS.items(), *own]))
        with formatter.section("Short forms"):
            formatter.write_dl([(name, f"The same as `{' '.join(action)}`.") for name, action in SHORT_FORMS.items()])


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
    from ductile.cli.build import build_info

    output.show(build_info(), as_json=as_json, human=lambda info: [f"{name}: {value}" for name, value in info.items()])


def _print_version(ctx: click.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.invoke(version, as_json="--json" in sys.argv)
        ctx.exit()


def main() -> None:
    """The console script."""
    sys.exit(output.run(ductile, sys.argv[1:]))
