"""The checker: compares the client record, the effects log and the ledger.

Each invariant is one function of the history that yields its violations, with the ids of the jobs.
"""

import json
import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from ductile.ledger.reports.trees import tree_outcome
from scripts.tortures.lib.expected_runs import (
    hooks_fire_once,
    joins_are_correct,
    responses_match_runs,
    runs_are_complete,
)
from scripts.tortures.lib.history import FINAL, History, Row, fails_its_tree, is_core_step
from scripts.tortures.lib.instance import CANARY, TOKEN

LEGAL_TRANSITIONS = {
    None: {"queued", "dead"},
    "queued": {"running", "skipped", "dead"},
    "running": {"queued", "succeeded", "failed", "dead"},
}
LEGAL_CORE_TRANSITIONS = {None: {"queued", "succeeded"}, "queued": {"succeeded", "failed"}}
"""A switch has ended when it is written. A join never runs."""
SCHEMA_VERSION = 4


def check(history: History) -> dict[str, list[str]]:
    """Return the violations of each invariant."""
    return {name: list(invariant(history)) for name, invariant in INVARIANTS.items()}


def acknowledged_jobs_end(history: History) -> Iterator[str]:
    """I1: every acknowledged job is in the ledger and has ended; no other job is open."""
    for one in history.acknowledged:
        job, log = history.jobs.get(one.job_id), history.attempts.get(one.job_id, [])
        if job is None and not log:
            yield f"lost: {one.job_id} ({one.target}) was acknowledged and is not in the ledger"
        elif job is None and log[-1]["job_status"] not in FINAL:
            yield f"lost: {one.job_id} ({one.target}) left the queue as {log[-1]['job_status']}"
    for job in history.jobs.values():
        if job["status"] not in FINAL:
            yield f"stuck: {job['id']} ({job['plugin']}) is {job['status']}, attempt {job['attempt']}"


def jobs_ran(history: History) -> Iterator[str]:
    """I2: every job that is not excused was started; the last attempt of a success ran to its end."""
    ends = {(effect.job_id, effect.attempt) for effect in history.effects if effect.what == "end"}
    excused = set(history.excused)
    for job_id, log in history.attempts.items():
        last = log[-1]
        if is_core_step(last["plugin"]) or job_id in excused:
            continue
        if not history.starts.get(job_id) and any(row["status"] != "skipped" for row in log):
            yield f"{job_id} ({last['plugin']}) never ran: {[row['last_error'] for row in log]}"
        elif last["status"] == "succeeded" and (job_id, last["attempt"]) not in ends:
            yield f"{job_id} ({last['plugin']}) succeeded in attempt {last['attempt']}, which did not end"
    for one in history.acknowledged:
        if one.job_id in history.jobs and not history.attempts.get(one.job_id):
            yield f"{one.job_id} ({one.target}) never ran and has no attempt"


def attempts_run_once(history: History) -> Iterator[str]:
    """I3: no attempt started twice, unless a power cut lost its claim; attempts are numbered 1, 2, 3 without gaps."""
    claim_lost = {(job_id, 1) for job_id in history.run_again}
    starts = Counter((effect.job_id, effect.attempt) for effect in history.effects if effect.what == "start")
    for (job_id, attempt), count in starts.items():
        if count > 1 and (job_id, attempt) not in claim_lost:
            yield f"{job_id} attempt {attempt} was started {count} times"
    for job_id, log in history.attempts.items():
        numbers = [row["attempt"] for row in log]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{job_id} has log rows for the attempts {numbers}"
        unlogged = {effect.attempt for effect in history.starts.get(job_id, ())} - set(numbers)
        if unlogged:
            yield f"{job_id}: attempts {sorted(unlogged)} ran and are not in the log"
    for job_id in history.starts.keys() - history.attempts.keys() - history.jobs.keys():
        yield f"{job_id} ran and is in no table"


def retries_have_a_reason(history: History) -> Iterator[str]:
    """I4: an attempt follows only a failure, a timeout or a crash, and starts after the last process has ended."""
    ends = {(effect.job_id, effect.attempt): effect.at for effect in history.effects if effect.what == "end"}
    for job_id, log in history.attempts.items():
        started = {effect.attempt: effect.at for effect in history.starts.get(job_id, ())}
        for row in log[:-1]:
            number = row["attempt"]
            first, second = started.get(number), started.get(number + 1)
            if row["status"] not in ("failed", "timed_out", "interrupted"):
                yield f"{job_id} was retried after attempt {number} had {row['status']}"
            if first is None or second is None:
                continue
            if second < max(first, ends.get((job_id, number), 0)):
                yield f"{job_id} attempt {number + 1} started before attempt {number} had ended"
    yield from _recoveries(history)


