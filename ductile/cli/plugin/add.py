"""`ductile plugin add`: plugins that come with Ductile, copied into a configuration."""

import os
import shlex
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean


@click.command("add")
@click.argument("name", required=False)
@options.config
@options.dry_run
@options.as_json
def add(name: str | None, config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool) -> None:
    """Copy a plugin that comes with Ductile into the first plugin root; without NAME, list what there is to add.

    The copy is yours to change. It can be triggered after a reload; schedules and settings of its own need an entry
    below `plugins:` (`ductile config plugin set`).

    Example: ductile plugin add fetch
    """
    from ductile.config.scaffold import bundled_plugins

    bundled = {folder.name: folder for folder in bundled_plugins().iterdir() if (folder / "manifest.yaml").is_file()}
    if name is None:
        output.show({"bundled": _described(bundled)}, as_json=as_json, human=_listed)
        return
    if name not in bundled:
        raise NotFound(
            f"no plugin {name} comes with Ductile{did_you_mean(name, bundled)}",
            hint="`ductile plugin add` lists those that do; `ductile plugin new` begins one of your own",
        )
    target = _place(options.chosen(config_path, config_dir), name)
    if not dry_run:
        from ductile.config.scaffold import copy_plugin

        copy_plugin(bundled[name], target)
    answer = {"plugin": name, "path": str(target), "readme": str(target / "README.md"), "dry_run": dry_run}
    answer["next"] = _next(bundled[name], target)
    output.show(answer, as_json=as_json, human=_added)


def _place(explicit: Path | None, name: str) -> Path:
    """Where the copy goes; nothing of the operator's is there."""
    from ductile.config.load.load import load
    from ductile.config.load.sources import find

    config = load(find(explicit, os.environ).path)
    roots = config.settings.plugin_roots
    target = Path(roots[0] if roots else config.directory / "plugins") / name
    if os.path.lexists(target):
        raise UsageInvalid(f"{target} is there already", hint="remove it first, or change it where it is")
    return target


def _described(bundled: dict[str, Path]) -> list[dict[str, Any]]:
    from ductile.plugin.manifest import read_manifest

    manifests = [(name, read_manifest(folder / "manifest.yaml")) for name, folder in sorted(bundled.items())]
    return [
        {"name": name, "description": manifest.description, "commands": sorted(manifest.commands)}
        for name, manifest in manifests
    ]


def _listed(answer: dict[str, Any]) -> list[str]:
    head = ("PLUGIN", "COMMANDS", "")
    rows = [(one["name"], ", ".join(one["commands"]), one["description"]) for one in answer["bundled"]]
    return output.table([head, *rows])


def _next(folder: Path, target: Path) -> list[str]:
    """The commands that put it to use: it is built, and has an entry with a place for all that it cannot do without."""
    from ductile.core.formats import strict_json
    from ductile.plugin.manifest import read_manifest

    manifest = read_manifest(folder / "manifest.yaml")
    build = [] if (folder / manifest.entrypoint).exists() else [f"make -C {shlex.quote(str(target))}"]
    required = manifest.missing_keys({})
    value = f"config {shlex.quote(strict_json.dumps(dict.fromkeys(required, '…')))}" if required else "enabled true"
    return [*build, f"ductile config plugin set {folder.name} {value}", "ductile system reload"]


def _added(answer: dict[str, Any]) -> list[str]:
    verb = "would copy" if answer["dry_run"] else "copied"
    fill_in = ", with your own values" if any("…" in command for command in answer["next"]) else ""
    return [
        f"{verb} {answer['plugin']} to {answer['path']}",
        f"next: read {answer['readme']}, then{fill_in}:",
        *(f"  {command}" for command in answer["next"]),
    ]
