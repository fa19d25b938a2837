"""`ductile system doctor`."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ductile.config.files.atomic_write import PENDING_FILE, Replacement
from ductile.core.instance.lock import instance_lock
from ductile.engine.process.procfs import INSTANCE_MARKER, instance_of
from ductile.ledger.storage.open_file import open_writer
from tests.cli.conftest import Answer, Run
from tests.cli.system.conftest import (
    CONFIG,
    SICK,
    add_plugin,
    change,
    contents_of,
    leave_a_log,
    leave_free_pages,
    ledger_of,
)


def leave_an_edit(directory: Path) -> None:
    from ductile.config.files import atomic_write

    one = Replacement.of(directory / "config.yaml", (directory / "config.yaml").read_bytes() + b"# edited\n")
    (directory / PENDING_FILE).write_bytes(atomic_write._render_note([one]))
    (directory / PENDING_FILE).chmod(0o600)


def leave_a_socket(directory: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(directory / "data" / "ductile.sock"))


def leave_a_temporary_file(directory: Path) -> None:
    path = directory / ".config.yaml.0123456789ab.tmp"
    path.touch()
    os.utime(path, (time.time() - 86_400,) * 2)


def leave_a_restore(directory: Path) -> None:
    path = directory.parent / ".ductile-restore-abc12345"
    (path / "inside").mkdir(parents=True)
    os.utime(path, (time.time() - 86_400,) * 2)


def leave_a_restore_of_an_older_version(directory: Path) -> None:
    path = directory / ".restore-abcd1234"
    path.mkdir()
    os.utime(path, (time.time() - 86_400,) * 2)


REPAIRED: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("edit_unfinished", "finish_edit", leave_an_edit),
    ("permissions_open", "chmod", lambda directory: (directory / "tokens.yaml").chmod(0o644)),
    ("permissions_open", "chmod", lambda directory: (directory / "data").chmod(0o755)),
    ("permissions_open", "chmod", lambda directory: ledger_of(directory).chmod(0o666)),
    ("socket_stale", "remove_socket", leave_a_socket),
    ("log_left", "fold_log", leave_a_log),
    ("free_pages", "compact", leave_free_pages),
    ("temporary_left", "remove_temporary", leave_a_temporary_file),
    ("temporary_left", "remove_temporary", leave_a_restore),
    ("temporary_left", "remove_temporary", leave_a_restore_of_an_older_version),
]


def found(answer: Answer) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in answer.json["findings"]}


def test_the_doctor_finds_nothing_to_repair_in_a_new_installation(run: Run, installed: Path) -> None:
    """The cases below depend on it."""
    assert {one["repair"] for one in found(run("system", "doctor", "--config", installed, "--json")).values()} == {None}


@pytest.mark.parametrize(("name", "repair", "spoil"), REPAIRED)
def test_the_doctor_repairs_each_problem_once(
    run: Run, installed: Path, name: str, repair: str, spoil: Callable[[Path], Any]
) -> None:
    """Without --fix and with --dry-run nothing changes."""
    spoil(installed)
    before = contents_of(installed)

    seen = found(run("system", "doctor", "--config", installed, "--json"))[name]
    planned = found(run("system", "doctor", "--fix", "--dry-run", "--config", installed, "--json"))[name]
    assert (seen["outcome"], planned["outcome"], planned["repair"]) == ("found", "would_fix", repair)
    assert contents_of(installed) == before

    done = found(run("system", "doctor", "--fix", "--config", installed, "--json"))[name]
    assert done["outcome"] == "fixed", done
    assert name not in found(run("system", "doctor", "--fix", "--config", installed, "--json"))
    assert run("system", "selfcheck", "--config", installed).exit_code == 0


def test_the_doctor_does_not_repair_the_ledger_of_a_running_service(run: Run, installed: Path) -> None:
    leave_free_pages(installed)

    with instance_lock(installed / "data", ledger_of(installed), now=datetime.now(UTC)):
        held = found(run("system", "doctor", "--fix", "--config", installed, "--json"))["free_pages"]

    assert held["outcome"] == "held"
    assert "stop it" in held["reason"]


def test_the_doctor_ends_processes_of_a_dead_service(run: Run, installed: Path) -> None:
    """They are identified by their environment."""
    environ = {**os.environ, INSTANCE_MARKER: instance_of(ledger_of(installed))}
    with subprocess.Popen(["sleep", "600"], env=environ) as process:
        done = found(run("system", "doctor", "--fix", "--config", installed, "--json"))["processes_left"]

        assert done["outcome"] == "fixed"
        assert process.wait(30) == -9


def drop_the_seal(directory: Path) -> None:
    (directory / ".checksums").unlink()


def edit_behind_the_seal(directory: Path) -> None:
    with (directory / "plugins.yaml").open("a") as file:
        file.write("# changed\n")


def want_a_plugin(directory: Path) -> None:
    with (directory / "plugins.yaml").open("a") as file:
        file.write("  ghost: {}\n")


def break_the_ledger(directory: Path) -> None:
    ledger_of(directory).write_bytes(b"not a database" * 1000)


def lose_the_ledger(directory: Path) -> None:
    """Delete the ledger but leave its write-ahead log."""
    leave_a_log(directory)
    ledger_of(directory).unlink()


def fail_an_init(directory: Path) -> None:
    change(directory, "INSERT INTO plugin_inits VALUES ('echo', 'f', 'no key', '2026-01-01T00:00:00.000000Z')")


@pytest.mark.parametrize(
    ("name", "is_problem", "spoil"),
    [
        ("seal_missing", True, drop_the_seal),
        ("seal_stale", False, edit_behind_the_seal),
        ("seal_stale", True, lambda directory: (directory / "tokens.yaml").write_text("tokens: []\n")),
        ("config_invalid", True, lambda directory: (directory / "plugins.yaml").write_text("plguins: {}\n")),
        ("plugin_unusable", True, want_a_plugin),
        ("plugin_unwell", True, lambda directory: add_plugin(directory, "pump", SICK)),
        ("ledger_unusable", True, break_the_ledger),
        ("ledger_unusable", True, lose_the_ledger),
        ("init_failed", True, fail_an_init),
    ],
)
def test_problems_without_a_safe_repair_have_advice(
    run: Run, installed: Path, name: str, is_problem: bool, spoil: Callable[[Path], None]
) -> None:
    """`--fix` changes nothing; a problem exits 1."""
    spoil(installed)
    before = contents_of(installed)

    answer = run("system", "doctor", "--fix", "--config", installed, "--json")

    seen = found(answer)[name]
    assert (seen["outcome"], seen["repair"]) == ("found", None)
    assert seen["advice"]
    assert answer.exit_code == (1 if is_problem else 0)
    assert contents_of(installed) == before


@pytest.mark.parametrize("command", ["status", "selfcheck", "doctor", "backup"])
def test_a_ledger_with_only_its_log_is_an_error(run: Run, installed: Path, tmp_path: Path, command: str) -> None:
    lose_the_ledger(installed)
    target = ["--to", tmp_path / "b.tar.gz"] if command == "backup" else []

    answer = run("system", command, *target, "--config", installed)

    assert answer.exit_code in (1, 78)
    assert "missing or empty, but its log state.db-wal has data" in answer.stdout + answer.stderr


def test_a_failed_repair_has_advice(run: Run, installed: Path) -> None:
    (installed / PENDING_FILE).write_text("junk")
    (installed / PENDING_FILE).chmod(0o600)

    seen = found(run("system", "doctor", "--fix", "--config", installed, "--json"))["edit_unfinished"]

    assert seen["outcome"] == "failed"
    assert "or remove the file" in seen["reason"]


MODES_COUNT = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Run commands as root without its capabilities, so that file modes apply."""


