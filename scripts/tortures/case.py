"""Everything that is known about one torture: three ledgers, and what was seen while it went on.

Reads and indexes; decides nothing. The checker asks.
"""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import frozen

from scripts.tortures.arena import Arena
from scripts.tortures.clients import Acknowledged
from scripts.tortures.play import Role

FINAL = frozenset({"succeeded", "failed", "dead", "skipped"})
FAILURES = frozenset({"failed", "dead"})
LOST_WITH_THE_CORE = "core restart"
CANCELLED = "cancelled: another run of its schedule is due"
STEP_IS_GONE = re.compile(r"pipeline \S+ no longer has step \S+")

Row = Mapping[str, Any]


@frozen
class Effect:
    """One line that a plugin wrote: it began, or it ended well."""

    what: str
    job_id: str
    attempt: int
    event_id: str
    part: str
    """The element of a list that it was told to work on; `-` if none."""
    pid: int
    at: int


def read_effects(path: Path) -> list[Effect]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Effect(what, job, int(n), event, part, int(pid), int(at))
        for what, job, n, event, part, pid, at in map(str.split, lines)
    ]


@frozen(slots=False, eq=False)
class Case:
    """The three ledgers of one torture. What was wrong while it went on is in the last four."""

    ledger: Path
    acknowledged: Sequence[Acknowledged]
    effects: Sequence[Effect]
    deaths: Sequence[str] = ()
    """Moments at which a core was seen to be dead, as the ledger writes moments."""
    claims_kept_until: int | None = None
    """What was claimed later a disk may have forgotten in a power cut; None: there was none."""
    workers: int = 4
    roles: Sequence[Role] = ()
    routes: Sequence[tuple[str, str, str]] = ()
    scripts: Sequence[str] = ()
    """The pipelines that were there."""
    apart: Sequence[str] = ()
    """Pipelines whose runs are looked at elsewhere."""
    prunes: bool = False
    """Whole trees may be gone by now."""
    logs: Sequence[Path] = ()
    stuck: Sequence[str] = ()
    orphans: Sequence[str] = ()
    miscounted: Sequence[str] = ()
    faults: Sequence[str] = ()

    @classmethod
    def of(cls, arena: Arena, acknowledged: Sequence[Acknowledged], **seen: Any) -> "Case":
        return cls(
            ledger=arena.ledger,
            acknowledged=acknowledged,
            effects=read_effects(arena.effects),
            workers=arena.workers,
            roles=arena.roles,
            routes=arena.routes,
            scripts=[script.name for script in arena.scripts],
            prunes="job_queue_retention" in arena.service,
            logs=(arena.log, arena.path / "core.stderr"),
            **seen,
        )

    def rows(self, statement: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(statement)]

    def may_have_been_forgotten(self, start: Effect) -> bool:
        """Whether the disk may have lost the claim of an attempt that began then. A later attempt waits for its own."""
        return self.claims_kept_until is not None and start.attempt == 1 and start.at > self.claims_kept_until

    @cached_property
    def run_again(self) -> Sequence[str]:
        """Jobs whose first attempt was started, forgotten with a power cut, and started once more under its number."""
        firsts = {job_id: [one for one in starts if one.attempt == 1] for job_id, starts in self.starts.items()}
        return [job_id for job_id, once in firsts.items() if len(once) == 2 and self.may_have_been_forgotten(once[0])]

    @cached_property
    def jobs(self) -> Mapping[str, Row]:
        """Job id → its row and its context, in order of arrival."""
        return {row["id"]: row for row in self.rows(JOBS)}

    @cached_property
    def trees(self) -> Mapping[str, list[Row]]:
        """Root id → the rows of its tree, in order of arrival."""
        found: dict[str, list[Row]] = defaultdict(list)
        for job in self.jobs.values():
            found[job["root_job_id"]].append(job)
        return found

    @cached_property
    def attempts(self) -> Mapping[str, list[Row]]:
        """Job id → its log rows, in order."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows(ATTEMPTS):
            found[row["job_id"]].append(row)
        return found

    @cached_property
    def starts(self) -> Mapping[str, list[Effect]]:
        found: dict[str, list[Effect]] = defaultdict(list)
        for effect in self.effects:
            if effect.what == "start":
                found[effect.job_id].append(effect)
        return found

    @cached_property
    def excused(self) -> Sequence[str]:
        """Jobs that never ran because the core died each time before it could start them, or they were called off."""
        return [
            job_id
            for job_id, log in self.attempts.items()
            if not self.starts.get(job_id)
            and not is_core(log[-1]["plugin"])
            and all(was_lost(row) or was_called_off(row) for row in log)
        ]

    def answer_of(self, job_id: str) -> dict[str, Any]:
        """What the plugin said in the last attempt; nothing if it said nothing that can be read."""
        log = self.attempts.get(job_id)
        try:
            answer = json.loads(log[-1]["result"] or "{}") if log else {}
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


JOBS = """
    SELECT job_queue.*, event_context.accumulated_json AS context
      FROM job_queue LEFT JOIN event_context ON event_context.id = job_queue.event_context_id
     ORDER BY seq
"""
ATTEMPTS = """
    SELECT seq, job_id, plugin, attempt, status, job_status, result, last_error
      FROM job_log ORDER BY job_id, attempt, seq
"""


def is_core(plugin: str) -> bool:
    """True for the core's own rows, which run nothing."""
    return plugin.startswith("core.")


def was_lost(attempt: Row) -> bool:
    """True if the attempt ended with the core that ran it."""
    return str(attempt["last_error"]).startswith(LOST_WITH_THE_CORE)


def was_called_off(attempt: Row) -> bool:
    """True if it made room for the next run of its schedule, or its step is no longer in the configuration."""
    reason = str(attempt["last_error"])
    return reason == CANCELLED or STEP_IS_GONE.fullmatch(reason) is not None


def fails_its_tree(job: Row) -> bool:
    return job["status"] in FAILURES and not job["tolerated"]
