"""Counts and records of rejected requests and repeated deliveries.

The journal has one row per kind, subject and minute, and the ledger a limited number of records per path and minute, so
that neither memory nor disk use depends on the number of requests. The runtime runs the writer task.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, TypeAlias

import trio
from attrs import define, field

from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerError
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal
from ductile.ledger.webhooks import deliveries as webhook_deliveries
from ductile.ledger.webhooks.deliveries import DeliveryRecord

AUTH_REFUSED, AUTH_LIMITED = "auth.refused", "auth.limited"
OF_ACTORS = (AUTH_REFUSED, AUTH_LIMITED)
"""Requests without a valid token or the scope, and requests over a limit. Their subject is the actor."""
REFUSED, REPEATED, PING = "webhook.refused", "webhook.repeated", "webhook.ping"
MAX_RECORDED_PER_PATH = 10
"""Refused deliveries of a path, and repeated ones, that are recorded within WRITE_INTERVAL."""
RECORD_TIMEOUT = 1.0
"""The most seconds for which a busy ledger delays the response to a refused delivery."""
WRITE_INTERVAL = 60.0
MAX_LABELS = 8
MAX_ACTORS = 50
"""Actors with counts of their own, between two writes."""
OTHERS = "others"
FINAL_WRITE_TIMEOUT = 5.0

Counts: TypeAlias = dict[tuple[str, str], Counter[str]]
JournalRow: TypeAlias = tuple[str, str | None, dict[str, Any]]


@define(eq=False)
class RejectionCounter:
    """Counts by journal kind and path or actor. A label is the reason of a rejection, or the key of a repeat."""

    ledger: Ledger
    clock: Clock
    warn: Callable[[str], None] = lambda _: None
    _counts: Counts = field(factory=dict)
    _since: datetime | None = None
    _records: list[DeliveryRecord] = field(factory=list)
    _recorded: Counter[tuple[str, str]] = field(factory=Counter)
    """Records by path and verdict since `_recorded_since`."""
    _recorded_since: float = -inf
    _has_entries: trio.Event = field(factory=trio.Event)

    def count(self, kind: str, path: str, label: str, number: int = 1) -> None:
        """Count a request. The journal has it within a minute."""
        self._since = self._since or self.clock.now()
        labels = self._counts.setdefault((kind, path), Counter())
        labels[label if label in labels or len(labels) < MAX_LABELS else OTHERS] += number
        self._has_entries.set()

    def count_refusal(self, actor: str, reason: str, number: int = 1, *, kind: str = AUTH_REFUSED) -> None:
        """Count a refused request of the actor. Actors beyond MAX_ACTORS are counted together."""
        is_full = len(self._counts) >= MAX_ACTORS and (kind, actor) not in self._counts
        self.count(kind, OTHERS if is_full else actor, reason, number)

    def record(self, record: DeliveryRecord) -> None:
        """Add a record to those that `write_records` stores, up to MAX_RECORDED_PER_PATH per path and minute."""
        if trio.current_time() - self._recorded_since >= WRITE_INTERVAL:
            self._recorded, self._recorded_since = Counter(), trio.current_time()
        self._recorded[record.path, record.verdict] += 1
        if self._recorded[record.path, record.verdict] <= MAX_RECORDED_PER_PATH:
            self._records.append(record)
            self._has_entries.set()

    async def write_records(self) -> None:
        """Store the records: they can be read when it returns. If the ledger is busy or full, they are dropped."""
        records, self._records = self._records, []
        if not records:
            return
        try:
            with trio.fail_after(RECORD_TIMEOUT):
                await self.ledger.transact(partial(webhook_deliveries.put_latest, deliveries=records), wait=False)
        except (LedgerError, trio.TooSlowError) as error:
            self.warn(f"cannot store refused deliveries: {str(error) or 'the ledger is busy'}")

    async def run(self) -> None:
        """Write to the ledger until cancelled: records and the first counts at once, later counts once a minute."""
        next_count = -inf
        try:
            while True:
                with trio.move_on_at(next_count if self._counts else inf):
                    await self._has_entries.wait()
                self._has_entries = trio.Event()
                await self.write_records()
                if self._counts and trio.current_time() >= next_count:
                    next_count = trio.current_time() + WRITE_INTERVAL
                    await self._write_counts()
        finally:
            with trio.move_on_after(FINAL_WRITE_TIMEOUT, shield=True):
                await self.write_records()
                await self._write_counts()

    async def _write_counts(self) -> None:
        counts, since, now = self._counts, self._since, self.clock.now()
        if not counts or since is None:
            return
        self._counts, self._since = {}, None
        rows = [_journal_row(kind, subject, labels, since) for (kind, subject), labels in counts.items()]
        try:
            await self.ledger.write(_append, rows, now=now)
        except LedgerError as error:
            self.warn(f"cannot count rejected deliveries: {error}")
            self._restore(counts, since)
            return
        for kind, actor, content in rows:
            if kind.endswith((".refused", ".limited")):  # repeated deliveries are normal and not logged
                why = "; ".join(f"{number} × {label}" for label, number in content["why"].items())
                self.warn(f"rejected: {actor}: {why}" if actor else f"rejected at {content['path']}: {why}")

    def _restore(self, counts: Counts, since: datetime) -> None:
        for (kind, subject), labels in counts.items():
            count = partial(self.count_refusal, kind=kind) if kind in OF_ACTORS else partial(self.count, kind)
            for label, number in labels.items():
                count(subject, label, number)
        self._since = since


def _journal_row(kind: str, subject: str, labels: Counter[str], since: datetime) -> JournalRow:
    """Return kind, actor and data of the row. The subject is the actor of a refused request, else a path."""
    data = {"count": labels.total(), "why": dict(labels), "since": to_text(since)}
    if kind in OF_ACTORS:
        return kind, subject, data
    return kind, None, {"path": subject, **data}


def _append(db: Db, rows: list[JournalRow], *, now: datetime) -> None:
    for kind, actor, content in rows:
        journal.append(db, kind, now=now, data=content, actor=actor)
