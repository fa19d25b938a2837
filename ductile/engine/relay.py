"""One attempt to send an event to another instance, on one page: pack, ask the breaker, send, judge.

The job itself is the outbox: it is tried until somebody has taken the event. Called by `slots` for the jobs of
`core.relay`, which have no process.
"""

import random
from datetime import datetime, timedelta

import trio

from ductile.config.relay import address_of, path_of
from ductile.config.snapshot import Snapshot
from ductile.engine.follow import rule_of
from ductile.engine.outbox import held_back, is_untroubled, note_attempt
from ductile.engine.parcel import Parcel, pack
from ductile.engine.post import Unanswered, post
from ductile.engine.reply import Judged, Sent, ended, judge_reply
from ductile.engine.run_job import Attempt, Surroundings
from ductile.errors import LedgerError
from ductile.ledger import breakers
from ductile.ledger.writer import Ledger
from ductile.model import Dead, Ending, Evidence, Failed, Job, Retried, Succeeded
from ductile.pipeline.plan import RELAY
from ductile.relay_wire import signed_headers
from ductile.units import format_duration


async def send_job(around: Surroundings, attempt: Attempt, ledger: Ledger) -> Ending | None:
    """The attempt is over and this is what it came to; None if the job was put back, to wait for its instance."""
    job, snapshot, now = attempt.job, attempt.snapshot, around.clock.now()
    parcel = pack(snapshot, job)
    if not isinstance(parcel, Parcel):
        return _told(around, job, ended(job, parcel, snapshot, now), snapshot)
    if await _is_held(ledger, parcel, job, now=now):
        around.log.info("relay", "the event waits: its instance does not answer", **_about(job, parcel))
        return None
    since = trio.current_time()
    sent = await _send(attempt, parcel, now=now)
    duration = timedelta(seconds=trio.current_time() - since)
    evidence = Evidence(started_at=now, duration=duration, timed_out=sent.is_late)
    try:
        await _note(ledger, parcel, job, sent, now=around.clock.now())
    except LedgerError as error:  # what was delivered is delivered, whatever the breaker knows
        around.log.warn("relay", f"the breaker does not know of this attempt: {error}", **_about(job, parcel))
    judged = judge_reply(job, parcel, sent, evidence, snapshot, now=around.clock.now(), chance=random.random())
    return _told(around, job, judged, snapshot, parcel)


async def _is_held(ledger: Ledger, parcel: Parcel, job: Job, *, now: datetime) -> bool:
    name = parcel.instance.name
    if is_untroubled(ledger.look_up(breakers.get, RELAY, name)):
        return False
    return await ledger.write(held_back, name, job, now=now, chance=random.random())


async def _send(attempt: Attempt, parcel: Parcel, *, now: datetime) -> Sent:
    """One request within the instance's time; given up if the attempt is to stop."""
    instance, url = parcel.instance, address_of(parcel.instance)
    own = attempt.snapshot.config.settings.service.name
    headers = signed_headers(own, instance.key_id, parcel.secret, path_of(url), parcel.body, now=now)
    with trio.CancelScope() as stopping:
        attempt.stop.wakes(stopping.cancel)
        with trio.move_on_after(instance.timeout.total_seconds()):
            try:
                return Sent(answer=await post(url, headers, parcel.body))
            except Unanswered as error:
                return Sent(answer=error)
        if not stopping.cancel_called:
            return Sent(answer=Unanswered(f"no answer within {format_duration(instance.timeout)}"), is_late=True)
    return Sent(stopped=attempt.stop.reason)


async def _note(ledger: Ledger, parcel: Parcel, job: Job, sent: Sent, *, now: datetime) -> None:
    """The breaker of the instance knows of the attempt; in ordinary times there is nothing to write."""
    name = parcel.instance.name
    if sent.answer is None or (sent.is_answered and is_untroubled(ledger.look_up(breakers.get, RELAY, name))):
        return
    await ledger.write(note_attempt, name, job, is_answered=sent.is_answered, now=now)


def _told(around: Surroundings, job: Job, judged: Judged, snapshot: Snapshot, parcel: Parcel | None = None) -> Ending:
    """The ending as `record` gets it; the log has heard of it."""
    log, about = around.log, _about(job, parcel)
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
    return Ending(
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


def _about(job: Job, parcel: Parcel | None) -> dict[str, str | int]:
    about: dict[str, str | int] = {"plugin": job.plugin, "job_id": job.id, "attempt": job.attempt}
    return about | ({"to": parcel.instance.name, "event": parcel.envelope.type} if parcel else {})
