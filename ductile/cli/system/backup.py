"""`ductile system backup` and `restore`: ledger, configuration and plugins as one archive."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

FIRST_PROGRESS_SECONDS, PROGRESS_INTERVAL = 2.0, 2.0
SCOPES = ("db", "config", "plugins", "all")


@click.command("backup")
@click.option(
    "--to", "target", type=click.Path(path_type=Path), required=True, help="Archive to write, a new .tar.gz file."
)
@click.option("--scope", type=click.Choice(SCOPES), help="What to include. Default: all.")
@click.option("--only", type=click.Choice(["config"]), help="Back up the configuration alone, as `config backup` does.")
@options.config
@options.dry_run
@options.as_json
def backup(target: Path, scope: str | None, only: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Write the ledger, the configuration and the plugins to one private archive, and verify it.

    Works while the service runs. Scopes: db (the ledger), config (adds all loaded files, scope files and the seal),
    plugins (adds the plugin directories), all (adds `.env` files). The archive contains secrets; store it accordingly.
    With `--only config`, the archive has every file of the configuration inside its directory, and no ledger.

    Example: ductile system backup --to monday.tar.gz
    """
    from datetime import UTC, datetime

    from ductile.ops.backup.create import back_up
    from ductile.ops.backup.manifest import BackupScope

    if only and scope:
        raise UsageInvalid("--scope and --only are mutually exclusive")
    chosen = BackupScope.ONLY_CONFIG if only else BackupScope(scope or BackupScope.ALL)
    explicit = options.selected_config(where["config_path"], where["config_dir"])
    done = back_up(explicit, target, chosen, now=datetime.now(UTC), progress=Progress(), dry_run=dry_run)
    manifest = done.manifest
    result = {
        "archive": str(done.path),
        "bytes": done.bytes,
        "scope": str(chosen),
        "verified": not dry_run,
        "made_at": manifest.made_at,
        "version": manifest.version,
        "source": manifest.source,
        "files": [
            {"name": file.name, "kind": file.kind, "place": file.place, "bytes": file.size, "blake3": file.blake3}
            for file in manifest.files
        ],
        "excluded": list(manifest.excluded),
        "ledger": {"schema_version": manifest.schema_version, "rows": dict(manifest.rows)} if manifest.rows else None,
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_backup_lines)


def _backup_lines(result: dict[str, Any]) -> list[str]:
    from ductile.core.units import format_size

    verb = "would write" if result["dry_run"] else f"wrote and verified {format_size(result['bytes'])} in"
    kinds = [file["kind"] for file in result["files"]]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    lines = [f"{verb} {result['archive']}: {len(kinds)} files ({counts})"]
    return lines + [f"  excluded: {reason}" for reason in result["excluded"]]


@click.command("restore")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace existing files; they are saved next to the target.")
@click.option("--outside", is_flag=True, help="Also restore files outside the configuration directory.")
@options.config
@options.dry_run
@options.as_json
def restore(archive: Path, replace: bool, outside: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Restore an archive of `system backup` to the same or another directory.

    The archive is verified completely before anything is written. Restoring fails if the service is running or the
    target exists. Files outside the configuration directory are restored only with --outside. An archive of the
    configuration alone is restored as by `config restore`.

    Example: ductile system restore monday.tar.gz --config-dir ./restored
    """
    from datetime import UTC, datetime

    from ductile.cli.config.group import default_directory
    from ductile.ops.backup.restore import restore as restore_archive

    chosen = options.selected_config(where["config_path"], where["config_dir"]) or default_directory()
    done = restore_archive(
        archive, chosen, now=datetime.now(UTC), replace=replace, outside=outside, progress=Progress(), dry_run=dry_run
    )
    output.show(done.as_data(), as_json=as_json, human=_restore_lines)


def _restore_lines(result: dict[str, Any]) -> list[str]:
    verb = "would restore" if result["dry_run"] else "restored"
    lines = [f"{verb} {result['directory']} from a backup of {result['made_at']}: {len(result['files'])} files"]
    lines += [f"  ledger: {result['ledger']}"] if result["ledger"] else []
    lines += [f"  outside: {path}" for path in result["outside"]]
    lines += [f"  saved the replaced files in {path}" for path in result["kept"]]
    return lines + [f"  {warning}" for warning in result["warnings"]]


class Progress:
    """Prints the progress of a long copy to the terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_PROGRESS_SECONDS

    def __call__(self, what: str, done: int, total: int) -> None:
        if sys.stderr.isatty() and total and time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_INTERVAL
            print(f"{what}: {100 * done // total} %", file=sys.stderr, flush=True)
