"""The checker of the exchange: compares the records of the clients and the commands with the ledger.

Each rule is one function of the history that yields its violations, with the ids of messages and claims. It holds at
any moment, not only at the end.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.ledger.storage import integrity
from scripts.tortures.exchange.lib.clients import Acknowledged, EndedByHand
from scripts.tortures.exchange.lib.instance import POISON, REQUESTS, RUN, STEPS, TRY, WORK, CommandEffect

Row = Mapping[str, Any]
DECIDING = frozenset({"completed", "failed", "timed_out"})
SUFFIXES = {"completed": "done", "failed": "failed", "timed_out": "request.timed_out"}
"""Of a run that times out on a busy machine, too."""
SERVICE_ENDS = frozenset({"succeeded", "failed", "dead"})


@frozen(slots=False, eq=False)
class ExchangeHistory:
    """The records of one test at one moment, and a consistent snapshot of the ledger."""

    messages: Mapping[str, Row]
    """Message id → its row, in order."""
    deliveries: Mapping[str, Row]
    """Message id → its delivery, if the message is open."""
    claims: Mapping[str, Row]
    """Claim id → its row, in order."""
    journal: Sequence[tuple[str, str, Row]]
    """Kind, message id and data of each entry about a message, in order."""
    runs: Mapping[str, str]
    """Root job of a consumer → its status."""
    damage: Sequence[str]
    """What `system selfcheck` finds, without reading every page."""
    acknowledged: Sequence[Acknowledged]
    ended_by_hand: Sequence[EndedByHand]
    refused_late: Sequence[str]
    started: Sequence[CommandEffect]
    """The commands before the snapshot: each has a claim in it."""
    commands: Sequence[CommandEffect]
    """The commands after the snapshot: those of every ended claim are among them."""
    faults: Sequence[str]

    @cached_property
    def claims_of(self) -> Mapping[str, list[Row]]:
        """Message id → its claims, in order."""
        found: dict[str, list[Row]] = defaultdict(list)
        for claim in self.claims.values():
            found[claim["message_id"]].append(claim)
        return found

    @cached_property
    def replies_to(self) -> Mapping[str, list[Row]]:
        """Message id → the messages whose parent it is, in order."""
        found: dict[str, list[Row]] = defaultdict(list)
        for message in self.messages.values():
            if message["parent_id"] is not None:
                found[message["parent_id"]].append(message)
        return found

    @property
    def requests(self) -> Iterator[Row]:
        return (message for message in self.messages.values() if message["topic"] in REQUESTS)


ABOUT_MESSAGES = "SELECT kind, message_id, data FROM journal WHERE kind LIKE 'message.%' ORDER BY seq"
RUNS = "SELECT id, status FROM job_queue WHERE id = root_job_id AND submitted_by = 'exchange'"


def read_ledger(ledger: Path) -> dict[str, Any]:
    """Return the part of a history that is in the ledger, from one snapshot."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10, isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        db.execute("BEGIN")

        def rows(statement: str) -> list[Row]:
            return [dict(row) for row in db.execute(statement)]

        return {
            "messages": {row["id"]: row for row in rows("SELECT * FROM messages ORDER BY seq")},
            "deliveries": {row["message_id"]: row for row in rows("SELECT * FROM deliveries")},
            "claims": {row["id"]: row for row in rows("SELECT * FROM claims ORDER BY seq")},
            "journal": [(row["kind"], row["message_id"], json.loads(row["data"])) for row in rows(ABOUT_MESSAGES)],
            "runs": {row["id"]: row["status"] for row in rows(RUNS)},
            "damage": [f"{name}: {found}" for name, rule in integrity.rules().items() for found in rule(db)],
        }


def check(history: ExchangeHistory) -> dict[str, list[str]]:
    """Return the violations of each rule."""
    return {name: list(rule(history)) for name, rule in RULES.items()}


