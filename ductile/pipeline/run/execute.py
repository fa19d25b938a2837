"""Execute the instructions of a plan for one event: collect the jobs, contexts and branch results to write. Pure.

Every path ends in a job, at a join or without a job. A step that cannot start becomes a failed job with the reason.
`route` decides which instructions are executed, and with which event.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import (
    HANDLE,
    BranchResult,
    FollowUps,
    Job,
    JobStatus,
    NewContext,
    NewJob,
    Note,
    OutcomeCode,
    Prefinished,
)
from ductile.pipeline.compile.plan import (
    STEP_FAILED,
    SWITCH,
    SWITCH_FALSE,
    SWITCH_TRUE,
    Arrive,
    Each,
    End,
    Fork,
    Gate,
    Go,
    Instruction,
    Leave,
    Open,
    PlanNode,
)
from ductile.pipeline.language import baggage
from ductile.pipeline.language.baggage import BaggageRefused, Claims, apply_claims, nesting_depth
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.paths import ABSENT
from ductile.pipeline.run.cursor import RunCursor, cursor_after, item_cursors
from ductile.pipeline.run.events import Event, JobResult, derived_id, outcome_payload

FOREACH, START = "core.foreach", "core.start"
MAX_FOLLOW_UP_BYTES, MAX_FOLLOW_UP_JOBS, MAX_CONTEXT_BYTES = 64 << 20, 10_000, baggage.MAX_CONTEXT_BYTES
MAX_STEPS_PER_JOB = 10
# JSON levels and nodes of the envelope and the request, which are not available to the payload.
ENVELOPE_LEVELS, ENVELOPE_NODES = 4, 32
NO_CLAIMS = Claims()


class TooManyFollowUps(Exception):
    """The follow-ups of one job exceed a limit; the message names it."""


class PayloadUnreadable(Exception):
    """A payload that exceeds the limits of the JSON parser; the message names the limit."""


@frozen
class Target:
    """The settings of a plugin that receives an event. `refused` is the reason if it cannot run."""

    max_attempts: int = 4
    refused: str | None = None
    notify: bool = False
    """True if the completion of its root jobs starts hook pipelines."""


@frozen
class Savepoint:
    """A point in an execution that can be rolled back to."""

    contexts: int
    children: int
    arrivals: int
    notes: int
    refusals: int
    bytes: int
    steps: int


@define(eq=False)
class Execution:
    """Everything created so far for one completed job or one trigger."""

    target: Callable[[str], Target]
    config_of: Callable[[str], Mapping[str, Any]]
    max_bytes: int = MAX_FOLLOW_UP_BYTES
    max_jobs: int = MAX_FOLLOW_UP_JOBS
    max_context_bytes: int = MAX_CONTEXT_BYTES
    snapshot_id: str | None = None
    mask: Callable[[Any], Any] = lambda data: data
    """Masks secrets in data for the journal."""
    contexts: list[NewContext] = field(factory=list)
    children: list[NewJob] = field(factory=list)
    arrivals: list[BranchResult] = field(factory=list)
    notes: list[Note] = field(factory=list)
    refusals: list[str] = field(factory=list)
    """Reasons why steps could not start; each is also a failed job."""
    _stack: list[tuple[Instruction | NewJob, Event, RunCursor]] = field(factory=list)
    _noted_empty: set[tuple[str, str, str]] = field(factory=set)
    _steps: int = 0
    _bytes: int = 0
    _envelopes: dict[tuple[int, str], tuple[Event, str]] = field(factory=dict)

    def follow_ups(self) -> FollowUps:
        return FollowUps(
            contexts=tuple(self.contexts),
            children=tuple(self.children),
            arrivals=tuple(self.arrivals),
            notes=tuple(self.notes),
        )

    def enter(self, entry: Instruction, event: Event, at: RunCursor) -> None:
        """Execute `entry` and everything after it, in textual order. Raises TooManyFollowUps."""
        # An explicit stack: paths without jobs can exceed the recursion limit.
        self._stack.append((entry, event, at))
        while self._stack:
            self._steps += 1
            if self._steps > MAX_STEPS_PER_JOB * self.max_jobs:
                raise TooManyFollowUps(
                    f"it takes more than {MAX_STEPS_PER_JOB * self.max_jobs:,} steps to find the next jobs"
                )
            self._step(*self._stack.pop())

    def _step(self, entry: Instruction | NewJob, event: Event, at: RunCursor) -> None:
        match entry:
            case NewJob():
                self._add_join(entry, event)
            case Go(node):
                self._go(node, event, at)
            case Gate():
                self._decide(entry, event, at)
            case Fork(branches):
                inside = [(branch, event, evolve(at, trail=(*at.trail, i))) for i, branch in enumerate(branches)]
                self._stack += reversed(inside)
            case Each():
                self._each(entry, event, at)
            case Leave(then):
                self._stack.append((then, event, evolve(at, items=at.items[:-1], indexes=at.indexes[:-1])))
            case Open(join, body):
                self._open(join, body, event, at)
            case Arrive(_, branch, by_item):
                self._arrive(branch, by_item, event, at)
            case End():
                pass

    def savepoint(self) -> Savepoint:
        return Savepoint(
            contexts=len(self.contexts),
            children=len(self.children),
            arrivals=len(self.arrivals),
            notes=len(self.notes),
            refusals=len(self.refusals),
            bytes=self._bytes,
            steps=self._steps,
        )

    def roll_back(self, to: Savepoint) -> None:
        """Discard everything created since the savepoint."""
        del self.contexts[to.contexts :], self.children[to.children :], self.arrivals[to.arrivals :]
        del self.notes[to.notes :], self.refusals[to.refusals :]
        self._stack.clear()
        self._bytes, self._steps = to.bytes, to.steps

    def add_context(self, context: NewContext) -> None:
        self._count_bytes(context.accumulated_json)
        self.contexts.append(context)

    def _count_bytes(self, text: str | None) -> None:
        if text is not None:
            self._bytes += len(text) if text.isascii() else len(text.encode())
        if self._bytes > self.max_bytes:
            raise TooManyFollowUps(f"it passes more than {self.max_bytes:,} bytes to the next jobs")

    def add(self, new: NewJob) -> None:
        self._count_bytes(new.payload)
        if len(self.children) >= self.max_jobs:
            raise TooManyFollowUps(f"it creates more than {self.max_jobs:,} jobs at once")
        self.children.append(new)

    def payload_for(self, command: str, event: Event) -> str:
        """Return the payload of a job for `event`, serialised once per event. Raises PayloadUnreadable."""
        key = (id(event), command if command != HANDLE else "")
        if key not in self._envelopes:
            text = event.envelope() if command == HANDLE else strict_json.dumps(dict(event.payload))
            _require_readable(text, event.payload)
            self._envelopes[key] = (event, text)  # holds the event, so that its id() is not reused
        return self._envelopes[key][1]

    def _go(self, node: PlanNode, event: Event, at: RunCursor) -> None:
        target = self.target(node.plugin)
        depth = at.depth + 1
        if at.depth_limit and depth > at.depth_limit:
            return self._fail(node, event, at, _too_deep(at.depth_limit))
        key = at.key(event, node.path)
        try:
            payload = self.payload_for(node.command, event)
            context = self._context(node.path, node.baggage or NO_CLAIMS, event, at, depth)
        except (PayloadUnreadable, BaggageRefused) as refused:
            return self._fail(node, event, at, _refusal(str(refused)))
        self.add_context(context)
        if target.refused:
            return self._fail(node, event, at, plugin_unavailable(node.plugin, target.refused), context)
        self.add(
            self._job(
                node.plugin,
                node.path,
                event,
                at,
                command=node.command,
                child_key=key,
                payload=payload,
                max_attempts=target.max_attempts,
                dedupe_key=event.dedupe_key,
                event_context_id=context.id,
                tolerated=node.tolerated,
                hops=at.hops + node.call_depth,
                notify=target.notify,
            )
        )
        return None

    def _context(self, path: str, claims: Claims, event: Event, at: RunCursor, depth: int) -> NewContext:
        accumulated = apply_claims(
            claims,
            at.scope(event),
            at.baggage,
            control=at.control(depth),
            max_bytes=self.max_context_bytes,
        )
        return NewContext(
            id=derived_id(at.parent_id, at.key(event, path), "context"),
            parent_id=at.inherits_from,
            pipeline_name=at.plan.name,
            step_id=path,
            accumulated_json=accumulated.text,
        )

    def _readable_payload(self, command: str, event: Event) -> str | None:
        try:
            return self.payload_for(command, event)
        except PayloadUnreadable:
            return None

    def _fail(
        self,
        node: PlanNode,
        event: Event,
        at: RunCursor,
        refusal: Prefinished,
        context: NewContext | None = None,
    ) -> None:
        """Add a failed job for a step that cannot start, and execute its `on_error` steps."""
        reason = refusal.error or ""
        self.refusals.append(reason)
        failed = self._job(
            node.plugin,
            node.path,
            event,
            at,
            command=node.command,
            payload=self._readable_payload(node.command, event),
            tolerated=node.tolerated,
            hops=at.hops + node.call_depth,
            event_context_id=context.id if context else None,
            prefinished=refusal,
        )
        failed = evolve(failed, id=derived_id(at.parent_id, failed.child_key))
        self.add(failed)
        if node.on_error is not None:
            inside = evolve(cursor_after(at, context), parent_id=failed.id, own_tree=False)
            self._stack.append((node.on_error, _refused_event(failed, reason, event), inside))

    def _decide(self, gate: Gate, event: Event, at: RunCursor) -> None:
        scope = at.scope(event, self.config_of(gate.plugin) if gate.plugin else None)
        matched = holds(gate.condition, scope)
        decided = SWITCH_TRUE if matched else SWITCH_FALSE
        why = {} if matched else {"predicates": self.mask(explain(gate.condition, scope))}
        depth = at.depth + 1
        if at.depth_limit and depth > at.depth_limit:
            return self._refuse(SWITCH, gate.path, event, at, _too_deep(at.depth_limit))
        try:
            context = self._context(gate.path, NO_CLAIMS, event, at, depth)
        except BaggageRefused as refused:
            return self._refuse(SWITCH, gate.path, event, at, _refusal(str(refused)))
        self.add_context(context)
        switch = self._job(
            SWITCH,
            gate.path,
            event,
            at,
            hops=at.hops,
            event_context_id=context.id,
            prefinished=Prefinished(
                status=JobStatus.SUCCEEDED,
                result=strict_json.dumps({"matched": matched, "event": decided}),
                code=OutcomeCode.CONDITION_TRUE if matched else OutcomeCode.CONDITION_FALSE,
                data=why,
            ),
        )
        switch = evolve(switch, id=derived_id(at.parent_id, switch.child_key))
        self.add(switch)
        if not matched:
            self._bypass(gate.path, event, at, switch_id=switch.id, **why)
        chosen = gate.then if matched else gate.otherwise
        after = evolve(at, parent_id=switch.id, own_tree=False, inherits_from=context.id, depth=depth)
        self._stack.append((chosen, event, after))
        return None

    def _bypass(self, step_id: str, event: Event, at: RunCursor, **why: Any) -> None:
        """Note in the journal that the step does not run for this event."""
        details = {"pipeline": at.plan.name, "step_id": step_id, "type": event.type, "event_id": event.id}
        self.notes.append(Note(kind="step.bypassed", data={**details, **why}))

    def _each(self, each: Each, event: Event, at: RunCursor) -> None:
        found = at.scope(event).look_up(each.source)
        reason = None
        if found is ABSENT:
            reason = f"foreach: {each.source} is absent"
        elif not isinstance(found, list):
            reason = f"foreach: {each.source} is not a list"
        elif len(found) > each.max_items:
            reason = f"foreach: {each.source} has {len(found):,} items, max_items is {each.max_items:,}"
        if reason is not None:
            return self._refuse(FOREACH, each.path, event, at, _refusal(reason))
        if not found:
            self._note_empty(each, event, at)
            self._stack.append((each.empty, event, at))
        self._stack += reversed([(each.body, event, inside) for inside in item_cursors(at, found)])
        return None

    def _refuse(self, plugin: str, path: str, event: Event, at: RunCursor, refusal: Prefinished) -> None:
        """Add the failed job of a decision that cannot be made. The path ends with it."""
        self.refusals.append(refusal.error or "")
        self.add(self._job(plugin, path, event, at, hops=at.hops, prefinished=refusal))

    def _note_empty(self, each: Each, event: Event, at: RunCursor) -> None:
        """Note an empty list once per event, because the number of empty lists is not limited."""
        key = (at.plan.name, each.path, event.id)
        if key not in self._noted_empty:
            self._noted_empty.add(key)
            self._bypass(each.path, event, at, reason=f"{each.source} is an empty list")

    def _open(self, join: PlanNode, body: Instruction, event: Event, at: RunCursor) -> None:
        """Add a join after its members: when it is written, the ledger counts the members to wait for."""
        try:
            payload = self.payload_for(HANDLE, event)
            context = self._context(join.path, join.baggage or NO_CLAIMS, event, at, at.depth + 1)
        except (PayloadUnreadable, BaggageRefused) as refused:
            return self._fail(join, event, at, _refusal(str(refused)))
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
        self._stack.append((waiting, event, at))
        self._stack.append((body, event, evolve(at, join_id=waiting.id)))
        return None

    def _add_join(self, join: NewJob, event: Event) -> None:
        """Add a join, with the dedupe key of its event if all its members could be duplicates."""
        if event.dedupe_key is not None and any(new.join_id == join.id for new in self.children):
            join = evolve(join, dedupe_key=event.dedupe_key)
        self.add(join)

    def _arrive(self, branch: int, by_item: bool, event: Event, at: RunCursor) -> None:
        assert at.join_id is not None, "a result arrives only inside a join"
        payload = strict_json.dumps(dict(event.payload))
        self._count_bytes(payload)
        item = at.indexes[-1] if by_item else 0
        self.arrivals.append(BranchResult(join_id=at.join_id, item=item, branch=branch, payload=payload))

    def _job(
        self, plugin: str, path: str, event: Event, at: RunCursor, *, child_key: str | None = None, **more: Any
    ) -> NewJob:
        prefinished = more.get("prefinished")
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
            join_id=at.join_id if prefinished is None or prefinished.status is not JobStatus.SUCCEEDED else None,
            snapshot_id=self.snapshot_id,
            **more,
        )


def plugin_unavailable(plugin: str, reason: str) -> Prefinished:
    """Return the outcome of a job whose plugin cannot run."""
    return Prefinished(status=JobStatus.DEAD, error=f"plugin {plugin} {reason}", code=OutcomeCode.PLUGIN_UNAVAILABLE)


def _refusal(reason: str) -> Prefinished:
    """Return the outcome of a step that cannot be entered."""
    return Prefinished(status=JobStatus.FAILED, error=reason, code=OutcomeCode.REFUSED)


def _too_deep(limit: int) -> Prefinished:
    return Prefinished(
        status=JobStatus.DEAD,
        error=f"max_depth {limit} of the pipeline is reached",
        code=OutcomeCode.OVER_BUDGET,
        data={"limit": "max_depth", "max": limit, "limit_key": "max_depth"},
    )


def _refused_event(failed: NewJob, reason: str, event: Event) -> Event:
    """Create the failure event of a step that could not start."""
    result = JobResult(status=failed.prefinished.status if failed.prefinished else JobStatus.FAILED, error=reason)
    job = Job(
        id=failed.id or "",
        plugin=failed.plugin,
        command=failed.command,
        status=result.status,
        attempt=1,
        max_attempts=1,
        submitted_by=failed.submitted_by,
        created_at=event.at,
    )
    payload = {**outcome_payload(job, result), "input": dict(event.payload)}
    return Event(derived_id(failed.id, "failed"), STEP_FAILED, payload, failed.plugin, event.at)


def _require_readable(text: str, payload: Mapping[str, Any]) -> None:
    """Check that the next job can parse the payload."""
    max_depth = strict_json.MAX_DEPTH - ENVELOPE_LEVELS
    opened = text.count("{") + text.count("[")
    if opened > max_depth and nesting_depth(payload) > max_depth:
        raise PayloadUnreadable(f"the payload would be nested deeper than {max_depth}")
    if text.count(",") + opened > strict_json.MAX_NODES - ENVELOPE_NODES:
        raise PayloadUnreadable(f"the payload would have more than {strict_json.MAX_NODES:,} values")
