"""`ductile system backup` and `restore`."""

import errno
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from blake3 import blake3

from ductile.core.instance.lock import instance_lock
from ductile.ledger.storage.open_file import open_writer
from ductile.ops.backup import swap
from tests.cli.conftest import Run
from tests.cli.system.conftest import CONFIG, change, contents_of, create_ledger, leave_a_log, ledger_of


def test_a_backup_has_every_loaded_file_and_is_private(run: Run, installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"

    result = run("system", "backup", "--to", path, "--config", installed, "--json").json

    assert path.stat().st_mode & 0o777 == 0o600
    places = {one["place"]: one for one in result["files"]}
    expected = {"config.yaml", "tokens.yaml", "scopes/deploy.json", ".env", ".checksums", "plugins/echo/run"}
    assert expected <= places.keys()
    assert places["data/state.db"]["kind"] == "ledger"
    assert places["config.yaml"]["blake3"] == blake3((installed / "config.yaml").read_bytes()).hexdigest()
    assert result["ledger"]["rows"]["job_queue"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("scope", "kinds"),
    [
        ("db", {"ledger"}),
        ("config", {"ledger", "config"}),
        ("plugins", {"ledger", "config", "plugin"}),
        ("all", {"ledger", "config", "plugin", "env"}),
    ],
)
def test_each_backup_scope_extends_the_previous_one(
    run: Run, installed: Path, tmp_path: Path, scope: str, kinds: set[str]
) -> None:
    """Excluded files are listed."""
    result = run(
        "system", "backup", "--to", tmp_path / "b.tar.gz", "--scope", scope, "--config", installed, "--json"
    ).json

    assert {one["kind"] for one in result["files"]} == kinds
    assert bool(result["excluded"]) == (scope in ("config", "plugins"))


def test_a_backup_replaces_nothing_and_a_dry_run_writes_nothing(run: Run, installed: Path, archive: Path) -> None:
    content = archive.read_bytes()

    refused = run("system", "backup", "--to", archive, "--config", installed, "--json")
    other = archive.with_name("other.tar.gz")
    planned = run("system", "backup", "--to", other, "--dry-run", "--config", installed, "--json")

    assert (refused.exit_code, refused.json["code"]) == (2, "usage")
    assert archive.read_bytes() == content
    assert planned.exit_code == 0
    assert len(planned.json["files"]) == 9
    assert not other.exists()


def test_a_backup_excludes_itself(run: Run, installed: Path) -> None:
    result = run("system", "backup", "--to", installed / "plugins" / "b.tar.gz", "--config", installed, "--json").json

    assert [one["place"] for one in result["files"] if "b.tar.gz" in one["place"]] == []


def test_a_ledger_in_a_plugin_directory_is_backed_up_once_without_its_log(run: Run, home: Path, tmp_path: Path) -> None:
    (home / "config.yaml").write_text(CONFIG.replace("  - plugins\n", "  - .\n"))
    create_ledger(home)
    leave_a_log(home)
    assert ledger_of(home).with_name("state.db-wal").stat().st_size > 0

    result = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home, "--json").json

    assert [one["place"] for one in result["files"] if "state.db" in one["place"]] == ["data/state.db"]


def test_a_backup_names_the_damaged_ledger(run: Run, installed: Path, tmp_path: Path) -> None:
    """Not its temporary copy."""
    with ledger_of(installed).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)

    answer = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", installed)

    assert answer.exit_code == 78
    assert answer.stderr.startswith(f"error: {ledger_of(installed)}: damaged")


@pytest.mark.parametrize("target", ["/proc/b.tar.gz", "/sys/b.tar.gz"])
def test_a_dry_run_of_a_backup_checks_the_target(run: Run, installed: Path, target: str) -> None:
    assert run("system", "backup", "--to", target, "--dry-run", "--config", installed).exit_code != 0


