#!/usr/bin/env python3
"""Read and write files in allowed folders. See README.md."""

from __future__ import annotations

import base64
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting
from safe_files import NO_LINK_FLAGS, append, parent_of, replace, require_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEYS = ("allowed_read_paths", "allowed_write_paths", "default_output_dir", "max_bytes")
MAX_EVENT_BYTES = 9 << 20  # a response is limited to 10 MiB


def handle(job: Job) -> str:
    only_known(job.config, KEYS)
    action = required_text(job, "action")
    if action == "read":
        return read(job)
    if action == "write":
        return write(job)
    raise Final(f"payload.action must be read or write, not {action!r}")


def read(job: Job) -> str:
    path = required_text(job, "path")
    max_bytes = setting(job.config, "max_bytes", int, 1 << 20)
    with (
        parent_of(path, allowed(job, "allowed_read_paths")) as (folder, name, full),
        open(os.open(name, os.O_RDONLY | NO_LINK_FLAGS, dir_fd=folder), "rb") as file,
    ):
        status = require_regular(os.fstat(file.fileno()), full)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise Final(f"{full} is larger than max_bytes ({max_bytes})")
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
            raise Final(f"{full} is not UTF-8 text; use encoding: base64") from None
    if len(json.dumps(payload, ensure_ascii=False).encode()) > MAX_EVENT_BYTES:
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


def target_of(job: Job) -> str:
    """Return the path to write: `path`, or `filename` in `output_dir` or the default folder."""
    path = job.payload.get("path") or job.payload.get("output_path")
    folder = job.payload.get("output_dir") or setting(job.config, "default_output_dir", default=None)
    if path:
        path = required_text(job, "path" if job.payload.get("path") else "output_path")
        if not path.startswith("/") and folder:
            path = os.path.join(os.path.abspath(checked_text(folder, "output_dir")), path)
        return path
    name = required_text(job, "filename")
    if "/" in name or name in (".", ".."):
        raise Final(f"payload.filename {name!r} must not contain a slash; use path")
    if not folder:
        raise Final("payload.output_dir is missing and default_output_dir is not configured")
    return os.path.join(os.path.abspath(checked_text(folder, "output_dir")), name)


def content_of(job: Job) -> bytes:
    """Return the first of `content`, `text` and `result` as bytes."""
    for key in ("content", "text", "result"):
        value = job.payload.get(key)
        if value is None:
            continue
        if encoding(job) == "base64":
            try:
                return base64.b64decode(checked_text(value, key), validate=True)
            except ValueError as error:
                raise Final(f"payload.{key} is not base64: {error}") from error
        return checked_text(value, key).encode("utf-8", "replace")
    raise Final("nothing to write: the payload has no content, text or result")


def encoding(job: Job) -> str:
    value = job.payload.get("encoding") or "utf-8"
    if value not in ("utf-8", "base64"):
        raise Final(f"payload.encoding must be utf-8 or base64, not {value!r}")
    return str(value)


def required_text(job: Job, key: str) -> str:
    value = job.payload.get(key)
    if value is None or value == "":
        raise Final(f"payload.{key} is missing")
    return checked_text(value, key)


def checked_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise Final(f"payload.{key} must be text, not {value!r:.80}")
    return value


def allowed(job: Job, key: str) -> list[str]:
    """Return the folders of `key` as absolute paths. They may contain symbolic links."""
    folders = setting(job.config, key, list, [])
    if not folders:
        raise Misconfigured(f"{key} is empty, so no folder is allowed")
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
                raise Failed(f"{key}: {folder} is not a folder with the required permissions")
            folders.append(folder)
    if not folders:
        raise Misconfigured("set allowed_read_paths or allowed_write_paths; without them no folder is allowed")
    return f"{len(folders)} folders are accessible"


if __name__ == "__main__":
    run(poll=handle, handle=handle, health=health)
