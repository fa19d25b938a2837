"""`ductile config set|token|scope|plugin|route|webhook|plan|backup|restore`: what they print, change and exit with."""

import base64
import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ductile.config.edit.atomic_write import only_editor
from ductile.config.seal.archive import MAX_ENTRIES
from tests.cli.conftest import Answer, Run
from tests.cli.test_start_up import imported_by
from tests.e2e.actors import until

Contents = dict[str, bytes]
EDITS = [
    ("set", "service.log_level=debug"),
    ("plugin", "set", "echo", "config.message", "good day"),
    ("route", "add", "--from", "echo", "--event", "x", "--to", "copy"),
    ("token", "create", "--name", "new", "--scopes", "jobs:ro"),
    ("token", "delete", "deploy"),
    ("scope", "add", "deploy", "events:ro"),
    ("scope", "remove", "deploy", "jobs:ro"),
    ("scope", "set", "deploy", "*"),
    ("webhook", "add", "--path", "/hook/x", "--plugin", "echo", "--secret-ref", "deploy"),
]


def contents(directory: Path) -> Contents:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.fixture
def furnished(run: Run, demo: Path) -> Path:
    """The demo with an alias and a token that has scopes."""
    assert run("config", "set", "plugins.copy.uses=echo", "--config", demo).exit_code == 0
    made = run("config", "token", "create", "--name", "deploy", "--scopes", "plugin:rw,jobs:ro", "--config", demo)
    assert made.exit_code == 0
    return demo


@pytest.fixture
def config(run: Run, furnished: Path) -> Callable[..., Answer]:
    """Run `ductile config ARGS…` on that configuration."""
    return lambda *args: run("config", *args, "--config", furnished)


Config = Callable[..., Answer]


@pytest.mark.parametrize("args", EDITS, ids=lambda args: " ".join(args[:2]))
def test_an_edit_is_tried_then_made_and_the_result_passes_its_check(
    config: Config, furnished: Path, args: tuple[str, ...]
) -> None:
    """--dry-run shows the difference and writes nothing; without it exactly these files change, and all is sealed."""
    before = contents(furnished)

    tried = config(*args, "--dry-run", "--json")
    assert (tried.exit_code, tried.json["dry_run"]) == (0, True)
    assert contents(furnished) == before
    made = config(*args, "--json")

    after = contents(furnished)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)} - {".checksums"}
    assert (made.exit_code, made.json["validation"]["valid"]) == (0, True)
    assert {str(furnished / name) for name in changed} == set(made.json["files"]) == set(tried.json["files"])
    assert tried.json["diff"].count("\n") == made.json["diff"].count("\n") > 0
    assert config("check", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("args", "exit_code", "told"),
    [
        (("set", "nonsense"), 2, "is not PATH=VALUE"),
        (("set", "service.log_level=loud"), 78, "config.yaml:23: service.log_level: 'loud' is not one of"),
        (("set", "service.log_lvl=info"), 78, "did you mean 'log_level'?"),
        (("set", "a=1", "--dry-run", "--apply"), 2, "exclude each other"),
        (("plugin", "show", "ecko"), 1, "did you mean 'echo'?"),
        (("plugin", "set", "ghost", "enabled", "true"), 78, "plugins.ghost: is in none of the plugin_roots"),
        (("route", "add", "--from", "echo", "--event", "x", "--to", "ghost"), 78, "plugin ghost is in none"),
        (("route", "remove", "--from", "echo", "--event", "x", "--to", "copy"), 1, "there is no such route"),
        (("route", "add", "--from", "echo"), 2, "Missing option"),
        (("token", "create", "--name", "deploy"), 2, "there is a token 'deploy' already"),
        (("token", "create", "--name", "x", "--scopes", "job:ro"), 2, "did you mean 'jobs:ro'?"),
        (("token", "create", "--name", "x", "--scopes", "*", "--scopes-file", "f"), 2, "say the same"),
        (("token", "create", "--name", "x", "--scopes-file", "no-such-file"), 2, "does not exist"),
        (("token", "inspect", "deplyo"), 1, "did you mean 'deploy'?"),
        (("token", "delete", "nobody"), 1, "there is no token 'nobody'"),
        (("token", "rehash", "nobody"), 1, "there is no token 'nobody'"),
        (("scope", "remove", "deploy", "events:ro"), 2, "does not have events:ro"),
        (("scope", "set", "deploy", "plugin:"), 2, "grants nothing"),
        (
            ("webhook", "add", "--path", "/x", "--plugin", "echo", "--secret-ref", "nobody"),
            78,
            "secret_ref: has no source",
        ),
        (("restore", "no-such-archive"), 2, "does not exist"),
    ],
)
def test_what_cannot_be_done_is_told_and_changes_nothing(
    config: Config, furnished: Path, args: tuple[str, ...], exit_code: int, told: str
) -> None:
    """As text and as JSON: what is wrong, where, and what to do next."""
    before = contents(furnished)

    as_text, as_json = config(*args), config(*args, "--json")

    assert (as_text.exit_code, as_json.exit_code) == (exit_code, exit_code)
    assert told in as_text.stderr
    assert told in as_json.json["error"]
    assert as_json.json["hint"]
    assert contents(furnished) == before


