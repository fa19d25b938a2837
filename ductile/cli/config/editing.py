"""What every command that edits the configuration shares: its flags, what it prints and how it exits."""

import os
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import ConfigInvalid, UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.edit import Edited
    from ductile.config.edit.staged_edit import Draft
    from ductile.config.load.load import Config

NOTHING: Mapping[str, Any] = {}


def editing(command: options.Command) -> options.Command:
    """`--config`, `--dry-run`, `--apply`, `--strict`, `--json`: the flags of an edit."""
    command = options.as_json(command)
    command = click.option("--strict", is_flag=True, help="Exit 3 when the result has warnings.")(command)
    command = click.option("--apply", "applies", is_flag=True, help="Write the change; this is the default.")(command)
    return options.config(options.dry_run(command))


def found(given: Mapping[str, Any]) -> Path:
    """The configuration that the flags name."""
    from ductile.config.load.sources import find

    return find(options.chosen(given["config_path"], given["config_dir"]), os.environ).path


def loaded(given: Mapping[str, Any]) -> "Config":
    """That configuration, as a service would use it."""
    from ductile.config.load.load import load

    return load(found(given))


def draft_of(given: Mapping[str, Any]) -> "Draft":
    """The files of that configuration, to be looked at; ConfigInvalid if one cannot be read."""
    from ductile.config.edit.staged_edit import Draft

    draft = Draft.of(found(given), os.environ)
    if draft.sources.errors:
        raise ConfigInvalid(draft.sources.errors)
    return draft


def carry_out(
    given: Mapping[str, Any], change: "Callable[[Draft], Draft]", *, approving: Collection[Path] = ()
) -> "Edited":
    """The change is tried out, and made unless it is only asked for."""
    from ductile.config.edit.edit import edit

    if given["dry_run"] and given["applies"]:
        raise UsageInvalid("--dry-run and --apply exclude each other", hint="give one of them; --apply is the default")
    return edit(found(given), change, now=datetime.now(UTC), dry_run=given["dry_run"], approving=approving)


def show_edited(
    edited: "Edited", given: Mapping[str, Any], *, more: Mapping[str, Any] = NOTHING, lines: Collection[str] = ()
) -> int:
    """Print what the edit did, with what the command adds to it; the exit code."""
    result = {**edited_data(edited), **more}
    output.show(result, as_json=given["as_json"], human=lambda shown: [*_lines(shown), *lines])
    if edited.warnings and not given["as_json"]:
        output.note(f"warnings: {len(edited.warnings)}; see them with `ductile config check`")
    return output.WARNINGS_EXIT if given["strict"] and edited.warnings else 0


def edited_data(edited: "Edited") -> dict[str, Any]:
    """The JSON form of an edit."""
    return {
        "status": edited.status,
        "files": [str(path) for path in edited.files],
        "diff": edited.diff,
        "sealed": list(edited.sealed),
        "validation": {"valid": True, "warnings": [warning.as_data() for warning in edited.warnings]},
        "dry_run": edited.dry_run,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    if not result["files"]:
        return [f"{result['status']}: the files say so already"]
    if result["dry_run"]:
        return [*result["diff"].splitlines(), "valid; nothing was written"]
    lines = [f"changed {name}" for name in result["files"]]
    lines += [f"sealed {change}" for change in result["sealed"]]
    return [*lines, "next: ductile system reload"]
