"""`ductile plugin`: list, show, lock, pause and resume plugins. The other actions have modules of their own."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.core.errors import NotFound, UsageInvalid

COMMAND_MODULES = {
    "add": "plugin.add.add",
    "check": "plugin.devkit.check",
    "new": "plugin.devkit.new",
    "run": "plugin.run.run_plugin",
    "test": "plugin.devkit.test",
}


@click.group("plugin", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """List, create, check, test, run and pause plugins."""


@group.command("list")
@options.config
@options.service
@options.as_json
def list_plugins(as_json: bool, **where: Any) -> None:
    """List all plugins and aliases with their state. With --api-url, list the loaded plugins of a remote service.

    Example: ductile plugin list --json
    """
    if where["api_url"]:
        from ductile.cli.base.connect import client_for

        loaded = client_for(where).request("GET", "/plugins")["plugins"]
        rows = [_absent_row(entry["name"], "", state="enabled") | entry for entry in loaded]
        output.show({"plugins": rows}, as_json=as_json, human=_list_lines)
        return
    examination = _examine(options.selected_config(where["config_path"], where["config_dir"]))
    blocked = _blocked(examination)
    rows = [_row(examination, name, plugin, blocked) for name, plugin in sorted(examination.found.items())]
    rows += [_rejected_row(rejected) for rejected in examination.discovery.rejected]
    known = {row["name"] for row in rows}
    rows += [_absent_row(name, why) for name, why in examination.unusable.items() if name not in known]
    output.show({"plugins": rows}, as_json=as_json, human=_list_lines)


@group.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_plugin(name: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show a plugin with its commands, configuration keys, facts, path and state.

    Example: ductile plugin show echo
    """
    examination = _examine(options.selected_config(config_path, config_dir))
    report = _details(examination, name) if name in examination.found else _unusable(examination, name)
    output.show(report, as_json=as_json, human=_show_lines)


@group.command("pause")
@click.argument("name")
@click.option("--reason", help="Reason to record and show.")
@options.config
@options.service
@options.dry_run
@options.as_json
def pause_plugin(name: str, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Stop starting queued jobs of a plugin.

    New jobs are still accepted, and running jobs continue. The pause survives restarts.

    Example: ductile plugin pause backup --reason "the disk is being replaced"
    """
    from ductile.cli.queue import pause_lines, post_pause

    answer = post_pause("pause", name, where, dry_run=dry_run, reason=reason)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("resume")
@click.argument("name")
@options.config
@options.service
@options.dry_run
@options.as_json
def resume_plugin(name: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Start queued jobs of a paused plugin again.

    Example: ductile plugin resume backup
    """
    from ductile.cli.queue import pause_lines, post_pause

    output.show(post_pause("resume", name, where, dry_run=dry_run), as_json=as_json, human=pause_lines)


@group.command("lock")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Approve every configured plugin.")
@options.config
@options.dry_run
@options.as_json
def lock(names: tuple[str, ...], everything: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Approve the current files of plugins and store their fingerprints in the seal.

    The rest of the seal is unchanged. `ductile config lock` seals everything.

    Example: ductile plugin lock backup --dry-run
    """
    from datetime import UTC, datetime

    from ductile.config.edit.approve import seal_plugins
    from ductile.config.files.sources import find_config

    if everything == bool(names):
        raise UsageInvalid("NAMES or --all is required")
    root = find_config(options.selected_config(where["config_path"], where["config_dir"]), os.environ).path
    sealed = seal_plugins(root, None if everything else names, now=datetime.now(UTC), dry_run=dry_run)
    shown = {"seal": str(sealed.path), "changes": sealed.changes, "dry_run": dry_run}
    output.show(shown, as_json=as_json, human=_lock_lines)


def _lock_lines(shown: dict[str, Any]) -> list[str]:
    verb = "would change" if shown["dry_run"] else "changed"
    return [f"{verb} {shown['seal']}", *(f"  {change}" for change in shown["changes"] or ["no changes"])]


def _examine(explicit: Path | None) -> Any:
    from ductile.config.checks.examine import examine
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load

    return examine(load(find_config(explicit, os.environ).path))


def _blocked(examination: Any) -> dict[str, tuple[str, str]]:
    """Return state and reason of the plugins that the ledger records as blocked; empty without a ledger.

    Their `init` has failed, or the running service has found other files than the sealed ones.
    """
    from ductile.core.errors import LedgerError
    from ductile.explain.orphaned import has_service
    from ductile.explain.reason import Reason
    from ductile.ledger.admin.drifted_plugins import all_drifted
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables.plugin_inits import all_inits

    path = examination.config.settings.state.path
    if not path.exists():
        return {}
    try:
        with open_reader(path) as db:
            drifted = all_drifted(db) if has_service(path) else {}
            inits = {name: init.error for name, init in all_inits(db).items() if init.error is not None}
    except LedgerError:
        return {}  # the list is useful without it
    found = {name: ("changed", Reason(one.code, one.data).words) for name, one in drifted.items()}
    return found | {name: ("unhealthy", f"init failed: {error}") for name, error in inits.items()}


def _state(examination: Any, name: str, blocked: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Return the state of a plugin and the reason for it. `blocked` has those of blocked plugins."""
    entry = examination.config.settings.plugins.get(name)
    if name in examination.unusable:
        return "unusable", examination.unusable[name]
    if entry is None:
        return "unconfigured", "has no entry under `plugins:`; it can be triggered but not scheduled"
    if not entry.enabled:
        return "disabled", "enabled: false"
    return blocked.get(name, ("enabled", ""))


def _row(examination: Any, name: str, plugin: Any, blocked: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    state, reason = _state(examination, name, blocked)
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
        return ["no plugins; add them to a directory of plugin_roots"]
    head = ("NAME", "VERSION", "STATE", "COMMANDS", "DESCRIPTION")
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
    from ductile.config.load.redaction import redact_settings

    plugin = examination.found[name]
    manifest = plugin.manifest
    entries = redact_settings(examination.config.settings, examination.config.mask)["plugins"]
    return _row(examination, name, plugin, _blocked(examination)) | {
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
    raise NotFound(f"plugin {name!r} does not exist", hint=f"Known plugins: {known}.")


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
    for kind in ("required", "optional"):
        if report["config_keys"][kind]:
            lines.append(f"  {kind} config: {', '.join(report['config_keys'][kind])}")
    lines += [f"  fact: {fact['fact_type']} from {fact['command']}" for fact in report["fact_outputs"]]
    return lines + [f"  warning: {warning}" for warning in report["warnings"]]
