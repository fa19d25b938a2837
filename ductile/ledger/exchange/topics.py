"""What waits on each topic. Read-only."""

from collections.abc import Callable
from datetime import datetime
from itertools import islice

from attrs import evolve, frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.message import RulesOf
from ductile.ledger.exchange.operate import TopicPause, paused_topics
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MAX_TOPICS = 1_000


@frozen(kw_only=True)
class TopicReport:
    """The open messages of a topic. `dead` counts its dead letters that no worker has claimed.

    `last_claimed_at` is None for a topic that no worker has claimed from.
    """

    topic: str
    ready: int = 0
    delayed: int = 0
    waiting: int = 0
    claimed: int = 0
    dead: int = 0
    oldest_ready_at: datetime | None = None
    last_claimed_at: datetime | None = None
    pause: TopicPause | None = None

    @property
    def unclaimed(self) -> int:
        return self.ready + self.delayed + self.waiting


# One index step per topic, however many messages it has.
TOPICS = """
    WITH RECURSIVE known (topic) AS (
        SELECT MIN(topic) FROM messages WHERE topic > :after
        UNION ALL
        SELECT (SELECT MIN(topic) FROM messages WHERE topic > known.topic) FROM known WHERE known.topic IS NOT NULL
    )
    SELECT topic FROM known WHERE topic IS NOT NULL
"""
COUNTS = f"""
    SELECT SUM(lane IS NOT NULL), SUM(available_at IS NOT NULL AND waits = 0), SUM(waits),
           MIN(CASE WHEN lane IS NOT NULL THEN ready_at END)
      FROM deliveries {using("deliveries_unclaimed")} WHERE topic = ? AND claim_id IS NULL
"""
CLAIMED = f"SELECT topic, COUNT(*) FROM claims {using('claims_active')} WHERE status = 'active' GROUP BY topic"
LAST_CLAIMED = "SELECT claimed_at FROM claims WHERE topic = ? ORDER BY seq DESC LIMIT 1"


def topic_reports(
    db: Db,
    rules: RulesOf,
    *,
    after: str = "",
    limit: int = MAX_TOPICS,
    is_wanted: Callable[[str], bool] = lambda _topic: True,
) -> list[TopicReport]:
    """Return the wanted topics that have messages, by name, after the name `after`."""
    names = (name for (name,) in db.execute(TOPICS, {"after": after}))
    return _reports(db, list(islice(filter(is_wanted, names), limit)), rules)


HAS_MESSAGES = "SELECT EXISTS (SELECT 1 FROM messages WHERE topic = ?)"


def topic_report(db: Db, topic: str, rules: RulesOf) -> TopicReport | None:
    """Return the report of one topic; None if it has no messages."""
    return _reports(db, [topic], rules)[0] if db.execute(HAS_MESSAGES, (topic,)).fetchone()[0] else None


def _reports(db: Db, names: list[str], rules: RulesOf) -> list[TopicReport]:
    pauses = {pause.topic: pause for pause in paused_topics(db)}
    claimed = dict(db.execute(CLAIMED).fetchall())
    reports = []
    for name in names:
        letters = rules(name).dead_letter_of(name)
        dead = 0 if letters == name else _count_waiting(db, letters).unclaimed
        report = _count_waiting(db, name)
        reports.append(evolve(report, claimed=claimed.get(name, 0), dead=dead, pause=pauses.get(name)))
    return reports


def _count_waiting(db: Db, topic: str) -> TopicReport:
    ready, delayed, waiting, oldest = db.execute(COUNTS, (topic,)).fetchone()
    last = db.execute(LAST_CLAIMED, (topic,)).fetchone()
    return TopicReport(
        topic=topic,
        ready=ready or 0,
        delayed=delayed or 0,
        waiting=waiting or 0,
        oldest_ready_at=from_text_or_none(oldest),
        last_claimed_at=from_text(last[0]) if last else None,
    )


@frozen(kw_only=True)
class OpenMessages:
    """The open messages of all topics together."""

    ready: int
    claimed: int
    oldest_ready_at: datetime | None


READY = f"SELECT COUNT(*), MIN(ready_at) FROM deliveries {using('deliveries_lanes')} WHERE lane IS NOT NULL"
ACTIVE = f"SELECT COUNT(*) FROM claims {using('claims_active')} WHERE status = 'active'"


def count_open_messages(db: Db) -> OpenMessages:
    """Count the ready and the claimed messages."""
    ready, oldest = db.execute(READY).fetchone()
    (claimed,) = db.execute(ACTIVE).fetchone()
    return OpenMessages(ready=ready, claimed=claimed, oldest_ready_at=from_text_or_none(oldest))
