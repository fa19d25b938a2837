"""Messages of pipeline steps: published once for each try of the job; the first reply ends the wait."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, evolve

from ductile.core.message import Message, NewMessage, ReplyTopics
from ductile.core.model import Job
from ductile.ledger.exchange.publish import StepMessage, publish_for_step
from ductile.ledger.exchange.retention import expired_conversations
from ductile.ledger.exchange.waiting_steps import waiting_steps
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue.outbox import postpone
from ductile.ledger.storage.connections import transaction
from tests.ledger.conftest import LedgerDriver
from tests.ledger.exchange.conftest import ExchangeDriver

TOPICS = ReplyTopics(success="approval.done", failure="approval.failed", timeout="approval.request.timed_out")


@define
class Step:
    """A running job of a publish step."""

    exchange: ExchangeDriver
    job: Job

    def publish(self) -> StepMessage:
        new = NewMessage(topic="approval.request", body="Deploy?", source_job_id=self.job.id)
        about: dict[str, Any] = {"now": self.exchange.now, "rules": self.exchange.rules}
        with transaction(self.exchange.db):
            return publish_for_step(self.exchange.db, self.job, new, TOPICS, **about)

    def wait(self) -> Message:
        """Publish and queue the job until the timeout, as the service does."""
        message, until = self.publish().message, self.exchange.now.replace(year=2100)
        with transaction(self.exchange.db):
            (run_id,) = self.exchange.db.execute(
                "SELECT claimed_by FROM job_queue WHERE id = ?", (self.job.id,)
            ).fetchone()
            job = self.job
            assert postpone(
                self.exchange.db, job.id, job.attempt, "waits", run_id=run_id, until=until, now=self.exchange.now
            )
        return message

    def is_ready(self) -> bool:
        row = self.exchange.db.execute("SELECT lane FROM job_queue WHERE id = ?", (self.job.id,)).fetchone()
        return row[0] is not None


@pytest.fixture
def step(ledger: LedgerDriver, exchange: ExchangeDriver) -> Step:
    ledger.enqueue(plugin="core.publish", max_attempts=4)
    job = ledger.claim_one("core.publish")
    found = get_job(ledger.db, job.id)
    assert found is not None
    return Step(exchange, found)


def test_a_try_publishes_once(step: Step) -> None:
    first = step.publish()
    again = step.publish()
    assert (first.published is not None, again.published, again.message) == (True, None, first.message)
    step.job = evolve(step.job, attempt=step.job.attempt + 1, interruptions=1)  # the service died
    assert step.publish().message == first.message
    step.job = evolve(step.job, attempt=step.job.attempt + 1)  # another try
    assert step.publish().message != first.message


def test_only_a_reply_to_the_message_ends_the_wait(step: Step, exchange: ExchangeDriver) -> None:
    message = step.wait()
    chatter = exchange.publish(topic="approval.chatter", parent_id=message.id)
    exchange.publish(topic="approval.done")
    exchange.publish(topic="approval.done", parent_id=exchange.publish(topic="other", conversation_id=message.id).id)
    assert not step.is_ready()
    reply = exchange.publish(topic="approval.done", parent_id=chatter.id)
    assert step.is_ready()
    exchange.publish(topic="approval.failed", parent_id=message.id)
    assert step.publish().reply == reply, "the first reply counts"


def test_every_kind_of_answer_ends_the_wait(ledger: LedgerDriver, exchange: ExchangeDriver) -> None:
    """A reply by its parent, by its conversation alone, a timeout of the worker, and a dead letter."""
    limit = exchange.rules("approval.request").max_deliveries

    def die(_message: Message) -> None:
        for _ in range(limit):
            exchange.release(exchange.claim_one("approval.request").id)

    answers: dict[str, Callable[[Message], object]] = {
        "parent": lambda message: exchange.publish(topic="approval.failed", parent_id=message.id),
        "conversation": lambda message: exchange.publish(topic="approval.done", conversation_id=message.id),
        "timeout": lambda message: exchange.publish(topic=TOPICS.timeout, parent_id=message.id),
        "dead": die,
    }
    waiting = []
    for name, answer in answers.items():
        ledger.enqueue(plugin="core.publish", max_attempts=4)
        job = get_job(ledger.db, ledger.claim_one("core.publish").id)
        assert job is not None
        step = Step(exchange, job)
        answer(step.wait())
        if not step.is_ready():
            waiting.append(name)
        while claimed := exchange.claim("approval.request"):
            exchange.end(claimed[0].claim.id, topic=None)
        ledger.db.execute("DELETE FROM job_queue")
    assert waiting == []


def test_a_conversation_in_which_a_step_waits_does_not_expire(step: Step, exchange: ExchangeDriver) -> None:
    message = step.wait()
    exchange.end(exchange.claim_one("approval.request").id, topic=None)
    exchange.advance(days=31)
    about: dict[str, Any] = {"shortest": exchange.rules("").retention, "now": exchange.now, "last": 1 << 62}
    assert expired_conversations(exchange.db, exchange.rules, **about).ids == ()
    assert waiting_steps(exchange.db) == [(message.conversation_id, step.job.id)]
    exchange.db.execute("DELETE FROM job_queue")
    assert expired_conversations(exchange.db, exchange.rules, **about).ids == (message.conversation_id,)
