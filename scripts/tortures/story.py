"""One row after the other: what a run must have left behind, held against what is there.

Steps, joins and switches of pipelines, as the documentation describes them; written without the code that compiles and
walks pipelines, which is what it checks. Knows no particular pipeline: `runs` tells the ones of the play.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Factory, define, evolve, frozen

from scripts.tortures.case import FAILURES, Case, Row

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
    """The rows of all runs, taken away as they are told. What is wrong is kept by what it is about."""

    case: Case
    wrong: dict[str, list[str]] = Factory(lambda: defaultdict(list))
    told: Counter[str] = Factory(Counter)
    """How many of each there were."""
    _rows: dict[tuple[str, str, str], list[Row]] = Factory(lambda: defaultdict(list))
    _left: dict[str, Row] = Factory(dict)
    _arrivals: Counter[str] = Factory(Counter)

    @classmethod
    def of(cls, case: Case, rows: Iterator[Row]) -> "Story":
        """Nothing is told yet."""
        story = cls(case)
        for job in rows:
            # The first row of a run that was asked for by name has no parent to be found by.
            story._rows[job["parent_job_id"] or job["id"], job["pipeline"], job["step_id"] or ""].append(job)
            story._left[job["id"]] = job
        story._arrivals = Counter(row["join_id"] for row in case.rows("SELECT join_id FROM arrivals"))
        return story

    def finish(self) -> None:
        """What is left has no place in any run."""
        for job in self._left.values():
            rule = HOOKS if job["submitted_by"] == "hook" else JOINS if job["is_join"] else STEPS
            self._say(rule, f"{about(job)} under {job['parent_job_id']}: nothing led to it")

    def step(
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
        return Ends(tuple(self.handed_on(job)), failed=job["status"] in FAILURES)

    def join(self, path: str, opened: End, at: Place, branches: Sequence[Ends]) -> Ends:
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

    def switch(self, path: str, end: End, at: Place, holds: bool) -> Ends:
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

    def handed_on(self, job: Row) -> Iterator[End]:
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
