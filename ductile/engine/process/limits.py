"""Resource limits of one plugin, set by a shell that then executes the plugin.

Plugins without configured limits are spawned directly. The service does not change its own limits around a spawn,
because that would affect its other threads.
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
    """`plugins.<name>.limits`: the resources that one run may use. Sizes in bytes; None inherits the limit."""

    address_space: int | None = _limit()
    open_files: int | None = _limit()
    processes: int | None = _limit()
    cpu_seconds: int | None = _limit()
    file_size: int | None = _limit()


def with_limits(argv: Sequence[str], limits: ResourceLimits | None) -> list[str]:
    """Return the command that runs `argv` under these limits, or `argv` if there are none."""
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
        steps.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")  # -u in bash, -p in dash
    if limits.cpu_seconds is not None:
        steps.append(f"ulimit -t {_allowed(limits.cpu_seconds, resource.RLIMIT_CPU)}")
    if limits.file_size is not None:
        blocks = -(-_allowed(limits.file_size, resource.RLIMIT_FSIZE) // _FILE_SIZE_BLOCK)
        steps.append(f"ulimit -f {blocks}")
    return steps


def _allowed(limit: int, kind: int) -> int:
    """Return the limit, capped at the service's hard limit, which only root can raise."""
    hard = resource.getrlimit(kind)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)
