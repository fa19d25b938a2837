"""Edits of a configuration: the right file, only the intended lines, checked before writing, sealed afterwards."""

import difflib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ductile.config.checks.examine import examine
from ductile.config.checksums import SEAL_FILE
from ductile.config.edit import token_edit
from ductile.config.edit.approve import seal_plugins
from ductile.config.edit.assignment import parse_assignment, parse_value
from ductile.config.edit.edit import EditResult, edit
from ductile.config.edit.staged_edit import Draft
from ductile.config.files import atomic_write
from ductile.config.files.atomic_write import PENDING_FILE, EditBusy, lock_config
from ductile.config.load.load import load
from ductile.config.scopes import hash_scope_file
from ductile.core import files
from ductile.core.errors import ConfigInvalid, IntegrityBroken, UsageInvalid
from tests.config.conftest import NOW, ConfigDir

ALIASES = 60
KEY = "a-key-that-is-long-enough-to-be-one"


def alias_text(number: int) -> str:
    return f"""\

  # ── alias {number} ──
  alias-{number}:          # one of many
    uses: echo
    config:
      message: "hello {number}"   # shown to people
      tags: [a, 'b', "c"]
    retry: {{max_attempts: {number % 4 + 1}, backoff_base: 10s}}
"""


@pytest.fixture
def large_config(config_dir: ConfigDir) -> ConfigDir:
    """A sealed, valid configuration of six files and more than 500 lines with comments."""
    config_dir.plugin("echo")
    config_dir.plugin("other")
    config_dir.write(
        "config.yaml",
        """\
# The root. Everything else is included.
include:
  - plugins.yaml   # the many
  - conf.d         # a directory
  - tokens.yaml
  - webhooks.yaml
environment_vars: {include: [.env]}
plugin_roots: [plugins]

service:
  name: lab        # who we are
  log_level: info

  # Sizes.
  limits: {stdout: 1MB, events: 10}
api:
  enabled: true
  auth:
    tokens:
      # the admin
      - token: ${OPERATOR}
        name: admin
        scopes: ["*"]
""",
    )
    config_dir.write(
        "plugins.yaml", "plugins:" + "".join(map(alias_text, range(ALIASES))) + "  # the end of the many\n"
    )
    config_dir.write(
        "conf.d/10-routes.yaml",
        "routes:\n  # first\n  - {from: echo, event_type: a, to: other}\n"
        "  # second\n  - from: echo\n    event_type: b   # why not\n    to: other\n",
    )
    config_dir.write(
        "conf.d/20-more.yaml",
        "plugins:\n  echo:\n    enabled: true # on\n  other:\n\n"
        "routes:\n  - {from: other, event_type: c, to: alias-1}\n",
    )
    config_dir.write(
        "tokens.yaml",
        "tokens:\n  # GitHub\n  - name: github\n    key: ${GITHUB}   # rotate yearly\n"
        f"  - name: reader\n    key: ${{READER}}\n    scopes_file: scopes/reader.json\n"
        f"    scopes_hash: {hash_scope_file(SCOPE_FILE)}\n",
    )
    config_dir.write("scopes/reader.json", SCOPE_FILE)
    config_dir.write(
        "webhooks.yaml",
        "webhooks:\n  listen: 127.0.0.1:8081   # local\n  endpoints:\n"
        "    - {path: /hook/a, plugin: echo, secret_ref: github, scheme: github}\n",
    )
    config_dir.write(".env", f"# keys\nOPERATOR={KEY}-0\nGITHUB={KEY}-1\nREADER={KEY}-2\n")
    config_dir.seal()
    assert sum(content.count(b"\n") for content in config_dir.read_files().values()) > 500
    return config_dir


SCOPE_FILE = b'{"scopes": ["plugin:ro"], "note": "kept"}\n'


def change(config_dir: ConfigDir, apply: Callable[[Draft], Draft], **options: Any) -> EditResult:
    return edit(config_dir.root, apply, now=NOW, **options)


