"""Random pipelines, run through the real ledger with scripted plugins, do what the reference says they mean.

Everything but the processes is real: preflight, judge, endings, transactions, joins. After every transaction the new
rows are held against what the reference made of the same endings. DUCTILE_GRAPHS=20000 tries other graphs, and more.
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
from ductile.engine.completion import ending_of
from ductile.engine.follow_up_rules import join_rule_of, rule_of
from ductile.engine.judge import judge
from ductile.engine.preflight import PreflightCache, Ready, Refuse, preflight
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.reports import trees
from ductile.ledger.storage.connections import connect_writer, transaction
from ductile.ledger.storage.open_file import create
from ductile.pipeline.run.route import begin
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_run, snapshot_of
from tests.ledger.recording import record_and_claim
from tests.pipeline.reference import WORDS, Event, Made, Reference
from tests.pipeline.values import Data, Refused
from tests.pipeline.written import compiled

T = TypeVar("T")
GRAPHS = int(os.environ.get("DUCTILE_GRAPHS", "500"))
MOST_STEPS, MOST_ROWS = 8, 250
SLOTS = dict.fromkeys(("alpha", "beta", "gamma", "broken"), 100)
CONFIG = """\
plugins:
  alpha: {}
  beta: {retry: {max_attempts: 2, backoff_base: 1ms}}
  gamma: {}
  broken: {}
  off: {enabled: false}
