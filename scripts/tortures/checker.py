"""Three ledgers, one checker: what callers were told, what plugins did, what the database says.

Every invariant is one function of the case that gives its violations, each with the ids it is about.
"""

import json
import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import frozen

from scripts.tortures.arena import CANARY, TOKEN, Arena, Role
from scripts.tortures.clients import Acknowledged

FINAL = frozenset({"succeeded", "failed", "dead", "skipped"})
STEPS = {
    None: {"queued", "dead"},
    "queued": {"running", "skipped", "dead"},
    "running": {"queued", "succeeded", "failed", "dead"},
}
LOST_WITH_THE_CORE = "core restart"
SCHEMA_VERSION = 1


@frozen
class Effect:
    """One line that a plugin wrote: it began, or it ended well."""

    what: str
    job_id: str
    attempt: int
    event_id: str
    pid: int
    at: int


def read_effects(path: Path) -> list[Effect]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Effect(what, job, int(n), event, int(pid), int(at)) for what, job, n, event, pid, at in map(str.split, lines)
    ]


@frozen(slots=False)
class Case:
    """Everything that is known about one torture. `stuck`, `orphans` and `faults` were seen while it went on."""

    ledger: Path
    acknowledged: Sequence[Acknowledged]
    effects: Sequence[Effect]
    deaths: Sequence[str] = ()
    """Moments at which a core was seen to be dead, as the ledger writes moments."""
    workers: int = 4
    roles: Sequence[Role] = ()
    routes: Sequence[tuple[str, str, str]] = ()
    logs: Sequence[Path] = ()
    stuck: Sequence[str] = ()
    orphans: Sequence[str] = ()
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
            logs=(arena.log, arena.path / "core.stderr"),
            **seen,
        )

    def rows(self, statement: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(statement)]

    @cached_property
    def jobs(self) -> Mapping[str, dict[str, Any]]:
        columns = (
            "id, plugin, status, attempt, parent_job_id, root_job_id, source_event_id, payload, open_jobs, tree_jobs"
        )
        return {row["id"]: row for row in self.rows(f"SELECT {columns} FROM job_queue")}

    @cached_property
    def attempts(self) -> Mapping[str, list[dict[str, Any]]]:
        """Job id → its log rows, in order."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        columns = "job_id, attempt, status, job_status, result, last_error"
        for row in self.rows(f"SELECT {columns} FROM job_log ORDER BY job_id, attempt, seq"):
            found[row["job_id"]].append(row)
        return found

    @cached_property
    def starts(self) -> Mapping[str, list[Effect]]:
        found: dict[str, list[Effect]] = defaultdict(list)
        for effect in self.effects:
            if effect.what == "start":
                found[effect.job_id].append(effect)
        return found


def check(case: Case) -> dict[str, list[str]]:
    """The violations of each invariant; all lists are empty if every promise was kept."""
    return {name: list(invariant(case)) for name, invariant in INVARIANTS.items()}


def acknowledged_jobs_end(case: Case) -> Iterator[str]:
    """I1: every acknowledged job is there and has ended; nothing else is left open either."""
    for one in case.acknowledged:
        job, log = case.jobs.get(one.job_id), case.attempts.get(one.job_id, [])
        if job is None and not log:
            yield f"lost: {one.job_id} ({one.plugin}) was acknowledged and is not in the ledger"
        elif job is None and log[-1]["job_status"] not in FINAL:
            yield f"lost: {one.job_id} ({one.plugin}) left the queue as {log[-1]['job_status']}"
    for job in case.jobs.values():
        if job["status"] not in FINAL:
            yield f"stuck: {job['id']} ({job['plugin']}) is {job['status']}, attempt {job['attempt']}"


def acknowledged_jobs_ran(case: Case) -> Iterator[str]:
    """I2: every acknowledged job was started at least once, unless the core died each time before it could."""
    for one in case.acknowledged:
        if not case.starts.get(one.job_id):
            log = case.attempts.get(one.job_id, [])
            if not log or any(not _lost(row) and row["status"] != "skipped" for row in log):
                yield f"{one.job_id} ({one.plugin}) never ran: {[row['last_error'] for row in log]}"


def attempts_run_once(case: Case) -> Iterator[str]:
    """I3: no attempt was started twice; attempts count 1, 2, 3 without gaps."""
    for (job_id, attempt), count in Counter((e.job_id, e.attempt) for e in case.effects if e.what == "start").items():
        if count > 1:
            yield f"{job_id} attempt {attempt} was started {count} times"
    for job_id, log in case.attempts.items():
        numbers = [row["attempt"] for row in log]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{job_id} has log rows for the attempts {numbers}"
        strays = {effect.attempt for effect in case.starts.get(job_id, ())} - set(numbers)
        if strays:
            yield f"{job_id}: attempts {sorted(strays)} ran and are not in the log"
    for job_id in case.starts.keys() - case.attempts.keys() - case.jobs.keys():
        yield f"{job_id} ran and is in no table"


def runs_again_only_with_a_reason(case: Case) -> Iterator[str]:
    """I4: the next attempt comes after a failure or a crash, and never while the last one is still at work."""
    ends = {(effect.job_id, effect.attempt): effect.at for effect in case.effects if effect.what == "end"}
    for job_id, log in case.attempts.items():
        started = {effect.attempt: effect.at for effect in case.starts.get(job_id, ())}
        for row in log[:-1]:
            number = row["attempt"]
            first, second = started.get(number), started.get(number + 1)
            if row["status"] not in ("failed", "timed_out", "interrupted"):
                yield f"{job_id} ran again after attempt {number} had {row['status']}"
            if first is None or second is None:
                continue
            if second < max(first, ends.get((job_id, number), 0)):
                yield f"{job_id} attempt {number + 1} began before attempt {number} was over"
    yield from _recoveries(case)


def _recoveries(case: Case) -> Iterator[str]:
    """An attempt is lost only with a core that died between its claim and its recovery, and only with a slot."""
    deaths = sorted(case.deaths)
    claimed: dict[tuple[str, int], str] = {}
    recovered = Counter[str]()
    for row in case.rows(CLAIMS_AND_RECOVERIES):
        about = row["job_id"], row["attempt"]
        if row["kind"] == "job.started":
            claimed[about] = row["at"]
            continue
        recovered[row["at"]] += 1
        if about not in claimed or bisect_left(deaths, row["at"]) == bisect_left(deaths, claimed[about]):
            yield f"{about[0]} attempt {about[1]} counts as lost, but no core died while it ran"
    for at, count in recovered.items():
        if count > case.workers:
            yield f"the recovery of {at} took back {count} jobs; only {case.workers} could have been running"


CLAIMS_AND_RECOVERIES = """
    SELECT kind, job_id, data ->> 'attempt' AS attempt, at FROM journal
     WHERE kind IN ('job.started', 'job.recovered') ORDER BY seq
