"""The runs of the play, told a second time by hand: which rows each must have left, with which payload and baggage.

Takes what every job handed on from the log and follows it through the pipelines as their author means them, without
asking the code that compiled or walked them. Each row must stand where the story needs one; no row may be left over.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import Factory, define, evolve, frozen

from scripts.tortures.case import FAILURES, FINAL, Case, Row

STEPS, JOINS, HOOKS = "steps", "joins", "hooks"
UPSTREAM = "ductile_upstream_"


@frozen
class Place:
    """Where in a run something is."""

    pipeline: str
    root: str | None
    """The tree that it is part of; None if the run has one of its own."""
    rule: str = STEPS
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    baggage: Mapping[str, Any] = Factory(dict)

    def inside(self, index: int, item: Any, baggage: Mapping[str, Any]) -> "Place":
        """At one element of a list."""
        return evolve(self, items=(*self.items, item), indexes=(*self.indexes, index), baggage=baggage)


@frozen
class End:
    """What came out of a row, for the next one to begin with."""

    parent: str
    payload: Mapping[str, Any]
    at: int = 0
    """The order in which rows came to their ends."""
    is_whole: bool = True
    """False if only these members of the payload are known."""
    is_joined: bool = False
    """True if a join put the payload together."""


@frozen
class Ends:
    """What came out of a part of a run; `failed` if something in there failed and nobody tolerates that."""

    arrived: tuple[End, ...] = ()
    failed: bool = False

    def then(self, follow: Callable[[End], "Ends"]) -> "Ends":
        followed = [follow(end) for end in self.arrived]
        arrived = tuple(end for ends in followed for end in ends.arrived)
        return Ends(arrived, self.failed or any(ends.failed for ends in followed))


@define
class Story:
    """All runs of a case, told to their ends."""

    case: Case
    wrong: dict[str, list[str]] = Factory(lambda: defaultdict(list))
    """By what it is about."""
    told: Counter[str] = Factory(Counter)
    """How many of each there were."""
    _rows: dict[tuple[str, str, str], list[Row]] = Factory(lambda: defaultdict(list))
    _left: dict[str, Row] = Factory(dict)
    _arrivals: Counter[str] = Factory(Counter)

    @classmethod
    def of(cls, case: Case) -> "Story":
        story = cls(case)
        for job in case.jobs.values():
            if job["pipeline"]:
                # The first row of a run that was asked for by name has no parent to be found by.
                story._rows[job["parent_job_id"] or job["id"], job["pipeline"], job["step_id"] or ""].append(job)
                story._left[job["id"]] = job
        story._arrivals = Counter(row["join_id"] for row in case.rows("SELECT join_id FROM arrivals"))
        story._tell()
        return story

    def _tell(self) -> None:
        by_name = {"deliver": self._deliver, "quote": self._quote}
        notifying = {role.name for role in self.case.roles if role.notifies}
        for job in self.case.jobs.values():
            is_root = job["root_job_id"] == job["id"]
            if job["parent_job_id"] is None and job["pipeline"] in by_name:
                by_name[job["pipeline"]](End(job["id"], payload_of(job)), Place(job["pipeline"], job["id"]))
            if job["plugin"] == "order" and "deliver" in self.case.scripts:
                for end in self._handed_on(job):
                    self._deliver(end, Place("deliver", job["root_job_id"]))
            if is_root and job["plugin"] in notifying and job["status"] in FINAL - {"skipped"}:
                self._hooks(job)
        for job in self._left.values():
            rule = HOOKS if job["submitted_by"] == "hook" else JOINS if job["is_join"] else STEPS
            self._say(rule, f"{about(job)} under {job['parent_job_id']}: nothing led to it")

    # ── the play ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _deliver(self, begun: End, at: Place) -> None:
        self.told["runs"] += 1
        picked = self._step("pick", "pick", begun, at)
        wrapped = picked.then(lambda end: self._join("wrap__join", end, at, self._wrap(end, at)))
        inspected = wrapped.then(lambda end: self._inspect(end, at))
        sided = inspected.then(lambda end: self._join("sides__join", end, at, self._sides(end, at)))
        sided.then(lambda end: self._step("ship", "keep", end, at))

    def _wrap(self, end: End, at: Place) -> list[Ends]:
        """A branch for every item, which its first step makes durable."""
        items = enumerate(end.payload["items"])
        return [self._wrap_one(end, at.inside(index, item, {"part": item})) for index, item in items]

    def _wrap_one(self, end: End, at: Place) -> Ends:
        def bundle(end: End) -> Ends:
            paper = self._step("around/paper", "press", end, at)
            ribbon = self._step("around/ribbon", "brittle", end, at)
            return self._join("around/both__join", end, at, [paper, ribbon])

        return self._step("cut", "press", end, at).then(bundle)

    def _inspect(self, end: End, at: Place) -> Ends:
        holds = end.payload["even"]
        passed = self._switch("inspect__switch", end, at, holds)
        return passed.then(lambda end: self._step("inspect", "keep", end, at)) if holds else passed

    def _sides(self, end: End, at: Place) -> list[Ends]:
        printed = self._step("print", "twin", end, at)
        label = printed.then(
            lambda end: self._step(
                "glue", "brittle", end, at, on_error=lambda failure: self._step("patch", "keep", failure, at)
            )
        )
        return [self._step("invoice", "press", end, at), label]

    def _quote(self, begun: End, at: Place) -> None:
        self.told["runs"] += 1
        picked = self._step("pick", "pick", begun, at)
        picked.then(lambda end: self._join("prices__join", end, at, self._prices(end, at)))

    def _prices(self, end: End, at: Place) -> list[Ends]:
        items = enumerate(end.payload["items"])
        return [self._step("prices", "press", end, at.inside(index, item, {})) for index, item in items]

    def _hooks(self, job: Row) -> None:
        """A tree of its own for every pipeline that waits for this kind of end."""
        failed = job["status"] in FAILURES
        applies = {
            ("note", "jot"): True,
            ("alarm", "ring"): failed and job["plugin"] == "flaky",
            ("toll", "bell"): job["status"] == "dead",
        }
        known = {"job_id": job["id"], **{name: job[name] for name in ("plugin", "command", "status", "attempt")}}
        for (pipeline, step), does in applies.items():
            if does and pipeline in self.case.scripts:
                self.told["hooks"] += 1
                self._step(step, "keep", End(job["id"], known, is_whole=False), Place(pipeline, None, HOOKS))

    # ── its parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(
        self, path: str, plugin: str, end: End, at: Place, *, on_error: Callable[[End], Ends] | None = None
    ) -> Ends:
        """One job of `plugin`; a failure with `on_error` is tolerated and goes on from there."""
        job = self._take(path, end, at)
        if job is None:
            return Ends(failed=True)
        self.told["steps"] += 1
        part = str(at.items[-1]) if at.items else "-"
        for effect in self.case.starts.get(job["id"], ()):
            if effect.part != part:
                self._say(at.rule, f"{about(job)} was told to work on {effect.part}, not {part}")
        if (job["plugin"], bool(job["tolerated"])) != (plugin, on_error is not None):
            self._say(at.rule, f"{about(job)} is {job['plugin']}, tolerated {job['tolerated']}")
        if job["status"] in FAILURES and on_error is not None:
            known = {"job_id": job["id"], "status": job["status"], "attempt": job["attempt"], "input": payload_of(job)}
            return on_error(End(job["id"], plain(known), is_whole=False))
        return Ends(tuple(self._handed_on(job)), failed=job["status"] in FAILURES)

    def _join(self, path: str, opened: End, at: Place, branches: Sequence[Ends]) -> Ends:
        """One row that waited for all branches, and their results in order."""
        job = self._take(path, opened, evolve(at, rule=JOINS))
        if job is None:
            return Ends(failed=True)
        self.told["joins"] += 1
        results = [end for ends in branches for end in sorted(ends.arrived, key=lambda end: end.at)]
        failed = any(ends.failed for ends in branches)
        expected = ("core.join", 1, "failed" if failed else "succeeded", len(results))
        found = (job["plugin"], job["is_join"], job["status"], self._arrivals[job["id"]])
        if found != expected:
            self._say(JOINS, f"{about(job)} is {found}, not {expected}")
        if failed:
            return Ends(failed=True)
        payload = {**opened.payload, "results": [end.payload for end in results]}
        return Ends((End(job["id"], payload, self._ended(job), is_joined=True),))

    def _switch(self, path: str, end: End, at: Place, holds: bool) -> Ends:
        """One row that says which way it went; behind it the same event."""
        job = self._take(path, end, at)
        if job is None:
            return Ends(failed=True)
        expected = {"matched": holds, "event": f"ductile.switch.{str(holds).lower()}"}
        found = self.case.answer_of(job["id"])
        if (job["plugin"], job["status"], found) != ("core.switch", "succeeded", expected):
            self._say(at.rule, f"{about(job)} is {job['plugin']}, {job['status']} with {found}, not {expected}")
        return Ends((evolve(end, parent=job["id"]),))

    def _take(self, path: str, end: End, at: Place) -> Row | None:
        """The one row that stands for this step after this end."""
        candidates = self._rows.get((end.parent, at.pipeline, path), [])
        found = [job for job in candidates if job["id"] in self._left and fits(job, end, at)]
        if len(found) != 1:
            self._say(
                JOINS if end.is_joined and candidates else at.rule,
                f"{at.pipeline}: {path}{list(at.indexes) or ''} after {end.parent} is there {len(found)} times "
                f"({len(candidates)} rows for it, with any payload)",
            )
        for job in found:
            del self._left[job["id"]]
        if not found:
            return None
        job = found[0]
        if job["root_job_id"] != (at.root or job["id"]):
            self._say(at.rule, f"{about(job)} is in the tree of {job['root_job_id']}, not {at.root or job['id']}")
        if job["context"] is not None and (baggage := baggage_of(job)) != at.baggage:
            self._say(at.rule, f"{about(job)} carries {baggage}, not {dict(at.baggage)}")
        return job

    def _handed_on(self, job: Row) -> Iterator[End]:
        """Its events, or what it was entered with if it emitted none; with its result either way."""
        if job["status"] != "succeeded":
            return
        answer = self.case.answer_of(job["id"])
        said = {"result": answer.get("result")}
        for payload in [event["payload"] for event in answer.get("events", ())] or [payload_of(job)]:
            yield End(job["id"], plain({**payload, **said}), self._ended(job))

    def _ended(self, job: Row) -> int:
        log = self.case.attempts.get(job["id"])
        return log[-1]["seq"] if log else 0

    def _say(self, rule: str, text: str) -> None:
        self.wrong[rule].append(text)


@lru_cache(maxsize=1)
def story_of(case: Case) -> Story:
    """The story of a case; told once for all who ask in turn."""
    return Story.of(case)


def fits(job: Row, end: End, at: Place) -> bool:
    """True if the row was made from this end, at this element of the list; switches carry neither."""
    if job["payload"] is not None:
        payload = plain(payload_of(job))
        known = payload if end.is_whole else {name: payload.get(name) for name in end.payload}
        if known != plain(end.payload):
            return False
    return job["context"] is None or tuple(control_of(job).get("indexes", ())) == at.indexes


def payload_of(job: Row) -> dict[str, Any]:
    """The payload of the event that a row was made for."""
    content = json.loads(job["payload"] or "{}")
    payload = content.get("payload", {}) if job["command"] == "handle" else content
    return payload if isinstance(payload, dict) else {}


def control_of(job: Row) -> dict[str, Any]:
    control = json.loads(job["context"] or "{}").get("ductile", {})
    return control if isinstance(control, dict) else {}


def baggage_of(job: Row) -> dict[str, Any]:
    return {name: value for name, value in json.loads(job["context"] or "{}").items() if name != "ductile"}


def plain(value: Any) -> Any:
    """Without the notes about where an event came from."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items() if not name.startswith(UPSTREAM)}
    return [plain(member) for member in value] if isinstance(value, list) else value


def about(job: Row) -> str:
    return f"{job['id']} ({job['pipeline']}: {job['step_id']}, {job['status']})"
