"""`ductile plugin new|check|test`: the author's kit."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

LANGUAGES = ("python", "sh", "node")
LEVELS = ("manifest", "protocol", "robust", "exemplary")


@click.command("new")
@click.argument("name")
@click.option("--lang", type=click.Choice(LANGUAGES), default="python", show_default=True, help="Written in what.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), default=".", help="Where its folder is made.")
@options.dry_run
@options.as_json
def new(name: str, lang: str, parent: Path, dry_run: bool, as_json: bool) -> None:
    """Make a plugin that works: manifest, program, README and fixtures. Nothing that is there is replaced.

    Example: ductile plugin new disk --lang python --dir plugins
    """
    from ductile.devkit.scaffold import make, plan

    made = plan(name, lang)
    folder = parent / name
    make(folder, made, dry_run=dry_run)
    shown = {"plugin": name, "lang": lang, "path": str(folder), "files": sorted(made), "dry_run": dry_run}
    output.show(shown, as_json=as_json, human=_new_lines)


def _new_lines(shown: dict[str, Any]) -> list[str]:
    verb = "would make" if shown["dry_run"] else "made"
    lines = [f"{verb} {shown['path']}/{name}" for name in shown["files"]]
    path = shown["path"] if "/" in shown["path"] else f"./{shown['path']}"
    return lines if shown["dry_run"] else [*lines, f"next: ductile plugin check {path}"]


@click.command("check")
@click.argument("target", metavar="NAME|DIR")
@click.option("--level", type=click.Choice(LEVELS), default="robust", show_default=True, help="What must hold.")
@click.option("--run-writes", is_flag=True, help="Also run writing commands that no fixture is about.")
@click.option("--plugin-config", help="A JSON object: the configuration for requests that no fixture makes.")
@click.option("--deadline", help="How long each request may take. Default: 10s, or what the fixture says.")
@options.config
@options.as_json
def check(
    target: str,
    level: str,
    run_writes: bool,
    plugin_config: str | None,
    deadline: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> int:
    """See whether a plugin keeps the rules of the protocol. Exit 1 if a rule of --level or below is broken.

    Levels: manifest (it would be loaded), protocol (it can be understood), robust (it is safe to have), exemplary
    (others can rely on it). Above the first one the plugin is really run, many times, with its fixtures and with its
    reading commands; a writing command without a fixture only with --run-writes.

    Example: ductile plugin check ./disk --level exemplary
    """
    from ductile.cli.plugin.checks import checked

    explicit = options.chosen(config_path, config_dir)
    shown = checked(target, explicit, level, run_writes=run_writes, plugin_config=plugin_config, deadline=deadline)
    output.show(shown, as_json=as_json, human=_check_lines)
    return 0 if shown["holds"] else 1


def _check_lines(shown: dict[str, Any]) -> list[str]:
    rows = [(rule["result"], rule["rule"], rule["reason"]) for rule in shown["rules"]]
    lines = []
    for rule, line in zip(shown["rules"], output.table(rows), strict=True):
        lines.append(line)
        lines += [f"      do: {rule['todo']}"] if rule["todo"] else []
    word = "holds" if shown["holds"] else "does not hold"
    return [*lines, f"{shown['plugin']}: level {shown['level'] or 'none'}; {shown['demanded']} {word}"]


@click.command("test")
@click.argument("target", metavar="NAME|DIR")
@click.option("--plugin-config", help="A JSON object that goes over the configuration of every fixture.")
@options.config
@options.as_json
def test(
    target: str, plugin_config: str | None, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> int:
    """Play a plugin's fixtures: send each request, compare the answer. Exit 1 if one does not hold, or there is none.

    Example: ductile plugin test ./disk
    """
    from ductile.cli.plugin.checks import tested

    shown = tested(target, options.chosen(config_path, config_dir), plugin_config=plugin_config)
    output.show(shown, as_json=as_json, human=_test_lines)
    return 0 if shown["fixtures"] and shown["holds"] else 1


def _test_lines(shown: dict[str, Any]) -> list[str]:
    lines = []
    for fixture in shown["fixtures"]:
        lines.append(f"{'pass' if fixture['holds'] else 'FAIL'}  {fixture['name']}")
        lines += [f"      {line}" for line in fixture["differences"]]
        if not fixture["holds"] and fixture["stderr"]:
            lines += [f"      stderr: {line}" for line in fixture["stderr"].rstrip().splitlines()[-5:]]
    if not lines:
        return [f"{shown['plugin']}: no fixtures; write fixtures/<name>.json, or export one: ductile job export"]
    good = sum(fixture["holds"] for fixture in shown["fixtures"])
    return [*lines, f"{shown['plugin']}: {good} of {len(shown['fixtures'])} fixtures hold"]
