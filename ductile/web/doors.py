"""Where a configuration has the service listen: opened at a start, tried by its rehearsal, compared at a reload.

Knows which doors there are; how one is opened is `listen`'s.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ductile.config.load import Config
from ductile.errors import RestartNeeded
from ductile.web.listen import Door, bound_tcp, local_socket_path, open_tcp, open_unix, require_free_socket


@contextmanager
def open_doors(config: Config) -> Iterator[list[Door]]:
    """The addresses, bound: a port that is taken is a plain error, before anything runs."""
    settings = config.settings
    with ExitStack() as opened:
        doors = [open_unix(local_socket_path(settings.state.path.parent))]
        opened.callback(doors[0].close)
        if _listens(config):
            doors.insert(0, open_tcp(settings.api.listen))
            opened.callback(doors[0].close)
        yield doors


@contextmanager
def open_webhook_door(config: Config) -> Iterator[list[Door]]:
    """The address for deliveries, if there is anything to deliver to."""
    with ExitStack() as opened:
        doors = []
        if listen := _listens_for_webhooks(config):
            doors.append(open_tcp(listen))
            opened.callback(doors[0].close)
        yield doors


def require_free_doors(config: Config) -> None:
    """Raises what would keep these doors from being opened now. Nobody can come in meanwhile, and no file is made."""
    require_free_socket(local_socket_path(config.settings.state.path.parent))
    with ExitStack() as bound:  # together: two names may mean one address
        if _listens(config):
            bound.enter_context(bound_tcp(config.settings.api.listen))
        if listen := _listens_for_webhooks(config):
            bound.enter_context(bound_tcp(listen))


def require_same_places(old: Config, new: Config) -> None:
    """Where the ledger is, how it is written and where the service listens cannot change while it runs."""
    fixed = {
        "service.synchronous": (old.settings.service.synchronous, new.settings.service.synchronous),
        "service.log_format": (old.settings.service.log_format, new.settings.service.log_format),
        "state.path": (old.settings.state.path, new.settings.state.path),
        "api.enabled": (_listens(old), _listens(new)),
        "api.listen": (old.settings.api.listen, new.settings.api.listen),
        "api.max_body_size": (old.settings.api.max_body_size, new.settings.api.max_body_size),
        "webhooks.listen": (_listens_for_webhooks(old), _listens_for_webhooks(new)),
        "remote_ingress.listen_path": (_listens_for_peers(old), _listens_for_peers(new)),
        "remote_ingress.max_body_size": (_takes_from_peers(old), _takes_from_peers(new)),
    }
    moved = [
        new.complaint("cannot change while the service runs; restart it", path, "service")
        for path, (was, now) in fixed.items()
        if was != now
    ]
    if moved:
        raise RestartNeeded(moved)


def _listens(config: Config) -> bool:
    """Whether the API's address is open: for callers, or for peers alone, who need no token there."""
    return config.settings.api.enabled or config.settings.remote_ingress is not None


def _listens_for_webhooks(config: Config) -> str | None:
    section = config.settings.webhooks
    return section.listen if section.endpoints else None


def _listens_for_peers(config: Config) -> str | None:
    ingress = config.settings.remote_ingress
    return ingress.listen_path if ingress else None


def _takes_from_peers(config: Config) -> int | None:
    ingress = config.settings.remote_ingress
    return ingress.max_body_size if ingress else None