"""

# ── pipelines that read what the plugins say ────────────────────────────────────────────────────────────────────────

START: Data = {"there": 1, "n": 3, "kind": "a", "none": [], "object": {"size": 1}}
START["some"] = [{"id": 1, "list": []}, {"id": 2, "list": []}, {"id": 3, "list": [8, 9]}]
QUESTIONS = [
    {"path": "payload.there", "op": "exists"},
    {"path": "payload.gone", "op": "exists"},
    {"path": "payload.n", "op": "gt", "value": 1},
    {"not": {"path": "payload.kind", "op": "eq", "value": "a"}},
    {"all": [{"path": "payload.n", "op": "gt", "value": 0}, {"path": "context.kept.n", "op": "exists"}]},
]
QUESTIONS_OF_ITEMS = [{"path": "item.id", "op": "gt", "value": 1}, {"path": "item", "op": "exists"}]
LISTS = ["payload.some"] * 20 + ["payload.none"] * 5 + ["payload.gone", "payload.there"]
LISTS_OF_ITEMS = ["item.list"] * 30
CLAIMS: list[Data] = [
    {"kept.n": "payload.n"},
    {"kept.kind": "payload.kind", "also": "payload.there"},
    {"from": "payload.object", "namespace": "kept.object"},
    {"kept": "payload.object"},
    {"copy": "context.kept"},
]
CLAIMS_OF_ITEMS: list[Data] = [{"seen": "item"}, {"seen.id": "item.id"}]
WITH: list[Data] = [
    {"n": "{payload.n}", "told": "n is {payload.n}, kind {payload.kind}"},
    {"whole": "{payload}"},
    {"kept": "{context.kept}"},
    {"text": "{context.kept.n}: {payload.some}"},
]
WITH_OF_ITEMS: list[Data] = [{"item": "{item}", "id": "#{item.id}"}]


@define
class Author:
    """Writes pipelines: every construct inside every other, that read what the plugins say."""

    draw: st.DrawFn
    room: int = MOST_STEPS

    def one_in(self, count: int) -> bool:
        return self.draw(st.integers(1, count)) == count

    def pick(self, choices: Sequence[T]) -> T:
        return self.draw(st.sampled_from(choices))

    def steps(self, callees: list[str], *, levels: int, has_item: bool, least: int = 1) -> list[Data]:
        number = self.draw(st.integers(least, least + 2))
        return [self.step(callees, levels=levels, has_item=has_item) for _ in range(number)]

    def step(self, callees: list[str], *, levels: int, has_item: bool) -> Data:
        self.room -= 1
        step: Data = {}
        if self.one_in(3 if has_item else 5):
            step["foreach"] = self.pick(LISTS + LISTS_OF_ITEMS * has_item)
            has_item = True
            if self.one_in(10):
                step["max_items"] = 2
        if self.one_in(4):
            step["if"] = self.pick(QUESTIONS + QUESTIONS_OF_ITEMS * has_item)
        kinds = ["uses"] * 3 + ["steps", "split", "split"] * (levels > 0 and self.room > 0) + ["call"] * bool(callees)
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
        may_fail = levels > 0 and self.room > 0 and self.one_in(4)
        step["uses"] = self.pick(["alpha", "beta", "gamma.poll"] * (1 if may_fail else 20) + ["broken", "off"])
        if may_fail:
            step["continue"] = self.one_in(2)
            if not step["continue"] or self.one_in(2):
                step["on_error"] = self.steps(callees, levels=levels - 1, has_item=has_item)
        if self.one_in(4):
            step["baggage"] = self.pick(CLAIMS + CLAIMS_OF_ITEMS * has_item)
        if self.one_in(4):
            step["with"] = self.pick(WITH + WITH_OF_ITEMS * has_item)


@st.composite
def graphs(draw: st.DrawFn) -> list[Data]:
    """Pipeline `p`, and `q` and `r` that it may call or trigger."""
    listed: list[Data] = []
    for name in "rqp":
        callees = [each["name"] for each in listed]
        steps = Author(draw).steps(callees, levels=3, has_item=False, least=4 if name == "p" else 1)
        listed.insert(0, {"name": name, "on": f"{name}.wanted", "steps": steps})
        if draw(st.integers(1, 4)) == 4:
            listed[0]["if"] = draw(st.sampled_from(QUESTIONS))
    return listed


# ── plugins that do what a number says ──────────────────────────────────────────────────────────────────────────────


def answer(path: str, told: Data, plugin: str, attempt: int) -> Data:
    """The response of the step at `path`: decided by what it was told, so that everybody gets the same."""
    chance = random.Random(blake2b(json.dumps([path, told], sort_keys=True).encode()).digest())
    if plugin == "broken" or chance.random() < 0.02:
        return {"status": "error", "error": "scripted", "retry": chance.random() < 0.2}
    if plugin == "beta" and chance.random() < 0.2 and attempt == 1:
        return {"status": "error", "error": "scripted, once"}
    emitted = [_event(chance, told) for _ in range(chance.choice((0, 0, 1, 1, 1, 2)))]
    return {"status": "ok", "result": f"done {path}", "events": emitted}


def _event(chance: random.Random, told: Data) -> Data:
    payload: Data = {**START, "n": chance.randrange(4), "kind": chance.choice("ab")}
    payload |= {"some": START["some"][: chance.randrange(4)], "object": {"size": chance.randrange(2)}}
    if chance.random() < 0.2:
        payload["result"] = "of its own"
    kind = "made"
    if "triggered" in told:
        payload["triggered"] = True
    elif chance.random() < 0.1:
        payload["triggered"], kind = True, "q.wanted"
    return {"type": kind, "payload": payload}


def plain(value: Any) -> Any:
    """A payload without what only the engine can know: ids, durations, the words of a failure, the step before."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    unknown = {"job_id", "duration_ms"} | {key for key in value if key.startswith("ductile_")}
    kept = {key: plain(member) for key, member in value.items() if key not in unknown}
    if "input" in kept:
        kept |= {"error": WORDS, "message": WORDS, "text": WORDS, "result": WORDS}
    return kept


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
    """The dispatcher's loop without processes: claims everything, and ends what it is told to."""

    db: sqlite3.Connection
    snapshot: Snapshot
    memory: PreflightCache
    running: dict[str, Job] = Factory(dict)
    now: Any = NOW
    seen: int = 0

    def begin(self, name: str, payload: Data) -> None:
        beginning = begin(
            self.snapshot.plans.named(name), payload, self.snapshot.world, submitted_by="api", now=self.now
        )
        with transaction(self.db):
            start_run(self.db, beginning.following, now=self.now)
        self.turn([])

    def preflight(self, job: Job) -> Ready | Refuse:
        ready = preflight(self.snapshot, job, state_json="{}", instance="i", now=self.now, memory=self.memory)
        assert isinstance(ready, Ready | Refuse)
        return ready

    def end(self, job: Job, ready: Ready | Refuse, said: Data) -> Completion:
        if isinstance(ready, Refuse):
            following = rule_of(self.snapshot)(job, ready.outcome, self.now)
            return Completion(
                job_id=job.id,
                attempt=job.attempt,
                outcome=ready.outcome,
                contexts=following.contexts,
                children=following.children,
                arrivals=following.arrivals,
                notes=following.notes,
            )
        verdict = judge(job, a_run(said), ready.policy, started_at=self.now, chance=0.5)
        return ending_of(job, ready, verdict, self.snapshot, now=self.now)

    @property
    def is_open(self) -> bool:
        waiting = self.db.execute("SELECT COUNT(*) FROM job_queue WHERE next_retry_at IS NOT NULL").fetchone()[0]
        return bool(self.running or waiting)

    def turn(self, endings: list[Completion]) -> None:
        self.now += timedelta(hours=1)
        with transaction(self.db):
            _, claimed = record_and_claim(
                self.db,
                endings,
                now=self.now,
                run_id="run",
                free=SLOTS,
                limit=1000,
                join_rule=join_rule_of(self.snapshot),
            )
        for ending in endings:
            del self.running[ending.job_id]
        self.running |= {job.id: job for job in claimed.jobs}

    def new_rows(self) -> list[sqlite3.Row]:
        self.db.row_factory = sqlite3.Row
        rows = self.db.execute(ROWS, (self.seen,)).fetchall()
        self.db.row_factory = None
        self.seen = self.db.execute("SELECT MAX(seq) FROM job_queue").fetchone()[0]
        return rows


