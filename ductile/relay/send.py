"""One attempt to send an event to another instance, on one page: pack, ask the breaker, send, judge.

The job itself is the outbox: it is tried until somebody has taken the event. Called by `run_job` for the jobs of
`core.relay`, which have no process.
"""

import random
from datetime import datetime, timedelta
from functools import partial

import trio

from ductile.config.sections.relay import address_of, path_of
from ductile.config.snapshot import Snapshot
from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull
from ductile.core.model import Completion, Dead, Evidence, Failed, Job, Retried, Succeeded
from ductile.core.units import format_duration
from ductile.engine.follow_up_rules import rule_of
from ductile.engine.job_context import JobContext
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.writer import Ledger
from ductile.relay.breakers import held_back, note_attempt
from ductile.relay.client import Unanswered, post
from ductile.relay.message import RelayMessage, build_message
from ductile.relay.protocol import signed_headers
from ductile.relay.response import Judged, Sent, ended, judge_reply


async def send_job(ctx: JobContext, attempt: Attempt) -> Completion | None:
    """The attempt is over and this is what it came to; None if the job was put back, to wait for its instance."""
    job, snapshot, now = attempt.job, attempt.snapshot, ctx.clock.now()
    parcel = build_message(snapshot, job)
    if not isinstance(parcel, RelayMessage):
        return _told(ctx, job, ended(job, parcel, snapshot, now), snapshot)
    if await _is_held(ctx, parcel, job, now=now):
        ctx.log.info("relay", "the event waits: its instance does not answer", **_about(job, parcel))
        return None
    since = trio.current_time()
    sent = await _send(attempt, parcel, now=now)
    duration = timedelta(seconds=trio.current_time() - since)
    evidence = Evidence(started_at=now, duration=duration, timed_out=sent.is_late)
    try:
        await _note(ctx.ledger, parcel, job, sent, now=ctx.clock.now())
    except LedgerError as error:  # what was delivered is delivered, whatever the breaker knows
        ctx.log.warn("relay", f"the breaker does not know of this attempt: {error}", **_about(job, parcel))
    judged = judge_reply(job, parcel, sent, evidence, snapshot, now=ctx.clock.now(), chance=random.random())
    return _told(ctx, job, judged, snapshot, parcel)


async def _is_held(ctx: JobContext, parcel: RelayMessage, job: Job, *, now: datetime) -> bool:
    """Put the job back if its instance does not answer. It need not be durable: recovery queues the job again too."""
    name, chance = parcel.instance.name, random.random()
    decide = partial(held_back, instance=name, job=job, run_id=ctx.run_id, now=now, chance=chance)
    try:
        return await ctx.ledger.transact(decide, wait=False)
    except (LedgerFull, LedgerBusy) as error:  # send it: to fail here would use up an attempt
        ctx.log.warn("relay", f"the breaker was not asked: {error}", **_about(job, parcel))
        return False


async def _send(attempt: Attempt, parcel: RelayMessage, *, now: datetime) -> Sent:
    """One request within the instance's time; given up if the attempt is to stop."""
    instance, url = parcel.instance, address_of(parcel.instance)
    own = attempt.snapshot.config.settings.service.name
    headers = signed_headers(own, instance.key_id, parcel.secret, path_of(url), parcel.body, now=now)
    stop = attempt.control.stop
    with trio.CancelScope() as stopping, stop.cancels(stopping):
        with trio.move_on_after(instance.timeout.total_seconds()):
            try:
                return Sent(answer=await post(url, headers, parcel.body))
            except Unanswered as error:
                return Sent(answer=error)
        if not stopping.cancel_called:
            return Sent(answer=Unanswered(f"no answer within {format_duration(instance.timeout)}"), is_late=True)
    return Sent(stopped=stop.reason)


async def _note(ledger: Ledger, parcel: RelayMessage, job: Job, sent: Sent, *, now: datetime) -> None:
    """The breaker of the instance knows of the attempt; in ordinary times there is nothing to write."""
    if sent.answer is not None:
        await ledger.write(note_attempt, parcel.instance.name, job, is_answered=sent.is_answered, now=now)


def _told(
    ctx: JobContext, job: Job, judged: Judged, snapshot: Snapshot, parcel: RelayMessage | None = None
) -> Completion:
    """The ending as `record` gets it; the log has heard of it."""
    log, about = ctx.log, _about(job, parcel)
    match judged.outcome:
        case Succeeded() if judged.is_unrouted:
            log.warn("relay", "event relayed, but nobody there takes it", **about)
        case Succeeded():
            log.info("relay", "event relayed", **about)
        case Retried(error, delay):
            log.warn("relay", f"attempt failed: {error}", **about, retry_in_seconds=delay.total_seconds())
        case Failed(error) | Dead(error):
            log.error("relay", f"job failed: {error}", **about)
        case _:
            log.info("relay", "attempt interrupted", **about)
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=judged.outcome,
        contexts=judged.following.contexts,
        children=judged.following.children,
        arrivals=judged.following.arrivals,
        notes=judged.following.notes,
        rule=rule_of(snapshot),
        tolerated=judged.following.tolerated,
    )


def _about(job: Job, parcel: RelayMessage | None) -> dict[str, str | int]:
    about: dict[str, str | int] = {"plugin": job.plugin, "job_id": job.id, "attempt": job.attempt}
    return about | ({"to": parcel.instance.name, "event": parcel.envelope.type} if parcel else {})
