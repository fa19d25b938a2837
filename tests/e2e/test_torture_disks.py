"""`scripts/torture disk` and `io` at a small size, with time limits that cannot be met; each violation is detected."""

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
from scripts.tortures import disk, eio
from scripts.tortures.lib.clients import JobClient
from scripts.tortures.lib.disk_images import Change, ChangeKind, read_changes
from scripts.tortures.lib.fault_library import FaultLibrary, UnsupportedHost
from scripts.tortures.lib.harness import Harness
from scripts.tortures.lib.instance import Instance
from tests.e2e.torture_runs import run_torture


@pytest.mark.timeout(120)
def test_a_failing_disk_ends_the_service_and_loses_nothing() -> None:
    """The only violation is the time limit of zero seconds."""
    run = run_torture("io", "--runs", "1", "--leniency", "0", "--seed", "5")

    assert run.violations == {eio.EXITS_AT_ONCE: 1}, run.stderr
    assert run.exit_code == 1
    assert run.summary["exit_seconds"]["max"] < 5.0


CREATE_LEDGER = """
import sys
from pathlib import Path
from ductile.ledger.storage.open_file import open_writer
open_writer(Path(sys.argv[1]))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["sync", "truncate"])
def test_a_new_ledger_is_complete_or_missing_whichever_call_fails(tmp_path: Path, call: str) -> None:
    """The first call fails, then the second, and so on, until a run has no failure; each failure is reported."""
    try:
        library = FaultLibrary.build(tmp_path, tmp_path / "data")
    except UnsupportedHost as reason:
        pytest.skip(str(reason))
    ledger, log = tmp_path / "data" / "state.db", tmp_path / "log"
    command = [sys.executable, "-c", CREATE_LEDGER, str(ledger)]
    for number in range(1, 100):
        environ = {**os.environ, **library.failing(log, call, number, times=1)}
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        if not any(change.kind is ChangeKind.FAILED for change in read_changes(log)):
            break
        assert b"LedgerError" in done.stderr, f"{call} {number} failed without an error"
        assert [path for path in ledger.parent.glob("*") if path.name.endswith(("-wal", "-journal"))] == []
        log.unlink()
        ledger.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert number > 2, "no call failed: the fault injection library has no effect"
    with open_reader(ledger) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


FAILED = Change(0, 0, 0, 0, ChangeKind.FAILED, "sync", b"")
WRITTEN = Change(1, 1, 1, 0, ChangeKind.WRITE, "state.db", b"x")
COMMITTED = Change(1, 1, 1, 0, ChangeKind.WRITE, "state.db-wal", struct.pack(">II16x", 3, 40))


@pytest.mark.parametrize(
    ("changes", "code", "ended", "violated"),
    [
        ([WRITTEN, FAILED], 1, 0.9, []),
        ([WRITTEN, FAILED, WRITTEN], 1, 0.9, []),
        ([FAILED, WRITTEN], 1, 0.9, [eio.NO_NEW_TRANSACTION]),
        ([FAILED, COMMITTED], 1, 0.9, []),
        ([FAILED, COMMITTED, COMMITTED], 1, 0.9, [eio.NO_NEW_TRANSACTION]),
        ([FAILED], 1, 1.1, [eio.EXITS_AT_ONCE]),
        ([FAILED], 0, 0.9, [eio.EXIT_CODE_IS_RIGHT]),
        ([WRITTEN], 0, 0.9, [eio.FAILURE_HAPPENS]),
    ],
)
def test_a_service_that_trusts_a_failing_disk_is_detected(
    tmp_path: Path, changes: list[Change], code: int, ended: float, violated: list[str]
) -> None:
    """Each rule on its own."""
    service: Any = SimpleNamespace(url="http://ready", process=SimpleNamespace(returncode=code), stderr=[])
    test = eio.EioTorture(tmp_path, eio.EioOptions(1, 1), tmp_path)

    test.check_service(eio.DiskFault("sync", 1, 1), service, changes, round(ended * 1e9))

    assert list(test.violations) == violated


@pytest.mark.timeout(120)
def test_a_service_with_a_full_disk_refuses_requests_and_resumes() -> None:
    """Nothing acknowledged is lost; the only violation is the time limit of zero seconds."""
    run = run_torture("disk", "--requests", "60", "--rounds", "2", "--leniency", "0")
    if run.exit_code == os.EX_NOPERM:
        pytest.skip(run.stderr)

    assert run.violations == {disk.RESUMES_IN_TIME: 2}, run.stderr
    assert run.summary["responses_while_full"].get("503", 0) > 30, "the disk was not full: the test tests nothing"
    assert run.summary["resume_seconds"]["max"] < 10.0


def test_a_host_that_cannot_mount_a_disk_is_reported() -> None:
    """Exit code 77 with the reason, and no summary."""
    run = run_torture("disk", environ={**os.environ, "PATH": "/nowhere"})

    assert (run.exit_code, run.summary) == (os.EX_NOPERM, {})
    assert "not possible here" in run.stderr


@pytest.mark.parametrize(
    ("status", "headers", "rule"),
    [
        (503, {"retry-after": "5"}, None),
        (507, {"retry-after": "5"}, None),
        (503, {}, disk.RETRY_AFTER),
        (503, {"retry-after": "soon"}, disk.RETRY_AFTER),
        (500, {"retry-after": "5"}, disk.RETRY_AFTER),
    ],
)
def test_a_wrong_refusal_is_detected(tmp_path: Path, status: int, headers: dict[str, str], rule: str | None) -> None:
    """A refusal is 503 or 507 with Retry-After."""

    class FixedResponse(JobClient):
        def post(self, plugin: str, number: int) -> tuple[int, dict[str, str], Any]:
            return status, headers, {}

    instance = Instance(tmp_path)
    test = disk.FullDiskTorture(instance, disk.DiskOptions(1, 1), random.Random(1), Harness(instance))
    test.post_job(FixedResponse.connect("http://localhost"), test.statuses)

    assert list(test.violations) == ([rule] if rule else [])
