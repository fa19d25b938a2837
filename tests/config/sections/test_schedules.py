"""Calendar definitions of configured schedules: every key is converted, and the hash changes only with the slots."""

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
from ductile.calendar.due import evaluate
from ductile.calendar.windows import Window
from ductile.config.sections.schedules import HOST_ZONE, build_definition, definition_hash
from ductile.config.sections.settings import Schedule
from tests.config.conftest import ConfigDir, yaml_at


def load_schedule(config_dir: ConfigDir, schedule: str) -> Schedule:
    """Load a configuration with one schedule and return it."""
    return (
        config_dir.load(yaml_at("plugins.echo.schedules[0]", f"{{{schedule}}}")).settings.plugins["echo"].schedules[0]
    )


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
def test_each_kind_of_schedule_is_converted(config_dir: ConfigDir, schedule: str, when: object) -> None:
    assert build_definition("echo", load_schedule(config_dir, schedule)).when == when


def test_every_time_key_is_converted(config_dir: ConfigDir) -> None:
    """Both windows apply; weekdays count from Sunday."""
    schedule = load_schedule(
        config_dir,
        "id: nightly, cron: '0 2 * * *', jitter: 10m, timezone: Europe/Berlin, not_on: [sat, 7], only_between: "
        "'22:00-6:00', preferred_window: {start: '1:00', end: '05:30'}",
    )
    assert build_definition("echo", schedule) == Definition(
        plugin="echo",
        schedule_id="nightly",
        when=parse_line("0 2 * * *"),
        zone=ZoneInfo("Europe/Berlin"),
        jitter=timedelta(minutes=10),
        windows=(Window(time(22), time(6)), Window(time(1), time(5, 30))),
        not_on=frozenset({0, 6}),
    )
    assert (
        build_definition("echo", load_schedule(config_dir, "every: 1h, catch_up: run_all")).catch_up is CatchUp.RUN_ALL
    )


SAME = [
    ("every: 60m", "every: hourly"),
    ("every: 1h", "every: 1h, jitter: 5m, catch_up: run_once, if_running: queue, payload: {a: 1}"),
    ("every: 1h", "every: 1h, only_between: '08:00-22:00', not_on: [sun], timezone: Asia/Kathmandu"),
    ("cron: '0 8 * * mon-fri', timezone: UTC", "cron: '00 8  * * 1,2,3-5', timezone: UTC"),
    ("cron: '30 0-4/2 * * *', timezone: UTC", "cron: '30 0,2,4 * * *', timezone: UTC"),
    ("at: '2026-03-01T08:00:00+01:00'", "at: '2026-03-01T07:00:00Z'"),
]
DIFFERENT = [
    ("every: 1h", "every: 2h"),
    ("every: 1h", "every: 1h, command: sync"),
    ("every: 1h", "after: 1h"),
    ("cron: '0 8 * * *', timezone: UTC", "cron: '0 9 * * *', timezone: UTC"),
    ("cron: '0 8 * * *', timezone: UTC", "cron: '0 8 * * *', timezone: Europe/Berlin"),
    ("cron: '0 0,12 * * *', timezone: UTC", "cron: '0 */12 * * *', timezone: UTC"),
    ("cron: '0 8 1-31 * mon', timezone: UTC", "cron: '0 8 * * mon', timezone: UTC"),
    ("at: '2026-03-01T08:00:00Z'", "at: '2026-03-01T08:00:01Z'"),
    ("after: 1m", "after: 2m"),
]


@pytest.mark.parametrize(
    ("left", "right", "same"), [(*pair, True) for pair in SAME] + [(*pair, False) for pair in DIFFERENT]
)
def test_the_hash_changes_only_with_the_slots_or_the_command(
    config_dir: ConfigDir, left: str, right: str, same: bool
) -> None:
    """Another notation, jitter, window, policy or payload does not reset a schedule."""
    first, second = definition_hash(load_schedule(config_dir, left)), definition_hash(load_schedule(config_dir, right))
    assert (first == second) is same
    assert len(first) == 64


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("every: 5m", "4c6c5e071b91aa7a6138ad1febd5676bd011f3d0a677137a2c006d63b1e6d5ff"),
        (
            "cron: '*/5 * * * mon-fri', timezone: Europe/Berlin",
            "afc0d2325bbb2434738a68f7c0eef8031be08a3407e6b7d116016ae611d62d2f",
        ),
        (
            "cron: '30 2 * * mon-fri', timezone: Europe/Berlin",
            "5ce1842a8bcfc2ec475b1396c318524c121e35fa4cbfa443542404470fead219",
        ),
    ],
)
def test_the_hash_is_stable_across_versions(config_dir: ConfigDir, line: str, known: str) -> None:
    """A different hash would reset every schedule in existing ledgers."""
    assert definition_hash(load_schedule(config_dir, line)) == known


