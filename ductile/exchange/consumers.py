"""Start a run for each message of the topics in `exchange.consumers`, and publish the reply when the run ends.

A message is claimed in the transaction that starts its run. The claim has no lease: the run is durable, and ends it.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio
from attrs import define, evolve, field

from ductile.config.sections.exchange import Consumer
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import DuctileError, LedgerError
from ductile.core.formats import strict_json
from ductile.core.hub import CONFIGURATION, tree_topic
from ductile.core.instance.failpoints import failpoint
from ductile.core.message import Claim, ClaimStatus, FollowUp, Message
from ductile.core.model import HANDLE, FollowUps, JobStatus, NewJob, Prefinished
from ductile.engine.job_context import LEDGER_RETRY_INTERVAL, JobContext
from ductile.exchange.service import MessageExchange
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.exchange import finish
from ductile.ledger.exchange.claim import ClaimedMessage, Worker, claim_messages, set_job
from ductile.ledger.exchange.consumer_claims import RunEnd, end_of_run, open_consumer_claims
from ductile.ledger.exchange.finish import Ended
from ductile.ledger.exchange.publish import SERVICE
from ductile.ledger.jobs.enqueue import Enqueued
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.db import Db
from ductile.pipeline.run.events import Event, derived_id
from ductile.pipeline.run.execute import START, plugin_unavailable
from ductile.pipeline.run.ingress import create_handle_job, route_external_event, trigger_run_with
from ductile.pipeline.run.route import TooManyFollowUps
from ductile.pipeline.run.run_signals import run_payload, run_rule_of

SUBMITTER = "exchange"
GROUP = "ductile"
"""The worker group of all consumers."""
EVENT_TYPE = "exchange.message"
"""The type of the event that a plugin or pipeline receives for a message."""
MAX_DEPTH = strict_json.MAX_DEPTH - 4
"""Of a body and of metadata in a run: they are inside the event of a job, and that inside its request."""
RECHECK_SECONDS = 60.0
"""After this time without an announcement, the ledger is read again."""


@define(eq=False, kw_only=True)
class Consumers:
    """The consumers of a running service."""

    exchange: MessageExchange
    ctx: JobContext
    _open: Counter[str] = field(factory=Counter)
    """The open runs of each topic."""
    _run_ended: trio.Event = field(factory=trio.Event)
    """Set and replaced when a run ends."""

    async def run(self) -> None:
        """Consume until it is cancelled. A reload replaces the consumers; runs that have started continue."""
        async with trio.open_nursery() as runs:
            for claim in await self.ctx.ledger.read(open_consumer_claims):
                self._watch_run(claim, runs)
            with self.ctx.hub.watch(CONFIGURATION) as reloaded:
                while True:
                    snapshot = self.ctx.snapshot()
                    async with trio.open_nursery() as consumers:
                        for consumer in self._enabled(snapshot):
                            consumers.start_soon(self._consume, consumer, runs, name=f"consumer {consumer.topic}")
                        while self.ctx.snapshot() is snapshot:
                            await reloaded.receive()
                        consumers.cancel_scope.cancel()

    def _enabled(self, snapshot: Snapshot) -> tuple[Consumer, ...]:
        settings = snapshot.config.settings.exchange
        return settings.consumers if settings.enabled else ()

    async def _consume(self, consumer: Consumer, runs: trio.Nursery) -> None:
        """Start a run for each ready message, as long as fewer than `max_open` runs are open.

        The consumer waits for messages only then, so that the others wake workers outside of Ductile.
        """
        if reason := _unavailable_reason(consumer, self.ctx.snapshot()):
            self.ctx.log.warn("exchange", f"messages wait: {reason}", topic=consumer.topic)
            return
        while True:
            while self._open[consumer.topic] >= consumer.max_open:
                await self._run_ended.wait()
            claim = await self._start_next_run(consumer)
            if claim is None:
                return
            self._watch_run(claim, runs)

    async def _start_next_run(self, consumer: Consumer) -> Claim | None:
        """Wait for a message, claim it and start its run. None when the service stops."""
        with self.exchange.waiters.waiting([consumer.topic]) as waiter:
            while not self.exchange.is_stopping():
                claim = await self._start_run(consumer)
                waiter.use({consumer.topic} if claim else ())
                if claim is not None:
                    return claim
                await waiter.wait()
        return None

    async def _start_run(self, consumer: Consumer) -> Claim | None:
        """Claim the next message and start its run; None if no message is ready."""
        snapshot = self.ctx.snapshot()
        start = partial(_claim_and_start, consumer=consumer, snapshot=snapshot, ctx=self.ctx)
        while True:
            try:
                claim = await self.ctx.ledger.transact(start, wait=False)
                break
            except LedgerError as error:
                self.ctx.log.warn("exchange", f"message not consumed, trying again: {error}", topic=consumer.topic)
                await trio.sleep(LEDGER_RETRY_INTERVAL)
        if claim is not None:
            self.ctx.hub.announce_work()
        return claim

    def _watch_run(self, claim: Claim, runs: trio.Nursery) -> None:
        self._open[claim.topic] += 1
        runs.start_soon(self._end_with_run, claim, name=f"run of message {claim.message_id}")

    async def _end_with_run(self, claim: Claim) -> None:
        """Wait for the end of the run, end the claim and publish the reply."""
        assert claim.job_id is not None, "the claim of a consumer has a job"
        with self.ctx.hub.watch(tree_topic(claim.job_id)) as ended:
            while not await self._try_to_end(claim):
                with trio.move_on_after(RECHECK_SECONDS):
                    await ended.receive()
        self._open[claim.topic] -= 1
        self._run_ended.set()
        self._run_ended = trio.Event()

    async def _try_to_end(self, claim: Claim) -> bool:
        """End the claim if its run has ended; False while the run is open. Repeat while the ledger refuses."""
        end = partial(_end_claim, claim=claim, snapshot=self.ctx.snapshot(), exchange=self.exchange, ctx=self.ctx)
        while True:
            try:
                with trio.CancelScope(shield=True):  # bounded: the ledger waits a few seconds for another writer
                    ended = await self.ctx.ledger.transact(end, wait=False)
                break
            except LedgerError as error:
                self.ctx.log.warn("exchange", f"claim not ended, trying again: {error}", message_id=claim.message_id)
                await trio.sleep(LEDGER_RETRY_INTERVAL)
        if isinstance(ended, Ended):
            self.exchange.announce_end(ended)
        return ended is not None


def _unavailable_reason(consumer: Consumer, snapshot: Snapshot) -> str | None:
    """Return why the target of the consumer cannot run; None if it can."""
    if consumer.pipeline is not None and consumer.pipeline not in snapshot.plans.by_name:
        return f"pipeline {consumer.pipeline} does not exist"
    if consumer.plugin is not None and (refused := snapshot.routing.target(consumer.plugin).refused):
        return f"plugin {consumer.plugin} {refused}"
    return None


def _claim_and_start(db: Db, consumer: Consumer, snapshot: Snapshot, ctx: JobContext) -> Claim | None:
    """Claim the oldest message of the topic and start its run."""
    now = ctx.clock.now()
    worker = Worker(group=GROUP, instance_id=ctx.run_id, actor=SERVICE)
    claimed = claim_messages(db, [consumer.topic], worker, lease=None, now=now)
    if not claimed:
        return None
    (message,) = claimed
    failpoint("exchange.consume")
    enqueued = _start(db, first_jobs(consumer, message, snapshot), snapshot, ctx)
    root_id = enqueued[0].root_job_id
    set_job(db, message.claim.id, root_id)
    return evolve(message.claim, job_id=root_id)


def _start(db: Db, jobs: FollowUps, snapshot: Snapshot, ctx: JobContext) -> list[Enqueued]:
    return start_run(
        db,
        jobs,
        now=ctx.clock.now(),
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
        run_rule=run_rule_of(snapshot.routing),
    )


def first_jobs(consumer: Consumer, claimed: ClaimedMessage, snapshot: Snapshot) -> FollowUps:
    """Return the first jobs of the run, the root first. A run that cannot start is a failed root job. Pure."""
    message, at = claimed.message, claimed.claim.claimed_at
    event = Event(message.id, consumer.event or EVENT_TYPE, message_payload(message), SUBMITTER, at)
    root_id = derived_id(claimed.claim.id, SUBMITTER)  # a message that was requeued starts another run
    try:
        return _first_jobs(consumer, evolve(event, message=describe(claimed)), root_id, snapshot)
    except (TooManyFollowUps, DuctileError) as error:
        root = _root(root_id, event, snapshot, JobStatus.FAILED, f"the run cannot start: {error}")
        return FollowUps(children=(root,))


def _first_jobs(consumer: Consumer, event: Event, root_id: str, snapshot: Snapshot) -> FollowUps:
    routing = snapshot.routing
    run: dict[str, Any] = {"submitted_by": SUBMITTER, "baggage": {"message": event.message}}
    if consumer.event is not None:
        return _under_one_root(route_external_event(event, routing, **run), event, root_id, snapshot)
    if consumer.pipeline is not None:
        return trigger_run_with(snapshot.plans.require(consumer.pipeline), event, routing, **run)
    if consumer.command == HANDLE:
        return create_handle_job(consumer.plugin or "", event, routing, submitted_by=SUBMITTER)
    target = routing.target(consumer.plugin or "")
    job = NewJob(
        plugin=consumer.plugin or "",
        command=consumer.command,
        submitted_by=SUBMITTER,
        payload=strict_json.dumps(event.payload),
        max_attempts=target.max_attempts,
        source_event_id=event.id,
        snapshot_id=routing.snapshot_id,
        notify=target.notify,
        prefinished=plugin_unavailable(consumer.plugin or "", target.refused) if target.refused else None,
    )
    return FollowUps(children=(job,))


def message_payload(message: Message) -> dict[str, Any]:
    """Return the payload of the run: the body if that is a JSON object of at most MAX_DEPTH levels, else its text."""
    try:
        content = strict_json.loads(message.body, max_depth=MAX_DEPTH)
    except DuctileError:
        content = None
    return content if isinstance(content, dict) else {"body": message.body}


def describe(claimed: ClaimedMessage) -> dict[str, Any]:
    """Return what the run knows about its message, apart from the body. Raises Unreadable for too deep metadata."""
    message = claimed.message
    return {
        "id": message.id,
        "topic": message.topic,
        "conversation_id": message.conversation_id,
        "parent_id": message.parent_id,
        "producer": message.producer,
        "created_at": to_text(message.created_at),
        "metadata": _metadata(message.metadata_json),
        "delivery": claimed.claim.delivery,
    }


def _metadata(text: str | None) -> Any:
    return strict_json.loads(text, source="metadata", max_depth=MAX_DEPTH) if text else {}


def _under_one_root(runs: tuple[FollowUps, ...], event: Event, root_id: str, snapshot: Snapshot) -> FollowUps:
    """Put the runs that an event has started under one root job, whose end is the end of all of them."""
    started = [run for run in runs if run.children]
    notes = tuple(note for run in runs for note in run.notes)
    if len(started) == 1:
        return evolve(started[0], notes=notes)
    if not started:
        reason = f"no pipeline starts for event type {event.type}"
        return FollowUps(children=(_root(root_id, event, snapshot, JobStatus.FAILED, reason),), notes=notes)
    root = _root(root_id, event, snapshot, JobStatus.SUCCEEDED)
    children = [
        evolve(new, parent_job_id=root.id, own_tree=False) if new.parent_job_id is None else new
        for run in started
        for new in run.children
    ]
    return FollowUps(
        contexts=tuple(context for run in started for context in run.contexts),
        children=(root, *children),
        arrivals=tuple(arrival for run in started for arrival in run.arrivals),
        notes=notes,
    )


def _root(root_id: str, event: Event, snapshot: Snapshot, status: JobStatus, error: str | None = None) -> NewJob:
    """Return a finished root job without a plugin."""
    return NewJob(
        id=root_id,
        plugin=START,
        command=HANDLE,
        submitted_by=SUBMITTER,
        payload=event.envelope(),
        source_event_id=event.id,
        snapshot_id=snapshot.routing.snapshot_id,
        prefinished=Prefinished(status=status, error=error),
    )


def _end_claim(
    db: Db, claim: Claim, snapshot: Snapshot, exchange: MessageExchange, ctx: JobContext
) -> Ended | finish.LostClaim | None:
    """End the claim with the result of its run; None if the run has not ended."""
    now = ctx.clock.now()
    end = end_of_run(db, claim.job_id or "", now=now)
    if end is None:
        if get_job(db, claim.job_id or "") is not None:
            return None
        failed, rules = ClaimStatus.FAILED, exchange.rules
        return finish.end(db, claim.id, failed, now=now, actor=SERVICE, rules=rules, reason="its run was deleted")
    consumers = snapshot.config.settings.exchange.consumers
    consumer = next((one for one in consumers if one.topic == claim.topic), Consumer(topic=claim.topic))
    body = reply_body(end, snapshot)
    if end.status is ClaimStatus.COMPLETED and len(body.encode()) > snapshot.config.settings.exchange.max_body_size:
        end = evolve(end, status=ClaimStatus.FAILED)
        size = f"{len(body.encode()):,} bytes"
        body = f"the result has {size}, more than exchange.max_body_size allows; job {end.run.root.id} has it"
    follow_up = reply_to(end, consumer.reply_topic(end.status), body)
    return finish.end(db, claim.id, end.status, now=now, actor=SERVICE, rules=exchange.rules, follow_up=follow_up)


def reply_body(end: RunEnd, snapshot: Snapshot) -> str:
    """Return the result of the run as text, or what failed. Pure."""
    if end.status is ClaimStatus.COMPLETED:
        return snapshot.config.mask(_result_text(end.result))
    return snapshot.config.mask(str(run_payload(end.run)["message"]))


def reply_to(end: RunEnd, topic: str | None, body: str) -> FollowUp | None:
    """Return the reply of a run; None without a topic. Pure."""
    if topic is None:
        return None
    root_id, duration = end.run.root.id, run_payload(end.run)["duration_ms"]
    metadata = strict_json.dumps({"job_id": root_id, "status": str(end.status), "duration_ms": duration})
    return FollowUp(topic=topic, body=body, metadata_json=metadata, source_job_id=root_id)


def _result_text(result: Any) -> str:
    """Return the text of a result: its `text`, `message` or `result`, else the result as JSON."""
    if isinstance(result, Mapping):
        for name in ("text", "message", "result"):
            if isinstance(result.get(name), str):
                return str(result[name])
    return strict_json.dumps(result)
