"""The journal of the service itself: starts, stops, stops without a record because the process was killed, reloads."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.instance.actors import SERVICE
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot

MAX_JOB_IDS = 20
"""Jobs that the entry of a recovery names."""
STARTED, STOPPED, RECOVERED = "system.started", "system.stopped", "system.recovered"
RELOADED, EDITED = "config.reloaded", "config.edited"


@frozen(kw_only=True)
class Downtime:
    """A time without a service. `ended_at` is None while none has started; `reason` is None after an unclean stop."""

    started_at: datetime
    ended_at: datetime | None
    reason: str | None

    def covers(self, at: datetime) -> bool:
        return self.started_at <= at and (self.ended_at is None or at < self.ended_at)


# Entries of the service have neither job nor plugin; the partial index holds only those.
_OF_SERVICE = "FROM journal WHERE job_id IS NULL AND plugin IS NULL"
LATEST_CHANGE = f"""
    SELECT kind, data {_OF_SERVICE} AND kind IN ('{STARTED}', '{STOPPED}', '{RECOVERED}') ORDER BY seq DESC LIMIT 1
"""
CHANGES_SINCE = f"""
    SELECT kind, at, data {_OF_SERVICE} AND kind IN ('{STARTED}', '{STOPPED}', '{RECOVERED}') ORDER BY seq
"""


def journal_start(db: Db, *, run_id: str, version: str, pid: int, config_hash: str, actor: str, now: datetime) -> None:
    """Record that the service has started."""
    data = {"run_id": run_id, "version": version, "pid": pid, "config_hash": config_hash}
    journal.append(db, STARTED, now=now, data=data, actor=actor)


def journal_stop(db: Db, *, run_id: str, reason: str, actor: str, now: datetime) -> None:
    """Record that the service stops: all its jobs have ended or are queued again."""
    journal.append(db, STOPPED, now=now, data={"run_id": run_id, "reason": reason}, actor=actor)


def find_unclean_stop(db: Db) -> dict[str, Any] | None:
    """Return the run that started and did not stop, and the time of the last entry it wrote; None after a clean stop.

    Call it before this run writes anything.
    """
    row = db.execute(LATEST_CHANGE).fetchone()
    if row is None or row[0] != STARTED:
        return None
    last = journal.newest_time(db)
    assert last is not None, "the journal has the start"
    return {"run_id": json.loads(row[1])["run_id"], "since": to_text(last)}


def journal_recovery(db: Db, unclean: dict[str, Any], *, job_ids: Sequence[str], now: datetime) -> None:
    """Record that the run before this one was killed, how many of its jobs were recovered, and the first of them."""
    data = {**unclean, "jobs": len(job_ids), "job_ids": list(job_ids[:MAX_JOB_IDS])}
    journal.append(db, RECOVERED, now=now, data=data, actor=SERVICE)


def journal_edit(db: Db, loaded: StoredSnapshot, what: Mapping[str, Any]) -> None:
    """Record who sealed the files that the service has loaded, and `what` differs from those before."""
    journal.append(
        db, EDITED, now=loaded.loaded_at, data={"sealed_at": loaded.sealed_at, **what}, actor=loaded.sealed_by
    )


def journal_reload(db: Db, loaded: StoredSnapshot, *, actor: str) -> None:
    """Record that a reload has put this configuration into use."""
    previous = snapshots.newest(db)
    data = {"config_hash": loaded.config_hash, "previous_hash": previous.config_hash if previous else None}
    journal.append(db, RELOADED, now=loaded.loaded_at, data=data, actor=actor)


def journal_refused_reload(db: Db, *, code: str, error: str, actor: str, now: datetime) -> None:
    """Record that a reload was refused, so that the old configuration stays in use."""
    journal.append(db, "config.reload_refused", now=now, data={"code": code, "error": error}, actor=actor)


LOADS = f"""
    SELECT at, actor {_OF_SERVICE} AND kind IN ('{STARTED}', '{RELOADED}') AND at >= ? ORDER BY seq
"""


def actors_of(db: Db, loaded: Sequence[StoredSnapshot]) -> dict[str, str]:
    """Return who put each configuration into use, by its id. `loaded` is newest first, without gaps."""
    actors: dict[str, str] = {}
    for at, actor in db.execute(LOADS, (to_text(loaded[-1].loaded_at),)) if loaded else ():
        used = next(one for one in loaded if to_text(one.loaded_at) <= at)
        actors.setdefault(used.id, actor)
    return actors


CONFIG_IN_USE = f"""
    SELECT data ->> 'config_hash' {_OF_SERVICE} AND kind IN ('{STARTED}', '{RELOADED}') AND at <= ?
     ORDER BY seq DESC LIMIT 1
"""


def find_config_in_use(db: Db, at: datetime) -> StoredSnapshot | None:
    """Return the configuration that the service used at that time; None if the ledger no longer has it."""
    row = db.execute(CONFIG_IN_USE, (to_text(at),)).fetchone()
    stored = snapshots.loaded_before(db, at)
    return stored if row and stored and stored.config_hash == row[0] else None


def find_downtime(db: Db, at: datetime) -> Downtime | None:
    """Return the time without a service that includes `at`; None if the journal knows of none."""
    return next((downtime for downtime in list_downtimes(db) if downtime.covers(at)), None)


def list_downtimes(db: Db) -> list[Downtime]:
    """Return the times without a service that the journal knows, oldest first."""
    return _pair(db.execute(CHANGES_SINCE))


def _pair(rows: Iterable[tuple[str, str, str]]) -> list[Downtime]:
    """Pair every stop with the start that follows it. A killed service stopped after its last entry."""
    downtimes: list[Downtime] = []
    stopped: tuple[datetime, str | None] | None = None
    for kind, at, text in rows:
        if kind == STARTED:
            if stopped is not None:
                downtimes.append(Downtime(started_at=stopped[0], ended_at=from_text(at), reason=stopped[1]))
            stopped = None
        elif kind == STOPPED:
            stopped = (from_text(at), json.loads(text)["reason"])
        else:
            stopped = (from_text(json.loads(text)["since"]), None)
    if stopped is not None:
        downtimes.append(Downtime(started_at=stopped[0], ended_at=None, reason=stopped[1]))
    return downtimes
