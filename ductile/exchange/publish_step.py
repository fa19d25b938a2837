"""Run one attempt of a `core.publish` job: publish the message of a pipeline step, or end the step with its reply.

A step that waits is a queued job without a process. The ledger makes it ready when the reply is published.
"""

import random
from datetime import datetime, timedelta
from typing import Any

import trio
from attrs import evolve, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import DuctileError, LedgerBusy, LedgerFull
from ductile.core.formats import strict_json
from ductile.core.message import (
    HopsExceeded,
    Message,
    MessageInvalid,
    MessageState,
    NewMessage,
    TopicFull,
    checked_message,
)
from ductile.core.model import (
    Completion,
    Dead,
    Evidence,
    Failed,
    Interrupted,
    Job,
    Outcome,
    OutcomeCode,
    Retried,
    Succeeded,
    attempts_used_up,
)
from ductile.core.units import format_duration
from ductile.engine.completion import complete_with_event, complete_without_run
from ductile.engine.job_context import JobContext
from ductile.engine.judge import MAX_ERROR_CHARS, backoff, stop_outcome
from ductile.engine.running_jobs import Attempt
from ductile.exchange.service import MessageExchange
from ductile.ledger.exchange.publish import SERVICE, StepMessage, publish_for_step
from ductile.ledger.queue.outbox import postpone
from ductile.ledger.storage.db import Db
from ductile.pipeline.compile.plan import STEP_SUCCEEDED
from ductile.pipeline.language.parse import Publish, ReplyWait
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.events import Event, event_id, input_payload
from ductile.pipeline.run.outgoing import build_outgoing_message
from ductile.pipeline.run.step_input import find_step

FULL_TOPIC_BACKOFF = timedelta(seconds=10)
MAX_REASON_CHARS = 200
"""Of the body of a reply that becomes the error of the step."""


@frozen
class _Waits:
    """The job is queued until the reply or the timeout."""


async def run_publish_step(exchange: MessageExchange, ctx: JobContext, attempt: Attempt) -> Completion | None:
    """Publish the message, or end the step with the reply. None if the job now waits for it."""
    job, snapshot = attempt.job, attempt.snapshot
    outcome = await _run(exchange, ctx, attempt)
    fields = {"plugin": job.plugin, "job_id": job.id}
    match outcome:
        case _Waits():
            ctx.log.info("exchange", "step waits for a reply", **fields)
            return None
        case Succeeded():
            ctx.log.info("exchange", "step succeeded", **fields, **outcome.data)
        case Failed(error) | Dead(error):
            ctx.log.error("exchange", f"step failed: {error}", **fields)
        case _:
            ctx.log.warn("exchange", "step not published", **fields)
    return _completion(job, outcome, snapshot, now=ctx.clock.now())


async def _run(exchange: MessageExchange, ctx: JobContext, attempt: Attempt) -> Outcome | _Waits:
    job, snapshot = attempt.job, attempt.snapshot
    evidence = Evidence(started_at=ctx.clock.now(), duration=timedelta())
    if reason := attempt.control.stop.reason:
        return stop_outcome(reason, evidence)
    planned = _plan(snapshot, job, evidence)
    if isinstance(planned, Failed | Dead):
        return planned
    message, wait = planned
    try:
        with trio.CancelScope(shield=True):  # bounded: the ledger waits a few seconds for another writer
            step, waits = await ctx.ledger.transact(
                lambda db: _advance(db, job, message, wait, exchange, now=ctx.clock.now(), run_id=ctx.run_id),
                wait=False,
            )
    except (TopicFull, HopsExceeded) as error:
        await exchange.journal_refusal(error, actor=SERVICE)
        if isinstance(error, TopicFull):
            return _retried(job, str(error), evidence)
        return Failed(str(error), evidence, OutcomeCode.REFUSED)
    except (LedgerFull, LedgerBusy) as error:  # does not count as an attempt; the record of it waits for the ledger
        return Interrupted(str(error), evidence)
    if step.published is not None:
        exchange.announce_messages([step.message])
        exchange.wake([step.message.topic] if step.published.state is MessageState.READY else [])
    if waits:
        exchange.await_reply(step.message.conversation_id, job.id)
        return _Waits()
    exchange.end_wait(step.message.conversation_id, job.id)
    return _conclude(step, wait, evidence, snapshot)


def _advance(
    db: Db,
    job: Job,
    new: NewMessage,
    wait: ReplyWait | None,
    exchange: MessageExchange,
    *,
    now: datetime,
    run_id: str,
) -> tuple[StepMessage, bool]:
    """Publish the message unless this try has. Return it, and whether the job was queued to wait for its reply."""
    step = publish_for_step(db, job, new, wait.topics if wait else None, now=now, rules=exchange.rules)
    if wait is None or step.reply is not None or step.message.created_at + wait.timeout <= now:
        return step, False
    reason = f"waits for a reply on {wait.topics.success} or {wait.topics.failure} to message {step.message.id}"
    until = step.message.created_at + wait.timeout
    return step, postpone(db, job.id, job.attempt, reason, run_id=run_id, until=until, now=now)


