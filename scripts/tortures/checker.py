"""Three ledgers, one checker: what callers were told, what plugins did, what the database says.

Every invariant is one function of the case that gives its violations, each with the ids it is about.
"""

import json
import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from ductile.ledger.reports.trees import tree_outcome
from scripts.tortures.arena import CANARY, TOKEN
from scripts.tortures.case import FINAL, Case, Row, fails_its_tree, is_core
from scripts.tortures.runs import callers_are_told_the_truth, hooks_fire_once, joins_join, runs_are_whole

__all__ = ["INVARIANTS", "Case", "check"]

LEGAL = {
    None: {"queued", "dead"},
    "queued": {"running", "skipped", "dead"},
    "running": {"queued", "succeeded", "failed", "dead"},
}
LEGAL_FOR_CORE = {None: {"queued", "succeeded"}, "queued": {"succeeded", "failed"}}
"""Switches are over when they are written; joins run nothing."""
SCHEMA_VERSION = 2


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


def jobs_ran(case: Case) -> Iterator[str]:
    """I2: every job was started at least once, unless the core died each time before it could; a success was done."""
    ends = {(effect.job_id, effect.attempt) for effect in case.effects if effect.what == "end"}
    excused = set(case.excused)
    for job_id, log in case.attempts.items():
        last = log[-1]
        if is_core(last["plugin"]) or job_id in excused:
            continue
        if not case.starts.get(job_id) and any(row["status"] != "skipped" for row in log):
            yield f"{job_id} ({last['plugin']}) never ran: {[row['last_error'] for row in log]}"
        elif last["status"] == "succeeded" and (job_id, last["attempt"]) not in ends:
            yield f"{job_id} ({last['plugin']}) succeeded in attempt {last['attempt']}, which did nothing"
    for one in case.acknowledged:
        if one.job_id in case.jobs and not case.attempts.get(one.job_id):
            yield f"{one.job_id} ({one.plugin}) never ran and has no attempt"


def attempts_run_once(case: Case) -> Iterator[str]:
    """I3: no attempt was started twice, unless a power cut took back its claim; attempts count 1, 2, 3 without gaps."""
    forgotten = {(job_id, 1) for job_id in case.run_again}
    for (job_id, attempt), count in Counter((e.job_id, e.attempt) for e in case.effects if e.what == "start").items():
        if count > 1 and (job_id, attempt) not in forgotten:
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
    """I5: one child for every event and matching route of a success and none otherwise; one fact for every success.

    What pipelines make of events is told in `runs`; here, that no child and no slot of a schedule is there twice.
    """
    children: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    yield from _twins(case)
    for job in case.jobs.values():
        if job["parent_job_id"] and not job["pipeline"]:
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


def _twins(case: Case) -> Iterator[str]:
    keys = Counter((job["parent_job_id"], job["child_key"]) for job in case.jobs.values() if job["child_key"])
    slots = Counter((job["plugin"], job["slot_at"]) for job in case.jobs.values() if job["slot_at"])
    for (owner, what), count in (keys | slots).items():
        if count > 1:
            yield f"{owner} has {count} jobs for {what}"


def _expected_children(case: Case, job: Row) -> Counter[tuple[Any, ...]]:
    log = case.attempts.get(job["id"], [])
    if not log or log[-1]["status"] != "succeeded":
        return Counter()
    return Counter(
        (target, event["type"], event["payload"]["n"])
        for event in case.answer_of(job["id"]).get("events", ())
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
    """I8: the journal's steps are legal, join up, and lead to where each job is; joins and trees count right."""
    where: dict[str, str | None] = {}
    for row in case.rows(TRANSITIONS):
        job_id, before, after = row["job_id"], row["from_status"], row["to_status"]
        legal = LEGAL_FOR_CORE if is_core(row["plugin"]) else LEGAL
        if where.get(job_id) != before or after not in legal.get(before, ()):
            yield f"{job_id} went from {before} to {after} while it was {where.get(job_id)}"
        where[job_id] = after
    for job in case.jobs.values():
        if where.get(job["id"]) != job["status"]:
            yield f"{job['id']} is {job['status']}, the journal ends with {where.get(job['id'])}"
    yield from case.miscounted
    yield from _joins(case)
    yield from _trees(case)


TRANSITIONS = """
    SELECT step.job_id, step.from_status, step.to_status, journal.plugin
      FROM job_transitions AS step JOIN journal ON journal.seq = step.id ORDER BY step.id
"""


def _joins(case: Case) -> Iterator[str]:
    members = Counter(job["join_id"] for job in case.jobs.values() if job["status"] not in FINAL)
    for job in case.jobs.values():
        expected = members[job["id"]] if job["status"] == "queued" and job["is_join"] else 0
        if job["waits_for"] != expected:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) waits for {job['waits_for']} jobs, not {expected}"


def _trees(case: Case) -> Iterator[str]:
    """A tree is closed in the moment its last job ends, and failed only by what nobody tolerates."""
    with closing(sqlite3.connect(f"file:{case.ledger}?mode=ro", uri=True)) as db:
        for root_id, jobs in case.trees.items():
            root, open_jobs = case.jobs.get(root_id), sum(job["status"] not in FINAL for job in jobs)
            closed_at = None if open_jobs else max(job["completed_at"] for job in jobs)
            counted = tuple(root[name] for name in ("tree_jobs", "open_jobs", "tree_completed_at")) if root else None
            if counted != (len(jobs), open_jobs, closed_at):
                yield f"tree {root_id} counts {counted}, there is {(len(jobs), open_jobs, closed_at)}"
            elif (status := str(tree_outcome(db, root_id).status)) != (expected := _verdict(jobs, open_jobs)):
                yield f"tree {root_id} is {status}, not {expected}"


def _verdict(jobs: Iterable[Row], open_jobs: int) -> str:
    return "open" if open_jobs else "failed" if any(map(fails_its_tree, jobs)) else "succeeded"


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


INVARIANTS: Mapping[str, Callable[[Case], Iterable[str]]] = {
    "I1 acknowledged jobs end": acknowledged_jobs_end,
    "I2 jobs ran": jobs_ran,
    "I3 attempts run once": attempts_run_once,
    "I4 runs again only with a reason": runs_again_only_with_a_reason,
    "I5 children and facts once": children_and_facts_once,
    "I6 nothing runs without a core": nothing_runs_without_a_core,
    "I7 no orphan processes": no_orphan_processes,
    "I8 transitions replay": transitions_replay,
    "I9 database is whole": database_is_whole,
    "I10 nothing said that should not be": nothing_said_that_should_not_be,
    "I11 runs are whole": runs_are_whole,
    "I12 joins join": joins_join,
    "I13 hooks fire once": hooks_fire_once,
    "I14 callers are told the truth": callers_are_told_the_truth,
}
