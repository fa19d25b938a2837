"""`ductile plugin`: which plugins there are, what they can do, and pausing one. Other actions have their own rooms."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.core.errors import NotFound

COMMAND_MODULES = {
    "add": "plugin.add.add",
    "check": "plugin.devkit.check",
    "lock": "plugin.lock.lock",
    "new": "plugin.devkit.new",
    "run": "plugin.run.run_plugin",
    "test": "plugin.devkit.test",
}


@click.group("plugin", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """See which plugins there are, make, check, test and run one, pause and resume one."""


@group.command("list")
@options.config
@options.service
@options.as_json
def list_plugins(as_json: bool, **where: Any) -> None:
    """List every plugin and alias, also those that cannot be used, with the reason; with --api-url those it can run.

    Example: ductile plugin list --json
    """
    if where["api_url"]:
        from ductile.cli.base.connect import client_for

        loaded = client_for(where).ask("GET", "/plugins")["plugins"]
        rows = [_absent_row(one["name"], "", state="enabled") | one for one in loaded]
        output.show({"plugins": rows}, as_json=as_json, human=_list_lines)
        return
    examination = _examine(options.chosen(where["config_path"], where["config_dir"]))
    failed = _failed_inits(examination)
    rows = [_row(examination, name, plugin, failed) for name, plugin in sorted(examination.found.items())]
    rows += [_rejected_row(rejected) for rejected in examination.discovery.rejected]
    known = {row["name"] for row in rows}
    rows += [_absent_row(name, why) for name, why in examination.unusable.items() if name not in known]
    output.show({"plugins": rows}, as_json=as_json, human=_list_lines)


@group.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_plugin(name: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show one plugin: its commands, what it wants configured, its facts, where it is and whether it can be used.

    Example: ductile plugin show echo
    """
    examination = _examine(options.chosen(config_path, config_dir))
    report = _details(examination, name) if name in examination.found else _unusable(examination, name)
    output.show(report, as_json=as_json, human=_show_lines)


