"""`system watch` and `logs` without a service: the picture at any size, what is refused, what a ledger tells."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.cli.logs.event_format import LEVEL_OF, event_line, words
from ductile.cli.system.watch_view import Picture, clock, frame
from ductile.core.clock import to_text
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from ductile.web.stream.event_types import GAP, NAMES
from tests.cli.conftest import Run
from tests.cli.history import past_of
from tests.cli.test_start_up import imported_by

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def at(seconds: float) -> str:
    return to_text(NOW + timedelta(seconds=seconds))


def picture(*, jobs: int = 1, schedules: int = 1, breakers: int = 1, **more: Any) -> Picture:
    """A busy service."""
    running = {"plugin": "slow", "command": "poll", "started_at": at(-30), "timeout_seconds": 60.0}
    counts = {"queue_depth": 7, "running_count": jobs, "delayed_count": 2, "dead_count": 1}
    usual = {
        "health": {"status": "ok", "version": "1.2.3", "uptime_seconds": 3700, "plugins_loaded": 4},
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
    }
    return Picture(**(usual | more))


def event(name: str = "job.completed", **data: Any) -> dict[str, Any]:
    return {"seq": 1, "at": at(0), "event": name, "data": {"seq": 1, "plugin": "p", "command": "poll", **data}}


def drawn(shown: Picture | None, events: int = 3, *, width: int = 100, height: int | None = None, **more: Any) -> str:
    told = [event(note=f"number-{number}") for number in range(events)]
    return "\n".join(line.plain for line in frame(shown, told, now=NOW, width=width, height=height, **more))


def test_a_picture_has_everything_an_operator_asks_for() -> None:
    """Service, queue, pauses, running jobs against their time, countdowns, breakers, events."""
    text = drawn(picture())

    for words_shown in (
        "ok  ductile 1.2.3  up 1h1m  plugins 4",
        "queue  waiting 6  running 1  delayed 2  dead 1  breakers 0 of 1 closed",
        "paused  everything (backup)",
        "slow.poll  " + "█" * 12 + "░" * 13 + "  30s of 1m00s  job-0",
        "p/s0  every 5m  in 1m30s",
        "b.c0  open  failures 3  asked again in 45s",
        "09:30:00  job.completed  p.poll  note=number-2",
    ):
        assert words_shown in text


def test_a_picture_of_a_service_that_is_gone_says_so_and_is_grey() -> None:
    """The last that was known stays, dimmed."""
    lines = frame(picture(), [], now=NOW, lost="the service is stopping", width=80)

    assert lines[0].plain == "not running, waiting…  the service is stopping"
    assert all(any(span.style == "dim" for span in line.spans) for line in lines[1:])


@pytest.mark.parametrize("width", [1, 7, 20, 40, 80, 300])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 24, 200])
@pytest.mark.parametrize("many", [0, 1, 50])
def test_a_picture_never_is_larger_than_the_terminal(width: int, height: int, many: int) -> None:
    """Whatever the size, and however much there is to show."""
    shown = picture(jobs=many, schedules=many, breakers=many)
    lines = frame(shown, [event(error="界" * 200)] * many, now=NOW, width=width, height=height)

    assert 1 <= len(lines) <= height
    assert all(line.cell_len <= width for line in lines)


def test_a_small_terminal_shows_a_little_of_each_and_tells_what_it_leaves_out() -> None:
    """Every part that has room for a row keeps its heading; the newest events win."""
    text = drawn(picture(jobs=9, schedules=9, breakers=9), events=30, width=60, height=20)

    for heading in ("RUNNING 9", "SCHEDULES 9", "BREAKERS 9 of 9", "EVENTS"):
        assert heading in text
    assert "more" in text
    assert text.splitlines()[-1].endswith("note=number-29")


def test_ten_lines_have_room_for_what_happens() -> None:
    """When not every part fits, events and running jobs come first."""
    text = drawn(picture(), events=5, width=60, height=7)

    assert "RUNNING" in text
    assert "number-4" in text
    assert "SCHEDULES" not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (65, "1m05s"), (7380, "2h03m"), (352_800, "4d02h")]
)
def test_spans_are_told_to_the_second_as_long_as_that_is_read(seconds: float, text: str) -> None:
    """Short, and never jumping in width within a unit."""
    assert clock(timedelta(seconds=seconds)) == text


def test_what_a_plugin_said_cannot_steer_the_terminal() -> None:
    """Escape sequences and line breaks of error texts are only characters."""
    evil = "\x1b[2J\x9b31m\rgone\nsecond line\u202e"

    for text in (
        event_line(event("job.failed", error=evil)),
        drawn(picture(health={"status": evil})),
        words({evil: 1}),
    ):
        assert not {"\x1b", "\x9b", "\r", "\u202e"} & set(text)
    assert "\n" not in event_line(event("job.failed", error=evil, job_id=evil))


def test_only_events_that_exist_have_a_level() -> None:
    """A misspelt name would silently be `info`."""
    assert set(LEVEL_OF) <= NAMES | {GAP}


def test_watch_needs_a_terminal_and_says_what_does_not(run: Run, demo: Path) -> None:
    """Into a pipe there is --once, and the commands that are made for it."""
    answer = run("system", "watch", "--config", demo)

    assert answer.exit_code == 2
    for name in ("--once", "ductile system status --json", "ductile logs --follow"):
        assert name in answer.stderr
    assert run("system", "watch", "--json", "--config", demo).json["code"] == "usage"
    assert run("system", "watch", "--refresh", "1ms", "--config", demo).exit_code == 2
    assert run("system", "watch", "--refresh", "soon", "--config", demo).exit_code == 2


def test_watch_once_without_a_service_fails(run: Run, demo: Path) -> None:
    """There is no picture of what does not run."""
    answer = run("system", "watch", "--once", "--json", "--config", demo)

    assert answer.exit_code != 0
    assert "ductile system start" in answer.json["hint"]


# ── logs from the ledger ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def told(demo: Path) -> Path:
    """A configuration whose ledger has a journal: echo fails twice, disk is well, a delivery was refused."""
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
    run: Run, told: Path, args: tuple[str, ...], kinds: list[str]
) -> None:
    """One JSON object per line, without a service."""
    answer = run("logs", *args, "--json", "--config", told)

    assert answer.exit_code == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["event"] for line in lines] == kinds
    assert all(line.keys() == {"seq", "at", "event", "data", "level"} for line in lines)


def test_logs_are_lines_for_people(run: Run, told: Path) -> None:
    """When, how bad, what, of whom, and what was said."""
    first, *_, last = run("logs", "--config", told).stdout.splitlines()

    assert first == '2026-02-08 09:30:00Z  error  plugin.unhealthy  echo  error="no such host"'
    assert "\x1b" not in last


def test_logs_of_a_plugin_that_never_was_are_not_found(run: Run, told: Path) -> None:
    """Nothing to show is no answer to a name that is wrong."""
    answer = run("logs", "nobody", "--json", "--config", told)

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")


@pytest.mark.parametrize("args", [("--level", "loud"), ("--limit", "-1")])
def test_logs_refuse_what_makes_no_sense(run: Run, told: Path, args: tuple[str, ...]) -> None:
    """With the exit code of a wrong command line."""
    assert run("logs", *args, "--config", told).exit_code == 2


def test_logs_of_another_service_that_does_not_answer_fail(run: Run) -> None:
    """One question is not worth waiting; who follows waits."""
    answer = run("logs", "--api-url", "http://127.0.0.1:1", "--json")

    assert (answer.exit_code, answer.json["code"]) == (69, "unreachable")


@pytest.mark.parametrize("url", ["http://x:99999", "ftp://x", "http://[", "nowhere", "http://"])
@pytest.mark.parametrize("option", ["--follow", "--limit=1"])
def test_an_address_that_is_none_is_told_at_once(run: Run, url: str, option: str) -> None:
    """Also by those who would wait for a service."""
    answer = run("logs", option, "--api-url", url)

    assert answer.exit_code == 69
    assert "is not an address" in answer.stderr


@pytest.mark.parametrize("url", ["http://x/base", "https://x:1/?a=1", "http://x/#a", "http://ada:secret@x"])
@pytest.mark.parametrize("option", ["--follow", "--limit=1"])
def test_an_address_that_says_more_is_refused(run: Run, url: str, option: str) -> None:
    """It would be left out, and another place asked than was named; what may be a password is not shown."""
    answer = run("logs", option, "--api-url", url)

    assert answer.exit_code == 69
    assert "more than a host and a port" in answer.stderr
    assert "secret" not in answer.stderr


@pytest.mark.parametrize("option", ["--query", "--from", "--to", "--cursor"])
def test_following_jobs_refuses_questions_about_the_past(run: Run, told: Path, option: str) -> None:
    """What is still to come cannot answer them."""
    answer = run("job", "list", "--follow", option, "x", "--json", "--config", told)

    assert (answer.exit_code, answer.json["code"]) == (2, "usage")
    assert option in answer.json["error"]


def test_reading_logs_needs_no_event_loop(told: Path) -> None:
    """Only who follows pays for it."""
    assert imported_by("logs", "--config", str(told)).isdisjoint({"trio", "quart", "hypercorn", "cattrs", "rich"})
