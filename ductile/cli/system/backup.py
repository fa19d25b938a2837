"""`ductile system backup` and `restore`: everything a service stands on as one file, and back."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

QUIET_SECONDS, PAUSE_SECONDS = 2.0, 2.0
SCOPES = ("db", "config", "plugins", "all")


@click.command("backup")
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="The archive, a new .tar.gz file.")
@click.option("--scope", type=click.Choice(SCOPES), default="all", show_default=True, help="How much is taken.")
@options.config
@options.dry_run
@options.as_json
def backup(target: Path, scope: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Write everything that is loaded into one private archive, while the service runs or not, and verify it.

    Scope db has the ledger; config also has every loaded file, the scope files and the seal; plugins also the plugins'
    directories; all also the `.env` files. The archive holds secrets, as the files do: keep it where you keep those.

    Example: ductile system backup --to monday.tar.gz
    """
    from datetime import UTC, datetime

    from ductile.ops.archive_manifest import BackupScope
    from ductile.ops.backup import back_up

    explicit = options.chosen(where["config_path"], where["config_dir"])
    done = back_up(explicit, target, BackupScope(scope), now=datetime.now(UTC), tell=Teller(), dry_run=dry_run)
    manifest = done.manifest
    result = {
        "archive": str(done.path),
        "bytes": done.bytes,
        "scope": scope,
        "verified": not dry_run,
        "made_at": manifest.made_at,
        "version": manifest.version,
        "source": manifest.source,
        "files": [
            {"name": one.name, "kind": one.kind, "place": one.place, "bytes": one.size, "blake3": one.blake3}
            for one in manifest.files
        ],
        "excluded": list(manifest.excluded),
        "ledger": {"schema_version": manifest.schema_version, "rows": dict(manifest.rows)} if manifest.rows else None,
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_backup_lines)


def _backup_lines(result: dict[str, Any]) -> list[str]:
    from ductile.core.units import format_size

    verb = "would write" if result["dry_run"] else f"wrote and verified {format_size(result['bytes'])} in"
    kinds = [one["kind"] for one in result["files"]]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    lines = [f"{verb} {result['archive']}: {len(kinds)} files ({counts})"]
    return lines + [f"  not in it: {reason}" for reason in result["excluded"]]


@click.command("restore")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Put it in the place of what is there, which is kept beside it.")
@click.option("--outside", is_flag=True, help="Also put back what lay outside the directory of the configuration.")
@options.config
@options.dry_run
@options.as_json
def restore(archive: Path, replace: bool, outside: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Put what an archive of `system backup` holds in place, into the same directory or another one.

    The archive is verified whole before anything is touched; a running service or a place that is taken is refused.
    What has an absolute path outside the directory of the configuration goes back there, with --outside only.

    Example: ductile system restore monday.tar.gz --config-dir ./restored
    """
    from datetime import UTC, datetime

    from ductile.cli.config.group import default_directory
    from ductile.ops.restore import restore as restore_archive

    chosen = options.chosen(where["config_path"], where["config_dir"]) or default_directory()
    done = restore_archive(
        archive, chosen, now=datetime.now(UTC), replace=replace, outside=outside, tell=Teller(), dry_run=dry_run
    )
    output.show(done.as_data(), as_json=as_json, human=_restore_lines)


def _restore_lines(result: dict[str, Any]) -> list[str]:
    verb = "would restore" if result["dry_run"] else "restored"
    lines = [f"{verb} {result['directory']} from a backup of {result['made_at']}: {len(result['files'])} files"]
    lines += [f"  ledger: {result['ledger']}"] if result["ledger"] else []
    lines += [f"  outside: {path}" for path in result["outside"]]
    lines += [f"  what was there is kept in {path}" for path in result["kept"]]
    return lines + [f"  {warning}" for warning in result["warnings"]]


class Teller:
    """Says on a terminal's stderr how far a long copy is; a short one says nothing."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET_SECONDS

    def __call__(self, what: str, done: int, total: int) -> None:
        if sys.stderr.isatty() and total and time.monotonic() >= self._next:
            self._next = time.monotonic() + PAUSE_SECONDS
            print(f"{what}: {100 * done // total} %", file=sys.stderr, flush=True)