def test_the_flags_of_the_original_are_accepted(config: Config) -> None:
    """--apply is what happens anyway; --format json is --json."""
    assert config("set", "service.log_level=warn", "--apply").exit_code == 0
    assert "deploy" in [token["name"] for token in config("token", "list", "--format", "json").json["tokens"]]


def test_strict_exits_3_when_the_result_has_warnings(config: Config) -> None:
    """The change is made all the same."""
    answer = config("set", "service.tick_interval=100ms", "--strict", "--json")

    assert answer.exit_code == 3
    assert [one["field"] for one in answer.json["validation"]["warnings"]] == ["service.tick_interval"]
    assert config("get", "service.tick_interval").stdout == "100ms\n"


def test_a_key_is_shown_once_and_never_again(config: Config, furnished: Path) -> None:
    """It opens what it should, and neither a list, a view nor a difference shows it."""
    made = config("token", "create", "--name", "once", "--scopes", "jobs:ro", "--json")
    key = made.json["token_key"]

    assert {name: made.json[name] for name in ("status", "token", "env_var")} == {
        "status": "created",
        "token": "once",
        "env_var": "ONCE_TOKEN",
    }
    assert len(bytes.fromhex(key)) == 32
    assert f"ONCE_TOKEN={key}\n" in (furnished / ".env").read_text()
    later = [("token", "list"), ("token", "inspect", "once"), ("show",), ("token", "delete", "once", "--dry-run")]
    assert [args for args in later if key in config(*args, "--json").stdout + config(*args).stdout] == []
    assert key not in made.json["diff"]


def test_a_trial_shows_no_key(config: Config) -> None:
    """There is none yet: the next run makes another."""
    assert config("token", "create", "--name", "x", "--dry-run", "--json").json["token_key"] is None


def test_inspect_says_whether_the_scope_file_is_the_approved_one(config: Config, furnished: Path) -> None:
    """The names of the original, and both hashes."""
    (furnished / "scopes/deploy.json").write_text('{"scopes": ["*"]}')

    shown = config("token", "inspect", "deploy", "--json").json
    assert (shown["key"], shown["hash_matches"], shown["scopes"]) == ("[redacted]", False, ["*"])
    assert shown["config_target"] == str(furnished / "tokens.yaml")
    assert config("check").exit_code == 78

    assert config("token", "rehash", "deploy").exit_code == 0
    assert config("token", "inspect", "deploy", "--json").json["hash_matches"] is True
    assert config("check", "--strict").exit_code == 0


@pytest.mark.parametrize(
    "text",
    ["plugin:ro\njobs:ro\n", "plugin:ro, jobs:ro", '["plugin:ro", "jobs:ro"]', '{"scopes": ["plugin:ro", "jobs:ro"]}'],
)
def test_scopes_can_come_from_a_file(config: Config, tmp_path: Path, text: str) -> None:
    """Lines, commas or JSON."""
    (tmp_path / "wanted").write_text(text)

    assert config("token", "create", "--name", "x", "--scopes-file", str(tmp_path / "wanted")).exit_code == 0
    assert config("token", "inspect", "x", "--json").json["scopes"] == ["plugin:ro", "jobs:ro"]


@pytest.mark.parametrize(
    ("scope", "exit_code"), [("*", 0), ("jobs:ro", 0), ("plugin:echo:rw", 0), ("jobs", 1), ("", 1)]
)
def test_validate_says_whether_a_scope_means_anything(run: Run, scope: str, exit_code: int) -> None:
    """No configuration is needed for that."""
    answer = run("config", "scope", "validate", scope, "--json")

    assert (answer.exit_code, answer.json["valid"]) == (exit_code, exit_code == 0)
    assert answer.json["details"]


