#!/usr/bin/env python3
"""Reads and writes files below allowed folders. See README.md.

The way to a file is walked one folder at a time, from the open allowed folder, following no link. So there is no moment
between the question whether a path is allowed and its use.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import stat
import sys
import time
from contextlib import contextmanager, suppress

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

KEYS = ("allowed_read_paths", "allowed_write_paths", "default_output_dir", "max_bytes")
MOST_EVENT = 9 << 20  # an answer has room for 10 MiB, and content grows when it is written as JSON
MOST_PATH = 1000  # a deeper tree is more than many programs can walk, or remove
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def work(job: Job) -> str:
    only_known(job.config, KEYS)
    action = wanted(job, "action")
    if action == "read":
        return read(job)
    if action == "write":
        return write(job)
    raise Final(f"payload.action must be read or write, not {action!r}")


def read(job: Job) -> str:
    path = wanted(job, "path")
    most = setting(job.config, "max_bytes", int, 1 << 20)
    with (
        parent_of(path, allowed(job, "allowed_read_paths")) as (folder, name, full),
        open(os.open(name, os.O_RDONLY | NO_LINK, dir_fd=folder), "rb") as file,
    ):
        status = regular(os.fstat(file.fileno()), full)
        content = file.read(most + 1)
    if len(content) > most:
        raise Final(f"{full} has more than {most} bytes (max_bytes)")
    payload = {
        "path": full,
        "filename": name,
        "size": len(content),
        "modified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, status.st_mtime))),
        "source_type": "file",
    }
    if encoding(job) == "base64":
        payload["content_base64"] = base64.b64encode(content).decode()
    else:
        try:
            payload["text"] = content.decode()
        except UnicodeDecodeError:
            raise Final(f"{full} is not UTF-8 text; ask for it with encoding: base64") from None
    if len(json.dumps(payload, ensure_ascii=False).encode()) > MOST_EVENT:
        raise Final(f"{full} is too large for an event; lower max_bytes")
    job.emit("file.read", payload)
    return f"read {len(content)} bytes from {full}"


def write(job: Job) -> str:
    content = content_of(job)
    mode = job.payload.get("mode") or "overwrite"
    if mode not in ("overwrite", "append", "create"):
        raise Final(f"payload.mode must be overwrite, append or create, not {mode!r}")
    with parent_of(target_of(job), allowed(job, "allowed_write_paths"), make=True) as (folder, name, full):
        if mode == "append":
            append(folder, name, full, content)
        else:
            replace(folder, name, full, content, job.id, may_exist=mode == "overwrite")
    job.emit("file.written", {"path": full, "filename": name, "size": len(content)})
    return f"wrote {len(content)} bytes to {full}"


def append(folder: int, name: str, full: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK
    with open(os.open(name, flags, 0o644, dir_fd=folder), "ab") as file:
        if regular(os.fstat(file.fileno()), full).st_nlink > 1:
            raise Final(f"{full} has another name elsewhere (a hard link): it is not appended to")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(folder: int, name: str, full: str, content: bytes, job_id: str, *, may_exist: bool) -> None:
    """Readers see the old content or the new one, never half of it."""
    mode = None
    try:
        mode = regular(os.stat(name, dir_fd=folder, follow_symlinks=False), full).st_mode & 0o777
    except FileNotFoundError:
        pass
    else:
        if not may_exist:
            raise Final(f"{full} exists already (mode: create)")
    # Named after the job: what a killed attempt has left is found and replaced by the next one.
    draft = f".{job_id}.ductile"
    remove(folder, draft)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
    try:
        with open(os.open(draft, flags, 0o644 if mode is None else 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if may_exist:
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        remove(folder, draft)


def remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def parent_of(path: str, roots: list[str], *, make: bool = False) -> Iterator[tuple[int, str, str]]:
    """The open folder that holds `path`, the file's name in it, and the full path. Raises if it is not below a root."""
    if "\0" in path or path != path.encode("utf-8", "ignore").decode():
        raise Final("the path has a NUL or half a character in it")
    if len(path) > MOST_PATH:
        raise Final(f"the path has more than {MOST_PATH} characters")
    parts = path.split("/")
    if ".." in parts:
        raise Final(f"{path!r} contains `..`")
    full = os.path.normpath(path if path.startswith("/") else os.path.join(roots[0], path))
    root = next((root for root in roots if full.startswith(root.rstrip("/") + "/")), None)
    if root is None:
        raise Final(f"{full} is not below an allowed folder: {', '.join(roots)}")
    *folders, name = full[len(root) :].strip("/").split("/")
    descriptor = -1
    try:
        descriptor = os.open(root, FOLDER)
        for folder in folders:
            inner = step(descriptor, folder, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name, full
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # what O_NOFOLLOW says of a link
            raise Final(f"{full}: there is a symbolic link, or no folder, on the way") from error
        if error.errno in (errno.EISDIR, errno.ENXIO):  # a folder, a fifo that nobody reads
            raise Final(f"{full} is not a regular file") from error
        if error.errno == errno.ENAMETOOLONG:
            raise Final(f"{full[:300]}: {os.strerror(error.errno)}") from error
        raise Failed(f"{full}: {os.strerror(error.errno or 0)}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def step(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # somebody else has made it just now
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def regular(status: os.stat_result, full: str) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise Final(f"{full} is not a regular file")
    return status


def target_of(job: Job) -> str:
    """Where to write: `path`, or `filename` in `output_dir` or in the default folder."""
    path = job.payload.get("path") or job.payload.get("output_path")
    folder = job.payload.get("output_dir") or setting(job.config, "default_output_dir", default=None)
    if path:
        path = wanted(job, "path" if job.payload.get("path") else "output_path")
        if not path.startswith("/") and folder:
            path = os.path.join(os.path.abspath(text(folder, "output_dir")), path)
        return path
    name = wanted(job, "filename")
    if "/" in name or name in (".", ".."):
        raise Final(f"payload.filename {name!r} is not a plain name; use path")
    if not folder:
        raise Final("payload.output_dir is missing, and there is no default_output_dir")
    return os.path.join(os.path.abspath(text(folder, "output_dir")), name)


def content_of(job: Job) -> bytes:
    """The first of `content`, `text` and `result`."""
    for key in ("content", "text", "result"):
        value = job.payload.get(key)
        if value is None:
            continue
        if encoding(job) == "base64":
            try:
                return base64.b64decode(text(value, key), validate=True)
            except ValueError as error:
                raise Final(f"payload.{key} is not base64: {error}") from error
        return text(value, key).encode("utf-8", "replace")
    raise Final("there is nothing to write: the payload has no content, text or result")


def encoding(job: Job) -> str:
    value = job.payload.get("encoding") or "utf-8"
    if value not in ("utf-8", "base64"):
        raise Final(f"payload.encoding must be utf-8 or base64, not {value!r}")
    return str(value)


def wanted(job: Job, key: str) -> str:
    value = job.payload.get(key)
    if value is None or value == "":
        raise Final(f"payload.{key} is missing")
    return text(value, key)


def text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise Final(f"payload.{key} must be text, not {value!r:.80}")
    return value


def allowed(job: Job, key: str) -> list[str]:
    """The folders under `key`, as absolute paths; what they lead through is the operator's choice."""
    folders = setting(job.config, key, list, [])
    if not folders:
        raise Misconfigured(f"{key} is empty: nothing is allowed")
    if not all(isinstance(folder, str) and folder for folder in folders):
        raise Misconfigured(f"{key} must be a list of folders")
    return [os.path.abspath(folder) for folder in folders]


def health(job: Job) -> str:
    only_known(job.config, KEYS)
    setting(job.config, "max_bytes", int, 0)
    folders = []
    for key, needed in (("allowed_read_paths", os.R_OK | os.X_OK), ("allowed_write_paths", os.W_OK | os.X_OK)):
        if not job.config.get(key):
            continue
        for folder in allowed(job, key):
            if not os.path.isdir(folder) or not os.access(folder, needed):
                raise Failed(f"{key}: {folder} is not a folder that may be used so")
            folders.append(folder)
    if not folders:
        raise Misconfigured("neither allowed_read_paths nor allowed_write_paths is set: nothing is allowed")
    return f"{len(folders)} folders can be used"


if __name__ == "__main__":
    run(poll=work, handle=work, health=health)
