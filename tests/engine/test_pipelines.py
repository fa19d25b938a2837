"""Random pipelines, run with the real ledger and scripted plugins, behave like the reference implementation.

Everything but the processes is real: preflight, judge, completions, transactions, joins. After every transaction the
new rows are compared with the reference. DUCTILE_GRAPHS=20000 tries more and other graphs.
"""

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import blake2b
from typing import Any, TypeVar

import pytest
from attrs import Factory, define, evolve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ductile.config.snapshot import Snapshot
from ductile.core.model import Completion, Job
from ductile.engine.completion import complete
from ductile.engine.follow_up_rules import follow_up_rule_of, join_rule_of
from ductile.engine.judge import judge
from ductile.engine.preflight import PreflightCache, Ready, Refuse, preflight
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.reports import trees
from ductile.ledger.storage.connections import connect_writer, transaction
from ductile.ledger.storage.open_file import create
from ductile.pipeline.run.route import trigger_run
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_run, snapshot_of
from tests.ledger.recording import record_and_claim
from tests.pipeline.compiling import compile_text
from tests.pipeline.reference import ANY_TEXT, Event, Reference, ReferenceJob
from tests.pipeline.reference_values import Data, Refused

T = TypeVar("T")
GRAPHS = int(os.environ.get("DUCTILE_GRAPHS", "500"))
MAX_STEPS, MAX_ROWS = 8, 250
SLOTS = dict.fromkeys(("alpha", "beta", "gamma", "broken"), 100)
CONFIG = """\
plugins:
  alpha: {}
  beta: {retry: {max_attempts: 2, backoff_base: 1ms}}
  gamma: {}
  broken: {}
  off: {enabled: false}
"""

# ── generated pipelines ─────────────────────────────────────────────────────────────────────────────────────────────

START: Data = {"there": 1, "n": 3, "kind": "a", "none": [], "object": {"size": 1}}
START["some"] = [{"id": 1, "list": []}, {"id": 2, "list": []}, {"id": 3, "list": [8, 9]}]
CONDITIONS = [
    {"path": "payload.there", "op": "exists"},
    {"path": "payload.gone", "op": "exists"},
    {"path": "payload.n", "op": "gt", "value": 1},
    {"not": {"path": "payload.kind", "op": "eq", "value": "a"}},
    {"all": [{"path": "payload.n", "op": "gt", "value": 0}, {"path": "context.kept.n", "op": "exists"}]},
]
ITEM_CONDITIONS = [{"path": "item.id", "op": "gt", "value": 1}, {"path": "item", "op": "exists"}]
LISTS = ["payload.some"] * 20 + ["payload.none"] * 5 + ["payload.gone", "payload.there"]
ITEM_LISTS = ["item.list"] * 30
CLAIMS: list[Data] = [
    {"kept.n": "payload.n"},
    {"kept.kind": "payload.kind", "also": "payload.there"},
    {"from": "payload.object", "namespace": "kept.object"},
    {"kept": "payload.object"},
    {"copy": "context.kept"},
]
ITEM_CLAIMS: list[Data] = [{"seen": "item"}, {"seen.id": "item.id"}]
WITH: list[Data] = [
    {"n": "{payload.n}", "told": "n is {payload.n}, kind {payload.kind}"},
    {"whole": "{payload}"},
    {"kept": "{context.kept}"},
    {"text": "{context.kept.n}: {payload.some}"},
]
ITEM_WITH: list[Data] = [{"item": "{item}", "id": "#{item.id}"}]


@define
class PipelineGenerator:
    """Generates pipelines with every construct inside every other."""

    draw: st.DrawFn
    steps_left: int = MAX_STEPS

    def one_in(self, count: int) -> bool:
        return self.draw(st.integers(1, count)) == count

    def pick(self, choices: Sequence[T]) -> T:
        return self.draw(st.sampled_from(choices))

    def steps(self, callees: list[str], *, levels: int, has_item: bool, least: int = 1) -> list[Data]:
        number = self.draw(st.integers(least, least + 2))
        return [self.step(callees, levels=levels, has_item=has_item) for _ in range(number)]

    def step(self, callees: list[str], *, levels: int, has_item: bool) -> Data:
        self.steps_left -= 1
        step: Data = {}
        if self.one_in(3 if has_item else 5):
            step["foreach"] = self.pick(LISTS + ITEM_LISTS * has_item)
            has_item = True
            if self.one_in(10):
                step["max_items"] = 2
        if self.one_in(4):
            step["if"] = self.pick(CONDITIONS + ITEM_CONDITIONS * has_item)
        kinds = (
            ["uses"] * 3 + ["steps", "split", "split"] * (levels > 0 and self.steps_left > 0) + ["call"] * bool(callees)
        )
        match self.pick(kinds):
            case "uses":
                self.use(step, callees, levels=levels, has_item=has_item)
            case "call":
                step["call"] = self.pick(callees)
            case kind:
                step[kind] = self.steps(callees, levels=levels - 1, has_item=has_item)
        if ("split" in step or "foreach" in step) and not self.one_in(3):
            step["join"] = True
        return step

    def use(self, step: Data, callees: list[str], *, levels: int, has_item: bool) -> None:
        may_fail = levels > 0 and self.steps_left > 0 and self.one_in(4)
        step["uses"] = self.pick(["alpha", "beta", "gamma.poll"] * (1 if may_fail else 20) + ["broken", "off"])
        if may_fail:
            step["continue"] = self.one_in(2)
            if not step["continue"] or self.one_in(2):
                step["on_error"] = self.steps(callees, levels=levels - 1, has_item=has_item)
        if self.one_in(4):
            step["baggage"] = self.pick(CLAIMS + ITEM_CLAIMS * has_item)
        if self.one_in(4):
            step["with"] = self.pick(WITH + ITEM_WITH * has_item)


