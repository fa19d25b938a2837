"""Jobs that an open breaker keeps from starting: they leave their lane until it may let one through.

The rule that decides is a pure function from outside; it is asked inside the claim, for the plugins whose breakers
concern every job. A breaker that closes puts everything it held back at once.
"""

from datetime import datetime, timedelta

from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerChange, GateRule, Held, Job, JobStatus
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

HELD = "the circuit breaker of its command is open"
MOST_AT_ONCE = 1000
SHORTEST_WAIT, LONGEST_WAIT = timedelta(seconds=30), timedelta(minutes=10)
STATUS = "SELECT status FROM job_queue WHERE id = ?"


def judged(db: Db, rule: GateRule, breaker: Breaker, job: Job, *, now: datetime) -> Held | BreakerChange | None:
    """What the breaker says about the head of a lane: held, or it starts and that changes the breaker, or nothing."""
    row = db.execute(STATUS, (breaker.probe_job_id,)).fetchone() if breaker.probe_job_id else None
    return rule(breaker, job, JobStatus(row[0]) if row else None, now)


HOLD = """
    UPDATE job_queue
       SET lane = NULL, next_retry_at = CASE WHEN id = :head THEN :until ELSE :others_until END, failed_at = :now,
           blocked_reason = :reason
     WHERE seq IN (SELECT seq FROM job_queue WHERE lane = :plugin AND command = :command ORDER BY seq LIMIT :most)
"""
NEW_ONES = """
    SELECT COUNT(*) FROM (SELECT blocked_reason FROM job_queue
                           WHERE lane = :plugin AND command = :command ORDER BY seq LIMIT :most)
     WHERE blocked_reason IS NOT :reason
"""


def hold(db: Db, job: Job, held: Held, *, now: datetime) -> None:
    """The lane's jobs of this command wait, a portion of them at a time; the journal says so in one row for each once.

    The first one, `job`, finds out whether the breaker lets it through. The others wait until it has, or longer.
    """
    until = held.until or now
    longer = min(max(until - now, SHORTEST_WAIT), LONGEST_WAIT)
    values = {
        "plugin": job.plugin,
        "command": job.command,
        "head": job.id,
        "until": to_text(until),
        "others_until": to_text(until + longer),
        "now": to_text(now),
        "reason": HELD,
        "most": MOST_AT_ONCE,
    }
    new: int = db.execute(NEW_ONES, values).fetchone()[0]
    db.execute(HOLD, values)
    if new:
        data = {"command": job.command, "reason": held.words, "until": values["until"], "jobs": new}
        journal.append(db, "queue.held", now=now, plugin=job.plugin, data=data)


RELEASE = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin, blocked_reason = NULL
     WHERE next_retry_at IS NOT NULL AND plugin = ? AND command = ? AND blocked_reason = ?
"""


def release(db: Db, plugin: str, command: str) -> None:
    """What the breaker of this command held is in its lane again."""
    db.execute(RELEASE, (plugin, command, HELD))
