"""The completion of an attempt: facts, state, follow-up jobs, notes and log lines."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.core.model import Completion, Dead, Failed, Interrupted, Job, OutcomeCode, Retried, Succeeded
from ductile.core.secret import Mask
from ductile.engine.completion import complete
from ductile.engine.judge import Verdict, judge
from ductile.engine.preflight import Ready, preflight
from ductile.engine.process.run import Cause, Finished
from ductile.engine.run_job import attempt_job
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.async_ledger import open_ledger
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


def completion_of(home: Home, run: Finished, *, job: Job | None = None, more: str = "") -> Completion:
    """Return the completion of a job of `echo` with this run."""
    home.plugin("echo", "#!/bin/sh\n", more=more)
    job, snapshot = job or a_job(), snapshot_of(home)
    ready = preflight(snapshot, job, state_json="{}", instance="i", now=NOW)
    assert isinstance(ready, Ready)
    verdict = judge(job, run, ready.policy, started_at=NOW, jitter=0.5)
    return complete(job, ready, verdict, snapshot, now=NOW)


# --- facts and state --------------------------------------------------------------------------------------------------


def test_state_updates_are_merged_if_the_manifest_has_no_fact_for_them(home: Home) -> None:
    """The text is stored as it was received."""
    completion = completion_of(home, a_run({**OK, "state_updates": {"n": 2**64}}))
    assert (completion.facts, completion.state_updates) == ((), '{"n":18446744073709551616}')


def test_state_updates_become_a_fact_if_the_manifest_has_a_rule(home: Home) -> None:
    """The state is then a view of the fact."""
    rule = "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: seen.snapshot}]\n"
    completion = completion_of(home, a_run({**OK, "state_updates": {"n": 1}}), more=rule)
    (fact,) = completion.facts
    assert (fact.fact_type, fact.fact_json, fact.mirrored) == ("seen.snapshot", '{"n":1}', True)
    assert completion.state_updates is None


def test_a_fact_rule_for_another_command_does_not_count(home: Home) -> None:
    """Fact rules are per command."""
    rule = "fact_outputs: [{when: {command: handle}, from: state_updates, fact_type: seen.snapshot}]\n"
    completion = completion_of(home, a_run({**OK, "state_updates": {"n": 1}}), more=rule)
    assert (completion.facts, completion.state_updates) == ((), '{"n":1}')


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
    """Only a success changes state."""
    completion = completion_of(home, run)
    assert (completion.facts, completion.state_updates) == ((), None)


# --- follow-up jobs ---------------------------------------------------------------------------------------------------


def test_every_matching_route_creates_a_job_and_an_unmatched_event_a_note(home: Home) -> None:
    """An event gets the result unless it has one. The service sets id, source and time."""
    home.add(ROUTES)
    response = {
        **OK,
        "events": [MADE, {"type": "made", "payload": {"result": "own"}, "source": "me"}, {"type": "lost"}],
    }
    completion = completion_of(home, a_run(response))
    events = [json.loads(child.payload or "") for child in completion.children]
    assert [event["payload"] for event in events] == [{"n": 1, "result": "done"}] * 2 + [{"result": "own"}] * 2
    assert {(event["source"], event["timestamp"]) for event in events} == {("echo", "2026-02-08T09:30:00.000000Z")}
    assert [event["event_id"] for event in events] == [event_id(a_job().id, 1, index) for index in (0, 0, 1, 1)]
    assert len({child.child_key for child in completion.children}) == 4
    assert [(note.kind, note.data["type"]) for note in completion.notes] == [("event.unmatched", "lost")]


def test_follow_up_jobs_have_the_max_attempts_of_their_own_plugin(home: Home) -> None:
    """The retry policy of the receiver counts."""
    home.add(ROUTES + "plugins:\n  takes: {retry: {max_attempts: 7}}\n")
    completion = completion_of(home, a_run({**OK, "events": [MADE]}))
    assert {child.max_attempts for child in completion.children} == {7}


def error(**more: Any) -> dict[str, Any]:
    return {"status": "error", "error": "no", "events": [MADE], **more}


ROUTED: list[tuple[str, Finished, int, type, int]] = [
    ("a success", a_run({**OK, "events": [MADE]}), 1, Succeeded, 2),
    ("an error that is retried", a_run(error()), 1, Retried, 0),
    ("a final error", a_run(error(retry=False)), 1, Failed, 2),
    ("an error of the last attempt", a_run(error()), 4, Dead, 2),
    ("ok, but exit 1, retried", a_run({**OK, "events": [MADE]}, exit_code=1), 1, Retried, 0),
    ("ok, but exit 1, the last attempt", a_run({**OK, "events": [MADE]}, exit_code=1), 4, Dead, 0),
    ("ok, but exit 78", a_run({**OK, "events": [MADE]}, exit_code=78), 1, Failed, 0),
]


@pytest.mark.parametrize(
    ("run", "attempt", "outcome", "children"), [row[1:] for row in ROUTED], ids=[row[0] for row in ROUTED]
)
def test_events_are_routed_when_no_retry_follows(
    home: Home, run: Finished, attempt: int, outcome: type, children: int
) -> None:
    """A success with a failed exit routes none. Events that are not routed are noted."""
    home.add(ROUTES)
    completion = completion_of(home, run, job=a_job(attempt=attempt))
    assert type(completion.outcome) is outcome
    assert len(completion.children) == children
    withheld = [note.data for note in completion.notes if note.kind == "event.withheld"]
    assert withheld == ([] if children else [{"types": ["made"], "count": 1}])


def test_an_interrupted_attempt_has_no_effects(home: Home) -> None:
    """It is repeated after the next start."""
    completion = completion_of(home, a_run({**OK, "events": [MADE]}, cause=Cause.STOPPED, stopped="drain"))
    assert isinstance(completion.outcome, Interrupted)
    assert (completion.children, completion.notes, completion.facts, completion.state_updates) == ((), (), (), None)


# --- the log ----------------------------------------------------------------------------------------------------------


class LogReader:
    """A log that writes to a pipe, and its lines."""

    def __init__(self, *secrets: str) -> None:
        self._reading, self._writing = os.pipe()
        self.log = Log(level="debug", descriptor=self._writing, mask=Mask(secrets))

    def read_lines(self) -> list[dict[str, Any]]:
        self.log.close()
        os.close(self._writing)
        with open(self._reading, "rb") as lines:
            return [json.loads(line) for line in lines]


async def attempt_each(home: Home, log: Log, snapshot: Snapshot, *jobs: Job) -> list[Completion]:
    """Return the completions of these jobs, run one after the other."""
    async with open_ledger(home.path / "ledger" / "state.db", synchronous="off") as ledger:
        ctx = job_context(ledger, log, snapshot)
        found = [await attempt_job(ctx, Attempt(job, snapshot)) for job in jobs]
    return [completion for completion in found if completion is not None]


async def run_once(
    home: Home, script: str, *secrets: str, job: Job | None = None
) -> tuple[Completion, list[dict[str, Any]]]:
    home.plugin("echo", script)
    listener = LogReader(*secrets)
    (completion,) = await attempt_each(home, listener.log, snapshot_of(home), job or a_job())
    return completion, listener.read_lines()


@pytest.mark.process
async def test_an_attempt_is_logged_with_the_output_of_the_plugin(home: Home) -> None:
    """Protocol warnings, its log lines at their level, its stderr at level warn, and the outcome."""
    answer = '{"status":"ok","result":"half \\ud800","logs":[{"level":"error","message":"own"}]}'
    script = f"#!/bin/sh\ncat >/dev/null\necho complaint >&2\nprintf '%s' '{answer}'\n"
    completion, lines = await run_once(home, script)
    assert isinstance(completion.outcome, Succeeded)
    assert [(line["component"], line["level"], line["message"].strip()) for line in lines] == [
        ("protocol", "warn", "lone surrogates in the response were replaced by U+FFFD: 1"),
        ("plugin", "error", "own"),
        ("plugin", "warn", "complaint"),
        ("dispatcher", "info", "job succeeded"),
    ]
    assert {(line["plugin"], line["job_id"]) for line in lines} == {("echo", a_job().id)}


@pytest.mark.process
async def test_a_secret_at_the_beginning_of_truncated_stderr_is_masked(home: Home) -> None:
    """Even if the truncation cuts the secret."""
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("service:\n", "service:\n  limits: {stderr: 1KB}\n"))
    words = f"hunter2-hunter2{'.' * 1014}"
    _, (line, *_) = await run_once(home, f"#!/bin/sh\ncat >/dev/null\nprintf %s {words} >&2\n", "hunter2-hunter2")
    assert (line["component"], line["message"]) == ("plugin", f"***{'.' * 1014}")


async def test_a_job_that_cannot_start_is_logged(home: Home) -> None:
    """The log has the reason."""
    refused, lines = await run_once(home, "#!/bin/sh\n", job=a_job(plugin="missing"))
    assert refused.outcome == Dead("plugin 'missing' does not exist", code=OutcomeCode.PLUGIN_UNAVAILABLE)
    assert [line["message"] for line in lines] == ["job failed: plugin 'missing' does not exist"]


async def test_a_job_of_an_untrusted_plugin_is_retried_as_its_policy_says(home: Home) -> None:
    """Like a failed start: the attempts count, and the last one is dead."""
    home.add("plugins:\n  echo: {retry: {backoff_base: 10ms}}\n")
    home.plugin("echo", "#!/bin/sh\n")
    snapshot = snapshot_of(home)
    (home.path / "plugins" / "echo" / "run").unlink()
    listener = LogReader()
    first, last = await attempt_each(home, listener.log, snapshot, a_job(), a_job(attempt=4))
    lines = listener.read_lines()
    assert isinstance(first.outcome, Retried)
    assert 0.01 <= first.outcome.delay.total_seconds() <= 0.02
    assert isinstance(last.outcome, Dead)
    assert "cannot start: plugin echo is not trusted now" in last.outcome.error
    assert [line["level"] for line in lines] == ["warn", "error"]


def test_a_verdict_without_a_response_has_no_follow_up_jobs(home: Home) -> None:
    """There are no events to route."""
    home.add(ROUTES)
    home.plugin("echo", "#!/bin/sh\n")
    snapshot, job = snapshot_of(home), a_job()
    ready = preflight(snapshot, job, state_json="{}", instance="i", now=NOW)
    assert isinstance(ready, Ready)
    completion = complete(job, ready, Verdict(Dead("gone")), snapshot, now=NOW)
    assert (completion.children, completion.notes) == ((), ())
