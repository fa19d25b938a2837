"""`ductile exchange serve`: a service with nothing but the exchange and its local socket."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.options import SERVE_FOLDER
from ductile.core.errors import DuctileError

CONFIG = """\
# Configuration of `ductile exchange serve`: the exchange and the local socket. Add sections as needed.
state: {path: state.db}
plugin_roots: [plugins]
service: {name: exchange}
"""


@click.command("serve")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path())
@options.dry_run
@options.as_json
def serve(directory: Path, dry_run: bool, as_json: bool) -> int:
    """Run a service with nothing but the exchange and a local socket, for the programs of this user.

    Configuration and ledger are in `.ductile` of DIRECTORY, which the commands of the exchange find by themselves when
    they run in DIRECTORY. Otherwise the service is that of `ductile system start`.

    Example: ductile exchange serve
    """
    from ductile.cli.system.group import run_service

    folder = directory / SERVE_FOLDER
    if dry_run and not (folder / "config.yaml").exists():
        plan = {"config": str(folder / "config.yaml"), "ledger": str(folder / "state.db"), "dry_run": True}
        output.show(plan, as_json=as_json, human=_plan_lines)
        return 0
    try:
        make_configuration(folder)
        run_service(folder, dry_run=dry_run, as_json=as_json)
    except (DuctileError, BaseExceptionGroup) as error:
        if dry_run or not as_json:
            raise
        return output.fail_on_one_line(error)
    return 0


def _plan_lines(plan: dict[str, Any]) -> list[str]:
    return [f"would make {plan['config']} and {plan['ledger']}"]


def make_configuration(folder: Path) -> None:
    """Write the configuration if the folder has none."""
    from ductile.core import files

    files.make_private_folder(folder / "plugins")
    if not (folder / "config.yaml").exists():
        files.write_private(folder / "config.yaml", CONFIG.encode())