@group.command("pause")
@click.argument("name")
@click.option("--reason", help="Why, for whoever wonders.")
@options.config
@options.service
@options.dry_run
@options.as_json
def pause_plugin(name: str, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start no more jobs of a plugin. They are still taken; what runs goes on.

    A pause survives restarts.

    Example: ductile plugin pause backup --reason "the disk is being replaced"
    """
    from ductile.cli.queue.pause import pause_lines, post_pause

    answer = post_pause("pause", name, where, dry_run=dry_run, reason=reason)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("resume")
@click.argument("name")
@options.config
@options.service
@options.dry_run
@options.as_json
def resume_plugin(name: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start the jobs of a plugin again that was paused.

    Example: ductile plugin resume backup
    """
    from ductile.cli.queue.pause import pause_lines, post_pause

    output.show(post_pause("resume", name, where, dry_run=dry_run), as_json=as_json, human=pause_lines)


def _examine(explicit: Path | None) -> Any:
    from ductile.config.checks.doctor import examine
    from ductile.config.load.load import load
    from ductile.config.load.sources import find

    return examine(load(find(explicit, os.environ).path))


def _failed_inits(examination: Any) -> dict[str, str]:
    """Whose `init` has failed, as the service last knew; nothing if there is no ledger that says so."""
    from ductile.core.errors import LedgerError
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables.plugin_inits import all_inits

    path = examination.config.settings.state.path
    if not path.exists():
        return {}
    try:
        with open_reader(path) as db:
            return {name: one.error for name, one in all_inits(db).items() if one.error is not None}
    except LedgerError:
        return {}  # what plugins can do is known without it


def _state(examination: Any, name: str, failed: Mapping[str, str]) -> tuple[str, str]:
    """In one word what can be done with a plugin, and why not more; `failed` are those whose `init` did."""
    entry = examination.config.settings.plugins.get(name)
    if name in examination.unusable:
        return "unusable", examination.unusable[name]
    if entry is None:
        return "unconfigured", "has no entry under `plugins:`; it can be triggered, not scheduled"
    if not entry.enabled:
        return "disabled", "enabled: false"
    return ("unhealthy", f"its init failed: {failed[name]}") if name in failed else ("enabled", "")


def _row(examination: Any, name: str, plugin: Any, failed: Mapping[str, str]) -> dict[str, Any]:
    state, reason = _state(examination, name, failed)
    return {
        "name": name,
        "version": plugin.manifest.version,
        "description": plugin.manifest.description,
        "commands": list(plugin.manifest.commands),
        "state": state,
        "reason": reason,
        "uses": plugin.uses,
        "path": str(plugin.folder),
    }


def _rejected_row(rejected: Any) -> dict[str, Any]:
    return _absent_row(rejected.name, rejected.reason, path=str(rejected.path), state="rejected")


def _absent_row(name: str, reason: str, *, path: str = "", state: str = "unusable") -> dict[str, Any]:
    return {
        "name": name,
        "version": "",
        "description": "",
        "commands": [],
        "state": state,
        "reason": reason,
        "uses": None,
        "path": path,
    }


def _list_lines(result: dict[str, Any]) -> list[str]:
    if not result["plugins"]:
        return ["no plugins; put some below one of the plugin_roots"]
    head = ("NAME", "VERSION", "STATE", "COMMANDS", "ABOUT")
    rows = [
        (
            row["name"],
            row["version"],
            row["state"],
            " ".join(row["commands"]),
            _first_line(row["reason"] or row["description"]),
        )
        for row in result["plugins"]
    ]
    return output.table([head, *rows])


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _details(examination: Any, name: str) -> dict[str, Any]:
    from ductile.config.views.show import redacted

    plugin = examination.found[name]
    manifest = plugin.manifest
    entries = redacted(examination.config.settings, examination.config.mask)["plugins"]
    return _row(examination, name, plugin, _failed_inits(examination)) | {
        "protocol": manifest.protocol,
        "concurrency_safe": manifest.concurrency_safe,
        "entrypoint": str(plugin.entrypoint),
        "commands": [_command(command) for command in manifest.commands.values()],
        "config_keys": {
            "required": list(manifest.config_keys.required),
            "optional": list(manifest.config_keys.optional),
        },
        "fact_outputs": [
            {"command": rule.command, "fact_type": rule.fact_type, "compatibility_view": str(rule.compatibility_view)}
            for rule in manifest.fact_outputs
        ],
        "fingerprint": {"manifest": plugin.fingerprint.manifest_hash, "entrypoint": plugin.fingerprint.entrypoint_hash},
        "warnings": [str(warning) for warning in manifest.warnings],
        "entry": entries.get(name),
    }


def _command(command: Any) -> dict[str, Any]:
    return {
        "name": command.name,
        "type": str(command.type),
        "description": command.description,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def _unusable(examination: Any, name: str) -> dict[str, Any]:
    for rejected in examination.discovery.rejected:
        if rejected.name == name:
            return _rejected_row(rejected)
    if name in examination.unusable:
        return _absent_row(name, examination.unusable[name])
    known = ", ".join(sorted(examination.found)) or "none"
    raise NotFound(f"there is no plugin {name!r}", hint=f"known: {known}")


def _show_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{report['name']} {report['version']}".rstrip() + (f" (alias of {report['uses']})" if report["uses"] else "")
    ]
    if report["description"]:
        lines.append(f"  {report['description']}")
    lines.append(f"  state: {report['state']}" + (f" — {report['reason']}" if report["reason"] else ""))
    lines.append(f"  path: {report['path']}")
    if "entrypoint" not in report:
        return lines
    lines.append(f"  entrypoint: {report['entrypoint']}")
    lines.append("  commands:")
    lines += [
        f"    {line}" for line in output.table([(c["name"], c["type"], c["description"]) for c in report["commands"]])
    ]
    for need in ("required", "optional"):
        if report["config_keys"][need]:
            lines.append(f"  config, {need}: {', '.join(report['config_keys'][need])}")
    lines += [f"  fact: {fact['fact_type']} from {fact['command']}" for fact in report["fact_outputs"]]
    return lines + [f"  warning: {warning}" for warning in report["warnings"]]