PRINT_HOST_ZONE = """
import json, sys
from datetime import UTC, datetime
from ductile.config.sections.schedules import HOST_ZONE
walls = [datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone(HOST_ZONE) for text in sys.argv[1:]]
print(json.dumps([HOST_ZONE.tzname(None), *(wall.isoformat() for wall in walls)]))
"""


@pytest.mark.process
@pytest.mark.parametrize("zone", ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3", ":Europe/Berlin"])
def test_the_time_zone_of_the_host_is_that_of_its_c_library(zone: str) -> None:
    """Also for TZ values that are not IANA names. Repeated hours are distinguished."""
    times = ["2026-03-29 00:59", "2026-03-29 01:00", "2026-10-25 00:30", "2026-10-25 01:30"]
    done = subprocess.run(
        [sys.executable, "-c", PRINT_HOST_ZONE, *times], env={"TZ": zone}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        "CET/CEST",
        "2026-03-29T01:59:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
    ]


def test_a_schedule_without_a_time_zone_uses_that_of_the_host(config_dir: ConfigDir) -> None:
    for schedule in ("cron: '0 8 * * *'", "every: 1h, only_between: '08:00-22:00'"):
        assert build_definition("echo", load_schedule(config_dir, schedule)).zone is HOST_ZONE


@pytest.mark.parametrize(
    "zone",
    ["America", "''", "Europe/" + "x" * 5000, '"Europe/Berlin\\0"', "europe/berlin", "../UTC", "Mars/Olympus", "1"],
)
def test_an_invalid_time_zone_is_reported_at_the_schedule(config_dir: ConfigDir, zone: str) -> None:
    """Whatever exception the zone database raises."""
    errors = config_dir.errors(yaml_at("plugins.echo.schedules[0]", f"{{every: 1h, timezone: {zone}}}"))
    assert "plugins.echo.schedules[0].timezone" in errors
    assert "IANA" in errors


WITHOUT_ZONE_DATA = """
import sys
sys.modules["tzdata"] = None
from ductile.cli import main
main()
"""


@pytest.mark.process
@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_missing_time_zone_data_is_reported_at_the_schedule(config_dir: ConfigDir, zone: str) -> None:
    """Exit code 78. Schedules without a time zone need no data."""
    config_dir.plugin("echo")
    listed = f"[{{id: a, every: 1h}}, {{id: b, every: 2h, timezone: {zone}}}]"
    config_dir.write("config.yaml", f"plugin_roots: [plugins]\nplugins: {{echo: {{schedules: {listed}}}}}\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZONE_DATA, "config", "check", "--config", str(config_dir.root)],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plugins.echo.schedules[1].timezone" in done.stdout + done.stderr
    assert "schedules[0]" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == os.EX_CONFIG


def fastest(work: Callable[[], object]) -> timedelta:
    """Return the shortest of several runs, so that load on the host does not matter."""
    times = []
    for _ in range(7):
        started = time_now()
        work()
        times.append(time_now() - started)
    return timedelta(seconds=min(times))


RARE = ["0 0 29 2 *", "0 0 31 12 *", "30 2 29 2 */7", "0 0 13 * fri", "59 23 31 12 7", "*/7 3 29 2 *", "* * * * *"]


@pytest.mark.parametrize("line", RARE)
@pytest.mark.parametrize("zone", ["UTC", "Africa/Casablanca", "Australia/Lord_Howe"])
def test_the_next_run_is_computed_within_two_milliseconds(line: str, zone: str) -> None:
    """Even if it is decades away."""
    schedule = Schedule(id="rare", cron=line, timezone=zone)
    now = datetime(2096, 3, 1, tzinfo=UTC)
    definition, history = build_definition("echo", schedule), History(anchored_at=now)
    assert evaluate(definition, history, now).next_at is not None
    assert fastest(lambda: evaluate(definition, history, now)) < timedelta(milliseconds=2)


@pytest.mark.parametrize("line", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 feb */2"])
def test_a_date_that_never_occurs_is_rejected_within_five_milliseconds(line: str) -> None:
    def parse() -> None:
        with pytest.raises(ValueError, match="never occurs"):
            parse_line(line)

    assert fastest(parse) < timedelta(milliseconds=5)
