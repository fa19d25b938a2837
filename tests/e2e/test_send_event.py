"""Sending events to the service: `ductile event send` and `POST /event/{type}`."""

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Start

PIPELINES = """\
pipelines:
  - {name: all, on: backup.done, steps: [{id: step, uses: ok}]}
  - {name: failed, on: backup.done, if: {path: payload.code, op: gt, value: 0}, steps: [{id: step, uses: ok}]}
"""


def test_a_sent_event_starts_the_pipelines_that_it_triggers(home: Home, start: Start) -> None:
    """With its payload. The response names the root jobs, and the pipelines whose condition is false."""
    home.plugin("ok", OK)
    home.add(PIPELINES)
    service = start()

    planned = service.ask("POST", "/event/backup.done?dry_run=true", {"payload": {"code": 0}})
    assert home.rows("SELECT id FROM job_queue") == []
    sent = [service.ask("POST", "/event/backup.done", {"payload": {"code": code}}) for code in (0, 1)]
    (job,) = sent[0][1]["jobs"]
    ended = service.job(job["job_id"], wait="30s")

    assert (planned[0], planned[1]["status"], planned[1]["jobs"][0]["job_id"]) == (200, "planned", None)
    assert [(status, [job["pipeline"] for job in view["jobs"]]) for status, view in sent] == [
        (202, ["all"]),
        (202, ["all", "failed"]),
    ]
    for _, view in (planned, sent[0]):
        (skipped,) = view["skipped"]
        assert (skipped["pipeline"], skipped["reason"]) == ("failed", "if is false")
        assert "found 0" in skipped["words"]
    assert (ended["status"], ended["submitted_by"], ended["actor"]) == ("succeeded", "api", "token:e2e")


def test_a_run_that_begins_with_branches_is_queued_while_they_are_open(home: Home, start: Start) -> None:
    """Its root job starts the branches and has already succeeded. A run without a branch has ended."""
    home.plugin("ok", OK)
    branch = "{id: %s, uses: ok, if: {path: payload.code, op: gt, value: 0}}"
    home.add(f"pipelines:\n  - {{name: fan, on: fan.out, steps: [{{split: [{branch % 'a'}, {branch % 'b'}]}}]}}\n")
    service = start()

    sent = [service.ask("POST", "/event/fan.out", {"payload": {"code": code}})[1] for code in (1, 0)]
    planned = service.ask("POST", "/event/fan.out?dry_run=true", {"payload": {"code": 1}})[1]

    assert [view["jobs"][0]["status"] for view in sent] == ["queued", "succeeded"]
    assert planned["jobs"][0]["status"] == "queued"


def test_an_event_that_starts_nothing_says_why(home: Home, start: Start) -> None:
    """It is recorded with its actor. Reserved and invalid types are refused."""
    home.plugin("ok", OK)
    home.add(PIPELINES)
    service = start()

    status, unmatched = service.ask("POST", "/event/backup.don")
    refused = [service.ask("POST", f"/event/{kind}")[0] for kind in ("ductile.step.succeeded", "no%20type")]
    explained = ductile_json(home, "event", "why", unmatched["event_id"])
    (recorded,) = home.rows("SELECT actor FROM journal WHERE kind = 'event.unmatched'")
    command = ductile(home, "event", "send", "backup.don")

    assert (status, unmatched["status"], unmatched["jobs"]) == (200, "unmatched", [])
    assert "backup.done" in unmatched["reason"]
    assert refused == [400, 400]
    assert recorded == {"actor": "token:e2e"}
    assert explained["type"] == "backup.don"
    assert (command.exit_code, "starts nothing" in command.stdout) == (1, True)


def test_an_event_with_an_idempotency_key_is_sent_once(home: Home, start: Start) -> None:
    home.plugin("ok", OK)
    home.add(PIPELINES)
    service = start()

    answers = [service.ask("POST", "/event/backup.done", headers={"idempotency-key": "one"}) for _ in range(2)]

    assert answers[0] == answers[1]
    assert len(home.rows("SELECT id FROM job_queue")) == 1
