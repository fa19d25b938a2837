"""The table of torture tests: names, options, and their values by default, in `all` and in `all --full`."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from scripts.tortures import clock, disk, eio, failpoints, kill, power, schedule, soak, zoo
from scripts.tortures.exchange import torture as exchange
from scripts.tortures.http import torture as http
from scripts.tortures.reload import torture as reload

Summary = dict[str, Any]


LENIENCY_HELP = "factor for all time limits, for a busy host; with inf, speeds are reported and not judged"


@frozen
class Number:
    """A numeric option: the field that it fills, and its value by default, in `all` and in `all --full`."""

    flag: str
    field: str
    default: float
    short: float
    full: float
    help: str

    @property
    def kind(self) -> type:
        return type(self.default)


@frozen
class Program:
    """One torture test. `shown` names the fields of its summary that tables show."""

    name: str
    help: str
    torture: Callable[..., Summary]
    options: type[Any]
    numbers: tuple[Number, ...]
    shown: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    workers: int | None = 4
    is_timed: bool = False
    """It has time limits, which `--leniency` multiplies."""

    def arguments(self, *, full: bool) -> list[str]:
        """Return the arguments with which `all` runs it."""
        return [part for one in self.numbers for part in (one.flag, str(one.full if full else one.short))]


_RATE = Number("--jobs-per-second", "jobs_per_second", 20.0, 20.0, 20.0, "root jobs that clients request")

PROGRAMS = (
    Program(
        "kill",
        "kill -9 of the service at random moments",
        kill.torture,
        kill.KillOptions,
        (Number("--cycles", "cycles", 100, 15, 1000, "kills"), _RATE),
        ("cycles", "acknowledged", "attempts", "lost_attempts", "ready_seconds"),
    ),
    Program(
        "failpoints",
        "kill -9 at every failpoint, with few clients and under load",
        failpoints.torture,
        failpoints.FailpointOptions,
        (Number("--runs", "runs", 2, 1, 20, "deaths at each failpoint; the first with few clients"),),
        ("failpoints", "runs"),
    ),
    Program(
        "power",
        "disk images that a power cut may leave",
        power.torture,
        power.PowerOptions,
        (
            Number("--images", "images", 200, 100, 2000, "disk images of one recording"),
            Number("--seconds", "seconds", 20.0, 10.0, 120.0, "duration of the recording"),
            Number("--starts", "starts", 2, 1, 20, "disk images on which a service is started"),
        ),
        ("images", "acknowledged", "required", "started"),
    ),
    Program(
        "disk",
        "a full disk (needs root to mount a small file system)",
        disk.torture,
        disk.DiskOptions,
        (
            Number("--requests", "requests", 200, 200, 1000, "requests while the disk is full"),
            Number("--rounds", "rounds", 4, 2, 4, "how often the disk is filled; in every other round with a kill"),
        ),
        ("requests", "responses_while_full", "resume_seconds"),
        is_timed=True,
    ),
    Program(
        "io",
        "a disk whose writes, syncs or truncations fail",
        eio.torture,
        eio.EioOptions,
        (Number("--runs", "runs", 8, 4, 50, "failures"),),
        ("runs", "acknowledged", "exit_seconds"),
        aliases=("eio",),
        is_timed=True,
    ),
    Program(
        "http",
        "attacks on the API and the webhook listener while background clients send ordinary requests",
        http.torture,
        http.HttpOptions,
        (Number("--share", "share", 1.0, 0.02, 1.0, "run this share of every number"),),
        ("share",),
        workers=None,
        is_timed=True,
    ),
    Program(
        "zoo",
        "misbehaving plugins together with good jobs, in rounds",
        zoo.torture,
        zoo.ZooOptions,
        (
            Number("--rounds", "rounds", 3, 1, 7, "rounds"),
            Number("--share", "share", 1.0, 0.5, 1.0, "share of the plugins in every round"),
        ),
        ("rounds", "plugins", "jobs", "job_wait_seconds", "resident_mebibytes"),
        workers=8,
        is_timed=True,
    ),
    Program(
        "clock",
        "a wall clock that jumps, and the nights in which the clocks change",
        clock.torture,
        clock.ClockOptions,
        (
            Number("--jumps", "jumps", 10, 10, 100, "jumps"),
            Number("--nights", "nights", 3, 3, 3, "nights, up to three"),
        ),
        ("jumps", "nights", "acknowledged", "jobs"),
        is_timed=True,
    ),
    Program(
        "schedule",
        "kill -9 while schedules fire, skip, queue and cancel",
        schedule.torture,
        schedule.ScheduleOptions,
        (Number("--runs", "runs", 500, 12, 500, "deaths"),),
        ("runs", "slots_skipped", "cancelled_while_running"),
    ),
    Program(
        "reload",
        "changes of the configuration while jobs arrive and run",
        reload.torture,
        reload.ReloadOptions,
        (
            Number("--reloads", "reloads", 200, 8, 200, "reloads"),
            Number("--jobs-per-second", "jobs_per_second", 10.0, 10.0, 10.0, "root jobs that clients request"),
        ),
        ("reloads", "acknowledged", "jobs"),
    ),
    Program(
        "exchange",
        "kill -9 of the service and of workers, stopped workers, a clock that is set",
        exchange.torture,
        exchange.ExchangeOptions,
        (
            Number("--cycles", "cycles", 500, 20, 500, "cycles with one disturbance each"),
            Number("--messages-per-second", "messages_per_second", 20.0, 20.0, 20.0, "messages that clients publish"),
        ),
        ("cycles", "acknowledged", "claims", "disturbances", "ready_seconds"),
        workers=8,
    ),
    Program(
        "soak",
        "very many plugin runs, and whether resources grow",
        soak.torture,
        soak.SoakOptions,
        (Number("--runs", "runs", 2000, 1000, 100_000, "plugin runs"),),
        ("runs", "runs_per_second", "growth_percent", "descriptors", "threads", "largest_log_megabytes"),
    ),
)
BY_NAME = {name: program for program in PROGRAMS for name in (program.name, *program.aliases)}
