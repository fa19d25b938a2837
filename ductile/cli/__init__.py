"""The command line: `ductile NOUN ACTION`. One file per noun, imported only when that noun is used."""

import sys
from importlib import import_module

import click

from ductile.cli import options, output

NOUNS = {
    "config": "Make, check, seal and look at the configuration.",
    "job": "See what became of a job.",
    "pipeline": "See which pipelines there are, draw, rehearse and run one.",
    "plugin": "See which plugins there are, what they can do, and run one.",
    "relay": "Send an event to another instance, and see which instances and peers there are.",
    "schedule": "See when schedules fire and why not, pause, resume, run and simulate them.",
    "system": "Run the service and see how it is.",
    "webhook": "See endpoints and what came to them, send a signed delivery, check a signature.",
}


class Nouns(click.Group):
    """Knows every noun's name and one line about it; imports a noun's file when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*NOUNS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(f"ductile.cli.{cmd_name}").group
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        with formatter.section("Nouns"):
            formatter.write_dl(sorted([*NOUNS.items(), *own]))


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
