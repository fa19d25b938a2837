"""The seal: what was approved is what is loaded, and everything else is told or refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ductile.config.seal.checksums import SEAL_FILE, changes, read_seal
from ductile.core import files
from ductile.core.errors import ConfigInvalid, IntegrityBroken
from ductile.core.files import FileRefused
from ductile.core.formats import strict_yaml
from tests.config.conftest import Home

ROOT = """\
include: [tokens.yaml, webhooks.yaml, plugins.yaml]
environment_vars: {include: [.env]}
plugin_roots: [plugins]
"""
STRICT = [
    "strict_mode: true",
    "admission: {verify_integrity_on_boot: true}",
    "admission: {fail_on_drift: true}",
]


@pytest.fixture
def sealed(home: Home) -> Home:
    """A configuration of several files and a plugin, sealed."""
    home.plugin("echo")
    home.write("plugins/echo/lib/helper.py", "x = 1")
    home.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234, scopes_file: scopes/t.json}]")
    home.write("scopes/t.json", '{"scopes": ["plugin:ro"]}')
    home.write("webhooks.yaml", "webhooks: {endpoints: []}")
    home.write("plugins.yaml", "plugins: {echo: {}}")
    home.write(".env", "A=1")
    home.write("config.yaml", ROOT)
    home.lock()
    return home


def admit(home: Home, service: str) -> None:
    """The root asks for `service`, and that is sealed."""
    home.write(
        "config.yaml", f"{ROOT}service: {{{service}}}\napi: {{auth: {{tokens: [{{token: 0123456789abcdef}}]}}}}\n"
    )
    home.lock()


def integrity_warnings(home: Home) -> list[str]:
    return [warning.message for warning in home.examine().report.warnings if warning.category == "integrity"]


def broken(home: Home) -> str:
    with pytest.raises(IntegrityBroken) as caught:
        home.load()
    assert caught.value.exit_code == 78
    assert "ductile config lock" in caught.value.hint
    return str(caught.value)


# What a seal holds


def test_a_sealed_configuration_loads_without_a_word(sealed: Home) -> None:
    """Nothing differs."""
    assert integrity_warnings(sealed) == []


def test_the_seal_has_every_loaded_file_under_its_absolute_path(sealed: Home) -> None:
    """Scope files and .env too; itself never."""
    names = ["config.yaml", "tokens.yaml", "webhooks.yaml", "plugins.yaml", ".env", "scopes/t.json"]
    seal = read_seal(sealed.folder / SEAL_FILE)
    assert seal is not None
    expected = {str(sealed.folder / name): blake3((sealed.folder / name).read_bytes()).hexdigest() for name in names}
    assert seal.hashes == expected


def test_the_seal_is_written_as_the_original_did(sealed: Home) -> None:
    """Version 2, BLAKE3, one fingerprint per configured plugin; mode 0600."""
    written = strict_yaml.load((sealed.folder / SEAL_FILE).read_bytes(), source="seal").data()
    assert list(written) == ["version", "generated_at", "generated_by", "hashes", "plugin_fingerprints"]
    assert (written["version"], written["generated_at"]) == (2, "2026-02-08T09:30:00.000000Z")
    (plugin,) = written["plugin_fingerprints"]
    assert plugin["name"] == "echo"
    assert plugin["manifest_path"] == str(sealed.folder / "plugins/echo/manifest.yaml")
    assert plugin["manifest_hash"] == blake3((sealed.folder / "plugins/echo/manifest.yaml").read_bytes()).hexdigest()
    assert plugin["entrypoint_hash"] == blake3(b"#!/bin/sh\n").hexdigest()
    assert (sealed.folder / SEAL_FILE).stat().st_mode & 0o777 == 0o600


def test_sealing_twice_changes_nothing(sealed: Home) -> None:
    """Not even the date of the seal."""
    before = (sealed.folder / SEAL_FILE).stat()
    assert sealed.lock().changes == []
    after = (sealed.folder / SEAL_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_dry_run_says_what_would_change_and_changes_nothing(sealed: Home) -> None:
    """Added, gone and changed, files and plugins."""
    sealed.plugin("other")
    sealed.write("plugins.yaml", "plugins: {other: {}}\ninclude: [more.yaml]")
    sealed.write("more.yaml", "")
    sealed.write("config.yaml", ROOT.replace("environment_vars: {include: [.env]}\n", ""))
    before = sealed.contents()
    told = [change.replace(f"{sealed.folder}/", "") for change in sealed.lock(dry_run=True).changes]
    assert told == ["- .env", "~ config.yaml", "+ more.yaml", "~ plugins.yaml", "- plugin echo", "+ plugin other"]
    assert sealed.contents() == before


def test_sealing_needs_the_enabled_plugins_only(home: Home) -> None:
    """A disabled plugin that is not there is no reason to seal nothing."""
    home.plugin("echo")
    home.write("config.yaml", "plugin_roots: [plugins]\nplugins: {echo: {}, gone: {enabled: false}}")
    assert set(home.lock().seal.plugins) == {"echo"}
    home.write("config.yaml", "plugin_roots: [plugins]\nplugins: {echo: {}, gone: {}}")
    before = home.contents()
    with pytest.raises(ConfigInvalid, match=r"plugins\.gone: cannot be sealed: it is in none of the plugin_roots"):
        home.lock()
    assert home.contents() == before


@pytest.mark.parametrize(
    "content", [b"\0", b"[]", b"version: 3\nhashes: {}\n", b"version: 2\nhashes: []\n", b"a: [", b""]
)
def test_a_damaged_seal_is_refused_and_can_be_made_anew(home: Home, content: bytes) -> None:
    """The hint says `config lock`, and that helps."""
    home.write("config.yaml", "")
    home.write(SEAL_FILE, content)
    assert SEAL_FILE in broken(home)
    home.lock()
    assert home.load().seal is not None


PLUGIN = {"name": "a", "manifest_path": "m", "manifest_hash": "h", "entrypoint_path": "e", "entrypoint_hash": "h"}


@pytest.mark.parametrize(
    "entry",
    [
        "a",
        5,
        None,
        {},
        {"name": "a"},
        [],
        PLUGIN | {"files": ["abc"]},
        PLUGIN | {"files": 5},
        PLUGIN | {"files": "abc"},
        PLUGIN | {"manifest_path": 1},
        PLUGIN | {"manifest_path": {}},
        PLUGIN | {"name": []},
    ],
)
def test_a_seal_with_damaged_fingerprints_is_refused(home: Home, entry: Any) -> None:
    """Garbage in the seal is an integrity failure, never a crash."""
    home.write("config.yaml", "")
    home.write(SEAL_FILE, strict_yaml.dump({"version": 2, "hashes": {}, "plugin_fingerprints": [entry]}))
    assert "damaged plugin_fingerprints" in broken(home)


def test_a_seal_that_others_can_write_vouches_for_nothing(sealed: Home) -> None:
    """Whoever can write it can approve anything."""
    (sealed.folder / SEAL_FILE).chmod(0o666)
    assert "is world-writable" in broken(sealed)
    if os.geteuid() == 0:
        (sealed.folder / SEAL_FILE).chmod(0o600)
        os.chown(sealed.folder / SEAL_FILE, 54321, 54321)
        assert "belongs to uid 54321" in broken(sealed)


def test_a_seal_that_is_a_link_or_a_fifo_is_refused_and_never_written_through(sealed: Home, tmp_path: Path) -> None:
    """Sealing does not overwrite what a link leads to."""
    target = tmp_path / "victim"
    target.write_text("precious")
    for make in (lambda path: path.symlink_to(target), os.mkfifo):
        (sealed.folder / SEAL_FILE).unlink()
        make(sealed.folder / SEAL_FILE)
        assert "not a regular file" in broken(sealed)
        with pytest.raises(FileRefused):
            sealed.lock()
    assert target.read_text() == "precious"


# Tiers


@pytest.mark.parametrize("name", ["tokens.yaml", "webhooks.yaml", "scopes/t.json"])
@pytest.mark.parametrize("change", ["changed", "unsealed", "no seal"])
def test_files_that_decide_who_comes_in_must_be_sealed(sealed: Home, name: str, change: str) -> None:
    """Changed, missing from the seal, or without any seal: no start."""
    path = sealed.folder / name
    if change == "changed":
        path.write_bytes(path.read_bytes() + b"\n")
        assert f"{path}:1: has changed since it was sealed" in broken(sealed)
    elif change == "unsealed":
        text = (sealed.folder / SEAL_FILE).read_text()
        sealed.write(SEAL_FILE, "".join(line for line in text.splitlines(True) if str(path) not in line))
        assert f"{path}:1: is not in the seal" in broken(sealed)
    else:
        (sealed.folder / SEAL_FILE).unlink()
        assert "is not in the seal" in broken(sealed)


@pytest.mark.parametrize("name", ["config.yaml", "plugins.yaml", ".env"])
def test_other_files_that_changed_are_warned_about(sealed: Home, name: str) -> None:
    """And refused where the admission asks for it."""
    path = sealed.folder / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert [message.partition(";")[0] for message in integrity_warnings(sealed)] == ["has changed since it was sealed"]


@pytest.mark.parametrize("service", STRICT)
@pytest.mark.parametrize("name", ["plugins.yaml", ".env"])
def test_every_strict_switch_refuses_a_changed_file(sealed: Home, service: str, name: str) -> None:
    """`strict_mode` and each switch that speaks of integrity."""
    admit(sealed, service)
    sealed.write(name, (sealed.folder / name).read_bytes() + b"\n")
    assert f"{name}:1: has changed since it was sealed" in broken(sealed)


@pytest.mark.parametrize(("service", "refused"), [(STRICT[0], True), (STRICT[1], False), (STRICT[2], True)])
def test_a_file_that_was_never_sealed_is_drift(sealed: Home, service: str, refused: bool) -> None:
    """Verifying asks for what was sealed; `fail_on_drift` asks for everything."""
    sealed.write("conf.d/a.yaml", "")
    sealed.write("plugins.yaml", "plugins: {echo: {}}\ninclude: [conf.d]")
    admit(sealed, service)
    sealed.write("conf.d/b.yaml", "service: {name: intruder}")
    if refused:
        assert "b.yaml:1: is not in the seal" in broken(sealed)
    else:
        assert sealed.load().settings.service.name == "intruder"


@pytest.mark.parametrize("service", ["name: x", *STRICT])
def test_a_sealed_file_that_is_no_longer_loaded_is_told(sealed: Home, service: str) -> None:
    """Taking a file away changes a configuration as much as editing it."""
    sealed.write("conf.d/limits.yaml", "service: {max_workers: 1}")
    sealed.write("plugins.yaml", "plugins: {echo: {}}\ninclude: [conf.d]")
    admit(sealed, service)
    (sealed.folder / "conf.d/limits.yaml").unlink()
    if service == "name: x":
        assert [message.partition(";")[0] for message in integrity_warnings(sealed)] == [
            "is sealed but no longer loaded"
        ]
    else:
        assert "limits.yaml:1: is sealed but no longer loaded" in broken(sealed)


@pytest.mark.parametrize(
    "service", ["admission: {validate_config_on_boot: true}", "admission: {require_api_auth: true}"]
)
def test_switches_about_other_things_leave_changed_files_alone(sealed: Home, service: str) -> None:
    """They are independent."""
    admit(sealed, service)
    sealed.write("plugins.yaml", "plugins: {echo: {}}\n")
    assert len(integrity_warnings(sealed)) == 1


def test_without_any_seal_a_configuration_without_secrets_still_loads(home: Home) -> None:
    """With one word about it."""
    home.write("config.yaml", "plugin_roots: [plugins]")
    (warning,) = (warning for warning in home.load().warnings if warning.category == "integrity")
    assert warning.message == "nothing is sealed yet; approve what is there with `ductile config lock`"


def test_strict_mode_without_a_seal_is_refused(home: Home) -> None:
    """Nothing was approved."""
    home.write("config.yaml", "service: {strict_mode: true}\napi: {auth: {tokens: [{token: 0123456789abcdef}]}}")
    assert "config.yaml:1: is not in the seal" in broken(home)


# The original's seal


def as_the_original(home: Home, *names: str) -> None:
    """A seal with `names` only, as the original writes it."""
    hashes = {str(home.folder / name): blake3((home.folder / name).read_bytes()).hexdigest() for name in names}
    fields = ("name", "enabled", "manifest_path", "manifest_hash", "entrypoint_path", "entrypoint_hash")
    made = strict_yaml.load((home.folder / SEAL_FILE).read_bytes(), source="seal").data()
    plugins = [{key: entry[key] for key in fields} for entry in made["plugin_fingerprints"]]
    content = {"version": 2, "generated_at": "2026-01-01T00:00:00Z", "hashes": hashes, "plugin_fingerprints": plugins}
    home.write(SEAL_FILE, strict_yaml.dump(content))


def test_a_seal_of_the_original_has_fewer_entries_and_still_counts(sealed: Home) -> None:
    """What it lacks warns, even in strict mode; what it has must match."""
    admit(sealed, "strict_mode: true")
    sealed.write("unused.yaml", "")
    as_the_original(sealed, "tokens.yaml", "webhooks.yaml", "scopes/t.json", "config.yaml", "unused.yaml")
    report = sealed.examine().report
    told = {
        str(warning).replace(f"{sealed.folder}/", "") for warning in report.warnings if warning.category == "integrity"
    }
    assert {text.partition(";")[0] for text in told} == {
        "plugins.yaml:1: is not in the seal",
        ".env:1: is not in the seal",
        "unused.yaml:1: is sealed but no longer loaded",
    }
    assert [error for error in report.errors if error.category == "integrity"] == []
    sealed.write("webhooks.yaml", "webhooks: {listen: 'localhost:9'}")
    assert "webhooks.yaml:1: has changed" in broken(sealed)


# Plugins


def plugin_drift(home: Home) -> tuple[list[str], list[str]]:
    """Errors and warnings about plugins that are not the sealed ones."""
    report = home.examine().report
    told = [
        [complaint.message.partition(";")[0] for complaint in side if complaint.category == "integrity"]
        for side in (report.errors, report.warnings)
    ]
    return told[0], told[1]


def change_manifest(home: Home) -> None:
    home.plugin("echo", commands="poll handle extra")


def change_entrypoint(home: Home) -> None:
    home.write("plugins/echo/run.sh", "#!/bin/sh\nexit 1\n", mode=0o700)


def change_helper(home: Home) -> None:
    home.write("plugins/echo/lib/helper.py", "x = 2")


def add_file(home: Home) -> None:
    home.write("plugins/echo/lib/sitecustomize.py", "x = 2")


def remove_helper(home: Home) -> None:
    (home.folder / "plugins/echo/lib/helper.py").unlink()


CHANGES: list[tuple[Callable[[Home], None], str]] = [
    (change_manifest, "has another manifest than the sealed one"),
    (change_entrypoint, "has another entrypoint than the sealed one"),
    (change_helper, "has other files than the sealed ones: lib/helper.py"),
    (add_file, "has other files than the sealed ones: lib/sitecustomize.py"),
    (remove_helper, "has other files than the sealed ones: lib/helper.py"),
]


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_a_plugin_that_is_not_the_sealed_one_is_told(sealed: Home, change: Callable[[Home], None], told: str) -> None:
    """Manifest, entrypoint, and the files beside them."""
    change(sealed)
    assert plugin_drift(sealed) == ([], [f"plugin echo {told}"])


@pytest.mark.parametrize("service", STRICT)
@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_every_strict_switch_refuses_a_changed_plugin(
    sealed: Home, service: str, change: Callable[[Home], None], told: str
) -> None:
    """The doctor's error stops the start."""
    admit(sealed, service)
    change(sealed)
    assert plugin_drift(sealed) == ([f"plugin echo {told}"], [])


