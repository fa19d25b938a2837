"""Power cuts: a share of `scripts/torture power`, and cuts that lose or damage something are noticed."""

import random
import time
from pathlib import Path

import pytest
from attrs import evolve

from scripts.tortures.clients import Acknowledged
from scripts.tortures.power import LEDGER, Cuts, Options, Recorded, lay_out, record
from scripts.tortures.recording import SECTOR, Change, Disk, Kind
from scripts.tortures.shim import Unavailable

OPTIONS = Options(images=40, seed=7, seconds=4.0, lives=2, starts=0)
WAL = f"{LEDGER}-wal"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    try:
        return record(tmp_path_factory.mktemp("power"), OPTIONS)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.timeout(120)
def test_no_cut_loses_what_was_acknowledged(told: Recorded, tmp_path: Path) -> None:
    """Whatever a disk may hold after a cut is opened, is whole, and has every job that a caller knows of."""
    cuts = Cuts(told, OPTIONS, tmp_path)

    cuts.run()

    assert cuts.violations == {}
    assert cuts.required > 0, "nobody was told anything: the torture does not torture"
    assert {Kind.WRITE, Kind.SYNC, Kind.RENAME} <= {change.kind for change in told.changes}


def test_a_service_that_does_not_sync_is_found_out(told: Recorded, tmp_path: Path) -> None:
    """The same writes with the log never synced: acknowledged jobs are missing after some cuts."""
    careless = [change for change in told.changes if (change.kind, change.name) != (Kind.SYNC, WAL)]
    cuts = Cuts(evolve(told, changes=careless), evolve(OPTIONS, images=12), tmp_path)

    cuts.run()

    assert cuts.violations["acknowledged missing"]


def test_a_damaged_disk_is_found_out(told: Recorded, tmp_path: Path) -> None:
    """A page of the file has other bytes than were ever written."""
    disk = Disk()
    for change in told.changes:
        disk.follow(change)
    image = disk.whole()
    pages = bytearray(image[LEDGER])
    pages[4096 * 3 : 4096 * 4] = bytes(random.Random(1).randbytes(4096))
    lay_out({**image, LEDGER: bytes(pages)}, tmp_path / "data", shm=None)

    faults = list(Cuts(told, OPTIONS, tmp_path).faults(tmp_path, told.changes[-1].ended))

    assert {rule for rule, _ in faults} & {"corrupt", "half done"}


def test_a_job_that_nobody_wrote_is_missed(told: Recorded, tmp_path: Path) -> None:
    """An acknowledgement without a row."""
    last = told.changes[-1].ended
    forged = evolve(told, acknowledged=[*told.acknowledged, Acknowledged("never-written", "keep", last)])
    disk = Disk()
    for change in told.changes:
        disk.follow(change)
    lay_out(disk.whole(), tmp_path / "data", shm=b"\xff" * 512)

    faults = list(Cuts(forged, OPTIONS, tmp_path).faults(tmp_path, last))

    assert [(rule, fault.split()[0]) for rule, fault in faults] == [("acknowledged missing", "never-written")]


@pytest.mark.timeout(120)
def test_nobody_is_blamed_for_a_clock_that_was_set_after_the_recording(
    told: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service goes on where the recorded one ended; what was lost with its lives was lost with a reason."""
    disk, was, hour = Disk(), time.time_ns, 3_600_000_000_000
    for change in told.changes:
        disk.follow(change)
    lay_out(disk.whole(), tmp_path / "data", shm=None)
    monkeypatch.setattr(time, "time_ns", lambda: was() + hour)

    faults = list(Cuts(told, OPTIONS, tmp_path).go_on(tmp_path, told.deaths[-1].at))

    assert faults == []


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────────────


def change(kind: Kind, at: int = 0, data: bytes = b"", name: str = "a", file: int = 1) -> Change:
    return Change(0, 0, file, at, kind, name, data)


OLD, NEW = b"o" * (2 * SECTOR), b"n" * (2 * SECTOR)
MADE = [change(Kind.OPEN), change(Kind.SYNC, name="", file=0), change(Kind.WRITE, 0, OLD), change(Kind.SYNC)]


def images(*changes: Change) -> set[tuple[tuple[str, bytes], ...]]:
    """Everything that a thousand cuts leave."""
    disk = Disk()
    for one in changes:
        disk.follow(one)
    dice = random.Random(1)
    return {tuple(sorted(disk.image(dice).items())) for _ in range(1000)}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([*MADE], [OLD]),
        ([*MADE, change(Kind.WRITE, 0, NEW), change(Kind.SYNC)], [NEW]),
        ([*MADE, change(Kind.WRITE, 0, NEW)], [OLD, NEW, OLD[:SECTOR] + NEW[SECTOR:], NEW[:SECTOR] + OLD[SECTOR:]]),
        ([*MADE, change(Kind.TRUNCATE, SECTOR)], [OLD, OLD[:SECTOR]]),
        ([*MADE, change(Kind.WRITE, 2 * SECTOR, b"x")], [OLD, OLD + b"x"]),
        ([*MADE, change(Kind.WRITE, 3 * SECTOR, b"x")], [OLD, OLD + bytes(SECTOR) + b"x"]),
    ],
    ids=["synced", "synced twice", "not synced", "cut off", "longer", "longer, with a hole"],
)
def test_a_cut_keeps_what_was_synced_and_any_sectors_of_the_rest(changes: list[Change], left: list[bytes]) -> None:
    """Each sector is the old one or a new one; all of these happen, and nothing else does."""
    assert images(*changes) == {(("a", content),) for content in left}


@pytest.mark.parametrize(
    ("then", "names"),
    [
        ([], [{"a"}]),
        ([change(Kind.UNLINK)], [{"a"}, set()]),
        ([change(Kind.RENAME, data=b"b")], [{"a"}, {"b"}, set()]),
        ([change(Kind.RENAME, data=b"b"), change(Kind.SYNC, name="", file=0)], [{"b"}]),
        ([change(Kind.OPEN, name="b", file=2)], [{"a"}, {"a", "b"}]),
    ],
    ids=["as it was", "removed", "renamed", "renamed and synced", "another"],
)
def test_names_are_certain_only_when_the_directory_is_synced(then: list[Change], names: list[set[str]]) -> None:
    """Until then the first so many changes of names are there."""
    found = {frozenset(name for name, _ in image) for image in images(*MADE, *then)}

    assert found == {frozenset(one) for one in names}


def test_a_file_that_gets_the_number_of_a_removed_one_is_another_file() -> None:
    """File systems use inodes again; what was in the old one is not in the new one."""
    again = [change(Kind.UNLINK), change(Kind.OPEN, name="b"), change(Kind.SYNC, name="", file=0)]

    assert images(*MADE, *again) == {(("b", b""),)}
