#!/usr/bin/env python3
"""Watches single files: what was told last is the state, what differs from it is told. See README.md."""

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
MAX_WATCHES = 1000  # as many as an answer may have events
GONE = ""


class Unclear(Exception):
    """The file cannot be judged now; what was told last stays true."""


class Watch:
    """One of `watches`, checked."""

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

    def look(self) -> tuple[str, dict[str, Any]]:
        """What tells this content from another (GONE if there is no file), and what to say about it."""
        try:
            # Without blocking: what is now a fifo or a device would wait for its other end.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return GONE, {}
        except (OSError, ValueError) as error:
            raise Unclear(f"{self.path} cannot be read: {getattr(error, 'strerror', error)}") from error
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise Unclear(f"{self.path} is not a regular file")
        with open(descriptor, "rb") as file:
            # The time of the change of the inode: unlike the time of modification nobody can set it.
            if abs(time.time() - before.st_ctime) < self.min_stable_age:
                raise Unclear(f"{self.path} has changed within {self.min_stable_age:g} s")
            facts = {"size": before.st_size, "modified_at": moment(before.st_mtime)}
            if self.strategy == "mtime_size":
                return f"{before.st_mtime_ns}:{before.st_size}", facts
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Unclear(f"{self.path} is being written")
        return digest.hexdigest(), {**facts, "sha256": digest.hexdigest()}


def poll(job: Job) -> str:
    known = job.state.get("watches", {})
    watches = configured(job)
    seen, unclear = {}, []
    for watch in watches:
        last = known.get(watch.id)
        if last and (last["path"], last["strategy"]) != (watch.path, watch.strategy):
            last = None
        try:
            mark, facts = watch.look()
        except Unclear as reason:
            unclear.append(str(reason))
            if last:
                seen[watch.id] = last
            continue
        seen[watch.id] = tell(job, watch, last, mark, facts)
    job.state = {"watches": seen}
    for line in unclear:
        job.log("warn", line)
    return f"looked at {len(watches)} files: {len(job.events)} events, {len(unclear)} not clear yet"


def tell(job: Job, watch: Watch, last: dict[str, Any] | None, mark: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What is known after this look; the event is emitted if there is something to say."""
    if last is None:
        change = "created" if mark != GONE and watch.emit_initial else None
    elif mark == last["mark"]:
        return last
    elif mark == GONE:
        change = "deleted" if watch.emit_deleted else None
    else:
        change = "created" if last["mark"] == GONE else "modified"
    if change:
        payload = {"watch_id": watch.id, "path": watch.path, "filename": os.path.basename(watch.path), "change": change}
        # The job's id is the same for every attempt, and another one when a file is put back as it was.
        job.emit(watch.event_type, {**payload, **facts}, dedupe_key=f"file_watch:{job.id}:{len(job.events)}")
    return {"path": watch.path, "strategy": watch.strategy, "mark": mark}


def health(job: Job) -> str:
    watches = configured(job)
    troubles = []
    for watch in watches:
        if not os.path.exists(os.path.dirname(watch.path)):
            troubles.append(f"{os.path.dirname(watch.path)} does not exist")
        elif os.path.lexists(watch.path) and not os.path.isfile(watch.path):
            troubles.append(f"{watch.path} is not a regular file")
        elif os.path.exists(watch.path) and not os.access(watch.path, os.R_OK):
            troubles.append(f"{watch.path} may not be read")
    if troubles:
        raise Failed("; ".join(troubles))
    return f"{len(watches)} files can be watched"


def configured(job: Job) -> list[Watch]:
    only_known(job.config, ("watches",))
    listed = setting(job.config, "watches", list)
    if not 0 < len(listed) <= MAX_WATCHES:
        raise Misconfigured(f"watches must have 1 to {MAX_WATCHES} entries, not {len(listed)}")
    watches = []
    for index, raw in enumerate(listed):
        if not isinstance(raw, dict):
            raise Misconfigured(f"watches[{index}] must be a mapping with `path`")
        watches.append(Watch(raw, f"watches[{index}]."))
    ids = [watch.id for watch in watches]
    if double := next((name for name in ids if ids.count(name) > 1), None):
        raise Misconfigured(f"watches: the id {double!r} is used twice")
    return watches


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


def moment(timestamp: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, timestamp)))


if __name__ == "__main__":
    run(poll=poll, health=health)
