"""What was refused at a door, counted: one row of the journal for each endpoint and minute, however much is sent.

A row says what was refused or came again, and why. Counting never waits and never grows: whoever sends without end
fills neither memory nor disk. The runtime keeps it going beside the listener.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

import trio
from attrs import define, field

from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerError
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables import journal, rejected_deliveries
from ductile.ledger.tables.rejected_deliveries import RejectedDelivery

REFUSED, REPEATED, PING = "webhook.refused", "webhook.repeated", "webhook.ping"
MOST_REFUSED = 10
"""Of each path between two times of writing."""
EVERY_SECONDS = 60.0
MOST_LABELS = 8
OTHERS = "others"
LAST_WORDS_SECONDS = 5.0

Counts: TypeAlias = dict[tuple[str, str], Counter[str]]


@define(eq=False)
class RejectionCounter:
    """Counts by kind and path; `label` is the reason, or the delivery."""

    ledger: Ledger
    clock: Clock
    warn: Callable[[str], None] = lambda _: None
    _counts: Counts = field(factory=dict)
    _refused: dict[str, list[RejectedDelivery]] = field(factory=dict)
    _since: datetime | None = None
    _counted: trio.Event = field(factory=trio.Event)

    def count(self, kind: str, path: str, label: str) -> None:
        """One more of these will be in the journal within a minute."""
        self._since = self._since or self.clock.now()
        labels = self._counts.setdefault((kind, path), Counter())
        labels[label if label in labels or len(labels) < MOST_LABELS else OTHERS] += 1
        self._counted.set()

    def keep_one(self, path: str, describe: Callable[..., RejectedDelivery]) -> None:
        """This refusal will be on record with its headers, unless there were enough of its path in the last minute."""
        kept = self._refused.setdefault(path, [])
        if len(kept) < MOST_REFUSED:
            kept.append(describe(now=self.clock.now()))

    async def keep(self) -> None:
        """Writes until it is cancelled: the first at once, what follows it together."""
        try:
            while True:
                await self._counted.wait()
                await self._write()
                await trio.sleep(EVERY_SECONDS)
        finally:
            with trio.move_on_after(LAST_WORDS_SECONDS, shield=True):
                await self._write()

    async def _write(self) -> None:
        counts, since, now = self._counts, self._since, self.clock.now()
        if not counts or since is None:
            return
        self._counts, self._since, self._counted = {}, None, trio.Event()
        rows = [(kind, _content(path, labels, since)) for (kind, path), labels in counts.items()]
        refused, self._refused = self._refused, {}
        try:
            await self.ledger.write(_append, rows, [one for kept in refused.values() for one in kept], now=now)
        except LedgerError as error:
            self.warn(f"cannot write down what was refused: {error}")
            self._take_back(counts, since)
            self._refused = refused
            return
        for kind, content in rows:
            if kind.endswith(".refused"):  # a repetition is the sender's way to be sure, nothing to worry about
                why = "; ".join(f"{number} × {label}" for label, number in content["why"].items())
                self.warn(f"refused at {content['path']}: {why}")

    def _take_back(self, counts: Counts, since: datetime) -> None:
        for (kind, path), labels in counts.items():
            for label, number in labels.items():
                self.count(kind, path, label)
                self._counts[kind, path][label] += number - 1
        self._since = since


def _content(path: str, labels: Counter[str], since: datetime) -> dict[str, Any]:
    return {"path": path, "count": labels.total(), "why": dict(labels), "since": to_text(since)}


def _append(db: Any, rows: list[tuple[str, dict[str, Any]]], refused: list[RejectedDelivery], *, now: datetime) -> None:
    for kind, content in rows:
        journal.append(db, kind, now=now, data=content)
    rejected_deliveries.put_all(db, refused)
