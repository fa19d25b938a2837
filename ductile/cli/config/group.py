"""`ductile config`: create, check and seal the configuration. The other actions have modules of their own."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.core.errors import Complaint, ConfigInvalid, DuctileError, IntegrityBroken

DEFAULT_DIRECTORY = "~/.config/ductile"
COMMAND_MODULES = {
    "backup": "config.archive.backup",
    "diff": "config.history.diff",
    "get": "config.view.get",
    "history": "config.history.history",
    "import": "config.crontab.import_group",
    "pipeline": "config.pipeline.pipeline",
    "plan": "config.plan.plan",
    "plugin": "config.edit.plugin",
    "restore": "config.archive.restore",
    "route": "config.edit.route",
    "scope": "config.scope.scope",
    "set": "config.edit.set_value",
    "show": "config.view.show",
    "token": "config.token.token",
    "webhook": "config.edit.webhook",
}


@click.group("config", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """Create, check, edit and seal the configuration."""


@group.command("init")
@click.option(
    "--config-dir",
    "--config",
    "directory",
    type=click.Path(path_type=Path),
    help=f"Directory to create. Default: $DUCTILE_CONFIG_DIR or {DEFAULT_DIRECTORY}.",
)
@click.option("--demo", is_flag=True, help="Include two plugins, a pipeline, a webhook, the API and new secrets.")
@click.option(
    "--port",
    type=click.IntRange(1, 65534),
    default=8080,
    show_default=True,
    help="Port of the API on localhost; webhooks use the next port.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@options.dry_run
@options.as_json
def init(directory: Path | None, demo: bool, port: int, force: bool, dry_run: bool, as_json: bool) -> None:
    """Create a configuration with its files, directories and seal.

    Example: ductile config init --demo --config-dir ./my-config
    """
    from ductile.config import scaffold

    where = Path(os.path.abspath((directory or default_directory()).expanduser()))
    planned = scaffold.plan(demo=demo, port=port)
    scaffold.require_no_conflicts(where, planned, force=force)
    if not dry_run:
        scaffold.write(where, planned)
        _lock(where / "config.yaml")
    result = {
        "directory": str(where),
        "files": [*planned.files, ".checksums", *(f"plugins/{plugin.name}/" for plugin in planned.plugins)],
        "token": planned.token if not dry_run else None,
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_init_lines)


def _init_lines(result: dict[str, Any]) -> list[str]:
    lines = [f"{'would create' if result['dry_run'] else 'created'} {result['directory']}"]
    lines += [f"  {name}" for name in result["files"]]
    if result["token"]:
        lines += [f"API token (stored in .env): {result['token']}"]
    return [*lines, f"next: ductile config check --config {result['directory']}"]


@group.command("check")
@options.config
@click.option("--strict", is_flag=True, help="Exit 3 if there are warnings.")
@click.option(
    "--format", "form", type=click.Choice(["human", "json"]), help="Output format; json is the same as --json."
)
@options.as_json
@options.verbose
@click.pass_context
def check(
    ctx: click.Context,
    config_path: Path | None,
    config_dir: Path | None,
    strict: bool,
    form: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Check the configuration, the seal and the plugins, and report all errors and warnings.

    Exit codes: 0 valid, 3 valid with warnings under --strict, 78 invalid.

    Example: ductile config check --strict --json
    """
    from ductile.config.checks.examine import examine

    as_json = as_json or form == "json"
    selected = options.selected_config(config_path, config_dir)
    try:
        report = examine(_load(selected, verbose=verbose)).report
        errors, warnings = report.errors, report.warnings
        failure: DuctileError | None = ConfigInvalid(errors) if errors else None
    except IntegrityBroken as broken:
        errors, warnings = (*broken.complaints, *_errors_without_seal(selected)), ()
        failure = IntegrityBroken(errors, hint=broken.hint)
    except ConfigInvalid as invalid:
        failure, errors, warnings = invalid, invalid.complaints, ()
    result: dict[str, Any] = {
        "valid": failure is None,
        "errors": [complaint.as_data() for complaint in errors],
        "warnings": [complaint.as_data() for complaint in warnings],
    }
    if failure is not None:
        result |= output.error_data(failure)
    output.show(result, as_json=as_json, human=lambda _: _check_lines(errors, warnings))
    if failure is not None:
        if failure.hint != ConfigInvalid.hint and not as_json:
            output.note(f"hint: {failure.hint}")
        return failure.exit_code
    return output.WARNINGS_EXIT if strict and warnings else 0


def _errors_without_seal(selected: Path | None) -> tuple[Complaint, ...]:
    """Return the errors in the content of files that the seal refuses."""
    from ductile.config.checks.examine import examine

    try:
        return examine(_load(selected, verify=False)).report.errors
    except ConfigInvalid as invalid:
        return invalid.complaints


def _check_lines(errors: tuple[Complaint, ...], warnings: tuple[Complaint, ...]) -> list[str]:
    lines = [f"error: {complaint}" for complaint in errors] + [f"warning: {complaint}" for complaint in warnings]
    counts = f"{output.format_count(len(errors), 'error')}, {output.format_count(len(warnings), 'warning')}"
    return [*lines, f"configuration is {'invalid' if errors else 'valid'}: {counts}"]


@group.command("lock")
@options.config
@options.dry_run
@options.as_json
@options.verbose
def lock(config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool, verbose: bool) -> None:
    """Seal the configuration. Stores the hash of every loaded file and every configured plugin in .checksums.

    Example: ductile config lock --dry-run
    """
    result = _lock(_found(options.selected_config(config_path, config_dir)), dry_run=dry_run)
    output.show(result, as_json=as_json, human=lambda sealed: _lock_lines(sealed, verbose=verbose))


def _lock(root: Path, *, dry_run: bool = False) -> dict[str, Any]:
    from ductile.config.edit.approve import seal_configuration

    sealed = seal_configuration(root, now=datetime.now(UTC), dry_run=dry_run)
    return {
        "seal": str(sealed.path),
        "changes": sealed.changes,
        "files": sorted(sealed.seal.hashes),
        "plugins": sorted(sealed.seal.plugins),
        "dry_run": dry_run,
    }


def _lock_lines(result: dict[str, Any], *, verbose: bool) -> list[str]:
    verb = "would seal" if result["dry_run"] else "sealed"
    files, plugins = (output.format_count(len(result[f"{noun}s"]), noun) for noun in ("file", "plugin"))
    lines = [f"{verb} {files} and {plugins} in {result['seal']}"]
    lines += [f"  {change}" for change in result["changes"]] or ["  no changes"]
    return lines + ([f"  = {name}" for name in result["files"]] if verbose else [])


@group.command("schema")
@options.as_json
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the configuration, for use in editors.

    Example: ductile config schema > ductile.schema.json
    """
    from ductile.config.views.schema import schema as build

    output.show(build(), as_json=True, human=lambda _: ())


def default_directory() -> Path:
    """Return the directory for a new configuration."""
    return Path(os.environ.get("DUCTILE_CONFIG_DIR") or DEFAULT_DIRECTORY)


def _found(explicit: Path | None) -> Path:
    from ductile.config.files.sources import find_config

    return find_config(explicit, os.environ).path


def _load(explicit: Path | None, *, verbose: bool = False, verify: bool = True) -> Any:
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load

    found = find_config(explicit, os.environ)
    if verbose:
        output.note(f"configuration: {found.path} ({found.origin})")
    return load(found.path, verify=verify)