# ── both, side by side ──────────────────────────────────────────────────────────────────────────────────────────────


def key_of_row(row: sqlite3.Row) -> str:
    """Everything that must be the same about what was made, as one text that can be sorted and shown."""
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


def key_of_made(made: Made) -> str:
    is_bare = made.kind in ("switch", "foreach")
    is_settled = is_bare or (made.kind == "job" and made.status != "queued")
    is_event = made.kind == "join" or "." not in made.step.get("uses", "")
    return as_key(
        kind=made.kind,
        path=(made.at.pipeline, made.path, ".".join(map(str, made.at.indexes))),
        type=made.event.type if is_event and not is_bare else None,
        payload=None if is_bare else made.event.payload,
        context=None if is_settled else made.at.context,
        status=made.status,
        tolerated=made.kind == "job" and bool(made.step.get("continue")),
    )


def told_in(ready: Ready, job: Job) -> Data:
    """The payload in the request, as the plugin reads it; and the baggage beside it is that of the job."""
    request = json.loads(ready.request)
    baggage = {key: value for key, value in json.loads(job.context or "{}").items() if key != "ductile"}
    assert {key: request["context"][key] for key in baggage} == baggage
    told: Data = plain((request["event"] if job.command == "handle" else request)["payload"])
    return told


def as_key(**parts: Any) -> str:
    return json.dumps(plain(parts), sort_keys=True)


class TooMany(Exception):
    """Splits and loops multiply; what has been compared so far will do."""


class Few(list[Made]):
    def append(self, made: Made) -> None:
        if len(self) == MOST_ROWS:
            raise TooMany
        super().append(made)