@st.composite
def graphs(draw: st.DrawFn) -> list[Data]:
    """Generate pipeline `p`, and `q` and `r` that it may call or trigger."""
    pipelines: list[Data] = []
    for name in "rqp":
        callees = [each["name"] for each in pipelines]
        steps = PipelineGenerator(draw).steps(callees, levels=3, has_item=False, least=4 if name == "p" else 1)
        pipelines.insert(0, {"name": name, "on": f"{name}.wanted", "steps": steps})
        if draw(st.integers(1, 4)) == 4:
            pipelines[0]["if"] = draw(st.sampled_from(CONDITIONS))
    return pipelines


# ── scripted plugins ────────────────────────────────────────────────────────────────────────────────────────────────


def respond(path: str, step_input: Data, plugin: str, attempt: int) -> Data:
    """Return the response of the step at `path`. The same input gives the same response."""
    rng = random.Random(blake2b(json.dumps([path, step_input], sort_keys=True).encode()).digest())
    if plugin == "broken" or rng.random() < 0.02:
        return {"status": "error", "error": "scripted", "retry": rng.random() < 0.2}
    if plugin == "beta" and rng.random() < 0.2 and attempt == 1:
        return {"status": "error", "error": "scripted, once"}
    emitted = [_event(rng, step_input) for _ in range(rng.choice((0, 0, 1, 1, 1, 2)))]
    return {"status": "ok", "result": f"done {path}", "events": emitted}


def _event(rng: random.Random, step_input: Data) -> Data:
    payload: Data = {**START, "n": rng.randrange(4), "kind": rng.choice("ab")}
    payload |= {"some": START["some"][: rng.randrange(4)], "object": {"size": rng.randrange(2)}}
    if rng.random() < 0.2:
        payload["result"] = "of its own"
    kind = "made"
    if "triggered" in step_input:
        payload["triggered"] = True
    elif rng.random() < 0.1:
        payload["triggered"], kind = True, "q.wanted"
    return {"type": kind, "payload": payload}


def plain(value: Any) -> Any:
    """Return a payload without values that only the engine has: ids, durations, error texts, the previous step."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    unknown = {"job_id", "duration_ms"} | {key for key in value if key.startswith("ductile_")}
    known = {key: plain(member) for key, member in value.items() if key not in unknown}
    if "input" in known:
        known |= {"error": ANY_TEXT, "message": ANY_TEXT, "text": ANY_TEXT, "result": ANY_TEXT}
    return known


# ── the engine ──────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = """
    SELECT job.id, job.plugin, job.pipeline, job.step_id, job.child_key, job.payload, job.command, job.status,
           job.tolerated, context.accumulated_json AS context,
           (SELECT result FROM job_log WHERE job_log.job_id = job.id) AS result
      FROM job_queue AS job LEFT JOIN event_context AS context ON context.id = job.event_context_id
     WHERE job.seq > ? AND job.plugin <> 'core.start' ORDER BY job.seq
