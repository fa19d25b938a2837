"""Schedules and circuit breakers of a running service, and the commands for them."""

import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_plugins import OK, BlockingPlugin
from tests.e2e.service import TOKEN, Home, Service, Start

PAYLOAD_ECHO = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": json.dumps(request.get("payload", request.get("event")))}))
"""
BROKEN = """#!/bin/sh
cat > /dev/null
exit 78
"""
# Ends slowly on SIGTERM, and records whether the process of the previous job still exists.
SLOW_TO_STOP = """#!/bin/sh
cat > /dev/null
if [ -e pid ]; then
    [ -d "/proc/$(cat pid)" ] && echo alive >> overlaps || echo gone >> overlaps
fi
echo $$ > pid
trap 'sleep 0.3; exit 0' TERM
while :; do sleep 0.05; done
"""
READER, RUNNER, OPERATOR = "token-of-a-reader-000", "token-of-a-runner-000", "token-of-an-operator"
TOKENS = f"""\
      - {{name: reader, token: {READER}, scopes: ["jobs:ro"]}}
      - {{name: runner, token: {RUNNER}, scopes: ["plugin:echo:rw"]}}
      - {{name: operator, token: {OPERATOR}, scopes: ["system:rw"]}}
"""
LATER = "  echo: {schedules: [{id: late, at: '2200-01-01T00:00:00Z', payload: {n: 1}}, {every: 1h}]}\n"


def schedule(service: Service, schedule_id: str = "default") -> dict[str, Any]:
    status, body = service.ask("GET", "/scheduler/jobs")
    assert status == 200, body
    (found,) = [one for one in body["jobs"] if one["schedule_id"] == schedule_id]
    return dict(found)


def wait_for_jobs(service: Service, message: str, plugin: str, count: int) -> None:
    """Wait until `count` jobs of the plugin have logged `message`."""

    def has_lines(one: Service) -> bool:
        lines = [line for line in one.lines if message in line["message"] and line.get("plugin") == plugin]
        return len(lines) >= count

    assert service.wait_for(has_lines, f"{count} times {message!r}"), service.stderr


def finished_jobs(service: Service, count: int) -> list[dict[str, Any]]:
    """Return the first `count` jobs, after they have wait_for_jobs."""
    rows = service.home.rows("SELECT id FROM job_queue ORDER BY seq")[:count]
    return [service.job(row["id"], wait="30s") for row in rows]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests that do not change it: no schedule is due, and there is a token per scope."""
    home = Home.make(tmp_path_factory.mktemp("idle") / "ductile")
    home.add(TOKENS)
    home.plugin("echo", PAYLOAD_ECHO)
    home.add(f"plugins:\n{LATER}")
    service = home.start()
    wait_for_jobs(service, "job succeeded", "echo", 1)  # the first slot of an interval is due at once
    yield service
    service.kill()


