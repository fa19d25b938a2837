"""A service dies at every failpoint once; the next one finds nothing lost, repeated or incomplete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.tortures.failpoints import JOB_FAILPOINTS, Passage, die
from scripts.tortures.lib.instance import build_plugin_program

PASSAGES = [
    *(Passage(name) for name in sorted(JOB_FAILPOINTS)),
    Passage("enqueue.after_insert", 4),  # among the children of one event
    Passage("record.after_status", 5),  # with retries among the completions
    Passage("record.after_children", 6),
    Passage("claim.after_commit", 7),
    Passage("commit.before", 30),  # under load; the first passage is during the start
    Passage("commit.after", 30),
    Passage("schedule.after_insert", 3),  # with jobs of earlier slots in the queue
    Passage("schedule.after_commit", 3),
]


@pytest.fixture(scope="module")
def plugin_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin_program(tmp_path_factory.mktemp("plugin"))


@pytest.mark.parametrize("passage", PASSAGES, ids=str)
def test_a_service_that_dies_at_a_failpoint_loses_nothing_and_repeats_nothing(
    passage: Passage, tmp_path: Path, plugin_program: Path
) -> None:
    """After the next start the interrupted work is complete or has left nothing."""
    violations = die(tmp_path, passage, plugin_program)

    assert {rule: found for rule, found in violations.items() if found} == {}


def test_an_unknown_failpoint_is_refused() -> None:
    """A misspelt name must not look like a failpoint that was survived."""
    environ = {**os.environ, "DUCTILE_FAILPOINT": "enqueue.after_lunch"}
    done = subprocess.run(
        [sys.executable, "-c", "import ductile.core.instance.failpoints"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "unknown failpoint 'enqueue.after_lunch'" in done.stderr
