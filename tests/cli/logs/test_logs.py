"""`ductile logs` without a service: filters of past events."""

import json
from datetime import timedelta
from pathlib import Path

from ductile.cli.logs.event_format import details, event_line
from ductile.core.clock import to_text
from ductile.core.model import Failed, Succeeded
from tests.cli.conftest import Answer, Run
from tests.cli.history import past_of


def names(answer: Answer) -> list[str]:
    assert answer.exit_code == 0, answer.stderr
    return [json.loads(line)["event"] for line in answer.stdout.splitlines()]


def test_logs_selects_past_events_by_time_kind_and_text(run: Run, demo: Path) -> None:
    """`job.*` stands for all names with this prefix; a kind is shown whatever its level is."""
    with past_of(demo) as past:
        past.now -= timedelta(hours=3)
        past.enqueue()
        past.end(past.claim_one(), Failed("connection refused", past.evidence()))
        middle = to_text(past.advance(hours=2))
        past.enqueue()
        past.end(past.claim_one(), Succeeded(past.evidence(result="{}")))

    cases = {
        ("--since", "90m"): ["job.enqueued", "job.started", "job.completed"],
        ("--since", middle): ["job.enqueued", "job.started", "job.completed"],
        ("--until", "90m"): ["job.enqueued", "job.started", "job.failed"],
        ("--kind", "job.failed", "--kind", "job.transition"): ["job.failed"],
        ("--kind", "job.*", "--since", "4h", "--until", middle): ["job.enqueued", "job.started", "job.failed"],
        ("--grep", "connection (refused|reset)"): ["job.failed"],
        ("--grep", '"event": "job.started"', "--limit", "1"): ["job.started"],
        ("--grep", "refused", "--limit", "1"): ["job.failed"],
        ("--grep", "no such text"): [],
    }
    found = {options: names(run("logs", "--json", "--config", demo, *options)) for options in cases}
    assert found == cases


def test_the_status_of_a_schedule_is_shown_and_that_of_a_job_is_not_repeated() -> None:
    """A pause and a resume are the same event."""
    assert details({"schedule_id": "nightly", "status": "paused_manual"}) == "schedule_id=nightly status=paused_manual"
    assert details({"job_id": "a-job", "to": "dead", "status": "dead", "attempt": 1}) == "attempt=1"


def test_a_notification_is_shown_with_its_message() -> None:
    data = {"signal": "run.failed", "subject": "pipeline deploy", "count": 1, "message": "Pipeline deploy failed."}
    sent = {"event": "notification.sent", "at": "2026-02-08T09:30:00.000000Z", "data": data}

    assert event_line(sent).endswith('count=1 message="Pipeline deploy failed."')


def test_logs_refuses_a_wrong_filter_with_a_hint(run: Run, demo: Path) -> None:
    """An unknown kind suggests the nearest one."""
    for options, message in (
        (("--kind", "job.faild"), "did you mean 'job.failed'?"),
        (("--grep", "("), "--grep: not a regular expression"),
        (("--since", "yesterday"), "Write 1h (ago)"),
        (("--until", "1h", "--follow"), "--until cannot be used with --follow"),
        (("--since", "1h", "--until", "2h"), "--until: 2h is not after --since 1h"),
    ):
        answer = run("logs", "--config", demo, *options)
        assert (answer.exit_code, message in answer.stderr) == (2, True), answer.stderr
