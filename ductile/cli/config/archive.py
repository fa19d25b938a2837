"""`ductile config backup` and `restore`: the configuration as one file, and back."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.editing import draft_of


@click.command("backup")
@click.option("--output", "target", type=click.Path(path_type=Path), help="Default: backup-TIME.tar.gz beside it.")
@options.config
@options.dry_run
@options.as_json
def backup(target: Path | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Write the configuration into a private tar.gz: its files, scopes, seal, and the plugins in its directory.

    It holds secrets as the files do. The ledger is not in it; `ductile system backup` takes everything.

    Example: ductile config backup --output monday.tar.gz
    """
    from ductile.config.seal.archive import collect, write_archive

    now, draft = datetime.now(UTC), draft_of(given)
    path = Path(os.path.abspath(target or draft.root.parent / f"backup-{now:%Y%m%dT%H%M%S}.tar.gz"))
    collected = collect(draft)
    size = None if dry_run else write_archive(path, collected.members, now=now)
    result = {
        "archive": str(path),
        "bytes": size,
        "files": sorted(collected.members),
        "excluded": [str(one) for one in collected.excluded],
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_backup_lines)


def _backup_lines(result: dict[str, Any]) -> list[str]:
    verb = "would write" if result["dry_run"] else "wrote"
    lines = [f"{verb} {result['archive']}: {len(result['files'])} files"]
    return lines + [f"not in it, because it lies elsewhere: {path}" for path in result["excluded"]]


@click.command("restore")
@click.argument("archive", type=click.Path(path_type=Path))
@options.config
@options.dry_run
@options.as_json
def restore(archive: Path, config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool) -> None:
    """Put the configuration of an archive in place and seal it. What was there is kept in another archive.

    The archive is read and tried out whole before anything is written. At most 2048 files, 10 MiB each, 50 MiB in all.

    Example: ductile config restore monday.tar.gz --config-dir ./my-config
    """
    from ductile.cli.config.group import default_directory
    from ductile.config.seal import restore as restoring

    chosen = options.chosen(config_path, config_dir) or default_directory()
    directory = Path(os.path.abspath(chosen.expanduser()))
    if directory.is_file():
        directory = directory.parent
    done = restoring.restore(archive, directory, now=datetime.now(UTC), dry_run=dry_run)
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
    lines = [f"{verb} {name}" for name in result["files"]] or ["everything is as in the archive"]
    lines += [f"what was there is in {result['saved']}"] if result["saved"] else []
    return lines if result["dry_run"] else [*lines, f"restored and sealed {result['directory']}"]
