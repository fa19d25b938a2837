"""Archives of older versions are restored: plain ones of `config backup`, and format 1 of `system backup`."""

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from blake3 import blake3

from ductile.core.files import FileRefused
from ductile.ledger.storage.open_file import open_writer
from ductile.ops.backup import archive
from ductile.ops.backup.archive import no_progress
from ductile.ops.backup.manifest import MAX_CONFIG_FILE_BYTES, ArchiveRefused
from ductile.ops.backup.restore import restore
from ductile.ops.backup.restore_config import restore_configuration

NOW = datetime(2026, 2, 8, tzinfo=UTC)
ROOT = b"include: [plugins.yaml]\nplugin_roots: [plugins]\nstate: {path: data/state.db}\n"
MANIFEST = b"manifest_spec: ductile.plugin\nmanifest_version: 1\nname: echo\nversion: 1.0.0\nprotocol: 2\n"
FILES = {
    "config.yaml": ROOT,
    "plugins.yaml": b"plugins: {}\n",
    "plugins/echo/manifest.yaml": MANIFEST + b"entrypoint: run\ncommands:\n  - {name: poll, type: write}\n",
    "plugins/echo/run": b"#!/bin/sh\n",
}
EXECUTABLE = "plugins/echo/run"


def add(target: tarfile.TarFile, name: str, content: bytes, mode: int = 0o600) -> None:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = len(content), mode, 1_760_000_000
    target.addfile(header, io.BytesIO(content))


def plain(path: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """Write the bytes of a `config backup` of version 0.1: the files of the directory, sorted by name."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=1_760_000_000) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as target,
    ):
        for name, content in sorted(files.items()):
            add(target, name, content, 0o700 if name == EXECUTABLE else 0o600)
    path.write_bytes(packed.getvalue())
    return path


def format_1(path: Path, ledger: bytes) -> Path:
    """Write the bytes of a `system backup` of version 0.1: a manifest of format 1, the ledger, then the files."""
    members = {"ledger.db": ledger} | {f"config/{name}": content for name, content in FILES.items()}
    manifest = {
        "format": 1,
        "version": "0.1.0",
        "made_at": "2025-10-09T08:53:20.000000Z",
        "scope": "all",
        "source": "/srv/ductile",
        "root": "config.yaml",
        "files": [
            {
                "name": name,
                "kind": "ledger" if name == "ledger.db" else "plugin" if "plugins/" in name else "config",
                "place": "data/state.db" if name == "ledger.db" else name.removeprefix("config/"),
                "size": len(content),
                "blake3": blake3(content).hexdigest(),
                "executable": name.endswith(EXECUTABLE),
            }
            for name, content in members.items()
        ],
        "schema_version": 2,
        "rows": {"job_queue": 0},
        "excluded": [],
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as target:
        add(target, "MANIFEST.json", json.dumps(manifest).encode())
        for name, content in members.items():
            add(target, name, content)
    return path


def by_config_restore(source: Path, directory: Path) -> None:
    restore_configuration(source, directory, now=NOW)


def by_system_restore(source: Path, directory: Path) -> None:
    restore(source, directory, now=NOW, progress=no_progress)


BOTH = pytest.mark.parametrize("restore_it", [by_config_restore, by_system_restore])


@BOTH
def test_a_plain_archive_restores_every_file_and_a_seal(
    tmp_path: Path, restore_it: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "restored"

    restore_it(plain(tmp_path / "old.tar.gz"), target)

    found = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in found.items() if name != ".checksums"} == FILES
    assert {name: path.stat().st_mode & 0o777 for name, path in found.items()} == {
        **dict.fromkeys((*FILES, ".checksums"), 0o600),
        EXECUTABLE: 0o700,
    }


@pytest.fixture
def ledger(tmp_path: Path) -> bytes:
    path = tmp_path / "made" / "state.db"
    with closing(open_writer(path)) as db:
        db.execute("INSERT INTO token_uses VALUES ('from the backup', 'x')")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def test_an_archive_of_format_1_restores_ledger_and_files(tmp_path: Path, ledger: bytes) -> None:
    target = tmp_path / "restored"

    by_system_restore(format_1(tmp_path / "old.tar.gz", ledger), target)

    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    with closing(sqlite3.connect(target / "data" / "state.db")) as db:
        assert db.execute("SELECT name FROM token_uses").fetchall() == [("from the backup",)]


def test_config_restore_takes_the_configuration_of_an_archive_of_format_1(tmp_path: Path, ledger: bytes) -> None:
    """The existing ledger is unchanged."""
    target = tmp_path / "restored"
    (target / "data").mkdir(parents=True, mode=0o700)
    (target / "data" / "state.db").write_bytes(b"the ledger in use")

    by_config_restore(format_1(tmp_path / "old.tar.gz", ledger), target)

    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    assert (target / "data" / "state.db").read_bytes() == b"the ledger in use"


def test_a_plain_archive_may_have_names_with_a_leading_dot(tmp_path: Path) -> None:
    """`tar -C DIRECTORY -czf FILE .` writes such names, and directories."""
    with tarfile.open(tmp_path / "old.tar.gz", "w:gz") as target:
        folder = tarfile.TarInfo("./plugins")
        folder.type = tarfile.DIRTYPE
        target.addfile(folder)
        for name, content in FILES.items():
            add(target, f"./{name}", content)

    by_config_restore(tmp_path / "old.tar.gz", tmp_path / "restored")

    assert (tmp_path / "restored" / EXECUTABLE).read_bytes() == FILES[EXECUTABLE]


@BOTH
def test_a_truncated_plain_archive_is_refused_and_nothing_is_written(
    tmp_path: Path, restore_it: Callable[[Path, Path], None]
) -> None:
    """Wherever it ends. The last bytes are the checksum and the length of gzip."""
    whole = plain(tmp_path / "old.tar.gz").read_bytes()
    accepted = []
    for length in range(0, len(whole), 16):
        (tmp_path / "old.tar.gz").write_bytes(whole[:length])
        try:
            restore_it(tmp_path / "old.tar.gz", tmp_path / "restored")
        except (FileRefused, ArchiveRefused):
            continue
        accepted.append(length)
    assert accepted == []
    assert [path.name for path in tmp_path.iterdir()] == ["old.tar.gz"]


def test_a_plain_archive_is_refused_before_a_large_file_is_read(tmp_path: Path) -> None:
    """The size in a header is compared with the limit. The content is not even in the archive."""
    header = tarfile.TarInfo("config.yaml")
    header.size = MAX_CONFIG_FILE_BYTES + 1
    (tmp_path / "old.tar.gz").write_bytes(gzip.compress(header.tobuf()))

    with (
        pytest.raises(ArchiveRefused, match="has more than"),
        archive.open_archive(tmp_path / "old.tar.gz", no_progress),
    ):
        pass
