"""What follows from a verdict: facts, state, children, notes; and what the log is told."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.core.model import Completion, Dead, Failed, Interrupted, Job, Retried, Succeeded
from ductile.core.secret import Mask
from ductile.engine.completion import ending_of
from ductile.engine.judge import Verdict, judge
from ductile.engine.preflight import Ready, preflight
from ductile.engine.process.run import Cause, Finished
from ductile.engine.run_job import attempt_job
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.writer import open_ledger
from ductile.pipeline.run.route import event_id
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_job, a_run, job_context, snapshot_of

OK = {"status": "ok", "result": "done"}
MADE = {"type": "made", "payload": {"n": 1}}
ROUTES = "routes:\n  - {from: echo, event_type: made, to: takes}\n  - {from: echo, event_type: made, to: takes}\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "ductile")
    made.plugin("takes", "#!/bin/sh\n")
    return made


def ending(home: Home, run: Finished, *, job: Job | None = None, more: str = "") -> Completion:
    """What `record` gets for a job of `echo` that ran like this."""
    home.plugin("echo", "#!/bin/sh\n", more=more)
    job, snapshot = job or a_job(), snapshot_of(home)
    ready = preflight(snapshot, job, state_json="{}", instance="i", now=NOW)
    assert isinstance(ready, Ready)
    verdict = judge(job, run, ready.policy, started_at=NOW, chance=0.5)
    return ending_of(job, ready, verdict, snapshot, now=NOW)


# --- facts and state --------------------------------------------------------------------------------------------------


def test_state_updates_are_merged_where_the_manifest_has_no_fact_for_them(home: Home) -> None:
    """Write-through: the text whose size was judged, unread."""
    ended = ending(home, a_run({**OK, "state_updates": {"n": 2**64}}))
    assert (ended.facts, ended.state_updates) == ((), '{"n":18446744073709551616}')


def test_state_updates_become_a_fact_where_the_manifest_says_so(home: Home) -> None:
    """And the state is then a view of the fact, not an update of its own."""
    rule = "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: seen.snapshot}]\n"
    ended = ending(home, a_run({**OK, "state_updates": {"n": 1}}), more=rule)
    (fact,) = ended.facts
    assert (fact.fact_type, fact.fact_json, fact.mirrored) == ("seen.snapshot", '{"n":1}', True)
    assert ended.state_updates is None


def test_a_fact_rule_for_another_command_does_not_count(home: Home) -> None:
    """Rules are per command."""
    rule = "fact_outputs: [{when: {command: handle}, from: state_updates, fact_type: seen.snapshot}]\n"
    ended = ending(home, a_run({**OK, "state_updates": {"n": 1}}), more=rule)
    assert (ended.facts, ended.state_updates) == ((), '{"n":1}')


@pytest.mark.parametrize(
    "run",
    [
        a_run({"status": "error", "error": "no", "state_updates": {"n": 1}}),
        a_run({"status": "error", "error": "no", "retry": False, "state_updates": {"n": 1}}),
        a_run({**OK, "state_updates": {"n": 1}}, exit_code=1),
        a_run({**OK, "state_updates": {"n": 1}}, exit_code=78),
        a_run({**OK, "state_updates": {"n": 1}}, cause=Cause.TIMED_OUT),
    ],
)
def test_a_failed_attempt_changes_no_state(home: Home, run: Finished) -> None:
    """Only a success is believed."""
    ended = ending(home, run)
    assert (ended.facts, ended.state_updates) == ((), None)


# --- children ---------------------------------------------------------------------------------------------------------


def test_every_matching_route_makes_a_child_and_an_unmatched_event_a_note(home: Home) -> None:
    """Events carry the result unless they have one of their own; id, source and time are the core's."""
    home.add(ROUTES)
    said = {**OK, "events": [MADE, {"type": "made", "payload": {"result": "own"}, "source": "me"}, {"type": "lost"}]}
    ended = ending(home, a_run(said))
    events = [json.loads(child.payload or "") for child in ended.children]
    assert [event["payload"] for event in events] == [{"n": 1, "result": "done"}] * 2 + [{"result": "own"}] * 2
    assert {(event["source"], event["timestamp"]) for event in events} == {("echo", "2026-02-08T09:30:00.000000Z")}
    assert [event["event_id"] for event in events] == [event_id(a_job().id, 1, index) for index in (0, 0, 1, 1)]
    assert len({child.child_key for child in ended.children}) == 4
    assert [(note.kind, note.data["type"]) for note in ended.notes] == [("event.unmatched", "lost")]


