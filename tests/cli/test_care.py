"""Care: status, selfcheck, doctor, storage, facts, backup and restore, as an operator meets them."""

import errno
import gzip
import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ductile.config.edit.atomic_write import PENDING_FILE, Replacement
from ductile.config.scopes import scopes_hash
from ductile.core.clock import to_text
from ductile.core.instance.lock import instance_lock
from ductile.engine.process.procfs import INSTANCE_MARKER, instance_of
from ductile.ledger.reports import disk_usage
from ductile.ledger.storage.open_file import open_writer
from ductile.ops import atomic_swap, findings
from tests.cli.conftest import Answer, Run

SICK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "the pump is dry", "retry": false}\'\n'


WELL = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "all is well"}\'\n'
CONFIG = """\
include:
  - plugins.yaml
  - tokens.yaml

environment_vars:
  include:
    - .env

plugin_roots:
  - plugins

state:
  path: data/state.db
"""
SCOPES = b'{"scopes": ["jobs:ro"]}'
TOKENS = "tokens:\n  - {name: deploy, key: '${DEPLOY_TOKEN}', scopes_file: scopes/deploy.json, scopes_hash: '%s'}\n"


@pytest.fixture
def place(run: Run, tmp_path: Path) -> Path:
    """The directory of a sealed configuration with a plugin, a token, its scopes and an `.env` file."""
    directory = tmp_path / "place"
    for folder in (directory, directory / "plugins", directory / "scopes"):
        folder.mkdir(mode=0o700)
    written = {
        "config.yaml": CONFIG.encode(),
        "plugins.yaml": b"plugins:\n  echo: {schedules: [{every: 1h}]}\n",
        "tokens.yaml": (TOKENS % scopes_hash(SCOPES)).encode(),
        ".env": b"DEPLOY_TOKEN=0123456789abcdef0123456789abcdef\n",
        "scopes/deploy.json": SCOPES,
    }
    for name, content in written.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o600)
    add_plugin(directory, "echo", WELL)
    answer = run("config", "lock", "--config", directory)
    assert answer.exit_code == 0, answer.stderr
    return directory


def ledger_of(directory: Path) -> Path:
    return directory / "data" / "state.db"


def make_ledger(directory: Path) -> Path:
    """A ledger as a first start leaves it."""
    path = ledger_of(directory)
    open_writer(path).close()
    return path


def change(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(ledger_of(directory))) as db, db:
        for statement in statements:
            db.execute(statement)


def add_plugin(directory: Path, name: str, script: str) -> None:
    folder = directory / "plugins" / name
    folder.mkdir(mode=0o700)
    (folder / "manifest.yaml").write_text(
        f"manifest_spec: ductile.plugin\nmanifest_version: 1\nname: {name}\nversion: 1.0.0\nprotocol: 2\n"
        "entrypoint: run\ncommands: {poll: {}, health: {}}\n"
    )
    (folder / "run").write_text(script)
    (folder / "run").chmod(0o700)


