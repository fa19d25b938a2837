"""Expected rows: matches each step of a run with the one row that it must have left in the ledger.

Implements steps, joins and switches as the documentation describes them, without the code of Ductile that compiles and
executes pipelines. Independent of the particular pipelines, which are in `expected_runs`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Factory, define, evolve, frozen

from scripts.tortures.lib.history import FAILURES, History, Row

STEPS, JOINS, HOOKS = "steps", "joins", "hooks"
UPSTREAM = "ductile_upstream_"


@frozen
class RunPosition:
    """A position in a run: the pipeline, the tree and the list items around it."""

    pipeline: str
    root: str | None
    """The root of the tree; None if the row is a root itself."""
    rule: str = STEPS
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    baggage: Mapping[str, Any] = Factory(dict)

    def inside(self, index: int, item: Any, baggage: Mapping[str, Any]) -> "RunPosition":
        """Return the position at one item of a list."""
        return evolve(self, items=(*self.items, item), indexes=(*self.indexes, index), baggage=baggage)


@frozen
class Output:
    """What a row passes on to the next step."""

    parent: str
    payload: Mapping[str, Any]
    order: int = 0
    """Outputs are in the order in which their rows ended."""
    is_complete: bool = True
    """False if only these members of the payload are known."""
    is_joined: bool = False
    """True if a join created the payload."""


@frozen
class BranchResult:
    """The outputs of a part of a run, and whether a failure in it is not allowed."""

    outputs: tuple[Output, ...] = ()
    failed: bool = False

    def then(self, expect_next: Callable[[Output], "BranchResult"]) -> "BranchResult":
        """Apply the next step to every output and combine the results."""
        results = [expect_next(output) for output in self.outputs]
        outputs = tuple(output for result in results for output in result.outputs)
        return BranchResult(outputs, self.failed or any(result.failed for result in results))


@define
class ExpectedRows:
    """The rows of all runs that no expectation has matched yet, and the violations found so far."""

    history: History
    violations: dict[str, list[str]] = Factory(lambda: defaultdict(list))
    counts: Counter[str] = Factory(Counter)
    """The number of matched runs, steps, joins and hooks."""
    _candidates: dict[tuple[str, str, str], list[Row]] = Factory(lambda: defaultdict(list))
    _unmatched: dict[str, Row] = Factory(dict)
    _arrivals: Counter[str] = Factory(Counter)

    @classmethod
    def of(cls, history: History, rows: Iterator[Row]) -> "ExpectedRows":
        expected = cls(history)
        for job in rows:
            # The first row of a run that was requested by name has no parent.
            key = job["parent_job_id"] or job["id"], job["pipeline"], job["step_id"] or ""
            expected._candidates[key].append(job)
            expected._unmatched[job["id"]] = job
        expected._arrivals = Counter(row["join_id"] for row in history.rows("SELECT join_id FROM arrivals"))
        return expected

    def finish(self) -> None:
        """Report every row that no run accounts for."""
        for job in self._unmatched.values():
            rule = HOOKS if job["submitted_by"] == "hook" else JOINS if job["is_join"] else STEPS
            self._report(rule, f"{describe(job)} under {job['parent_job_id']}: no run accounts for it")

    def step(
        self,
        path: str,
        plugin: str,
        output: Output,
        at: RunPosition,
        *,
        on_error: Callable[[Output], BranchResult] | None = None,
    ) -> BranchResult:
        """Expect one job of `plugin`. With `on_error` its failure is allowed and continues there."""
        job = self._match(path, output, at)
        if job is None:
            return BranchResult(failed=True)
        self.counts["steps"] += 1
        part = str(at.items[-1]) if at.items else "-"
        for effect in self.history.starts.get(job["id"], ()):
            if effect.part != part:
                self._report(at.rule, f"{describe(job)} received the item {effect.part}, not {part}")
        if (job["plugin"], bool(job["tolerated"])) != (plugin, on_error is not None):
            self._report(at.rule, f"{describe(job)} is {job['plugin']}, tolerated {job['tolerated']}")
        if job["status"] in FAILURES and on_error is not None:
            known = {"job_id": job["id"], "status": job["status"], "attempt": job["attempt"], "input": payload_of(job)}
            return on_error(Output(job["id"], without_upstream(known), is_complete=False))
        return BranchResult(tuple(self.outputs_of(job)), failed=job["status"] in FAILURES)

    def join(self, path: str, opened: Output, at: RunPosition, branches: Sequence[BranchResult]) -> BranchResult:
        """Expect one row that waited for all branches and has their results in order."""
        job = self._match(path, opened, evolve(at, rule=JOINS))
        if job is None:
            return BranchResult(failed=True)
        self.counts["joins"] += 1
        results = [output for branch in branches for output in sorted(branch.outputs, key=lambda one: one.order)]
        failed = any(branch.failed for branch in branches)
        expected = ("core.join", 1, "failed" if failed else "succeeded", len(results))
        found = (job["plugin"], job["is_join"], job["status"], self._arrivals[job["id"]])
        if found != expected:
            self._report(JOINS, f"{describe(job)} is {found}, not {expected}")
        if failed:
            return BranchResult(failed=True)
        payload = {**opened.payload, "results": [output.payload for output in results]}
        return BranchResult((Output(job["id"], payload, self._end_order(job), is_joined=True),))

    def switch(self, path: str, output: Output, at: RunPosition, holds: bool) -> BranchResult:
        """Expect one row that recorded the branch; the payload is unchanged."""
        job = self._match(path, output, at)
        if job is None:
            return BranchResult(failed=True)
        expected = {"matched": holds, "event": f"ductile.switch.{str(holds).lower()}"}
        found = self.history.plugin_response(job["id"])
        if (job["plugin"], job["status"], found) != ("core.switch", "succeeded", expected):
            self._report(at.rule, f"{describe(job)} is {job['plugin']}, {job['status']} with {found}, not {expected}")
        return BranchResult((evolve(output, parent=job["id"]),))

    def _match(self, path: str, output: Output, at: RunPosition) -> Row | None:
        """Return the one row of this step after this output, and check its tree and baggage."""
        candidates = self._candidates.get((output.parent, at.pipeline, path), [])
        found = [job for job in candidates if job["id"] in self._unmatched and matches(job, output, at)]
        if len(found) != 1:
            self._report(
                JOINS if output.is_joined and candidates else at.rule,
                f"{at.pipeline}: {path}{list(at.indexes) or ''} after {output.parent} has {len(found)} rows "
                f"({len(candidates)} with any payload)",
            )
        for job in found:
            del self._unmatched[job["id"]]
        if not found:
            return None
        job = found[0]
        if job["root_job_id"] != (at.root or job["id"]):
            self._report(at.rule, f"{describe(job)} is in the tree of {job['root_job_id']}, not {at.root or job['id']}")
        if job["context"] is not None and (baggage := baggage_of(job)) != at.baggage:
            self._report(at.rule, f"{describe(job)} has the baggage {baggage}, not {dict(at.baggage)}")
        return job

    def outputs_of(self, job: Row) -> Iterator[Output]:
        """Yield the events of a success with its result, or its own payload if it emitted none."""
        if job["status"] != "succeeded":
            return
        response = self.history.plugin_response(job["id"])
        result = {"result": response.get("result")}
        for payload in [event["payload"] for event in response.get("events", ())] or [payload_of(job)]:
            yield Output(job["id"], without_upstream({**payload, **result}), self._end_order(job))

    def _end_order(self, job: Row) -> int:
        log = self.history.attempts.get(job["id"])
        return log[-1]["seq"] if log else 0

    def _report(self, rule: str, violation: str) -> None:
        self.violations[rule].append(violation)


def matches(job: Row, output: Output, at: RunPosition) -> bool:
    """Return whether the row has this payload and list position. A switch has neither."""
    if job["payload"] is not None:
        payload = without_upstream(payload_of(job))
        known = payload if output.is_complete else {name: payload.get(name) for name in output.payload}
        if known != without_upstream(output.payload):
            return False
    return job["context"] is None or tuple(control_of(job).get("indexes", ())) == at.indexes


def payload_of(job: Row) -> dict[str, Any]:
    """Return the payload of the event that the row was created for."""
    content = json.loads(job["payload"] or "{}")
    payload = content.get("payload", {}) if job["command"] == "handle" else content
    return payload if isinstance(payload, dict) else {}


def control_of(job: Row) -> dict[str, Any]:
    control = json.loads(job["context"] or "{}").get("ductile", {})
    return control if isinstance(control, dict) else {}


def baggage_of(job: Row) -> dict[str, Any]:
    return {name: value for name, value in json.loads(job["context"] or "{}").items() if name != "ductile"}


def without_upstream(value: Any) -> Any:
    """Remove the members that record where an event came from."""
    if isinstance(value, dict):
        return {name: without_upstream(member) for name, member in value.items() if not name.startswith(UPSTREAM)}
    return [without_upstream(member) for member in value] if isinstance(value, list) else value


def describe(job: Row) -> str:
    return f"{job['id']} ({job['pipeline']}: {job['step_id']}, {job['status']})"