def acknowledged_messages_are_kept(history: ExchangeHistory) -> Iterator[str]:
    """E1: every acknowledged message is in the ledger, and is open or decided; no request was stored twice."""
    for one in history.acknowledged:
        message = history.messages.get(one.message_id)
        if message is None or (message["topic"], message["body"]) != (one.topic, one.body):
            yield f"lost: {one.message_id} ({one.topic}) was acknowledged; the ledger has {message}"
    for body, count in Counter(message["body"] for message in history.requests).items():
        if count > 1:
            yield f"{count} messages have the body {body!r}"
    for message in history.requests:
        if message["id"] not in history.deliveries and not history.claims_of.get(message["id"]):
            yield f"lost: {message['id']} ({message['topic']}) is neither open nor decided"


def messages_are_decided_once(history: ExchangeHistory) -> Iterator[str]:
    """E2: a message has at most one claim that decides it, which is the last one, and is then not open any more."""
    for message_id, claims in history.claims_of.items():
        if any(claim["status"] in DECIDING for claim in claims[:-1]):
            yield f"{message_id} was claimed again after its end: {[claim['status'] for claim in claims]}"
        is_open, last = message_id in history.deliveries, claims[-1]
        if is_open and last["status"] in DECIDING:
            yield f"{message_id} is {last['status']} and still open"
        if sum(claim["status"] == "active" for claim in claims) > 1:
            yield f"{message_id} has several active claims"


def decided_messages_have_one_follow_up(history: ExchangeHistory) -> Iterator[str]:
    """E3: a decided message has exactly one follow-up, that of the claim; an open one has none."""
    for message in history.requests:
        claims, replies = history.claims_of.get(message["id"], []), history.replies_to.get(message["id"], [])
        if message["id"] in history.deliveries:
            if replies:
                yield f"{message['id']} is open and has {len(replies)} follow-ups"
            continue
        found = [(reply["id"], reply["topic"]) for reply in replies]
        last = claims[-1] if claims else {"status": None, "follow_up_id": None}
        topic = f"{message['topic'].removesuffix('request')}{SUFFIXES.get(str(last['status']), 'request.dead')}"
        if found != [(last["follow_up_id"], topic)]:
            yield f"{message['id']} ({last['status']}, {last['follow_up_id']}) has the follow-ups {found}"


def late_ends_change_nothing(history: ExchangeHistory) -> Iterator[str]:
    """E4: a late end is refused and journalled, and its claim stays as it was."""
    late = [(data["claim_id"], data) for kind, _, data in history.journal if kind == "message.late"]
    journalled = {claim_id for claim_id, _ in late}
    for claim_id in history.refused_late:
        if claim_id not in journalled:
            yield f"the late end of {claim_id} is not journalled"
    for claim_id, data in late:
        status = history.claims[claim_id]["status"]
        if status != data["claim_status"]:
            yield f"claim {claim_id} was {data['claim_status']} before a late end and is {status} now"


def acknowledged_ends_are_kept(history: ExchangeHistory) -> Iterator[str]:
    """E5: an end that was acknowledged is in the ledger, with its follow-up."""
    for one in history.ended_by_hand:
        claim = history.claims.get(one.claim_id, {})
        if (claim.get("status"), claim.get("follow_up_id")) != (one.status, one.follow_up_id):
            yield f"claim {one.claim_id} was acknowledged as {one.status}; the ledger has {claim}"


def claims_run_once(history: ExchangeHistory) -> Iterator[str]:
    """E6: a command runs once for a claim, which is in the ledger; a completed claim has a command that ended."""
    starts = Counter(effect.claim_id for effect in history.commands if effect.what == "start")
    ends = {effect.claim_id for effect in history.commands if effect.what == "end"}
    for effect in history.started:
        if effect.claim_id not in history.claims:
            yield f"claim {effect.claim_id} was handled and is not in the ledger"
    for claim_id, count in starts.items():
        if count > 1:
            yield f"claim {claim_id} was handled {count} times"
    for claim in history.claims.values():
        by_command = claim["topic"] in (WORK, STEPS, POISON)
        if by_command and claim["status"] == "completed" and claim["id"] not in ends:
            yield f"claim {claim['id']} is completed, and its command did not end"
        if by_command and claim["status"] in DECIDING and claim["id"] not in starts:
            yield f"claim {claim['id']} is {claim['status']}, and its command did not run"


