"""Reloads under load: the configuration changes again and again while jobs come in, run and are waited for.

Nobody may notice: no request fails, nothing is lost or run twice, no slot is missed, no stream ends. What cannot be
used is refused and changes nothing; a key that was taken away opens nothing any more.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import define, field

from ductile.core.clock import from_text
from ductile.core.units import parse_duration
from scripts.tortures.arena import TOKEN, Arena, Core
from scripts.tortures.callers import Answer, Callers, Line, Listener, deliver, run_a_pipeline, webhook_address
from scripts.tortures.case import Case, Row
from scripts.tortures.checker import check
from scripts.tortures.clients import Acknowledged, Clients
from scripts.tortures.kill import OPEN_JOBS, PROGRESS_EVERY, SHOWN, STALL_SECONDS, Options, spread
from scripts.tortures.play import Role
from scripts.tortures.turnover import ROUND, TURN, Edition, publish, publish_mistake

ROLES = (
    Role("gather", emits="item.found", count=2, keeps_facts=True, weight=1),
    Role("refine", emits="item.refined", nap_ms=20, keeps_facts=True),
    Role("keep", weight=4),
    Role("flaky", trouble=35, nap_ms=10, timeout="400ms", notifies=True, weight=2),
    Role("slow", nap_ms=1500, weight=1),
    Role("tick", every="200ms"),
    Role("tock"),
    Role("order", emits="order.placed"),
    Role("pick", emits="order.picked", items=2, notifies=True),
    Role("press", nap_ms=20, keeps_facts=True),
    Role("twin", emits="half.done", count=2),
    Role("brittle", trouble=10, timeout="400ms"),
)
PATIENCE = 30.0


@define
class Reloads:
    """One core, and what was done to its configuration."""

    arena: Arena
    options: Options
    edition: Edition = field(factory=Edition)
    taken: Counter[str] = field(factory=Counter)
    seconds: list[float] = field(factory=list)
    wrong: list[str] = field(factory=list)
    """What the core did with an edition that it should not have done."""

    def run(self) -> dict[str, Any]:
        """The summary of the whole run, checked."""
        self.arena.build()
        publish(self.arena, self.edition)
        core, begun = self.arena.launch(), time.monotonic()
        core.wait_until_ready()
        assert core.url, core.said
        clients = Clients(
            self.arena.roles,
            self.options.jobs_per_second,
            self.options.seed,
            self.arena.path / "client",
            scripts=self.arena.scripts,
        )
        callers, listener = Callers(core.url, webhook_address(core.said)), Listener(core.url)
        for one in (listener, clients, callers):
            one.start()
        clients.serve_from(core.url)
        try:
            self.reload_again_and_again(core, callers)
        finally:
            callers.stop()
            clients.stop()
        self.come_to_rest(core)
        return self._summary(core, clients, callers, listener, seconds=time.monotonic() - begun)

    def reload_again_and_again(self, core: Core, callers: Callers) -> None:
        dice, line = random.Random(self.options.seed), Line(core.url or "")
        for number in range(self.options.cycles):
            what, change = ROUND[number % len(ROUND)]
            if change is None:
                publish_mistake(self.arena, self.edition, dice)
            else:
                self.edition = change(self.edition)
                publish(self.arena, self.edition)
            self.taken[self._reload(core, line, what, silently=dice.random() < 0.2)] += 1
            if what == "new key":
                callers.change_to(self.edition.keys[-1])
            elif what == "old key":
                self._try_the_old_key(core, self.edition.keys[0] - 1)
            time.sleep(dice.uniform(0, 0.4))
            if (number + 1) % PROGRESS_EVERY == 0:
                print(f"reload {number + 1}: {len(callers.failed)} failed", file=sys.stderr, flush=True)
        line.close()

    def _reload(self, core: Core, line: Line, what: str, *, silently: bool) -> str:
        """Asked for over the API, or by a signal that has no answer; what became of it."""
        if silently and what != "mistake":
            self._reload_by_signal(core)
            return "by signal"
        answer = line.post("/system/reload", b"", {"authorization": f"Bearer {TOKEN}"})
        self.seconds.append(answer.seconds)
        refused = {(422, "config_invalid"), (422, "restart_needed")}  # the second for another address
        expected = refused if what == "mistake" else {(200, None)}
        if (answer.status, answer.body.get("code")) not in expected:
            self.wrong.append(f"{what}: {answer.status} {answer.body}")
        return "refused" if answer.status == 422 else "by request"

    def _reload_by_signal(self, core: Core) -> None:
        """The core has said that it is done."""
        begun = time.monotonic()
        with self.arena.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            core.process.send_signal(signal.SIGHUP)
            while not any(b'"message":"reloaded"' in line for line in log):
                assert time.monotonic() - begun < PATIENCE, "a reload by signal never happened"
                time.sleep(0.01)

    def _try_the_old_key(self, core: Core, key: int) -> None:
        """It opens nothing any more."""
        api, webhooks = Line(core.url or ""), Line(webhook_address(core.said))
        found = run_a_pipeline(api, -1, key).status, deliver(webhooks, -1, key).status
        if found != (401, 403):
            self.wrong.append(f"key {key} was taken away and is answered with {found}")
        api.close()
        webhooks.close()

    def come_to_rest(self, core: Core) -> None:
        """By one more reload, which takes the schedules away; everything that was asked for has been done."""
        publish(self.arena, self.edition, scheduled=False)
        line = Line(core.url or "")
        self._reload(core, line, "rest", silently=False)
        line.close()
        begun = time.monotonic()
        with self.arena.read_ledger() as db:
            while db.execute(OPEN_JOBS).fetchone()[0] and time.monotonic() - begun < STALL_SECONDS:
                if core.wait_until_gone(0.05):
                    break

    def _summary(
        self, core: Core, clients: Clients, callers: Callers, listener: Listener, *, seconds: float
    ) -> dict[str, Any]:
        heard = _whole_stream(self.arena, core, listener)
        code = core.stop()
        faults = [] if code == 0 else [f"the core ended with {code}: {core.said[-3:]}"]
        orphans = [f"process {pid} lives after the end" for pid in self.arena.processes()]
        acknowledged: list[Acknowledged] = [*clients.acknowledged, *callers.acknowledged]
        case = Case.of(self.arena, acknowledged, apart=[TURN], faults=faults, orphans=orphans)
        violations = {
            **check(case),
            "R1 no request failed": [*callers.failed, *clients.refused, *["no answer"] * clients.unanswered],
            "R2 editions are taken up or refused": self.wrong,
            "R3 runs have the steps of their edition": list(runs_fit_their_editions(case, callers.runs)),
            "R4 no slot is missed": list(no_slot_is_missed(case, "tick", "200ms")),
            "R5 the stream has no gap": heard,
        }
        for name, found in violations.items():
            for violation in found[:SHOWN]:
                print(f"{name}: {violation}", file=sys.stderr)
        return {
            "torture": "reload",
            "reloads": self.options.cycles,
            "seed": self.options.seed,
            "taken": dict(self.taken),
            "acknowledged": len(acknowledged),
            "jobs": len(case.jobs),
            "jobs_per_second": round(len(case.jobs) / seconds, 1),
            "waited": clients.answered + len(callers.runs),
            "steps_gone": sum(job["last_error"] == GONE[2] for job in case.jobs.values()),
            "slots": sum(job["slot_at"] is not None for job in case.jobs.values()),
            "events_heard": len(listener.heard),
            "reload_seconds": spread(self.seconds),
            "slowest_answer": round(callers.slowest, 3),
            "violations": {name: len(found) for name, found in violations.items()},
            "seconds": round(seconds, 1),
        }


# ── what is promised ────────────────────────────────────────────────────────────────────────────────────────────────


def runs_fit_their_editions(case: Case, answers: Iterable[Answer]) -> Iterator[str]:
    """A step goes on as the edition says under which it was started; whoever waited was told the tree as it is.

    A step that waited while an edition without it was taken up is dead, with that reason.
    """
    lengths = {row["id"]: _steps(row) for row in case.rows("SELECT id, sanitized_config FROM config_snapshots")}
    for tree in case.trees.values():
        if tree[0]["pipeline"] != TURN:
            continue
        steps = [lengths[job["started_config_snapshot_id"]] for job in tree]
        found = [(job["step_id"], job["status"], job["last_error"]) for job in tree]
        expected = [("a", "succeeded", None), ("b", "succeeded", None) if steps[-1] == 2 else GONE][: steps[0]]
        if found != expected:
            yield f"{tree[0]['id']} has {found}, not {expected}"
    for answer in answers:
        nodes = [(node["job_id"], node["status"]) for node in answer.body.get("tree", ())]
        rows = [(one["id"], one["status"]) for one in case.trees[answer.body["job_id"]]]
        if answer.status == 200 and nodes != rows:
            yield f"the caller of {answer.body['job_id']} was told {nodes}, it is {rows}"


GONE = ("b", "dead", f"pipeline {TURN} no longer has step b")


def _steps(row: Row) -> int:
    pipelines = json.loads(row["sanitized_config"])["pipelines"]
    (found,) = [one for one in pipelines if one["name"] == TURN]
    return len(found["steps"])


def no_slot_is_missed(case: Case, plugin: str, every: str) -> Iterator[str]:
    """Every slot of the grid, from the first job to the last, is a job, or the journal says why it is not."""
    slots = sorted(from_text(job["slot_at"]) for job in case.jobs.values() if job["plugin"] == plugin)
    interval = parse_duration(every)
    expected = {slots[0] + number * interval for number in range((slots[-1] - slots[0]) // interval + 1)}
    told = sum(_count(row, slots[-1] + timedelta.resolution) for row in case.rows(SKIPPED) if row["plugin"] == plugin)
    if set(slots) - expected:
        yield f"{sorted(set(slots) - expected)[:3]} are no slots of {plugin}"
    if len(expected - set(slots)) != told:
        yield f"{plugin} has {len(expected)} slots, {len(slots)} jobs and {told} slots that the journal tells of"


def _count(row: Mapping[str, Any], before: Any) -> int:
    data = json.loads(row["data"])
    return data.get("count") or 0 if from_text(data["slot_at"]) < before else 0


SKIPPED = "SELECT plugin, data FROM journal WHERE kind = 'scheduler.skipped'"


def _whole_stream(arena: Arena, core: Core, listener: Listener) -> list[str]:
    """What is wrong with the stream that one reader followed all the time: it must be what a reader gets afterwards."""
    with arena.read_ledger() as db:
        last: int = db.execute("SELECT MAX(seq) FROM journal WHERE kind LIKE 'job.%'").fetchone()[0]
    afterwards = Listener(core.url or "")
    afterwards.start()
    complete = [one.wait_until(last) for one in (listener, afterwards)]
    for one in (listener, afterwards):
        one.stop()
    if listener.ended or not all(complete):
        return [f"the stream came to {listener.heard[-1:]} of {last}: {listener.ended}"]
    first, second = ([one for one in each.heard if one[0] <= last] for each in (listener, afterwards))
    return [] if first == second else [f"{len(first)} events were heard, {len(second)} happened"]


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Run the torture in an empty directory; the summary, with the number of violations of each promise."""
    return Reloads(Arena(directory, workers=options.workers, roles=ROLES), options).run()