def assign(config_dir: ConfigDir, assignment: str, **options: Any) -> EditResult:
    path, value = parse_assignment(assignment, Draft.of(config_dir.root, os.environ).data)
    return change(config_dir, lambda draft: draft.with_value(path, value), **options)


def differences(before: Any, after: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Map each changed file to its removed and added lines. The seal is ignored."""
    changed = {}
    for name in sorted({*before, *after} - {SEAL_FILE}):
        lines = [content.get(name, b"").decode().splitlines() for content in (before, after)]
        if lines[0] != lines[1]:
            diff = list(difflib.ndiff(*lines))
            changed[name] = (
                [line[2:] for line in diff if line[0] == "-"],
                [line[2:] for line in diff if line[0] == "+"],
            )
    return changed


def assert_sealed(config_dir: ConfigDir) -> None:
    """Assert that the configuration loads and matches its seal."""
    assert [
        warning for warning in examine(load(config_dir.root)).report.warnings if warning.category == "integrity"
    ] == []
    assert load(config_dir.root).drifts == ()


SET = [
    ("service.log_level=debug", "config.yaml", ["  log_level: info"], ["  log_level: debug"]),
    (
        "service.limits.events=20",
        "config.yaml",
        ["  limits: {stdout: 1MB, events: 10}"],
        ["  limits: {stdout: 1MB, events: 20}"],
    ),
    ("service.drain_timeout=20s", "config.yaml", [], ["  drain_timeout: 20s"]),
    ("api.auth.tokens[0].name=boss", "config.yaml", ["        name: admin"], ["        name: boss"]),
    ("state.path=ledger.db", "config.yaml", [], ["", "state:", "  path: ledger.db"]),
    (
        "plugins.alias-7.config.message=hi there",
        "plugins.yaml",
        ['      message: "hello 7"   # shown to people'],
        ["      message: hi there   # shown to people"],
    ),
    ("plugins.alias-59.enabled=false", "plugins.yaml", [], ["    enabled: false"]),
    ("plugins.other.timeouts.poll=5s", "conf.d/20-more.yaml", [], ["    timeouts:", "      poll: 5s"]),
    (
        "routes[1].event_type=x",
        "conf.d/10-routes.yaml",
        ["    event_type: b   # why not"],
        ["    event_type: x   # why not"],
    ),
    (
        "routes[2].event_type=x",
        "conf.d/20-more.yaml",
        ["  - {from: other, event_type: c, to: alias-1}"],
        ["  - {from: other, event_type: x, to: alias-1}"],
    ),
    (
        "webhooks.listen=127.0.0.1:9000",
        "webhooks.yaml",
        ["  listen: 127.0.0.1:8081   # local"],
        ['  listen: "127.0.0.1:9000"   # local'],
    ),
]


@pytest.mark.parametrize(("assignment", "file", "removed", "added"), SET)
def test_a_value_is_changed_in_the_file_that_contains_it_or_its_section(
    large_config: ConfigDir, assignment: str, file: str, removed: list[str], added: list[str]
) -> None:
    """Only the intended lines change, and the result is sealed."""
    before = large_config.read_files()

    edited = assign(large_config, assignment)

    assert differences(before, large_config.read_files()) == {file: (removed, added)}
    assert edited.files == (large_config.path / file,)
    assert edited.sealed[0] == f"~ {large_config.path / file}"
    path, value = parse_assignment(assignment, Draft.of(large_config.root, {}).data)
    data = Draft.of(large_config.root, {}).data
    for part in path:
        data = data[part]
    assert data == value
    assert_sealed(large_config)


def test_an_edit_that_would_break_the_configuration_changes_nothing(large_config: ConfigDir) -> None:
    """Here a route would lead to a disabled plugin."""
    before = large_config.read_files()

    with pytest.raises(ConfigInvalid) as caught:
        assign(large_config, "plugins.other.enabled=false")

    assert f"{large_config.path}/conf.d/10-routes.yaml:3: routes[0].to: plugin other is disabled" in str(caught.value)
    assert (caught.value.exit_code, caught.value.hint) == (78, "Nothing was changed.")
    assert large_config.read_files() == before


@pytest.mark.parametrize(
    "assignment", ["service.log_lvl=info", "service.tick_interval=5", "plugins.ghost.enabled=true"]
)
def test_unknown_keys_invalid_values_and_missing_plugins_are_refused(large_config: ConfigDir, assignment: str) -> None:
    """The complaints are those of a load, with file and line. Nothing is written."""
    before = large_config.read_files()

    with pytest.raises(ConfigInvalid) as caught:
        assign(large_config, assignment)

    assert f"{large_config.path}/" in str(caught.value)
    assert large_config.read_files() == before


def test_a_dry_run_checks_everything_and_writes_nothing(large_config: ConfigDir) -> None:
    """The diff is the one of the real edit."""
    before = large_config.read_files()
    dry_run = assign(large_config, "service.log_level=debug", dry_run=True)

    assert large_config.read_files() == before
    assert dry_run.status == "planned"
    assert "\n-  log_level: info\n+  log_level: debug\n" in dry_run.diff
    assert assign(large_config, "service.log_level=debug").diff == dry_run.diff


def test_setting_the_current_value_changes_nothing(large_config: ConfigDir) -> None:
    """Not even the seal is written."""
    before = large_config.read_files()

    assert assign(large_config, "service.log_level=info").status == "unchanged"
    assert large_config.read_files() == before


def test_an_invalid_configuration_can_be_fixed_by_an_edit(large_config: ConfigDir) -> None:
    """Only the result must be valid."""
    large_config.write(
        "config.yaml", (large_config.path / "config.yaml").read_text().replace("log_level: info", "log_level: loud")
    )

    assert assign(large_config, "service.log_level=warn").status == "changed"
    assert_sealed(large_config)


def test_edited_files_keep_their_mode_and_new_files_are_private(large_config: ConfigDir) -> None:
    (large_config.path / "config.yaml").chmod(0o640)

    change(large_config, lambda draft: create_token(draft.with_value(("service", "log_level"), "warn"))[0])

    modes = {
        name: stat.S_IMODE((large_config.path / name).stat().st_mode) for name in ("config.yaml", "scopes/new.json")
    }
    assert modes == {"config.yaml": 0o640, "scopes/new.json": 0o600}


def test_a_value_in_two_files_is_changed_in_the_later_one(large_config: ConfigDir) -> None:
    """The later file overrides the earlier one."""
    large_config.write("conf.d/30-late.yaml", "service: {log_level: error}\n")
    large_config.seal()

    assert assign(large_config, "service.log_level=warn").files == (large_config.path / "conf.d/30-late.yaml",)
    assert load(large_config.root).settings.service.log_level == "warn"


def test_a_section_in_two_files_cannot_be_replaced(large_config: ConfigDir) -> None:
    """Merging would restore the removed keys."""
    large_config.write("conf.d/30-late.yaml", "service: {limits: {logs: 5}}\n")
    large_config.seal()
    before = large_config.read_files()

    with pytest.raises(ConfigInvalid, match="is set in more than one file"):
        assign(large_config, "service.limits={events: 5}")
    assert large_config.read_files() == before


# ── the seal ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_edit_does_not_seal_an_unrelated_change_of_a_high_tier_file(large_config: ConfigDir) -> None:
    """A start would refuse that change."""
    large_config.write("tokens.yaml", (large_config.path / "tokens.yaml").read_text() + "# innocent?\n")
    before = large_config.read_files()

    with pytest.raises(IntegrityBroken, match=r"tokens\.yaml:1: has changed since it was sealed") as caught:
        assign(large_config, "service.log_level=debug")

    assert "ductile config lock --dry-run" in caught.value.hint
    assert large_config.read_files() == before


def test_in_strict_mode_an_edit_does_not_seal_a_changed_plugin(large_config: ConfigDir) -> None:
    assign(large_config, "service.strict_mode=true")
    large_config.write("plugins/echo/run.sh", "#!/bin/sh\nrm -rf /\n", mode=0o700)

    with pytest.raises(IntegrityBroken, match="plugin echo has a different entrypoint"):
        assign(large_config, "service.log_level=debug")


def test_in_strict_mode_an_edit_can_add_a_plugin(large_config: ConfigDir) -> None:
    """The edit seals what it adds."""
    large_config.plugin("third")
    assign(large_config, "service.strict_mode=true")

    edited = assign(large_config, "plugins.third.enabled=true")

    assert "+ plugin third" in edited.sealed
    assert_sealed(large_config)


def test_an_edit_lists_other_changes_that_it_seals(large_config: ConfigDir) -> None:
    """Outside of strict mode, manual changes are sealed too."""
    large_config.write("conf.d/20-more.yaml", (large_config.path / "conf.d/20-more.yaml").read_text() + "# by hand\n")

    sealed = assign(large_config, "service.log_level=debug").sealed

    assert sealed == (f"~ {large_config.path}/conf.d/20-more.yaml", f"~ {large_config.path}/config.yaml")


@pytest.mark.parametrize("failing", ["tokens.yaml", SEAL_FILE])
def test_if_a_file_or_the_seal_cannot_be_written_all_files_are_restored(
    large_config: ConfigDir, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """New files and the note are removed."""
    before, write = large_config.read_files(), atomic_write.write

    def fail(replacement: atomic_write.Replacement) -> None:
        if replacement.path.name == failing:
            raise files.FileRefused(replacement.path, "no space left on device")
        write(replacement)

    monkeypatch.setattr(atomic_write, "write", fail)

    with pytest.raises(files.FileRefused, match="no space left"):
        change(large_config, lambda draft: create_token(draft)[0])
    assert large_config.read_files() == before


def test_a_failed_edit_of_an_unwritable_file_leaves_no_note(large_config: ConfigDir) -> None:
    """The file was not changed, so nothing is restored, and the configuration still loads."""
    name = f"conf.d/{'x' * 240}.yaml"  # too long for the name of a temporary file next to it
    large_config.write(name, "service:\n  drain_timeout: 20s\n")
    large_config.seal()
    before = large_config.read_files()

    with pytest.raises(files.FileRefused, match="file name too long"):
        assign(large_config, "service.drain_timeout=30s")

    assert large_config.read_files() == before
    assert_sealed(large_config)


def test_files_written_before_a_failure_are_restored(large_config: ConfigDir) -> None:
    """The third of three files fails; the first one is new."""
    unwritable = large_config.write(f"{'x' * 245}.yaml", "routes: []\n")
    before = large_config.read_files()
    first, second = large_config.path / "tokens.yaml", large_config.path / "new.yaml"
    replacements = [atomic_write.Replacement.of(path, b"{}\n") for path in (second, first, unwritable)]

    with pytest.raises(files.FileRefused, match="file name too long"), lock_config(large_config.path):
        atomic_write.replace_files(large_config.path, replacements)

    assert large_config.read_files() == before


KILLED_AT = """\
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.config.edit import token_edit
from ductile.config.files import atomic_write
from ductile.config.edit.edit import edit

remaining, write = int(sys.argv[2]), atomic_write.write

def write_or_kill(replacement):
    global remaining
    if remaining == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    remaining -= 1
    write(replacement)

atomic_write.write = write_or_kill
change = lambda draft: token_edit.set_scopes(draft, "reader", ["jobs:ro"])
edit(Path(sys.argv[1]), change, now=datetime.now(UTC))
"""


@pytest.mark.process
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_an_edit_interrupted_by_a_crash_is_finished_by_the_next_load(large_config: ConfigDir, writes: int) -> None:
    """Afterwards scope file, hash and seal match."""
    done = subprocess.run([sys.executable, "-c", KILLED_AT, large_config.root, str(writes)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (large_config.path / PENDING_FILE).exists()

    config = load(large_config.root)

    assert config.grants["reader"].scopes == ("jobs:ro",)
    assert not (large_config.path / PENDING_FILE).exists()
    assert_sealed(large_config)


@pytest.mark.process
def test_a_file_changed_after_a_crash_is_not_overwritten(large_config: ConfigDir) -> None:
    """The edit is abandoned, and the usual integrity checks apply."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large_config.root, "0"], check=False)
    large_config.write("tokens.yaml", "tokens: []\n")

    with pytest.raises(IntegrityBroken, match=r"tokens\.yaml:1: has changed since it was sealed"):
        load(large_config.root)
    assert (large_config.path / "tokens.yaml").read_text() == "tokens: []\n"
    assert not (large_config.path / PENDING_FILE).exists()


def test_a_world_writable_note_is_refused(large_config: ConfigDir) -> None:
    """It would bypass the seal."""
    large_config.write(PENDING_FILE, json.dumps({"version": 1, "files": []}), mode=0o666)

    with pytest.raises(IntegrityBroken, match="world-writable"):
        load(large_config.root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": [1]}', '{"files": [{"path": "x"}]}'])
def test_a_damaged_note_is_an_integrity_error(large_config: ConfigDir, text: str) -> None:
    large_config.write(PENDING_FILE, text)

    with pytest.raises(IntegrityBroken, match="an interrupted edit cannot be finished"):
        load(large_config.root)


def test_a_second_edit_fails_while_the_lock_is_held(large_config: ConfigDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "LOCK_TIMEOUT_SECONDS", 0)

    with lock_config(large_config.path), pytest.raises(EditBusy, match="another process is changing"):
        assign(large_config, "service.log_level=debug")
    assert assign(large_config, "service.log_level=debug").status == "changed"


def test_a_lock_is_acquired_again_if_the_directory_was_replaced_while_waiting(
    large_config: ConfigDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`system restore` replaces the directory, so the lock of the old directory protects nothing."""
    is_waiting, has_lock, may_release = (threading.Event() for _ in range(3))
    acquire = atomic_write._acquire_lock

    def signal_and_acquire(descriptor: int, directory: Path) -> None:
        is_waiting.set()
        acquire(descriptor, directory)

    def edit() -> None:
        with lock_config(large_config.path):
            has_lock.set()
            may_release.wait()

    other = threading.Thread(target=edit)
    with lock_config(large_config.path):
        monkeypatch.setattr(atomic_write, "_acquire_lock", signal_and_acquire)
        other.start()
        is_waiting.wait()
        large_config.path.rename(large_config.path.with_name("before"))
        large_config.path.mkdir()
    has_lock.wait()
    monkeypatch.setattr(atomic_write, "LOCK_TIMEOUT_SECONDS", 0)
    try:
        with pytest.raises(EditBusy), lock_config(large_config.path):
            pass
    finally:
        may_release.set()
        other.join()


@pytest.mark.parametrize(
    "seal",
    [
        lambda config_dir: config_dir.seal(),
        lambda config_dir: seal_plugins(config_dir.root, None, now=NOW),
    ],
    ids=["all", "plugins"],
)
def test_sealing_fails_while_the_edit_lock_is_held(
    large_config: ConfigDir, monkeypatch: pytest.MonkeyPatch, seal: Callable[[ConfigDir], Any]
) -> None:
    """Otherwise the seal could cover a mixture of old and new files."""
    monkeypatch.setattr(atomic_write, "LOCK_TIMEOUT_SECONDS", 0)
    before = large_config.read_files()

    with lock_config(large_config.path), pytest.raises(EditBusy, match="another process is changing"):
        seal(large_config)
    assert large_config.read_files() == before


@pytest.mark.process
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_sealing_finishes_an_interrupted_edit_first(large_config: ConfigDir, writes: int) -> None:
    """The seal covers the new configuration, not a mixture."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large_config.root, str(writes)], check=False)

    large_config.seal()

    assert load(large_config.root).grants["reader"].scopes == ("jobs:ro",)
    assert not (large_config.path / PENDING_FILE).exists()
    assert_sealed(large_config)


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def create_token(draft: Draft, name: str = "new") -> tuple[Draft, token_edit.NewToken]:
    return token_edit.create(draft, name, ["plugin:rw"], description="for tests", now=NOW)


def test_a_new_token_is_a_reference_a_scope_file_and_a_key_in_the_env_file(large_config: ConfigDir) -> None:
    """It is usable at once, and its key is stored in one file only."""
    before, created = large_config.read_files(), []

    def create(draft: Draft) -> Draft:
        draft, token = create_token(draft)
        created.append(token)
        return draft

    edited = change(large_config, create)

    changed, config = differences(before, large_config.read_files()), load(large_config.root)
    assert sorted(changed) == [".env", "scopes/new.json", "tokens.yaml"]
    assert changed[".env"] == ([], [f"NEW_TOKEN={created[0].key}"])
    assert changed["tokens.yaml"][0] == []
    assert '    key: "${NEW_TOKEN}"' in changed["tokens.yaml"][1]
    assert config.grants["new"].scopes == ("plugin:rw",)
    assert config.settings.tokens[-1].key.reveal() == created[0].key
    assert created[0].key not in edited.diff
    assert KEY not in edited.diff
    assert_sealed(large_config)


def test_without_an_env_file_the_operator_sets_the_variable(config_dir: ConfigDir) -> None:
    """tokens.yaml is created and included. A load fails until the variable is set."""
    config_dir.plugin("echo")
    config_dir.write("config.yaml", "plugin_roots: [plugins]   # here\n")
    config_dir.seal()
    before = config_dir.read_files()

    change(config_dir, lambda draft: create_token(draft)[0])

    changed = differences(before, config_dir.read_files())
    assert changed["config.yaml"] == ([], ["include: [tokens.yaml]"])
    assert "NEW_TOKEN is not set" in config_dir.errors()
    assert config_dir.load(env={"NEW_TOKEN": KEY}).grants["new"].scopes == ("plugin:rw",)


def test_deleting_a_token_deletes_its_key(large_config: ConfigDir) -> None:
    """A new token with the same name has another key."""
    keys = []
    for _ in range(2):
        change(large_config, lambda draft: create_token(draft)[0])
        keys.append(load(large_config.root).settings.tokens[-1].key.reveal())
        change(large_config, lambda draft: token_edit.delete(draft, "new"))
    assert keys[0] != keys[1]
    assert "NEW_TOKEN" not in (large_config.path / ".env").read_text()
    assert (large_config.path / "scopes/new.json").exists()
    assert_sealed(large_config)


def test_a_key_that_another_value_refers_to_is_not_deleted(large_config: ConfigDir) -> None:
    change(large_config, lambda draft: create_token(draft)[0])
    assign(large_config, "plugins.alias-1.config.key=${NEW_TOKEN}")

    change(large_config, lambda draft: token_edit.delete(draft, "new"))

    assert "NEW_TOKEN=" in (large_config.path / ".env").read_text()


def test_setting_scopes_changes_only_the_scope_file_and_its_hash(large_config: ConfigDir) -> None:
    """Other keys of the scope file are preserved."""
    before = large_config.read_files()

    change(large_config, lambda draft: token_edit.set_scopes(draft, "reader", ["jobs:ro"]))

    changed = differences(before, large_config.read_files())
    assert sorted(changed) == ["scopes/reader.json", "tokens.yaml"]
    assert [line.split(":")[0].strip() for line in changed["tokens.yaml"][1]] == ["scopes_hash"]
    assert json.loads((large_config.path / "scopes/reader.json").read_bytes()) == {
        "scopes": ["jobs:ro"],
        "note": "kept",
    }
    assert load(large_config.root).grants["reader"].scopes == ("jobs:ro",)


def test_setting_scopes_of_a_named_secret_creates_a_scope_file(large_config: ConfigDir) -> None:
    change(large_config, lambda draft: token_edit.set_scopes(draft, "github", ["events:ro"]))

    assert load(large_config.root).grants["github"].scopes == ("events:ro",)
    assert_sealed(large_config)


def test_rehash_approves_only_its_own_scope_file(large_config: ConfigDir) -> None:
    """A change of any other file is refused."""
    path = large_config.write("scopes/reader.json", '{"scopes": ["plugin:rw"]}')

    with pytest.raises(IntegrityBroken, match=r"reader\.json"):
        assign(large_config, "service.log_level=debug")
    change(large_config, lambda draft: token_edit.rehash(draft, "reader"), approving={path})
    assert load(large_config.root).grants["reader"].scopes == ("plugin:rw",)
    assert_sealed(large_config)

    large_config.write("scopes/reader.json", '{"scopes": ["*"]}')
    large_config.write("webhooks.yaml", "webhooks: {}\n")
    with pytest.raises(IntegrityBroken, match=r"webhooks\.yaml"):
        change(large_config, lambda draft: token_edit.rehash(draft, "reader"), approving={path})


@pytest.mark.parametrize(
    ("name", "reason"), [("reader", "already"), ("../x", "not a valid token name"), ("", "not a valid token name")]
)
def test_a_token_needs_an_unused_and_safe_name(large_config: ConfigDir, name: str, reason: str) -> None:
    """The name becomes a file name and a variable."""
    with pytest.raises(UsageInvalid, match=reason):
        change(large_config, lambda draft: create_token(draft, name)[0])


def test_a_route_is_removed_from_the_file_that_contains_it(large_config: ConfigDir) -> None:
    """Positions count across all files."""
    before = large_config.read_files()

    change(large_config, lambda draft: draft.without_item(("routes",), 2))

    changed = differences(before, large_config.read_files())
    assert changed == {
        "conf.d/20-more.yaml": (["routes:", "  - {from: other, event_type: c, to: alias-1}"], ["routes: []"])
    }


# ── command-line arguments ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-1.5", -1.5),
        ("true", True),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("null", None),
        ("", None),
        ('""', ""),
        ('"5"', "5"),
        ("'a b'", "a b"),
        ("[a, 5]", ["a", 5]),
        ("{a: [1]}", {"a": [1]}),
        ("a: b", "a: b"),
        ("- x", "- x"),
        ("#1", "#1"),
        ("*star", "*star"),
        (".inf", ".inf"),
        ("say # this", "say # this"),
        ("${NAME}", "${NAME}"),
    ],
)
def test_a_value_is_parsed_as_yaml_or_text(text: str, value: Any) -> None:
    """Values need no quoting for YAML; quotes make any value text."""
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["[a", "{a", '"a', "'a"])
def test_an_unclosed_bracket_or_quote_is_refused(text: str) -> None:
    with pytest.raises(UsageInvalid, match="is not a valid value"):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a.b=1", ("a", "b")),
        ("plugins.x.y.z=1", ("plugins", "x.y", "z")),
        ("list[0].n=1", ("list", 0, "n")),
        ("list.1.n=1", ("list", 1, "n")),
        ("new.deep.er=a=b", ("new", "deep", "er")),
    ],
)
def test_a_path_is_names_joined_by_dots(text: str, path: tuple[str | int, ...]) -> None:
    """Known names may contain dots."""
    data = {"plugins": {"x": {}, "x.y": {}}, "list": [{}, {}]}

    assert parse_assignment(text, data)[0] == path


@pytest.mark.parametrize("text", ["", "a", "=1", "a..b=1", "list[7]=1", "list.x=1"])
def test_an_invalid_assignment_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        parse_assignment(text, {"list": [1]})

    assert caught.value.hint


@pytest.mark.process
def test_the_note_contains_absolute_paths(large_config: ConfigDir) -> None:
    """Another process may finish the edit in another working directory."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large_config.root, "0"], check=False)

    note = json.loads((large_config.path / PENDING_FILE).read_bytes())

    assert all(Path(entry["path"]).is_absolute() for entry in note["files"])
