"""Counts of rejected requests and repeated deliveries: one journal row per kind, subject and minute.

Counting does not block, and memory and disk use are bounded however many requests arrive. The runtime runs the writer
task.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

import trio
from attrs import define, field

from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerError
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.tables import journal, rejected_deliveries
from ductile.ledger.tables.rejected_deliveries import RejectedDelivery

AUTH_REFUSED, AUTH_LIMITED = "auth.refused", "auth.limited"
"""Requests without a valid token or the scope, and requests over a limit. Their subject is the actor."""
REFUSED, REPEATED, PING = "webhook.refused", "webhook.repeated", "webhook.ping"
MAX_RECORDED_PER_PATH = 10
"""Rejected deliveries recorded with their headers, between two writes."""
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
    _recorded: dict[str, list[RejectedDelivery]] = field(factory=dict)
    _since: datetime | None = None
    _has_counts: trio.Event = field(factory=trio.Event)

    def count(self, kind: str, path: str, label: str) -> None:
        """Count one request. The journal has it within a minute."""
        self._since = self._since or self.clock.now()
        labels = self._counts.setdefault((kind, path), Counter())
        labels[label if label in labels or len(labels) < MAX_LABELS else OTHERS] += 1
        self._has_counts.set()

    def count_refusal(self, actor: str, reason: str, *, kind: str = AUTH_REFUSED) -> None:
        """Count one refused request of the actor. Actors beyond MAX_ACTORS are counted together."""
        is_full = len(self._counts) >= MAX_ACTORS and (kind, actor) not in self._counts
        self.count(kind, OTHERS if is_full else actor, reason)

    def record(self, path: str, describe: Callable[..., RejectedDelivery]) -> None:
        """Record a rejected delivery with its headers, up to MAX_RECORDED_PER_PATH between two writes."""
        recorded = self._recorded.setdefault(path, [])
        if len(recorded) < MAX_RECORDED_PER_PATH:
            recorded.append(describe(now=self.clock.now()))

    async def run(self) -> None:
        """Write counts to the ledger until cancelled: the first at once, later ones once per WRITE_INTERVAL."""
        try:
            while True:
                await self._has_counts.wait()
                await self._write()
                await trio.sleep(WRITE_INTERVAL)
        finally:
            with trio.move_on_after(FINAL_WRITE_TIMEOUT, shield=True):
                await self._write()

    async def _write(self) -> None:
        counts, since, now = self._counts, self._since, self.clock.now()
        if not counts or since is None:
            return
        self._counts, self._since, self._has_counts = {}, None, trio.Event()
        rows = [_journal_row(kind, subject, labels, since) for (kind, subject), labels in counts.items()]
        recorded, self._recorded = self._recorded, {}
        try:
            await self.ledger.write(
                _insert, rows, [delivery for deliveries in recorded.values() for delivery in deliveries], now=now
            )
        except LedgerError as error:
            self.warn(f"cannot store rejected deliveries: {error}")
            self._restore(counts, since)
            self._recorded = recorded
            return
        for kind, actor, content in rows:
            if kind.endswith((".refused", ".limited")):  # repeated deliveries are normal and not logged
                why = "; ".join(f"{number} × {label}" for label, number in content["why"].items())
                self.warn(f"rejected: {actor}: {why}" if actor else f"rejected at {content['path']}: {why}")

    def _restore(self, counts: Counts, since: datetime) -> None:
        for (kind, path), labels in counts.items():
            for label, number in labels.items():
                self.count(kind, path, label)
                self._counts[kind, path][label] += number - 1
        self._since = since


def _journal_row(kind: str, subject: str, labels: Counter[str], since: datetime) -> JournalRow:
    """Return kind, actor and data of the row. The subject is the actor of a refused request, else a path."""
    data = {"count": labels.total(), "why": dict(labels), "since": to_text(since)}
    if kind in (AUTH_REFUSED, AUTH_LIMITED):
        return kind, subject, data
    return kind, None, {"path": subject, **data}


def _insert(db: Any, rows: list[JournalRow], rejected: list[RejectedDelivery], *, now: datetime) -> None:
    for kind, actor, content in rows:
        journal.append(db, kind, now=now, data=content, actor=actor)
    rejected_deliveries.put_all(db, rejected)
