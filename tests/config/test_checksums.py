"""The seal: approved files are loaded; all other files are reported or refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ductile.config.checksums import SEAL_FILE, changes, read_seal
from ductile.core import files
from ductile.core.errors import ConfigInvalid, IntegrityBroken
from ductile.core.files import FileRefused
from ductile.core.formats import strict_yaml
from tests.config.conftest import ConfigDir

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
def sealed_config(config_dir: ConfigDir) -> ConfigDir:
    """A sealed configuration of several files and a plugin."""
    config_dir.plugin("echo")
    config_dir.write("plugins/echo/lib/helper.py", "x = 1")
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234, scopes_file: scopes/t.json}]")
    config_dir.write("scopes/t.json", '{"scopes": ["plugin:ro"]}')
    config_dir.write("webhooks.yaml", "webhooks: {endpoints: []}")
    config_dir.write("plugins.yaml", "plugins: {echo: {}}")
    config_dir.write(".env", "A=1")
    config_dir.write("config.yaml", ROOT)
    config_dir.seal()
    return config_dir


def set_admission(config_dir: ConfigDir, service: str) -> None:
    """Write `service` settings to the root file and seal it."""
    config_dir.write(
        "config.yaml", f"{ROOT}service: {{{service}}}\napi: {{auth: {{tokens: [{{token: 0123456789abcdef}}]}}}}\n"
    )
    config_dir.seal()


def integrity_warnings(config_dir: ConfigDir) -> list[str]:
    return [warning.message for warning in config_dir.examine().report.warnings if warning.category == "integrity"]


def integrity_errors(config_dir: ConfigDir) -> str:
    with pytest.raises(IntegrityBroken) as caught:
        config_dir.load()
    assert caught.value.exit_code == 78
    assert "ductile config lock" in caught.value.hint
    return str(caught.value)


# Content of the seal


def test_a_sealed_configuration_has_no_integrity_warnings(sealed_config: ConfigDir) -> None:
    assert integrity_warnings(sealed_config) == []


def test_the_seal_contains_every_loaded_file_by_absolute_path(sealed_config: ConfigDir) -> None:
    """Including scope files and .env, but not the seal itself."""
    names = ["config.yaml", "tokens.yaml", "webhooks.yaml", "plugins.yaml", ".env", "scopes/t.json"]
    seal = read_seal(sealed_config.path / SEAL_FILE)
    assert seal is not None
    expected = {
        str(sealed_config.path / name): blake3((sealed_config.path / name).read_bytes()).hexdigest() for name in names
    }
    assert seal.hashes == expected


def test_the_format_of_the_seal_is_that_of_the_original_implementation(sealed_config: ConfigDir) -> None:
    """Version 2, BLAKE3, one fingerprint per configured plugin; mode 0600."""
    written = strict_yaml.load((sealed_config.path / SEAL_FILE).read_bytes(), source="seal").data()
    assert list(written) == ["version", "generated_at", "generated_by", "sealed_by", "hashes", "plugin_fingerprints"]
    assert (written["version"], written["generated_at"]) == (2, "2026-02-08T09:30:00.000000Z")
    (plugin,) = written["plugin_fingerprints"]
    assert plugin["name"] == "echo"
    assert plugin["manifest_path"] == str(sealed_config.path / "plugins/echo/manifest.yaml")
    assert (
        plugin["manifest_hash"] == blake3((sealed_config.path / "plugins/echo/manifest.yaml").read_bytes()).hexdigest()
    )
    assert plugin["entrypoint_hash"] == blake3(b"#!/bin/sh\n").hexdigest()
    assert (sealed_config.path / SEAL_FILE).stat().st_mode & 0o777 == 0o600


def test_sealing_twice_does_not_write_the_seal_again(sealed_config: ConfigDir) -> None:
    before = (sealed_config.path / SEAL_FILE).stat()
    assert sealed_config.seal().changes == []
    after = (sealed_config.path / SEAL_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_dry_run_lists_changes_and_writes_nothing(sealed_config: ConfigDir) -> None:
    """Added, removed and changed files and plugins."""
    sealed_config.plugin("other")
    sealed_config.write("plugins.yaml", "plugins: {other: {}}\ninclude: [more.yaml]")
    sealed_config.write("more.yaml", "")
    sealed_config.write("config.yaml", ROOT.replace("environment_vars: {include: [.env]}\n", ""))
    before = sealed_config.read_files()
    lines = [change.replace(f"{sealed_config.path}/", "") for change in sealed_config.seal(dry_run=True).changes]
    assert lines == ["- .env", "~ config.yaml", "+ more.yaml", "~ plugins.yaml", "- plugin echo", "+ plugin other"]
    assert sealed_config.read_files() == before


def test_sealing_requires_only_enabled_plugins(config_dir: ConfigDir) -> None:
    config_dir.plugin("echo")
    config_dir.write("config.yaml", "plugin_roots: [plugins]\nplugins: {echo: {}, gone: {enabled: false}}")
    assert set(config_dir.seal().seal.plugins) == {"echo"}
    config_dir.write("config.yaml", "plugin_roots: [plugins]\nplugins: {echo: {}, gone: {}}")
    before = config_dir.read_files()
    with pytest.raises(ConfigInvalid, match=r"plugins\.gone: cannot be sealed: it is in none of the plugin_roots"):
        config_dir.seal()
    assert config_dir.read_files() == before


@pytest.mark.parametrize(
    "content", [b"\0", b"[]", b"version: 3\nhashes: {}\n", b"version: 2\nhashes: []\n", b"a: [", b""]
)
def test_a_damaged_seal_is_refused_and_can_be_replaced(config_dir: ConfigDir, content: bytes) -> None:
    """The hint is `config lock`."""
    config_dir.write("config.yaml", "")
    config_dir.write(SEAL_FILE, content)
    assert SEAL_FILE in integrity_errors(config_dir)
    config_dir.seal()
    assert config_dir.load().seal is not None


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
def test_a_seal_with_damaged_fingerprints_is_refused(config_dir: ConfigDir, entry: Any) -> None:
    config_dir.write("config.yaml", "")
    config_dir.write(SEAL_FILE, strict_yaml.dump({"version": 2, "hashes": {}, "plugin_fingerprints": [entry]}))
    assert "damaged plugin_fingerprints" in integrity_errors(config_dir)


def test_a_seal_that_other_users_can_write_is_refused(sealed_config: ConfigDir) -> None:
    (sealed_config.path / SEAL_FILE).chmod(0o666)
    assert "is world-writable" in integrity_errors(sealed_config)
    if os.geteuid() == 0:
        (sealed_config.path / SEAL_FILE).chmod(0o600)
        os.chown(sealed_config.path / SEAL_FILE, 54321, 54321)
        assert "belongs to uid 54321" in integrity_errors(sealed_config)


def test_a_seal_that_is_a_symlink_or_a_fifo_is_refused_and_not_followed(
    sealed_config: ConfigDir, tmp_path: Path
) -> None:
    """Sealing does not overwrite the target of a symlink."""
    target = tmp_path / "victim"
    target.write_text("precious")
    for make in (lambda path: path.symlink_to(target), os.mkfifo):
        (sealed_config.path / SEAL_FILE).unlink()
        make(sealed_config.path / SEAL_FILE)
        assert "not a regular file" in integrity_errors(sealed_config)
        with pytest.raises(FileRefused):
            sealed_config.seal()
    assert target.read_text() == "precious"


# Tiers


@pytest.mark.parametrize("name", ["tokens.yaml", "webhooks.yaml", "scopes/t.json"])
@pytest.mark.parametrize("change", ["changed", "unsealed", "no seal"])
def test_high_tier_files_must_be_sealed(sealed_config: ConfigDir, name: str, change: str) -> None:
    """A start is refused if they are changed, missing from the seal, or if there is no seal."""
    path = sealed_config.path / name
    if change == "changed":
        path.write_bytes(path.read_bytes() + b"\n")
        assert f"{path}:1: has changed since it was sealed" in integrity_errors(sealed_config)
    elif change == "unsealed":
        text = (sealed_config.path / SEAL_FILE).read_text()
        sealed_config.write(SEAL_FILE, "".join(line for line in text.splitlines(True) if str(path) not in line))
        assert f"{path}:1: is not in the seal" in integrity_errors(sealed_config)
    else:
        (sealed_config.path / SEAL_FILE).unlink()
        assert "is not in the seal" in integrity_errors(sealed_config)


@pytest.mark.parametrize("name", ["config.yaml", "plugins.yaml", ".env"])
def test_a_change_of_another_file_is_a_warning(sealed_config: ConfigDir, name: str) -> None:
    path = sealed_config.path / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert [message.partition(";")[0] for message in integrity_warnings(sealed_config)] == [
        "has changed since it was sealed"
    ]


@pytest.mark.parametrize("service", STRICT)
@pytest.mark.parametrize("name", ["plugins.yaml", ".env"])
def test_every_integrity_setting_refuses_a_changed_file(sealed_config: ConfigDir, service: str, name: str) -> None:
    set_admission(sealed_config, service)
    sealed_config.write(name, (sealed_config.path / name).read_bytes() + b"\n")
    assert f"{name}:1: has changed since it was sealed" in integrity_errors(sealed_config)


@pytest.mark.parametrize(("service", "refused"), [(STRICT[0], True), (STRICT[1], False), (STRICT[2], True)])
def test_only_fail_on_drift_refuses_a_file_that_was_never_sealed(
    sealed_config: ConfigDir, service: str, refused: bool
) -> None:
    """`strict_mode` includes it; `verify_integrity_on_boot` checks only sealed files."""
    sealed_config.write("conf.d/a.yaml", "")
    sealed_config.write("plugins.yaml", "plugins: {echo: {}}\ninclude: [conf.d]")
    set_admission(sealed_config, service)
    sealed_config.write("conf.d/b.yaml", "service: {name: intruder}")
    if refused:
        assert "b.yaml:1: is not in the seal" in integrity_errors(sealed_config)
    else:
        assert sealed_config.load().settings.service.name == "intruder"


@pytest.mark.parametrize("service", ["name: x", *STRICT])
def test_a_sealed_file_that_is_no_longer_loaded_is_drift(sealed_config: ConfigDir, service: str) -> None:
    """Removing a file changes a configuration too."""
    sealed_config.write("conf.d/limits.yaml", "service: {max_workers: 1}")
    sealed_config.write("plugins.yaml", "plugins: {echo: {}}\ninclude: [conf.d]")
    set_admission(sealed_config, service)
    (sealed_config.path / "conf.d/limits.yaml").unlink()
    if service == "name: x":
        assert [message.partition(";")[0] for message in integrity_warnings(sealed_config)] == [
            "is sealed but no longer loaded"
        ]
    else:
        assert "limits.yaml:1: is sealed but no longer loaded" in integrity_errors(sealed_config)


@pytest.mark.parametrize(
    "service", ["admission: {validate_config_on_boot: true}", "admission: {require_api_auth: true}"]
)
def test_other_admission_settings_do_not_refuse_changed_files(sealed_config: ConfigDir, service: str) -> None:
    set_admission(sealed_config, service)
    sealed_config.write("plugins.yaml", "plugins: {echo: {}}\n")
    assert len(integrity_warnings(sealed_config)) == 1


def test_a_configuration_without_secrets_loads_without_a_seal(config_dir: ConfigDir) -> None:
    """With one warning."""
    config_dir.write("config.yaml", "plugin_roots: [plugins]")
    (warning,) = (warning for warning in config_dir.load().warnings if warning.category == "integrity")
    assert warning.message == "there is no seal; create one with `ductile config lock`"


def test_strict_mode_without_a_seal_is_refused(config_dir: ConfigDir) -> None:
    config_dir.write("config.yaml", "service: {strict_mode: true}\napi: {auth: {tokens: [{token: 0123456789abcdef}]}}")
    assert "config.yaml:1: is not in the seal" in integrity_errors(config_dir)


# Seals of the original implementation


def write_original_seal(config_dir: ConfigDir, *names: str) -> None:
    """Write a seal of these files in the format of the original implementation."""
    hashes = {str(config_dir.path / name): blake3((config_dir.path / name).read_bytes()).hexdigest() for name in names}
    fields = ("name", "enabled", "manifest_path", "manifest_hash", "entrypoint_path", "entrypoint_hash")
    seal = strict_yaml.load((config_dir.path / SEAL_FILE).read_bytes(), source="seal").data()
    plugins = [{key: entry[key] for key in fields} for entry in seal["plugin_fingerprints"]]
    content = {"version": 2, "generated_at": "2026-01-01T00:00:00Z", "hashes": hashes, "plugin_fingerprints": plugins}
    config_dir.write(SEAL_FILE, strict_yaml.dump(content))


def test_a_seal_of_the_original_implementation_is_accepted(sealed_config: ConfigDir) -> None:
    """Missing entries are warnings, even in strict mode; existing entries must match."""
    set_admission(sealed_config, "strict_mode: true")
    sealed_config.write("unused.yaml", "")
    write_original_seal(sealed_config, "tokens.yaml", "webhooks.yaml", "scopes/t.json", "config.yaml", "unused.yaml")
    report = sealed_config.examine().report
    problems = {
        str(warning).replace(f"{sealed_config.path}/", "")
        for warning in report.warnings
        if warning.category == "integrity"
    }
    assert {text.partition(";")[0] for text in problems} == {
        "plugins.yaml:1: is not in the seal",
        ".env:1: is not in the seal",
        "unused.yaml:1: is sealed but no longer loaded",
    }
    assert [error for error in report.errors if error.category == "integrity"] == []
    sealed_config.write("webhooks.yaml", "webhooks: {listen: 'localhost:9'}")
    assert "webhooks.yaml:1: has changed" in integrity_errors(sealed_config)


# Plugins


def plugin_drift(config_dir: ConfigDir) -> tuple[list[str], list[str]]:
    """Return the errors and the warnings about plugins that differ from the seal."""
    report = config_dir.examine().report
    problems = [
        [complaint.message.partition(";")[0] for complaint in side if complaint.category == "integrity"]
        for side in (report.errors, report.warnings)
    ]
    return problems[0], problems[1]


def change_manifest(config_dir: ConfigDir) -> None:
    config_dir.plugin("echo", commands="poll handle extra")


def change_entrypoint(config_dir: ConfigDir) -> None:
    config_dir.write("plugins/echo/run.sh", "#!/bin/sh\nexit 1\n", mode=0o700)


def change_helper(config_dir: ConfigDir) -> None:
    config_dir.write("plugins/echo/lib/helper.py", "x = 2")


def add_file(config_dir: ConfigDir) -> None:
    config_dir.write("plugins/echo/lib/sitecustomize.py", "x = 2")


def remove_helper(config_dir: ConfigDir) -> None:
    (config_dir.path / "plugins/echo/lib/helper.py").unlink()


CHANGES: list[tuple[Callable[[ConfigDir], None], str]] = [
    (change_manifest, "has a different manifest than sealed"),
    (change_entrypoint, "has a different entrypoint than sealed"),
    (change_helper, "has different files than sealed: lib/helper.py"),
    (add_file, "has different files than sealed: lib/sitecustomize.py"),
    (remove_helper, "has different files than sealed: lib/helper.py"),
]


@pytest.mark.parametrize(("change", "problem"), CHANGES)
def test_a_plugin_that_differs_from_the_seal_is_a_warning(
    sealed_config: ConfigDir, change: Callable[[ConfigDir], None], problem: str
) -> None:
    """Manifest, entrypoint, and other files."""
    change(sealed_config)
    assert plugin_drift(sealed_config) == ([], [f"plugin echo {problem}"])


@pytest.mark.parametrize("service", STRICT)
@pytest.mark.parametrize(("change", "problem"), CHANGES)
def test_every_integrity_setting_refuses_a_changed_plugin(
    sealed_config: ConfigDir, service: str, change: Callable[[ConfigDir], None], problem: str
) -> None:
    set_admission(sealed_config, service)
    change(sealed_config)
    assert plugin_drift(sealed_config) == ([f"plugin echo {problem}"], [])


def test_a_file_added_to_a_plugin_without_other_files_is_an_error(sealed_config: ConfigDir) -> None:
    """A module added later would be imported."""
    remove_helper(sealed_config)
    set_admission(sealed_config, "strict_mode: true")
    sealed_config.write("plugins/echo/json.py", "x = 2")
    assert plugin_drift(sealed_config) == (["plugin echo has different files than sealed: json.py"], [])


def test_a_changed_disabled_plugin_is_a_warning(sealed_config: ConfigDir) -> None:
    sealed_config.write("plugins.yaml", "plugins: {echo: {enabled: false}}")
    set_admission(sealed_config, "strict_mode: true")
    change_entrypoint(sealed_config)
    assert plugin_drift(sealed_config) == ([], ["plugin echo has a different entrypoint than sealed"])


def test_a_moved_plugin_with_the_same_content_is_a_warning(sealed_config: ConfigDir) -> None:
    set_admission(sealed_config, "strict_mode: true")
    (sealed_config.path / "plugins/echo").rename(sealed_config.path / "plugins/renamed")
    errors, (warning,) = plugin_drift(sealed_config)
    assert errors == []
    assert warning.startswith("plugin echo has moved from")


def test_a_configured_plugin_that_is_not_in_the_seal_is_drift(sealed_config: ConfigDir) -> None:
    sealed_config.plugin("new")
    sealed_config.write("plugins.yaml", "plugins: {echo: {}, new: {}}")
    assert "plugin new is not in the seal" in plugin_drift(sealed_config)[1]


@pytest.mark.parametrize("service", ["strict_mode: true", "admission: {fail_on_drift: true}"])
def test_a_plugin_without_an_entry_is_unusable_if_all_plugins_must_be_sealed(
    sealed_config: ConfigDir, service: str
) -> None:
    """The seal contains only configured plugins. The others stay usable."""
    set_admission(sealed_config, service)
    sealed_config.plugin("unconfigured")

    found = sealed_config.examine()
    assert found.plugins.keys() == {"echo"}
    assert "is not in the seal" in found.unusable["unconfigured"]
    assert found.report.is_valid
    assert any(
        "unconfigured" in warning.message and "config lock" in warning.message for warning in found.report.warnings
    )


def test_the_base_plugin_of_a_sealed_alias_is_usable(sealed_config: ConfigDir) -> None:
    """It has the same files."""
    sealed_config.write("plugins.yaml", "plugins: {other: {uses: echo}}")
    set_admission(sealed_config, "strict_mode: true")
    assert sealed_config.examine().plugins.keys() == {"echo", "other"}


def test_a_plugin_without_an_entry_is_usable_if_drift_is_only_a_warning(sealed_config: ConfigDir) -> None:
    sealed_config.plugin("unconfigured")
    assert sealed_config.examine().plugins.keys() == {"echo", "unconfigured"}


def test_a_sealed_plugin_that_is_no_longer_configured_is_a_warning(sealed_config: ConfigDir) -> None:
    sealed_config.write("plugins.yaml", "plugins: {}")
    assert "plugin echo is sealed but no longer configured or found" in plugin_drift(sealed_config)[1]


# The verified bytes are parsed


def test_every_file_is_read_exactly_once(sealed_config: ConfigDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the hashed and the parsed content could differ."""
    read: list[Path] = []
    original = files.read_regular

    def counting(path: Path, **options: Any) -> files.FileBytes:
        read.append(path)
        return original(path, **options)

    monkeypatch.setattr(files, "read_regular", counting)
    config = sealed_config.load()
    assert sorted(read) == sorted([*(source.path for source in config.files), sealed_config.path / SEAL_FILE])


def test_digests_are_those_of_the_parsed_content(sealed_config: ConfigDir) -> None:
    config = sealed_config.load()
    digests = {source.path.name: source.digest for source in config.files}
    assert digests["tokens.yaml"] == blake3((sealed_config.path / "tokens.yaml").read_bytes()).hexdigest()
    assert all(source.digest == blake3(source.content).hexdigest() for source in config.files)


def test_the_source_digest_changes_with_every_byte_and_the_digest_with_every_setting(sealed_config: ConfigDir) -> None:
    before = sealed_config.load()
    sealed_config.write("plugins.yaml", "# a comment\nplugins: {echo: {}}")
    after = sealed_config.load()
    assert before.source_digest != after.source_digest
    assert before.digest == after.digest


def test_changes_without_a_previous_seal_are_all_added(sealed_config: ConfigDir) -> None:
    seal = read_seal(sealed_config.path / SEAL_FILE)
    assert seal is not None
    assert {line[0] for line in changes(None, seal)} == {"+"}
    assert changes(seal, seal) == []
