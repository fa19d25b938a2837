"""Every torture by name: what can be asked of it, how much of it is a look, and how much is the proof."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from scripts.tortures import (
    bad_disk,
    doors,
    failpoints,
    full_disk,
    kill,
    power,
    reload,
    schedule,
    soak,
    wall_clock,
    zoo,
)

Summary = dict[str, Any]


LENIENCY_HELP = "times as long as promised, on a busy host; inf: speeds are told, not judged"


@frozen
class Number:
    """An option: the field it fills, what it is without being asked for, in `all`, and in `all --full`."""

    flag: str
    field: str
    usual: float
    short: float
    full: float
    help: str

    @property
    def kind(self) -> type:
        return type(self.usual)


@frozen
class Program:
    """One torture. `shown` are the parts of its summary that a table tells beside the violations."""

    name: str
    help: str
    torture: Callable[..., Summary]
    options: type[Any]
    numbers: tuple[Number, ...]
    shown: tuple[str, ...] = ()
    workers: int | None = 4
    is_timed: bool = False
    """It has limits of time, which a busy host can ask to be multiplied."""

    def arguments(self, *, full: bool) -> list[str]:
        """How `all` asks for it."""
        return [part for one in self.numbers for part in (one.flag, str(one.full if full else one.short))]


_RATE = Number("--jobs-per-second", "jobs_per_second", 20.0, 20.0, 20.0, "root jobs asked for over the API")

PROGRAMS = (
    Program(
        "kill",
        "kill -9 of the core at random moments",
        kill.torture,
        kill.Options,
        (Number("--cycles", "cycles", 100, 15, 1000, "kills"), _RATE),
        ("cycles", "acknowledged", "attempts", "lost_attempts", "ready_seconds"),
    ),
    Program(
        "failpoints",
        "kill -9 at every named place, alone and amid a load",
        failpoints.torture,
        failpoints.Options,
        (Number("--runs", "runs", 2, 1, 20, "deaths at each place; the first is alone"),),
        ("failpoints", "runs"),
    ),
    Program(
        "power",
        "disks as a power cut may leave them",
        power.torture,
        power.Options,
        (
            Number("--images", "images", 200, 100, 2000, "disks that are made of one recording"),
            Number("--seconds", "seconds", 20.0, 10.0, 120.0, "how long is recorded"),
            Number("--starts", "starts", 2, 1, 20, "disks on which a whole service goes on"),
        ),
        ("images", "acknowledged", "had_to_be_there", "started"),
    ),
    Program(
        "disk",
        "a full disk (needs root, for a small file system)",
        full_disk.torture,
        full_disk.Options,
        (
            Number("--requests", "requests", 200, 200, 1000, "requests while it is full"),
            Number("--rounds", "rounds", 4, 2, 4, "how often it becomes full; every other time it is killed then"),
        ),
        ("requests", "answers_while_full", "back_seconds"),
        is_timed=True,
    ),
    Program(
        "io",
        "a disk whose writes, syncs or truncations fail",
        bad_disk.torture,
        bad_disk.Options,
        (Number("--runs", "runs", 8, 4, 50, "failures"),),
        ("runs", "acknowledged", "exit_seconds"),
        is_timed=True,
    ),
    Program(
        "http",
        "attack the API's and the webhooks' door beside ordinary callers",
        doors.torture,
        doors.Options,
        (Number("--share", "share", 1.0, 0.02, 1.0, "do this share of every number"),),
        ("share",),
        workers=None,
        is_timed=True,
    ),
    Program(
        "zoo",
        "every plugin that misbehaves, in a crowd, round after round",
        zoo.torture,
        zoo.Options,
        (
            Number("--rounds", "rounds", 3, 1, 7, "rounds"),
            Number("--share", "share", 1.0, 0.5, 1.0, "this share of the animals in every round"),
        ),
        ("rounds", "animals", "jobs", "good_wait_seconds", "resident_mebibytes"),
        workers=8,
        is_timed=True,
    ),
    Program(
        "clock",
        "a wall clock that jumps, and the nights on which the clocks change",
        wall_clock.torture,
        wall_clock.Options,
        (
            Number("--jumps", "jumps", 10, 10, 100, "jumps"),
            Number("--nights", "nights", 3, 3, 3, "nights, of three"),
        ),
        ("jumps", "nights", "acknowledged", "jobs"),
        is_timed=True,
    ),
    Program(
        "schedule",
        "kill -9 while schedules fire, skip, queue and cancel",
        schedule.torture,
        kill.Options,
        (Number("--runs", "cycles", 500, 12, 500, "deaths"),),
        ("runs", "slots_passed_over", "cancelled_while_running"),
    ),
    Program(
        "reload",
        "change the configuration while jobs come in and run",
        reload.torture,
        kill.Options,
        (
            Number("--reloads", "cycles", 200, 8, 200, "reloads"),
            Number("--jobs-per-second", "jobs_per_second", 10.0, 10.0, 10.0, "root jobs asked for over the API"),
        ),
        ("reloads", "acknowledged", "jobs"),
    ),
    Program(
        "soak",
        "very many plugin runs, and whether anything grows",
        soak.torture,
        soak.Options,
        (Number("--runs", "runs", 2000, 1000, 100_000, "plugin runs"),),
        ("runs", "runs_per_second", "growth_percent", "descriptors", "threads", "largest_log_megabytes"),
    ),
)
