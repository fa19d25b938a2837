#!/usr/bin/env python3
"""Watches folders. The state is what was told, never what was seen: what is not told today is told next time.

See README.md.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Job, Misconfigured, only_known, run, setting
from folder import MAX_EVENTS, Scan, Watch, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_EVENT_BYTES = 2_000_000  # of an answer, well below what Ductile reads
MAX_STATE_BYTES = 950_000  # of all watches together, well below what Ductile keeps
MAX_WARNINGS = 20


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


def key_of(path: str) -> str:
    """A path as it can stand in JSON: itself if it is UTF-8, else its bytes after a slash (no path begins with one)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "/" + base64.b64encode(os.fsencode(path)).decode()
    return path


def path_of(key: str) -> str:
    return os.fsdecode(base64.b64decode(key[1:])) if key.startswith("/") else key


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