# ── firing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_runs_its_plugin_at_every_slot(home: Home, start: Start) -> None:
    """Every slot is one job. The list has the last and the next slot."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{every: 300ms}]}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 3)

    listed = schedule(service)

    assert (listed["plugin"], listed["mode"], listed["when"], listed["status"]) == (
        "echo",
        "every",
        "every 300ms",
        "scheduled",
    )
    assert listed["next_run_at"] > listed["last_slot_at"]
    rows = home.rows("SELECT slot_at, submitted_by FROM job_queue ORDER BY seq")
    assert len({row["slot_at"] for row in rows}) == len(rows) >= 3
    assert {row["submitted_by"] for row in rows} == {"scheduler"}


def test_if_running_cancel_ends_the_process_before_the_next_run(home: Home, start: Start) -> None:
    """Two runs never overlap, and the cancelled job is dead."""
    home.plugin("echo", SLOW_TO_STOP)
    home.add("plugins:\n  echo: {schedules: [{every: 1s, if_running: cancel}]}\n")
    service = start()
    wait_for_jobs(service, "job failed: cancelled", "echo", 3)

    assert service.stop() == 0

    overlaps = (home.path / "overlaps").read_text().splitlines()
    assert len(overlaps) >= 2
    assert set(overlaps) == {"gone"}
    reasons = {row["last_error"] for row in home.rows("SELECT last_error FROM job_queue WHERE status = 'dead'")}
    assert reasons == {"cancelled: another run of its schedule is due"}


@pytest.mark.parametrize("failpoint", ["schedule.before_fire", "schedule.after_insert", "schedule.after_commit"])
@pytest.mark.parametrize("if_running", ["skip", "queue", "cancel"])
def test_a_crash_while_a_schedule_fires_leaves_a_complete_slot(
    home: Home, start: Start, failpoint: str, if_running: str
) -> None:
    """Job, slot and next run are committed together. After the restart every slot has one job."""
    home.plugin("echo", OK)
    home.add(f"plugins:\n  echo: {{schedules: [{{every: 200ms, if_running: {if_running}, catch_up: run_all}}]}}\n")
    crashing = home.launch(environ={"DUCTILE_FAILPOINT": f"{failpoint}:2"})
    assert crashing.wait() == -signal.SIGKILL

    (entry,) = home.rows("SELECT last_slot_at, last_job_id, next_run_at FROM schedule_entries")
    jobs = home.rows("SELECT id, slot_at FROM job_queue ORDER BY seq")
    assert (entry["last_slot_at"], entry["last_job_id"]) == (jobs[-1]["slot_at"], jobs[-1]["id"])
    assert entry["next_run_at"] > entry["last_slot_at"]

    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 3)
    service.stop()
    slots = [row["slot_at"] for row in home.rows("SELECT slot_at FROM job_queue")]
    assert len(set(slots)) == len(slots) >= 3


# ── pause, resume, run ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_schedule_stays_paused_until_it_is_resumed(home: Home, start: Start) -> None:
    """The pause survives restarts. The list has the reason, with and without a service."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}]}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 1)

    assert (
        ductile(home, "schedule", "pause", "echo", "default", "--reason", "quiet").stdout == "echo default is paused\n"
    )
    assert ductile(home, "schedule", "pause", "echo", "default").stdout == "echo default is paused already\n"
    service.stop()
    (listed,) = ductile_json(home, "schedule", "list")["jobs"]
    assert (listed["status"], listed["reason"], "next_run_at" in listed) == ("paused", "quiet", False)
    service = start()
    assert schedule(service)["status"] == "paused"
    assert ductile(home, "schedule", "resume", "echo", "default").stdout == "echo default is scheduled\n"
    wait_for_jobs(service, "job succeeded", "echo", 2)
    changes = home.rows("SELECT data ->> 'status' AS status FROM journal WHERE kind = 'scheduler.status_changed'")
    assert [row["status"] for row in changes] == ["paused_manual", "active"]


def test_schedule_run_creates_an_ordinary_job(idle: Service) -> None:
    """It has the payload of the schedule, also when the schedule is paused, and does not affect its slots."""
    home = idle.home
    before = schedule(idle, "late")
    ductile_json(home, "schedule", "pause", "echo", "late")

    job = ductile_json(home, "schedule", "run", "echo", "late", "--wait")

    assert (job["status"], job["result"]["result"]) == ("succeeded", '{"n": 1}')
    (row,) = home.rows("SELECT submitted_by, schedule_id, slot_at FROM job_queue WHERE id = ?", job["job_id"])
    assert row == {"submitted_by": "cli", "schedule_id": None, "slot_at": None}
    ductile_json(home, "schedule", "resume", "echo", "late")
    assert schedule(idle, "late") == before