def test_lists_say_where_each_entry_is_written(config: Config, furnished: Path) -> None:
    """File and line, so that an editor can go there."""
    config("route", "add", "--from", "echo", "--event", "x", "--to", "copy")
    config("webhook", "add", "--path", "/hook/x", "--plugin", "echo", "--secret-ref", "deploy")

    for args, key, name in [
        (("route", "list"), "routes", "to: copy"),
        (("webhook", "list"), "webhooks", "/hook/x"),
        (("plugin", "list"), "plugins", "echo:"),
    ]:
        found = [one for one in config(*args, "--json").json[key] if name in "\n".join(lines_at(one)[:3])]
        assert found
        assert f"{found[0]['file']}:{found[0]['line']}" in config(*args).stdout


def lines_at(one: dict[str, Any]) -> list[str]:
    return Path(one["file"]).read_text().splitlines()[one["line"] - 1 :]


def test_a_route_comes_and_goes(config: Config, furnished: Path) -> None:
    """Afterwards the files are as they were, but for an empty list."""
    args = ("--from", "echo", "--event", "x", "--to", "copy")
    assert config("route", "add", *args).exit_code == 0
    assert config("route", "add", *args, "--json").json["code"] == "usage"
    assert config("route", "remove", *args).exit_code == 0
    assert config("route", "list", "--json").json == {"routes": []}


def test_effective_tells_what_was_written_from_what_is_a_default(config: Config, furnished: Path) -> None:
    """Each value with its source, and the place of what was written."""
    shown = config("show", "service", "--effective", "--json").json

    assert shown["name"] == {"value": "ductile", "source": "explicit", "at": f"{furnished}/config.yaml:22"}
    assert shown["drain_timeout"] == {"value": "10s", "source": "default"}
    assert config("get", "copy.uses", "--effective", "--json").json["value"] == "echo"
    assert config("get", "plugins.copy.enabled", "--effective", "--json").json["source"] == "default"
    assert config("show", "copy", "--effective").stdout == config("show", "plugin:copy", "--effective").stdout
    assert config("show", "--effective", "nothing").exit_code == 1


def test_a_plan_without_a_ledger_says_that_there_is_nothing_to_compare(config: Config) -> None:
    """It is the first start."""
    answer = config("plan", "--json")

    assert (answer.exit_code, answer.json["status"]) == (0, "planned")
    assert answer.json["compared_with"].startswith("nothing")


# ── archives ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_backup_restores_to_the_same_bytes_in_the_same_and_in_another_place(
    run: Run, config: Config, furnished: Path, tmp_path: Path
) -> None:
    """Everything that is loaded, the plugins, and a seal that fits the place."""
    archive, other, before = tmp_path / "b.tar.gz", tmp_path / "other", contents(furnished)
    assert config("backup", "--output", str(archive)).exit_code == 0
    assert archive.stat().st_mode & 0o777 == 0o600
    config("set", "service.log_level=error")
    (furnished / "plugins/echo/run.sh").write_text("broken")

    back = config("restore", str(archive), "--json")
    away = run("config", "restore", archive, "--config-dir", other)

    assert (back.exit_code, away.exit_code) == (0, 0), back.stderr + away.stderr
    assert sorted(back.json["files"]) == ["config.yaml", "plugins/echo/run.sh"]
    kept = contents(furnished)
    saved = Path(back.json["saved"]).name
    assert {name: kept[name] for name in before if name != ".checksums"} == {
        name: content for name, content in before.items() if name != ".checksums"
    }
    with tarfile.open(furnished / saved) as replaced:
        file = replaced.extractfile("plugins/echo/run.sh")
        assert file is not None
        assert file.read() == b"broken"
    assert config("check", "--strict").exit_code == 0
    assert run("config", "check", "--strict", "--config", other).exit_code == 0


def test_a_configuration_that_leads_out_of_its_directory_can_be_restored(
    run: Run, config: Config, furnished: Path
) -> None:
    """It is tried out where relative paths lead to the same places, and nothing stays there."""
    shared = furnished.parent / "shared"
    shared.mkdir(mode=0o700)
    (shared / "more.yaml").write_text("service: {name: shared}\n")
    (shared / "more.yaml").chmod(0o600)
    (furnished / "plugins").rename(shared / "plugins")
    root = furnished / "config.yaml"
    text = root.read_text().replace("include:\n", "include:\n  - ../shared/more.yaml\n", 1)
    root.write_text(text.replace("  - plugins\n", "  - ../shared/plugins\n"))
    config("lock")
    archive = furnished.parent / "b.tar.gz"
    assert config("backup", "--output", str(archive)).exit_code == 0
    config("set", "service.log_level=error")

    back = config("restore", str(archive), "--json")

    assert back.exit_code == 0, back.stderr
    assert back.json["files"] == ["config.yaml"]
    assert config("check", "--strict").exit_code == 0
    assert list(furnished.parent.rglob(".ductile-restore-*")) == []


