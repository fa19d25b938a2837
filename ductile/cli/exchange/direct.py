"""Publish while no service runs: one transaction in the ledger, under the lock of the instance."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import evolve

from ductile.config.files.sources import find_config
from ductile.config.load.load import load
from ductile.config.sections.settings import Settings
from ductile.core.clock import Clock
from ductile.core.instance.actors import process_actor
from ductile.core.instance.lock import instance_lock
from ductile.core.message import MessageState, NewMessage, checked_message, default_reply_topics
from ductile.ledger.exchange.publish import publish
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ledger.storage.sync_ledger import SyncLedger, open_sync_ledger, run_sync
from ductile.web.api.exchange.requests import ExchangeDisabled
from ductile.web.views.exchange import published_view


def publish_directly(message: Mapping[str, Any], config: Path | None, *, is_dry_run: bool) -> dict[str, Any]:
    """Write the message and return what the service would. A dry run only checks it.

    Raises AlreadyRunning if another process holds the lock.
    """
    settings = _settings(config)
    new = _new_message(message, settings.exchange.max_body_size)
    if is_dry_run:
        return _dry_run_view(new)
    now = Clock().now()
    with writable_ledger(config) as ledger:
        write = ledger.write(publish, [new], now=now, actor=process_actor(), rules=settings.exchange.rules_of)
        (published,) = run_sync(write)
    return dict(published_view(published))


@contextmanager
def writable_ledger(config: Path | None) -> Iterator[SyncLedger]:
    """Open the ledger under the lock of the instance. Raises AlreadyRunning if another process holds it."""
    path = _settings(config).state.path
    make_private_directory(path.parent)
    with instance_lock(path.parent, path, now=Clock().now()), open_sync_ledger(path) as ledger:
        yield ledger


def _settings(config: Path | None) -> Settings:
    settings = load(find_config(config, os.environ).path).settings
    if not settings.exchange.enabled:
        raise ExchangeDisabled
    return settings


def _new_message(message: Mapping[str, Any], max_body_size: int) -> NewMessage:
    fields = {name: value for name, value in message.items() if name != "track"}
    new = checked_message(**{"topic": None, "body": None, **fields}, max_body_size=max_body_size)
    return evolve(new, reply_topics=default_reply_topics(new.topic) if message.get("track") else None)


def _dry_run_view(new: NewMessage) -> dict[str, Any]:
    return {
        "message_id": None,
        "conversation_id": new.conversation_id,
        "topic": new.topic,
        "seq": None,
        "state": MessageState.DELAYED if new.delay else MessageState.READY,
        "dry_run": True,
    }
