"""An installation without a service, and functions that change its files."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ductile.config.scopes import hash_scope_file
from ductile.core.clock import to_text
from ductile.ledger.storage.open_file import open_writer
from ductile.ops.checks.state import MIN_FREE_BYTES
from tests.cli.conftest import Run

SICK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "the pump is dry", "retry": false}\'\n'
WELL = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "healthy"}\'\n'
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
def home(run: Run, tmp_path: Path) -> Path:
    """The directory of a sealed configuration with a plugin, a token, a scope file and an `.env` file."""
    directory = tmp_path / "installation"
    for folder in (directory, directory / "plugins", directory / "scopes"):
        folder.mkdir(mode=0o700)
    written = {
        "config.yaml": CONFIG.encode(),
        "plugins.yaml": b"plugins:\n  echo: {schedules: [{every: 1h}]}\n",
        "tokens.yaml": (TOKENS % hash_scope_file(SCOPES)).encode(),
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


def create_ledger(directory: Path) -> Path:
    """Create an empty ledger."""
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


def contents_of(directory: Path) -> dict[str, bytes]:
    """Return every file below, except the files SQLite creates for readers."""
    contents = {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
    return {
        path.relative_to(directory).as_posix(): content
        for path, content in contents.items()
        if not path.name.endswith("-shm") and (content or not path.name.endswith("-wal"))
    }


@pytest.fixture
def installed(home: Path) -> Path:
    """The same with a ledger."""
    create_ledger(home)
    return home


A_JOB = (
    "INSERT INTO job_queue (id, plugin, command, status, submitted_by, created_at, asked_at, root_job_id, open_jobs,"
    " tree_jobs, lane) VALUES ('j', 'echo', 'poll', 'queued', 't', '{now}', '{now}', 'j', 1, 1, 'echo')"
).format(now=to_text(datetime.now(UTC)))


def leave_a_log(directory: Path) -> None:
    """Leave a write-ahead log, as a killed service does."""
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode = WAL');"
        "db.execute(\"INSERT INTO token_uses VALUES ('x', 'y')\"); db.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, ledger_of(directory)], check=True)


def leave_free_pages(directory: Path) -> None:
    with closing(sqlite3.connect(ledger_of(directory), isolation_level=None)) as db:
        db.execute("CREATE TABLE much (text)")
        db.execute("INSERT INTO much VALUES (zeroblob(?))", (MIN_FREE_BYTES + (1 << 20),))
        db.execute("DROP TABLE much")


@pytest.fixture
def archive(run: Run, installed: Path, tmp_path: Path) -> Path:
    path = tmp_path / "backup.tar.gz"
    answer = run("system", "backup", "--to", path, "--config", installed)
    assert answer.exit_code == 0, answer.stderr
    return path