"""


def children_and_facts_once(case: Case) -> Iterator[str]:
    """I5: one child for every event and matching route of a success and none otherwise; one fact for every success."""
    children: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for job in case.jobs.values():
        if job["parent_job_id"]:
            event = json.loads(job["payload"])
            children[job["parent_job_id"]][job["plugin"], event["type"], event["payload"]["n"]] += 1
            if event["event_id"] != job["source_event_id"]:
                yield f"{job['id']} carries event {event['event_id']}, its row says {job['source_event_id']}"
    for job in case.jobs.values():
        expected, found = _expected_children(case, job), children.pop(job["id"], Counter())
        if expected != found:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) has {dict(found)}, not {dict(expected)}"
    for parent in children:
        yield f"{parent} has children and is not in the queue"
    yield from _facts(case)


def _expected_children(case: Case, job: Mapping[str, Any]) -> Counter[tuple[Any, ...]]:
    log = case.attempts.get(job["id"], [])
    if not log or log[-1]["status"] != "succeeded":
        return Counter()
    return Counter(
        (target, event["type"], event["payload"]["n"])
        for event in json.loads(log[-1]["result"] or "{}").get("events", ())
        for source, kind, target in case.routes
        if (source, kind) == (job["plugin"], event["type"])
    )


def _facts(case: Case) -> Iterator[str]:
    keeps = {role.name for role in case.roles if role.keeps_facts}
    facts = Counter(row["job_id"] for row in case.rows("SELECT job_id FROM plugin_facts"))
    for job in case.jobs.values():
        expected = int(job["status"] == "succeeded" and job["plugin"] in keeps)
        if facts[job["id"]] != expected:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) left {facts[job['id']]} facts, not {expected}"


def nothing_runs_without_a_core(case: Case) -> Iterator[str]:
    """I6: after a start no row of an earlier run is `running`; at the end none is at all."""
    yield from case.stuck
    for job in case.jobs.values():
        if job["status"] == "running":
            yield f"{job['id']} is running after the end"


def no_orphan_processes(case: Case) -> Iterator[str]:
    """I7: when a core is ready, no plugin process of an earlier one lives; at the end none at all."""
    yield from case.orphans


def transitions_replay(case: Case) -> Iterator[str]:
    """I8: the journal's steps are legal, join up, and lead to where each job is; trees count their jobs right."""
    where: dict[str, str | None] = {}
    for row in case.rows("SELECT job_id, from_status, to_status FROM job_transitions ORDER BY id"):
        job_id, before, after = row["job_id"], row["from_status"], row["to_status"]
        if where.get(job_id) != before or after not in STEPS.get(before, ()):
            yield f"{job_id} went from {before} to {after} while it was {where.get(job_id)}"
        where[job_id] = after
    for job in case.jobs.values():
        if where.get(job["id"]) != job["status"]:
            yield f"{job['id']} is {job['status']}, the journal ends with {where.get(job['id'])}"
    sizes, open_jobs = Counter[str](), Counter[str]()
    for job in case.jobs.values():
        sizes[job["root_job_id"]] += 1
        open_jobs[job["root_job_id"]] += job["status"] not in FINAL
    for root_id in sizes:
        root = case.jobs.get(root_id)
        counted = (root["tree_jobs"], root["open_jobs"]) if root else None
        if counted != (sizes[root_id], open_jobs[root_id]):
            yield f"tree {root_id} counts {counted}, there are {(sizes[root_id], open_jobs[root_id])} jobs"


