"""The configured watches and a scan of the files in a folder. `run.py` compares scans with the state."""

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
MAX_EVENTS = 1000  # in one response
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Watch:
    """One entry of `watches`, validated."""

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
        self.max_files = setting(raw, "max_files", int, 5000, minimum=1, where=where)
        self.max_events = min(MAX_EVENTS, setting(raw, "max_events", int, 500, minimum=1, where=where))

    def is_watched(self, path: str, name: str) -> bool:
        """Return True if a file in a searched folder is watched."""
        return (not self.included or matches(self.included, path)) and not self.is_excluded(path, name)

    def is_searched(self, path: str, name: str) -> bool:
        return self.recursive and not self.is_excluded(path, name)

    def is_excluded(self, path: str, name: str) -> bool:
        return (self.ignore_hidden and name.startswith(".")) or matches(self.excluded, path)

    def covers(self, path: str) -> bool:
        """Return True if a file at this path would be watched."""
        *folders, name = path.split("/")
        searched = (self.is_searched("/".join(folders[: depth + 1]), name) for depth, name in enumerate(folders))
        return all(searched) and self.is_watched(path, name)


class Scan:
    """The files in a folder now: stable files with their fingerprints, and paths that cannot be compared."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.files: dict[str, tuple[str, os.stat_result]] = {}
        self.unknown: set[str] = set()  # files, and folders with a trailing slash
        self.unstable = 0
        self.warnings: list[str] = []
        folders = [""]
        while folders:
            folders.extend(self._list(folders.pop()))

    def is_unknown(self, path: str) -> bool:
        parts = path.split("/")
        parents = ("/".join(parts[:depth]) + "/" for depth in range(len(parts)))
        return path in self.unknown or any(folder in self.unknown for folder in parents)

    def _list(self, folder: str) -> Iterator[str]:
        """Add the files of a folder and yield its subfolders, each with a trailing slash."""
        try:
            with os.scandir(os.path.join(self.watch.root, folder)) as entries:
                listed = list(entries)
        except FileNotFoundError:
            if not folder:
                raise
            return  # deleted during the scan
        except OSError as error:
            if not folder:
                raise
            self._skip(folder, error)
            return
        for entry in listed:
            path = folder + entry.name
            # Links are not followed: they could lead outside the folder or into cycles.
            if entry.is_dir(follow_symlinks=False):
                if self.watch.is_searched(path, entry.name):
                    yield f"{path}/"
            elif entry.is_file(follow_symlinks=False) and self.watch.is_watched(path, entry.name):
                self._add_file(path, entry)

    def _add_file(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            # ctime, because programs can set mtime.
            if abs(time.time() - status.st_ctime) < self.watch.min_stable_age:
                self.unknown.add(path)
                self.unstable += 1
                return
            text = content_hash(entry.path) if self.watch.by_content else f"{status.st_mtime_ns}:{status.st_size}"
        except FileNotFoundError:
            return
        except OSError as error:
            self._skip(path, error)
            return
        self.files[path] = (short_hash(text), status)

    def _skip(self, path: str, error: OSError) -> None:
        self.unknown.add(path)
        self.warnings.append(
            f"{displayed(os.path.join(self.watch.root, path))} cannot be read: {error.strerror or error}"
        )


def globs(patterns: list[Any], where: str) -> list[re.Pattern[str]]:
    """Compile globs: `*` and `?` do not match a slash, `**` does. A pattern without a slash matches the file name."""
    compiled = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise Misconfigured(f"{where} must be a list of patterns such as '*.csv', not {pattern!r}")
        parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern if "/" in pattern else f"**/{pattern}")
        regexes = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        compiled.append(re.compile("".join(regexes.get(part) or re.escape(part) for part in parts), re.DOTALL))
    return compiled


def matches(patterns: Iterable[re.Pattern[str]], path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in patterns)


def one_of(raw: dict[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    """Return one of the choices; the first is the default."""
    value: str = setting(raw, key, default=choices[0], where=where)
    if value not in choices:
        raise Misconfigured(f"{where}{key} must be {' or '.join(choices)}, not {value!r}")
    return value


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


def content_hash(path: str) -> str:
    # The file may have been replaced by a FIFO or a link since the folder was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    digest = hashlib.sha256()
    with open(descriptor, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def displayed(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def short_hash(text: str) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(digest).decode()