def test_a_file_beside_a_plugin_that_was_sealed_alone_is_told(sealed: Home) -> None:
    """Nothing was approved beside it: a module that comes there later would be imported all the same."""
    remove_helper(sealed)
    admit(sealed, "strict_mode: true")
    sealed.write("plugins/echo/json.py", "x = 2")
    assert plugin_drift(sealed) == (["plugin echo has other files than the sealed ones: json.py"], [])


def test_a_disabled_plugin_that_changed_is_only_a_warning(sealed: Home) -> None:
    """Nothing can start it."""
    sealed.write("plugins.yaml", "plugins: {echo: {enabled: false}}")
    admit(sealed, "strict_mode: true")
    change_entrypoint(sealed)
    assert plugin_drift(sealed) == ([], ["plugin echo has another entrypoint than the sealed one"])


def test_a_plugin_that_moved_with_the_same_content_is_only_a_warning(sealed: Home) -> None:
    """The same bytes somewhere else."""
    admit(sealed, "strict_mode: true")
    (sealed.folder / "plugins/echo").rename(sealed.folder / "plugins/renamed")
    errors, (warning,) = plugin_drift(sealed)
    assert errors == []
    assert warning.startswith("plugin echo has moved from")


def test_a_configured_plugin_that_is_not_in_the_seal_is_drift(sealed: Home) -> None:
    """A warning, or an error in strict mode."""
    sealed.plugin("new")
    sealed.write("plugins.yaml", "plugins: {echo: {}, new: {}}")
    assert "plugin new is not in the seal" in plugin_drift(sealed)[1]


