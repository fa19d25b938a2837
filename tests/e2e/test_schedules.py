"""Schedules and breakers of a running service: they fire, and people can see, stop, start and reset them."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.furnished import Door
from tests.e2e.service import TOKEN, Home, Service

Start = Callable[..., Service]
OK = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "done"}'
"""
ASKS = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": json.dumps(request.get("payload", request.get("event")))}))
"""
BROKEN = """#!/bin/sh
cat > /dev/null
exit 78
"""
# Takes its time to end, and says whether the job before it was gone when it began.
HOLDS_ON = """#!/bin/sh
cat > /dev/null
if [ -e pid ]; then
    [ -d "/proc/$(cat pid)" ] && echo alive >> seen || echo gone >> seen
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


def cli(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(home: Home, *args: str) -> Any:
    """The JSON that a command prints; it must succeed."""
    done = cli(home, *args, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def schedule(service: Service, schedule_id: str = "default") -> dict[str, Any]:
    status, body = service.ask("GET", "/scheduler/jobs")
    assert status == 200, body
    (found,) = [one for one in body["jobs"] if one["schedule_id"] == schedule_id]
    return dict(found)


def ended(service: Service, message: str, plugin: str, count: int) -> None:
    """Waits until so many jobs of the plugin have ended like this."""

    def heard(one: Service) -> bool:
        said = [line for line in one.lines if message in line["message"] and line.get("plugin") == plugin]
        return len(said) >= count

    assert service.wait_for(heard, f"{count} times {message!r}"), service.stderr


def made(service: Service, count: int) -> list[dict[str, Any]]:
    """The first so many jobs, when they are over."""
    rows = service.home.rows("SELECT id FROM job_queue ORDER BY seq")[:count]
    return [service.job(row["id"], wait="30s") for row in rows]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for everything that leaves it as it was: nothing is due for a while, and all kinds of tokens."""
    home = Home.make(tmp_path_factory.mktemp("idle") / "ductile")
    home.add(TOKENS)
    home.plugin("echo", ASKS)
    home.add(f"plugins:\n{LATER}")
    service = home.start()
    ended(service, "job succeeded", "echo", 1)  # the first slot of an interval is its first moment
    yield service
    service.kill()


# ── firing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_runs_its_plugin_again_and_again(home: Home, start: Start) -> None:
    """Every slot is one job; the list says when it ran and when it will."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{every: 300ms}]}\n")
    service = start()
    ended(service, "job succeeded", "echo", 3)

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


def test_cancel_ends_the_process_before_the_next_run_begins(home: Home, start: Start) -> None:
    """Two runs of the schedule never work at the same time, and the one that had to go is dead."""
    home.plugin("echo", HOLDS_ON)
    home.add("plugins:\n  echo: {schedules: [{every: 1s, if_running: cancel}]}\n")
    service = start()
    ended(service, "job failed: cancelled", "echo", 3)

    assert service.stop() == 0

    seen = (home.path / "seen").read_text().splitlines()
    assert len(seen) >= 2
    assert set(seen) == {"gone"}
    reasons = {row["last_error"] for row in home.rows("SELECT last_error FROM job_queue WHERE status = 'dead'")}
    assert reasons == {"cancelled: another run of its schedule is due"}


@pytest.mark.parametrize("place", ["schedule.before_fire", "schedule.after_insert", "schedule.after_commit"])
@pytest.mark.parametrize("if_running", ["skip", "queue", "cancel"])
def test_a_core_that_dies_while_it_fires_leaves_a_slot_whole_or_not_at_all(
    home: Home, start: Start, place: str, if_running: str
) -> None:
    """Job, slot and next run are there together or none of them; afterwards every slot has one job."""
    home.plugin("echo", OK)
    home.add(f"plugins:\n  echo: {{schedules: [{{every: 200ms, if_running: {if_running}, catch_up: run_all}}]}}\n")
    dying = home.launch(environ={"DUCTILE_FAILPOINT": f"{place}:2"})
    assert dying.wait() == -signal.SIGKILL

    (entry,) = home.rows("SELECT last_slot_at, last_job_id, next_run_at FROM schedule_entries")
    made = home.rows("SELECT id, slot_at FROM job_queue ORDER BY seq")
    assert (entry["last_slot_at"], entry["last_job_id"]) == (made[-1]["slot_at"], made[-1]["id"])
    assert entry["next_run_at"] > entry["last_slot_at"]

    service = start()
    ended(service, "job succeeded", "echo", 3)
    service.stop()
    slots = [row["slot_at"] for row in home.rows("SELECT slot_at FROM job_queue")]
    assert len(set(slots)) == len(slots) >= 3


# ── pause, resume, run ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_schedule_stays_paused_until_it_is_resumed(home: Home, start: Start) -> None:
    """Across restarts; the list, with and without the service, says so and why."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}]}\n")
    service = start()
    ended(service, "job succeeded", "echo", 1)

    assert cli(home, "schedule", "pause", "echo", "default", "--reason", "quiet").stdout == "echo default is paused\n"
    assert cli(home, "schedule", "pause", "echo", "default").stdout == "echo default is paused already\n"
    service.stop()
    (listed,) = shown(home, "schedule", "list")["jobs"]
    assert (listed["status"], listed["reason"], "next_run_at" in listed) == ("paused", "quiet", False)
    service = start()
    assert schedule(service)["status"] == "paused"
    assert cli(home, "schedule", "resume", "echo", "default").stdout == "echo default is scheduled\n"
    ended(service, "job succeeded", "echo", 2)
    changes = home.rows("SELECT data ->> 'status' AS status FROM journal WHERE kind = 'scheduler.status_changed'")
    assert [row["status"] for row in changes] == ["paused_manual", "active"]


def test_an_operators_run_is_an_ordinary_job(idle: Service) -> None:
    """Now, with the schedule's payload, whether or not it is paused; the slots go on as if nothing had happened."""
    home = idle.home
    before = schedule(idle, "late")
    shown(home, "schedule", "pause", "echo", "late")

    job = shown(home, "schedule", "run", "echo", "late", "--wait")

    assert (job["status"], job["result"]["result"]) == ("succeeded", '{"n": 1}')
    (row,) = home.rows("SELECT submitted_by, schedule_id, slot_at FROM job_queue WHERE id = ?", job["job_id"])
    assert row == {"submitted_by": "cli", "schedule_id": None, "slot_at": None}
    shown(home, "schedule", "resume", "echo", "late")
    assert schedule(idle, "late") == before


def test_a_run_can_be_waited_for_in_vain(home: Home, start: Start) -> None:
    """Exit 1, while the job goes on."""
    door = Door.make(home)
    home.add("plugins:\n  door: {schedules: [{at: '2200-01-01T00:00:00Z'}]}\n")
    start()

    done = cli(home, "schedule", "run", "door", "default", "--wait", "--timeout", "1ms", "--json")

    assert (done.returncode, json.loads(done.stdout)["status"] in ("queued", "running")) == (1, True)
    door.reached()
    door.let_through()
    door.close()


def test_dry_runs_change_nothing(idle: Service) -> None:
    """But find out whether it could be done."""
    home = idle.home
    before, jobs = schedule(idle), home.rows("SELECT id FROM job_queue")
    assert shown(home, "schedule", "pause", "echo", "default", "--dry-run")["changed"] is True
    assert shown(home, "schedule", "resume", "echo", "default", "--dry-run")["changed"] is False
    assert shown(home, "schedule", "run", "echo", "default", "--dry-run")["status"] == "planned"
    assert shown(home, "system", "reset", "echo", "--dry-run")["reset"] == []
    assert cli(home, "schedule", "pause", "echo", "nope", "--dry-run").returncode == 1

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
def test_what_cannot_be_asked_for_is_refused(
    idle: Service, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """With a status and a code that say what was wrong."""
    answered, answer = idle.ask(method, path, body)
    assert (answered, answer["code"]) == (status, code)


def test_a_schedule_that_is_over_cannot_be_paused(home: Home, start: Start) -> None:
    """409: it has run and does not repeat."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{at: '2020-01-01T00:00:00Z'}]}\n")
    service = start()
    ended(service, "job succeeded", "echo", 1)
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
def test_everybody_may_do_what_their_scopes_say(idle: Service, method: str, path: str, allowed: set[str]) -> None:
    """Looking is for readers of jobs, changing for operators, running for those who may run the plugin."""
    answers = {token: idle.ask(method, path, token=token)[0] for token in (READER, RUNNER, OPERATOR, TOKEN)}
    assert answers == {token: 200 if token in allowed else 403 for token in answers}
    assert idle.ask(method, path, token=None)[0] == 401


# ── breakers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_breaker_opens_is_seen_and_is_reset(home: Home, start: Start) -> None:
    """Nothing runs after three failures; the reset fires at once what the breaker held, and counts from zero."""
    home.plugin("echo", BROKEN)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}], circuit_breaker: {threshold: 3, reset_after: 1h}}\n")
    service = start()
    ended(service, "job failed", "echo", 3)
    assert len(made(service, 3)) == 3

    (breaker,) = shown(home, "system", "breaker", "echo")["breakers"]
    assert (breaker["command"], breaker["state"], breaker["failure_count"]) == ("poll", "open", 3)
    assert [change["reason"] for change in breaker["transitions"]] == ["failure_threshold"]
    assert service.ask("GET", "/breaker/echo")[1]["breakers"] == [breaker]
    assert service.ask("GET", "/healthz")[1]["plugins_circuit_open"] == 1
    assert len(home.rows("SELECT id FROM job_queue")) == 3

    done = cli(home, "system", "reset", "echo", "poll")

    assert done.stdout == "closed echo.poll (was open, failures 3)\n"
    ended(service, "job failed", "echo", 6)
    assert {job["status"] for job in made(service, 6)} == {"failed"}
    reasons = [row["reason"] for row in home.rows("SELECT reason FROM circuit_breaker_transitions ORDER BY created_at")]
    assert reasons == ["failure_threshold", "manual_reset", "failure_threshold"]


# Fails once; the second run ends well, after some slots have come and gone.
RECOVERS = """#!/bin/sh
cat > /dev/null
[ -e tried ] || { touch tried; exit 78; }
[ -e probed ] || { touch probed; sleep 0.5; }
echo '{"status": "ok", "result": "done"}'
"""


def test_a_schedule_goes_on_as_soon_as_the_probe_has_ended_well(home: Home, start: Start) -> None:
    """What came while the probe ran waits for its end, not for the next time somebody looks whether it was lost."""
    home.plugin("echo", RECOVERS)
    home.add("plugins:\n  echo: {schedules: [{every: 100ms}], circuit_breaker: {threshold: 1, reset_after: 200ms}}\n")
    service = start()
    ended(service, "job succeeded", "echo", 2)

    (closed,) = home.rows("SELECT created_at FROM circuit_breaker_transitions WHERE to_state = 'closed'")
    after = home.rows("SELECT MIN(created_at) AS at FROM job_queue WHERE created_at > ?", closed["created_at"])[0]["at"]
    waited = datetime.fromisoformat(after) - datetime.fromisoformat(closed["created_at"])
    assert waited < timedelta(seconds=10)


def test_the_local_commands_and_another_service_say_the_same(idle: Service) -> None:
    """--api-url asks over HTTP what is otherwise read from the files."""
    home = idle.home
    away = ("--api-url", idle.url, "--api-key", TOKEN)
    assert shown(home, "schedule", "list", *away) == shown(home, "schedule", "list")
    assert shown(home, "schedule", "pause", "echo", "default", *away)["changed"] is True
    assert shown(home, "schedule", "resume", "echo", "default", *away)["changed"] is True
    refused = cli(home, "schedule", "pause", "echo", "default", "--api-url", idle.url, "--api-key", READER)
    assert refused.returncode == 77


def test_why_and_next_are_true_while_the_service_runs(idle: Service) -> None:
    """The first slot fired, and the next one comes an hour later."""
    home = idle.home
    listed = schedule(idle)
    told = shown(home, "schedule", "why", "echo", "default", "--at", listed["last_slot_at"])
    assert (told["verdict"], told["job"]["job_id"]) == ("fired", listed["last_job_id"])
    (coming, *_) = shown(home, "schedule", "next", "echo", "default")["runs"]
    assert coming["fires_at"] == listed["next_run_at"]


def test_moments_at_the_ends_of_the_calendar_stop_nobody(home: Home, start: Start) -> None:
    """One that means never, one that Go writes for no time, and beside them a schedule that fires; all are listed."""
    home.plugin("echo", OK)
    never = "{id: never, at: '9999-12-31T23:59:59Z', timezone: Pacific/Kiritimati, not_on: [fri, sat]}"
    zero = "{id: zero, at: '0001-01-01T00:00:00Z', timezone: Europe/Berlin}"
    home.add(f"plugins:\n  echo: {{schedules: [{never}, {zero}, {{id: often, every: 1h}}]}}\n")
    service = start()
    ended(service, "job succeeded", "echo", 2)

    assert schedule(service, "never")["next_run_local"] == "9000-01-01T14:00:00+14:00"
    assert schedule(service, "zero")["status"] == "exhausted"
    assert [one["schedule_id"] for one in shown(home, "schedule", "list")["jobs"]] == ["never", "zero", "often"]
    assert shown(home, "schedule", "why", "echo", "zero")["verdict"] == "fired"


def test_a_reload_takes_up_new_schedules_at_once(home: Home, start: Start) -> None:
    """And forgets those that are gone."""
    home.plugin("echo", OK)
    home.add("plugins:\n  echo: {schedules: [{id: old, every: 1h}]}\n")
    service = start()
    ended(service, "job succeeded", "echo", 1)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("id: old, every: 1h", "id: new, every: 1h"))

    assert cli(home, "system", "reload").returncode == 0
    ended(service, "job succeeded", "echo", 2)

    assert [one["schedule_id"] for one in service.ask("GET", "/scheduler/jobs")[1]["jobs"]] == ["new"]
    assert home.rows("SELECT schedule_id FROM schedule_entries") == [{"schedule_id": "new"}]


def test_the_page_about_schedules_names_every_command_and_reason() -> None:
    """docs/schedules.md explains what can be asked, and what each answer means."""
    from ductile.calendar.reasons import SkipReason
    from ductile.cli.schedule.group import group

    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    assert [
        name for name, command in group.commands.items() if not command.hidden and f"schedule {name}" not in text
    ] == []
    written = ["scheduled_handle_disallowed", "command_not_supported", "invalid_schedule_config", "schedule_exhausted"]
    assert [str(one) for one in SkipReason if f"`{one}`" not in text and one not in written] == []
