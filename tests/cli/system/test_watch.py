"""`system watch` and `logs` without a service: layout, refusals, and events from the ledger."""

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ductile.cli.logs.event_format import LEVEL_OF, details, event_line
from ductile.cli.system.watch_view import ServiceState, clock, frame
from ductile.core.clock import to_text
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from ductile.web.stream.event_types import GAP, NAMES
from tests.cli.conftest import Run, failures, imported_by
from tests.cli.history import past_of

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def at(seconds: float) -> str:
    return to_text(NOW + timedelta(seconds=seconds))


def service_state(*, jobs: int = 1, schedules: int = 1, breakers: int = 1, **more: Any) -> ServiceState:
    """A busy service."""
    running = {"plugin": "slow", "command": "poll", "started_at": at(-30), "timeout_seconds": 60.0}
    counts = {"queue_depth": 7, "running_count": jobs, "delayed_count": 2, "dead_count": 1, "cancelled_count": 0}
    usual = {
        "health": {
            "status": "ok",
            "verdict": "attention",
            "reasons": ["queue_paused"],
            "version": "1.2.3",
            "uptime_seconds": 3700,
            "plugins_loaded": 4,
        },
        "queue": {**counts, "active_jobs": [{**running, "job_id": f"job-{number}"} for number in range(jobs)]},
        "schedules": [
            {"plugin": "p", "schedule_id": f"s{number}", "when": "every 5m", "next_run_at": at(90 + number)}
            for number in range(schedules)
        ],
        "breakers": [
            {"plugin": "b", "command": f"c{number}", "state": "open", "failure_count": 3, "probe_from": at(45)}
            for number in range(breakers)
        ],
        "pauses": [{"plugin": "*", "reason": "backup", "paused_at": at(-60)}],
        "topics": [
            topic("review.request", ready=3, claimed=1, oldest_ready_at=at(-75), waiting_workers=2),
            topic(
                "review.request.dead", dead=1, ready=1, oldest_ready_at=at(0), last_claimed_at=None, waiting_workers=0
            ),
            topic("news", last_claimed_at=None, waiting_workers=0, paused=True, pause_reason="too many"),
        ],
    }
    return ServiceState(**(usual | more))


def topic(name: str, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("ready", "delayed", "waiting", "claimed", "dead"), 0)
    usual = {"oldest_ready_at": None, "last_claimed_at": at(-5), "waiting_workers": 1, "paused": False}
    return {"topic": name, **counts, **usual, "pause_reason": None, **more}


def event(name: str = "job.completed", **data: Any) -> dict[str, Any]:
    return {"seq": 1, "at": at(0), "event": name, "data": {"seq": 1, "plugin": "p", "command": "poll", **data}}


def rendered(
    shown: ServiceState | None, events: int = 3, *, width: int = 100, height: int | None = None, **more: Any
) -> str:
    shown_events = [event(note=f"number-{number}") for number in range(events)]
    return "\n".join(line.plain for line in frame(shown, shown_events, now=NOW, width=width, height=height, **more))


def test_the_dashboard_shows_every_section() -> None:
    text = rendered(service_state())

    for words_shown in (
        "attention (queue_paused)  ductile 1.2.3  up 1h1m  plugins 4",
        "queue  waiting 6  running 1  delayed 2  dead 1  breakers 0 of 1 closed",
        "paused  everything (backup)",
        "slow.poll  " + "█" * 12 + "░" * 13 + "  30s of 1m00s  job-0",
        "p/s0  every 5m  in 1m30s",
        "TOPICS 2",
        "review.request  ready 3  claimed 1  oldest 1m15s  workers waiting 2",
        "news  workers waiting 0  paused (too many)",
        "b.c0  open  failures 3  next probe in 45s",
        "09:30:00  job.completed  p.poll  note=number-2",
    ):
        assert words_shown in text


def test_the_dashboard_of_a_lost_service_is_dimmed() -> None:
    lines = frame(service_state(), [], now=NOW, lost="the service is stopping", width=80)

    assert lines[0].plain == "not running, waiting…  the service is stopping"
    assert all(any(span.style == "dim" for span in line.spans) for line in lines[1:])


def test_the_dashboard_never_exceeds_the_terminal() -> None:
    """For any size and any number of rows."""

    def check(case: tuple[int, int, int]) -> None:
        width, height, count = case
        shown = service_state(jobs=count, schedules=count, breakers=count)
        lines = frame(shown, [event(error="界" * 200)] * count, now=NOW, width=width, height=height)
        assert 1 <= len(lines) <= height
        assert all(line.cell_len <= width for line in lines)

    sizes = product([1, 7, 20, 40, 80, 300], [1, 2, 3, 5, 10, 24, 200], [0, 1, 50])
    assert failures(sizes, check) == []


def test_a_small_terminal_shows_a_part_of_each_section() -> None:
    """The newest events have priority; omitted rows are counted."""
    text = rendered(service_state(jobs=9, schedules=9, breakers=9), events=30, width=60, height=20)

    for heading in ("RUNNING 9", "SCHEDULES 9", "BREAKERS 9 of 9", "EVENTS"):
        assert heading in text
    assert "more" in text
    assert text.splitlines()[-1].endswith("note=number-29")


