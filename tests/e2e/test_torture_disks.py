"""Full and failing disks: a share of `scripts/torture disk` and `io`, with limits that cannot be kept."""

import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ductile.ledger.storage.open_file import open_reader
from scripts.tortures import bad_disk
from scripts.tortures.arena import Arena
from scripts.tortures.bad_disk import Failures, Fault
from scripts.tortures.clients import Caller
from scripts.tortures.full_disk import FullDisk, Options
from scripts.tortures.kill import Options as KillOptions
from scripts.tortures.kill import Torture
from scripts.tortures.recording import Change, Kind, read_changes
from scripts.tortures.shim import Shim, Unavailable
from tests.e2e.tortured import torture


@pytest.mark.timeout(120)
def test_a_failing_disk_ends_the_service_and_loses_nothing() -> None:
    """The only promise that is not kept is one that nobody can keep: to be gone before it happened."""
    done = torture("io", "--runs", "1", "--leniency", "0", "--seed", "5")

    assert done.broken == {"it ends at once": 1}, done.said
    assert done.code == 1
    assert done.summary["exit_seconds"]["max"] < 5.0


MAKE = """
import sys
from pathlib import Path
from ductile.ledger.storage.open_file import open_writer
open_writer(Path(sys.argv[1]))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["sync", "truncate"])
def test_a_new_ledger_is_whole_or_not_there_whatever_call_fails(tmp_path: Path, call: str) -> None:
    """The first call fails, the second, and so on, until one run meets no fault; no fault goes unnoticed."""
    try:
        shim = Shim.build(tmp_path, tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    ledger, log = tmp_path / "data" / "state.db", tmp_path / "log"
    for number in range(1, 100):
        environ = {**os.environ, **shim.failing(log, call, number, times=1)}
        done = subprocess.run([sys.executable, "-c", MAKE, str(ledger)], env=environ, capture_output=True, check=False)
        if not any(change.kind is Kind.FAILED for change in read_changes(log)):
            break
        assert b"LedgerError" in done.stderr, f"{call} {number} failed, and nobody heard of it"
        assert [path for path in ledger.parent.glob("*") if path.name.endswith(("-wal", "-journal"))] == []
        log.unlink()
        ledger.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert number > 2, "nothing failed: the library did not get between the ledger and its disk"
    with open_reader(ledger) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


FAILED = Change(0, 0, 0, 0, Kind.FAILED, "sync", b"")
WRITTEN = Change(1, 1, 1, 0, Kind.WRITE, "state.db", b"x")
COMMITTED = Change(1, 1, 1, 0, Kind.WRITE, "state.db-wal", struct.pack(">II16x", 3, 40))


@pytest.mark.parametrize(
    ("changes", "code", "ended", "broken"),
    [
        ([WRITTEN, FAILED], 1, 0.9, []),
        ([WRITTEN, FAILED, WRITTEN], 1, 0.9, []),
        ([FAILED, WRITTEN], 1, 0.9, ["nothing is begun after it"]),
        ([FAILED, COMMITTED], 1, 0.9, []),
        ([FAILED, COMMITTED, COMMITTED], 1, 0.9, ["nothing is begun after it"]),
        ([FAILED], 1, 1.1, ["it ends at once"]),
        ([FAILED], 0, 0.9, ["it ends as promised"]),
        ([WRITTEN], 0, 0.9, ["the failure comes"]),
    ],
)
def test_a_service_that_believes_a_failing_disk_is_noticed(
    tmp_path: Path, changes: list[Change], code: int, ended: float, broken: list[str]
) -> None:
    """Each promise on its own."""
    core: Any = SimpleNamespace(url="http://nobody", process=SimpleNamespace(returncode=code), said=[])
    failures = Failures(tmp_path, bad_disk.Options(1, 1), tmp_path)

    failures.judge(Fault("sync", 1, 1), core, changes, round(ended * 1e9))

    assert list(failures.violations) == broken


@pytest.mark.timeout(120)
def test_a_full_disk_refuses_and_the_service_comes_back_by_itself() -> None:
    """Nothing is acknowledged and lost; the only broken promise is that room is of use before it is there."""
    done = torture("disk", "--requests", "60", "--rounds", "2", "--leniency", "0")
    if done.code == os.EX_NOPERM:
        pytest.skip(done.said)

    assert done.broken == {"it comes back in time": 2}, done.said
    assert done.summary["answers_while_full"].get("503", 0) > 30, "the disk was not full: the torture does not torture"
    assert done.summary["back_seconds"]["max"] < 10.0


def test_without_a_disk_to_fill_it_says_so() -> None:
    """Exit 77 and why: no numbers are better than made-up ones."""
    done = torture("disk", environ={**os.environ, "PATH": "/nowhere"})

    assert (done.code, done.summary) == (os.EX_NOPERM, {})
    assert "not possible here" in done.said


@pytest.mark.parametrize(
    ("status", "headers", "rule"),
    [
        (503, {"retry-after": "5"}, None),
        (507, {"retry-after": "5"}, None),
        (503, {}, "refusals say when to come again"),
        (503, {"retry-after": "soon"}, "refusals say when to come again"),
        (500, {"retry-after": "5"}, "refusals say when to come again"),
    ],
)
def test_a_refusal_that_does_not_help_is_noticed(
    tmp_path: Path, status: int, headers: dict[str, str], rule: str | None
) -> None:
    """503 or 507, and when to come again."""

    class Answers(Caller):
        def post(self, plugin: str, number: int) -> tuple[int, dict[str, str], Any]:
            return status, headers, {}

    arena = Arena(tmp_path)
    disk = FullDisk(arena, Options(1, 1), random.Random(1), Torture(arena, KillOptions(1, 1)))
    disk._call(Answers.to("http://nobody"), disk.answers)

    assert list(disk.violations) == ([rule] if rule else [])