def test_children_get_the_attempts_of_the_plugin_they_are_for(home: Home) -> None:
    """The retry policy of the receiver counts, whoever the sender is."""
    home.add(ROUTES + "plugins:\n  takes: {retry: {max_attempts: 7}}\n")
    ended = ending(home, a_run({**OK, "events": [MADE]}))
    assert {child.max_attempts for child in ended.children} == {7}


def error(**more: Any) -> dict[str, Any]:
    return {"status": "error", "error": "no", "events": [MADE], **more}


ROUTED: list[tuple[str, Finished, int, type, int]] = [
    ("a success", a_run({**OK, "events": [MADE]}), 1, Succeeded, 2),
    ("an error that is retried", a_run(error()), 1, Retried, 0),
    ("an error for good", a_run(error(retry=False)), 1, Failed, 2),
    ("an error with the last attempt", a_run(error()), 4, Dead, 2),
    ("ok, but exit 1, retried", a_run({**OK, "events": [MADE]}, exit_code=1), 1, Retried, 0),
    ("ok, but exit 1, the last attempt", a_run({**OK, "events": [MADE]}, exit_code=1), 4, Dead, 0),
    ("ok, but exit 78", a_run({**OK, "events": [MADE]}, exit_code=78), 1, Failed, 0),
]


@pytest.mark.parametrize(
    ("run", "attempt", "outcome", "children"), [row[1:] for row in ROUTED], ids=[row[0] for row in ROUTED]
)
def test_events_are_routed_when_the_attempt_is_the_last_word_on_them(
    home: Home, run: Finished, attempt: int, outcome: type, children: int
) -> None:
    """An error tells its events when no retry follows; a success that did not end well tells none. Both are noted."""
    home.add(ROUTES)
    ended = ending(home, run, job=a_job(attempt=attempt))
    assert type(ended.outcome) is outcome
    assert len(ended.children) == children
    withheld = [note.data for note in ended.notes if note.kind == "event.withheld"]
    assert withheld == ([] if children else [{"types": ["made"], "count": 1}])


def test_an_attempt_the_drain_ended_leaves_nothing(home: Home) -> None:
    """It is run again, as if this attempt had never been."""
    ended = ending(home, a_run({**OK, "events": [MADE]}, cause=Cause.STOPPED, stopped="drain"))
    assert isinstance(ended.outcome, Interrupted)
    assert (ended.children, ended.notes, ended.facts, ended.state_updates) == ((), (), (), None)


# --- the log ----------------------------------------------------------------------------------------------------------


class Listener:
    """A log whose lines are read back from a pipe."""

    def __init__(self, *secrets: str) -> None:
        self._reading, self._writing = os.pipe()
        self.log = Log(level="debug", descriptor=self._writing, mask=Mask(secrets))

    def heard(self) -> list[dict[str, Any]]:
        self.log.close()
        os.close(self._writing)
        with open(self._reading, "rb") as lines:
            return [json.loads(line) for line in lines]


async def attempt_each(home: Home, log: Log, snapshot: Snapshot, *jobs: Job) -> list[Completion]:
    """What each of these jobs leads to, one after the other."""
    async with open_ledger(home.path / "ledger" / "state.db", synchronous="off") as ledger:
        ctx = job_context(ledger, log, snapshot)
        return [await attempt_job(ctx, Attempt(job, snapshot)) for job in jobs]


