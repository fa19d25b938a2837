"""Fixtures: requests that are safe to send to a plugin, and what must come back. Files in its folder `fixtures/`.

Knows how a fixture is written. `playing` plays one, `export` makes one of a job.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ductile import strict_json, strict_yaml
from ductile.errors import DuctileError, did_you_mean
from ductile.files import entries_of, read_regular
from ductile.pipeline.plan import HANDLE
from ductile.plugin.registry import Plugin
from ductile.units import parse_duration

FOLDER = "fixtures"
SUFFIXES = (".json", ".yaml", ".yml")
DIRECTORY = "${dir}"
"""Stands for a fresh directory with the fixture's `files`."""
DEADLINE = timedelta(seconds=10)
SUCCESS = {"verdict": "succeeded"}
"""What a fixture expects that does not say what."""
_KEYS = ("name", "notes", "request", "files", "deadline", "match", "expect")
_REQUEST_KEYS = ("command", "config", "payload", "event", "state", "context", "attempt")
_EXPECTED_KEYS = ("verdict", "error", "exit_code", "signal", "stderr", "response", "would")


class FixtureInvalid(DuctileError):
    """A fixture cannot be read."""

    code, exit_code, status = "fixture_invalid", 78, 400
    hint = "`ductile job export JOB_ID --fixture` writes one that can be read"


@frozen(kw_only=True)
class Fixture:
    """One request and what is expected of it; whoever wrote it down says that it may be sent."""

    name: str
    command: str
    config: Mapping[str, Any] = field(factory=dict, repr=False)
    payload: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    state: Mapping[str, Any] = field(factory=dict)
    context: Mapping[str, Any] | None = None
    attempt: int = 1
    files: Mapping[str, str] = field(factory=dict, repr=False)
    deadline: timedelta = DEADLINE
    is_exact: bool = False
    expect: Mapping[str, Any] = field(factory=dict)


def fixture_files(plugin: Plugin) -> list[Path]:
    """The fixtures that a plugin brings along, in order."""
    folder = plugin.folder / FOLDER
    if not folder.is_dir():
        return []
    return sorted(folder / entry.name for entry in entries_of(folder) if entry.name.endswith(SUFFIXES))


def read_fixture(path: Path) -> Fixture:
    """The fixture in the file. FixtureInvalid, FileRefused or Unreadable say what is wrong."""
    content = read_regular(path, max_bytes=strict_yaml.MAX_BYTES).content
    if path.suffix == ".json":
        data = strict_json.loads(content, source=str(path), max_depth=strict_yaml.MAX_DEPTH)
    else:
        data = strict_yaml.load(content, source=str(path)).data()
    return _fixture(path, data)


def _fixture(path: Path, data: Any) -> Fixture:
    content = _object(path, data, "a fixture", _KEYS)
    request = _object(path, content.get("request"), "request", _REQUEST_KEYS)
    expect = _object(path, content.get("expect", SUCCESS), "expect", _EXPECTED_KEYS)
    if not isinstance(request.get("command"), str):
        raise FixtureInvalid(f"{path}: request.command is missing", hint="name a command of the plugin")
    if (match := content.get("match", "partial")) not in ("partial", "exact"):
        raise FixtureInvalid(f"{path}: match is `partial` or `exact`, not {match!r}")
    event = _optional(path, request, "event")
    if event is not None and request["command"] != HANDLE:
        raise FixtureInvalid(f"{path}: request.event is for `{HANDLE}`; {request['command']} gets a payload")
    _optional(path, event or {}, "payload", of="request.event")
    attempt = request.get("attempt", 1)
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        raise FixtureInvalid(f"{path}: request.attempt is a number from 1")
    return Fixture(
        name=str(content.get("name") or path.stem),
        command=request["command"],
        config=_object(path, request.get("config", {}), "request.config"),
        payload=_optional(path, request, "payload"),
        event=event,
        state=_object(path, request.get("state", {}), "request.state"),
        context=_optional(path, request, "context"),
        attempt=attempt,
        files=_files(path, content.get("files", {})),
        deadline=_deadline(path, content.get("deadline")),
        is_exact=match == "exact",
        expect=expect,
    )


def _object(path: Path, data: Any, what: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise FixtureInvalid(f"{path}: {what} must be an object")
    for name in data if known is not None else ():
        if name not in (known or ()):
            hint = f"known: {', '.join(known or ())}"
            raise FixtureInvalid(f"{path}: {what} has no key {name!r}{did_you_mean(name, known or ())}", hint=hint)
    return data


def _optional(path: Path, data: Mapping[str, Any], name: str, *, of: str = "request") -> dict[str, Any] | None:
    return _object(path, data[name], f"{of}.{name}") if data.get(name) is not None else None


def _files(path: Path, data: Any) -> dict[str, str]:
    files = _object(path, data, "files")
    for name, text in files.items():
        inside = os.path.normpath(name)
        if os.path.isabs(inside) or inside.startswith("..") or inside == "." or "\0" in name:
            raise FixtureInvalid(f"{path}: files: {name!r} does not lie below the fixture's directory")
        if not isinstance(text, str):
            raise FixtureInvalid(f"{path}: files: the content of {name!r} must be text")
    return files


def _deadline(path: Path, text: Any) -> timedelta:
    if text is None:
        return DEADLINE
    try:
        deadline = parse_duration(str(text))
    except ValueError as error:
        raise FixtureInvalid(f"{path}: deadline: {error}") from error
    if deadline <= timedelta():
        raise FixtureInvalid(f"{path}: deadline: {text} is no time at all")
    return deadline