def _plan(snapshot: Snapshot, job: Job, evidence: Evidence) -> tuple[NewMessage, ReplyWait | None] | Failed | Dead:
    """Render the message, or return the outcome of a step that can never publish."""
    settings = snapshot.config.settings
    if not settings.exchange.enabled:
        return Failed("the exchange is disabled (exchange.enabled)", evidence, OutcomeCode.REFUSED)
    try:
        node = find_step(snapshot.plans, job)
        if node is None or node.publish is None:
            changed = f"step {job.step_id} of pipeline {job.pipeline} is no longer a publish step"
            return Dead(changed, evidence, OutcomeCode.STEP_REMOVED)
        return _message_of(job, node.publish, settings.exchange.max_body_size), node.publish.wait
    except (PathAbsent, MessageInvalid) as error:
        return Failed(snapshot.config.mask(str(error))[:MAX_ERROR_CHARS], evidence, OutcomeCode.REFUSED)
    except DuctileError as error:
        return Dead(str(error), evidence, OutcomeCode.STEP_REMOVED)


def _message_of(job: Job, publish: Publish, max_body_size: int) -> NewMessage:
    rendered = build_outgoing_message(job, publish)
    message = checked_message(
        topic=publish.topic,
        body=rendered.body,
        metadata=dict(rendered.metadata) or None,
        producer=job.pipeline,
        max_body_size=max_body_size,
    )
    return evolve(message, source_job_id=job.id)


def _retried(job: Job, error: str, evidence: Evidence) -> Outcome:
    if job.tries >= job.max_attempts:
        return attempts_used_up(job, error, evidence)
    return Retried(error, backoff(FULL_TOPIC_BACKOFF, job.tries, random.random()), evidence)


def _conclude(step: StepMessage, wait: ReplyWait | None, evidence: Evidence, snapshot: Snapshot) -> Outcome:
    """Return the outcome after the message was published and the wait, if any, is over."""
    message, reply = step.message, step.reply
    data = {"message_id": message.id, "topic": message.topic}
    if wait is None:
        return Succeeded(_with_result(evidence, message.id, step), OutcomeCode.PUBLISHED, data)
    if reply is None:
        timeout = format_duration(wait.timeout)
        error, late = f"no reply within {timeout} to message {message.id}", evolve(evidence, timed_out=True)
        return Failed(error, late, OutcomeCode.NO_REPLY, {**data, "timeout": timeout})
    data |= {"reply_id": reply.id, "topic": reply.topic}
    if reply.topic == wait.topics.success and not reply.is_dead_letter:
        return Succeeded(_with_result(evidence, reply.body, step), OutcomeCode.REPLIED, data)
    why = "the message is dead" if reply.is_dead_letter else snapshot.config.mask(reply.body)[:MAX_REASON_CHARS]
    return Failed(f"reply on {reply.topic}: {why}", evidence, OutcomeCode.REPLY_FAILED, data)


def _with_result(evidence: Evidence, summary: str, step: StepMessage) -> Evidence:
    """Add the result: what the steps after this one find in their payload."""
    fields: dict[str, Any] = {"result": summary, "message": _fields(step.message)}
    if step.reply is not None:
        fields["reply"] = {**_fields(step.reply), **_content(step.reply)}
    return evolve(evidence, result=strict_json.dumps({"status": "ok", **fields}))


def _fields(message: Message) -> dict[str, Any]:
    return {"id": message.id, "topic": message.topic, "conversation_id": message.conversation_id}


def _content(reply: Message) -> dict[str, Any]:
    """Return the content of a reply. `data` is its body if that is a JSON object."""
    fields = {"body": reply.body, "producer": reply.producer, "created_at": to_text(reply.created_at)}
    try:
        data = strict_json.loads(reply.body)
    except DuctileError:
        return fields
    return {**fields, "data": data} if isinstance(data, dict) else fields


def _completion(job: Job, outcome: Outcome, snapshot: Snapshot, *, now: datetime) -> Completion:
    if not isinstance(outcome, Succeeded):
        return complete_without_run(job, outcome, snapshot, now=now)
    content: dict[str, Any] = strict_json.loads(outcome.evidence.result or "{}")
    fields = {name: value for name, value in content.items() if name != "status"}
    payload = {**input_payload(job), **fields}
    event = Event(event_id(job.id, job.attempt, "published"), STEP_SUCCEEDED, payload, job.plugin, now)
    return complete_with_event(job, outcome, event, snapshot, now=now)