KILLED_BEFORE_THE_SEAL = """\
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.config.seal import restore
restore.seal_alone = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
restore.restore(Path(sys.argv[1]), Path(sys.argv[2]), now=datetime.now(UTC))
"""


FAILED_AFTER_THE_SEAL = """\
import sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.config.seal import restore
seal = restore.seal_alone
def interrupted(*given, **named):
    seal(*given, **named)
    raise KeyboardInterrupt
restore.seal_alone = interrupted
restore.restore(Path(sys.argv[1]), Path(sys.argv[2]), now=datetime.now(UTC))
"""


def kill_a_restore(archive: Path, directory: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_THE_SEAL, archive, directory], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def killed(config: Config, furnished: Path, tmp_path: Path) -> Contents:
    """What there was before a restore, of a new file too, that was killed when all was in place but the seal."""
    archive = tmp_path / "b.tar.gz"
    config("set", "service.strict_mode=true")
    (furnished / "plugins/echo/more.sh").write_text("exit 0\n")
    config("lock")
    config("backup", "--output", str(archive))
    config("set", "webhooks.listen=127.0.0.1:9999")
    (furnished / "plugins/echo/more.sh").unlink()
    (furnished / "plugins/echo/run.sh").write_text("#!/bin/sh\nexit 0\n")
    (furnished / "plugins/echo/run.sh").chmod(0o750)
    config("lock")
    before = contents(furnished)
    kill_a_restore(archive, furnished)
    return before


def test_a_restore_that_is_killed_before_its_seal_is_put_back_by_the_next_load(
    config: Config, furnished: Path, killed: Contents
) -> None:
    """Plugins can only be sealed in their place; a seal that is made later could approve what nobody has seen."""
    assert config("check", "--strict").exit_code == 0
    after = contents(furnished)
    assert {name for name in {*killed, *after} if after.get(name) != killed.get(name)} == {
        name for name in after if name.startswith("before-restore-")
    }
    assert (furnished / "plugins/echo/run.sh").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("name", ["config.yaml", "tokens.yaml", "plugins/echo/manifest.yaml"])
def test_what_somebody_changes_after_a_killed_restore_is_not_approved(
    config: Config, furnished: Path, killed: Contents, name: str
) -> None:
    """Under strict_mode that is so for every file, whether the archive has it or not."""
    with (furnished / name).open("a") as file:
        file.write("# another one\n")

    refused = config("check", "--json")

    assert refused.exit_code == 78
    assert {Path(one["file"]).name for one in refused.json["errors"]} == {Path(name).name}


