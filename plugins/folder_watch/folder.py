"""What is watched, and what is there now. What was told, and what is to be told, is for run.py."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time

from ductile_plugin import Misconfigured, only_known, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

KEYS = (
    *("id", "root", "event_type", "recursive", "include_globs", "exclude_globs", "ignore_hidden", "strategy"),
    *("emit_mode", "emit_initial", "emit_deleted", "min_stable_age", "max_files", "max_events"),
)
MAX_EVENTS = 1000  # of an answer
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


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


def shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def short(text: str) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(digest).decode()