@pytest.mark.parametrize("service", ["strict_mode: true", "admission: {fail_on_drift: true}"])
def test_a_plugin_without_an_entry_is_not_used_where_all_must_be_sealed(sealed: Home, service: str) -> None:
    """Nobody has approved it; the rest goes on. The seal has configured plugins alone."""
    admit(sealed, service)
    sealed.plugin("stray")

    found = sealed.examine()
    assert found.plugins.keys() == {"echo"}
    assert "is not in the seal" in found.unusable["stray"]
    assert found.report.is_valid
    assert any("stray" in warning.message and "config lock" in warning.message for warning in found.report.warnings)


def test_the_code_behind_a_sealed_alias_is_sealed(sealed: Home) -> None:
    """It has no entry of its own, and the same bytes."""
    sealed.write("plugins.yaml", "plugins: {other: {uses: echo}}")
    admit(sealed, "strict_mode: true")
    assert sealed.examine().plugins.keys() == {"echo", "other"}


def test_a_plugin_without_an_entry_can_be_used_where_a_difference_is_only_told(sealed: Home) -> None:
    """As documented: triggered, not scheduled."""
    sealed.plugin("stray")
    assert sealed.examine().plugins.keys() == {"echo", "stray"}


def test_a_sealed_plugin_that_is_no_longer_configured_is_noted(sealed: Home) -> None:
    """A warning, whatever the switches."""
    sealed.write("plugins.yaml", "plugins: {}")
    assert "plugin echo is sealed but no longer configured or found" in plugin_drift(sealed)[1]


