"""`ductile system restore` with damaged and malicious archives."""

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from tests.cli.conftest import Run
from tests.cli.system.conftest import contents_of


def unpacked(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the files of a valid archive."""
    with tarfile.open(archive) as packed:
        members = {entry.name: packed.extractfile(entry).read() for entry in packed}  # type: ignore[union-attr]
    return json.loads(members.pop("MANIFEST.json")), members


def packed(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as zipped, tarfile.open(fileobj=zipped, mode="w") as target:
        content = json.dumps(manifest).encode()
        for entry, data in [(header("MANIFEST.json", content), content), *members]:
            target.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def header(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = len(content), kind
    return entry


def entries_of(members: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(header(name, content), content) for name, content in members.items()]


def entry_for(place: str, name: str, content: bytes) -> dict[str, Any]:
    digest = blake3(content).hexdigest()
    return {"name": name, "kind": "config", "place": place, "size": len(content), "blake3": digest}


def with_place(place: str) -> Callable[[dict[str, Any], dict[str, bytes]], bytes]:
    def build(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
        manifest["files"].append(entry_for(place, "config/extra", b"x"))
        return packed(manifest, [*entries_of(members), (header("config/extra", b"x"), b"x")])

    return build


def with_change(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], bytes]:
    def build(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
        content = bytearray(members[name])
        content[-1] ^= 1
        return packed(manifest, entries_of({**members, name: bytes(content)}))

    return build


def with_link(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    found = entries_of(members)
    found[1][0].type, found[1][0].linkname, found[1][0].size = tarfile.SYMTYPE, "/etc/passwd", 0
    return packed(manifest, found)


def with_an_extra_file(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, [*entries_of(members), (header("config/extra", b"x"), b"x")])


def with_a_repeated_name(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, [*entries_of(members), *entries_of(members)])


def without_a_file(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, entries_of(members)[:-1])


def without_a_manifest(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as target:
        for entry, data in entries_of(members):
            target.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def with_another_format(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed({**manifest, "format": 99}, entries_of(members))


def with_a_huge_size(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """A manifest and a header that claim an exabyte."""
    manifest["files"][0]["size"] = 1 << 60
    found = entries_of(members)
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as zipped:
        content = json.dumps(manifest).encode()
        with tarfile.open(fileobj=zipped, mode="w") as target:
            target.addfile(header("MANIFEST.json", content), io.BytesIO(content))
            found[0][0].size = 1 << 60
            zipped.write(found[0][0].tobuf(tarfile.GNU_FORMAT))
    return raw.getvalue()


def with_a_huge_header(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """An extended header of 4 GB, which must not be read into memory."""
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as zipped:
        bomb = tarfile.TarInfo("x")
        bomb.type, bomb.size = tarfile.XHDTYPE, 4 << 30
        zipped.write(bomb.tobuf(tarfile.USTAR_FORMAT))
        zipped.write(b"0" * (1 << 20))
    return raw.getvalue()


def with_nested_headers(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """Extended headers without an end."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 512
    return gzip.compress((info.tobuf(tarfile.USTAR_FORMAT) + b"12 path=aaa\n".ljust(512, b"\0")) * 3000)


def with_a_ledger_that_is_none(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    content = b"not a database" * 100
    entry = manifest["files"][0]
    assert entry["kind"] == "ledger"
    entry.update(size=len(content), blake3=blake3(content).hexdigest())
    return packed(manifest, entries_of({**members, "ledger.db": content}))


def with_a_damaged_ledger(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    content = bytearray(members["ledger.db"])
    content[5 * 4096 : 6 * 4096] = b"\xff" * 4096
    manifest["files"][0]["blake3"] = blake3(bytes(content)).hexdigest()
    return packed(manifest, entries_of({**members, "ledger.db": bytes(content)}))


def with_a_trigger(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """A ledger with a trigger."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(members["ledger.db"][:18] + b"\x01\x01" + members["ledger.db"][20:])  # no log in memory
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "INSERT INTO sqlite_schema VALUES ('trigger', 't', 'job_queue', 0,"
            " 'CREATE TRIGGER t AFTER UPDATE ON job_queue BEGIN DELETE FROM job_queue; END')"
        )
        db.commit()
        content = db.serialize()[:18] + b"\x02\x02" + db.serialize()[20:]
    manifest["files"][0].update(size=len(content), blake3=blake3(content).hexdigest())
    return packed(manifest, entries_of({**members, "ledger.db": content}))


def with_a_root_elsewhere(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed({**manifest, "root": "../config.yaml"}, entries_of(members))


def with_a_missing_root(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed({**manifest, "root": "other.yaml"}, entries_of(members))


INVALID_ARCHIVES: list[Callable[[dict[str, Any], dict[str, bytes]], bytes]] = [
    with_a_missing_root,
    with_place("../escaped"),
    with_place("a/../../escaped"),
    with_place("//etc/escaped"),
    with_place("a//b"),
    with_place("."),
    with_place(""),
    with_place("nul\0byte"),
    with_place(".pending"),
    with_place("data/state.db-wal"),
    with_place("config.yaml"),
    with_place("config.yaml/below"),
    with_change("config/config.yaml"),
    with_change("ledger.db"),
    with_link,
    with_an_extra_file,
    with_a_repeated_name,
    without_a_file,
    without_a_manifest,
    with_another_format,
    with_a_huge_size,
    with_a_huge_header,
    with_nested_headers,
    with_a_ledger_that_is_none,
    with_a_damaged_ledger,
    with_a_trigger,
    with_a_root_elsewhere,
    lambda manifest, members: b"not a gzip",
    lambda manifest, members: b"",
    lambda manifest, members: packed({"format": 1, "files": [{"name": 1}]}, []),
    lambda manifest, members: packed(manifest, entries_of(members))[:-2000],
]


@pytest.mark.parametrize("build", INVALID_ARCHIVES)
def test_an_invalid_archive_is_refused_and_nothing_is_written(
    run: Run, archive: Path, tmp_path: Path, build: Callable[[dict[str, Any], dict[str, bytes]], bytes]
) -> None:
    """Not even a temporary file."""
    archive.write_bytes(build(*unpacked(archive)))
    before = contents_of(tmp_path)

    answer = run(
        "system", "restore", archive, "--config-dir", tmp_path / "restored", "--outside", "--replace", "--json"
    )

    assert answer.exit_code in (1, 78), answer.stdout
    assert answer.json["code"] in ("archive_refused", "ledger_error", "file_refused"), answer.stdout
    assert contents_of(tmp_path) == before


def test_config_restore_refuses_an_invalid_archive_and_writes_nothing(
    run: Run, installed: Path, archive: Path, tmp_path: Path
) -> None:
    """It does not read the ledger in the archive, whose hash still has to match."""
    about_the_ledger = (with_a_ledger_that_is_none, with_a_damaged_ledger, with_a_trigger)
    manifest, members = unpacked(archive)
    before, wrong = contents_of(tmp_path), []
    for build in INVALID_ARCHIVES:
        if build not in about_the_ledger:
            archive.write_bytes(build(json.loads(json.dumps(manifest)), members))
            answer = run("config", "restore", archive, "--config-dir", installed, "--json")
            after = contents_of(tmp_path) | {archive.name: before[archive.name]}
            if (answer.exit_code, answer.json.get("code")) != (78, "file_refused") or after != before:
                wrong.append((build, answer.stdout))
    assert wrong == []


def test_a_valid_archive_built_by_these_helpers_is_accepted(run: Run, archive: Path, tmp_path: Path) -> None:
    """The invalid archives differ from it only in one point."""
    manifest, members = unpacked(archive)
    archive.write_bytes(packed(manifest, entries_of(members)))

    assert run("system", "restore", archive, "--config-dir", tmp_path / "restored").exit_code == 0
