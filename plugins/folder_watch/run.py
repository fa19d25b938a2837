#!/usr/bin/env python3
"""Watches folders. The state is what was told, never what was seen: what is not told today is told next time.

See README.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

KEYS = (
    *("id", "root", "event_type", "recursive", "include_globs", "exclude_globs", "ignore_hidden", "strategy"),
    *("emit_mode", "emit_initial", "emit_deleted", "min_stable_age", "max_files", "max_events"),
)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_EVENTS = 1000  # of an answer
MAX_EVENT_BYTES = 2_000_000  # of an answer, well below what Ductile reads
MAX_STATE_BYTES = 950_000  # of all watches together, well below what Ductile keeps
MAX_WARNINGS = 20


class Watch:
    """One of `watches`, checked."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        only_known(raw, KEYS, where=where)
        self.root = os.path.abspath(setting(raw, "root", where=where))
        self.id = setting(raw, "id", default=self.root, where=where)
        self.event_type = setting(raw, "event_type", default="folder_watch.changed", where=where)
        self.recursive = setting(raw, "recursive", bool, True, where=where)
        self.ignore_hidden = setting(raw, "ignore_hidden", bool, True, where=where)
        self.included = globs(setting(raw, "include_globs", list, [], where=where), f"{where}include_globs")
        self.excluded = globs(setting(raw, "exclude_globs", list, [], where=where), f"{where}exclude_globs")
        self.by_content = one_of(raw, "strategy", ("mtime_size", "sha256"), where) == "sha256"
        self.per_file = one_of(raw, "emit_mode", ("aggregate", "per_file"), where) == "per_file"
        self.emit_initial = setting(raw, "emit_initial", bool, False, where=where)
        self.emit_deleted = setting(raw, "emit_deleted", bool, False, where=where)
        self.min_stable_age = seconds(raw.get("min_stable_age"), f"{where}min_stable_age")
        self.max_files = setting(raw, "max_files", int, 5000, least=1, where=where)
        self.max_events = min(MAX_EVENTS, setting(raw, "max_events", int, 500, least=1, where=where))

    def is_watched(self, path: str, name: str) -> bool:
        """Whether a file in a folder that is searched is watched."""
        return (not self.included or matches(self.included, path)) and not self.is_left_out(path, name)

    def is_searched(self, path: str, name: str) -> bool:
        return self.recursive and not self.is_left_out(path, name)

    def is_left_out(self, path: str, name: str) -> bool:
        return (self.ignore_hidden and name.startswith(".")) or matches(self.excluded, path)

    def covers(self, path: str) -> bool:
        """Whether the path would be looked at if it were there."""
        *folders, name = path.split("/")
        searched = (self.is_searched("/".join(folders[: depth + 1]), name) for depth, name in enumerate(folders))
        return all(searched) and self.is_watched(path, name)