def _recoveries(history: History) -> Iterator[str]:
    """Check that a service died between claim and recovery, and that no recovery has more jobs than workers."""
    deaths = sorted(history.deaths)
    claimed: dict[tuple[str, int], str] = {}
    recovered = Counter[str]()
    for row in history.rows(CLAIMS_AND_RECOVERIES):
        attempt = row["job_id"], row["attempt"]
        if row["kind"] == "job.started":
            claimed[attempt] = row["at"]
            continue
        recovered[row["at"]] += 1
        if attempt not in claimed or bisect_left(deaths, row["at"]) == bisect_left(deaths, claimed[attempt]):
            yield f"{attempt[0]} attempt {attempt[1]} was recovered, but no service died while it ran"
    for at, count in recovered.items():
        if count > history.workers:
            yield f"the recovery of {at} has {count} jobs; at most {history.workers} could have been running"


CLAIMS_AND_RECOVERIES = """
    SELECT kind, job_id, data ->> 'attempt' AS attempt, at FROM journal
     WHERE kind IN ('job.started', 'job.recovered') ORDER BY seq
"""


def children_and_facts_once(history: History) -> Iterator[str]:
    """I5: a success has one child for every event and matching route, and one fact; no child or slot exists twice.

    `expected_runs` checks the children that pipelines create.
    """
    children: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    yield from _duplicates(history)
    for job in history.jobs.values():
        if job["parent_job_id"] and not job["pipeline"]:
            event = json.loads(job["payload"])
            children[job["parent_job_id"]][job["plugin"], event["type"], event["payload"]["n"]] += 1
            if event["event_id"] != job["source_event_id"]:
                yield f"{job['id']} has event {event['event_id']}, its row says {job['source_event_id']}"
    for job in history.jobs.values():
        expected, found = _expected_children(history, job), children.pop(job["id"], Counter())
        if expected != found:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) has {dict(found)}, not {dict(expected)}"
    for parent in children:
        yield f"{parent} has children and is not in the ledger"
    yield from _facts(history)


def _duplicates(history: History) -> Iterator[str]:
    keys = Counter((job["parent_job_id"], job["child_key"]) for job in history.jobs.values() if job["child_key"])
    slots = Counter((job["plugin"], job["slot_at"]) for job in history.jobs.values() if job["slot_at"])
    for (owner, key), count in (keys | slots).items():
        if count > 1:
            yield f"{owner} has {count} jobs for {key}"


def _expected_children(history: History, job: Row) -> Counter[tuple[Any, ...]]:
    log = history.attempts.get(job["id"], [])
    if not log or log[-1]["status"] != "succeeded":
        return Counter()
    return Counter(
        (target, event["type"], event["payload"]["n"])
        for event in history.plugin_response(job["id"]).get("events", ())
        for source, kind, target in history.routes
        if (source, kind) == (job["plugin"], event["type"])
    )


def _facts(history: History) -> Iterator[str]:
    recording = {plugin.name for plugin in history.plugins if plugin.records_facts}
    facts = Counter(row["job_id"] for row in history.rows("SELECT job_id FROM plugin_facts"))
    for job in history.jobs.values():
        expected = int(job["status"] == "succeeded" and job["plugin"] in recording)
        if facts[job["id"]] != expected:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) has {facts[job['id']]} facts, not {expected}"


def no_stale_running_jobs(history: History) -> Iterator[str]:
    """I6: once a service is ready, no row of an earlier service is `running`; at the end there is none."""
    yield from history.stale_running
    for job in history.jobs.values():
        if job["status"] == "running":
            yield f"{job['id']} is `running` after the end"


def no_orphan_processes(history: History) -> Iterator[str]:
    """I7: once a service is ready, no plugin process of an earlier one is alive; at the end there is none."""
    yield from history.orphans


