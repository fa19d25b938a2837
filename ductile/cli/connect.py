"""From the flags of a command to what it works with: the ledger's file, or the running service."""

import os
from pathlib import Path

from ductile.cli.client import Client


def ledger_path(explicit: Path | None) -> Path:
    """Where the ledger of this configuration is."""
    from ductile.config.load import load
    from ductile.config.sources import find

    return load(find(explicit, os.environ).path).settings.state.path


def client(explicit: Path | None, api_url: str | None, api_key: str | None) -> Client:
    """The service at the named address, or else the one that runs this configuration, through its local socket."""
    if api_url:
        return Client(url=api_url, key=api_key or os.environ.get("DUCTILE_API_KEY"))
    from ductile.web.listen import local_socket_path

    return Client(local_socket_path(ledger_path(explicit).parent))
