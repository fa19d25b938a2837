"""`scripts/torture power` at a small size; cuts that lose or damage something are detected."""

import random
import time
from pathlib import Path

import pytest
from attrs import evolve

from scripts.tortures.lib.clients import Acknowledgement
from scripts.tortures.lib.disk_images import SECTOR, Change, ChangeKind, RecordedDisk
from scripts.tortures.lib.fault_library import UnsupportedHost
from scripts.tortures.power import (
    ACKNOWLEDGED_MISSING,
    CORRUPT,
    INCOMPLETE,
    LEDGER,
    WAL,
    PowerOptions,
    PowerTorture,
    Recording,
    record,
    write_image,
)

OPTIONS = PowerOptions(images=40, seed=7, seconds=4.0, services=2, starts=0)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    try:
        return record(tmp_path_factory.mktemp("power"), OPTIONS)
    except UnsupportedHost as reason:
        pytest.skip(str(reason))


def replayed(recording: Recording) -> RecordedDisk:
    """Return the disk at the end of the recording."""
    disk = RecordedDisk()
    for change in recording.changes:
        disk.apply(change)
    return disk


@pytest.mark.timeout(120)
def test_no_cut_loses_what_was_acknowledged(recording: Recording, tmp_path: Path) -> None:
    """Every image opens, is intact, and has every acknowledged job."""
    test = PowerTorture(recording, OPTIONS, tmp_path)

    test.run()

    assert test.violations == {}
    assert test.required > 0, "nothing was acknowledged: the test tests nothing"
    assert {ChangeKind.WRITE, ChangeKind.SYNC, ChangeKind.RENAME} <= {change.kind for change in recording.changes}


def test_a_service_that_does_not_sync_is_detected(recording: Recording, tmp_path: Path) -> None:
    """Without the syncs of the write-ahead log, acknowledged jobs are missing after some cuts."""
    unsynced = [change for change in recording.changes if (change.kind, change.name) != (ChangeKind.SYNC, WAL)]
    test = PowerTorture(evolve(recording, changes=unsynced), evolve(OPTIONS, images=12), tmp_path)

    test.run()

    assert test.violations[ACKNOWLEDGED_MISSING]


def test_a_damaged_disk_is_detected(recording: Recording, tmp_path: Path) -> None:
    """A page of the database has other bytes than were written."""
    image = replayed(recording).current()
    pages = bytearray(image[LEDGER])
    pages[4096 * 3 : 4096 * 4] = bytes(random.Random(1).randbytes(4096))
    write_image({**image, LEDGER: bytes(pages)}, tmp_path / "data", shm=None)

    found = list(PowerTorture(recording, OPTIONS, tmp_path).check_ledger(tmp_path, recording.changes[-1].ended))

    assert {rule for rule, _ in found} & {CORRUPT, INCOMPLETE}


def test_an_acknowledged_job_without_a_row_is_detected(recording: Recording, tmp_path: Path) -> None:
    last = recording.changes[-1].ended
    missing = Acknowledgement("never-written", "keep", last)
    forged = evolve(recording, acknowledged=[*recording.acknowledged, missing])
    write_image(replayed(recording).current(), tmp_path / "data", shm=b"\xff" * 512)

    found = list(PowerTorture(forged, OPTIONS, tmp_path).check_ledger(tmp_path, last))

    assert [(rule, violation.split()[0]) for rule, violation in found] == [(ACKNOWLEDGED_MISSING, "never-written")]


@pytest.mark.timeout(120)
def test_a_wall_clock_that_is_set_after_the_recording_causes_no_violation(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deaths of the recorded services still excuse the attempts that were lost with them."""
    real_time_ns, hour = time.time_ns, 3_600_000_000_000
    write_image(replayed(recording).current(), tmp_path / "data", shm=None)
    monkeypatch.setattr(time, "time_ns", lambda: real_time_ns() + hour)

    found = list(PowerTorture(recording, OPTIONS, tmp_path).start_service(tmp_path, recording.ends[-1].at))

    assert found == []


# ── disk images ───────────────────────────────────────────────────────────────────────────────────────────────────────


def change(kind: ChangeKind, at: int = 0, data: bytes = b"", name: str = "a", file: int = 1) -> Change:
    return Change(0, 0, file, at, kind, name, data)


OLD, NEW = b"o" * (2 * SECTOR), b"n" * (2 * SECTOR)
SYNC_DIRECTORY = change(ChangeKind.SYNC, name="", file=0)
CREATED = [change(ChangeKind.OPEN), SYNC_DIRECTORY, change(ChangeKind.WRITE, 0, OLD), change(ChangeKind.SYNC)]


def images(*changes: Change) -> set[tuple[tuple[str, bytes], ...]]:
    """Return all images that a thousand cuts give."""
    disk = RecordedDisk()
    for one in changes:
        disk.apply(one)
    rng = random.Random(1)
    return {tuple(sorted(disk.image_after_cut(rng).items())) for _ in range(1000)}


@pytest.mark.parametrize(
    ("changes", "contents"),
    [
        ([*CREATED], [OLD]),
        ([*CREATED, change(ChangeKind.WRITE, 0, NEW), change(ChangeKind.SYNC)], [NEW]),
        (
            [*CREATED, change(ChangeKind.WRITE, 0, NEW)],
            [OLD, NEW, OLD[:SECTOR] + NEW[SECTOR:], NEW[:SECTOR] + OLD[SECTOR:]],
        ),
        ([*CREATED, change(ChangeKind.TRUNCATE, SECTOR)], [OLD, OLD[:SECTOR]]),
        ([*CREATED, change(ChangeKind.WRITE, 2 * SECTOR, b"x")], [OLD, OLD + b"x"]),
        ([*CREATED, change(ChangeKind.WRITE, 3 * SECTOR, b"x")], [OLD, OLD + bytes(SECTOR) + b"x"]),
    ],
    ids=["synced", "synced twice", "not synced", "truncated", "longer", "longer, with a hole"],
)
def test_a_cut_keeps_what_was_synced_and_any_later_sectors(changes: list[Change], contents: list[bytes]) -> None:
    """Each sector is old or new; all combinations occur, and no other content."""
    assert images(*changes) == {(("a", content),) for content in contents}


@pytest.mark.parametrize(
    ("later", "names"),
    [
        ([], [{"a"}]),
        ([change(ChangeKind.UNLINK)], [{"a"}, set()]),
        ([change(ChangeKind.RENAME, data=b"b")], [{"a"}, {"b"}, set()]),
        ([change(ChangeKind.RENAME, data=b"b"), SYNC_DIRECTORY], [{"b"}]),
        ([change(ChangeKind.OPEN, name="b", file=2)], [{"a"}, {"a", "b"}]),
    ],
    ids=["unchanged", "removed", "renamed", "renamed and synced", "another file"],
)
def test_a_name_is_durable_when_the_directory_is_synced(later: list[Change], names: list[set[str]]) -> None:
    """Of unsynced changes to the directory a prefix is kept."""
    found = {frozenset(name for name, _ in image) for image in images(*CREATED, *later)}

    assert found == {frozenset(one) for one in names}


def test_a_file_with_a_reused_inode_is_another_file() -> None:
    """The content of the removed file is not in the new one."""
    reused = [change(ChangeKind.UNLINK), change(ChangeKind.OPEN, name="b"), SYNC_DIRECTORY]

    assert images(*CREATED, *reused) == {(("b", b""),)}
