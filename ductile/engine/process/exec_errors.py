"""Explain why the kernel cannot execute a file: error messages for the errno of `exec`.

Inspects the file without running or blocking on it. `start` uses it after a failed spawn, and before a spawn through
the shell that sets limits, because the shell would report the error as its own exit code.
"""

import errno
import os
import stat

_HEAD_BYTES = 256


def explain_exec_error(path: str, code: int) -> str:
    """Return one sentence for the operator: what is wrong with the entrypoint or the host, and what to do."""
    match code:
        case errno.ENOENT if os.path.lexists(path):
            return f"{path}: {_interpreter_missing(path)}"
        case errno.ENOENT:
            return f"{path}: no such file; was the plugin moved or deleted?"
        case errno.EACCES:
            return f"{path}: {_not_permitted(path)}"
        case errno.ENOEXEC:
            return f"{path}: neither a program nor a script with a #! line; begin it with one, such as #!/bin/sh"
        case errno.ETXTBSY:
            return f"{path}: still open for writing by another process"
        case errno.E2BIG:
            return f"{path}: its environment is too large for the kernel; pass fewer or shorter variables"
        case errno.EMFILE | errno.ENFILE:
            return f"{path}: no file descriptor is free; raise the open files limit of the service"
        case errno.EAGAIN | errno.ENOMEM:
            return f"{path}: the host cannot start another process ({os.strerror(code)})"
    return f"{path}: {os.strerror(code)}"


def predict_exec_error(path: str) -> int | None:
    """Return the errno that `exec` would fail with, or None if no error is expected."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        return error.errno
    if not is_file or not os.access(path, os.X_OK):
        return errno.EACCES
    head = _head(path)
    if not head.startswith(b"#!"):
        return None if head.startswith(b"\x7fELF") or not head else errno.ENOEXEC
    interpreter = _interpreter(head)
    if not os.path.exists(interpreter):
        return errno.ENOENT
    return None if os.access(interpreter, os.X_OK) else errno.EACCES


def _interpreter_missing(path: str) -> str:
    interpreter = _interpreter(_head(path))
    if interpreter.endswith("\r"):
        return "its #! line ends with a carriage return; save the file with Unix line endings"
    if interpreter:
        return f"its interpreter {interpreter} does not exist; install it or correct the #! line"
    return "a file it needs to start (such as its dynamic loader) does not exist"


def _not_permitted(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"not reachable ({error.strerror})"
    if stat.S_ISDIR(mode):
        return "is a directory, not a program"
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    if not os.access(path, os.X_OK):
        return "is not executable; run chmod +x on it"
    return "cannot be executed; check its interpreter and whether its file system is mounted with noexec"


def _interpreter(head: bytes) -> str:
    """Return the path in the #! line. A trailing carriage return is part of it, as it is for the kernel."""
    if not head.startswith(b"#!"):
        return ""
    line = head[2:].split(b"\n", 1)[0].strip(b" \t")
    return os.fsdecode(line.replace(b"\t", b" ").split(b" ", 1)[0])


def _head(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
