"""`ductile plugin add`: copy a bundled plugin into a configuration."""

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
    """Copy a bundled plugin into the first plugin root. Without NAME, list the bundled plugins.

    You can change the copy. It can be triggered after a reload; schedules and settings need an entry under `plugins:`
    (`ductile config plugin set`).

    Example: ductile plugin add fetch
    """
    from ductile.config.scaffold import bundled_plugins_dir

    bundled = {
        folder.name: folder for folder in bundled_plugins_dir().iterdir() if (folder / "manifest.yaml").is_file()
    }
    if name is None:
        output.show({"bundled": _described(bundled)}, as_json=as_json, human=_list_lines)
        return
    if name not in bundled:
        raise NotFound(
            f"bundled plugin {name!r} does not exist{did_you_mean(name, bundled)}",
            hint="Run `ductile plugin add` to list bundled plugins, or `ductile plugin new` to create one.",
        )
    target = _target(options.selected_config(config_path, config_dir), name)
    if not dry_run:
        from ductile.config.scaffold import copy_plugin

        copy_plugin(bundled[name], target)
    answer = {"plugin": name, "path": str(target), "readme": str(target / "README.md"), "dry_run": dry_run}
    answer["next"] = _next(bundled[name], target)
    output.show(answer, as_json=as_json, human=_added_lines)


def _target(explicit: Path | None, name: str) -> Path:
    """Return the target directory. Raise UsageInvalid if it exists."""
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load

    config = load(find_config(explicit, os.environ).path)
    roots = config.settings.plugin_roots
    target = Path(roots[0] if roots else config.directory / "plugins") / name
    if os.path.lexists(target):
        raise UsageInvalid(f"{target} already exists", hint="Remove it first, or edit it in place.")
    return target


def _described(bundled: dict[str, Path]) -> list[dict[str, Any]]:
    from ductile.plugin.manifest import read_manifest

    manifests = [(name, read_manifest(folder / "manifest.yaml")) for name, folder in sorted(bundled.items())]
    return [
        {"name": name, "description": manifest.description, "commands": sorted(manifest.commands)}
        for name, manifest in manifests
    ]


def _list_lines(answer: dict[str, Any]) -> list[str]:
    head = ("PLUGIN", "COMMANDS", "")
    rows = [(plugin["name"], ", ".join(plugin["commands"]), plugin["description"]) for plugin in answer["bundled"]]
    return output.table([head, *rows])


def _next(folder: Path, target: Path) -> list[str]:
    """Return the next commands: build the plugin if needed, configure its required keys, reload."""
    from ductile.core.formats import strict_json
    from ductile.plugin.manifest import read_manifest

    manifest = read_manifest(folder / "manifest.yaml")
    build = [] if (folder / manifest.entrypoint).exists() else [f"make -C {shlex.quote(str(target))}"]
    required = manifest.missing_keys({})
    value = f"config {shlex.quote(strict_json.dumps(dict.fromkeys(required, '…')))}" if required else "enabled true"
    return [*build, f"ductile config plugin set {folder.name} {value}", "ductile system reload"]


def _added_lines(answer: dict[str, Any]) -> list[str]:
    verb = "would copy" if answer["dry_run"] else "copied"
    values = " with your values" if any("…" in command for command in answer["next"]) else ""
    return [
        f"{verb} {answer['plugin']} to {answer['path']}",
        f"next: read {answer['readme']}, then run{values}:",
        *(f"  {command}" for command in answer["next"]),
    ]
