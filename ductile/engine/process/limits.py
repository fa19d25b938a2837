"""Resource limits for one plugin, set by a shell that then becomes the plugin.

Only plugins whose configuration asks for limits pay for that shell; all others are spawned directly. The service
never changes its own limits around a spawn: its other threads would feel them.
"""

import resource
from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, optional

_SHELL = "/bin/sh"
_FILE_SIZE_BLOCK = 512
_KIB = 1024


def _limit() -> int | None:
    return field(default=None, validator=optional(ge(1)), kw_only=True)


@frozen
class ResourceLimits:
    """`plugins.<name>.limits`: what one run may use at most. Sizes in bytes; None leaves the limit of the service."""

    address_space: int | None = _limit()
    open_files: int | None = _limit()
    processes: int | None = _limit()
    cpu_seconds: int | None = _limit()
    file_size: int | None = _limit()


def limited(argv: Sequence[str], limits: ResourceLimits | None) -> list[str]:
    """The command that runs `argv` under these limits; unchanged where there are none."""
    steps = [] if limits is None else _ulimits(limits)
    return [_SHELL, "-c", " && ".join([*steps, 'exec "$@"']), argv[0], *argv] if steps else list(argv)


def _ulimits(limits: ResourceLimits) -> list[str]:
    steps = []
    if limits.address_space is not None:
        steps.append(f"ulimit -v {_allowed(limits.address_space, resource.RLIMIT_AS) // _KIB or 1}")
    if limits.open_files is not None:
        steps.append(f"ulimit -n {_allowed(limits.open_files, resource.RLIMIT_NOFILE)}")
    if limits.processes is not None:
        count = _allowed(limits.processes, resource.RLIMIT_NPROC)
        steps.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")  # bash says -u, dash says -p
    if limits.cpu_seconds is not None:
        steps.append(f"ulimit -t {_allowed(limits.cpu_seconds, resource.RLIMIT_CPU)}")
    if limits.file_size is not None:
        blocks = -(-_allowed(limits.file_size, resource.RLIMIT_FSIZE) // _FILE_SIZE_BLOCK)
        steps.append(f"ulimit -f {blocks}")
    return steps


def _allowed(asked: int, kind: int) -> int:
    """No more than the hard limit of the service, which an ordinary user could not raise."""
    hard = resource.getrlimit(kind)[1]
    return asked if hard == resource.RLIM_INFINITY else min(asked, hard)
