"""`ductile config backup` and `restore`."""

import base64
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from ductile.ops.backup.manifest import MAX_CONFIG_FILES
from tests.cli.config.conftest import Config, Contents, contents
from tests.cli.conftest import Run


def test_a_backup_restores_the_same_bytes_to_any_directory(
    run: Run, config: Config, configured: Path, tmp_path: Path
) -> None:
    """All loaded files and plugins, with a seal for the new directory."""
    archive, other, before = tmp_path / "b.tar.gz", tmp_path / "other", contents(configured)
    assert config("backup", "--output", str(archive)).exit_code == 0
    assert archive.stat().st_mode & 0o777 == 0o600
    config("set", "service.log_level=error")
    (configured / "plugins/echo/run.sh").write_text("broken")

    back = config("restore", str(archive), "--json")
    away = run("config", "restore", archive, "--config-dir", other)

    assert (back.exit_code, away.exit_code) == (0, 0), back.stderr + away.stderr
    assert sorted(back.json["files"]) == ["config.yaml", "plugins/echo/run.sh"]
    saved_archive = contents(configured)
    saved = Path(back.json["saved"]).name
    assert {name: saved_archive[name] for name in before if name != ".checksums"} == {
        name: content for name, content in before.items() if name != ".checksums"
    }
    with tarfile.open(configured / saved) as replaced:
        file = replaced.extractfile("config/plugins/echo/run.sh")
        assert file is not None
        assert file.read() == b"broken"
    assert config("check", "--strict").exit_code == 0
    assert run("config", "check", "--strict", "--config", other).exit_code == 0


def test_a_configuration_with_files_outside_its_directory_can_be_restored(
    run: Run, config: Config, configured: Path
) -> None:
    """It is validated where relative paths have the same meaning, and leaves no temporary files."""
    shared = configured.parent / "shared"
    shared.mkdir(mode=0o700)
    (shared / "more.yaml").write_text("service: {name: shared}\n")
    (shared / "more.yaml").chmod(0o600)
    (configured / "plugins").rename(shared / "plugins")
    root = configured / "config.yaml"
    text = root.read_text().replace("include:\n", "include:\n  - ../shared/more.yaml\n", 1)
    root.write_text(text.replace("  - plugins\n", "  - ../shared/plugins\n"))
    config("lock")
    archive = configured.parent / "b.tar.gz"
    assert config("backup", "--output", str(archive)).exit_code == 0
    config("set", "service.log_level=error")

    back = config("restore", str(archive), "--json")

    assert back.exit_code == 0, back.stderr
    assert back.json["files"] == ["config.yaml"]
    assert config("check", "--strict").exit_code == 0
    assert list(configured.parent.rglob(".ductile-restore-*")) == []


KILLED_BEFORE_THE_SEAL = """\
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.ops.backup import restore_config
restore_config.seal_locked = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
restore_config.restore_configuration(Path(sys.argv[1]), Path(sys.argv[2]), now=datetime.now(UTC))
"""


FAILED_AFTER_THE_SEAL = """\
import sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.ops.backup import restore_config
seal = restore_config.seal_locked
def interrupted(*given, **named):
    seal(*given, **named)
    raise KeyboardInterrupt
restore_config.seal_locked = interrupted
restore_config.restore_configuration(Path(sys.argv[1]), Path(sys.argv[2]), now=datetime.now(UTC))
"""


def kill_a_restore(archive: Path, directory: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_THE_SEAL, archive, directory], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def killed(config: Config, configured: Path, tmp_path: Path) -> Contents:
    """The files before a restore that was killed after writing all files but before sealing."""
    archive = tmp_path / "b.tar.gz"
    config("set", "service.strict_mode=true")
    (configured / "plugins/echo/more.sh").write_text("exit 0\n")
    config("lock")
    config("backup", "--output", str(archive))
    config("set", "webhooks.listen=127.0.0.1:9999")
    (configured / "plugins/echo/more.sh").unlink()
    (configured / "plugins/echo/run.sh").write_text("#!/bin/sh\nexit 0\n")
    (configured / "plugins/echo/run.sh").chmod(0o750)
    config("lock")
    before = contents(configured)
    kill_a_restore(archive, configured)
    return before


