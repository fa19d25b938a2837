"""The flags that commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ductile.core.errors import UsageInvalid

Command = TypeVar("Command", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
dry_run = click.option("--dry-run", is_flag=True, help="Check everything and show what would change; change nothing.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")


def config(command: Command) -> Command:
    """`--config FILE|DIR` (or `--config-dir DIR`): which configuration to use."""
    usual = "$DUCTILE_CONFIG_DIR, ~/.config/ductile, /etc/ductile"
    where = f"The configuration: its directory or its config.yaml. Default: the first of {usual}."
    command = click.option("--config-dir", type=_PATH, help="The same as --config.")(command)
    return click.option("--config", "config_path", type=_PATH, help=where)(command)


def service(command: Command) -> Command:
    """`--api-url URL --api-key KEY`: another service than the local one."""
    key = "The token for --api-url. Default: $DUCTILE_API_KEY."
    command = click.option("--api-key", help=key)(command)
    return click.option("--api-url", help="Ask the service at this address instead of the local one.")(command)


def chosen(config_path: Path | None, config_dir: Path | None) -> Path | None:
    """The one place that was named, if any."""
    if config_path is not None and config_dir is not None:
        raise UsageInvalid("--config and --config-dir name the same thing; give one of them")
    return config_path or config_dir
