"""`ductile config backup` and `restore`: the configuration as one archive."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import selected_path
from ductile.core.files import FileMissing


@click.command("backup")
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path),
    help="Archive to write. Default: backup-TIME.tar.gz in the configuration directory.",
)
@options.config
@options.dry_run
@options.as_json
def backup(target: Path | None, dry_run: bool, as_json: bool, **params: Any) -> None:
    """Write the configuration to a private tar.gz: files, scope files, seal, and the plugins in its directory.

    The same as `ductile system backup --only config`. The archive contains secrets, but not the ledger.

    Example: ductile config backup --output monday.tar.gz
    """
    from ductile.ops.backup.create import back_up
    from ductile.ops.backup.manifest import BackupScope

    now, root = datetime.now(UTC), selected_path(params)
    path = Path(os.path.abspath(target or root.parent / f"backup-{now:%Y%m%dT%H%M%S}.tar.gz"))
    if not path.parent.exists():
        raise FileMissing(path, "does not exist")
    done = back_up(root, path, BackupScope.ONLY_CONFIG, now=now, dry_run=dry_run)
    result = {
        "archive": str(path),
        "bytes": done.bytes,
        "files": sorted(file.place for file in done.manifest.files),
        "excluded": [str(excluded) for excluded in done.outside],
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_backup_lines)


def _backup_lines(result: dict[str, Any]) -> list[str]:
    verb = "would write" if result["dry_run"] else "wrote"
    lines = [f"{verb} {result['archive']}: {len(result['files'])} files"]
    return lines + [f"excluded, outside the configuration directory: {path}" for path in result["excluded"]]


@click.command("restore")
@click.argument("archive", type=click.Path(path_type=Path))
@options.config
@options.dry_run
@options.as_json
def restore(archive: Path, config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool) -> None:
    """Restore the configuration from an archive and seal it. The replaced files are saved in another archive.

    The archive is validated completely before anything is written. Limits: 2048 files, 10 MiB each, 50 MiB in total.
    From a full archive of `system backup`, only the files inside the configuration directory are restored.

    Example: ductile config restore monday.tar.gz --config-dir ./my-config
    """
    from ductile.cli.config.group import default_directory
    from ductile.ops.backup.restore_config import restore_configuration

    chosen = options.selected_config(config_path, config_dir) or default_directory()
    directory = Path(os.path.abspath(chosen.expanduser()))
    if directory.is_file():
        directory = directory.parent
    done = restore_configuration(archive, directory, now=datetime.now(UTC), dry_run=dry_run)
    result = {
        "archive": str(archive),
        "directory": str(done.directory),
        "files": list(done.files),
        "saved": str(done.saved) if done.saved else None,
        "sealed": list(done.sealed),
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_restore_lines)


def _restore_lines(result: dict[str, Any]) -> list[str]:
    verb = "would write" if result["dry_run"] else "wrote"
    lines = [f"{verb} {name}" for name in result["files"]] or ["no changes: the files match the archive"]
    lines += [f"saved the replaced files in {result['saved']}"] if result["saved"] else []
    return lines if result["dry_run"] else [*lines, f"restored and sealed {result['directory']}"]
