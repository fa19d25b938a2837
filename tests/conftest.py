"""Rules for every test: repeatable random examples, and a marker for what the test needs."""

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
MARKERS = {
    "docs": ("docs", "test_docs.py", "test_deployment.py"),
    "service": ("e2e",),
    "process": ("cli", "devkit", "engine/process", "plugins", "scripts"),
}
"""Marker → the folders and files whose tests have it. A test without any of them is a unit test."""
PROCESS_EVENTS = frozenset(("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"))

# A slow example can be the result of a busy host.
LENIENT = (HealthCheck.too_slow,)
settings.register_profile("repeatable", derandomize=True, suppress_health_check=LENIENT)
settings.register_profile("other", derandomize=False, suppress_health_check=LENIENT)
settings.load_profile("other" if "DUCTILE_OTHER_EXAMPLES" in os.environ else "repeatable")

# Start plugins with the interpreter itself, not with a launcher that searches for one each time.
os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"


def marker_of(path: Path) -> str:
    """Return the marker of the tests in this file."""
    name = path.relative_to(TESTS).as_posix()
    for marker, prefixes in MARKERS.items():
        if any(name == prefix or name.startswith(f"{prefix}/") for prefix in prefixes):
            return marker
    return "unit"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(marker) for marker in MARKERS):
            item.add_marker(marker_of(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse to start processes while a unit test runs."""
    _running.is_unit = item.get_closest_marker("unit") is not None
    try:
        return (yield)
    finally:
        _running.is_unit = False


class _Running:
    is_unit = False


_running = _Running()


def _refuse_processes(event: str, _: tuple[Any, ...]) -> None:
    if _running.is_unit and event in PROCESS_EVENTS:
        raise RuntimeError(f"a unit test starts a process ({event}): mark it with @pytest.mark.process")


sys.addaudithook(_refuse_processes)
