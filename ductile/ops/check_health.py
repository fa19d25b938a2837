"""Judge the health of an instance from outside the process of its service."""

from datetime import datetime
from pathlib import Path

from ductile.core.instance.lock import LOCK_NAME, read_holder
from ductile.explain.health import Health, judge_health, loaded_plugins, read_health_facts
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.lock_holder import LockHolder, find_lock_holder
from ductile.web.server.listeners import is_socket_left


def check_health(db: Db, ledger: Path, *, is_running: bool, is_degraded: bool = False, now: datetime) -> Health:
    """Return the verdict about the instance of this ledger. `is_degraded` is what its running service reports."""
    facts = read_health_facts(
        db,
        loaded_plugins(db),
        now=now,
        is_running=is_running,
        was_killed=not is_running and is_socket_left(ledger.parent),
        is_stuck=is_degraded,
        lock_holder=_foreign_writer(ledger),
    )
    return judge_health(facts)


def _foreign_writer(ledger: Path) -> LockHolder | None:
    """Return the process that has locked the ledger, unless it is the service."""
    holder = find_lock_holder(ledger)
    return None if holder is None or holder.pid == read_holder(ledger.parent / LOCK_NAME)[0] else holder
