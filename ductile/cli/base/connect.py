"""From the flags of a command to what it works with: the ledger's file, or the running service."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.cli.base import options

if TYPE_CHECKING:
    from ductile.cli.base.client import Client
    from ductile.core.secret import Mask


def ledger_path(explicit: Path | None) -> Path:
    """Where the ledger of this configuration is."""
    from ductile.config.load.ledger_path import ledger_of
    from ductile.config.load.sources import find

    return ledger_of(find(explicit, os.environ).path, os.environ)


def client(explicit: Path | None, api_url: str | None, api_key: str | None) -> "Client":
    """The service at the named address, or else the one that runs this configuration, through its local socket."""
    from ductile.cli.base.client import Client

    if api_url:
        return Client(url=api_url, key=api_key or os.environ.get("DUCTILE_API_KEY"))
    from ductile.web.server.listeners import local_socket_path

    return Client(local_socket_path(ledger_path(explicit).parent))


def running(explicit: Path | None) -> "Client | None":
    """The service that runs this configuration; None if none does, and its files tell as much."""
    import socket

    from ductile.web.server.listeners import local_socket_path

    path = local_socket_path(ledger_path(explicit).parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(path))
        except OSError:
            return None
    from ductile.cli.base.client import Client

    return Client(path)


def ledger_for(where: Mapping[str, Any]) -> Path:
    """The ledger that the flags of a command name."""
    return ledger_path(options.chosen(where["config_path"], where["config_dir"]))


def client_for(where: Mapping[str, Any]) -> "Client":
    """The service that the flags of a command name."""
    explicit = options.chosen(where["config_path"], where["config_dir"])
    return client(explicit, where["api_url"], where["api_key"])


def mask_for(where: Mapping[str, Any]) -> "Mask":
    """Hides the secrets of the configuration that the flags of a command name."""
    from ductile.config.load.secret_scan import mask_of
    from ductile.config.load.sources import find

    return mask_of(find(options.chosen(where["config_path"], where["config_dir"]), os.environ).path, os.environ)
