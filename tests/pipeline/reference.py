"""A reference interpreter for pipelines, to compare the engine with.

Interprets the plain YAML data, without plans, ledgers or processes. The test completes each job with `succeed` or
`fail`, and calls `resolve_joins` to resolve joins. `jobs` has everything that was created, in order.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from attrs import Factory, define, evolve, frozen

from tests.pipeline.random_pipelines import each_step
from tests.pipeline.reference_values import Data, Refused, apply_claims, is_true, look_up, render

ANY_TEXT = "…"
"""Placeholder for message texts, which other tests check."""


@frozen(eq=False)
class Event:
    type: str
    payload: Data


@frozen(eq=False, kw_only=True)
class Position:
    """A position in a run: its call, items, join and baggage."""

    pipeline: str
    context: Data
    prefix: str = ""
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    join: "ReferenceJob | None" = None

    def scope(self, payload: Data) -> Data:
        return {"payload": payload, "context": self.context, **({"item": self.items[-1]} if self.items else {})}


Continuation = Callable[[Event, Position], None]
"""Continues the run after a step."""
Continuations = Callable[[int], Continuation]
"""Maps the number of a branch to its continuation."""


def end_run(event: Event, at: Position) -> None:
    """End this path of the run."""


@define(eq=False)
class ReferenceJob:
    """A job, a join, a switch or a failed loop of the reference interpreter."""

    kind: str
    path: str
    at: Position
    event: Event
    status: str
    step: Data = Factory(dict)
    then: Continuation = end_run
    members: int = 0
    results: list[tuple[int, int, Data]] = Factory(list)
    has_failed_member: bool = False

    @property
    def is_ready(self) -> bool:
        return (self.kind, self.status, self.members) == ("join", "queued", 0)

    def input_payload(self) -> Data:
        """Return the payload of the plugin. Raises Refused if a `with` template reads an absent value."""
        payload = self.event.payload if "." in self.step["uses"] else {**self.at.context, **self.event.payload}
        return payload | {key: render(text, self.at.scope(payload)) for key, text in self.step.get("with", {}).items()}


@define(eq=False)
class Reference:
    """Pipelines and the state of their runs."""

    listed: list[Data]
    disabled: str = ""
    jobs: list[ReferenceJob] = Factory(list)
    failed: bool = False
    ids: dict[int, str] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        for pipeline in self.listed:
            steps = each_step(pipeline["steps"])
            explicit_ids = {step.get("id") for step in steps}
            unused = (name for number in count(1) if (name := f"step_{number}") not in explicit_ids)
            self.ids |= {id(step): step.get("id") or next(unused) for step in steps}

    def begin(self, pipeline: Data, event: Event, context: Data) -> None:
        self.sequence(pipeline["steps"], event, Position(pipeline=pipeline["name"], context=context), end_run)

    def succeed(self, job: ReferenceJob, result: str, events: list[Event]) -> None:
        """Complete a job. Each event advances its run and triggers other pipelines."""
        job.status = "succeeded"
        for emitted in events or [Event("ductile.step.succeeded", {**job.event.payload, "result": result})]:
            event = evolve(emitted, payload={"result": result, **emitted.payload})
            job.then(event, job.at)
            for other in self.listed:
                if other["on"] == event.type and is_true(other.get("if"), job.at.scope(event.payload)):
                    self.begin(other, event, job.at.context)
        self.member_finished(job.at.join)

    def fail(self, job: ReferenceJob, status: str = "failed", attempt: int = 1) -> None:
        """Fail a job finally and run its `on_error` steps."""
        job.status = status
        plugin, _, command = job.step["uses"].partition(".")
        payload = {"plugin": plugin, "command": command or "handle", "status": status, "attempt": attempt}
        payload |= {"error": ANY_TEXT, "message": ANY_TEXT, "text": ANY_TEXT, "input": job.event.payload}
        tolerated = job.step.get("continue")
        if not tolerated:
            self.mark_failed(job.at.join)
        steps = job.step.get("on_error", [])
        if steps or tolerated:
            self.sequence(steps, Event("ductile.step.failed", payload), job.at, job.then if tolerated else end_run)
        self.member_finished(job.at.join)

    def resolve_joins(self) -> None:
        """Resolve every join whose members are finished, and continue after it."""
        while join := next((job for job in self.jobs if job.is_ready), None):
            join.status = "failed" if join.has_failed_member else "succeeded"
            if join.has_failed_member:
                self.mark_failed(join.at.join)
            else:
                results = [payload for *_, payload in sorted(join.results, key=lambda result: result[:2])]
                join.then(Event("ductile.join.completed", {**join.event.payload, "results": results}), join.at)
            self.member_finished(join.at.join)

    def mark_failed(self, join: ReferenceJob | None) -> None:
        self.failed = True
        if join is not None:
            join.has_failed_member = True

    def member_finished(self, join: ReferenceJob | None) -> None:
        if join is not None:
            join.members -= 1

    def sequence(self, steps: list[Data], event: Event, at: Position, then: Continuation) -> None:
        if steps:
            self.enter(
                steps[0],
                event,
                at,
                lambda last_event, end: self.sequence(steps[1:], last_event, end, then),
            )
        else:
            then(event, at)

    def enter(self, step: Data, event: Event, at: Position, then: Continuation) -> None:
        def leave(last_event: Event, end: Position) -> None:
            then(last_event, evolve(end, items=at.items, indexes=at.indexes))

        if "foreach" in step and step.get("join"):
            self.wait(step, event, at, then, partial(self.each, step, event))
        elif "foreach" in step:
            self.each(step, event, at, lambda _: leave)
        elif step.get("join"):
            self.gate(step, event, at, lambda: self.wait(step, event, at, then, partial(self.act, step, event)), then)
        else:
            self.gate(step, event, at, lambda: self.act(step, event, at, lambda _: then), then)

    def wait(
        self,
        step: Data,
        event: Event,
        at: Position,
        then: Continuation,
        body: Callable[[Position, Continuations], None],
    ) -> None:
        join = ReferenceJob("join", f"{self.path(step, at)}__join", at, event, "queued", step, then)

        def arrive(branch: int, last_event: Event, end: Position) -> None:
            join.results.append((end.indexes[-1] if "foreach" in step else 0, branch, last_event.payload))

        body(evolve(at, join=join), lambda branch: partial(arrive, branch))
        self.add(join)

    def each(self, step: Data, event: Event, at: Position, continuations: Continuations) -> None:
        values = look_up(step["foreach"], at.scope(event.payload))
        if not isinstance(values, list) or len(values) > step.get("max_items", 1000):
            self.jobs.append(ReferenceJob("foreach", self.path(step, at), at, event, "failed"))
            return self.mark_failed(at.join)
        for index, item in enumerate(values):
            inside = evolve(at, items=(*at.items, item), indexes=(*at.indexes, index))
            self.gate(step, event, inside, partial(self.act, step, event, inside, continuations), continuations(0))
        if not values and not step.get("join"):
            continuations(0)(event, at)
        return None

    def gate(self, step: Data, event: Event, at: Position, act: Callable[[], None], otherwise: Continuation) -> None:
        self.decide(f"{self.path(step, at)}__switch", step.get("if"), event, at, act, otherwise)

    def decide(
        self, path: str, condition: Any, event: Event, at: Position, act: Callable[[], None], otherwise: Continuation
    ) -> None:
        matched = is_true(condition, at.scope(event.payload))
        if condition is not None:
            self.jobs.append(ReferenceJob("switch", path, at, event, f"{matched}"))
        act() if matched else otherwise(event, at)

    def act(self, step: Data, event: Event, at: Position, continuations: Continuations) -> None:
        if "steps" in step:
            self.sequence(step["steps"], event, at, continuations(0))
        elif "split" in step:
            for number, branch in enumerate(step["split"]):
                self.enter(branch, event, at, continuations(number))
        elif "call" in step:
            self.call(step, event, at, continuations(0))
        else:
            self.job(step, event, at, continuations(0))

    def call(self, step: Data, event: Event, at: Position, then: Continuation) -> None:
        (callee,) = (pipeline for pipeline in self.listed if pipeline["name"] == step["call"])
        path = self.path(step, at)

        def return_to_caller(last_event: Event, end: Position) -> None:
            then(last_event, evolve(end, prefix=at.prefix))

        run = partial(self.sequence, callee["steps"], event, evolve(at, prefix=f"{path}/"), return_to_caller)
        self.decide(f"{path}/__switch", callee.get("if"), event, at, run, then)

    def job(self, step: Data, event: Event, at: Position, then: Continuation) -> None:
        try:
            context = apply_claims(step.get("baggage", {}), at.scope(event.payload))
            status = "dead" if step["uses"] == self.disabled else "queued"
        except Refused:
            context, status = at.context, "failed"
        job = ReferenceJob("job", self.path(step, at), evolve(at, context=context), event, status, step, then)
        self.add(job)
        if status != "queued":
            self.fail(job, status)

    def add(self, job: ReferenceJob) -> None:
        self.jobs.append(job)
        if job.at.join is not None:
            job.at.join.members += 1

    def path(self, step: Data, at: Position) -> str:
        return at.prefix + self.ids[id(step)]
