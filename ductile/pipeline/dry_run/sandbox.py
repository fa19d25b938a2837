"""An in-memory ledger and dispatcher for dry runs: runs the jobs and joins of one run in sequence.

Routing decisions are made by `route`, as in the service. There are no retries, no deduplication and no clock.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs
from attrs import define, evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import (
    HANDLE,
    BranchResult,
    Dead,
    Failed,
    FollowUps,
    Job,
    JobStatus,
    JoinInput,
    NewJob,
    Succeeded,
)
from ductile.pipeline.compile.plan import Gate
from ductile.pipeline.dry_run.answers import SILENT, PluginAnswer
from ductile.pipeline.language.baggage import BaggageRefused
from ductile.pipeline.language.conditions import explain
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.cursor import RunCursor
from ductile.pipeline.run.events import Event, JobResult, derived_id, event_id
from ductile.pipeline.run.execute import Execution
from ductile.pipeline.run.outgoing import build_outgoing_event, build_outgoing_message
from ductile.pipeline.run.route import RoutingConfig, TooManyFollowUps, compute_follow_ups, resolve_join
from ductile.pipeline.run.step_input import build_step_input, find_step

MAX_JOIN_FAILURES = 5

ExecuteJob = Callable[[Job], PluginAnswer | None]
"""Executes a job and returns its real answer; None leaves the answer to the simulation."""
Predicates = tuple[Mapping[str, Any], ...]


@frozen
class SwitchDecision:
    """The predicates of a decided switch, and the indexes of its items."""

    predicates: Predicates
    indexes: tuple[int, ...]


@attrs.define(eq=False, kw_only=True)
class _TracingExecution(Execution):
    """An execution that records its decisions."""

    decisions: dict[str, SwitchDecision]

    def _decide(self, gate: Gate, event: Event, at: RunCursor) -> None:
        before = len(self.children)
        super()._decide(gate, event, at)
        switch = self.children[before]
        scope = at.scope(event, self.config_of(gate.plugin) if gate.plugin else None)
        self.decisions[switch.id or ""] = SwitchDecision(tuple(explain(gate.condition, scope)), at.indexes)


@frozen(eq=False, kw_only=True)
class TracingRoutingConfig(RoutingConfig):
    """A routing configuration that records the decisions of its executions."""

    decisions: dict[str, SwitchDecision] = field(factory=dict)
    """By job id of the switch."""

    @classmethod
    def of(cls, routing: RoutingConfig) -> "TracingRoutingConfig":
        return cls(**{each.name: getattr(routing, each.name) for each in attrs.fields(RoutingConfig)})

    def new_execution(self) -> Execution:
        return _TracingExecution(**self.execution_settings(), decisions=self.decisions)


@define(eq=False)
class SandboxJob:
    """A job of the sandbox, with the data for its report line."""

    job: Job
    result: str | None = None
    """The result of a job that was created as finished."""
    is_executed: bool = False
    why: str = ""
    payload: Any = None
    rendered: Mapping[str, Any] = field(factory=dict)
    """The values of `with`."""
    led_to: list[str] = field(factory=list)

    @property
    def is_failed(self) -> bool:
        return self.job.status in (JobStatus.FAILED, JobStatus.DEAD)

    @property
    def counts_as_failed(self) -> bool:
        return self.is_failed and not self.job.tolerated


@define(eq=False)
class Sandbox:
    """The state of a dry run."""

    pipeline: str
    routing: TracingRoutingConfig
    answers: Mapping[str, PluginAnswer]
    execute: ExecuteJob | None
    now: datetime
    max_jobs: int
    max_hops: int
    rows: dict[str, SandboxJob] = field(factory=dict)
    queue: deque[SandboxJob] = field(factory=deque)
    contexts: dict[str, str] = field(factory=dict)
    arrivals: dict[str, list[BranchResult]] = field(factory=dict)
    open_joins: dict[str, SandboxJob] = field(factory=dict)
    open_members: Counter[str] = field(factory=Counter)
    members: dict[str, list[SandboxJob]] = field(factory=dict)
    """By job id of the join."""
    is_truncated: bool = False

    @property
    def has_failed(self) -> bool:
        """True if a job of the run failed and was not tolerated. Hook runs do not count."""
        root = next((row.job.id for row in self.rows.values()), "")
        return any(row.counts_as_failed for row in self.rows.values() if row.job.root_job_id == root)

    def run(self) -> None:
        """Run all jobs and joins, until none are left or the job limit is reached."""
        while True:
            while (join := self._ready_join()) is not None:
                self._join(join)
            if not self.queue or self.is_truncated:
                return
            self._run(self.queue.popleft())

    def apply(self, follow_ups: FollowUps, parent: SandboxJob | None = None) -> None:
        """Add the contexts, jobs and branch results."""
        for context in follow_ups.contexts:
            self.contexts[context.id] = context.accumulated_json
        for new in follow_ups.children:
            row = self._add(new)
            parent_row = self.rows.get(new.parent_job_id or "", parent)
            if parent_row is not None:
                parent_row.led_to.append(self._name(row.job))
        for arrival in follow_ups.arrivals:
            self.arrivals.setdefault(arrival.join_id, []).append(arrival)
            if parent is not None:
                parent.led_to.append(self._name(self.rows[arrival.join_id].job))

    def _add(self, new: NewJob) -> SandboxJob:
        prefinished, too_far = new.prefinished, new.prefinished is None and new.hops > self.max_hops
        # As in the ledger, jobs that are created as finished do not count against the limit.
        self.is_truncated |= prefinished is None and len(self.rows) >= self.max_jobs
        status = JobStatus.DEAD if too_far else prefinished.status if prefinished else JobStatus.QUEUED
        error = prefinished.error if prefinished else None
        if too_far:
            error = f"chain of more than {self.max_hops} hops"
        job = Job(
            id=new.id or derived_id("rehearsal", len(self.rows)),
            plugin=new.plugin,
            command=new.command,
            status=status,
            attempt=1,
            max_attempts=new.max_attempts,
            submitted_by=new.submitted_by,
            created_at=self.now,
            payload=new.payload,
            parent_job_id=new.parent_job_id,
            event_context_id=new.event_context_id,
            last_error=error,
            pipeline=new.pipeline,
            step_id=new.step_id,
            hops=new.hops,
            notify=new.notify,
            join_id=new.join_id,
            is_join=new.is_join,
            tolerated=new.tolerated and not too_far,
            context=self.contexts.get(new.event_context_id or ""),
        )
        parent_row = self.rows.get(new.parent_job_id or "")
        job = evolve(job, root_job_id=job.id if parent_row is None or new.own_tree else parent_row.job.root_job_id)
        row = self.rows[job.id] = SandboxJob(job, prefinished.result if prefinished else None)
        if job.join_id is not None:
            self.members.setdefault(job.join_id, []).append(row)
        if not status.is_final:
            self.open_members[job.join_id or ""] += 1
            if job.is_join:
                self.open_joins[job.id] = row
            else:
                self.queue.append(row)
        return row

    def _run(self, row: SandboxJob) -> None:
        job = row.job
        try:
            row.payload = self._input_payload(job)
            row.rendered = self._rendered(job, row.payload)
        except (PathAbsent, BaggageRefused) as refused:
            return self._fail(row, str(refused))
        answer = self._answer(row)
        if answer.error is not None:
            return self._fail(row, answer.error)
        job_result = JobResult(status=JobStatus.SUCCEEDED, result=answer.result)
        try:
            follow_ups = compute_follow_ups(job, job_result, self._events(job, answer), self.routing, now=self.now)
        except TooManyFollowUps as error:
            row.job = evolve(job, tolerated=False)
            return self._fail(row, str(error))
        return self._end(row, JobStatus.SUCCEEDED, None, follow_ups)

    def _input_payload(self, job: Job) -> Any:
        """Return the payload for the plugin or the other instance."""
        step = find_step(self.routing.plans, job)
        if step is not None and step.relay is not None:
            return build_outgoing_event(job, step.relay).payload
        if step is not None and step.publish is not None:
            message = build_outgoing_message(job, step.publish)
            return {"topic": step.publish.topic, "body": message.body, "metadata": dict(message.metadata)}
        step_input = build_step_input(job, step)
        content = strict_json.loads(step_input.payload) if step_input.payload else {}
        return content.get("payload") if job.command == HANDLE else content

    def _rendered(self, job: Job, payload: Any) -> dict[str, Any]:
        """Return the members of the payload that the `with` of the step has set."""
        step = find_step(self.routing.plans, job)
        if step is None or step.publish is not None:
            return dict(payload) if step is not None else {}
        templates = step.relay.with_ if step.relay is not None else step.with_
        return {name: payload[name] for name in templates or ()}

    def _answer(self, row: SandboxJob) -> PluginAnswer:
        if self.execute is not None and (real := self.execute(row.job)) is not None:
            row.is_executed, row.why = True, f"plugin executed: {real.result}"
            return real
        if row.job.pipeline == self.pipeline and (given := self.answers.get(row.job.step_id or "")) is not None:
            row.why = "simulated response given"
            return given
        row.why = "no response given: succeeds without events"
        return SILENT

    def _events(self, job: Job, answer: PluginAnswer) -> tuple[Event, ...]:
        return tuple(
            Event(
                event_id(job.id, job.attempt, index),
                emitted.type,
                {"result": answer.result, **emitted.payload},
                job.plugin,
                self.now,
                emitted.dedupe_key,
            )
            for index, emitted in enumerate(answer.events)
        )

    def _fail(self, row: SandboxJob, error: str) -> None:
        try:
            follow_ups = compute_follow_ups(
                row.job, JobResult(status=JobStatus.FAILED, error=error), (), self.routing, now=self.now
            )
        except TooManyFollowUps as exceeded:
            follow_ups, error = FollowUps(), f"{error}; {exceeded}"
            row.job = evolve(row.job, tolerated=False)
        self._end(row, JobStatus.FAILED, error, follow_ups)

    def _end(self, row: SandboxJob, status: JobStatus, error: str | None, follow_ups: FollowUps) -> None:
        self.apply(follow_ups, row)
        row.job = evolve(row.job, status=status, last_error=error)
        self.open_members[row.job.join_id or ""] -= 1

    def _ready_join(self) -> SandboxJob | None:
        return next((row for join_id, row in self.open_joins.items() if not self.open_members[join_id]), None)

    def _join(self, row: SandboxJob) -> None:
        del self.open_joins[row.job.id]
        arrivals = sorted(self.arrivals.get(row.job.id, ()), key=lambda arrival: (arrival.item, arrival.branch))
        failed = [member.job for member in self.members.get(row.job.id, ()) if member.counts_as_failed]
        failures = tuple(f"{job.step_id or job.plugin}: {job.last_error}" for job in failed[:MAX_JOIN_FAILURES])
        joined = JoinInput(job=row.job, arrivals=tuple(arrivals), failures=failures, failed=len(failed))
        outcome, follow_ups = resolve_join(joined, self.routing, now=self.now)
        match outcome:
            case Succeeded():
                row.why = f"{len(arrivals)} results"
                self._end(row, JobStatus.SUCCEEDED, None, follow_ups)
            case Failed(error) | Dead(error):
                self._end(row, JobStatus.FAILED, error, follow_ups)
            case other:
                raise AssertionError(f"a join cannot end {other}")

    def _name(self, job: Job) -> str:
        step = job.step_id or job.plugin
        return step if job.pipeline == self.pipeline else f"{job.pipeline}: {step}" if job.pipeline else step
