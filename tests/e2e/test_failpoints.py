"""The core dies at every named place, once; the next one finds nothing lost, doubled or half done there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ductile.core.instance.failpoints import NAMES
from scripts.tortures.arena import build_actor
from scripts.tortures.failpoints import Passage, die

PASSAGES = [
    *(Passage(name) for name in sorted(NAMES)),
    Passage("enqueue.after_insert", 4),  # among the children of a fan-out
    Passage("record.after_status", 5),  # with retries among the endings
    Passage("record.after_children", 6),
    Passage("claim.after_commit", 7),
    Passage("commit.before", 30),  # under load; the first passage is on the way up
    Passage("commit.after", 30),
    Passage("schedule.after_insert", 3),  # with jobs of earlier slots in the queue
    Passage("schedule.after_commit", 3),
]


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_actor(tmp_path_factory.mktemp("actor"))


@pytest.mark.parametrize("passage", PASSAGES, ids=str)
def test_a_core_that_dies_there_loses_nothing_and_doubles_nothing(
    passage: Passage, tmp_path: Path, actor: Path
) -> None:
    """Whatever was going on at this place is wholly there after the next start, or not at all."""
    violations = die(tmp_path, passage, actor)

    assert {rule: found for rule, found in violations.items() if found} == {}


def test_a_failpoint_that_does_not_exist_is_refused() -> None:
    """A misspelt name must not look like a place that was survived."""
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
