"""`ductile plugin new`, `check` and `test`: tools for plugin authors."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import DuctileError, NotFound

if TYPE_CHECKING:
    from ductile.plugin.registry import Plugin

LANGUAGES = ("python", "sh", "node")
LEVELS = ("manifest", "protocol", "robust", "exemplary")


@click.command("new")
@click.argument("name")
@click.option(
    "--lang", type=click.Choice(LANGUAGES), default="python", show_default=True, help="Language of the plugin."
)
@click.option("--dir", "parent", type=click.Path(path_type=Path), default=".", help="Parent directory.")
@options.dry_run
@options.as_json
def new(name: str, lang: str, parent: Path, dry_run: bool, as_json: bool) -> None:
    """Create a working plugin with manifest, program, README and fixtures. Existing files are not replaced.

    Example: ductile plugin new disk --lang python --dir plugins
    """
    from ductile.devkit.scaffold import plan_files, write_plugin

    made = plan_files(name, lang)
    folder = parent / name
    write_plugin(folder, made, dry_run=dry_run)
    shown = {"plugin": name, "lang": lang, "path": str(folder), "files": sorted(made), "dry_run": dry_run}
    output.show(shown, as_json=as_json, human=_new_lines)


def _new_lines(shown: dict[str, Any]) -> list[str]:
    verb = "would create" if shown["dry_run"] else "created"
    lines = [f"{verb} {shown['path']}/{name}" for name in shown["files"]]
    path = shown["path"] if "/" in shown["path"] else f"./{shown['path']}"
    return lines if shown["dry_run"] else [*lines, f"next: ductile plugin check {path}"]


@click.command("check")
@click.argument("target", metavar="NAME|DIR")
@click.option(
    "--level", type=click.Choice(LEVELS), default="robust", show_default=True, help="Conformance level to require."
)
@click.option("--run-writes", is_flag=True, help="Also run write commands without a fixture.")
@click.option("--plugin-config", help="Plugin configuration for requests without a fixture, a JSON object.")
@click.option("--deadline", help="Deadline of each request. Default: that of the fixture, or 10s.")
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
    """Check a plugin against the rules of the protocol. Exit 1 if it violates a rule of --level or below.

    Levels: manifest (it loads), protocol (its responses are valid), robust (it is safe to run), exemplary (other
    plugins can rely on it). All levels except manifest run the plugin many times, with its fixtures and its read
    commands; write commands without a fixture run only with --run-writes.

    Example: ductile plugin check ./disk --level exemplary
    """
    explicit = options.selected_config(config_path, config_dir)
    shown = check_plugin(target, explicit, level, run_writes=run_writes, plugin_config=plugin_config, deadline=deadline)
    output.show(shown, as_json=as_json, human=_check_lines)
    return 0 if shown["holds"] else 1


def check_plugin(
    target: str,
    explicit: Path | None,
    level: str,
    *,
    run_writes: bool,
    plugin_config: str | None,
    deadline: str | None,
) -> dict[str, Any]:
    """Check a plugin against the rules of the protocol and return the report."""
    import tempfile

    from ductile.cli.plugin.local import parse_plugin_config, parse_positive_duration
    from ductile.devkit.checks.conformance import check_conformance, conformance_data
    from ductile.devkit.local.harness import harness_for, is_folder_target
    from ductile.engine.process.procfs import harden_self

    params, span = parse_plugin_config(plugin_config), parse_positive_duration(deadline, "--deadline")
    if is_folder_target(target):
        if not Path(target).is_dir():
            raise NotFound(f"directory {target} does not exist")
        folder, config = Path(target).resolve(), params
    else:
        with tempfile.TemporaryDirectory() as scratch:
            bench = harness_for(target, explicit, params, Path(scratch))
        folder, config = bench.plugin.folder, dict(bench.config)
    harden_self()
    runs = level != LEVELS[0]
    return conformance_data(check_conformance(folder, config, runs=runs, run_writes=run_writes, deadline=span), level)


def _check_lines(shown: dict[str, Any]) -> list[str]:
    rows = [(rule["result"], rule["rule"], rule["reason"]) for rule in shown["rules"]]
    lines = []
    for rule, line in zip(shown["rules"], output.table(rows), strict=True):
        lines.append(line)
        lines += [f"      fix: {rule['todo']}"] if rule["todo"] else []
    result = "passed" if shown["holds"] else "failed"
    return [*lines, f"{shown['plugin']}: level {shown['level'] or 'none'}; {shown['demanded']} {result}"]


@click.command("test")
@click.argument("target", metavar="NAME|DIR")
@click.option("--plugin-config", help="JSON object that overrides the configuration of every fixture.")
@options.config
@options.as_json
def test(
    target: str, plugin_config: str | None, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> int:
    """Run the fixtures of a plugin and compare the responses. Exit 1 if one fails or none exists.

    Example: ductile plugin test ./disk
    """
    shown = run_fixtures(target, options.selected_config(config_path, config_dir), plugin_config=plugin_config)
    output.show(shown, as_json=as_json, human=_test_lines)
    return 0 if shown["fixtures"] and shown["holds"] else 1


def run_fixtures(target: str, explicit: Path | None, *, plugin_config: str | None) -> dict[str, Any]:
    """Run every fixture of a plugin and return the report."""
    import tempfile

    from ductile.cli.plugin.local import parse_plugin_config
    from ductile.devkit.fixtures.fixture_file import fixture_files
    from ductile.devkit.local.harness import harness_for
    from ductile.engine.process.procfs import harden_self

    params = parse_plugin_config(plugin_config)
    with tempfile.TemporaryDirectory() as scratch:
        plugin = harness_for(target, explicit, None, Path(scratch)).plugin
    harden_self()
    fixtures = [_run_fixture(plugin, path, params) for path in fixture_files(plugin)]
    return {"plugin": plugin.name, "holds": all(fixture["holds"] for fixture in fixtures), "fixtures": fixtures}


def _run_fixture(plugin: "Plugin", path: Path, params: dict[str, Any]) -> dict[str, Any]:
    from ductile.devkit.fixtures.fixture_file import read_fixture
    from ductile.devkit.fixtures.runner import run_fixture

    content: dict[str, Any] = {"file": path.name, "name": path.stem, "stderr": "", "differences": []}
    try:
        fixture = read_fixture(path)
        result = run_fixture(plugin, fixture, plugin_config=params)
    except DuctileError as error:
        return {**content, "holds": False, "differences": [str(error)]}
    return {
        **content,
        "name": fixture.name,
        "holds": not result.differences,
        "differences": list(result.differences),
        "verdict": result.shown["verdict"],
        "error": result.shown["error"],
        "response": result.shown["response"],
        "stderr": result.shown["stderr"],
    }


def _test_lines(shown: dict[str, Any]) -> list[str]:
    lines = []
    for fixture in shown["fixtures"]:
        lines.append(f"{'pass' if fixture['holds'] else 'FAIL'}  {fixture['name']}")
        lines += [f"      {line}" for line in fixture["differences"]]
        if not fixture["holds"] and fixture["stderr"]:
            lines += [f"      stderr: {line}" for line in fixture["stderr"].rstrip().splitlines()[-5:]]
    if not lines:
        return [f"{shown['plugin']}: no fixtures; write fixtures/NAME.json, or run `ductile job export`"]
    passed = sum(fixture["holds"] for fixture in shown["fixtures"])
    return [*lines, f"{shown['plugin']}: {passed} of {len(shown['fixtures'])} fixtures passed"]