def tree_of(directory: Path) -> dict[str, bytes]:
    """Every file below, byte by byte, but for what SQLite keeps beside a ledger that somebody reads."""
    contents = {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
    return {
        path.relative_to(directory).as_posix(): content
        for path, content in contents.items()
        if not path.name.endswith("-shm") and (content or not path.name.endswith("-wal"))
    }


@pytest.fixture
def kept(place: Path) -> Path:
    """The same with a ledger."""
    make_ledger(place)
    return place


# ── status ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_tells_the_queue_the_breakers_the_last_runs_and_how_plugins_are(run: Run, kept: Path) -> None:
    """One look says whether all is well, and health commands leave no trace in the ledger."""
    answer = run("status", "--config", kept, "--json")

    assert answer.exit_code == 0, answer.stdout
    report = answer.json
    assert report["healthy"]
    assert report["queue"]["queued"] == 0
    assert report["breakers"] == report["last_runs"] == []
    assert [(one["plugin"], one["ok"]) for one in report["plugins"]] == [("echo", True)]
    with closing(sqlite3.connect(ledger_of(kept))) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (0,)


def test_a_plugin_that_is_not_well_makes_the_status_degraded_and_says_why(run: Run, kept: Path) -> None:
    """The name of the plugin and its own words are in the answer."""
    add_plugin(kept, "pump", SICK)

    answer = run("system", "status", "--config", kept)

    assert answer.exit_code == 1
    assert answer.stdout.startswith("System Status: DEGRADED")
    assert "pump: the pump is dry" in answer.stdout


def test_a_service_that_does_not_run_is_said_not_to(run: Run, kept: Path) -> None:
    """Exit code 0 says that nothing is wrong with what was looked at, and that one may start it."""
    answer = run("system", "status", "--config", kept)

    assert answer.exit_code == 0
    assert answer.stdout.startswith("System Status: HEALTHY, NOT RUNNING\n")
    assert "next: ductile system start" in answer.stdout
    assert run("system", "status", "--config", kept, "--json").json["running"] is False


def test_what_cannot_be_found_is_not_running_either(run: Run, tmp_path: Path) -> None:
    answer = run("system", "status", "--config", tmp_path / "nowhere", "--json")

    assert (answer.exit_code, answer.json["running"]) == (1, False)


def test_health_commands_are_not_run_when_nobody_wants_them(run: Run, kept: Path) -> None:
    """`--no-health` skips them."""
    add_plugin(kept, "pump", SICK)

    report = run("system", "status", "--config", kept, "--no-health", "--json").json

    assert report["healthy"]
    assert report["plugins"] == []


def test_a_plugin_that_hangs_is_given_up(run: Run, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A health command has a deadline of its own."""
    from ductile.ops import health

    monkeypatch.setattr(health, "HEALTH_TIMEOUT", timedelta(milliseconds=200))
    add_plugin(kept, "pump", "#!/bin/sh\nexec sleep 600\n")

    report = run("system", "status", "--config", kept, "--json").json

    (pump,) = [one for one in report["plugins"] if one["plugin"] == "pump"]
    assert not pump["ok"]
    assert pump["detail"] == "timed out after 200ms"


def test_a_health_command_leaves_no_process_behind(run: Run, kept: Path, tmp_path: Path) -> None:
    """Whatever it started and let go of is ended with it."""
    note = tmp_path / "pid"
    script = WELL.replace("cat >", f"setsid sh -c 'echo $$ >{note}; exec sleep 600' >{note}.out 2>&1 </dev/null &\n"
                          f"while ! test -s {note}; do :; done\ncat >")  # fmt: skip
    add_plugin(kept, "pump", script)

    assert run("system", "status", "--config", kept).exit_code == 0
    assert not Path(f"/proc/{int(note.read_text())}").exists()


def test_health_commands_run_although_the_parent_ignores_ended_children(run: Run, kept: Path) -> None:
    """An ignored SIGCHLD is inherited, and the kernel then reaps plugins before their end is seen."""
    add_plugin(kept, "pump", WELL)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        answer = run("system", "status", "--config", kept)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert answer.exit_code == 0


def test_a_health_command_runs_where_the_service_would_run_it(
    run: Run, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the operator is: relative paths of a plugin mean what they mean in a job."""
    add_plugin(kept, "pump", '#!/bin/sh\ncat >/dev/null\nprintf \'{"status": "ok", "result": "%s"}\' "$(pwd)"\n')
    monkeypatch.chdir(tmp_path)

    report = run("system", "status", "--config", kept, "--json").json

    (pump,) = [one for one in report["plugins"] if one["plugin"] == "pump"]
    assert pump["detail"] == str(kept)
    assert Path.cwd() == tmp_path


def test_a_configuration_that_cannot_be_used_is_degraded(run: Run, kept: Path) -> None:
    """And the first complaint is told."""
    (kept / "config.yaml").write_text("servcie: {}\n")

    report = run("system", "status", "--config", kept, "--json")

    assert report.exit_code == 1
    (check,) = [check for check in report.json["checks"] if check["name"] == "config_load"]
    assert "servcie" in check["detail"]


# ── selfcheck ───────────────────────────────────────────────────────────────────────────────────────────────────────

A_JOB = (
    "INSERT INTO job_queue (id, plugin, command, status, submitted_by, created_at, asked_at, root_job_id, open_jobs,"
    " tree_jobs, lane) VALUES ('j', 'echo', 'poll', 'queued', 't', '{now}', '{now}', 'j', 1, 1, 'echo')"
).format(now=to_text(datetime.now(UTC)))
BROKEN = [
    ("trees_counted", (A_JOB, "UPDATE job_queue SET open_jobs = 2, tree_jobs = 2")),
    ("trees_closed", (A_JOB, "UPDATE job_queue SET tree_completed_at = created_at")),
    ("jobs_rooted", (A_JOB, "UPDATE job_queue SET root_job_id = 'other', open_jobs = NULL, tree_jobs = NULL")),
    ("contexts_kept", (A_JOB, "UPDATE job_queue SET event_context_id = 'gone'")),
    ("endings_logged", (A_JOB, "UPDATE job_queue SET status = 'dead', started_at = created_at, lane = NULL,"
                        " completed_at = created_at, open_jobs = 0, tree_completed_at = created_at")),
    ("db_schema", ("DROP INDEX job_queue_lanes",)),
    ("db_schema", ("DROP VIEW job_attempts",)),
]  # fmt: skip


def test_a_sound_installation_passes_its_selfcheck_also_while_it_is_locked(run: Run, kept: Path) -> None:
    """Held by a service or not, the ledger is read whole, and nothing is changed."""
    with instance_lock(kept / "data", ledger_of(kept), now=datetime.now(UTC)):
        answer = run("system", "selfcheck", "--config", kept)

    assert answer.exit_code == 0, answer.stdout
    assert answer.stdout.startswith("Selfcheck: PASS")
    assert "held by process" in answer.stdout


@pytest.mark.parametrize(("invariant", "statements"), BROKEN)
def test_a_broken_invariant_fails_the_selfcheck(
    run: Run, kept: Path, invariant: str, statements: tuple[str, ...]
) -> None:
    """By name, with what breaks it, and exit code 1."""
    change(kept, *statements)

    answer = run("system", "selfcheck", "--config", kept, "--json")

    assert answer.exit_code == 1
    assert invariant in {check["name"] for check in answer.json["checks"] if not check["ok"]}


def test_the_ledger_is_checked_also_under_a_configuration_that_cannot_be_used(run: Run, kept: Path) -> None:
    """One broken thing does not hide another."""
    (kept / ".checksums").unlink()
    change(kept, "DROP VIEW job_attempts")

    answer = run("system", "selfcheck", "--config", kept, "--json")

    assert {check["name"] for check in answer.json["checks"] if not check["ok"]} == {"config_load", "db_schema"}


def test_a_damaged_page_fails_the_selfcheck(run: Run, kept: Path) -> None:
    """Bytes that are no page any more are found."""
    with ledger_of(kept).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)

    answer = run("system", "selfcheck", "--config", kept, "--json")

    assert answer.exit_code == 1
    assert "db_integrity" in {check["name"] for check in answer.json["checks"] if not check["ok"]}


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def leave_an_edit(directory: Path) -> None:
    from ductile.config.edit import atomic_write

    one = Replacement.of(directory / "config.yaml", (directory / "config.yaml").read_bytes() + b"# edited\n")
    (directory / PENDING_FILE).write_bytes(atomic_write._written([one]))
    (directory / PENDING_FILE).chmod(0o600)


def leave_a_socket(directory: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(directory / "data" / "ductile.sock"))


def leave_a_log(directory: Path) -> None:
    """What a service leaves that was killed."""
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode = WAL');"
        "db.execute(\"INSERT INTO token_uses VALUES ('x', 'y')\"); db.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, ledger_of(directory)], check=True)


def leave_free_pages(directory: Path) -> None:
    with closing(sqlite3.connect(ledger_of(directory), isolation_level=None)) as db:
        db.execute("CREATE TABLE much (text)")
        db.execute("INSERT INTO much VALUES (zeroblob(?))", (findings.FREE_BYTES + (1 << 20),))
        db.execute("DROP TABLE much")


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


def test_a_fresh_installation_has_nothing_to_repair(run: Run, kept: Path) -> None:
    """Otherwise the cases below would prove nothing."""
    assert {one["repair"] for one in found(run("system", "doctor", "--config", kept, "--json")).values()} == {None}


@pytest.mark.parametrize(("name", "repair", "spoil"), REPAIRED)
def test_what_the_doctor_can_repair_is_found_told_repaired_and_gone(
    run: Run, kept: Path, name: str, repair: str, spoil: Callable[[Path], Any]
) -> None:
    """Looking and a dry run change nothing; a repair does what it says, and has nothing to do the second time."""
    spoil(kept)
    before = tree_of(kept)

    seen = found(run("system", "doctor", "--config", kept, "--json"))[name]
    planned = found(run("system", "doctor", "--fix", "--dry-run", "--config", kept, "--json"))[name]
    assert (seen["outcome"], planned["outcome"], planned["repair"]) == ("found", "would_fix", repair)
    assert tree_of(kept) == before

    done = found(run("system", "doctor", "--fix", "--config", kept, "--json"))[name]
    assert done["outcome"] == "fixed", done
    assert name not in found(run("system", "doctor", "--fix", "--config", kept, "--json"))
    assert run("system", "selfcheck", "--config", kept).exit_code == 0


def test_a_repair_of_the_ledger_waits_until_the_service_does_not_run(run: Run, kept: Path) -> None:
    """It is held back, and the answer says what to do."""
    leave_free_pages(kept)

    with instance_lock(kept / "data", ledger_of(kept), now=datetime.now(UTC)):
        held = found(run("system", "doctor", "--fix", "--config", kept, "--json"))["free_pages"]

    assert held["outcome"] == "held"
    assert "stop it" in held["reason"]


def test_processes_of_a_dead_service_are_found_and_ended(run: Run, kept: Path) -> None:
    """They are known by what the service gave them, not by their names."""
    environ = {**os.environ, INSTANCE_MARKER: instance_of(ledger_of(kept))}
    with subprocess.Popen(["sleep", "600"], env=environ) as process:
        done = found(run("system", "doctor", "--fix", "--config", kept, "--json"))["processes_left"]

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
    """All but its log, which has the newest of what was acknowledged."""
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
def test_what_only_the_operator_can_put_right_is_named_with_advice(
    run: Run, kept: Path, name: str, is_problem: bool, spoil: Callable[[Path], None]
) -> None:
    """`--fix` leaves it alone; a problem makes the exit code 1."""
    spoil(kept)
    before = tree_of(kept)

    answer = run("system", "doctor", "--fix", "--config", kept, "--json")

    seen = found(answer)[name]
    assert (seen["outcome"], seen["repair"]) == ("found", None)
    assert seen["advice"]
    assert answer.exit_code == (1 if is_problem else 0)
    assert tree_of(kept) == before


@pytest.mark.parametrize("command", ["status", "selfcheck", "doctor", "backup"])
def test_a_ledger_of_which_only_the_log_is_left_is_not_one_that_was_never_made(
    run: Run, kept: Path, tmp_path: Path, command: str
) -> None:
    """A start refuses it, so nobody says that all is well, and a backup does not go without it."""
    lose_the_ledger(kept)
    target = ["--to", tmp_path / "b.tar.gz"] if command == "backup" else []

    answer = run("system", command, *target, "--config", kept)

    assert answer.exit_code in (1, 78)
    assert "missing or empty, but its log state.db-wal has data" in answer.stdout + answer.stderr


def test_a_repair_that_fails_says_what_to_do_then(run: Run, kept: Path) -> None:
    """The note of an edit may be damaged: no repair brings back what it said."""
    (kept / PENDING_FILE).write_text("junk")
    (kept / PENDING_FILE).chmod(0o600)

    seen = found(run("system", "doctor", "--fix", "--config", kept, "--json"))["edit_unfinished"]

    assert seen["outcome"] == "failed"
    assert "or remove the file" in seen["reason"]


MODES_COUNT = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Whoever may write everywhere is asked as somebody who may not."""


@pytest.mark.skipif(bool(MODES_COUNT) and shutil.which("setpriv") is None, reason="root may write everywhere")
@pytest.mark.parametrize(
    ("name", "mode"), [(".", 0o500), ("state.db", 0o400), ("ductile.lock", 0o400), ("state.pid", 0o400)]
)
def test_what_a_start_could_not_write_is_named_before_it_fails(kept: Path, name: str, mode: int) -> None:
    """The doctor and the start refuse the same file."""
    state = ledger_of(kept).parent
    for lock in ("ductile.lock", "state.pid"):
        (state / lock).touch(0o600)
    (state / name).chmod(mode)
    ductile = [*MODES_COUNT, sys.executable, "-m", "ductile", "system"]
    try:
        told = subprocess.run([*ductile, "doctor", "--no-health", "--json", "--config", kept], capture_output=True)
        start = subprocess.run([*ductile, "start", "--config", kept], capture_output=True, text=True, timeout=30)
    finally:
        (state / name).chmod(0o700)
    (seen,) = (one for one in json.loads(told.stdout)["findings"] if one["name"] == "state_unwritable")
    assert (told.returncode, seen["severity"], seen["repair"]) == (1, "problem", None)
    assert str((state / name).resolve()) in seen["detail"]
    assert "mount" in seen["advice"]
    assert start.returncode != 0, start.stderr


def test_a_folder_that_others_need_is_never_repaired(run: Run, place: Path, tmp_path: Path) -> None:
    """A ledger in a shared folder, and a file from elsewhere, are told; their modes are for the operator to change."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "of-somebody-else").touch()
    (shared / "more.env").write_text("A=1\n")
    config = (place / "config.yaml").read_text()
    config = config.replace("data/state.db", f"{shared}/state.db").replace("- .env", f"- .env\n    - {shared}/more.env")
    (place / "config.yaml").write_text(config)
    open_writer(shared / "state.db").close()
    for path in (shared, shared / "more.env", place):
        path.chmod(0o755)

    answer = run("system", "doctor", "--fix", "--config", place, "--json")

    told = [one for one in answer.json["findings"] if one["name"] == "permissions_open"]
    assert {one["outcome"] for one in told} == {"found"}
    assert {one["detail"].partition(":")[0] for one in told} == {str(shared), str(shared / "more.env"), str(place)}
    assert shared.stat().st_mode & 0o777 == 0o755


def test_what_a_link_leads_to_is_never_repaired(run: Run, place: Path, tmp_path: Path) -> None:
    """A file of the configuration may be a link to one that others must be able to read."""
    shared = tmp_path / "shared.yaml"
    (place / "plugins.yaml").rename(shared)
    shared.chmod(0o644)
    (place / "plugins.yaml").symlink_to(shared)
    (place / "config.yaml").write_text(CONFIG + "service: {allow_symlinks: true}\n")

    told = found(run("system", "doctor", "--fix", "--config", place, "--json"))

    assert told["permissions_open"]["outcome"] == "found"
    assert shared.stat().st_mode & 0o777 == 0o644


def test_a_file_that_is_no_ledger_is_never_repaired_as_one(run: Run, place: Path, tmp_path: Path) -> None:
    """`state.path` may name anything by mistake."""
    hosts = tmp_path / "shared" / "hosts.db"
    hosts.parent.mkdir(mode=0o755)
    hosts.write_text("127.0.0.1 localhost\n")
    hosts.chmod(0o644)
    (place / "config.yaml").write_text(CONFIG.replace("data/state.db", str(hosts)))

    assert "ledger_unusable" in found(run("system", "doctor", "--fix", "--config", place, "--json"))
    assert (hosts.stat().st_mode & 0o777, hosts.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_a_disk_that_is_nearly_full_is_told(run: Run, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how much is left."""
    real = os.statvfs(kept)
    fields = list(real)
    fields[4] = 10  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))

    assert "disk_low" in found(run("system", "doctor", "--config", kept, "--json", "--no-health"))


# ── storage ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_storage_tells_bytes_rows_growth_and_the_heaviest_jobs(run: Run, kept: Path) -> None:
    """Tables are sorted by what they take; what comes is told per day."""
    now = datetime.now(UTC)
    with closing(sqlite3.connect(ledger_of(kept))) as db, db:
        for number in range(100):
            at = to_text(now - timedelta(days=2, minutes=number))
            db.execute(
                "INSERT INTO job_log (id, job_id, plugin, command, status, result, attempt, submitted_by, created_at,"
                " completed_at, root_job_id, job_status, max_attempts) VALUES (?, ?, 'echo', 'poll', 'succeeded', ?, 1,"
                " 't', ?, ?, ?, 'succeeded', 4)",
                (f"{number}-1", str(number), "x" * 1000 * number, at, at, str(number)),
            )

    report = run("system", "storage", "--config", kept, "--json").json

    assert report["tables"][0]["name"] == "job_log"
    assert report["tables"][0]["rows"] == 100
    assert report["tables"][0]["bytes"] > 4_000_000
    assert 30 < report["tables"][0]["rows_per_day"] < 60
    assert [job["job_id"] for job in report["largest_jobs"]] == ["99", "98", "97", "96", "95"]
    assert report["forecast"]["bytes"] > report["bytes"]
    assert "job_log" in run("system", "storage", "--config", kept).stdout


def test_rows_that_are_soon_forgotten_come_as_fast_as_the_kept_ones_say(run: Run, kept: Path) -> None:
    """A table that keeps a day has a day's rows, not a week's; its size stays, and that is the forecast."""
    now = datetime.now(UTC)
    journal = "INSERT INTO journal (at, kind) VALUES (?, 'x')"
    job = A_JOB.replace("'j'", "?").replace("?, 'echo'", "?1, 'echo'").replace("?, 1, 1", "?1, 1, 1")
    with closing(sqlite3.connect(ledger_of(kept))) as db, db:
        db.execute(journal, (to_text(now - timedelta(days=6)),))
        db.execute(
            "INSERT INTO config_snapshots (id, config_hash, reason, loaded_at, sanitized_config) VALUES"
            " ('c', 'h', 'start', ?, '{\"service\": {\"job_queue_retention\": \"1d\"}}')",
            (to_text(now),),
        )
        for number in range(240):
            db.execute(job, (f"job-{number}",))

    report = run("system", "storage", "--config", kept, "--json").json

    (queue,) = [table for table in report["tables"] if table["name"] == "job_queue"]
    assert (queue["rows_per_day"], queue["kept_days"]) == (240.0, 1.0)
    assert report["forecast"]["bytes"] < report["bytes"] * 1.05


def test_without_dbstat_bytes_are_estimated_and_that_is_said(
    run: Run, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared out by rows."""
    change(kept, A_JOB)
    monkeypatch.setattr(disk_usage, "ROOM", "SELECT * FROM no_such_module")

    report = run("system", "storage", "--config", kept, "--json").json

    assert report["estimated"]
    assert sum(table["bytes"] for table in report["tables"]) <= report["bytes"]
    assert "estimated" in run("system", "storage", "--config", kept).stdout


def test_compacting_gives_room_back_and_says_how_much(run: Run, kept: Path) -> None:
    """A dry run says what to expect and leaves the file as it is."""
    leave_free_pages(kept)
    size = ledger_of(kept).stat().st_size

    planned = run("system", "storage", "compact", "--dry-run", "--config", kept, "--json").json
    assert ledger_of(kept).stat().st_size == size
    done = run("system", "storage", "compact", "--config", kept, "--json").json

    assert done["bytes_before"] == planned["bytes_before"] == size
    assert done["bytes_after"] == ledger_of(kept).stat().st_size < size - findings.FREE_BYTES
    assert run("system", "selfcheck", "--config", kept).exit_code == 0


def test_compacting_refuses_a_ledger_in_use(run: Run, kept: Path) -> None:
    """Only one writes; exit code 75."""
    with instance_lock(kept / "data", ledger_of(kept), now=datetime.now(UTC)):
        answer = run("system", "storage", "compact", "--config", kept, "--json")

    assert (answer.exit_code, answer.json["code"]) == (75, "already_running")


# ── facts and schedules ─────────────────────────────────────────────────────────────────────────────────────────────


def test_facts_are_shown_newest_first_and_by_type(run: Run, kept: Path) -> None:
    """What a plugin observed, as it said it."""
    fact = "INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, command, fact_json, created_at) VALUES "
    change(
        kept,
        fact + "(1, 'echo', 'seen', 'j1', 'poll', '{\"n\": 1}', '2026-01-01T00:00:00.000000Z')",
        fact + "(2, 'echo', 'lost', 'j2', 'poll', '{\"n\": 2}', '2026-01-02T00:00:00.000000Z')",
    )

    every = run("system", "plugin-facts", "echo", "--config", kept, "--json").json
    lost = run("system", "plugin-facts", "echo", "--fact-type", "lost", "--config", kept, "--json").json

    assert [one["fact"] for one in every["facts"]] == [{"n": 2}, {"n": 1}]
    assert [one["id"] for one in lost["facts"]] == [2]


def test_facts_of_an_unknown_plugin_are_not_found(run: Run, kept: Path) -> None:
    """A name that is neither configured nor installed is a mistake; one without facts is not."""
    answer = run("system", "plugin-facts", "ecko", "--config", kept, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert run("system", "plugin-facts", "echo", "--config", kept, "--json").json["facts"] == []


def test_the_scheduler_shows_jobs_of_schedules_that_are_not_over(run: Run, kept: Path) -> None:
    """Jobs that somebody else asked for are not among them."""
    change(kept, A_JOB, "UPDATE job_queue SET schedule_id = 'hourly'", A_JOB.replace("'j'", "'k'"))

    view = run("system", "scheduler", "--config", kept, "--json").json

    assert (view["service_name"], view["count"]) == ("ductile", 1)
    assert view["active_polls"][0]["job_id"] == "j"


# ── backup and restore ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def archive(run: Run, kept: Path, tmp_path: Path) -> Path:
    path = tmp_path / "backup.tar.gz"
    answer = run("system", "backup", "--to", path, "--config", kept)
    assert answer.exit_code == 0, answer.stderr
    return path


def test_a_backup_holds_everything_that_is_loaded_and_is_private(run: Run, kept: Path, tmp_path: Path) -> None:
    """Ledger, every file, seal, `.env`, scope files and plugins, each with its hash."""
    path = tmp_path / "backup.tar.gz"

    result = run("system", "backup", "--to", path, "--config", kept, "--json").json

    assert path.stat().st_mode & 0o777 == 0o600
    places = {one["place"]: one for one in result["files"]}
    expected = {"config.yaml", "tokens.yaml", "scopes/deploy.json", ".env", ".checksums", "plugins/echo/run"}
    assert expected <= places.keys()
    assert places["data/state.db"]["kind"] == "ledger"
    assert places["config.yaml"]["blake3"] == blake3((kept / "config.yaml").read_bytes()).hexdigest()
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
def test_each_scope_holds_what_the_one_before_holds_and_more(
    run: Run, kept: Path, tmp_path: Path, scope: str, kinds: set[str]
) -> None:
    """What is left out is named."""
    result = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--scope", scope, "--config", kept, "--json").json

    assert {one["kind"] for one in result["files"]} == kinds
    assert bool(result["excluded"]) == (scope in ("config", "plugins"))


def test_a_backup_replaces_nothing_and_a_dry_run_writes_nothing(run: Run, kept: Path, archive: Path) -> None:
    """An existing file is refused; what would be written is shown."""
    content = archive.read_bytes()

    refused = run("system", "backup", "--to", archive, "--config", kept, "--json")
    other = archive.with_name("other.tar.gz")
    planned = run("system", "backup", "--to", other, "--dry-run", "--config", kept, "--json")

    assert (refused.exit_code, refused.json["code"]) == (2, "usage")
    assert archive.read_bytes() == content
    assert planned.exit_code == 0
    assert len(planned.json["files"]) == 9
    assert not other.exists()


def test_a_backup_into_a_folder_that_is_backed_up_does_not_hold_itself(run: Run, kept: Path) -> None:
    """The copy of the ledger that lies beside the archive for a moment is not one of the plugins' files."""
    result = run("system", "backup", "--to", kept / "plugins" / "b.tar.gz", "--config", kept, "--json").json

    assert [one["place"] for one in result["files"] if "b.tar.gz" in one["place"]] == []


def test_a_ledger_among_the_plugins_is_taken_once_and_without_its_log(run: Run, place: Path, tmp_path: Path) -> None:
    """The copy has what the log has; beside the copy that log would be read as its own."""
    (place / "config.yaml").write_text(CONFIG.replace("  - plugins\n", "  - .\n"))
    make_ledger(place)
    leave_a_log(place)
    assert ledger_of(place).with_name("state.db-wal").stat().st_size > 0

    result = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", place, "--json").json

    assert [one["place"] for one in result["files"] if "state.db" in one["place"]] == ["data/state.db"]


def test_a_damaged_ledger_is_called_by_its_own_name(run: Run, kept: Path, tmp_path: Path) -> None:
    """Not by that of the copy in which the damage was found."""
    with ledger_of(kept).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)

    answer = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", kept)

    assert answer.exit_code == 78
    assert answer.stderr.startswith(f"error: {ledger_of(kept)}: damaged")


@pytest.mark.parametrize("target", ["/proc/b.tar.gz", "/sys/b.tar.gz"])
def test_a_trial_backup_says_when_nothing_can_be_written_there(run: Run, kept: Path, target: str) -> None:
    """What would fail fails."""
    assert run("system", "backup", "--to", target, "--dry-run", "--config", kept).exit_code != 0


def test_a_trial_backup_says_when_the_ledger_cannot_be_copied(run: Run, kept: Path, tmp_path: Path) -> None:
    """And so does the real one, with the same words."""
    ledger_of(kept).write_bytes(b"not a ledger at all, although long enough to be looked at" * 100)

    planned, real = (
        run("system", "backup", "--to", tmp_path / "b.tar.gz", *trial, "--config", kept, "--json")
        for trial in (["--dry-run"], [])
    )

    assert planned.exit_code == real.exit_code != 0
    assert planned.json == real.json


def test_a_restored_directory_is_sealed_sound_and_the_same(run: Run, kept: Path, archive: Path, tmp_path: Path) -> None:
    """In another place than it came from: relative paths stay right, and the seal says the same of the new place."""
    target = tmp_path / "deep" / "restored"

    answer = run("system", "restore", archive, "--config-dir", target, "--json")

    assert answer.exit_code == 0, answer.stdout
    assert answer.json["warnings"] == []
    left = {name: content for name, content in tree_of(target).items() if "state.db" not in name and name[0] != "."}
    assert left.items() <= tree_of(kept).items()
    assert str(kept) not in (target / ".checksums").read_text()
    assert run("config", "check", "--strict", "--config", target).exit_code == 0
    assert run("system", "selfcheck", "--config", target).exit_code == 0
    assert (target / "plugins/echo/run").stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.rglob(".ductile-restore-*")) == []


def test_what_is_restored_below_its_source_is_not_told_to_lead_there(run: Run, kept: Path, archive: Path) -> None:
    """Only what really still leads to the old files is told."""
    assert run("system", "restore", archive, "--config-dir", kept / "trial", "--json").json["warnings"] == []


def test_a_directory_behind_a_link_is_exchanged_and_the_link_stays(
    run: Run, kept: Path, archive: Path, tmp_path: Path
) -> None:
    """`/etc/ductile` may lead to another disk."""
    link, real = tmp_path / "link", tmp_path / "elsewhere" / "real"
    real.mkdir(parents=True)
    link.symlink_to(real)

    for more in ([], ["--replace"]):
        answer = run("system", "restore", archive, "--config-dir", link, *more, "--json")
        assert answer.exit_code == 0, answer.stdout

    assert link.is_symlink()
    assert (real / "config.yaml").read_bytes() == (kept / "config.yaml").read_bytes()
    assert len(answer.json["kept"]) == 1


def test_a_restore_that_fails_in_the_end_takes_everything_back(
    run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lay outside was put there before the directory could not be exchanged: it is what it was."""
    state = tmp_path / "state"
    (place / "config.yaml").write_text(CONFIG.replace("data/state.db", str(state / "state.db")))
    open_writer(state / "state.db").close()
    backup = tmp_path / "b.tar.gz"
    assert run("system", "backup", "--to", backup, "--config", place).exit_code == 0
    (place / "plugins.yaml").write_text("plugins: {}\n")
    before = tree_of(tmp_path)

    def refuse(*_: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(atomic_swap, "_exchange", refuse)
    answer = run("system", "restore", backup, "--replace", "--outside", "--config-dir", place)

    assert (answer.exit_code, answer.stderr.count("resource busy")) == (78, 1)
    after = {name: content for name, content in tree_of(tmp_path).items() if not name.endswith((".lock", ".pid"))}
    assert after == before


def test_a_trial_restore_leaves_nothing(run: Run, archive: Path, tmp_path: Path) -> None:
    """It verifies the archive all the same, and says what would be put where."""
    before = tree_of(tmp_path)

    answer = run("system", "restore", archive, "--config-dir", tmp_path / "restored", "--dry-run", "--json")

    assert answer.exit_code == 0
    assert answer.json["ledger"] == str(tmp_path / "restored" / "data" / "state.db")
    assert tree_of(tmp_path) == before
    assert not (tmp_path / "restored").exists()


def test_links_are_left_out_of_a_backup_and_told(run: Run, kept: Path, tmp_path: Path) -> None:
    """What they lead to may be anything."""
    (kept / "plugins" / "echo" / "secret").symlink_to("/etc/hostname")

    result = run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", kept, "--json").json

    assert result["excluded"] == [f"{kept}/plugins/echo/secret: a link to /etc/hostname"]
    assert "plugins/echo/secret" not in {one["place"] for one in result["files"]}


def test_a_place_that_is_taken_is_replaced_only_when_asked_and_then_kept(run: Run, kept: Path, archive: Path) -> None:
    """All at once; what was there stands beside it."""
    (kept / "config.yaml").write_text("broken: [")
    before = tree_of(kept)

    refused = run("system", "restore", archive, "--config-dir", kept, "--json")
    planned = run("system", "restore", archive, "--config-dir", kept, "--replace", "--dry-run", "--json")
    assert (refused.exit_code, refused.json["code"], planned.exit_code) == (1, "place_taken", 0)
    assert tree_of(kept) == before

    done = run("system", "restore", archive, "--config-dir", kept, "--replace", "--json").json
    (aside,) = map(Path, done["kept"])
    assert (aside / "config.yaml").read_text() == "broken: ["
    assert run("config", "check", "--config", kept).exit_code == 0


def test_only_the_ledger_of_an_archive_can_be_put_in_place(run: Run, kept: Path, tmp_path: Path) -> None:
    """An archive of scope db replaces the ledger that the configuration there names, and its log."""
    change(kept, "INSERT INTO token_uses VALUES ('before', 'x')")
    run("system", "backup", "--to", tmp_path / "db.tar.gz", "--scope", "db", "--config", kept)
    leave_a_log(kept)

    refused = run("system", "restore", tmp_path / "db.tar.gz", "--config-dir", kept, "--json")
    done = run("system", "restore", tmp_path / "db.tar.gz", "--config-dir", kept, "--replace", "--json")

    assert refused.json["code"] == "place_taken"
    assert done.exit_code == 0, done.stdout
    with closing(sqlite3.connect(ledger_of(kept))) as db:
        assert db.execute("SELECT name FROM token_uses").fetchall() == [("before",)]
    with closing(sqlite3.connect(done.json["kept"][-1])) as db:
        assert db.execute("SELECT COUNT(*) FROM token_uses").fetchone() == (2,)


def test_a_restore_refuses_while_a_service_runs(run: Run, kept: Path, archive: Path) -> None:
    """Exit code 75, nothing changed."""
    with instance_lock(kept / "data", ledger_of(kept), now=datetime.now(UTC)):
        before = tree_of(kept)
        answer = run("system", "restore", archive, "--config-dir", kept, "--replace", "--json")

        assert (answer.exit_code, answer.json["code"]) == (75, "already_running")
        assert tree_of(kept) == before


def test_what_lies_outside_goes_back_there_only_when_asked(run: Run, place: Path, tmp_path: Path) -> None:
    """An absolute state.path and an absolute plugin root stay absolute."""
    outside = tmp_path / "var"
    config = (place / "config.yaml").read_text()
    config = config.replace("data/state.db", str(outside / "state.db")).replace("- plugins\n", f"- {outside}/plugins\n")
    assert config.count(str(outside)) == 2, config
    (place / "config.yaml").write_text(config)
    shutil.copytree(place / "plugins", outside / "plugins")
    outside.chmod(0o700)
    open_writer(outside / "state.db").close()
    assert run("config", "lock", "--config", place).exit_code == 0
    assert run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", place).exit_code == 0
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


def test_what_is_kept_of_a_plugin_is_no_part_of_the_plugin(run: Run, place: Path, tmp_path: Path) -> None:
    """Where nothing is used that is not sealed, what was restored can be used all the same."""
    outside = tmp_path / "plugins"
    (place / "plugins").rename(outside)
    text = (place / "config.yaml").read_text().replace("- plugins\n", f"- {outside}\n")
    (place / "config.yaml").write_text(text)
    assert run("config", "lock", "--config", place).exit_code == 0
    assert run("config", "set", "service.strict_mode=true", "--config", place).exit_code == 0
    assert run("system", "backup", "--to", tmp_path / "b.tar.gz", "--config", place).exit_code == 0
    (outside / "echo" / "run").write_text("broken")

    done = run("system", "restore", tmp_path / "b.tar.gz", "--config-dir", place, "--replace", "--outside", "--json")

    assert (done.exit_code, done.json["warnings"]) == (0, [])
    assert "broken" in [path.read_text() for path in map(Path, done.json["kept"]) if path.is_file()]
    assert run("config", "check", "--strict", "--config", place).exit_code == 0


# ── archives that lie ───────────────────────────────────────────────────────────────────────────────────────────────


def unpacked(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the files of an honest archive."""
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


def honest(members: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(header(name, content), content) for name, content in members.items()]


def entry_for(place: str, name: str, content: bytes) -> dict[str, Any]:
    digest = blake3(content).hexdigest()
    return {"name": name, "kind": "config", "place": place, "size": len(content), "blake3": digest}


def with_place(place: str) -> Callable[[dict[str, Any], dict[str, bytes]], bytes]:
    def lie(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
        manifest["files"].append(entry_for(place, "config/extra", b"x"))
        return packed(manifest, [*honest(members), (header("config/extra", b"x"), b"x")])

    return lie


def with_change(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], bytes]:
    def lie(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
        content = bytearray(members[name])
        content[-1] ^= 1
        return packed(manifest, honest({**members, name: bytes(content)}))

    return lie


def with_link(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    found = honest(members)
    found[1][0].type, found[1][0].linkname, found[1][0].size = tarfile.SYMTYPE, "/etc/passwd", 0
    return packed(manifest, found)


def with_an_extra_file(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, [*honest(members), (header("config/extra", b"x"), b"x")])


def with_a_repeated_name(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, [*honest(members), *honest(members)])


def without_a_file(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed(manifest, honest(members)[:-1])


def without_a_manifest(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as target:
        for entry, data in honest(members):
            target.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def with_another_format(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed({**manifest, "format": 99}, honest(members))


def with_a_claim_of_much(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """A manifest and a header that promise an exabyte."""
    manifest["files"][0]["size"] = 1 << 60
    found = honest(members)
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as zipped:
        content = json.dumps(manifest).encode()
        with tarfile.open(fileobj=zipped, mode="w") as target:
            target.addfile(header("MANIFEST.json", content), io.BytesIO(content))
            found[0][0].size = 1 << 60
            zipped.write(found[0][0].tobuf(tarfile.GNU_FORMAT))
    return raw.getvalue()


def with_a_bomb_for_a_header(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """An extended header of 4 GB: reading it at once would take the memory of the host."""
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as zipped:
        bomb = tarfile.TarInfo("x")
        bomb.type, bomb.size = tarfile.XHDTYPE, 4 << 30
        zipped.write(bomb.tobuf(tarfile.USTAR_FORMAT))
        zipped.write(b"0" * (1 << 20))
    return raw.getvalue()


def with_headers_for_headers(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """Each is read before the one that it is about, and so on, without an end."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 512
    return gzip.compress((info.tobuf(tarfile.USTAR_FORMAT) + b"12 path=aaa\n".ljust(512, b"\0")) * 3000)


def with_a_ledger_that_is_none(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    content = b"not a database" * 100
    entry = manifest["files"][0]
    assert entry["kind"] == "ledger"
    entry.update(size=len(content), blake3=blake3(content).hexdigest())
    return packed(manifest, honest({**members, "ledger.db": content}))


def with_a_damaged_ledger(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    content = bytearray(members["ledger.db"])
    content[5 * 4096 : 6 * 4096] = b"\xff" * 4096
    manifest["files"][0]["blake3"] = blake3(bytes(content)).hexdigest()
    return packed(manifest, honest({**members, "ledger.db": bytes(content)}))


def with_a_trigger(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """A ledger that would do something of its own when it is written."""
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
    return packed(manifest, honest({**members, "ledger.db": content}))


def with_a_root_elsewhere(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    return packed({**manifest, "root": "../config.yaml"}, honest(members))


def with_a_root_that_is_not_there(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    """Nothing but the ledger would be restored, and all the files be told."""
    return packed({**manifest, "root": "other.yaml"}, honest(members))


LIES = [
    with_a_root_that_is_not_there,
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
    with_a_claim_of_much,
    with_a_bomb_for_a_header,
    with_headers_for_headers,
    with_a_ledger_that_is_none,
    with_a_damaged_ledger,
    with_a_trigger,
    with_a_root_elsewhere,
    lambda manifest, members: b"not a gzip",
    lambda manifest, members: b"",
    lambda manifest, members: packed({"format": 1, "files": [{"name": 1}]}, []),
    lambda manifest, members: packed(manifest, honest(members))[:-2000],
]


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_is_not_what_it_says_is_refused_and_nothing_is_touched(
    run: Run, archive: Path, tmp_path: Path, lie: Callable[[dict[str, Any], dict[str, bytes]], bytes]
) -> None:
    """Damaged, changed, hostile or of another kind: no file anywhere, not even a temporary one."""
    archive.write_bytes(lie(*unpacked(archive)))
    before = tree_of(tmp_path)

    answer = run(
        "system", "restore", archive, "--config-dir", tmp_path / "restored", "--outside", "--replace", "--json"
    )

    assert answer.exit_code in (1, 78), answer.stdout
    assert answer.json["code"] in ("archive_refused", "ledger_error", "file_refused"), answer.stdout
    assert tree_of(tmp_path) == before


def test_an_honest_archive_packed_by_the_same_hand_is_taken(run: Run, archive: Path, tmp_path: Path) -> None:
    """Otherwise the lies above might be refused for another reason."""
    manifest, members = unpacked(archive)
    archive.write_bytes(packed(manifest, honest(members)))

    assert run("system", "restore", archive, "--config-dir", tmp_path / "restored").exit_code == 0
