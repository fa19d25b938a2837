"""The options of every command of the exchange. Their default configuration is `.ductile` in the working directory."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ductile.cli.base import options

Command = TypeVar("Command", bound=Callable[..., Any])


def config(command: Command) -> Command:
    """Add `--config` and `--config-dir`. If neither is given, `.ductile` of `exchange serve` is used, if it exists."""

    @wraps(command)
    def run(*args: Any, **params: Any) -> Any:
        if params["config_path"] is None and params["config_dir"] is None:
            params["config_path"] = options.served_here()
        return command(*args, **params)

    return options.config(run)  # type: ignore[return-value]


def service(command: Command) -> Command:
    """Add the options of commands that use the service."""
    for option in (options.as_json, options.service, config):
        command = option(command)
    return command


def change(command: Command) -> Command:
    """Add the options of commands that change what is stored, through the service."""
    return service(options.dry_run(command))
