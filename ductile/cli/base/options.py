"""Options that several commands share."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from ductile.core.errors import UsageInvalid

SERVE_FOLDER = Path(".ductile")
"""Where `exchange serve` has its configuration and its ledger, in its directory."""
Command = TypeVar("Command", bound=Callable[..., Any])
MAX_PAGE_SIZE = 200

_PATH = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
dry_run = click.option("--dry-run", is_flag=True, help="Validate and show the changes without making them.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Print more details.")


def config(command: Command) -> Command:
    """Add `--config FILE|DIR` and its alias `--config-dir`."""
    defaults = "$DUCTILE_CONFIG_DIR, ~/.config/ductile, /etc/ductile"
    where = f"Configuration directory or config.yaml. Default: the first of {defaults}."
    command = click.option("--config-dir", type=_PATH, help="Alias of --config.")(command)
    return click.option("--config", "config_path", type=_PATH, help=where)(command)


def service(command: Command) -> Command:
    """Add `--api-url URL` and `--api-key KEY`, which select a remote service."""
    key = "API token for --api-url. Default: $DUCTILE_API_TOKEN."
    command = click.option("--api-key", help=key)(command)
    return click.option("--api-url", help="Use the service at this URL instead of the local one.")(command)


def page(noun: str) -> Callable[[Command], Command]:
    """Add `--limit` and `--cursor`, which select a page of a list of `noun`."""

    def add(command: Command) -> Command:
        size, maximum = click.IntRange(1, MAX_PAGE_SIZE), f"Maximum number of {noun}."
        command = click.option("--cursor", help="Continue after `next_cursor` of the previous page.")(command)
        return click.option("--limit", type=size, default=50, show_default=True, help=maximum)(command)

    return add


def job_id(command: Command) -> Command:
    """Add the argument JOB_ID: an id, a unique prefix of one, or `last`. The command gets the complete id."""
    return click.argument("job_id")(with_complete_job_id(command))


def with_complete_job_id(command: Command) -> Command:
    """Complete the `job_id` of the command, if it has one."""

    @wraps(command)
    def run(*args: Any, **params: Any) -> Any:
        if params.get("job_id") is not None:
            from ductile.cli.base.connect import complete_job_id

            params["job_id"] = complete_job_id(params["job_id"], params)
        return command(*args, **params)

    return run  # type: ignore[return-value]


def selected_config(config_path: Path | None, config_dir: Path | None) -> Path | None:
    """Return the value of `--config` or `--config-dir`, if given."""
    if config_path is not None and config_dir is not None:
        raise UsageInvalid("--config and --config-dir are mutually exclusive")
    return config_path or config_dir


def served_here() -> Path | None:
    """Return `.ductile` of the working directory if it is this user's and no environment variable selects another."""
    if os.environ.get("DUCTILE_CONFIG_DIR"):
        return None
    try:
        is_own = (SERVE_FOLDER / "config.yaml").stat().st_uid == os.getuid()
    except OSError:
        return None
    return SERVE_FOLDER if is_own else None
