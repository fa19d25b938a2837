"""`ductile plugin lock`: approve plugins as they are now, and nothing else."""

import os
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid


@click.command("lock")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every configured plugin.")
@options.config
@options.dry_run
@options.as_json
def lock(names: tuple[str, ...], everything: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Approve plugins NAMES as they are now: their fingerprints go into the seal, which otherwise stays as it is.

    `ductile config lock` seals everything.

    Example: ductile plugin lock backup --dry-run
    """
    from datetime import UTC, datetime

    from ductile.config.load.sources import find
    from ductile.config.seal.approve import seal_plugins

    if everything == bool(names):
        raise UsageInvalid("name the plugins to approve, or give --all")
    root = find(options.chosen(where["config_path"], where["config_dir"]), os.environ).path
    sealed = seal_plugins(root, None if everything else names, now=datetime.now(UTC), dry_run=dry_run)
    shown = {"seal": str(sealed.path), "changes": sealed.changes, "dry_run": dry_run}
    output.show(shown, as_json=as_json, human=_lines)


def _lines(shown: dict[str, Any]) -> list[str]:
    verb = "would change" if shown["dry_run"] else "changed"
    return [f"{verb} {shown['seal']}", *(f"  {change}" for change in shown["changes"] or ["nothing changed"])]