def test_events_and_running_jobs_have_priority() -> None:
    text = rendered(service_state(), events=5, width=60, height=7)

    assert "RUNNING" in text
    assert "number-4" in text
    assert "SCHEDULES" not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (65, "1m05s"), (7380, "2h03m"), (352_800, "4d02h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert clock(timedelta(seconds=seconds)) == text


def test_plugin_text_cannot_control_the_dashboard() -> None:
    evil = "\x1b[2J\x9b31m\rgone\nsecond line\u202e"

    for text in (
        event_line(event("job.failed", error=evil)),
        rendered(service_state(health={**service_state().health, "version": evil, "reasons": [evil]})),
        details({evil: 1}),
    ):
        assert not {"\x1b", "\x9b", "\r", "\u202e"} & set(text)
    assert "\n" not in event_line(event("job.failed", error=evil, job_id=evil))


def test_only_existing_events_have_a_level() -> None:
    """A misspelt name would silently be `info`."""
    assert set(LEVEL_OF) <= NAMES | {GAP}


def test_watch_without_a_terminal_suggests_alternatives(run: Run, demo: Path) -> None:
    answer = run("system", "watch", "--config", demo)

    assert answer.exit_code == 2
    for name in ("--once", "ductile system status --json", "ductile logs --follow"):
        assert name in answer.stderr
    assert run("system", "watch", "--json", "--config", demo).json["code"] == "usage"
    assert run("system", "watch", "--refresh", "1ms", "--config", demo).exit_code == 2
    assert run("system", "watch", "--refresh", "soon", "--config", demo).exit_code == 2


def test_watch_once_without_a_service_fails(run: Run, demo: Path) -> None:
    answer = run("system", "watch", "--once", "--json", "--config", demo)

    assert answer.exit_code != 0
    assert "ductile system start" in answer.json["hint"]


# ── logs from the ledger ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ledger(demo: Path) -> Path:
    """A configuration whose journal has events of two plugins and a refused delivery."""
    with past_of(demo) as past, transaction(past.db):
        for plugin, kind, data in (
            ("echo", "plugin.unhealthy", {"error": "no such host"}),
            ("disk", "plugin.initialised", {}),
            (None, "webhook.refused", {"path": "/hook", "count": 2}),
            ("echo", "plugin.unhealthy", {"error": "\x1b[31mstill not"}),
        ):
            journal.append(past.db, kind, now=NOW, plugin=plugin, data=data)
    return demo


@pytest.mark.parametrize(
    ("args", "kinds"),
    [
        ((), ["plugin.unhealthy", "plugin.initialised", "webhook.refused", "plugin.unhealthy"]),
        (("--limit", "2"), ["webhook.refused", "plugin.unhealthy"]),
        (("--limit", "0"), []),
        (("--level", "warn"), ["plugin.unhealthy", "webhook.refused", "plugin.unhealthy"]),
        (("--level", "error", "--limit", "1"), ["plugin.unhealthy"]),
        (("disk",), ["plugin.initialised"]),
        (("disk", "--level", "warn"), []),
        (("echo", "--level", "debug"), ["plugin.unhealthy"] * 2),
    ],
)
def test_logs_are_the_latest_events_that_fit_oldest_first(
    run: Run, ledger: Path, args: tuple[str, ...], kinds: list[str]
) -> None:
    """One JSON object per line, without a service."""
    answer = run("logs", *args, "--json", "--config", ledger)

    assert answer.exit_code == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["event"] for line in lines] == kinds
    assert all(line.keys() == {"seq", "at", "event", "data", "level"} for line in lines)


def test_logs_prints_one_line_per_event(run: Run, ledger: Path) -> None:
    first, *_, last = run("logs", "--config", ledger).stdout.splitlines()

    assert first == '2026-02-08 09:30:00Z  error  plugin.unhealthy  echo  error="no such host"'
    assert "\x1b" not in last


def test_logs_of_an_unknown_plugin_are_not_found(run: Run, ledger: Path) -> None:
    answer = run("logs", "missing", "--json", "--config", ledger)

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")


@pytest.mark.parametrize("args", [("--level", "loud"), ("--limit", "-1")])
def test_invalid_options_of_logs_are_usage_errors(run: Run, ledger: Path, args: tuple[str, ...]) -> None:
    assert run("logs", *args, "--config", ledger).exit_code == 2


def test_logs_of_an_unreachable_service_fail(run: Run) -> None:
    """Only --follow waits."""
    answer = run("logs", "--api-url", "http://127.0.0.1:1", "--json")

    assert (answer.exit_code, answer.json["code"]) == (69, "unreachable")


@pytest.mark.parametrize("url", ["http://x:99999", "ftp://x", "http://[", "nowhere", "http://"])
@pytest.mark.parametrize("option", ["--follow", "--limit=1"])
def test_an_invalid_url_is_an_error(run: Run, url: str, option: str) -> None:
    """Also with --follow."""
    answer = run("logs", option, "--api-url", url)

    assert answer.exit_code == 69
    assert "is not a URL" in answer.stderr


@pytest.mark.parametrize("url", ["http://x/base", "https://x:1/?a=1", "http://x/#a", "http://ada:secret@x"])
@pytest.mark.parametrize("option", ["--follow", "--limit=1"])
def test_a_url_with_a_path_or_password_is_refused(run: Run, url: str, option: str) -> None:
    """The password is not printed."""
    answer = run("logs", option, "--api-url", url)

    assert answer.exit_code == 69
    assert "more than a host and a port" in answer.stderr
    assert "secret" not in answer.stderr


@pytest.mark.parametrize("option", ["--query", "--from", "--to", "--cursor"])
def test_job_list_follow_refuses_filters_on_the_past(run: Run, ledger: Path, option: str) -> None:
    answer = run("job", "list", "--follow", option, "x", "--json", "--config", ledger)

    assert (answer.exit_code, answer.json["code"]) == (2, "usage")
    assert option in answer.json["error"]


def test_logs_imports_no_event_loop(ledger: Path) -> None:
    assert imported_by("logs", "--config", str(ledger)).isdisjoint({"trio", "quart", "hypercorn", "cattrs", "rich"})
