"""The clients: publishers, and workers that use the API themselves. Both record every response.

A request without a response is sent again to the next service: a publish with its Idempotency-Key, an end with its
claim id.
"""

import random
import time
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from scripts.tortures.exchange.lib.api import Answer, ServiceAddress
from scripts.tortures.exchange.lib.instance import HAND, POISON, RUN, STEPS, TRY, WORK

TOPICS = {WORK: 8, STEPS: 4, HAND: 3, RUN: 2, TRY: 1, POISON: 1}
OUTCOMES = {"ok": 12, "fail": 2, "again": 1}
SECONDS = (0, 0, 0, 0.1, 0.5)
"""How long commands take."""
MAX_STEPS = 5
"""Messages of one ordered conversation."""
DELAYED_SHARE = 0.1
HAND_LEASE_SECONDS = 1.0


@frozen
class Acknowledged:
    """A publish that was acknowledged: from now on the message must not be lost."""

    message_id: str
    topic: str
    body: str


@define
class Publishers:
    """Publish messages. Thread-safe: each thread has its own random numbers."""

    address: ServiceAddress
    per_second: float
    seed: int
    count: int
    acknowledged: list[Acknowledged] = field(factory=list)
    refused: list[str] = field(factory=list)
    _numbers: dict[int, int] = field(factory=dict)
    _rngs: dict[int, random.Random] = field(factory=dict)
    _conversations: dict[int, list[str]] = field(factory=dict)

    def publish_one(self, thread: int) -> None:
        """Publish one message, and wait until the next."""
        rng = self._rngs.setdefault(thread, random.Random(f"{self.seed}/{thread}"))
        (topic,) = rng.choices(list(TOPICS), list(TOPICS.values()))
        number = self._numbers[thread] = self._numbers.get(thread, 0) + 1
        outcome = "poison" if topic == POISON else rng.choices(list(OUTCOMES), list(OUTCOMES.values()))[0]
        name = f"{thread}.{number}"
        body = f"{name} {outcome} {rng.choice(SECONDS)}"
        message: dict[str, Any] = {"topic": topic, "body": body + "\n", "producer": "torture"}
        conversation = self._conversations.get(thread, [])
        if topic == STEPS and conversation:
            message["conversation_id"] = conversation[0]
        elif rng.random() < DELAYED_SHARE:
            message["delay"] = "500ms"
        answer = self.address.post("/exchange/messages", message, {"idempotency-key": f"{self.seed}-{name}"})
        if answer is not None:
            self._record(thread, message, answer)
        time.sleep(rng.expovariate(self.per_second / self.count))

    def _record(self, thread: int, message: Mapping[str, Any], answer: Answer) -> None:
        if answer.status not in (200, 201):
            self.refused.append(f"{answer.status} {answer.body}")
            return
        message_id = answer.body["message_id"]
        self.acknowledged.append(Acknowledged(message_id, message["topic"], message["body"]))
        if message["topic"] == STEPS:
            conversation = self._conversations.get(thread, [])
            steps = [*conversation, answer.body["conversation_id"]]
            self._conversations[thread] = steps if len(steps) < MAX_STEPS else []


@frozen
class EndedByHand:
    """A claim whose end was acknowledged."""

    claim_id: str
    status: str
    follow_up_id: str


@define
class HandWorkers:
    """Claim messages over the API, and end them in time, twice, or too late."""

    address: ServiceAddress
    seed: int
    ended: list[EndedByHand] = field(factory=list)
    refused_late: list[str] = field(factory=list)
    """Claims whose end was refused with `claim_lost`."""
    wrong: list[str] = field(factory=list)
    _rngs: dict[int, random.Random] = field(factory=dict)

    def work_once(self, thread: int) -> None:
        """Claim one message and end the claim."""
        rng = self._rngs.setdefault(thread, random.Random(f"{self.seed}/hand/{thread}"))
        worker = {"worker_group": "hands", "worker_instance_id": f"hand-{thread}"}
        wanted = {"topic": HAND, "lease": HAND_LEASE_SECONDS, "wait": "1s", **worker}
        answer = self.address.post("/exchange/claims", wanted)
        for claim in answer.body.get("claims", ()) if answer and answer.status == 200 else ():
            self._end(claim, rng)

    def _end(self, claim: Mapping[str, Any], rng: random.Random) -> None:
        claim_id, number = claim["claim_id"], claim["message"]["body"].split()[0]
        match rng.choices(("once", "twice", "late", "released"), (6, 3, 2, 1))[0]:
            case "late":
                time.sleep(HAND_LEASE_SECONDS * 1.5)  # a lease that a restart has extended is not over yet
                self._complete(claim_id, f"late {number}")
            case "released":
                released = self.address.post(f"/exchange/claims/{claim_id}/release", {"uncounted": True})
                if released and released.status == 200 and (end := self._complete(claim_id, f"released {number}")):
                    self.wrong.append(f"claim {claim_id} was released, and its end was accepted: {end}")
            case what:
                first = self._complete(claim_id, f"done {number}")
                again = self._complete(claim_id, f"done {number}") if what == "twice" else None
                if (
                    first
                    and again
                    and (again.body["follow_up"], again.body["repeated"]) != (first.body["follow_up"], True)
                ):
                    self.wrong.append(f"claim {claim_id} was completed twice: {first}, {again}")
                other = (
                    self.address.post(f"/exchange/claims/{claim_id}/fail", {"body": "no"}) if first and again else None
                )
                if other and other.status != 409:
                    self.wrong.append(f"claim {claim_id} was completed and then failed: {other}")

    def _complete(self, claim_id: str, body: str) -> Answer | None:
        """Complete the claim. Returns the answer if it was accepted."""
        answer = self.address.post(f"/exchange/claims/{claim_id}/complete", {"body": body})
        if answer is None:
            return None
        if answer.status == 200:
            self.ended.append(EndedByHand(claim_id, "completed", answer.body["follow_up"]["message_id"]))
            return answer
        if (answer.status, answer.body.get("code")) == (409, "claim_lost"):
            self.refused_late.append(claim_id)
        elif answer.status != 503:
            self.wrong.append(f"claim {claim_id}: {answer}")
        return None
