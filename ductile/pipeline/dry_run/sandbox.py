"""The stage of a dry run: jobs, contexts and joins of one run in memory, played to their end one after the other.

Stands in for the ledger and the dispatcher, and decides nothing: what follows from an ending is `route`'s business, as
in the service. Retries, dedupe and time do not exist here. `rehearse` fills it and tells what happened on it.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs
from attrs import define, evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import BranchResult, Dead, Failed, FollowUps, Job, JobStatus, JoinInput, NewJob, Succeeded
from ductile.pipeline.compile.plan import HANDLE, Gate
from ductile.pipeline.dry_run.answers import SILENT, PluginAnswer
from ductile.pipeline.language.baggage import BaggageRefused
from ductile.pipeline.language.conditions import explain
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.cursor import Position
from ductile.pipeline.run.events import Ended, Event, derived_id, event_id
from ductile.pipeline.run.execute import Walk
from ductile.pipeline.run.outgoing import outgoing
from ductile.pipeline.run.route import TooManyFollowUps, World, after, after_join
from ductile.pipeline.run.step_input import step_of, tell

MOST_TOLD = 5

Ask = Callable[[Job], PluginAnswer | None]
"""Whoever may know the real answer to a job; None lets it be made up."""
Predicates = tuple[Mapping[str, Any], ...]


@frozen
class SwitchDecision:
    """Why a switch went the way it did, and for which items."""

    predicates: Predicates
    indexes: tuple[int, ...]


@attrs.define(eq=False, kw_only=True)
class _TellingWalk(Walk):
    """A walk that remembers its decisions."""

    decided: dict[str, SwitchDecision]

    def _decide(self, gate: Gate, event: Event, at: Position) -> None:
        before = len(self.children)
        super()._decide(gate, event, at)
        switch = self.children[before]
        scope = at.scope(event, self.config_of(gate.plugin) if gate.plugin else None)
        self.decided[switch.id or ""] = SwitchDecision(tuple(explain(gate.condition, scope)), at.indexes)


@frozen(eq=False, kw_only=True)
class TellingWorld(World):
    """A world whose decisions can be looked up afterwards."""

    decided: dict[str, SwitchDecision] = field(factory=dict)
    """By the id of the switch."""

    @classmethod
    def of(cls, world: World) -> "TellingWorld":
        return cls(**{each.name: getattr(world, each.name) for each in attrs.fields(World)})

    def walk(self) -> Walk:
        return _TellingWalk(**self.bounds(), decided=self.decided)


@define(eq=False)
class SandboxJob:
    """A job as the ledger would have it, and what there is to tell about it."""

    job: Job
    result: str | None = None
    """Of a job that was over when it was made."""
    is_executed: bool = False
    why: str = ""
    payload: Any = None
    led_to: list[str] = field(factory=list)

    @property
    def is_failed(self) -> bool:
        return self.job.status in (JobStatus.FAILED, JobStatus.DEAD)

    @property
    def counts_as_failed(self) -> bool:
        return self.is_failed and not self.job.tolerated


@define(eq=False)
class Sandbox:
    """The ledger of a rehearsal."""

    pipeline: str
    world: TellingWorld
    answers: Mapping[str, PluginAnswer]
    ask: Ask | None
    now: datetime
    most_jobs: int
    most_hops: int
    rows: dict[str, SandboxJob] = field(factory=dict)
    waiting: deque[SandboxJob] = field(factory=deque)
    contexts: dict[str, str] = field(factory=dict)
    arrivals: dict[str, list[BranchResult]] = field(factory=dict)
    open_joins: dict[str, SandboxJob] = field(factory=dict)
    open_members: Counter[str] = field(factory=Counter)
    members: dict[str, list[SandboxJob]] = field(factory=dict)
    """By the id of their join."""
    is_cut: bool = False

    @property
    def has_failed(self) -> bool:
        """True if a job of the run failed that was not allowed to; runs of hooks are not the run's."""
        root = next((row.job.id for row in self.rows.values()), "")
        return any(row.counts_as_failed for row in self.rows.values() if row.job.root_job_id == root)

    def play(self) -> None:
        """Everything that can happen has happened, or the stage is full."""
        while True:
            while (join := self._ready_join()) is not None:
                self._join(join)
            if not self.waiting or self.is_cut:
                return
            self._run(self.waiting.popleft())

    def apply(self, following: FollowUps, parent: SandboxJob | None = None) -> None:
        for context in following.contexts:
            self.contexts[context.id] = context.accumulated_json
        for new in following.children:
            row = self._add(new)
            above = self.rows.get(new.parent_job_id or "", parent)
            if above is not None:
                above.led_to.append(self._name(row.job))
        for arrival in following.arrivals:
            self.arrivals.setdefault(arrival.join_id, []).append(arrival)
            if parent is not None:
                parent.led_to.append(self._name(self.rows[arrival.join_id].job))

    def _add(self, new: NewJob) -> SandboxJob:
        settled, too_far = new.settled, new.settled is None and new.hops > self.most_hops
        # As in the ledger: what is over when it is made is never one too many.
        self.is_cut |= settled is None and len(self.rows) >= self.most_jobs
        status = JobStatus.DEAD if too_far else settled.status if settled else JobStatus.QUEUED
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
            last_error=f"chain of more than {self.most_hops} hops" if too_far else settled.error if settled else None,
            pipeline=new.pipeline,
            step_id=new.step_id,
            hops=new.hops,
            notify=new.notify,
            join_id=new.join_id,
            is_join=new.is_join,
            tolerated=new.tolerated and not too_far,
            context=self.contexts.get(new.event_context_id or ""),
        )
        above = self.rows.get(new.parent_job_id or "")
        job = evolve(job, root_job_id=job.id if above is None or new.own_tree else above.job.root_job_id)
        row = self.rows[job.id] = SandboxJob(job, settled.result if settled else None)
        if job.join_id is not None:
            self.members.setdefault(job.join_id, []).append(row)
        if not status.is_final:
            self.open_members[job.join_id or ""] += 1
            if job.is_join:
                self.open_joins[job.id] = row
            else:
                self.waiting.append(row)
        return row

    def _run(self, row: SandboxJob) -> None:
        job = row.job
        try:
            row.payload = self._sent(job)
        except (PathAbsent, BaggageRefused) as refused:
            return self._fail(row, str(refused))
        answer = self._answer(row)
        if answer.error is not None:
            return self._fail(row, answer.error)
        ended = Ended(status=JobStatus.SUCCEEDED, result=answer.result)
        try:
            following = after(job, ended, self._events(job, answer), self.world, now=self.now)
        except TooManyFollowUps as error:
            row.job = evolve(job, tolerated=False)
            return self._fail(row, str(error))
        return self._end(row, JobStatus.SUCCEEDED, None, following)

    def _sent(self, job: Job) -> Any:
        """The payload that the plugin would get, or the other instance."""
        step = step_of(self.world.plans, job)
        if step is not None and step.relay is not None:
            return outgoing(job, step.relay).payload
        told = tell(job, step)
        content = strict_json.loads(told.payload) if told.payload else {}
        return content.get("payload") if job.command == HANDLE else content

    def _answer(self, row: SandboxJob) -> PluginAnswer:
        if self.ask is not None and (real := self.ask(row.job)) is not None:
            row.is_executed, row.why = True, f"really run: {real.result}"
            return real
        if row.job.pipeline == self.pipeline and (given := self.answers.get(row.job.step_id or "")) is not None:
            row.why = "answered as given"
            return given
        row.why = "no answer given: succeeds silently"
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
            following = after(row.job, Ended(status=JobStatus.FAILED, error=error), (), self.world, now=self.now)
        except TooManyFollowUps as too_much:
            following, error = FollowUps(), f"{error}; {too_much}"
            row.job = evolve(row.job, tolerated=False)
        self._end(row, JobStatus.FAILED, error, following)

    def _end(self, row: SandboxJob, status: JobStatus, error: str | None, following: FollowUps) -> None:
        self.apply(following, row)
        row.job = evolve(row.job, status=status, last_error=error)
        self.open_members[row.job.join_id or ""] -= 1

    def _ready_join(self) -> SandboxJob | None:
        return next((row for join_id, row in self.open_joins.items() if not self.open_members[join_id]), None)

    def _join(self, row: SandboxJob) -> None:
        del self.open_joins[row.job.id]
        arrivals = sorted(self.arrivals.get(row.job.id, ()), key=lambda arrival: (arrival.item, arrival.branch))
        failed = [each.job for each in self.members.get(row.job.id, ()) if each.counts_as_failed]
        told = tuple(f"{job.step_id or job.plugin}: {job.last_error}" for job in failed[:MOST_TOLD])
        joined = JoinInput(job=row.job, arrivals=tuple(arrivals), failures=told, failed=len(failed))
        outcome, following = after_join(joined, self.world, now=self.now)
        match outcome:
            case Succeeded():
                row.why = f"{len(arrivals)} results"
                self._end(row, JobStatus.SUCCEEDED, None, following)
            case Failed(error) | Dead(error):
                self._end(row, JobStatus.FAILED, error, following)
            case other:
                raise AssertionError(f"a join cannot end {other}")

    def _name(self, job: Job) -> str:
        step = job.step_id or job.plugin
        return step if job.pipeline == self.pipeline else f"{job.pipeline}: {step}" if job.pipeline else step
