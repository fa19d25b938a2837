"""Resolve the flags of a command to the configuration, the ledger file and the running service."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ductile.cli.base import options
from ductile.core.errors import NotFound, UsageInvalid

if TYPE_CHECKING:
    from ductile.cli.base.client import Client
    from ductile.config.snapshot import Snapshot
    from ductile.core.secret import Mask
    from ductile.ledger.storage.db import Db

TOKEN_VARIABLES = ("DUCTILE_API_TOKEN", "DUCTILE_API_KEY")
"""Environment variables with the token for --api-url. The original program has the second one."""
LAST_JOB, MIN_PREFIX_LENGTH, UUID_DIGITS = "last", 8, 32
P = ParamSpec("P")
T = TypeVar("T")


def ledger_path(explicit: Path | None) -> Path:
    """Return the path of the ledger of this configuration."""
    from ductile.config.files.ledger_path import find_ledger
    from ductile.config.files.sources import find_config

    return find_ledger(find_config(explicit, os.environ).path, os.environ)


def client(explicit: Path | None, api_url: str | None, api_key: str | None) -> "Client":
    """Return a client of the service at `api_url`, or of the one that runs this configuration."""
    from ductile.cli.base.client import Client

    if api_url:
        found = (os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name))
        return Client(url=api_url, key=api_key or next(found, None))
    from ductile.web.server.listeners import local_socket_path

    return Client(local_socket_path(ledger_path(explicit).parent))


def running_client(explicit: Path | None) -> "Client | None":
    """Return a client of the service that runs this configuration; None if none runs."""
    import socket

    from ductile.web.server.listeners import local_socket_path

    path = local_socket_path(ledger_path(explicit).parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return None
    from ductile.cli.base.client import Client

    return Client(path)


def ledger_for(where: Mapping[str, Any]) -> Path:
    """Return the path of the ledger that the flags select."""
    return ledger_path(options.selected_config(where["config_path"], where["config_dir"]))


def client_for(where: Mapping[str, Any]) -> "Client":
    """Return a client of the service that the flags select."""
    explicit = options.selected_config(where["config_path"], where["config_dir"])
    return client(explicit, where["api_url"], where["api_key"])


def mask_for(where: Mapping[str, Any]) -> "Mask":
    """Return a mask for the secrets of the configuration that the flags select."""
    from ductile.config.files.sources import find_config
    from ductile.config.load.secret_scan import build_mask

    return build_mask(
        find_config(options.selected_config(where["config_path"], where["config_dir"]), os.environ).path, os.environ
    )


def complete_job_id(text: str, where: Mapping[str, Any]) -> str:
    """Return the newest root job for `last`, and the one job whose id begins with a prefix of 8 or more characters.

    Other texts are returned unchanged. Raises NotFound or UsageInvalid if there is not exactly one such job.
    """
    word = text.strip().lower()
    if word != LAST_JOB and not _is_prefix(word):
        return text
    if where.get("api_url"):
        raise UsageInvalid(
            f"{text!r} stands for a job of the local ledger", hint="Use the complete job id with --api-url."
        )
    from ductile.ledger.reports import job_details
    from ductile.ledger.storage.open_file import open_reader

    with open_reader(ledger_for(where)) as db:
        found = job_details.newest_root_ids(db) if word == LAST_JOB else job_details.ids_with_prefix(db, word)
    if not found:
        message = "there are no jobs yet" if word == LAST_JOB else f"no job id begins with {text!r}"
        raise NotFound(message, hint="Run `ductile job list`.")
    if len(found) > 1:
        raise UsageInvalid(f"several job ids begin with {text!r}: {', '.join(found)}", hint="Add more characters.")
    return found[0]


def _is_prefix(word: str) -> bool:
    """True for the beginning of a UUID, with its dashes."""
    is_complete = len(word.replace("-", "")) == UUID_DIGITS
    return len(word) >= MIN_PREFIX_LENGTH and not is_complete and set(word) <= set("0123456789abcdef-")


def load_snapshot(explicit: Path | None) -> "Snapshot":
    """Load the configuration as a service that starts now would use it."""
    from ductile.config.checks.examine import examine
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load
    from ductile.config.snapshot import build_snapshot

    return build_snapshot(examine(load(find_config(explicit, os.environ).path)), os.environ)


def read_ledger(
    snapshot: "Snapshot", function: "Callable[Concatenate[Db, P], T]", *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Return `function(db, …)`; None if there is no ledger yet."""
    from ductile.ledger.storage.open_file import open_reader

    path = snapshot.config.settings.state.path
    if not path.exists():
        return None
    with open_reader(path) as db:
        return function(db, *args, **kwargs)
