"""One attempt to send an event to another instance: build the message, check the breaker, send, judge.

The queued jobs of `core.relay` are the outbox. `run_job` calls this for them instead of starting a process.
"""

import random
from datetime import datetime, timedelta
from functools import partial

import trio

from ductile.config.sections.relay import ingress_url, url_path
from ductile.config.snapshot import Snapshot
from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull
from ductile.core.model import Completion, Dead, Evidence, Failed, Job, Retried, Succeeded
from ductile.core.units import format_duration
from ductile.engine.follow_up_rules import follow_up_rule_of
from ductile.engine.job_context import JobContext
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.async_ledger import Ledger
from ductile.relay.breakers import count_attempt, hold_if_unreachable
from ductile.relay.client import NoResponse, send_request
from ductile.relay.message import RelayMessage, build_message
from ductile.relay.protocol import signed_headers
from ductile.relay.response import RelayCompletion, SendResult, judge_response, without_delivery


async def send_job(ctx: JobContext, attempt: Attempt) -> Completion | None:
    """Run one attempt and return its completion; None if the job was postponed until its instance answers."""
    job, snapshot, now = attempt.job, attempt.snapshot, ctx.clock.now()
    message = build_message(snapshot, job)
    if not isinstance(message, RelayMessage):
        return _complete(ctx, job, without_delivery(job, message, snapshot, now), snapshot)
    if await _is_postponed(ctx, message, job, now=now):
        ctx.log.info("relay", "event postponed: its instance does not respond", **_log_fields(job, message))
        return None
    started = trio.current_time()
    sent = await _send(attempt, message, now=now)
    duration = timedelta(seconds=trio.current_time() - started)
    evidence = Evidence(started_at=now, duration=duration, timed_out=sent.timed_out)
    try:
        await _count_attempt(ctx.ledger, message, job, sent, now=ctx.clock.now())
    except LedgerError as error:  # the delivery counts, whether or not the breaker was updated
        ctx.log.warn("relay", f"the breaker was not updated: {error}", **_log_fields(job, message))
    completion = judge_response(job, message, sent, evidence, snapshot, now=ctx.clock.now(), chance=random.random())
    return _complete(ctx, job, completion, snapshot, message)


async def _is_postponed(ctx: JobContext, message: RelayMessage, job: Job, *, now: datetime) -> bool:
    """Postpone the job if its instance does not respond. Need not be durable: recovery queues the job again too."""
    name, chance = message.instance.name, random.random()
    decide = partial(hold_if_unreachable, instance=name, job=job, run_id=ctx.run_id, now=now, chance=chance)
    try:
        return await ctx.ledger.transact(decide, wait=False)
    except (LedgerFull, LedgerBusy) as error:  # send anyway: a failure here would use up an attempt
        ctx.log.warn("relay", f"the breaker was not checked: {error}", **_log_fields(job, message))
        return False


async def _send(attempt: Attempt, message: RelayMessage, *, now: datetime) -> SendResult:
    """Send one request within the instance's timeout, or until the attempt is stopped."""
    instance, url = message.instance, ingress_url(message.instance)
    own = attempt.snapshot.config.settings.service.name
    headers = signed_headers(own, instance.key_id, message.secret, url_path(url), message.body, now=now)
    stop = attempt.control.stop
    with trio.CancelScope() as stopping, stop.cancels(stopping):
        with trio.move_on_after(instance.timeout.total_seconds()):
            try:
                return SendResult(response=await send_request("POST", url, headers, message.body))
            except NoResponse as error:
                return SendResult(response=error)
        if not stopping.cancel_called:
            return SendResult(
                response=NoResponse(f"no response within {format_duration(instance.timeout)}"), timed_out=True
            )
    return SendResult(stopped=stop.reason)


async def _count_attempt(ledger: Ledger, message: RelayMessage, job: Job, sent: SendResult, *, now: datetime) -> None:
    """Count the attempt in the instance's breaker. Writes nothing while the breaker is closed and requests succeed."""
    if sent.response is not None:
        await ledger.write(count_attempt, message.instance.name, job, is_reachable=sent.is_reachable, now=now)


def _complete(
    ctx: JobContext, job: Job, completion: RelayCompletion, snapshot: Snapshot, message: RelayMessage | None = None
) -> Completion:
    """Log the outcome and build the completion to record."""
    log, fields = ctx.log, _log_fields(job, message)
    match completion.outcome:
        case Succeeded() if completion.is_unrouted:
            log.warn("relay", "event relayed, but the receiver has no route for it", **fields)
        case Succeeded():
            log.info("relay", "event relayed", **fields)
        case Retried(error, delay):
            log.warn("relay", f"attempt failed: {error}", **fields, retry_in_seconds=delay.total_seconds())
        case Failed(error) | Dead(error):
            log.error("relay", f"job failed: {error}", **fields)
        case _:
            log.info("relay", "attempt interrupted", **fields)
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=completion.outcome,
        contexts=completion.follow_ups.contexts,
        children=completion.follow_ups.children,
        arrivals=completion.follow_ups.arrivals,
        notes=completion.follow_ups.notes,
        rule=follow_up_rule_of(snapshot),
        tolerated=completion.follow_ups.tolerated,
    )


def _log_fields(job: Job, message: RelayMessage | None) -> dict[str, str | int]:
    fields: dict[str, str | int] = {"plugin": job.plugin, "job_id": job.id, "attempt": job.attempt}
    return fields | ({"to": message.instance.name, "event": message.envelope.type} if message else {})