def test_the_next_load_rolls_back_a_restore_that_was_killed_before_sealing(
    config: Config, configured: Path, killed: Contents
) -> None:
    """Sealing later could approve files that changed meanwhile."""
    assert config("check", "--strict").exit_code == 0
    after = contents(configured)
    assert {name for name in {*killed, *after} if after.get(name) != killed.get(name)} == {
        name for name in after if name.startswith("before-restore-")
    }
    assert (configured / "plugins/echo/run.sh").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("name", ["config.yaml", "tokens.yaml", "plugins/echo/manifest.yaml"])
def test_changes_after_a_killed_restore_are_not_approved(
    config: Config, configured: Path, killed: Contents, name: str
) -> None:
    """Under strict_mode this applies to every file, in the archive or not."""
    with (configured / name).open("a") as file:
        file.write("# another one\n")

    refused = config("check", "--json")

    assert refused.exit_code == 78
    assert {Path(one["file"]).name for one in refused.json["errors"]} == {Path(name).name}


def test_a_restore_that_fails_while_sealing_restores_content_and_modes(
    config: Config, configured: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "b.tar.gz"
    config("backup", "--output", str(archive))
    (configured / "webhooks.yaml").write_text("# other\n")
    (configured / "webhooks.yaml").chmod(0o640)
    script = FAILED_AFTER_THE_SEAL
    before = contents(configured)

    subprocess.run([sys.executable, "-c", script, archive, configured], capture_output=True, check=False)

    after = contents(configured)
    assert {name: after[name] for name in before} == before
    assert (configured / "webhooks.yaml").stat().st_mode & 0o777 == 0o640


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask of 0, as some containers have."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("noun", "to"), [("config", "--output"), ("system", "--to")])
def test_restored_files_are_private_regardless_of_the_umask(
    run: Run, configured: Path, tmp_path: Path, noun: str, to: str
) -> None:
    """Also new parent directories."""
    archive, place = tmp_path / "b.tar.gz", tmp_path / "far" / "away" / "home"
    assert run(noun, "backup", to, archive, "--config", configured).exit_code == 0

    assert run(noun, "restore", archive, "--config-dir", place).exit_code == 0

    assert run("config", "check", "--strict", "--config", place).exit_code == 0
    made = [tmp_path / "far", *(tmp_path / "far").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_restore_finishes_an_interrupted_edit_first(config: Config, configured: Path, tmp_path: Path) -> None:
    archive = tmp_path / "b.tar.gz"
    config("backup", "--output", str(archive))
    new = configured / "conf.d"
    content = base64.b64encode(b"# new\n").decode()
    note = {"files": [{"path": str(new / "new.yaml"), "mode": 0o600, "before": None, "content": content}]}
    (configured / ".pending").write_text(json.dumps(note))
    (configured / ".pending").chmod(0o600)

    assert config("restore", str(archive)).exit_code == 0

    assert (new / "new.yaml").read_text() == "# new\n"
    assert not (configured / ".pending").exists()


def test_dry_runs_of_backup_and_restore_write_nothing(config: Config, configured: Path, tmp_path: Path) -> None:
    archive, before = tmp_path / "b.tar.gz", contents(configured)
    assert "tokens.yaml" in config("backup", "--output", str(archive), "--dry-run", "--json").json["files"]
    assert not archive.exists()
    config("backup", "--output", str(archive))

    assert config("restore", str(archive), "--dry-run", "--json").json["files"] == []
    assert contents(configured) == before


def test_a_backup_never_replaces_a_file(config: Config, tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("mine")

    assert config("backup", "--output", str(tmp_path / "b.tar.gz")).exit_code == 2
    assert (tmp_path / "b.tar.gz").read_text() == "mine"


def entry(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), "config.yaml"
    return info, content


ROOT = entry("config.yaml", b"plugin_roots: [plugins]\n")
HOSTILE = {
    "a way out": ([ROOT, entry("../outside", b"x")], "is outside"),
    "an absolute name": ([ROOT, entry("/tmp/outside", b"x")], "is outside"),
    "a symbolic link": ([ROOT, entry("link", kind=tarfile.SYMTYPE)], "is a link"),
    "a hard link": ([ROOT, entry("link", kind=tarfile.LNKTYPE)], "is a link"),
    "a fifo": ([ROOT, entry("pipe", kind=tarfile.FIFOTYPE)], "is a link or a device"),
    "one file twice": ([ROOT, ROOT], "occurs twice"),
    "an edit to be finished": ([ROOT, entry(".pending", b"{}")], "is not allowed in an archive"),
    "no configuration": ([entry("readme", b"x")], "has no config.yaml"),
    "too large a file": ([ROOT, entry("big", bytes(10 * 1024 * 1024 + 1))], "has more than"),
    "too many files": ([ROOT, *(entry(f"f{number}") for number in range(MAX_CONFIG_FILES))], "entries"),
    "a ledger": ([ROOT, entry("data/state.db", b"x")], "would replace the ledger"),
    "the log of a ledger": ([ROOT, entry("data/state.db-wal", b"x")], "would replace the ledger"),
    "a ledger for elsewhere": (
        [entry("config.yaml", b"plugin_roots: [plugins]\nstate: {path: x.db}\n"), entry("x.db", b"x")],
        "would replace the ledger",
    ),
    "an invalid configuration": ([entry("config.yaml", b"servise: {}\n")], "did you mean 'service'?"),
    "another seal": (
        [ROOT, entry(".checksums", b"version: 2\nhashes: {/x/config.yaml: '00'}\n")],
        "seal of the archive",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malicious_or_damaged_archive_is_refused(config: Config, configured: Path, tmp_path: Path, name: str) -> None:
    """None of its files is written."""
    entries, reason = HOSTILE[name]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    before = contents(configured)

    answer = config("restore", str(tmp_path / "a.tar.gz"), "--json")

    assert (answer.exit_code, reason in answer.json["error"]) == (78, True), answer.stdout
    assert contents(configured) == before


def with_manifest(entries: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the entries of an archive as `config backup` writes it."""
    files = [
        {"name": info.name, "kind": "config", "place": info.name, "size": len(content), "blake3": digest(content)}
        for info, content in entries
    ]
    about = {"format": 1, "version": "1", "made_at": "2026", "scope": "only-config", "source": "/x"}
    manifest = json.dumps({**about, "root": "config.yaml", "files": files}).encode()
    return [entry("MANIFEST.json", manifest), *entries]


def digest(content: bytes) -> str:
    return blake3(content).hexdigest()


def test_a_malicious_archive_with_a_matching_manifest_is_refused(
    config: Config, configured: Path, tmp_path: Path
) -> None:
    """Each of the archives above. A file outside the directory is skipped: an archive of everything has such files."""
    before, wrong = contents(configured), {}
    for name in HOSTILE.keys() - {"an absolute name"}:
        entries, reason = HOSTILE[name]
        if entries[-1][0].type != tarfile.REGTYPE:
            reason = "does not match the manifest"
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            for info, content in with_manifest(entries):
                archive.addfile(info, io.BytesIO(content))

        answer = config("restore", str(tmp_path / "a.tar.gz"), "--json")

        if answer.exit_code != 78 or reason not in answer.json["error"] or contents(configured) != before:
            wrong[name] = answer.stdout
    assert wrong == {}


def test_a_truncated_archive_is_refused(config: Config, configured: Path, tmp_path: Path) -> None:
    archive, before = tmp_path / "b.tar.gz", contents(configured)
    config("backup", "--output", str(archive))
    whole = archive.read_bytes()
    for length in (len(whole) // 4, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        archive.write_bytes(whole[:length])

        answer = config("restore", str(archive), "--json")

        assert (answer.exit_code, answer.json["code"]) == (78, "file_refused"), (length, answer.stdout)
        assert contents(configured) == before


def test_config_backup_writes_the_archive_of_system_backup_only_config(
    run: Run, config: Config, configured: Path, tmp_path: Path
) -> None:
    """Without a ledger. Its files are the same, and so is what `config restore` makes of them."""
    one, other = tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"

    listed = config("backup", "--output", str(one), "--json").json["files"]
    made = run("system", "backup", "--only", "config", "--to", other, "--config", configured, "--json").json

    assert sorted(file["place"] for file in made["files"]) == listed
    assert (made["scope"], made["ledger"]) == ("only-config", None)
    members = []
    for path in (one, other):
        with tarfile.open(path) as archive:
            members.append({file.name: (file.size, file.mode) for file in archive if file.name != "MANIFEST.json"})
    assert members[0] == members[1]
    assert run("config", "restore", other, "--config-dir", tmp_path / "new").exit_code == 0
    assert run("config", "check", "--strict", "--config", tmp_path / "new").exit_code == 0


def test_only_and_scope_are_mutually_exclusive(run: Run, configured: Path, tmp_path: Path) -> None:
    answer = run(
        "system", "backup", "--only", "config", "--scope", "all", "--to", tmp_path / "b", "--config", configured
    )
    assert (answer.exit_code, "mutually exclusive" in answer.stderr) == (2, True)


def test_a_config_backup_lists_what_is_outside_the_directory(config: Config, configured: Path) -> None:
    shared = configured.parent / "shared"
    shared.mkdir(mode=0o700)
    (shared / "more.yaml").write_text("service: {name: shared}\n")
    (shared / "more.yaml").chmod(0o600)
    root = configured / "config.yaml"
    text = root.read_text().replace("include:\n", "include:\n  - ../shared/more.yaml\n", 1)
    root.write_text(text.replace("plugin_roots:\n", f"plugin_roots:\n  - {shared}/plugins\n"))

    listed = config("backup", "--dry-run", "--json").json

    assert sorted(listed["excluded"]) == [str(shared / "more.yaml"), str(shared / "plugins")]
    assert [name for name in listed["files"] if "shared" in name or "more" in name] == []


def test_a_config_backup_of_files_that_cannot_be_parsed_is_refused(config: Config, configured: Path) -> None:
    """A value that is invalid does not prevent it."""
    config_file = configured / "config.yaml"
    text = config_file.read_text()
    config_file.write_text(text + "servise: {}\n")
    invalid = config("backup", "--dry-run", "--json")
    config_file.write_text(text + "broken: [\n")
    broken = config("backup", "--dry-run", "--json")

    assert (invalid.exit_code, "plugins/echo/run.sh" in invalid.json["files"]) == (0, True)
    assert (broken.exit_code, broken.json["code"]) == (78, "config_invalid")


def headers(kind: bytes, size: int, count: int) -> bytes:
    """Build an archive that starts with nested extended headers."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, size
    content = b"12 path=aaa\n".ljust(min(size, 1 << 20), b"\0")
    return gzip.compress((info.tobuf(tarfile.USTAR_FORMAT) + content) * count)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize(("size", "count"), [(4 << 30, 1), (512, 3000)], ids=["large", "many"])
def test_archive_headers_cannot_exhaust_memory_or_recursion(
    config: Config, tmp_path: Path, kind: bytes, size: int, count: int
) -> None:
    (tmp_path / "a.tar.gz").write_bytes(headers(kind, size, count))

    assert "is not a readable tar.gz archive" in config("restore", str(tmp_path / "a.tar.gz"), "--json").json["error"]


def test_a_restore_saves_every_file_that_it_replaces(
    run: Run, config: Config, configured: Path, tmp_path: Path
) -> None:
    """Also files that the configuration did not include."""
    archive, other = tmp_path / "b.tar.gz", tmp_path / "other"
    config("backup", "--output", str(archive))
    (configured / "config.yaml").write_text("plugin_roots: [plugins]\n")
    (configured / "webhooks.yaml").write_text("# not included now\n")
    other.mkdir(mode=0o700)
    (other / "webhooks.yaml").write_text("# a note\n")

    answers = [
        config("restore", str(archive), "--json"),
        run("config", "restore", archive, "--config-dir", other, "--json"),
    ]

    for answer, text in zip(answers, [b"# not included now\n", b"# a note\n"], strict=True):
        assert answer.exit_code == 0, answer.stderr
        with tarfile.open(answer.json["saved"]) as saved_archive:
            file = saved_archive.extractfile("config/webhooks.yaml")
            assert file is not None
            assert file.read() == text


def test_a_config_backup_excludes_a_ledger_in_a_plugin_directory(config: Config, configured: Path) -> None:
    config("set", "state.path=plugins/state.db")
    for name in ("state.db", "state.db-wal"):
        (configured / "plugins" / name).write_bytes(b"x")

    names = config("backup", "--dry-run", "--json").json["files"]

    assert [name for name in names if "state.db" in name] == []


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08\x00junk"])
def test_a_file_that_is_not_an_archive_is_refused(config: Config, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)

    assert "is not a readable tar.gz archive" in config("restore", str(tmp_path / "a.tar.gz"), "--json").json["error"]