@define(eq=False)
class Comparison:
    """One run in both worlds, turn by turn."""

    engine: Engine
    reference: Reference
    pairs: dict[str, Made] = Factory(dict)
    """Job id → its counterpart."""

    def begin(self, name: str) -> None:
        (pipeline,) = (one for one in self.reference.listed if one["name"] == name)
        self.reference.begin(pipeline, Event(pipeline["on"], START), {})
        self.engine.begin(name, START)
        self.compare()

    def turn(self, chosen: list[Job]) -> None:
        endings = [self.end(job) for job in chosen]
        self.engine.turn(endings)
        self.compare()

    def end(self, job: Job) -> Completion:
        """The same ending for both."""
        made, ready = self.pairs[job.id], self.engine.preflight(job)
        if isinstance(ready, Refuse):
            with pytest.raises(Refused):
                made.told()
            self.reference.fail(made)
            return self.engine.end(job, ready, {})
        told = told_in(ready, job)
        assert told == plain(made.told())
        said = answer(made.path, told, job.plugin, job.attempt)
        if said["status"] == "ok":
            self.reference.succeed(made, said["result"], [Event(**event) for event in said["events"]])
        elif not said.get("retry", True):
            self.reference.fail(made, "failed", job.attempt)
        elif job.attempt == job.max_attempts:
            self.reference.fail(made, "dead", job.attempt)
        return self.engine.end(job, ready, said)

    def compare(self) -> None:
        self.reference.settle()
        rows = sorted(self.engine.new_rows(), key=key_of_row)
        made = sorted(self.reference.made[len(self.pairs) :], key=key_of_made)
        assert [key_of_row(row) for row in rows] == [key_of_made(one) for one in made]
        self.pairs |= {row["id"]: one for row, one in zip(rows, made, strict=True)}

    def compare_ends(self) -> None:
        """Nothing is open, and everything ended alike."""
        found = dict(self.engine.db.execute("SELECT id, status FROM job_queue WHERE plugin <> 'core.start'"))
        expected = {job_id: made.status for job_id, made in self.pairs.items() if made.kind != "switch"}
        assert {job_id: found[job_id] for job_id in expected} == expected
        (root_id,) = self.engine.db.execute("SELECT id FROM job_queue WHERE root_job_id = id").fetchone()
        outcome = trees.tree_outcome(self.engine.db, root_id)
        assert outcome.status == ("failed" if self.reference.failed else "succeeded")


# ── the rule ────────────────────────────────────────────────────────────────────────────────────────────────────────


RunInBoth = Callable[[list[Data], int], None]


@pytest.fixture(scope="module")
def run_in_both(tmp_path_factory: pytest.TempPathFactory) -> RunInBoth:
    """Runs pipeline `p` of the list in the engine and in the reference; the number decides what ends when."""
    home = Home.make(tmp_path_factory.mktemp("stage") / "ductile")
    for name in (*SLOTS, "off"):
        home.plugin(name, "#!/bin/sh\n")
    home.add(CONFIG)
    create(home.ledger)
    snapshot, memory, ledger = snapshot_of(home), PreflightCache(), home.ledger.with_name("run.db")

    def run(listed: list[Data], order: int) -> None:
        plans = compiled(listed, names=snapshot.lanes)
        shutil.copy(home.ledger, ledger)
        with closing(connect_writer(ledger, "off")) as db:
            engine = Engine(db, evolve(snapshot, config=evolve(snapshot.config, plans=plans)), memory)
            run_through(Comparison(engine, Reference(listed, "off", Few())), random.Random(order))

    return run


def run_through(comparison: Comparison, chance: random.Random) -> None:
    try:
        comparison.begin("p")
        while comparison.engine.is_open:
            running = list(comparison.engine.running.values())
            # Nothing runs while everything waits for its second attempt.
            comparison.turn(chance.sample(running, chance.randint(1, min(3, len(running)))) if running else [])
    except TooMany:
        return
    comparison.compare_ends()


@pytest.mark.timeout(600 + GRAPHS)  # time to find the smallest graph that fails
@settings(
    max_examples=GRAPHS,
    derandomize="DUCTILE_GRAPHS" not in os.environ,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(listed=graphs(), order=st.integers(0, 1 << 16))
def test_a_run_is_what_its_pipeline_says(run_in_both: RunInBoth, listed: list[Data], order: int) -> None:
    """The same steps for the same items, the same payloads, contexts and decisions, the same end; in any order."""
    run_in_both(listed, order)
