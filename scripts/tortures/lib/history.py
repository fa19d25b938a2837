"""The history of one torture test: the client record, the effects log and the ledger, with what was observed meanwhile.

Reads and indexes; the checker decides.
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

from scripts.tortures.lib.clients import Acknowledgement
from scripts.tortures.lib.instance import Instance
from scripts.tortures.lib.workload import WorkloadPlugin

FINAL = frozenset({"succeeded", "failed", "dead", "skipped"})
FAILURES = frozenset({"failed", "dead"})
LOST_WITH_SERVICE = "core restart"
CANCELLED = "cancelled: another run of its schedule is due"
STEP_REMOVED = re.compile(r"pipeline \S+ no longer has step \S+")

Row = Mapping[str, Any]


@frozen
class Effect:
    """One line of the effects log."""

    what: str
    """`start`, `end` (of a success), `stopped` (by SIGTERM) or `overlap` (of exclusive processes)."""
    job_id: str
    attempt: int
    event_id: str
    part: str
    """The list item in the payload; `-` if there is none."""
    pid: int
    at: int
    """Monotonic nanoseconds."""


def read_effects(path: Path) -> list[Effect]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Effect(what, job, int(n), event, part, int(pid), int(at))
        for what, job, n, event, part, pid, at in map(str.split, lines)
    ]


@frozen(slots=False, eq=False)
class History:
    """The records of one test. The last four fields are violations that were found while it ran."""

    ledger: Path
    acknowledged: Sequence[Acknowledgement]
    effects: Sequence[Effect]
    deaths: Sequence[str] = ()
    """Times at which a service was dead, in the ledger's format."""
    claims_durable_until: int | None = None
    """A power cut may have lost later claims. None: there was no power cut."""
    workers: int = 4
    plugins: Sequence[WorkloadPlugin] = ()
    routes: Sequence[tuple[str, str, str]] = ()
    pipelines: Sequence[str] = ()
    """The names of the configured pipelines."""
    unchecked_pipelines: Sequence[str] = ()
    """Pipelines whose runs another check covers."""
    is_pruned: bool = False
    """Whole trees may have been deleted."""
    logs: Sequence[Path] = ()
    stale_running: Sequence[str] = ()
    orphans: Sequence[str] = ()
    wrong_counters: Sequence[str] = ()
    faults: Sequence[str] = ()

    @classmethod
    def of(cls, instance: Instance, acknowledged: Sequence[Acknowledgement], **observed: Any) -> "History":
        return cls(
            ledger=instance.ledger,
            acknowledged=acknowledged,
            effects=read_effects(instance.effects_log),
            workers=instance.workers,
            plugins=instance.plugins,
            routes=instance.routes,
            pipelines=[pipeline.name for pipeline in instance.pipelines],
            is_pruned="job_queue_retention" in instance.service_settings,
            logs=(instance.service_log, instance.stderr_log),
            **observed,
        )

    def rows(self, statement: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(statement)]

    def may_have_lost_claim(self, start: Effect) -> bool:
        """Return whether a power cut may have lost the claim of this attempt. Claims of retries are synced first."""
        return self.claims_durable_until is not None and start.attempt == 1 and start.at > self.claims_durable_until

    @cached_property
    def run_again(self) -> Sequence[str]:
        """Jobs whose first attempt started twice because a power cut lost its claim."""
        firsts = {job_id: [one for one in starts if one.attempt == 1] for job_id, starts in self.starts.items()}
        return [job_id for job_id, starts in firsts.items() if len(starts) == 2 and self.may_have_lost_claim(starts[0])]

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
        """Job id → the starts of its processes, in order."""
        found: dict[str, list[Effect]] = defaultdict(list)
        for effect in self.effects:
            if effect.what == "start":
                found[effect.job_id].append(effect)
        return found

    @cached_property
    def excused(self) -> Sequence[str]:
        """Jobs that never ran because every attempt was lost with its service or cancelled before its start."""
        return [
            job_id
            for job_id, log in self.attempts.items()
            if not self.starts.get(job_id)
            and not is_core_step(log[-1]["plugin"])
            and all(was_lost(row) or was_cancelled(row) for row in log)
        ]

    def plugin_response(self, job_id: str) -> dict[str, Any]:
        """Return the response of the plugin in the last attempt; empty if it is missing or invalid."""
        log = self.attempts.get(job_id)
        try:
            response = json.loads(log[-1]["result"] or "{}") if log else {}
        except ValueError:
            return {}
        return response if isinstance(response, dict) else {}


JOBS = """
    SELECT job_queue.*, event_context.accumulated_json AS context
      FROM job_queue LEFT JOIN event_context ON event_context.id = job_queue.event_context_id
     ORDER BY seq
"""
ATTEMPTS = """
    SELECT seq, job_id, plugin, attempt, status, job_status, result, last_error
      FROM job_log ORDER BY job_id, attempt, seq
"""


def is_core_step(plugin: str) -> bool:
    """Return whether a row is a switch or a join, which start no process."""
    return plugin.startswith("core.")


def was_lost(attempt: Row) -> bool:
    """Return whether the attempt ended with the death of its service."""
    return str(attempt["last_error"]).startswith(LOST_WITH_SERVICE)


def was_cancelled(attempt: Row) -> bool:
    """Return whether the next run of its schedule replaced the attempt, or a reload removed its step."""
    reason = str(attempt["last_error"])
    return reason == CANCELLED or STEP_REMOVED.fullmatch(reason) is not None


def fails_its_tree(job: Row) -> bool:
    return job["status"] in FAILURES and not job["tolerated"]
