"""A fixture played: its request sent to the real plugin in directories of its own, the answer held against it.

What a difference means is for the callers, `plugin test` and the trials of `plugin check`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import evolve, field, frozen

from ductile.authoring.attempt import Alter, LocalRun
from ductile.authoring.bench import bench_of_folder
from ductile.authoring.fixtures import DIRECTORY, Fixture, FixtureInvalid
from ductile.authoring.local import Asked, run_locally
from ductile.authoring.matching import mismatches
from ductile.authoring.tell import told
from ductile.engine.process.run import StopRequest
from ductile.files import FileRefused, entries_of
from ductile.plugin.registry import Plugin


@frozen(kw_only=True)
class Played:
    """A fixture that was played: the run, the run as plain data, and what is not as expected."""

    local: LocalRun
    shown: Mapping[str, Any] = field(repr=False)
    differences: tuple[str, ...] = ()
    litter: tuple[str, ...] = ()
    """What it left in its working directory."""


def play(plugin: Plugin, fixture: Fixture, **how: Any) -> Played:
    """The plugin was asked what the fixture says, in directories of its own. This process must be hardened.

    `how` is as for `_played`.
    """
    (played,) = play_in_a_row(plugin, [fixture], **how)
    return played


def play_in_a_row(plugin: Plugin, fixtures: list[Fixture], **how: Any) -> list[Played]:
    """The same for several that find what those before them left."""
    with _directories(fixtures[0]) as (work, given):
        return [_played(plugin, _placed(fixture, str(given)), work, **how) for fixture in fixtures]


def _played(
    plugin: Plugin,
    fixture: Fixture,
    work: Path,
    *,
    alter: Alter | None = None,
    job_id: str | None = None,
    grace: timedelta | None = None,
    stop: Callable[[StopRequest], Any] | None = None,
    plugin_config: Mapping[str, Any] | None = None,
) -> Played:
    """The fixture was played in `work`. `alter` changed the request; `stop` ran beside it and may have stopped it."""
    bench = bench_of_folder(plugin.folder, {**fixture.config, **(plugin_config or {})}, work)
    asked = Asked(
        command=fixture.command,
        payload=fixture.payload,
        event=fixture.event,
        state=fixture.state,
        attempt=fixture.attempt,
    )
    asked = evolve(asked, job_id=job_id) if job_id else asked

    def whole(request: dict[str, Any]) -> dict[str, Any]:
        told_context = {**request, "context": fixture.context} if fixture.context is not None else request
        return alter(told_context) if alter else told_context

    handle = StopRequest()
    attempt = partial(
        run_locally,
        bench.snapshot,
        bench.plugin.name,
        asked,
        deadline=fixture.deadline,
        grace=grace,
        alter=whole,
        stop=handle,
    )
    local: LocalRun = trio.run(_beside, attempt, partial(stop, handle) if stop else None)
    shown, litter = told(local, bench.mask), _litter(work)
    wrong = [line for name, value in fixture.expect.items() for line in _differences(fixture, name, value, shown)]
    return Played(local=local, shown=shown, differences=tuple(wrong), litter=litter)


async def _beside(attempt: Callable[[], Any], other: Callable[[], Any] | None) -> Any:
    if other is None:
        return await attempt()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        done = await attempt()
        nursery.cancel_scope.cancel()
    return done


def _differences(fixture: Fixture, name: str, value: Any, shown: Mapping[str, Any]) -> Iterator[str]:
    return mismatches(value, shown.get(name), exact=fixture.is_exact and name == "response", at=name)


@contextmanager
def _directories(fixture: Fixture) -> Iterator[tuple[Path, Path]]:
    """An empty working directory, which is now ours, and the one with the fixture's files."""
    with tempfile.TemporaryDirectory(prefix="ductile-fixture-") as folder:
        work, given = Path(os.path.realpath(folder)) / "work", Path(os.path.realpath(folder)) / "files"
        for directory in (work, given):
            directory.mkdir(mode=0o700)
        for name, text in fixture.files.items():
            _write(given / name, text)
        with chdir(work):
            yield work, given


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except (OSError, ValueError) as error:
        raise FixtureInvalid(f"files: {file.name} cannot be written: {error}") from error


def _litter(work: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in entries_of(work)))
    except FileRefused:
        return (". (it is gone)",)


def _placed(fixture: Fixture, directory: str) -> Fixture:
    """The fixture with its directory in every text of it."""

    def put(data: Any) -> Any:
        match data:
            case str():
                return data.replace(DIRECTORY, directory)
            case dict():
                return {name: put(value) for name, value in data.items()}
            case list():
                return [put(value) for value in data]
        return data

    names = ("config", "payload", "event", "state", "context", "expect")
    return evolve(fixture, **{name: put(getattr(fixture, name)) for name in names})