def database_is_whole(case: Case) -> Iterator[str]:
    """I9: SQLite finds nothing wrong, and the schema is the one this version writes."""
    yield from (
        f"integrity: {row['integrity_check']}"
        for row in case.rows("PRAGMA integrity_check")
        if row["integrity_check"] != "ok"
    )
    yield from (f"foreign key: {row}" for row in case.rows("PRAGMA foreign_key_check"))
    version = case.rows("PRAGMA user_version")[0]["user_version"]
    if version != SCHEMA_VERSION:
        yield f"schema version {version}, not {SCHEMA_VERSION}"


def nothing_said_that_should_not_be(case: Case) -> Iterator[str]:
    """I10: no traceback, no fault of the core itself, no secret in a log or in the database."""
    yield from case.faults
    for log in (path for path in case.logs if path.exists()):
        with log.open(errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if "Traceback" in line or "internal error" in line:
                    yield f"{log.name}:{number}: {line.strip()[:300]}"
    for file in (*case.logs, case.ledger, case.ledger.with_name(case.ledger.name + "-wal")):
        content = file.read_bytes() if file.exists() else b""
        yield from (
            f"{file.name} contains the secret {secret[:14]}…"
            for secret in (TOKEN, CANARY)
            if secret.encode() in content
        )


def _lost(row: Mapping[str, Any]) -> bool:
    return str(row["last_error"]).startswith(LOST_WITH_THE_CORE)


INVARIANTS: Mapping[str, Callable[[Case], Iterable[str]]] = {
    "I1 acknowledged jobs end": acknowledged_jobs_end,
    "I2 acknowledged jobs ran": acknowledged_jobs_ran,
    "I3 attempts run once": attempts_run_once,
    "I4 runs again only with a reason": runs_again_only_with_a_reason,
    "I5 children and facts once": children_and_facts_once,
    "I6 nothing runs without a core": nothing_runs_without_a_core,
    "I7 no orphan processes": no_orphan_processes,
    "I8 transitions replay": transitions_replay,
    "I9 database is whole": database_is_whole,
    "I10 nothing said that should not be": nothing_said_that_should_not_be,
}
