"""What pipelines mean, as an interpreter of their plain YAML data: something to hold the engine against.

Knows the written rules and nothing of plans, ledgers or processes. Jobs wait until somebody tells how each ended;
`settle` then decides the joins that wait for nobody. `made` has everything that came into being, in order.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from attrs import Factory, define, evolve, frozen

from tests.pipeline.random_pipelines import each_step
from tests.pipeline.values import Data, Refused, claimed, found, is_true, rendered

WORDS = "…"
"""Stands for the words of a message, which are told elsewhere."""


@frozen(eq=False)
class Event:
    type: str
    payload: Data


@frozen(eq=False, kw_only=True)
class At:
    """A moment of a run: inside of which call, items and join, and with which baggage."""

    pipeline: str
    context: Data
    prefix: str = ""
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    join: "Made | None" = None

    def scope(self, payload: Data) -> Data:
        return {"payload": payload, "context": self.context, **({"item": self.items[-1]} if self.items else {})}


Then = Callable[[Event, At], None]
"""Where an end leads."""
Ends = Callable[[int], Then]
"""The same by the number of the branch."""


def nowhere(event: Event, at: At) -> None:
    """The end of a run."""


@define(eq=False)
class Made:
    """A job that waits for its plugin, or a join that waits for its jobs; or a switch, or a refusal."""

    kind: str
    path: str
    at: At
    event: Event
    status: str
    step: Data = Factory(dict)
    then: Then = nowhere
    members: int = 0
    results: list[tuple[int, int, Data]] = Factory(list)
    spoilt: bool = False

    @property
    def is_ready(self) -> bool:
        return (self.kind, self.status, self.members) == ("join", "queued", 0)

    def told(self) -> Data:
        """The payload that its plugin gets; Refused if a `with` refers to nothing."""
        given = self.event.payload if "." in self.step["uses"] else {**self.at.context, **self.event.payload}
        return given | {key: rendered(text, self.at.scope(given)) for key, text in self.step.get("with", {}).items()}


@define(eq=False)
class Reference:
    """Some pipelines, and what has become of their runs so far."""

    listed: list[Data]
    disabled: str = ""
    made: list[Made] = Factory(list)
    failed: bool = False
    ids: dict[int, str] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        for pipeline in self.listed:
            steps = each_step(pipeline["steps"])
            taken = {step.get("id") for step in steps}
            fresh = (name for number in count(1) if (name := f"step_{number}") not in taken)
            self.ids |= {id(step): step.get("id") or next(fresh) for step in steps}

    def begin(self, pipeline: Data, event: Event, context: Data) -> None:
        self.sequence(pipeline["steps"], event, At(pipeline=pipeline["name"], context=context), nowhere)

    def succeed(self, job: Made, result: str, events: list[Event]) -> None:
        """The job is over; each event advances its run and triggers others."""
        job.status = "succeeded"
        for said in events or [Event("ductile.step.succeeded", {**job.event.payload, "result": result})]:
            event = evolve(said, payload={"result": result, **said.payload})
            job.then(event, job.at)
            for other in self.listed:
                if other["on"] == event.type and is_true(other.get("if"), job.at.scope(event.payload)):
                    self.begin(other, event, job.at.context)
        self.over(job.at.join)

    def fail(self, job: Made, status: str = "failed", attempt: int = 1) -> None:
        """The job has finally failed; its `on_error` steps are entered."""
        job.status = status
        plugin, _, command = job.step["uses"].partition(".")
        payload = {"plugin": plugin, "command": command or "handle", "status": status, "attempt": attempt}
        payload |= {"error": WORDS, "message": WORDS, "text": WORDS, "input": job.event.payload}
        tolerated = job.step.get("continue")
        if not tolerated:
            self.spoil(job.at.join)
        steps = job.step.get("on_error", [])
        if steps or tolerated:
            self.sequence(steps, Event("ductile.step.failed", payload), job.at, job.then if tolerated else nowhere)
        self.over(job.at.join)

    def settle(self) -> None:
        """Every join whose jobs are all over is decided, and what follows is made."""
        while join := next((made for made in self.made if made.is_ready), None):
            join.status = "failed" if join.spoilt else "succeeded"
            if join.spoilt:
                self.spoil(join.at.join)
            else:
                results = [payload for *_, payload in sorted(join.results, key=lambda result: result[:2])]
                join.then(Event("ductile.join.completed", {**join.event.payload, "results": results}), join.at)
            self.over(join.at.join)

    def spoil(self, join: Made | None) -> None:
        self.failed = True
        if join is not None:
            join.spoilt = True

    def over(self, join: Made | None) -> None:
        if join is not None:
            join.members -= 1

    def sequence(self, steps: list[Data], event: Event, at: At, then: Then) -> None:
        if steps:
            self.enter(steps[0], event, at, lambda came, here: self.sequence(steps[1:], came, here, then))
        else:
            then(event, at)

    def enter(self, step: Data, event: Event, at: At, then: Then) -> None:
        def leave(came: Event, here: At) -> None:
            then(came, evolve(here, items=at.items, indexes=at.indexes))

        if "foreach" in step and step.get("join"):
            self.wait(step, event, at, then, partial(self.each, step, event))
        elif "foreach" in step:
            self.each(step, event, at, lambda _: leave)
        elif step.get("join"):
            self.gate(step, event, at, lambda: self.wait(step, event, at, then, partial(self.act, step, event)), then)
        else:
            self.gate(step, event, at, lambda: self.act(step, event, at, lambda _: then), then)

    def wait(self, step: Data, event: Event, at: At, then: Then, body: Callable[[At, Ends], None]) -> None:
        join = Made("join", f"{self.path(step, at)}__join", at, event, "queued", step, then)

        def arrive(branch: int, came: Event, here: At) -> None:
            join.results.append((here.indexes[-1] if "foreach" in step else 0, branch, came.payload))

        body(evolve(at, join=join), lambda branch: partial(arrive, branch))
        self.add(join)

    def each(self, step: Data, event: Event, at: At, ends: Ends) -> None:
        values = found(step["foreach"], at.scope(event.payload))
        if not isinstance(values, list) or len(values) > step.get("max_items", 1000):
            self.made.append(Made("foreach", self.path(step, at), at, event, "failed"))
            return self.spoil(at.join)
        for index, item in enumerate(values):
            inside = evolve(at, items=(*at.items, item), indexes=(*at.indexes, index))
            self.gate(step, event, inside, partial(self.act, step, event, inside, ends), ends(0))
        if not values and not step.get("join"):
            ends(0)(event, at)
        return None

    def gate(self, step: Data, event: Event, at: At, act: Callable[[], None], otherwise: Then) -> None:
        self.decide(f"{self.path(step, at)}__switch", step.get("if"), event, at, act, otherwise)

    def decide(self, path: str, question: Any, event: Event, at: At, act: Callable[[], None], otherwise: Then) -> None:
        matched = is_true(question, at.scope(event.payload))
        if question is not None:
            self.made.append(Made("switch", path, at, event, f"{matched}"))
        act() if matched else otherwise(event, at)

    def act(self, step: Data, event: Event, at: At, ends: Ends) -> None:
        if "steps" in step:
            self.sequence(step["steps"], event, at, ends(0))
        elif "split" in step:
            for number, branch in enumerate(step["split"]):
                self.enter(branch, event, at, ends(number))
        elif "call" in step:
            self.call(step, event, at, ends(0))
        else:
            self.job(step, event, at, ends(0))

    def call(self, step: Data, event: Event, at: At, then: Then) -> None:
        (callee,) = (one for one in self.listed if one["name"] == step["call"])
        path = self.path(step, at)

        def back(came: Event, here: At) -> None:
            then(came, evolve(here, prefix=at.prefix))

        run = partial(self.sequence, callee["steps"], event, evolve(at, prefix=f"{path}/"), back)
        self.decide(f"{path}/__switch", callee.get("if"), event, at, run, then)

    def job(self, step: Data, event: Event, at: At, then: Then) -> None:
        try:
            context = claimed(step.get("baggage", {}), at.scope(event.payload))
            status = "dead" if step["uses"] == self.disabled else "queued"
        except Refused:
            context, status = at.context, "failed"
        job = Made("job", self.path(step, at), evolve(at, context=context), event, status, step, then)
        self.add(job)
        if status != "queued":
            self.fail(job, status)

    def add(self, made: Made) -> None:
        self.made.append(made)
        if made.at.join is not None:
            made.at.join.members += 1

    def path(self, step: Data, at: At) -> str:
        return at.prefix + self.ids[id(step)]