def test_schedule_run_exits_1_when_its_timeout_ends_first(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """The job continues."""
    home.add("plugins:\n  blocking: {schedules: [{at: '2200-01-01T00:00:00Z'}]}\n")
    start()

    done = ductile(home, "schedule", "run", "blocking", "default", "--wait", "--timeout", "1ms", "--json")

    assert (done.exit_code, json.loads(done.stdout)["status"] in ("queued", "running")) == (1, True)
    blocking.wait_until_started()
    blocking.release()


def test_dry_runs_change_nothing(idle: Service) -> None:
    """They fail like the command."""
    home = idle.home
    before, jobs = schedule(idle), home.rows("SELECT id FROM job_queue")
    assert ductile_json(home, "schedule", "pause", "echo", "default", "--dry-run")["changed"] is True
    assert ductile_json(home, "schedule", "resume", "echo", "default", "--dry-run")["changed"] is False
    assert ductile_json(home, "schedule", "run", "echo", "default", "--dry-run")["status"] == "planned"
    assert ductile_json(home, "system", "reset", "echo", "--dry-run")["reset"] == []
    assert ductile(home, "schedule", "pause", "echo", "nope", "--dry-run").exit_code == 1

    assert schedule(idle) == before
    assert home.rows("SELECT id FROM job_queue") == jobs


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/schedule/ecko/default/pause", None, 404, "not_found"),
        ("POST", "/schedule/echo/defolt/resume", None, 404, "not_found"),
        ("POST", "/schedule/echo/default/pause?dry_run=maybe", None, 400, "bad_request"),
        ("POST", "/schedule/echo/default/pause", {"reason": 5}, 400, "bad_request"),
        ("POST", "/schedule/echo/default/pause", {"why": "x"}, 400, "bad_request"),
        ("POST", "/schedule/echo/default/pause", {"reason": "two\nlines"}, 400, "bad_request"),
        ("POST", "/schedule/echo/default/pause", b"{", 400, "bad_request"),
        ("POST", "/schedule/echo/default/stop", None, 404, "not_found"),
        ("GET", "/breaker/ecko", None, 404, "not_found"),
        ("GET", "/breaker/echo?command=polish", None, 400, "command_unknown"),
        ("GET", "/breaker/echo?limit=0", None, 400, "bad_request"),
        ("GET", "/breaker/echo?limit=%C2%B2", None, 400, "bad_request"),
        ("POST", "/breaker/echo/reset?command=polish", None, 400, "command_unknown"),
        ("GET", "/schedule/echo/default/pause", None, 405, "method_not_allowed"),
    ],
)
def test_an_invalid_schedule_or_breaker_request_is_refused(
    idle: Service, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """The error has a status and a code."""
    response_status, answer = idle.ask(method, path, body)
    assert (response_status, answer["code"]) == (status, code)


def test_an_exhausted_schedule_cannot_be_paused(home: Home, start: Start) -> None:
    """The status is 409."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{at: '2020-01-01T00:00:00Z'}]}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 1)
    assert service.ask("POST", "/schedule/echo/default/pause")[0] == 409


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/scheduler/jobs", {READER, TOKEN}),
        ("GET", "/breaker/echo", {READER, TOKEN}),
        ("POST", "/schedule/echo/default/pause?dry_run=true", {OPERATOR, TOKEN}),
        ("POST", "/schedule/echo/default/resume?dry_run=true", {OPERATOR, TOKEN}),
        ("POST", "/schedule/echo/default/run?dry_run=true", {RUNNER, TOKEN}),
        ("POST", "/breaker/echo/reset?dry_run=true", {OPERATOR, TOKEN}),
    ],
)
def test_schedule_routes_need_their_scope(idle: Service, method: str, path: str, allowed: set[str]) -> None:
    """jobs:ro reads, system:rw pauses, resumes and resets, and the scope of the plugin runs."""
    answers = {token: idle.ask(method, path, token=token)[0] for token in (READER, RUNNER, OPERATOR, TOKEN)}
    assert answers == {token: 200 if token in allowed else 403 for token in answers}
    assert idle.ask(method, path, token=None)[0] == 401


# ── breakers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_open_breaker_holds_a_schedule_until_it_is_reset(home: Home, start: Start) -> None:
    """It opens after three failures. The reset runs the held slot at once and counts from zero."""
    home.plugin("echo", BROKEN)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}], circuit_breaker: {threshold: 3, reset_after: 1h}}\n")
    service = start()
    wait_for_jobs(service, "job failed", "echo", 3)
    assert len(finished_jobs(service, 3)) == 3

    (breaker,) = ductile_json(home, "system", "breaker", "echo")["breakers"]
    assert (breaker["command"], breaker["state"], breaker["failure_count"]) == ("poll", "open", 3)
    assert [change["reason"] for change in breaker["transitions"]] == ["failure_threshold"]
    assert service.ask("GET", "/breaker/echo")[1]["breakers"] == [breaker]
    assert service.ask("GET", "/healthz")[1]["plugins_circuit_open"] == 1
    assert len(home.rows("SELECT id FROM job_queue")) == 3

    done = ductile(home, "system", "reset", "echo", "poll")

    assert done.stdout == "closed echo.poll (was open, failures 3)\n"
    wait_for_jobs(service, "job failed", "echo", 6)
    assert {job["status"] for job in finished_jobs(service, 6)} == {"failed"}
    reasons = [row["reason"] for row in home.rows("SELECT reason FROM circuit_breaker_transitions ORDER BY created_at")]
    assert reasons == ["failure_threshold", "manual_reset", "failure_threshold"]


# Fails once. The second run takes several slots and succeeds.
RECOVERS = """#!/bin/sh
cat > /dev/null
[ -e tried ] || { touch tried; exit 78; }
[ -e probed ] || { touch probed; sleep 0.5; }
echo '{"status": "ok", "result": "done"}'
"""


def test_a_schedule_continues_when_the_breaker_probe_succeeds(home: Home, start: Start) -> None:
    """A slot that was held during the probe runs at its end, not at the next poll."""
    home.plugin("echo", RECOVERS)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}], circuit_breaker: {threshold: 1, reset_after: 200ms}}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 2)

    (closed,) = home.rows("SELECT created_at FROM circuit_breaker_transitions WHERE to_state = 'closed'")
    after = home.rows("SELECT MIN(created_at) AS at FROM job_queue WHERE created_at > ?", closed["created_at"])[0]["at"]
    waited = datetime.fromisoformat(after) - datetime.fromisoformat(closed["created_at"])
    assert waited < timedelta(seconds=10)


def test_schedule_commands_give_the_same_output_with_api_url(idle: Service) -> None:
    """Without it they read the files."""
    home = idle.home
    remote = ("--api-url", idle.url, "--api-key", TOKEN)
    assert ductile_json(home, "schedule", "list", *remote) == ductile_json(home, "schedule", "list")
    assert ductile_json(home, "schedule", "pause", "echo", "default", *remote)["changed"] is True
    assert ductile_json(home, "schedule", "resume", "echo", "default", *remote)["changed"] is True
    refused = ductile(home, "schedule", "pause", "echo", "default", "--api-url", idle.url, "--api-key", READER)
    assert refused.exit_code == 77


def test_schedule_why_and_next_describe_a_running_service(idle: Service) -> None:
    """The first slot fired, and the next one is an hour later."""
    home = idle.home
    listed = schedule(idle)
    explanation = ductile_json(home, "schedule", "why", "echo", "default", "--at", listed["last_slot_at"])
    assert (explanation["verdict"], explanation["job"]["job_id"]) == ("fired", listed["last_job_id"])
    (next_run, *_) = ductile_json(home, "schedule", "next", "echo", "default")["runs"]
    assert next_run["fires_at"] == listed["next_run_at"]


def test_timestamps_at_the_ends_of_the_calendar_do_not_affect_other_schedules(home: Home, start: Start) -> None:
    """A schedule at year 9999 and one at year 1 are listed, and the third one fires."""
    home.plugin("echo", OK)
    never = "{id: never, at: '9999-12-31T23:59:59Z', timezone: Pacific/Kiritimati, not_on: [fri, sat]}"
    zero = "{id: zero, at: '0001-01-01T00:00:00Z', timezone: Europe/Berlin}"
    home.add(f"plugins:\n  echo: {{schedules: [{never}, {zero}, {{id: often, every: 1h}}]}}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 2)

    assert schedule(service, "never")["next_run_local"] == "9000-01-01T14:00:00+14:00"
    assert schedule(service, "zero")["status"] == "exhausted"
    assert [one["schedule_id"] for one in ductile_json(home, "schedule", "list")["jobs"]] == ["never", "zero", "often"]
    assert ductile_json(home, "schedule", "why", "echo", "zero")["verdict"] == "fired"


def test_a_reload_applies_new_and_removed_schedules(home: Home, start: Start) -> None:
    """Removed schedules are deleted from the ledger."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{id: old, every: 1h}]}\n")
    service = start()
    wait_for_jobs(service, "job succeeded", "echo", 1)
    home.replace("id: old, every: 1h", "id: new, every: 1h")

    assert ductile(home, "system", "reload").exit_code == 0
    wait_for_jobs(service, "job succeeded", "echo", 2)

    assert [one["schedule_id"] for one in service.ask("GET", "/scheduler/jobs")[1]["jobs"]] == ["new"]
    assert home.rows("SELECT schedule_id FROM schedule_entries") == [{"schedule_id": "new"}]


def test_the_schedule_page_names_every_command_and_skip_reason() -> None:
    """docs/schedules.md has all commands that are not hidden."""
    from ductile.calendar.reasons import SkipReason
    from ductile.cli.schedule.group import group

    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    assert [
        name for name, command in group.commands.items() if not command.hidden and f"schedule {name}" not in text
    ] == []
    documented = [
        "scheduled_handle_disallowed",
        "command_not_supported",
        "invalid_schedule_config",
        "schedule_exhausted",
    ]
    assert [str(one) for one in SkipReason if f"`{one}`" not in text and one not in documented] == []