# Verified bytes are the parsed bytes


def test_every_file_is_read_exactly_once(sealed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hashing and parsing there is no second look that could see something else."""
    read: list[Path] = []
    original = files.read_regular

    def counting(path: Path, **options: Any) -> files.FileBytes:
        read.append(path)
        return original(path, **options)

    monkeypatch.setattr(files, "read_regular", counting)
    config = sealed.load()
    assert sorted(read) == sorted([*(source.path for source in config.files), sealed.folder / SEAL_FILE])


def test_what_was_hashed_is_what_was_parsed(sealed: Home) -> None:
    """A file replaced after the load changes nothing in it."""
    config = sealed.load()
    digests = {source.path.name: source.digest for source in config.files}
    assert digests["tokens.yaml"] == blake3((sealed.folder / "tokens.yaml").read_bytes()).hexdigest()
    assert all(source.digest == blake3(source.content).hexdigest() for source in config.files)


def test_the_digests_tell_configurations_apart(sealed: Home) -> None:
    """The source digest changes with every byte, the digest with every setting."""
    before = sealed.load()
    sealed.write("plugins.yaml", "# a comment\nplugins: {echo: {}}")
    after = sealed.load()
    assert before.source_digest != after.source_digest
    assert before.digest == after.digest


def test_without_a_seal_before_everything_is_added(sealed: Home) -> None:
    """`changes` compares with nothing."""
    seal = read_seal(sealed.folder / SEAL_FILE)
    assert seal is not None
    assert {line[0] for line in changes(None, seal)} == {"+"}
    assert changes(seal, seal) == []
