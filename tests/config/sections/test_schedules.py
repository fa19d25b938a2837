"""From schedules as written to definitions: every key arrives, and the hash changes exactly when the slots do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from time import perf_counter as time_now
from zoneinfo import ZoneInfo

import pytest

from ductile.calendar.cron import parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every, History
from ductile.calendar.due import look
from ductile.calendar.windows import Window
from ductile.config.sections.schedules import HOST_ZONE, definition_hash, definition_of
from ductile.config.sections.settings import Schedule
from tests.config.conftest import Home, spelled


def written(home: Home, schedule: str) -> Schedule:
    """The one schedule of a configuration."""
    return home.load(spelled("plugins.echo.schedules[0]", f"{{{schedule}}}")).settings.plugins["echo"].schedules[0]


@pytest.mark.parametrize(
    ("schedule", "when"),
    [
        ("every: 5m", Every(timedelta(minutes=5))),
        ("every: weekly", Every(timedelta(weeks=1))),
        ("cron: '0 8 * * mon-fri'", parse_line("0 8 * * 1-5")),
        ("at: '2026-03-01T08:00:00+01:00'", At(datetime(2026, 3, 1, 7, tzinfo=UTC))),
        ("after: 30s", After(timedelta(seconds=30))),
    ],
)
def test_each_kind_of_schedule_becomes_its_definition(home: Home, schedule: str, when: object) -> None:
    """Exactly one of four."""
    assert definition_of("echo", written(home, schedule)).when == when


def test_every_key_about_time_arrives(home: Home) -> None:
    """Both windows count, weekdays from Sunday, the zone by its name."""
    schedule = written(
        home,
        "id: nightly, cron: '0 2 * * *', jitter: 10m, timezone: Europe/Berlin, not_on: [sat, 7], only_between: "
        "'22:00-6:00', preferred_window: {start: '1:00', end: '05:30'}",
    )
    assert definition_of("echo", schedule) == Definition(
        plugin="echo",
        schedule_id="nightly",
        when=parse_line("0 2 * * *"),
        zone=ZoneInfo("Europe/Berlin"),
        jitter=timedelta(minutes=10),
        windows=(Window(time(22), time(6)), Window(time(1), time(5, 30))),
        not_on=frozenset({0, 6}),
    )
    assert definition_of("echo", written(home, "every: 1h, catch_up: run_all")).catch_up is CatchUp.RUN_ALL


SAME = [
    ("every: 60m", "every: hourly"),
    ("every: 1h", "every: 1h, jitter: 5m, catch_up: run_once, if_running: queue, payload: {a: 1}"),
    ("every: 1h", "every: 1h, only_between: '08:00-22:00', not_on: [sun], timezone: Asia/Kathmandu"),
    ("cron: '0 8 * * mon-fri', timezone: UTC", "cron: '00 8  * * 1,2,3-5', timezone: UTC"),
    ("at: '2026-03-01T08:00:00+01:00'", "at: '2026-03-01T07:00:00Z'"),
]
OTHER = [
    ("every: 1h", "every: 2h"),
    ("every: 1h", "every: 1h, command: sync"),
    ("every: 1h", "after: 1h"),
    ("cron: '0 8 * * *', timezone: UTC", "cron: '0 9 * * *', timezone: UTC"),
    ("cron: '0 8 * * *', timezone: UTC", "cron: '0 8 * * *', timezone: Europe/Berlin"),
    ("cron: '0 2 * * *', timezone: UTC", "cron: '0 2/24 * * *', timezone: UTC"),
    ("cron: '0 8 1-31 * mon', timezone: UTC", "cron: '0 8 * * mon', timezone: UTC"),
    ("at: '2026-03-01T08:00:00Z'", "at: '2026-03-01T08:00:01Z'"),
    ("after: 1m", "after: 2m"),
]


@pytest.mark.parametrize(
    ("one", "other", "same"), [(*pair, True) for pair in SAME] + [(*pair, False) for pair in OTHER]
)
def test_the_hash_changes_when_the_slots_or_the_command_do(home: Home, one: str, other: str, same: bool) -> None:
    """Another notation, jitter, window, policy or payload does not start a schedule anew."""
    first, second = definition_hash(written(home, one)), definition_hash(written(home, other))
    assert (first == second) is same
    assert len(first) == 64


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("every: 5m", "4c6c5e071b91aa7a6138ad1febd5676bd011f3d0a677137a2c006d63b1e6d5ff"),
        (
            "cron: '*/5 8-17 * * mon-fri', timezone: Europe/Berlin",
            "4d53042437ff43ac3d25c454b83e79215d67ddd776570ff37cc861561a14837b",
        ),
    ],
)
def test_the_hash_is_the_one_that_ledgers_have(home: Home, line: str, known: str) -> None:
    """A new version that hashed differently would start every schedule anew."""
    assert definition_hash(written(home, line)) == known


ASK = """
import json, sys
from datetime import UTC, datetime
from ductile.config.sections.schedules import HOST_ZONE
walls = [datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone(HOST_ZONE) for text in sys.argv[1:]]
print(json.dumps([HOST_ZONE.tzname(None), *(wall.isoformat() for wall in walls)]))
"""


@pytest.mark.parametrize("zone", ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3", ":Europe/Berlin"])
def test_the_zone_of_the_host_is_what_its_c_library_says(zone: str) -> None:
    """Also in notations that are no IANA names; the repeated hour is told apart."""
    moments = ["2026-03-29 00:59", "2026-03-29 01:00", "2026-10-25 00:30", "2026-10-25 01:30"]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *moments], env={"TZ": zone}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        "CET/CEST",
        "2026-03-29T01:59:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
    ]


def test_a_schedule_without_a_zone_has_the_hosts(home: Home) -> None:
    """For cron lines and windows alike."""
    for schedule in ("cron: '0 8 * * *'", "every: 1h, only_between: '08:00-22:00'"):
        assert definition_of("echo", written(home, schedule)).zone is HOST_ZONE


@pytest.mark.parametrize(
    "zone",
    ["America", "''", "Europe/" + "x" * 5000, '"Europe/Berlin\\0"', "europe/berlin", "../UTC", "Mars/Olympus", "1"],
)
def test_a_zone_that_is_none_is_a_complaint_that_names_the_schedule(home: Home, zone: str) -> None:
    """Never a traceback, whatever the zone database makes of the name."""
    refused = home.refusal(spelled("plugins.echo.schedules[0]", f"{{every: 1h, timezone: {zone}}}"))
    assert "plugins.echo.schedules[0].timezone" in refused
    assert "IANA" in refused


NO_ZONES = """
import sys
sys.modules["tzdata"] = None
from ductile.cli import main
main()
"""


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_a_host_without_zone_data_is_told_so(home: Home, zone: str) -> None:
    """A complaint at the schedule that needs it, and exit 78; schedules without a zone do not need any."""
    home.plugin("echo")
    listed = f"[{{id: a, every: 1h}}, {{id: b, every: 2h, timezone: {zone}}}]"
    home.write("config.yaml", f"plugin_roots: [plugins]\nplugins: {{echo: {{schedules: {listed}}}}}\n")
    done = subprocess.run(
        [sys.executable, "-c", NO_ZONES, "config", "check", "--config", str(home.root)],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plugins.echo.schedules[1].timezone" in done.stdout + done.stderr
    assert "schedules[0]" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == os.EX_CONFIG


def quickest(work: Callable[[], object]) -> timedelta:
    """Of several tries, so that a busy host does not count."""
    times = []
    for _ in range(7):
        began = time_now()
        work()
        times.append(time_now() - began)
    return timedelta(seconds=min(times))


RARE = ["0 0 29 2 *", "0 0 31 12 *", "30 2 29 2 */7", "0 0 13 * fri", "59 23 31 12 7", "*/7 3 29 2 *", "* * * * *"]


@pytest.mark.parametrize("line", RARE)
@pytest.mark.parametrize("zone", ["UTC", "Africa/Casablanca", "Australia/Lord_Howe"])
def test_the_next_run_is_reckoned_not_searched_for(line: str, zone: str) -> None:
    """Two milliseconds, also when it is decades away."""
    schedule = Schedule(id="rare", cron=line, timezone=zone)
    now = datetime(2096, 3, 1, tzinfo=UTC)
    definition, history = definition_of("echo", schedule), History(anchored_at=now)
    assert look(definition, history, now).next_at is not None
    assert quickest(lambda: look(definition, history, now)) < timedelta(milliseconds=2)


@pytest.mark.parametrize("line", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 feb */2"])
def test_a_date_that_never_comes_is_refused_without_a_search(line: str) -> None:
    """Within five milliseconds."""

    def refused() -> None:
        with pytest.raises(ValueError, match="never comes"):
            parse_line(line)

    assert quickest(refused) < timedelta(milliseconds=5)