"""
CORE_KINDS = {"core.switch": "switch", "core.join": "join", "core.foreach": "foreach"}


@define(eq=False)
class Engine:
    """A dispatcher without processes: claims everything, and completes the jobs that the test chooses."""

    db: sqlite3.Connection
    snapshot: Snapshot
    cache: PreflightCache
    running: dict[str, Job] = Factory(dict)
    now: Any = NOW
    seen: int = 0

    def begin(self, name: str, payload: Data) -> None:
        beginning = trigger_run(
            self.snapshot.plans.require(name), payload, self.snapshot.routing, submitted_by="api", now=self.now
        )
        with transaction(self.db):
            start_run(self.db, beginning.follow_ups, now=self.now)
        self.step([])

    def preflight(self, job: Job) -> Ready | Refuse:
        ready = preflight(self.snapshot, job, state_json="{}", instance="i", now=self.now, cache=self.cache)
        assert isinstance(ready, Ready | Refuse)
        return ready

    def end(self, job: Job, ready: Ready | Refuse, response: Data) -> Completion:
        if isinstance(ready, Refuse):
            following = follow_up_rule_of(self.snapshot)(job, ready.outcome, self.now)
            return Completion(
                job_id=job.id,
                attempt=job.attempt,
                outcome=ready.outcome,
                contexts=following.contexts,
                children=following.children,
                arrivals=following.arrivals,
                notes=following.notes,
            )
        verdict = judge(job, a_run(response), ready.policy, started_at=self.now, jitter=0.5)
        return complete(job, ready, verdict, self.snapshot, now=self.now)

    @property
    def is_open(self) -> bool:
        waiting = self.db.execute("SELECT COUNT(*) FROM job_queue WHERE next_retry_at IS NOT NULL").fetchone()[0]
        return bool(self.running or waiting)

    def step(self, completions: list[Completion]) -> None:
        self.now += timedelta(hours=1)
        with transaction(self.db):
            _, claimed = record_and_claim(
                self.db,
                completions,
                now=self.now,
                run_id="run",
                free=SLOTS,
                limit=1000,
                join_rule=join_rule_of(self.snapshot),
            )
        for completion in completions:
            del self.running[completion.job_id]
        self.running |= {job.id: job for job in claimed.jobs}

    def new_rows(self) -> list[sqlite3.Row]:
        self.db.row_factory = sqlite3.Row
        rows = self.db.execute(ROWS, (self.seen,)).fetchall()
        self.db.row_factory = None
        self.seen = self.db.execute("SELECT MAX(seq) FROM job_queue").fetchone()[0]
        return rows


# ── comparison ──────────────────────────────────────────────────────────────────────────────────────────────────────


def key_of_row(row: sqlite3.Row) -> str:
    """Return all fields of a row that must equal the reference, as a sortable text."""
    kind = CORE_KINDS.get(row["plugin"], "job")
    content = json.loads(row["payload"] or "{}")
    context = {key: value for key, value in json.loads(row["context"] or "{}").items() if key != "ductile"}
    return as_key(
        kind=kind,
        path=(row["pipeline"], row["step_id"], row["child_key"].rsplit("/", 2)[1]),
        type=content.get("type") if row["command"] == "handle" else None,
        payload=content.get("payload") if row["command"] == "handle" else content,
        context=context if kind == "join" or row["status"] in ("queued", "running") else None,
        status=_status(kind, row),
        tolerated=bool(row["tolerated"]),
    )


def _status(kind: str, row: sqlite3.Row) -> str:
    if kind == "switch":
        return str(json.loads(row["result"])["matched"])
    return "queued" if row["status"] == "running" else str(row["status"])


def key_of_made(reference_job: ReferenceJob) -> str:
    is_bare = reference_job.kind in ("switch", "foreach")
    is_settled = is_bare or (reference_job.kind == "job" and reference_job.status != "queued")
    is_event = reference_job.kind == "join" or "." not in reference_job.step.get("uses", "")
    return as_key(
        kind=reference_job.kind,
        path=(reference_job.at.pipeline, reference_job.path, ".".join(map(str, reference_job.at.indexes))),
        type=reference_job.event.type if is_event and not is_bare else None,
        payload=None if is_bare else reference_job.event.payload,
        context=None if is_settled else reference_job.at.context,
        status=reference_job.status,
        tolerated=reference_job.kind == "job" and bool(reference_job.step.get("continue")),
    )


def read_request(ready: Ready, job: Job) -> Data:
    """Return the payload of the request. Checks that the request has the baggage of the job."""
    request = json.loads(ready.request)
    baggage = {key: value for key, value in json.loads(job.context or "{}").items() if key != "ductile"}
    assert {key: request["context"][key] for key in baggage} == baggage
    step_input: Data = plain((request["event"] if job.command == "handle" else request)["payload"])
    return step_input


def as_key(**parts: Any) -> str:
    return json.dumps(plain(parts), sort_keys=True)


class TooManyRows(Exception):
    """The run has become too large to compare further."""


class LimitedList(list[ReferenceJob]):
    def append(self, reference_job: ReferenceJob) -> None:
        if len(self) == MAX_ROWS:
            raise TooManyRows
        super().append(reference_job)


@define(eq=False)
class Comparison:
    """One run in the engine and in the reference, step by step."""

    engine: Engine
    reference: Reference
    pairs: dict[str, ReferenceJob] = Factory(dict)
    """Job id → its counterpart."""

    def begin(self, name: str) -> None:
        (pipeline,) = (one for one in self.reference.listed if one["name"] == name)
        self.reference.begin(pipeline, Event(pipeline["on"], START), {})
        self.engine.begin(name, START)
        self.compare()

    def step(self, chosen: list[Job]) -> None:
        completions = [self.end(job) for job in chosen]
        self.engine.step(completions)
        self.compare()

    def end(self, job: Job) -> Completion:
        """Complete the job in the reference and return its completion for the engine."""
        reference_job, ready = self.pairs[job.id], self.engine.preflight(job)
        if isinstance(ready, Refuse):
            with pytest.raises(Refused):
                reference_job.input_payload()
            self.reference.fail(reference_job)
            return self.engine.end(job, ready, {})
        step_input = read_request(ready, job)
        assert step_input == plain(reference_job.input_payload())
        response = respond(reference_job.path, step_input, job.plugin, job.attempt)
        if response["status"] == "ok":
            self.reference.succeed(reference_job, response["result"], [Event(**event) for event in response["events"]])
        elif not response.get("retry", True):
            self.reference.fail(reference_job, "failed", job.attempt)
        elif job.attempt == job.max_attempts:
            self.reference.fail(reference_job, "dead", job.attempt)
        return self.engine.end(job, ready, response)

    def compare(self) -> None:
        self.reference.resolve_joins()
        rows = sorted(self.engine.new_rows(), key=key_of_row)
        reference_job = sorted(self.reference.jobs[len(self.pairs) :], key=key_of_made)
        assert [key_of_row(row) for row in rows] == [key_of_made(one) for one in reference_job]
        self.pairs |= {row["id"]: one for row, one in zip(rows, reference_job, strict=True)}

    def compare_ends(self) -> None:
        """Check that all jobs have ended with the same status."""
        found = dict(self.engine.db.execute("SELECT id, status FROM job_queue WHERE plugin <> 'core.start'"))
        expected = {
            job_id: reference_job.status
            for job_id, reference_job in self.pairs.items()
            if reference_job.kind != "switch"
        }
        assert {job_id: found[job_id] for job_id in expected} == expected
        (root_id,) = self.engine.db.execute("SELECT id FROM job_queue WHERE root_job_id = id").fetchone()
        outcome = trees.tree_outcome(self.engine.db, root_id)
        assert outcome.status == ("failed" if self.reference.failed else "succeeded")


# ── the test ────────────────────────────────────────────────────────────────────────────────────────────────────────


RunInBoth = Callable[[list[Data], int], None]


@pytest.fixture(scope="module")
def run_in_both(tmp_path_factory: pytest.TempPathFactory) -> RunInBoth:
    """Return a function that runs pipeline `p` in both. The number decides the order of completions."""
    home = Home.make(tmp_path_factory.mktemp("service") / "ductile")
    for name in (*SLOTS, "off"):
        home.plugin(name, "#!/bin/sh\n")
    home.add(CONFIG)
    create(home.ledger)
    snapshot, memory, ledger = snapshot_of(home), PreflightCache(), home.ledger.with_name("run.db")

    def run(pipelines: list[Data], order: int) -> None:
        plans = compile_text(pipelines, names=snapshot.plugins)
        shutil.copy(home.ledger, ledger)
        with closing(connect_writer(ledger, "off")) as db:
            engine = Engine(db, evolve(snapshot, config=evolve(snapshot.config, plans=plans)), memory)
            run_through(Comparison(engine, Reference(pipelines, "off", LimitedList())), random.Random(order))

    return run


def run_through(comparison: Comparison, rng: random.Random) -> None:
    try:
        comparison.begin("p")
        while comparison.engine.is_open:
            running = list(comparison.engine.running.values())
            # Nothing runs while everything waits for its second attempt.
            comparison.step(rng.sample(running, rng.randint(1, min(3, len(running)))) if running else [])
    except TooManyRows:
        return
    comparison.compare_ends()


@pytest.mark.slow
@pytest.mark.timeout(600 + GRAPHS)  # time to find the smallest graph that fails
@settings(
    max_examples=GRAPHS,
    derandomize="DUCTILE_GRAPHS" not in os.environ,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(pipelines=graphs(), order=st.integers(0, 1 << 16))
def test_a_run_behaves_like_the_reference(run_in_both: RunInBoth, pipelines: list[Data], order: int) -> None:
    """The same steps, items, payloads, contexts, decisions and statuses, in any order of completions."""
    run_in_both(pipelines, order)
