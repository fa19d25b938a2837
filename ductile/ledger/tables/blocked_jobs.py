"""Queued jobs that may not start: the breaker of their command is open, or their plugin cannot run.

Owns `blocked_reason` of both kinds. The breaker rule is a pure function that the caller passes in. Jobs of a plugin
that cannot run only get the reason: the dispatcher leaves that plugin out of `free`.
"""

from datetime import datetime, timedelta

from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerChange, GateRule, Held, Job, JobStatus
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using
from ductile.ledger.tables import journal

BREAKER_OPEN = "the circuit breaker of its command is open"
"""Stored in the rows, and the key by which `unblock_command` finds them."""
MAX_BLOCKED_AT_ONCE = 1000
MIN_EXTRA_WAIT, MAX_EXTRA_WAIT = timedelta(seconds=30), timedelta(minutes=10)
JOB_STATUS = "SELECT status FROM job_queue WHERE id = ?"


def check_breaker(db: Db, rule: GateRule, breaker: Breaker, job: Job, *, now: datetime) -> Held | BreakerChange | None:
    """Apply the rule to the next job to start. Return Held if it may not start, or a change to the breaker, or None."""
    row = db.execute(JOB_STATUS, (breaker.probe_job_id,)).fetchone() if breaker.probe_job_id else None
    return rule(breaker, job, JobStatus(row[0]) if row else None, now)


BLOCK_COMMAND = """
    UPDATE job_queue
       SET lane = NULL, next_retry_at = CASE WHEN id = :head THEN :until ELSE :others_until END, failed_at = :now,
           blocked_reason = :reason
     WHERE seq IN (SELECT seq FROM job_queue WHERE lane = :plugin AND command = :command ORDER BY seq LIMIT :most)
"""
COUNT_NEWLY_BLOCKED = """
    SELECT COUNT(*) FROM (SELECT blocked_reason FROM job_queue
                           WHERE lane = :plugin AND command = :command ORDER BY seq LIMIT :most)
     WHERE blocked_reason IS NOT :reason
"""


def block_command(db: Db, job: Job, held: Held, *, now: datetime) -> None:
    """Delay the ready jobs of this command, up to MAX_BLOCKED_AT_ONCE per call; journal the newly blocked ones once.

    `job` is the oldest of them and becomes due first, as the probe. The others wait longer, until the probe has ended.
    """
    until = held.until or now
    extra_wait = min(max(until - now, MIN_EXTRA_WAIT), MAX_EXTRA_WAIT)
    values = {
        "plugin": job.plugin,
        "command": job.command,
        "head": job.id,
        "until": to_text(until),
        "others_until": to_text(until + extra_wait),
        "now": to_text(now),
        "reason": BREAKER_OPEN,
        "most": MAX_BLOCKED_AT_ONCE,
    }
    newly_blocked: int = db.execute(COUNT_NEWLY_BLOCKED, values).fetchone()[0]
    db.execute(BLOCK_COMMAND, values)
    if newly_blocked:
        data = {"command": job.command, "reason": held.message, "until": values["until"], "jobs": newly_blocked}
        journal.append(db, "queue.held", now=now, plugin=job.plugin, data=data)


UNBLOCK_COMMAND = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin, blocked_reason = NULL
     WHERE next_retry_at IS NOT NULL AND plugin = ? AND command = ? AND blocked_reason = ?
"""


def unblock_command(db: Db, plugin: str, command: str) -> None:
    """Make all jobs that the breaker of this command has blocked ready again."""
    db.execute(UNBLOCK_COMMAND, (plugin, command, BREAKER_OPEN))


# The breaker finds its jobs by their reason, so that reason is never overwritten. Relay jobs (`core.*`) have no plugin.
_BLOCKED_BY_PLUGIN = "status = 'queued' AND blocked_reason IS DISTINCT FROM :held AND substr(plugin, 1, 5) <> 'core.'"
SET_BLOCK_REASON = f"""
    UPDATE job_queue {using("job_queue_by_status")} SET blocked_reason = :reason
     WHERE {_BLOCKED_BY_PLUGIN} AND blocked_reason IS DISTINCT FROM :reason AND plugin = :plugin
"""
BLOCKED_PLUGINS = f"""
    SELECT DISTINCT plugin FROM job_queue {using("job_queue_by_status")}
     WHERE {_BLOCKED_BY_PLUGIN} AND blocked_reason IS NOT NULL ORDER BY plugin
"""
CLEAR_BLOCK_REASON = f"""
    UPDATE job_queue {using("job_queue_by_status")} SET blocked_reason = NULL
     WHERE {_BLOCKED_BY_PLUGIN} AND blocked_reason IS NOT NULL AND plugin = :plugin
"""


def set_block_reason(db: Db, plugin: str, reason: str) -> int:
    """Store why the plugin's queued jobs do not start. Return the number of changed jobs."""
    return db.execute(SET_BLOCK_REASON, {"plugin": plugin, "reason": reason, "held": BREAKER_OPEN}).rowcount


def blocked_plugins(db: Db) -> list[str]:
    """List the plugins whose queued jobs have a reason. Takes time in proportion to the queued jobs."""
    return [plugin for (plugin,) in db.execute(BLOCKED_PLUGINS, {"held": BREAKER_OPEN})]


def clear_block_reason(db: Db, plugin: str) -> int:
    """Remove the reason from the plugin's queued jobs. Return the number of changed jobs."""
    return db.execute(CLEAR_BLOCK_REASON, {"plugin": plugin, "held": BREAKER_OPEN}).rowcount