def transitions_replay(history: History) -> Iterator[str]:
    """I8: the journal replays to the status of every job with legal transitions; joins and trees count correctly."""
    statuses: dict[str, str | None] = {}
    for row in history.rows(TRANSITIONS):
        job_id, before, after = row["job_id"], row["from_status"], row["to_status"]
        legal = LEGAL_CORE_TRANSITIONS if is_core_step(row["plugin"]) else LEGAL_TRANSITIONS
        if statuses.get(job_id) != before or after not in legal.get(before, ()):
            yield f"{job_id} went from {before} to {after} when it was {statuses.get(job_id)}"
        statuses[job_id] = after
    for job in history.jobs.values():
        if statuses.get(job["id"]) != job["status"]:
            yield f"{job['id']} is {job['status']}, the journal ends with {statuses.get(job['id'])}"
    yield from history.wrong_counters
    yield from _joins(history)
    yield from _trees(history)


TRANSITIONS = """
    SELECT step.job_id, step.from_status, step.to_status, journal.plugin
      FROM job_transitions AS step JOIN journal ON journal.seq = step.id ORDER BY step.id
"""


def _joins(history: History) -> Iterator[str]:
    members = Counter(job["join_id"] for job in history.jobs.values() if job["status"] not in FINAL)
    for job in history.jobs.values():
        expected = members[job["id"]] if job["status"] == "queued" and job["is_join"] else 0
        if job["waits_for"] != expected:
            yield f"{job['id']} ({job['plugin']}, {job['status']}) waits for {job['waits_for']} jobs, not {expected}"


def _trees(history: History) -> Iterator[str]:
    """Check that a tree closes with its last job, and fails only because of a failure that is not allowed."""
    with closing(sqlite3.connect(f"file:{history.ledger}?mode=ro", uri=True)) as db:
        for root_id, jobs in history.trees.items():
            root, open_jobs = history.jobs.get(root_id), sum(job["status"] not in FINAL for job in jobs)
            closed_at = None if open_jobs else max(job["completed_at"] for job in jobs)
            counted = tuple(root[name] for name in ("tree_jobs", "open_jobs", "tree_completed_at")) if root else None
            if counted != (len(jobs), open_jobs, closed_at):
                yield f"tree {root_id} counts {counted}, the jobs give {(len(jobs), open_jobs, closed_at)}"
            elif (status := str(tree_outcome(db, root_id).status)) != (expected := _expected_status(jobs, open_jobs)):
                yield f"tree {root_id} is {status}, not {expected}"


def _expected_status(jobs: Iterable[Row], open_jobs: int) -> str:
    return "open" if open_jobs else "failed" if any(map(fails_its_tree, jobs)) else "succeeded"


def database_is_intact(history: History) -> Iterator[str]:
    """I9: `integrity_check` and foreign keys are correct, and the schema has the current version."""
    yield from (
        f"integrity: {row['integrity_check']}"
        for row in history.rows("PRAGMA integrity_check")
        if row["integrity_check"] != "ok"
    )
    yield from (f"foreign key: {row}" for row in history.rows("PRAGMA foreign_key_check"))
    version = history.rows("PRAGMA user_version")[0]["user_version"]
    if version != SCHEMA_VERSION:
        yield f"schema version {version}, not {SCHEMA_VERSION}"


def logs_are_clean(history: History) -> Iterator[str]:
    """I10: no traceback, internal error or unexpected exit, and no secret in a log or in the database."""
    yield from history.faults
    for log in (path for path in history.logs if path.exists()):
        with log.open(errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if "Traceback" in line or "internal error" in line:
                    yield f"{log.name}:{number}: {line.strip()[:300]}"
    for file in (*history.logs, history.ledger, history.ledger.with_name(history.ledger.name + "-wal")):
        content = file.read_bytes() if file.exists() else b""
        yield from (
            f"{file.name} contains the secret {secret[:14]}…"
            for secret in (TOKEN, CANARY)
            if secret.encode() in content
        )


INVARIANTS: Mapping[str, Callable[[History], Iterable[str]]] = {
    "I1 acknowledged jobs end": acknowledged_jobs_end,
    "I2 jobs ran": jobs_ran,
    "I3 attempts run once": attempts_run_once,
    "I4 retries have a reason": retries_have_a_reason,
    "I5 children and facts exist once": children_and_facts_once,
    "I6 no stale running jobs": no_stale_running_jobs,
    "I7 no orphan processes": no_orphan_processes,
    "I8 transitions replay": transitions_replay,
    "I9 database is intact": database_is_intact,
    "I10 logs are clean": logs_are_clean,
    "I11 runs are complete": runs_are_complete,
    "I12 joins are correct": joins_are_correct,
    "I13 hooks fire once": hooks_fire_once,
    "I14 responses match runs": responses_match_runs,
}
