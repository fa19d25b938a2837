"""An event enters a place of a run: the jobs, contexts and arrivals this makes. Pure.

Walks the instructions of a plan until every way ends in a job, at a join, or nowhere. What cannot be entered is a
failed job with its reason, in the tree where everybody sees it. `route` decides what is entered, and with what.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import BranchResult, FollowUps, Job, JobStatus, NewContext, NewJob, Note, Prefinished
from ductile.pipeline.compile.plan import (
    HANDLE,
    STEP_FAILED,
    SWITCH,
    SWITCH_FALSE,
    SWITCH_TRUE,
    Arrive,
    Each,
    End,
    Entry,
    Fork,
    Gate,
    Go,
    Leave,
    Open,
    PlanNode,
)
from ductile.pipeline.language import baggage
from ductile.pipeline.language.baggage import BaggageRefused, Claims, claim, height
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.paths import ABSENT
from ductile.pipeline.run.cursor import Position, dotted, entered, inside_each
from ductile.pipeline.run.events import Ended, Event, derived_id, outcome_payload

FOREACH, START = "core.foreach", "core.start"
MOST_BYTES, MOST_JOBS, MOST_CONTEXT = 64 << 20, 10_000, baggage.MOST_BYTES
STEPS_PER_JOB = 10
# What an event puts around its payload, and a step around that: room that the payload cannot have.
ENVELOPE_LEVELS, ENVELOPE_NODES = 4, 32
NO_CLAIMS = Claims()


class TooManyFollowUps(Exception):
    """What would follow is more than one job may lead to; the message says which limit."""


class Unfit(Exception):
    """A payload that could be written but not read again; the message says why."""


@frozen
class Target:
    """What is to be known of a plugin that gets an event: its attempts, and why it cannot run if it cannot."""

    max_attempts: int = 4
    refused: str | None = None
    notify: bool = False
    """Whether the ends of its root jobs are announced to hook pipelines."""


@frozen
class ExecutionMark:
    """How much a walk had made at some moment."""

    contexts: int
    children: int
    arrivals: int
    notes: int
    refusals: int
    bytes: int
    steps: int


@define(eq=False)
class Walk:
    """What has been made so far by one ending or one trigger."""

    target: Callable[[str], Target]
    config_of: Callable[[str], Mapping[str, Any]]
    most_bytes: int = MOST_BYTES
    most_jobs: int = MOST_JOBS
    most_context: int = MOST_CONTEXT
    snapshot_id: str | None = None
    mask: Callable[[Any], Any] = lambda data: data
    """Hides what must not stand in the journal."""
    contexts: list[NewContext] = field(factory=list)
    children: list[NewJob] = field(factory=list)
    arrivals: list[BranchResult] = field(factory=list)
    notes: list[Note] = field(factory=list)
    refusals: list[str] = field(factory=list)
    """Why something could not be entered; each is also a failed job."""
    _ahead: list[tuple[Entry | NewJob, Event, Position]] = field(factory=list)
    _empty: set[tuple[str, str, str]] = field(factory=set)
    _steps: int = 0
    _bytes: int = 0
    _envelopes: dict[tuple[int, str], tuple[Event, str]] = field(factory=dict)

    def following(self) -> FollowUps:
        return FollowUps(
            contexts=tuple(self.contexts),
            children=tuple(self.children),
            arrivals=tuple(self.arrivals),
            notes=tuple(self.notes),
        )

    def enter(self, entry: Entry, event: Event, at: Position) -> None:
        """Everything that `entry` asks for is made, in the order it is written."""
        # A stack of our own: ways through a long pipeline where nothing runs are longer than Python's.
        self._ahead.append((entry, event, at))
        while self._ahead:
            self._steps += 1
            if self._steps > STEPS_PER_JOB * self.most_jobs:
                raise TooManyFollowUps(
                    f"it takes more than {STEPS_PER_JOB * self.most_jobs:,} steps to find what follows"
                )
            self._step(*self._ahead.pop())

    def _step(self, entry: Entry | NewJob, event: Event, at: Position) -> None:
        match entry:
            case NewJob():
                self._add_join(entry, event)
            case Go(node):
                self._go(node, event, at)
            case Gate():
                self._decide(entry, event, at)
            case Fork(branches):
                inside = [(branch, event, evolve(at, trail=(*at.trail, i))) for i, branch in enumerate(branches)]
                self._ahead += reversed(inside)
            case Each():
                self._each(entry, event, at)
            case Leave(then):
                self._ahead.append((then, event, evolve(at, items=at.items[:-1], indexes=at.indexes[:-1])))
            case Open(join, body):
                self._open(join, body, event, at)
            case Arrive(_, branch, by_item):
                self._arrive(branch, by_item, event, at)
            case End():
                pass

    def mark(self) -> ExecutionMark:
        return ExecutionMark(
            contexts=len(self.contexts),
            children=len(self.children),
            arrivals=len(self.arrivals),
            notes=len(self.notes),
            refusals=len(self.refusals),
            bytes=self._bytes,
            steps=self._steps,
        )

    def go_back_to(self, mark: ExecutionMark) -> None:
        """Everything that was made since then is forgotten."""
        del self.contexts[mark.contexts :], self.children[mark.children :], self.arrivals[mark.arrivals :]
        del self.notes[mark.notes :], self.refusals[mark.refusals :]
        self._ahead.clear()
        self._bytes, self._steps = mark.bytes, mark.steps

    def add_context(self, context: NewContext) -> None:
        self._weigh(context.accumulated_json)
        self.contexts.append(context)

    def _weigh(self, text: str | None) -> None:
        if text is not None:
            self._bytes += len(text) if text.isascii() else len(text.encode())
        if self._bytes > self.most_bytes:
            raise TooManyFollowUps(f"it hands more than {self.most_bytes:,} bytes on to the next jobs")

    def add(self, new: NewJob) -> None:
        self._weigh(new.payload)
        if len(self.children) >= self.most_jobs:
            raise TooManyFollowUps(f"it leads to more than {self.most_jobs:,} jobs at once")
        self.children.append(new)

    def payload_for(self, command: str, event: Event) -> str:
        """The event as a job of `command` gets it; made once for all who get it. Unfit if it could not be read."""
        key = (id(event), command if command != HANDLE else "")
        if key not in self._envelopes:
            text = event.envelope() if command == HANDLE else strict_json.dumps(dict(event.payload))
            _require_readable(text, event.payload)
            self._envelopes[key] = (event, text)  # the event stays, so its id cannot mean another
        return self._envelopes[key][1]

    def _go(self, node: PlanNode, event: Event, at: Position) -> None:
        known = self.target(node.plugin)
        depth = at.depth + 1
        if at.depth_limit and depth > at.depth_limit:
            return self._fail(node, event, at, JobStatus.DEAD, f"max_depth {at.depth_limit} of the pipeline is reached")
        key = at.key(event, node.path)
        try:
            payload = self.payload_for(node.command, event)
            context = self._context(node, event, at, key, depth)
        except (Unfit, BaggageRefused) as refused:
            return self._fail(node, event, at, JobStatus.FAILED, str(refused))
        self.add_context(context)
        if known.refused:
            return self._fail(node, event, at, JobStatus.DEAD, f"plugin {node.plugin} {known.refused}", context)
        self.add(
            self._job(
                node.plugin,
                node.path,
                event,
                at,
                command=node.command,
                child_key=key,
                payload=payload,
                max_attempts=known.max_attempts,
                dedupe_key=self._dedupe_key(node, event, at),
                event_context_id=context.id,
                tolerated=node.tolerated,
                hops=at.hops + node.call_depth,
                notify=known.notify,
            )
        )
        return None

    def _context(self, node: PlanNode, event: Event, at: Position, key: str, depth: int) -> NewContext:
        accumulated = claim(
            node.baggage or NO_CLAIMS,
            at.scope(event),
            at.baggage,
            control=at.control(depth),
            most_bytes=self.most_context,
        )
        return NewContext(
            id=derived_id(at.parent_id, key, "context"),
            parent_id=at.inherits_from,
            pipeline_name=at.plan.name,
            step_id=node.path,
            accumulated_json=accumulated.text,
        )

    def _dedupe_key(self, node: PlanNode, event: Event, at: Position) -> str | None:
        """The event's key, for this step alone: the same event may pass a plugin twice in one run."""
        if event.dedupe_key is None:
            return None
        return f"{at.plan.name}/{node.path}/{dotted(at.indexes)}/{dotted(at.trail)}:{event.dedupe_key}"

    def _payload_if_fit(self, command: str, event: Event) -> str | None:
        try:
            return self.payload_for(command, event)
        except Unfit:
            return None

    def _fail(
        self,
        node: PlanNode,
        event: Event,
        at: Position,
        status: JobStatus,
        reason: str,
        context: NewContext | None = None,
    ) -> None:
        """The step is over before it began; its `on_error` steps are entered as if it had run."""
        self.refusals.append(reason)
        failed = self._job(
            node.plugin,
            node.path,
            event,
            at,
            command=node.command,
            payload=self._payload_if_fit(node.command, event),
            tolerated=node.tolerated,
            hops=at.hops + node.call_depth,
            event_context_id=context.id if context else None,
            settled=Prefinished(status=status, error=reason),
        )
        failed = evolve(failed, id=derived_id(at.parent_id, failed.child_key))
        self.add(failed)
        if node.on_error is not None:
            inside = evolve(entered(at, context), parent_id=failed.id, own_tree=False)
            self._ahead.append((node.on_error, _refused_event(failed, reason, event), inside))

    def _decide(self, gate: Gate, event: Event, at: Position) -> None:
        scope = at.scope(event, self.config_of(gate.plugin) if gate.plugin else None)
        matched = holds(gate.condition, scope)
        decided = SWITCH_TRUE if matched else SWITCH_FALSE
        switch = self._job(
            SWITCH,
            gate.path,
            event,
            at,
            hops=at.hops,
            settled=Prefinished(
                status=JobStatus.SUCCEEDED, result=strict_json.dumps({"matched": matched, "event": decided})
            ),
        )
        switch = evolve(switch, id=derived_id(at.parent_id, switch.child_key))
        self.add(switch)
        if not matched:
            why = self.mask(explain(gate.condition, scope))
            self._bypass(gate.path, event, at, switch_id=switch.id, predicates=why)
        chosen = gate.then if matched else gate.otherwise
        self._ahead.append((chosen, event, evolve(at, parent_id=switch.id, own_tree=False)))

    def _bypass(self, step_id: str, event: Event, at: Position, **why: Any) -> None:
        """The journal will say that the step does not run for this event."""
        about = {"pipeline": at.plan.name, "step_id": step_id, "type": event.type, "event_id": event.id}
        self.notes.append(Note(kind="step.bypassed", data={**about, **why}))

    def _each(self, each: Each, event: Event, at: Position) -> None:
        found = at.scope(event).look_up(each.source)
        reason = None
        if found is ABSENT:
            reason = f"foreach: {each.source} is absent"
        elif not isinstance(found, list):
            reason = f"foreach: {each.source} is not a list"
        elif len(found) > each.max_items:
            reason = f"foreach: {each.source} has {len(found):,} items, max_items is {each.max_items:,}"
        if reason is not None:
            self.refusals.append(reason)
            settled = Prefinished(status=JobStatus.FAILED, error=reason)
            self.add(self._job(FOREACH, each.path, event, at, hops=at.hops, settled=settled))
            return
        if not found:
            self._note_empty(each, event, at)
            self._ahead.append((each.empty, event, at))
        self._ahead += reversed([(each.body, event, inside) for inside in inside_each(at, found)])

    def _note_empty(self, each: Each, event: Event, at: Position) -> None:
        """Once for all items around it: nothing bounds how many lists are empty, and nothing runs for any of them."""
        known = (at.plan.name, each.path, event.id)
        if known not in self._empty:
            self._empty.add(known)
            self._bypass(each.path, event, at, reason=f"{each.source} is an empty list")

    def _open(self, join: PlanNode, body: Entry, event: Event, at: Position) -> None:
        """The members first: when the join is written, the ledger counts whom it waits for."""
        try:
            payload = self.payload_for(HANDLE, event)
            context = self._context(join, event, at, at.key(event, join.path), at.depth + 1)
        except (Unfit, BaggageRefused) as refused:
            return self._fail(join, event, at, JobStatus.FAILED, str(refused))
        self.add_context(context)
        waiting = self._job(
            join.plugin,
            join.path,
            event,
            at,
            payload=payload,
            event_context_id=context.id,
            hops=at.hops + join.call_depth,
            is_join=True,
        )
        waiting = evolve(waiting, id=derived_id(at.parent_id, waiting.child_key))
        self._ahead.append((waiting, event, at))
        self._ahead.append((body, event, evolve(at, join_id=waiting.id)))
        return None

    def _add_join(self, join: NewJob, event: Event) -> None:
        """A join whose members may all turn out to be duplicates carries the key that makes them so."""
        if event.dedupe_key is not None and any(new.join_id == join.id for new in self.children):
            join = evolve(join, dedupe_key=f"{join.child_key}:{event.dedupe_key}")
        self.add(join)

    def _arrive(self, branch: int, by_item: bool, event: Event, at: Position) -> None:
        assert at.join_id is not None, "only what is inside of a join arrives at it"
        payload = strict_json.dumps(dict(event.payload))
        self._weigh(payload)
        item = at.indexes[-1] if by_item else 0
        self.arrivals.append(BranchResult(join_id=at.join_id, item=item, branch=branch, payload=payload))

    def _job(
        self, plugin: str, path: str, event: Event, at: Position, *, child_key: str | None = None, **more: Any
    ) -> NewJob:
        settled = more.get("settled")
        return NewJob(
            plugin=plugin,
            command=more.pop("command", HANDLE),
            submitted_by=at.submitted_by,
            parent_job_id=at.parent_id,
            own_tree=at.own_tree,
            source_event_id=event.id,
            child_key=child_key or at.key(event, path),
            pipeline=at.plan.name,
            step_id=path,
            join_id=at.join_id if settled is None or settled.status is not JobStatus.SUCCEEDED else None,
            snapshot_id=self.snapshot_id,
            **more,
        )


def _refused_event(failed: NewJob, reason: str, event: Event) -> Event:
    """The failure of a step that never became a job."""
    ended = Ended(status=failed.settled.status if failed.settled else JobStatus.FAILED, error=reason)
    job = Job(
        id=failed.id or "",
        plugin=failed.plugin,
        command=failed.command,
        status=ended.status,
        attempt=1,
        max_attempts=1,
        submitted_by=failed.submitted_by,
        created_at=event.at,
    )
    payload = {**outcome_payload(job, ended), "input": dict(event.payload)}
    return Event(derived_id(failed.id, "failed"), STEP_FAILED, payload, failed.plugin, event.at)


def _require_readable(text: str, payload: Mapping[str, Any]) -> None:
    """What is written for the next job can be read by it: not too deep, not too many values."""
    deepest = strict_json.MAX_DEPTH - ENVELOPE_LEVELS
    opened = text.count("{") + text.count("[")
    if opened > deepest and height(payload) > deepest:
        raise Unfit(f"the payload would be nested deeper than {deepest}")
    if text.count(",") + opened > strict_json.MAX_NODES - ENVELOPE_NODES:
        raise Unfit(f"the payload would have more than {strict_json.MAX_NODES:,} values")