def test_a_dry_run_of_a_backup_checks_the_ledger(run: Run, installed: Path, tmp_path: Path) -> None:
    """With the error of the real backup."""
    ledger_of(installed).write_bytes(b"not a ledger at all, although long enough to be looked at" * 100)

    planned, real = (
        run("system", "backup", "--to", tmp_path / "b.tar.gz", *trial, "--config", installed, "--json")
        for trial in (["--dry-run"], [])
    )

    assert planned.exit_code == real.exit_code != 0
    assert planned.json == real.json


def test_a_restored_directory_is_sealed_and_valid(run: Run, installed: Path, archive: Path, tmp_path: Path) -> None:
    """In another directory: relative paths and the seal are adapted."""
    target = tmp_path / "deep" / "restored"

    answer = run("system", "restore", archive, "--config-dir", target, "--json")

    assert answer.exit_code == 0, answer.stdout
    assert answer.json["warnings"] == []
    left = {name: content for name, content in contents_of(target).items() if "state.db" not in name and name[0] != "."}
    assert left.items() <= contents_of(installed).items()
    assert str(installed) not in (target / ".checksums").read_text()
    assert run("config", "check", "--strict", "--config", target).exit_code == 0
    assert run("system", "selfcheck", "--config", target).exit_code == 0
    assert (target / "plugins/echo/run").stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.rglob(".ductile-restore-*")) == []


def test_a_restore_below_its_source_has_no_warnings(run: Run, installed: Path, archive: Path) -> None:
    assert run("system", "restore", archive, "--config-dir", installed / "trial", "--json").json["warnings"] == []


def test_a_restore_keeps_a_symlink_to_its_target(run: Run, installed: Path, archive: Path, tmp_path: Path) -> None:
    link, real = tmp_path / "link", tmp_path / "elsewhere" / "real"
    real.mkdir(parents=True)
    link.symlink_to(real)

    for more in ([], ["--replace"]):
        answer = run("system", "restore", archive, "--config-dir", link, *more, "--json")
        assert answer.exit_code == 0, answer.stdout

    assert link.is_symlink()
    assert (real / "config.yaml").read_bytes() == (installed / "config.yaml").read_bytes()
    assert len(answer.json["kept"]) == 1