def keys_are_in_order(history: ExchangeHistory) -> Iterator[str]:
    """E7: a message of an ordered topic is claimed only when all earlier ones of its conversation are decided."""
    open_before: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, message_id, data in history.journal:
        message = history.messages.get(message_id)
        if message is None or message["topic"] != STEPS:
            continue
        waiting = open_before[message["topic"], message["ordering_key"]]
        if kind == "message.published":
            waiting.append(message_id)
        elif kind == "message.claimed" and waiting[0] != message_id:
            yield f"{message_id} was claimed (claim {data['claim_id']}) before {waiting[0]} was decided"
        elif kind in ("message.completed", "message.failed", "message.timed_out", "message.dead"):
            waiting.remove(message_id)


def journal_matches_claims(history: ExchangeHistory) -> Iterator[str]:
    """E8: the journal has each message once, each claim once, and the end of each claim once."""
    published = Counter(message_id for kind, message_id, _ in history.journal if kind == "message.published")
    for message_id in history.messages:
        if published[message_id] != 1:
            yield f"{message_id} was journalled as published {published[message_id]} times"
    kinds: dict[str, list[str]] = defaultdict(list)
    for kind, _, data in history.journal:
        if kind not in ("message.late", "message.published") and "claim_id" in data:
            kinds[data["claim_id"]].append(kind)
    for claim in history.claims.values():
        ends = [] if claim["status"] == "active" else [f"message.{claim['status']}"]
        if kinds[claim["id"]] != ["message.claimed", *ends]:
            yield f"claim {claim['id']} ({claim['status']}) has the journal entries {kinds[claim['id']]}"


def consumers_start_one_run(history: ExchangeHistory) -> Iterator[str]:
    """E9: a claim of a consumer has one run, and ends as its run does."""
    of_consumers = [claim for claim in history.claims.values() if claim["topic"] in (RUN, TRY)]
    jobs = Counter(claim["job_id"] for claim in of_consumers)
    for job_id in jobs.keys() ^ history.runs.keys():
        yield f"run {job_id} has {jobs[job_id]} claims, and the status {history.runs.get(job_id)}"
    for claim in of_consumers:
        status = history.runs.get(claim["job_id"])
        if claim["status"] == "active":
            continue
        expected = ("completed",) if status == "succeeded" else ("failed", "timed_out")
        if claim["status"] not in expected or status not in SERVICE_ENDS:
            yield f"claim {claim['id']} is {claim['status']}, its run {claim['job_id']} is {status}"


def invariants_hold(history: ExchangeHistory) -> Iterator[str]:
    """E10: `system selfcheck` finds nothing."""
    yield from history.damage


def no_faults(history: ExchangeHistory) -> Iterator[str]:
    """E11: no service and no worker ends by itself, and no response is wrong."""
    yield from history.faults


RULES: Mapping[str, Callable[[ExchangeHistory], Iterator[str]]] = {
    "E1 acknowledged messages are kept": acknowledged_messages_are_kept,
    "E2 messages are decided once": messages_are_decided_once,
    "E3 decided messages have one follow-up": decided_messages_have_one_follow_up,
    "E4 late ends change nothing": late_ends_change_nothing,
    "E5 acknowledged ends are kept": acknowledged_ends_are_kept,
    "E6 claims run once": claims_run_once,
    "E7 keys are in order": keys_are_in_order,
    "E8 the journal matches the claims": journal_matches_claims,
    "E9 consumers start one run": consumers_start_one_run,
    "E10 invariants hold": invariants_hold,
    "E11 no faults": no_faults,
}


def pages_are_intact(ledger: Path) -> Iterator[str]:
    """Read every page of the ledger, and check references and the schema."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        for rule in (integrity.check_pages, integrity.check_references, integrity.check_schema):
            yield from rule(db)