async def run_once(
    home: Home, script: str, *secrets: str, job: Job | None = None
) -> tuple[Completion, list[dict[str, Any]]]:
    home.plugin("echo", script)
    listener = Listener(*secrets)
    (ended,) = await attempt_each(home, listener.log, snapshot_of(home), job or a_job())
    return ended, listener.heard()


async def test_an_attempt_is_told_in_the_log_with_what_the_plugin_said(home: Home) -> None:
    """Its own lines at their level, its stderr at warn, warnings about its answer, and how it ended."""
    answer = '{"status":"ok","result":"half \\ud800","logs":[{"level":"error","message":"own"}]}'
    script = f"#!/bin/sh\ncat >/dev/null\necho complaint >&2\nprintf '%s' '{answer}'\n"
    ended, lines = await run_once(home, script)
    assert isinstance(ended.outcome, Succeeded)
    assert [(line["component"], line["level"], line["message"].strip()) for line in lines] == [
        ("protocol", "warn", "lone surrogates in the answer were replaced by U+FFFD: 1"),
        ("plugin", "error", "own"),
        ("plugin", "warn", "complaint"),
        ("dispatcher", "info", "job succeeded"),
    ]
    assert {(line["plugin"], line["job_id"]) for line in lines} == {("echo", a_job().id)}


async def test_the_log_does_not_begin_with_the_end_of_a_secret(home: Home) -> None:
    """Where stderr is longer than is kept, and the cut goes through the secret."""
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("service:\n", "service:\n  limits: {stderr: 1KB}\n"))
    words = f"hunter2-hunter2{'.' * 1014}"
    _, (line, *_) = await run_once(home, f"#!/bin/sh\ncat >/dev/null\nprintf %s {words} >&2\n", "hunter2-hunter2")
    assert (line["component"], line["message"]) == ("plugin", f"***{'.' * 1014}")


async def test_a_job_that_never_starts_is_told_in_the_log_too(home: Home) -> None:
    """Refused for good, or postponed: nobody has to ask the ledger to find out."""
    refused, lines = await run_once(home, "#!/bin/sh\n", job=a_job(plugin="nobody"))
    assert refused.outcome == Dead("there is no plugin 'nobody'")
    assert [line["message"] for line in lines] == ["job failed: there is no plugin 'nobody'"]


async def test_a_plugin_that_cannot_be_trusted_now_is_tried_again_as_its_policy_says(home: Home) -> None:
    """Counted and backed off like a failed start; the last attempt is dead."""
    home.add("plugins:\n  echo: {retry: {backoff_base: 10ms}}\n")
    home.plugin("echo", "#!/bin/sh\n")
    snapshot = snapshot_of(home)
    (home.path / "plugins" / "echo" / "run").unlink()
    listener = Listener()
    first, last = await attempt_each(home, listener.log, snapshot, a_job(), a_job(attempt=4))
    lines = listener.heard()
    assert isinstance(first.outcome, Retried)
    assert 0.01 <= first.outcome.delay.total_seconds() <= 0.02
    assert isinstance(last.outcome, Dead)
    assert "cannot start: plugin echo is not trusted now" in last.outcome.error
    assert [line["level"] for line in lines] == ["warn", "error"]


def test_a_verdict_without_an_answer_has_no_children(home: Home) -> None:
    """Nothing can follow from an attempt that never spoke."""
    home.add(ROUTES)
    home.plugin("echo", "#!/bin/sh\n")
    snapshot, job = snapshot_of(home), a_job()
    ready = preflight(snapshot, job, state_json="{}", instance="i", now=NOW)
    assert isinstance(ready, Ready)
    ended = ending_of(job, ready, Verdict(Dead("gone")), snapshot, now=NOW)
    assert (ended.children, ended.notes) == ((), ())