def test_a_failed_restore_is_rolled_back(run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also files outside the directory."""
    state = tmp_path / "state"
    (home / "config.yaml").write_text(CONFIG.replace("data/state.db", str(state / "state.db")))
    open_writer(state / "state.db").close()
    backup = tmp_path / "b.tar.gz"
    assert run("system", "backup", "--to", backup, "--config", home).exit_code == 0
    (home / "plugins.yaml").write_text("plugins: {}\n")
    before = contents_of(tmp_path)

    def refuse(*_: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(swap, "_exchange", refuse)
    answer = run("system", "restore", backup, "--replace", "--outside", "--config-dir", home)

    assert (answer.exit_code, answer.stderr.count("resource busy")) == (78, 1)
    after = {name: content for name, content in contents_of(tmp_path).items() if not name.endswith((".lock", ".pid"))}
    assert after == before


def test_a_dry_run_of_a_restore_writes_nothing(run: Run, archive: Path, tmp_path: Path) -> None:
    """It verifies the archive."""
    before = contents_of(tmp_path)

    answer = run("system", "restore", archive, "--config-dir", tmp_path / "restored", "--dry-run", "--json")

    assert answer.exit_code == 0
    assert answer.json["ledger"] == str(tmp_path / "restored" / "data" / "state.db")
    assert contents_of(tmp_path) == before
    assert not (tmp_path / "restored").exists()


def test_a_backup_excludes_and_lists_symlinks(run: Run, installed: Path, tmp_path: Path) -> None:
    (installed / "plugins" / "echo" / "secret").symlink_to("/etc/hostname")

    result = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", installed, "--json").json

    assert result["excluded"] == [f"{installed}/plugins/echo/secret: a link to /etc/hostname"]
    assert "plugins/echo/secret" not in {one["place"] for one in result["files"]}


def test_an_existing_target_is_replaced_only_with_replace_and_saved(run: Run, installed: Path, archive: Path) -> None:
    (installed / "config.yaml").write_text("broken: [")
    before = contents_of(installed)

    refused = run("system", "restore", archive, "--config-dir", installed, "--json")
    planned = run("system", "restore", archive, "--config-dir", installed, "--replace", "--dry-run", "--json")
    assert (refused.exit_code, refused.json["code"], planned.exit_code) == (1, "place_taken", 0)
    assert contents_of(installed) == before

    done = run("system", "restore", archive, "--config-dir", installed, "--replace", "--json").json
    (aside,) = map(Path, done["kept"])
    assert (aside / "config.yaml").read_text() == "broken: ["
    assert run("config", "check", "--config", installed).exit_code == 0


def test_a_db_archive_restores_only_the_ledger(run: Run, installed: Path, tmp_path: Path) -> None:
    change(installed, "INSERT INTO token_uses VALUES ('before', 'x')")
    run("system", "backup", "--to", tmp_path / "db.tar.gz", "--scope", "db", "--config", installed)
    leave_a_log(installed)

    refused = run("system", "restore", tmp_path / "db.tar.gz", "--config-dir", installed, "--json")
    done = run("system", "restore", tmp_path / "db.tar.gz", "--config-dir", installed, "--replace", "--json")

    assert refused.json["code"] == "place_taken"
    assert done.exit_code == 0, done.stdout
    with closing(sqlite3.connect(ledger_of(installed))) as db:
        assert db.execute("SELECT name FROM token_uses").fetchall() == [("before",)]
    with closing(sqlite3.connect(done.json["kept"][-1])) as db:
        assert db.execute("SELECT COUNT(*) FROM token_uses").fetchone() == (2,)


def test_a_restore_refuses_while_a_service_runs(run: Run, installed: Path, archive: Path) -> None:
    with instance_lock(installed / "data", ledger_of(installed), now=datetime.now(UTC)):
        before = contents_of(installed)
        answer = run("system", "restore", archive, "--config-dir", installed, "--replace", "--json")

        assert (answer.exit_code, answer.json["code"]) == (75, "already_running")
        assert contents_of(installed) == before


def test_files_outside_the_directory_are_restored_only_with_outside(run: Run, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "var"
    config = (home / "config.yaml").read_text()
    config = config.replace("data/state.db", str(outside / "state.db")).replace("- plugins\n", f"- {outside}/plugins\n")
    assert config.count(str(outside)) == 2, config
    (home / "config.yaml").write_text(config)
    shutil.copytree(home / "plugins", outside / "plugins")
    outside.chmod(0o700)
    open_writer(outside / "state.db").close()
    assert run("config", "lock", "--config", home).exit_code == 0
    assert run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home).exit_code == 0
    shutil.rmtree(outside)

    target = tmp_path / "restored"
    refused = run("system", "restore", tmp_path / "b.tar.gz", "--config-dir", target, "--json")
    assert (refused.exit_code, refused.json["code"]) == (1, "wrong_state")
    assert str(outside / "state.db") in refused.json["context"]["outside"]
    assert not outside.exists()
    assert not target.exists()

    done = run("system", "restore", tmp_path / "b.tar.gz", "--config-dir", target, "--outside", "--json")
    assert done.exit_code == 0, done.stdout
    assert done.json["ledger"] == str(outside / "state.db")
    assert (outside / "plugins/echo/run").exists()
    taken = run("system", "restore", tmp_path / "b.tar.gz", "--config-dir", tmp_path / "x", "--outside", "--json")
    assert taken.json["code"] == "place_taken"


def test_saved_plugin_files_are_not_part_of_the_plugin(run: Run, home: Path, tmp_path: Path) -> None:
    """Under strict_mode the restored plugin is usable."""
    outside = tmp_path / "plugins"
    (home / "plugins").rename(outside)
    text = (home / "config.yaml").read_text().replace("- plugins\n", f"- {outside}\n")
    (home / "config.yaml").write_text(text)
    assert run("config", "lock", "--config", home).exit_code == 0
    assert run("config", "set", "service.strict_mode=true", "--config", home).exit_code == 0
    assert run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", home).exit_code == 0
    (outside / "echo" / "run").write_text("broken")

    done = run("system", "restore", tmp_path / "b.tar.gz", "--config-dir", home, "--replace", "--outside", "--json")

    assert (done.exit_code, done.json["warnings"]) == (0, [])
    assert "broken" in [path.read_text() for path in map(Path, done.json["kept"]) if path.is_file()]
    assert run("config", "check", "--strict", "--config", home).exit_code == 0


@pytest.fixture
def config_archive(run: Run, installed: Path, tmp_path: Path) -> Path:
    path = tmp_path / "config.tar.gz"
    assert run("system", "backup", "--only", "config", "--to", path, "--config", installed).exit_code == 0
    return path


def test_an_archive_of_the_configuration_alone_creates_a_new_installation(
    run: Run, installed: Path, config_archive: Path, tmp_path: Path
) -> None:
    """It has no ledger. The first start creates one."""
    target = tmp_path / "restored"

    done = run("system", "restore", config_archive, "--config-dir", target, "--json").json

    assert (done["ledger"], done["outside"], done["kept"], done["warnings"]) == (None, [], [], [])
    files = {name: content for name, content in contents_of(installed).items() if not name.startswith("data/")}
    restored = contents_of(target)
    assert restored.keys() == files.keys()
    assert {name for name in files if files[name] != restored[name]} == {".checksums"}
    assert run("config", "check", "--strict", "--config", target).exit_code == 0


def test_an_archive_of_the_configuration_alone_replaces_no_ledger(
    run: Run, installed: Path, config_archive: Path
) -> None:
    """Only with --replace, while no service runs. The previous files are archived first."""
    ledger = ledger_of(installed).read_bytes()
    (installed / "plugins.yaml").write_text("plugins: {}\n")
    before = contents_of(installed)
    command = ["system", "restore", config_archive, "--config-dir", installed]

    refused = run(*command, "--json")
    planned = run(*command, "--replace", "--dry-run", "--json")
    with instance_lock(installed / "data", ledger_of(installed), now=datetime.now(UTC)):
        running = run(*command, "--replace", "--json")

    assert [answer.json.get("code") for answer in (refused, planned, running)] == [
        "place_taken",
        None,
        "already_running",
    ]
    changed = {name for name, content in contents_of(installed).items() if before.get(name) != content}
    assert {name for name in changed if not name.startswith("data/")} == set()

    done = run(*command, "--replace", "--json")

    assert (done.exit_code, done.json["warnings"]) == (0, []), done.stdout
    assert (installed / "plugins.yaml").read_text() != "plugins: {}\n"
    assert ledger_of(installed).read_bytes() == ledger
    with tarfile.open(done.json["kept"][0]) as saved:
        file = saved.extractfile("config/plugins.yaml")
        assert file is not None
        assert file.read() == b"plugins: {}\n"
    assert run("config", "check", "--strict", "--config", installed).exit_code == 0


def test_config_restore_of_a_full_archive_restores_the_configuration_and_keeps_the_ledger(
    run: Run, installed: Path, archive: Path
) -> None:
    change(installed, "INSERT INTO token_uses VALUES ('after', 'x')")
    (installed / "plugins" / "echo" / "run").write_text("broken")

    done = run("config", "restore", archive, "--config-dir", installed, "--json")

    assert (done.exit_code, done.json["files"]) == (0, ["plugins/echo/run"]), done.stdout
    with closing(sqlite3.connect(ledger_of(installed))) as db:
        assert db.execute("SELECT name FROM token_uses").fetchall() == [("after",)]


@pytest.mark.parametrize("scope", ["db", "config", "plugins"])
def test_config_restore_refuses_an_archive_with_an_incomplete_configuration(
    run: Run, installed: Path, tmp_path: Path, scope: str
) -> None:
    path = tmp_path / "b.tar.gz"
    run("system", "backup", "--scope", scope, "--to", path, "--config", installed)

    refused = run("config", "restore", path, "--config-dir", installed, "--json")

    assert (refused.exit_code, refused.json["code"]) == (78, "file_refused")
    assert "ductile system restore" in refused.json["hint"]
