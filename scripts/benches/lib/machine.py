"""The machine and the Python that the numbers depend on. Contains nothing that identifies the owner."""

import os
import platform
import sqlite3
import sysconfig
from collections.abc import Mapping
from typing import Any


def machine() -> dict[str, Any]:
    """Return the `machine` field of a line."""
    return {
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "python_is_optimised": is_optimised(sysconfig.get_config_vars()),
        "sqlite": sqlite3.sqlite_version,
        "load_before": round(os.getloadavg()[0], 2),
    }


def is_optimised(build: Mapping[str, Any]) -> bool | None:
    """Return whether this Python was built with profile-guided optimisation; None if that cannot be determined."""
    arguments = str(build.get("CONFIG_ARGS"))
    if "'--enable-optimizations" in arguments or "-fprofile-use" in str(build.get("PY_CORE_CFLAGS")):
        return True
    # `configure` always sets this variable. Distributions that optimise in their own way remove the build flags.
    return False if build.get("PGO_PROF_USE_FLAG") else None