@pytest.mark.skipif(bool(MODES_COUNT) and shutil.which("setpriv") is None, reason="root may write everywhere")
@pytest.mark.parametrize(
    ("name", "mode"), [(".", 0o500), ("state.db", 0o400), ("ductile.lock", 0o400), ("state.pid", 0o400)]
)
def test_the_doctor_names_files_that_a_start_cannot_write(installed: Path, name: str, mode: int) -> None:
    state = ledger_of(installed).parent
    for lock in ("ductile.lock", "state.pid"):
        (state / lock).touch(0o600)
    (state / name).chmod(mode)
    ductile = [*MODES_COUNT, sys.executable, "-m", "ductile", "system"]
    try:
        doctor = subprocess.run(
            [*ductile, "doctor", "--no-health", "--json", "--config", installed], capture_output=True
        )
        start = subprocess.run([*ductile, "start", "--config", installed], capture_output=True, text=True, timeout=30)
    finally:
        (state / name).chmod(0o700)
    (seen,) = (one for one in json.loads(doctor.stdout)["findings"] if one["name"] == "state_unwritable")
    assert (doctor.returncode, seen["severity"], seen["repair"]) == (1, "problem", None)
    assert str((state / name).resolve()) in seen["detail"]
    assert "mount" in seen["advice"]
    assert start.returncode != 0, start.stderr


def test_the_doctor_does_not_change_modes_of_shared_directories(run: Run, home: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "other-file").touch()
    (shared / "more.env").write_text("A=1\n")
    config = (home / "config.yaml").read_text()
    config = config.replace("data/state.db", f"{shared}/state.db").replace("- .env", f"- .env\n    - {shared}/more.env")
    (home / "config.yaml").write_text(config)
    open_writer(shared / "state.db").close()
    for path in (shared, shared / "more.env", home):
        path.chmod(0o755)

    answer = run("system", "doctor", "--fix", "--config", home, "--json")

    findings_open = [one for one in answer.json["findings"] if one["name"] == "permissions_open"]
    assert {one["outcome"] for one in findings_open} == {"found"}
    assert {one["detail"].partition(":")[0] for one in findings_open} == {
        str(shared),
        str(shared / "more.env"),
        str(home),
    }
    assert shared.stat().st_mode & 0o777 == 0o755


def test_the_doctor_does_not_change_modes_behind_a_symlink(run: Run, home: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.yaml"
    (home / "plugins.yaml").rename(shared)
    shared.chmod(0o644)
    (home / "plugins.yaml").symlink_to(shared)
    (home / "config.yaml").write_text(CONFIG + "service: {allow_symlinks: true}\n")

    by_name = found(run("system", "doctor", "--fix", "--config", home, "--json"))

    assert by_name["permissions_open"]["outcome"] == "found"
    assert shared.stat().st_mode & 0o777 == 0o644


def test_the_doctor_does_not_repair_a_file_that_is_not_a_ledger(run: Run, home: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "shared" / "hosts.db"
    hosts.parent.mkdir(mode=0o755)
    hosts.write_text("127.0.0.1 localhost\n")
    hosts.chmod(0o644)
    (home / "config.yaml").write_text(CONFIG.replace("data/state.db", str(hosts)))

    assert "ledger_unusable" in found(run("system", "doctor", "--fix", "--config", home, "--json"))
    assert (hosts.stat().st_mode & 0o777, hosts.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_the_doctor_reports_low_disk_space(run: Run, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(installed)
    fields = list(real)
    fields[4] = 10  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))

    assert "disk_low" in found(run("system", "doctor", "--config", installed, "--json", "--no-health"))
