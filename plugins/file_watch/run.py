#!/usr/bin/env python3
"""Watch single files. The state is what was reported last; each poll reports the differences. See README.md."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEYS = ("id", "path", "event_type", "strategy", "emit_initial", "emit_deleted", "min_stable_age")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WATCHES = 1000  # the limit of events in one response
ABSENT = ""


class Unreadable(Exception):
    """The file cannot be compared in this poll. The last reported fingerprint is kept."""


class Watch:
    """One entry of `watches`, validated."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        only_known(raw, KEYS, where=where)
        self.path = os.path.abspath(setting(raw, "path", where=where))
        self.id = setting(raw, "id", default=self.path, where=where)
        self.event_type = setting(raw, "event_type", default="file_watch.changed", where=where)
        self.strategy = setting(raw, "strategy", default="sha256", where=where)
        if self.strategy not in ("sha256", "mtime_size"):
            raise Misconfigured(f"{where}strategy must be sha256 or mtime_size, not {self.strategy!r}")
        self.emit_initial = setting(raw, "emit_initial", bool, False, where=where)
        self.emit_deleted = setting(raw, "emit_deleted", bool, False, where=where)
        self.min_stable_age = seconds(raw.get("min_stable_age"), f"{where}min_stable_age")

    def read(self) -> tuple[str, dict[str, Any]]:
        """Return the fingerprint of the file, or ABSENT, and its values for the event. Raises Unreadable."""
        try:
            # Without O_NONBLOCK, opening a FIFO or a device could block.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT, {}
        except (OSError, ValueError) as error:
            raise Unreadable(f"{self.path} cannot be read: {getattr(error, 'strerror', error)}") from error
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise Unreadable(f"{self.path} is not a regular file")
        with open(descriptor, "rb") as file:
            # ctime, because programs can set mtime.
            if abs(time.time() - before.st_ctime) < self.min_stable_age:
                raise Unreadable(f"{self.path} changed less than {self.min_stable_age:g} s ago")
            values = {"size": before.st_size, "modified_at": utc_time(before.st_mtime)}
            if self.strategy == "mtime_size":
                return f"{before.st_mtime_ns}:{before.st_size}", values
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Unreadable(f"{self.path} is being written to")
        return digest.hexdigest(), {**values, "sha256": digest.hexdigest()}


def poll(job: Job) -> str:
    stored = job.state.get("watches", {})
    watches = read_config(job)
    reported, warnings = {}, []
    for watch in watches:
        last = stored.get(watch.id)
        if last and (last["path"], last["strategy"]) != (watch.path, watch.strategy):
            last = None
        try:
            mark, values = watch.read()
        except Unreadable as reason:
            warnings.append(str(reason))
            if last:
                reported[watch.id] = last
            continue
        reported[watch.id] = report(job, watch, last, mark, values)
    job.state = {"watches": reported}
    for line in warnings:
        job.log("warn", line)
    return f"checked {len(watches)} files: {len(job.events)} events, {len(warnings)} skipped"


def report(job: Job, watch: Watch, last: dict[str, Any] | None, mark: str, values: dict[str, Any]) -> dict[str, Any]:
    """Emit an event if the file changed, and return its new state."""
    if last is None:
        change = "created" if mark != ABSENT and watch.emit_initial else None
    elif mark == last["mark"]:
        return last
    elif mark == ABSENT:
        change = "deleted" if watch.emit_deleted else None
    else:
        change = "created" if last["mark"] == ABSENT else "modified"
    if change:
        payload = {"watch_id": watch.id, "path": watch.path, "filename": os.path.basename(watch.path), "change": change}
        # The job id is the same for every attempt, and differs if a file later returns to earlier content.
        job.emit(watch.event_type, {**payload, **values}, dedupe_key=f"file_watch:{job.id}:{len(job.events)}")
    return {"path": watch.path, "strategy": watch.strategy, "mark": mark}


def health(job: Job) -> str:
    watches = read_config(job)
    problems = []
    for watch in watches:
        if not os.path.exists(os.path.dirname(watch.path)):
            problems.append(f"{os.path.dirname(watch.path)} does not exist")
        elif os.path.lexists(watch.path) and not os.path.isfile(watch.path):
            problems.append(f"{watch.path} is not a regular file")
        elif os.path.exists(watch.path) and not os.access(watch.path, os.R_OK):
            problems.append(f"{watch.path} is not readable")
    if problems:
        raise Failed("; ".join(problems))
    return f"{len(watches)} files can be watched"


def read_config(job: Job) -> list[Watch]:
    only_known(job.config, ("watches",))
    entries = setting(job.config, "watches", list)
    if not 0 < len(entries) <= MAX_WATCHES:
        raise Misconfigured(f"watches must have 1 to {MAX_WATCHES} entries, not {len(entries)}")
    watches = []
    for index, raw in enumerate(entries):
        if not isinstance(raw, dict):
            raise Misconfigured(f"watches[{index}] must be a mapping with the key `path`")
        watches.append(Watch(raw, f"watches[{index}]."))
    ids = [watch.id for watch in watches]
    if duplicate := next((name for name in ids if ids.count(name) > 1), None):
        raise Misconfigured(f"watches: duplicate id {duplicate!r}")
    return watches


def seconds(value: Any, where: str) -> float:
    """Parse a duration: a number of seconds, or text such as 500ms, 2s, 5m."""
    if value is None:
        return 0.0
    text = str(value).strip()
    number = text.rstrip("".join(UNITS))
    try:
        return max(0.0, float(number)) * UNITS[text[len(number) :] or "s"]
    except (ValueError, KeyError):
        raise Misconfigured(f"{where} must be a duration such as 2s, not {value!r}") from None


def utc_time(timestamp: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, timestamp)))


if __name__ == "__main__":
    run(poll=poll, health=health)