def test_a_restore_that_fails_at_the_seal_changes_neither_content_nor_modes(
    config: Config, furnished: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "b.tar.gz"
    config("backup", "--output", str(archive))
    (furnished / "webhooks.yaml").write_text("# other\n")
    (furnished / "webhooks.yaml").chmod(0o640)
    script = FAILED_AFTER_THE_SEAL
    before = contents(furnished)

    subprocess.run([sys.executable, "-c", script, archive, furnished], capture_output=True, check=False)

    after = contents(furnished)
    assert {name: after[name] for name in before} == before
    assert (furnished / "webhooks.yaml").stat().st_mode & 0o777 == 0o640


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As some containers and shells have it: what is made without a thought is open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("noun", "to"), [("config", "--output"), ("system", "--to")])
def test_what_a_restore_makes_is_private_whatever_the_umask(
    run: Run, furnished: Path, tmp_path: Path, noun: str, to: str
) -> None:
    """Also the folders on the way; one that anybody can write to would refuse what was just restored."""
    archive, place = tmp_path / "b.tar.gz", tmp_path / "far" / "away" / "home"
    assert run(noun, "backup", to, archive, "--config", furnished).exit_code == 0

    assert run(noun, "restore", archive, "--config-dir", place).exit_code == 0

    assert run("config", "check", "--strict", "--config", place).exit_code == 0
    made = [tmp_path / "far", *(tmp_path / "far").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_restore_finishes_an_interrupted_edit_first(config: Config, furnished: Path, tmp_path: Path) -> None:
    """What is kept of before is a whole configuration, and what the archive does not hold is not left half done."""
    archive = tmp_path / "b.tar.gz"
    config("backup", "--output", str(archive))
    new = furnished / "conf.d"
    content = base64.b64encode(b"# new\n").decode()
    note = {"files": [{"path": str(new / "new.yaml"), "mode": 0o600, "before": None, "content": content}]}
    (furnished / ".pending").write_text(json.dumps(note))
    (furnished / ".pending").chmod(0o600)

    assert config("restore", str(archive)).exit_code == 0

    assert (new / "new.yaml").read_text() == "# new\n"
    assert not (furnished / ".pending").exists()


def test_trials_of_backup_and_restore_write_nothing(config: Config, furnished: Path, tmp_path: Path) -> None:
    """They say what would be written."""
    archive, before = tmp_path / "b.tar.gz", contents(furnished)
    assert "tokens.yaml" in config("backup", "--output", str(archive), "--dry-run", "--json").json["files"]
    assert not archive.exists()
    config("backup", "--output", str(archive))

    assert config("restore", str(archive), "--dry-run", "--json").json["files"] == []
    assert contents(furnished) == before


def test_a_backup_never_replaces_a_file(config: Config, tmp_path: Path) -> None:
    """It might be the backup from before the accident."""
    (tmp_path / "b.tar.gz").write_text("mine")

    assert config("backup", "--output", str(tmp_path / "b.tar.gz")).exit_code == 2
    assert (tmp_path / "b.tar.gz").read_text() == "mine"


def entry(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), "config.yaml"
    return info, content


ROOT = entry("config.yaml", b"plugin_roots: [plugins]\n")
HOSTILE = {
    "a way out": ([ROOT, entry("../outside", b"x")], "would lie outside"),
    "an absolute name": ([ROOT, entry("/tmp/outside", b"x")], "would lie outside"),
    "a symbolic link": ([ROOT, entry("link", kind=tarfile.SYMTYPE)], "is a link"),
    "a hard link": ([ROOT, entry("link", kind=tarfile.LNKTYPE)], "is a link"),
    "a fifo": ([ROOT, entry("pipe", kind=tarfile.FIFOTYPE)], "is a link or a device"),
    "one file twice": ([ROOT, ROOT], "is in it twice"),
    "an edit to be finished": ([ROOT, entry(".pending", b"{}")], "is nothing that an archive holds"),
    "no configuration": ([entry("readme", b"x")], "has no config.yaml"),
    "too large a file": ([ROOT, entry("big", bytes(10 * 1024 * 1024 + 1))], "has more than"),
    "too many files": ([ROOT, *(entry(f"f{number}") for number in range(MAX_ENTRIES))], "entries"),
    "a ledger": ([ROOT, entry("data/state.db", b"x")], "would take the place of the ledger"),
    "the log of a ledger": ([ROOT, entry("data/state.db-wal", b"x")], "would take the place of the ledger"),
    "a ledger for elsewhere": (
        [entry("config.yaml", b"plugin_roots: [plugins]\nstate: {path: x.db}\n"), entry("x.db", b"x")],
        "would take the place of the ledger",
    ),
    "an invalid configuration": ([entry("config.yaml", b"servise: {}\n")], "did you mean 'service'?"),
    "another seal": (
        [ROOT, entry(".checksums", b"version: 2\nhashes: {/x/config.yaml: '00'}\n")],
        "seal of the archive",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_is_sly_damaged_or_useless_is_refused_whole(
    config: Config, furnished: Path, tmp_path: Path, name: str
) -> None:
    """Not one of its files is written."""
    entries, reason = HOSTILE[name]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    before = contents(furnished)

    answer = config("restore", str(tmp_path / "a.tar.gz"), "--json")

    assert (answer.exit_code, reason in answer.json["error"]) == (78, True), answer.stdout
    assert contents(furnished) == before


def headers(kind: bytes, size: int, count: int) -> bytes:
    """An archive that begins with headers for headers for headers."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, size
    content = b"12 path=aaa\n".ljust(min(size, 1 << 20), b"\0")
    return gzip.compress((info.tobuf(tarfile.USTAR_FORMAT) + content) * count)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize(("size", "count"), [(4 << 30, 1), (512, 3000)], ids=["large", "many"])
def test_an_archive_cannot_ask_for_memory_or_depth(
    config: Config, tmp_path: Path, kind: bytes, size: int, count: int
) -> None:
    """What a header claims is not believed: it is told, without a traceback."""
    (tmp_path / "a.tar.gz").write_bytes(headers(kind, size, count))

    assert "is not a tar.gz archive" in config("restore", str(tmp_path / "a.tar.gz"), "--json").json["error"]


def test_what_a_restore_replaces_is_kept_whether_it_was_in_use_or_not(
    run: Run, config: Config, furnished: Path, tmp_path: Path
) -> None:
    """A file of that name that nothing included is the operator's too, also where there is no configuration yet."""
    archive, other = tmp_path / "b.tar.gz", tmp_path / "other"
    config("backup", "--output", str(archive))
    (furnished / "config.yaml").write_text("plugin_roots: [plugins]\n")
    (furnished / "webhooks.yaml").write_text("# not included now\n")
    other.mkdir(mode=0o700)
    (other / "webhooks.yaml").write_text("# a note\n")

    answers = [
        config("restore", str(archive), "--json"),
        run("config", "restore", archive, "--config-dir", other, "--json"),
    ]

    for answer, text in zip(answers, [b"# not included now\n", b"# a note\n"], strict=True):
        assert answer.exit_code == 0, answer.stderr
        with tarfile.open(answer.json["saved"]) as kept:
            file = kept.extractfile("webhooks.yaml")
            assert file is not None
            assert file.read() == text


def test_a_ledger_among_the_plugins_is_no_part_of_the_configuration(config: Config, furnished: Path) -> None:
    """Restored it would take the place of what the service has done since."""
    config("set", "state.path=plugins/state.db")
    for name in ("state.db", "state.db-wal"):
        (furnished / "plugins" / name).write_bytes(b"x")

    names = config("backup", "--dry-run", "--json").json["files"]

    assert [name for name in names if "state.db" in name] == []


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08\x00junk"])
def test_what_is_no_archive_is_told(config: Config, tmp_path: Path, content: bytes) -> None:
    """Without a traceback."""
    (tmp_path / "a.tar.gz").write_bytes(content)

    assert "is not a tar.gz archive" in config("restore", str(tmp_path / "a.tar.gz"), "--json").json["error"]


# ── what it costs ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_looking_at_tokens_loads_neither_the_loader_nor_a_server(furnished: Path) -> None:
    """A list needs the files, not what they mean."""
    imported = imported_by("config", "token", "list", "--config", str(furnished))

    assert imported.isdisjoint({"trio", "quart", "cattrs", "sqlite3"})


def test_an_edit_needs_no_event_loop_and_no_ledger(furnished: Path) -> None:
    """Files are all it touches."""
    imported = imported_by("config", "set", "service.log_level=warn", "--config", str(furnished))

    assert imported.isdisjoint({"trio", "quart", "sqlite3"})


def test_a_route_that_two_processes_add_is_there_once(furnished: Path) -> None:
    """Whether it is there is asked when nobody else can add it: twice would be two jobs for each event."""
    command = [sys.executable, "-m", "ductile", "config", "route", "add", "--from", "echo", "--event", "x"]
    with only_editor(furnished):
        running = [
            subprocess.Popen([*command, "--to", "copy", "--config", furnished, "--json"], stdout=-1) for _ in range(2)
        ]
        until(lambda: all(has_open(process.pid, furnished) for process in running))
    codes = sorted((process.communicate(), process.returncode)[1] for process in running)

    assert codes == [0, 2]
    assert (furnished / "config.yaml").read_text().count("event_type: x") == 1


def has_open(pid: int, folder: Path) -> bool:
    """An editor that waits for its turn has opened the directory."""
    with contextlib.suppress(OSError):
        return str(folder) in [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return False


def test_edits_from_many_processes_are_all_there_at_the_end(furnished: Path) -> None:
    """Each waits for the one before; none works on files that another is about to replace."""
    command = [sys.executable, "-m", "ductile", "config", "plugin", "set", "echo"]
    running = [
        subprocess.Popen([*command, f"config.key_{number}", str(number), "--config", furnished, "--json"], stdout=-1)
        for number in range(6)
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]

    assert [answer["status"] for answer in answers] == ["changed"] * 6
    text = (furnished / "plugins.yaml").read_text()
    assert [number for number in range(6) if f"      key_{number}: {number}\n" not in text] == []