class Scan:
    """What is in a folder now: settled files with their marks, and what cannot be judged today."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.files: dict[str, tuple[str, os.stat_result]] = {}
        self.unclear: set[str] = set()  # files, and folders with a slash at the end
        self.unsettled = 0
        self.warnings: list[str] = []
        folders = [""]
        while folders:
            folders.extend(self._list(folders.pop()))

    def is_unclear(self, path: str) -> bool:
        parts = path.split("/")
        above = ("/".join(parts[:depth]) + "/" for depth in range(len(parts)))
        return path in self.unclear or any(folder in self.unclear for folder in above)

    def _list(self, folder: str) -> Iterator[str]:
        """Takes the files of a folder in; gives the folders in it, each with a slash at the end."""
        try:
            with os.scandir(os.path.join(self.watch.root, folder)) as entries:
                listed = list(entries)
        except FileNotFoundError:
            if not folder:
                raise
            return  # gone while we looked
        except OSError as error:
            if not folder:
                raise
            self._hold(folder, error)
            return
        for entry in listed:
            path = folder + entry.name
            # Links are not followed: neither out of the folder nor in circles.
            if entry.is_dir(follow_symlinks=False):
                if self.watch.is_searched(path, entry.name):
                    yield f"{path}/"
            elif entry.is_file(follow_symlinks=False) and self.watch.is_watched(path, entry.name):
                self._take(path, entry)

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            # The time of the change of the inode: unlike the time of modification nobody can set it.
            if abs(time.time() - status.st_ctime) < self.watch.min_stable_age:
                self.unclear.add(path)
                self.unsettled += 1
                return
            text = content_hash(entry.path) if self.watch.by_content else f"{status.st_mtime_ns}:{status.st_size}"
        except FileNotFoundError:
            return
        except OSError as error:
            self._hold(path, error)
            return
        self.files[path] = (short(text), status)

    def _hold(self, path: str, error: OSError) -> None:
        self.unclear.add(path)
        self.warnings.append(f"{shown(os.path.join(self.watch.root, path))} cannot be read: {error.strerror or error}")


class Room:
    """What is left of the caps of one answer, for all watches together."""

    def __init__(self) -> None:
        self.events = MAX_EVENTS
        self.event_bytes = MAX_EVENT_BYTES
        self.state_bytes = MAX_STATE_BYTES


def poll(job: Job) -> str:
    watches = configured(job)
    told = job.state.get("watches", {})
    room, kept, notes, failures = Room(), {}, [], []
    for watch in watches:
        last = told.get(watch.id)
        if last and last["root"] == watch.root:
            room.state_bytes -= sum(map(state_size, last["files"]))
    for watch in watches:
        last = told.get(watch.id)
        last = last if last and last["root"] == watch.root else None
        try:
            scan = Scan(watch)
        except OSError as error:
            failures.append(f"{shown(watch.root)} cannot be listed: {error.strerror or error}")
            if last:
                kept[watch.id] = last
            continue
        kept[watch.id], note = compare(job, watch, last, scan, room)
        notes.append(note)
        warn(job, scan.warnings)
    warn(job, failures)
    if len(failures) == len(watches):
        raise Failed("; ".join(failures[:MAX_WARNINGS]))
    job.state = {"watches": kept}
    return "; ".join(notes)[:2000]


def compare(job: Job, watch: Watch, last: dict[str, Any] | None, scan: Scan, room: Room) -> tuple[dict[str, Any], str]:
    """Tells what differs from what was told `last`, as far as there is room; returns what is told now, and a note."""
    files: dict[str, str] = dict(last["files"]) if last else {}
    cursor = last["cursor"] if last else ""
    is_silent = last is None and not watch.emit_initial
    entries: list[dict[str, Any]] = []
    waiting = crowded = 0
    for path, change in changes(watch, files, scan, cursor):
        key = key_of(path)
        if change == "created" and (len(files) >= watch.max_files or room.state_bytes < state_size(key)):
            crowded += 1
            continue
        if not is_silent and (path in scan.files or (change == "deleted" and watch.emit_deleted)):
            status = scan.files[path][1] if path in scan.files else None
            entry = entry_of(watch, path, change, status)
            size = len(json.dumps(entry)) + 200
            if len(entries) == watch.max_events or not room.events or room.event_bytes < size:
                waiting += 1
                continue
            room.event_bytes -= size
            room.events -= watch.per_file or not entries
            entries.append(entry)
            cursor = key
        if change == "created":
            room.state_bytes -= state_size(key)
        if path in scan.files:
            files[key] = scan.files[path][0]
        else:
            room.state_bytes += state_size(key)
            del files[key]
    emit(job, watch, entries)
    note = f"{watch.id}: {len(files)} files, {len(entries)} changes told"
    if waiting:
        note += f", {waiting} wait for the next poll"
    if crowded:
        note += f", {crowded} wait for room"
        job.log("warn", f"{watch.id}: {crowded} new files wait until others are gone: max_files or the state is full")
    if scan.unsettled:
        note += f", {scan.unsettled} not settled yet"
    # Only a change of what was told changes the state: a quiet poll leaves no fact.
    return {"root": watch.root, "files": files, "cursor": cursor}, note


def changes(watch: Watch, files: dict[str, str], scan: Scan, cursor: str) -> list[tuple[str, str]]:
    """Deletions first, as they make room; then from where the last answer ended, so that none waits for ever."""
    gone, changed = [], []
    for path in map(path_of, files):
        if path not in scan.files and not scan.is_unclear(path):
            if not watch.covers(path):
                gone.append((path, "left"))  # the configuration has changed
            elif not is_file(watch.root, path):
                gone.append((path, "deleted"))
    for path, (mark, _) in scan.files.items():
        if (old := files.get(key_of(path))) != mark:
            changed.append((path, "created" if old is None else "modified"))
    after = path_of(cursor)
    return sorted(gone) + sorted(changed, key=lambda item: (item[0] <= after, item[0]))


def is_file(root: str, path: str) -> bool:
    """Asked again before a file is called deleted: a listing may miss what is renamed meanwhile."""
    try:
        is_regular = stat.S_ISREG(os.lstat(os.path.join(root, path)).st_mode)
    except OSError:
        return False
    # Not through a link that has taken the place of a folder.
    return is_regular and os.path.realpath(os.path.join(root, path)) == os.path.join(os.path.realpath(root), path)


def emit(job: Job, watch: Watch, entries: list[dict[str, Any]]) -> None:
    head = {"watch_id": watch.id, "root": shown(watch.root)}
    payloads = [{**head, **entry} for entry in entries]
    if entries and not watch.per_file:
        told = [entry["change"] for entry in entries]
        totals = {change: told.count(change) for change in ("created", "modified", "deleted")}
        payloads = [{**head, **totals, "files": entries}]
    for payload in payloads:
        # The job's id is the same for every attempt, and another one when a file is put back as it was.
        job.emit(watch.event_type, payload, dedupe_key=f"folder_watch:{job.id}:{len(job.events)}")


def entry_of(watch: Watch, path: str, change: str, status: os.stat_result | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "change": change,
        "path": shown(os.path.join(watch.root, path)),
        "relative_path": shown(path),
        "filename": shown(os.path.basename(path)),
    }
    if shown(path) != path:
        entry["path_base64"] = base64.b64encode(os.fsencode(os.path.join(watch.root, path))).decode()
    if status:
        modified_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, status.st_mtime)))
        entry.update(size=status.st_size, modified_at=modified_at)
    return entry


def health(job: Job) -> str:
    watches = configured(job)
    troubles = []
    for watch in watches:
        try:
            os.scandir(watch.root).close()
        except OSError as error:
            troubles.append(f"{shown(watch.root)} cannot be listed: {error.strerror or error}")
    if troubles:
        raise Failed("; ".join(troubles))
    return f"{len(watches)} folders can be watched"


def configured(job: Job) -> list[Watch]:
    only_known(job.config, ("watches",))
    listed = setting(job.config, "watches", list)
    watches = []
    for index, raw in enumerate(listed):
        if not isinstance(raw, dict):
            raise Misconfigured(f"watches[{index}] must be a mapping with `root`")
        watches.append(Watch(raw, f"watches[{index}]."))
    ids = [watch.id for watch in watches]
    if not ids:
        raise Misconfigured("watches is empty")
    if double := next((name for name in ids if ids.count(name) > 1), None):
        raise Misconfigured(f"watches: the id {double!r} is used twice")
    return watches


def globs(patterns: list[Any], where: str) -> list[re.Pattern[str]]:
    """`*` and `?` stay within a name, `**` does not; a pattern without a slash is for the name alone."""
    compiled = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise Misconfigured(f"{where} must be a list of patterns such as '*.csv', not {pattern!r}")
        parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern if "/" in pattern else f"**/{pattern}")
        meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        compiled.append(re.compile("".join(meaning.get(part) or re.escape(part) for part in parts), re.DOTALL))
    return compiled


def matches(patterns: Iterable[re.Pattern[str]], path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in patterns)


def one_of(raw: dict[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    """The first of the choices is the default."""
    value: str = setting(raw, key, default=choices[0], where=where)
    if value not in choices:
        raise Misconfigured(f"{where}{key} must be {' or '.join(choices)}, not {value!r}")
    return value


def seconds(value: Any, where: str) -> float:
    """A duration: a number of seconds, or text such as 500ms, 2s, 5m."""
    if value is None:
        return 0.0
    text = str(value).strip()
    number = text.rstrip("".join(UNITS))
    try:
        return max(0.0, float(number)) * UNITS[text[len(number) :] or "s"]
    except (ValueError, KeyError):
        raise Misconfigured(f"{where} must be a duration such as 2s, not {value!r}") from None


def content_hash(path: str) -> str:
    # Without blocking and without following: since it was listed, the name may have become a fifo or a link.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    digest = hashlib.sha256()
    with open(descriptor, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def key_of(path: str) -> str:
    """A path as it can stand in JSON: itself if it is UTF-8, else its bytes after a slash (no path begins with one)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "/" + base64.b64encode(os.fsencode(path)).decode()
    return path


def path_of(key: str) -> str:
    return os.fsdecode(base64.b64decode(key[1:])) if key.startswith("/") else key


def shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def short(text: str) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(digest).decode()


def state_size(key: str) -> int:
    """How much an entry takes in the state: the key as JSON, the mark, quotes, colon and comma."""
    return len(json.dumps(key)) + 16


def warn(job: Job, warnings: list[str]) -> None:
    for warning in warnings[:MAX_WARNINGS]:
        job.log("warn", warning)
    if len(warnings) > MAX_WARNINGS:
        job.log("warn", f"and {len(warnings) - MAX_WARNINGS} more of this kind")


if __name__ == "__main__":
    run(poll=poll, health=health)
