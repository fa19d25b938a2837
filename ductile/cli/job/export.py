"""`ductile job export`: turn a job into a test fixture of its plugin."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid


@click.command("export")
@options.job_id
@click.option("--fixture", "as_fixture", is_flag=True, help="Export as a fixture for `ductile plugin test` (required).")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Write to this new file or into this directory.")
@options.config
@options.dry_run
@options.as_json
def export(job_id: str, as_fixture: bool, target: Path | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Export the request and the response of a job as a fixture. Prints it, or writes a file with --to.

    Times and ids in the response become patterns. Known secrets are masked. Review the fixture before you share it:
    secrets inside payloads are not recognised.

    Example: ductile job export 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --fixture --to plugins/disk/fixtures
    """
    import json
    import os

    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load
    from ductile.core.files import require_writable, write_private
    from ductile.devkit.fixtures.export import export_fixture
    from ductile.ledger.storage.open_file import open_reader

    if not as_fixture:
        raise UsageInvalid("--fixture is required", hint="Add --fixture.")
    config = load(find_config(options.selected_config(where["config_path"], where["config_dir"]), os.environ).path)
    with open_reader(config.settings.state.path) as db:
        exported = export_fixture(db, job_id, config)
    if target is None:
        click.echo(output.format_json(exported.content))
        return
    file = target / exported.name if target.is_dir() else target
    if os.path.lexists(file):
        raise UsageInvalid(f"{file} already exists", hint="Choose another name with --to.")
    require_writable(file.parent)
    if not dry_run:
        write_private(file, json.dumps(exported.content, indent=2, ensure_ascii=False).encode() + b"\n", mode=0o644)
    shown = {"job_id": job_id, "path": str(file), "dry_run": dry_run, "fixture": exported.content}
    verb = "would write" if dry_run else "wrote"
    output.show(shown, as_json=as_json, human=lambda _: [f"{verb} {file}", *exported.content["notes"]])
