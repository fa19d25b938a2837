"""Edits of a whole configuration: the right file, only the intended lines, checked before, sealed after."""

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

from ductile.config.checks.doctor import examine
from ductile.config.edit import atomic_write, token_edit
from ductile.config.edit.assignment import parse_assignment, parse_value
from ductile.config.edit.atomic_write import PENDING_FILE, EditBusy, only_editor
from ductile.config.edit.edit import Edited, edit
from ductile.config.edit.staged_edit import Draft
from ductile.config.load.load import load
from ductile.config.scopes import scopes_hash
from ductile.config.seal.approve import seal_plugins
from ductile.config.seal.checksums import SEAL_FILE
from ductile.core import files
from ductile.core.errors import ConfigInvalid, IntegrityBroken, UsageInvalid
from tests.config.conftest import NOW, Home

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
def large(home: Home) -> Home:
    """Six files, more than 500 lines, comments everywhere, sealed, nothing to complain about."""
    home.plugin("echo")
    home.plugin("other")
    home.write(
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
    home.write("plugins.yaml", "plugins:" + "".join(map(alias_text, range(ALIASES))) + "  # the end of the many\n")
    home.write(
        "conf.d/10-routes.yaml",
        "routes:\n  # first\n  - {from: echo, event_type: a, to: other}\n"
        "  # second\n  - from: echo\n    event_type: b   # why not\n    to: other\n",
    )
    home.write(
        "conf.d/20-more.yaml",
        "plugins:\n  echo:\n    enabled: true # on\n  other:\n\n"
        "routes:\n  - {from: other, event_type: c, to: alias-1}\n",
    )
    home.write(
        "tokens.yaml",
        "tokens:\n  # GitHub\n  - name: github\n    key: ${GITHUB}   # rotate yearly\n"
        f"  - name: reader\n    key: ${{READER}}\n    scopes_file: scopes/reader.json\n"
        f"    scopes_hash: {scopes_hash(SCOPE_FILE)}\n",
    )
    home.write("scopes/reader.json", SCOPE_FILE)
    home.write(
        "webhooks.yaml",
        "webhooks:\n  listen: 127.0.0.1:8081   # local\n  endpoints:\n"
        "    - {path: /hook/a, plugin: echo, secret_ref: github, scheme: github}\n",
    )
    home.write(".env", f"# keys\nOPERATOR={KEY}-0\nGITHUB={KEY}-1\nREADER={KEY}-2\n")
    home.lock()
    assert sum(content.count(b"\n") for content in home.contents().values()) > 500
    return home


SCOPE_FILE = b'{"scopes": ["plugin:ro"], "note": "kept"}\n'


def change(home: Home, by: Callable[[Draft], Draft], **more: Any) -> Edited:
    return edit(home.root, by, now=NOW, **more)


def assign(home: Home, assignment: str, **more: Any) -> Edited:
    path, value = parse_assignment(assignment, Draft.of(home.root, os.environ).data)
    return change(home, lambda draft: draft.with_value(path, value), **more)


def differences(before: Any, after: Any) -> dict[str, tuple[list[str], list[str]]]:
    """File → the lines that are gone and the lines that are new; the seal is not told."""
    told = {}
    for name in sorted({*before, *after} - {SEAL_FILE}):
        lines = [content.get(name, b"").decode().splitlines() for content in (before, after)]
        if lines[0] != lines[1]:
            diff = list(difflib.ndiff(*lines))
            told[name] = ([one[2:] for one in diff if one[0] == "-"], [one[2:] for one in diff if one[0] == "+"])
    return told


def assert_sealed(home: Home) -> None:
    """The service would start, and nothing differs from the seal."""
    assert [one for one in examine(load(home.root)).report.warnings if one.category == "integrity"] == []
    assert load(home.root).drifts == ()


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


@pytest.mark.parametrize(("assignment", "file", "gone", "come"), SET)
def test_only_the_intended_lines_of_the_right_file_change(
    large: Home, assignment: str, file: str, gone: list[str], come: list[str]
) -> None:
    """In more than 500 commented lines: the file that says the value, or that has its section; then it is sealed."""
    before = large.contents()

    edited = assign(large, assignment)

    assert differences(before, large.contents()) == {file: (gone, come)}
    assert edited.files == (large.folder / file,)
    assert edited.sealed[0] == f"~ {large.folder / file}"
    path, value = parse_assignment(assignment, Draft.of(large.root, {}).data)
    data = Draft.of(large.root, {}).data
    for part in path:
        data = data[part]
    assert data == value
    assert_sealed(large)


def test_an_edit_that_would_break_the_configuration_changes_nothing(large: Home) -> None:
    """The doctor looks before anything is written: here a route leads to a plugin that would be disabled."""
    before = large.contents()

    with pytest.raises(ConfigInvalid) as caught:
        assign(large, "plugins.other.enabled=false")

    assert f"{large.folder}/conf.d/10-routes.yaml:3: routes[0].to: plugin other is disabled" in str(caught.value)
    assert (caught.value.exit_code, caught.value.hint) == (78, "nothing was changed")
    assert large.contents() == before


@pytest.mark.parametrize(
    "assignment", ["service.log_lvl=info", "service.tick_interval=5", "plugins.ghost.enabled=true"]
)
def test_unknown_keys_wrong_values_and_absent_plugins_are_refused(large: Home, assignment: str) -> None:
    """The same complaints as from a load, with file and line, and no byte is written."""
    before = large.contents()

    with pytest.raises(ConfigInvalid) as caught:
        assign(large, assignment)

    assert f"{large.folder}/" in str(caught.value)
    assert large.contents() == before


def test_a_trial_checks_everything_and_writes_nothing(large: Home) -> None:
    """The diff is that of the real edit."""
    before = large.contents()
    tried = assign(large, "service.log_level=debug", dry_run=True)

    assert large.contents() == before
    assert tried.status == "planned"
    assert "\n-  log_level: info\n+  log_level: debug\n" in tried.diff
    assert assign(large, "service.log_level=debug").diff == tried.diff


def test_the_same_value_again_is_no_change(large: Home) -> None:
    """Nothing is written, not even the seal."""
    before = large.contents()

    assert assign(large, "service.log_level=info").status == "unchanged"
    assert large.contents() == before


def test_a_broken_configuration_can_be_mended_by_an_edit(large: Home) -> None:
    """What must be right is the result."""
    large.write("config.yaml", (large.folder / "config.yaml").read_text().replace("log_level: info", "log_level: loud"))

    assert assign(large, "service.log_level=warn").status == "changed"
    assert_sealed(large)


def test_files_keep_their_mode(large: Home) -> None:
    """And a new one is private."""
    (large.folder / "config.yaml").chmod(0o640)

    change(large, lambda draft: make_token(draft.with_value(("service", "log_level"), "warn"))[0])

    modes = {name: stat.S_IMODE((large.folder / name).stat().st_mode) for name in ("config.yaml", "scopes/new.json")}
    assert modes == {"config.yaml": 0o640, "scopes/new.json": 0o600}


def test_a_value_that_two_files_say_is_changed_where_it_counts(large: Home) -> None:
    """The later file wins, so the edit goes there."""
    large.write("conf.d/30-late.yaml", "service: {log_level: error}\n")
    large.lock()

    assert assign(large, "service.log_level=warn").files == (large.folder / "conf.d/30-late.yaml",)
    assert load(large.root).settings.service.log_level == "warn"


def test_a_section_that_two_files_share_cannot_be_replaced_whole(large: Home) -> None:
    """Merging would bring back what the edit took away."""
    large.write("conf.d/30-late.yaml", "service: {limits: {logs: 5}}\n")
    large.lock()
    before = large.contents()

    with pytest.raises(ConfigInvalid, match="is said in more than one file"):
        assign(large, "service.limits={events: 5}")
    assert large.contents() == before


# ── the seal ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_edit_never_approves_a_high_tier_file_that_somebody_changed(large: Home) -> None:
    """A start would refuse it, so an unrelated edit must not seal it."""
    large.write("tokens.yaml", (large.folder / "tokens.yaml").read_text() + "# innocent?\n")
    before = large.contents()

    with pytest.raises(IntegrityBroken, match=r"tokens\.yaml:1: has changed since it was sealed") as caught:
        assign(large, "service.log_level=debug")

    assert "ductile config lock --dry-run" in caught.value.hint
    assert large.contents() == before


def test_in_strict_mode_an_edit_approves_no_plugin_that_somebody_changed(large: Home) -> None:
    """The bytes of a plugin are as trusted as the configuration."""
    assign(large, "service.strict_mode=true")
    large.write("plugins/echo/run.sh", "#!/bin/sh\nrm -rf /\n", mode=0o700)

    with pytest.raises(IntegrityBroken, match="plugin echo has another entrypoint"):
        assign(large, "service.log_level=debug")


def test_in_strict_mode_an_edit_can_add_a_plugin(large: Home) -> None:
    """What the edit itself brings is what it approves."""
    large.plugin("third")
    assign(large, "service.strict_mode=true")

    edited = assign(large, "plugins.third.enabled=true")

    assert "+ plugin third" in edited.sealed
    assert_sealed(large)


def test_other_changes_that_the_edit_seals_are_told(large: Home) -> None:
    """Outside strict mode a hand-made change is sealed too, and named."""
    large.write("conf.d/20-more.yaml", (large.folder / "conf.d/20-more.yaml").read_text() + "# by hand\n")

    sealed = assign(large, "service.log_level=debug").sealed

    assert sealed == (f"~ {large.folder}/conf.d/20-more.yaml", f"~ {large.folder}/config.yaml")


@pytest.mark.parametrize("failing", ["tokens.yaml", SEAL_FILE])
def test_if_a_file_or_the_seal_cannot_be_written_all_is_as_before(
    large: Home, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Old bytes come back, new files go, and no note stays."""
    before, write = large.contents(), atomic_write.write

    def fail(one: atomic_write.Replacement) -> None:
        if one.path.name == failing:
            raise files.FileRefused(one.path, "no space left on device")
        write(one)

    monkeypatch.setattr(atomic_write, "write", fail)

    with pytest.raises(files.FileRefused, match="no space left"):
        change(large, lambda draft: make_token(draft)[0])
    assert large.contents() == before


def test_a_file_that_can_never_be_written_does_not_keep_the_configuration_from_loading(large: Home) -> None:
    """Nothing of it has changed, so there is nothing to put back, and no note of an edit that nobody can finish."""
    name = f"conf.d/{'x' * 240}.yaml"  # a temporary file beside it would have a name that is too long
    large.write(name, "service:\n  drain_timeout: 20s\n")
    large.lock()
    before = large.contents()

    with pytest.raises(files.FileRefused, match="file name too long"):
        assign(large, "service.drain_timeout=30s")

    assert large.contents() == before
    assert_sealed(large)


def test_files_that_were_written_before_the_failure_are_put_back(large: Home) -> None:
    """Those that were not are left alone; here it is the second of three, and the first was new."""
    long = large.write(f"{'x' * 245}.yaml", "routes: []\n")
    before = large.contents()
    first, second = large.folder / "tokens.yaml", large.folder / "new.yaml"
    wanted = [atomic_write.Replacement.of(path, b"{}\n") for path in (second, first, long)]

    with pytest.raises(files.FileRefused, match="file name too long"), only_editor(large.folder):
        atomic_write.replace_together(large.folder, wanted)

    assert large.contents() == before


KILLED_AT = """\
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.config.edit import atomic_write, token_edit
from ductile.config.edit.edit import edit

left, write = int(sys.argv[2]), atomic_write.write

def write_or_die(one):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    write(one)

atomic_write.write = write_or_die
change = lambda draft: token_edit.set_scopes(draft, "reader", ["jobs:ro"])
edit(Path(sys.argv[1]), change, now=datetime.now(UTC))
"""


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_between_the_files_and_the_seal_leaves_the_new_configuration(large: Home, writes: int) -> None:
    """Once it is decided, whoever loads next finishes it: scope file, hash and seal fit together again."""
    done = subprocess.run([sys.executable, "-c", KILLED_AT, large.root, str(writes)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (large.folder / PENDING_FILE).exists()

    config = load(large.root)

    assert config.grants["reader"].scopes == ("jobs:ro",)
    assert not (large.folder / PENDING_FILE).exists()
    assert_sealed(large)


def test_a_file_that_somebody_changed_after_the_crash_keeps_their_content(large: Home) -> None:
    """The edit is given up, and the usual rules judge what is there."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large.root, "0"], check=False)
    large.write("tokens.yaml", "tokens: []\n")

    with pytest.raises(IntegrityBroken, match=r"tokens\.yaml:1: has changed since it was sealed"):
        load(large.root)
    assert (large.folder / "tokens.yaml").read_text() == "tokens: []\n"
    assert not (large.folder / PENDING_FILE).exists()


def test_a_note_that_a_stranger_can_write_is_not_followed(large: Home) -> None:
    """It would be a way around the seal."""
    large.write(PENDING_FILE, json.dumps({"version": 1, "files": []}), mode=0o666)

    with pytest.raises(IntegrityBroken, match="world-writable"):
        load(large.root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": [1]}', '{"files": [{"path": "x"}]}'])
def test_a_damaged_note_is_told(large: Home, text: str) -> None:
    """Not a traceback, and nothing is touched."""
    large.write(PENDING_FILE, text)

    with pytest.raises(IntegrityBroken, match="an edit was interrupted and cannot be finished"):
        load(large.root)


def test_two_editors_do_not_meet(large: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits a while and then says who is in the way; no change is lost."""
    monkeypatch.setattr(atomic_write, "PATIENCE_SECONDS", 0)

    with only_editor(large.folder), pytest.raises(EditBusy, match="somebody else is changing"):
        assign(large, "service.log_level=debug")
    assert assign(large, "service.log_level=debug").status == "changed"


def test_whoever_waited_for_a_directory_that_was_exchanged_is_alone_in_the_new_one(
    large: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`system restore` puts another directory in its place; the lock of the old one keeps nobody out."""
    waits, is_inside, may_leave = (threading.Event() for _ in range(3))
    take = atomic_write._take

    def tell_and_take(descriptor: int, directory: Path) -> None:
        waits.set()
        take(descriptor, directory)

    def edit() -> None:
        with only_editor(large.folder):
            is_inside.set()
            may_leave.wait()

    other = threading.Thread(target=edit)
    with only_editor(large.folder):
        monkeypatch.setattr(atomic_write, "_take", tell_and_take)
        other.start()
        waits.wait()
        large.folder.rename(large.folder.with_name("before"))
        large.folder.mkdir()
    is_inside.wait()
    monkeypatch.setattr(atomic_write, "PATIENCE_SECONDS", 0)
    try:
        with pytest.raises(EditBusy), only_editor(large.folder):
            pass
    finally:
        may_leave.set()
        other.join()


@pytest.mark.parametrize(
    "seal",
    [
        lambda home: home.lock(),
        lambda home: seal_plugins(home.root, None, now=NOW),
    ],
    ids=["all", "plugins"],
)
def test_whoever_seals_does_not_meet_an_editor(
    large: Home, monkeypatch: pytest.MonkeyPatch, seal: Callable[[Home], Any]
) -> None:
    """It would read the files of one moment and write their seal beside those of another."""
    monkeypatch.setattr(atomic_write, "PATIENCE_SECONDS", 0)
    before = large.contents()

    with only_editor(large.folder), pytest.raises(EditBusy, match="somebody else is changing"):
        seal(large)
    assert large.contents() == before


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_sealing_after_a_crash_finishes_the_edit_first(large: Home, writes: int) -> None:
    """What is approved is the new configuration, not a mixture."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large.root, str(writes)], check=False)

    large.lock()

    assert load(large.root).grants["reader"].scopes == ("jobs:ro",)
    assert not (large.folder / PENDING_FILE).exists()
    assert_sealed(large)


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_token(draft: Draft, name: str = "new") -> tuple[Draft, token_edit.NewToken]:
    return token_edit.create(draft, name, ["plugin:rw"], description="for tests", now=NOW)


def test_a_new_token_is_a_reference_a_scope_file_and_a_key_in_the_env_file(large: Home) -> None:
    """It may do at once what its scopes say, and its key stands in one place only."""
    before, made = large.contents(), []

    def create(draft: Draft) -> Draft:
        draft, token = make_token(draft)
        made.append(token)
        return draft

    edited = change(large, create)

    told, config = differences(before, large.contents()), load(large.root)
    assert sorted(told) == [".env", "scopes/new.json", "tokens.yaml"]
    assert told[".env"] == ([], [f"NEW_TOKEN={made[0].key}"])
    assert told["tokens.yaml"][0] == []
    assert '    key: "${NEW_TOKEN}"' in told["tokens.yaml"][1]
    assert config.grants["new"].scopes == ("plugin:rw",)
    assert config.settings.tokens[-1].key.reveal() == made[0].key
    assert made[0].key not in edited.diff
    assert KEY not in edited.diff
    assert_sealed(large)


def test_without_an_env_file_the_operator_sets_the_variable(home: Home) -> None:
    """tokens.yaml is made and included; until the variable is set, a load says so."""
    home.plugin("echo")
    home.write("config.yaml", "plugin_roots: [plugins]   # here\n")
    home.lock()
    before = home.contents()

    change(home, lambda draft: make_token(draft)[0])

    told = differences(before, home.contents())
    assert told["config.yaml"] == ([], ["include: [tokens.yaml]"])
    assert "NEW_TOKEN is not set" in home.refusal()
    assert home.load(env={"NEW_TOKEN": KEY}).grants["new"].scopes == ("plugin:rw",)


def test_a_deleted_token_takes_its_key_along_and_comes_back_with_another(large: Home) -> None:
    """Otherwise a key that got lost would be valid again one day."""
    keys = []
    for _ in range(2):
        change(large, lambda draft: make_token(draft)[0])
        keys.append(load(large.root).settings.tokens[-1].key.reveal())
        change(large, lambda draft: token_edit.delete(draft, "new"))
    assert keys[0] != keys[1]
    assert "NEW_TOKEN" not in (large.folder / ".env").read_text()
    assert (large.folder / "scopes/new.json").exists()
    assert_sealed(large)


def test_a_key_that_something_else_refers_to_stays(large: Home) -> None:
    """Deleting a token must not break a plugin."""
    change(large, lambda draft: make_token(draft)[0])
    assign(large, "plugins.alias-1.config.key=${NEW_TOKEN}")

    change(large, lambda draft: token_edit.delete(draft, "new"))

    assert "NEW_TOKEN=" in (large.folder / ".env").read_text()


def test_other_scopes_change_the_scope_file_and_its_hash_only(large: Home) -> None:
    """What else the scope file says stays."""
    before = large.contents()

    change(large, lambda draft: token_edit.set_scopes(draft, "reader", ["jobs:ro"]))

    told = differences(before, large.contents())
    assert sorted(told) == ["scopes/reader.json", "tokens.yaml"]
    assert [line.split(":")[0].strip() for line in told["tokens.yaml"][1]] == ["scopes_hash"]
    assert json.loads((large.folder / "scopes/reader.json").read_bytes()) == {"scopes": ["jobs:ro"], "note": "kept"}
    assert load(large.root).grants["reader"].scopes == ("jobs:ro",)


def test_a_secret_without_scopes_gets_a_scope_file_when_it_gets_scopes(large: Home) -> None:
    """github was a named secret only."""
    change(large, lambda draft: token_edit.set_scopes(draft, "github", ["events:ro"]))

    assert load(large.root).grants["github"].scopes == ("events:ro",)
    assert_sealed(large)


def test_rehash_approves_the_scope_file_it_is_about_and_nothing_else(large: Home) -> None:
    """A hand-made change of the scope file is what the command is for; any other is refused."""
    path = large.write("scopes/reader.json", '{"scopes": ["plugin:rw"]}')

    with pytest.raises(IntegrityBroken, match=r"reader\.json"):
        assign(large, "service.log_level=debug")
    change(large, lambda draft: token_edit.rehash(draft, "reader"), approving={path})
    assert load(large.root).grants["reader"].scopes == ("plugin:rw",)
    assert_sealed(large)

    large.write("scopes/reader.json", '{"scopes": ["*"]}')
    large.write("webhooks.yaml", "webhooks: {}\n")
    with pytest.raises(IntegrityBroken, match=r"webhooks\.yaml"):
        change(large, lambda draft: token_edit.rehash(draft, "reader"), approving={path})


@pytest.mark.parametrize(("name", "reason"), [("reader", "already"), ("../x", "not a name"), ("", "not a name")])
def test_a_token_needs_a_free_and_harmless_name(large: Home, name: str, reason: str) -> None:
    """It becomes a file name and a variable."""
    with pytest.raises(UsageInvalid, match=reason):
        change(large, lambda draft: make_token(draft, name)[0])


def test_a_route_is_removed_from_the_file_that_has_it(large: Home) -> None:
    """Positions count through all files."""
    before = large.contents()

    change(large, lambda draft: draft.without_item(("routes",), 2))

    told = differences(before, large.contents())
    assert told == {
        "conf.d/20-more.yaml": (["routes:", "  - {from: other, event_type: c, to: alias-1}"], ["routes: []"])
    }


# ── what operators write ────────────────────────────────────────────────────────────────────────────────────────────


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
def test_a_value_is_what_yaml_reads_and_otherwise_text(text: str, value: Any) -> None:
    """No value has to be quoted for YAML's sake, and quotes make anything text."""
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["[a", "{a", '"a', "'a"])
def test_a_bracket_or_quote_that_does_not_end_is_told(text: str) -> None:
    """It was meant as one."""
    with pytest.raises(UsageInvalid, match="is not a value"):
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
    """Known names may contain dots themselves."""
    data = {"plugins": {"x": {}, "x.y": {}}, "list": [{}, {}]}

    assert parse_assignment(text, data)[0] == path


@pytest.mark.parametrize("text", ["", "a", "=1", "a..b=1", "list[7]=1", "list.x=1"])
def test_what_is_no_assignment_is_told(text: str) -> None:
    """With an example or with what there is."""
    with pytest.raises(UsageInvalid) as caught:
        parse_assignment(text, {"list": [1]})

    assert caught.value.hint


def test_the_note_names_absolute_places(large: Home) -> None:
    """Whoever finishes an edit may be in another directory."""
    subprocess.run([sys.executable, "-c", KILLED_AT, large.root, "0"], check=False)

    noted = json.loads((large.folder / PENDING_FILE).read_bytes())

    assert all(Path(entry["path"]).is_absolute() for entry in noted["files"])
