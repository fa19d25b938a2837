#!/usr/bin/env python3
"""Watch folders. The state has the changes that were reported, so an unreported change is reported by the next poll.

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
from folder import MAX_EVENTS, Scan, Watch, displayed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_EVENT_BYTES = 2_000_000  # in one response, well below the limit of 10 MiB
MAX_STATE_BYTES = 950_000  # of all watches, below the limit of 1 MiB
MAX_WARNINGS = 20


class Remaining:
    """The unused limits of one response, shared by all watches."""

    def __init__(self) -> None:
        self.events = MAX_EVENTS
        self.event_bytes = MAX_EVENT_BYTES
        self.state_bytes = MAX_STATE_BYTES


def poll(job: Job) -> str:
    watches = read_config(job)
    reported = job.state.get("watches", {})
    remaining, new_state, notes, failures = Remaining(), {}, [], []
    for watch in watches:
        last = reported.get(watch.id)
        if last and last["root"] == watch.root:
            remaining.state_bytes -= sum(map(state_size, last["files"]))
    for watch in watches:
        last = reported.get(watch.id)
        last = last if last and last["root"] == watch.root else None
        try:
            scan = Scan(watch)
        except OSError as error:
            failures.append(f"{displayed(watch.root)} cannot be listed: {error.strerror or error}")
            if last:
                new_state[watch.id] = last
            continue
        new_state[watch.id], note = compare(job, watch, last, scan, remaining)
        notes.append(note)
        warn(job, scan.warnings)
    warn(job, failures)
    if len(failures) == len(watches):
        raise Failed("; ".join(failures[:MAX_WARNINGS]))
    job.state = {"watches": new_state}
    return "; ".join(notes)[:2000]


def compare(
    job: Job, watch: Watch, last: dict[str, Any] | None, scan: Scan, remaining: Remaining
) -> tuple[dict[str, Any], str]:
    """Report the changes since `last` within the limits. Return the new state of the watch and a summary."""
    files: dict[str, str] = dict(last["files"]) if last else {}
    cursor = last["cursor"] if last else ""
    is_silent = last is None and not watch.emit_initial
    entries: list[dict[str, Any]] = []
    postponed = over_limit = 0
    for path, change in changes(watch, files, scan, cursor):
        key = key_of(path)
        if change == "created" and (len(files) >= watch.max_files or remaining.state_bytes < state_size(key)):
            over_limit += 1
            continue
        if not is_silent and (path in scan.files or (change == "deleted" and watch.emit_deleted)):
            status = scan.files[path][1] if path in scan.files else None
            entry = entry_of(watch, path, change, status)
            size = len(json.dumps(entry)) + 200
            if len(entries) == watch.max_events or not remaining.events or remaining.event_bytes < size:
                postponed += 1
                continue
            remaining.event_bytes -= size
            remaining.events -= watch.per_file or not entries
            entries.append(entry)
            cursor = key
        if change == "created":
            remaining.state_bytes -= state_size(key)
        if path in scan.files:
            files[key] = scan.files[path][0]
        else:
            remaining.state_bytes += state_size(key)
            del files[key]
    emit(job, watch, entries)
    note = f"{watch.id}: {len(files)} files, {len(entries)} changes reported"
    if postponed:
        note += f", {postponed} postponed to the next poll"
    if over_limit:
        note += f", {over_limit} over the limit"
        job.log(
            "warn",
            f"{watch.id}: {over_limit} new files ignored: max_files or the state limit is reached",
        )
    if scan.unstable:
        note += f", {scan.unstable} not stable yet"
    # The state changes only with a report, so a poll without changes stores no fact.
    return {"root": watch.root, "files": files, "cursor": cursor}, note


def changes(watch: Watch, files: dict[str, str], scan: Scan, cursor: str) -> list[tuple[str, str]]:
    """List deletions, which free space, then changes after the cursor, so that no file is postponed forever."""
    deleted, changed = [], []
    for path in map(path_of, files):
        if path not in scan.files and not scan.is_unknown(path):
            if not watch.covers(path):
                deleted.append((path, "excluded"))  # excluded by a changed configuration
            elif not is_file(watch.root, path):
                deleted.append((path, "deleted"))
    for path, (mark, _) in scan.files.items():
        if (old := files.get(key_of(path))) != mark:
            changed.append((path, "created" if old is None else "modified"))
    after = path_of(cursor)
    return sorted(deleted) + sorted(changed, key=lambda item: (item[0] <= after, item[0]))


def is_file(root: str, path: str) -> bool:
    """Check again before reporting a deletion: a listing can miss a file that is renamed at the same time."""
    try:
        is_regular = stat.S_ISREG(os.lstat(os.path.join(root, path)).st_mode)
    except OSError:
        return False
    # A folder may have been replaced by a link.
    return is_regular and os.path.realpath(os.path.join(root, path)) == os.path.join(os.path.realpath(root), path)


def emit(job: Job, watch: Watch, entries: list[dict[str, Any]]) -> None:
    head = {"watch_id": watch.id, "root": displayed(watch.root)}
    payloads = [{**head, **entry} for entry in entries]
    if entries and not watch.per_file:
        kinds = [entry["change"] for entry in entries]
        totals = {change: kinds.count(change) for change in ("created", "modified", "deleted")}
        payloads = [{**head, **totals, "files": entries}]
    for payload in payloads:
        # The job id is the same for every attempt, and differs if a file later returns to earlier content.
        job.emit(watch.event_type, payload, dedupe_key=f"folder_watch:{job.id}:{len(job.events)}")


def entry_of(watch: Watch, path: str, change: str, status: os.stat_result | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "change": change,
        "path": displayed(os.path.join(watch.root, path)),
        "relative_path": displayed(path),
        "filename": displayed(os.path.basename(path)),
    }
    if displayed(path) != path:
        entry["path_base64"] = base64.b64encode(os.fsencode(os.path.join(watch.root, path))).decode()
    if status:
        modified_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, status.st_mtime)))
        entry.update(size=status.st_size, modified_at=modified_at)
    return entry


def health(job: Job) -> str:
    watches = read_config(job)
    problems = []
    for watch in watches:
        try:
            os.scandir(watch.root).close()
        except OSError as error:
            problems.append(f"{displayed(watch.root)} cannot be listed: {error.strerror or error}")
    if problems:
        raise Failed("; ".join(problems))
    return f"{len(watches)} folders can be watched"


def read_config(job: Job) -> list[Watch]:
    only_known(job.config, ("watches",))
    entries = setting(job.config, "watches", list)
    watches = []
    for index, raw in enumerate(entries):
        if not isinstance(raw, dict):
            raise Misconfigured(f"watches[{index}] must be a mapping with the key `root`")
        watches.append(Watch(raw, f"watches[{index}]."))
    ids = [watch.id for watch in watches]
    if not ids:
        raise Misconfigured("watches is empty")
    if duplicate := next((name for name in ids if ids.count(name) > 1), None):
        raise Misconfigured(f"watches: duplicate id {duplicate!r}")
    return watches


def key_of(path: str) -> str:
    """Return the path as a JSON key: unchanged if it is UTF-8, otherwise a slash and its bytes in base64."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "/" + base64.b64encode(os.fsencode(path)).decode()
    return path


def path_of(key: str) -> str:
    return os.fsdecode(base64.b64decode(key[1:])) if key.startswith("/") else key


def state_size(key: str) -> int:
    """Return the bytes of an entry in the state: the key as JSON, the fingerprint, quotes, colon and comma."""
    return len(json.dumps(key)) + 16


def warn(job: Job, warnings: list[str]) -> None:
    for warning in warnings[:MAX_WARNINGS]:
        job.log("warn", warning)
    if len(warnings) > MAX_WARNINGS:
        job.log("warn", f"{len(warnings) - MAX_WARNINGS} more warnings of this kind")


if __name__ == "__main__":
    run(poll=poll, health=health)
