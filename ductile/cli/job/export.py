"""`ductile job export`: what a job asked and what it was answered, for others to try again."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid


@click.command("export")
@click.argument("job_id")
@click.option("--fixture", "as_fixture", is_flag=True, help="As a fixture for `ductile plugin test`; the one form.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Write it to this new file, or into this folder.")
@options.config
@options.dry_run
@options.as_json
def export(job_id: str, as_fixture: bool, target: Path | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Make a fixture of a job that has run: its request and its answer, without secrets. Prints it, or writes a file.

    Times and ids in the answer become patterns. Look through it before you share it: what a payload holds is not
    known to be a secret.

    Example: ductile job export 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --fixture --to plugins/disk/fixtures
    """
    import json
    import os

    from ductile.config.load.load import load
    from ductile.config.load.sources import find
    from ductile.core.files import require_writable, write_private
    from ductile.devkit.fixtures.export import export_fixture
    from ductile.ledger.storage.open_file import open_reader

    if not as_fixture:
        raise UsageInvalid("export it as what?", hint="add --fixture")
    config = load(find(options.chosen(where["config_path"], where["config_dir"]), os.environ).path)
    with open_reader(config.settings.state.path) as db:
        exported = export_fixture(db, job_id, config)
    if target is None:
        click.echo(output.as_text(exported.content))
        return
    file = target / exported.name if target.is_dir() else target
    if os.path.lexists(file):
        raise UsageInvalid(f"{file} is already there", hint="choose another name with --to")
    require_writable(file.parent)
    if not dry_run:
        write_private(file, json.dumps(exported.content, indent=2, ensure_ascii=False).encode() + b"\n", mode=0o644)
    shown = {"job_id": job_id, "path": str(file), "dry_run": dry_run, "fixture": exported.content}
    verb = "would write" if dry_run else "wrote"
    output.show(shown, as_json=as_json, human=lambda _: [f"{verb} {file}", *exported.content["notes"]])
