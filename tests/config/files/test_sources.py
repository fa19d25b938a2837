"""The files of a configuration: includes, their order, `.env` files, and untrusted files."""

import os
import socket
from pathlib import Path

import pytest

from ductile.config.files.sources import MAX_INCLUDE_DEPTH, Tier, find_config
from ductile.config.load.load import load
from ductile.core.errors import ConfigInvalid, ConfigMissing
from tests.config.conftest import ConfigDir

# Includes


def test_included_files_are_merged_deeply_in_order(config_dir: ConfigDir) -> None:
    """Mappings by key, lists appended, later scalars win, also a later `false`."""
    config_dir.write("a.yaml", "plugins: {p: {enabled: true, config: {x: 1, deep: {one: 1}}}}\nplugin_roots: [one]")
    config_dir.write("b.yaml", "plugins: {p: {enabled: false, config: {deep: {two: 2}}}}\nplugin_roots: [two]")
    settings = config_dir.load(
        "include: [a.yaml, b.yaml]\nplugins: {p: {config: {x: 0, y: 9}}}\nplugin_roots: [zero]"
    ).settings
    assert settings.plugins["p"].enabled is False
    assert settings.plugins["p"].config == {"x": 1, "y": 9, "deep": {"one": 1, "two": 2}}
    assert [root.name for root in settings.plugin_roots] == ["zero", "one", "two"]


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ("service: {max_workers: 3}", "service: {max_workers: 5}", 5),
        ("service: {max_workers: 3}", "service:", 3),
        ("service: {max_workers: 3}", "service: {max_workers: }", 3),
        ("service:", "service: {max_workers: 5}", 5),
    ],
)
def test_an_empty_value_does_not_remove_an_earlier_one(
    config_dir: ConfigDir, earlier: str, later: str, expected: int
) -> None:
    config_dir.write("later.yaml", later)
    assert config_dir.load(f"include: [later.yaml]\n{earlier}").settings.service.max_workers == expected


def test_included_files_may_contain_any_section(config_dir: ConfigDir) -> None:
    """Unlike in the original implementation."""
    config_dir.write(
        "more.yaml",
        "service: {strict_mode: false, max_workers: 2}\napi: {max_concurrent_sync: 3}\ndatabase: {path: x.db}",
    )
    settings = config_dir.load("include: [more.yaml]").settings
    assert (settings.service.max_workers, settings.api.max_concurrent_sync) == (2, 3)
    assert settings.state.path == config_dir.path / "x.db"


def test_a_directory_includes_its_yaml_files_in_alphabetical_order(config_dir: ConfigDir) -> None:
    """Not hidden files, other extensions or subdirectories."""
    for name, roots in {"20.yaml": "b", "10.yaml": "a", ".x.yaml": "h", "30.yml": "n", "sub/40.yaml": "s"}.items():
        config_dir.write(f"conf.d/{name}", f"plugin_roots: [{roots}]")
    config = config_dir.load("include: [conf.d]")
    assert [root.name for root in config.settings.plugin_roots] == ["a", "b"]
    assert [source.path.name for source in config.files] == ["config.yaml", "10.yaml", "20.yaml"]


def test_relative_paths_start_at_the_file_that_contains_them(config_dir: ConfigDir) -> None:
    config_dir.write("team/all.yaml", "include: [more/x.yaml]\nplugin_roots: [plugins]")
    config_dir.write("team/more/x.yaml", "plugin_roots: [../other, /absolute]\nstate: {path: ledger.db}")
    settings = config_dir.load("include: [team/all.yaml]").settings
    roots = [os.path.normpath(root) for root in settings.plugin_roots]
    assert roots == [f"{config_dir.path}/team/plugins", f"{config_dir.path}/team/other", "/absolute"]
    assert settings.state.path == config_dir.path / "team/more/ledger.db"


def test_a_tilde_is_the_home_directory_of_the_current_user(
    config_dir: ConfigDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(config_dir.path))
    config_dir.write("mine/x.yaml", "plugin_roots: [~/plugins]")
    assert config_dir.load("include: [~/mine/x.yaml]").settings.plugin_roots == (config_dir.path / "plugins",)


def test_an_include_path_may_contain_a_variable(config_dir: ConfigDir) -> None:
    """Also a variable from an .env file."""
    config_dir.write(".env", "SITE=berlin")
    config_dir.write("berlin.yaml", "service: {name: b}")
    config_dir.write("config.yaml", "environment_vars: {include: [.env]}\ninclude: ['${SITE}.yaml']")
    assert config_dir.load().settings.service.name == "b"
    assert "include[0]: environment variable X is not set" in config_dir.errors("include: ['${X}.yaml']")


def test_a_file_that_is_included_twice_is_read_once(config_dir: ConfigDir) -> None:
    config_dir.write("a.yaml", "include: [shared.yaml]")
    config_dir.write("b.yaml", "include: [shared.yaml, ./a.yaml]")
    config_dir.write("shared.yaml", "plugin_roots: [one]")
    assert len(config_dir.load("include: [a.yaml, b.yaml]").settings.plugin_roots) == 1


@pytest.mark.parametrize(
    ("files", "cycle"),
    [
        ({"config.yaml": "include: [config.yaml]"}, "config.yaml → config.yaml"),
        (
            {"config.yaml": "include: [a.yaml]", "a.yaml": "include: [config.yaml]"},
            "config.yaml → a.yaml → config.yaml",
        ),
        (
            {"config.yaml": "include: [a.yaml]", "a.yaml": "include: [b.yaml]", "b.yaml": "include: [./a.yaml]"},
            "a.yaml → b.yaml → a.yaml",
        ),
    ],
)
def test_an_include_cycle_is_an_error_that_lists_the_files(
    config_dir: ConfigDir, files: dict[str, str], cycle: str
) -> None:
    for name, content in files.items():
        config_dir.write(name, content)
    assert f"include[0]: includes itself: {cycle}" in config_dir.errors()


def test_the_depth_of_includes_is_limited(config_dir: ConfigDir) -> None:
    for number in range(900):
        config_dir.write(f"f{number}.yaml", f"include: [f{number + 1}.yaml]")
    errors = config_dir.errors("include: [f0.yaml]")
    assert f"nested at most {MAX_INCLUDE_DEPTH} levels deep" in errors
    assert errors.count("\n") == 0


def test_the_number_of_files_is_limited(config_dir: ConfigDir) -> None:
    for number in range(1001):
        config_dir.write(f"many/{number}.yaml", "")
    assert "at most 1000 files" in config_dir.errors("include: [many]")


def test_a_missing_include_is_reported_with_its_absolute_path(config_dir: ConfigDir) -> None:
    config_dir.write("sub/a.yaml", "include: [../b.yaml]")
    (complaint,) = config_dir.complaints("include: [sub/a.yaml]")
    assert str(complaint) == (
        f"{config_dir.path}/sub/a.yaml:1: include[0]: {config_dir.path}/b.yaml does not exist "
        f"(searched in {config_dir.path}; paths are relative to the file that contains them)"
    )


def test_every_invalid_file_is_reported_and_the_others_are_still_checked(config_dir: ConfigDir) -> None:
    config_dir.write("a.yaml", "service: {max_workers: 0}")
    config_dir.write("b.yaml", "x: [")
    config_dir.write("c.yaml", "- a list\n")
    errors = config_dir.errors("include: [a.yaml, b.yaml, c.yaml, d.yaml]\nnonsense: 1")
    assert "a.yaml:1: service.max_workers" in errors
    assert "b.yaml:" in errors
    assert "c.yaml:1: expected a mapping of keys to values at the top" in errors
    assert "d.yaml does not exist (searched in" in errors
    assert "nonsense: unknown key" in errors


def test_tokens_are_only_allowed_in_tokens_yaml(config_dir: ConfigDir) -> None:
    """The seal of tokens.yaml is always verified."""
    errors = config_dir.errors("tokens: [{name: a, key: b}]")
    assert "config.yaml:1: tokens: is only allowed in an included file named tokens.yaml" in errors
    config_dir.write("secrets.yaml", "tokens: [{name: a, key: b}]")
    assert "secrets.yaml:1: tokens: is only allowed in" in config_dir.errors("include: [secrets.yaml]")


def test_allow_symlinks_is_only_allowed_in_the_root_file(config_dir: ConfigDir) -> None:
    """A file behind a symlink must not allow itself."""
    config_dir.write("a.yaml", "service: {allow_symlinks: true}")
    assert "a.yaml:1: service.allow_symlinks: is only allowed in the root file" in config_dir.errors(
        "include: [a.yaml]"
    )


def test_allow_symlinks_cannot_be_a_variable(config_dir: ConfigDir) -> None:
    errors = config_dir.errors("service: {allow_symlinks: '${LINKS}'}", {"LINKS": "true"})
    assert "service.allow_symlinks: must not use ${NAME}" in errors


# Invalid files


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fifo", "is a FIFO, not a regular file"),
        ("socket", "is a socket, not a regular file"),
        ("/dev/zero", "is a device, not a regular file"),
        ("/dev/tty", "is a device, not a regular file"),
        ("huge.yaml", "larger than the 1048576 bytes allowed here"),
        ("binary.yaml", "is not"),
        ("utf16.yaml", "is UTF-16"),
        ("nul.yaml", "the raw character \\u0000 is not allowed"),
        ("a" * 5000, "does not exist"),
    ],
)
def test_an_include_that_is_not_a_text_file_is_refused_without_blocking(
    config_dir: ConfigDir, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Special files are not opened, large files are not read."""
    os.mkfifo(config_dir.path / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(config_dir.path)
        listener.bind("socket")
    with open(config_dir.write("huge.yaml", b""), "r+b") as huge:
        huge.truncate(50 << 20)
    config_dir.write("binary.yaml", bytes(range(128, 256)) * 10)
    config_dir.write("utf16.yaml", "a: 1".encode("utf-16"))
    config_dir.write("nul.yaml", b"a: \0")
    assert reason in config_dir.errors(f"include: [{name}]")


def test_a_directory_entry_that_is_not_a_regular_file_is_refused(config_dir: ConfigDir) -> None:
    (config_dir.path / "conf.d/x.yaml").mkdir(parents=True, mode=0o700)
    os.mkfifo(config_dir.path / "conf.d/y.yaml", 0o600)
    config_dir.path.joinpath("conf.d").chmod(0o700)
    errors = config_dir.errors("include: [conf.d]")
    assert "x.yaml: is a directory" in errors
    assert "y.yaml: is a FIFO" in errors


def test_a_root_that_is_a_directory_or_a_fifo_is_refused(config_dir: ConfigDir) -> None:
    os.mkfifo(config_dir.root, 0o600)
    assert "config.yaml:1: is a FIFO" in config_dir.errors()
    with pytest.raises(ConfigInvalid, match="is a directory"):
        load(config_dir.path, environ={})


def test_a_missing_root_is_an_error_with_a_hint(config_dir: ConfigDir) -> None:
    with pytest.raises(ConfigMissing) as caught:
        config_dir.load()
    assert "ductile config init" in caught.value.hint


def test_file_names_that_are_not_utf8_are_refused(config_dir: ConfigDir) -> None:
    """They cannot be sealed."""
    os.makedirs(os.fsencode(config_dir.path) + b"/d\xff", mode=0o700)
    other = ConfigDir(Path(os.fsdecode(os.fsencode(config_dir.path) + b"/d\xff")))
    assert "the file name is not UTF-8" in other.errors("service: {}")
    (config_dir.path / "conf.d").mkdir(mode=0o700)
    Path(os.fsdecode(os.fsencode(config_dir.path) + b"/conf.d/\xfe.yaml")).write_text("")
    assert "\\xfe.yaml: the file name is not UTF-8" in config_dir.errors("include: [conf.d]")


# Symlinks


def test_a_symlink_is_refused_unless_the_root_allows_symlinks(config_dir: ConfigDir, tmp_path: Path) -> None:
    """An allowed symlink is a warning."""
    target = config_dir.write("real/a.yaml", "service: {name: linked}")
    (config_dir.path / "link.yaml").symlink_to(target)
    (config_dir.path / "linked").symlink_to(target.parent)
    for include in ("link.yaml", "linked/a.yaml", "linked"):
        assert "is a symlink to" in config_dir.errors(f"include: [{include}]")
        config = config_dir.load(f"include: [{include}]\nservice: {{allow_symlinks: yes}}")
        assert config.settings.service.name == "linked"
        assert any("is a symlink to" in warning.message for warning in config.warnings)


def test_a_root_that_is_a_symlink_is_refused_unless_allowed(config_dir: ConfigDir) -> None:
    config_dir.write("real.yaml", "service: {name: x}")
    config_dir.root.symlink_to("real.yaml")
    assert "is a symlink to real.yaml; set service.allow_symlinks: true" in config_dir.errors()
    config_dir.write("real.yaml", "service: {allow_symlinks: true}")
    assert config_dir.load().settings.service.allow_symlinks is True


@pytest.mark.parametrize("target", ["nowhere", "link.yaml"])
def test_a_dangling_or_circular_symlink_is_refused(config_dir: ConfigDir, target: str) -> None:
    (config_dir.path / "link.yaml").symlink_to(target)
    assert "link.yaml" in config_dir.errors("include: [link.yaml]\nservice: {allow_symlinks: yes}")


# Permissions


@pytest.mark.parametrize("name", ["config.yaml", "inc/a.yaml", ".env", "inc", "."])
def test_world_writable_files_and_directories_are_refused(config_dir: ConfigDir, name: str) -> None:
    config_dir.write(".env", "A=1")
    config_dir.write("inc/a.yaml", "")
    config_dir.write("config.yaml", "include: [inc/a.yaml]\nenvironment_vars: {include: [.env]}")
    config_dir.load()
    (config_dir.path / name).chmod(0o777)
    for complaint in config_dir.complaints():
        assert "is world-writable" in complaint.message
        assert f"run chmod o-w {os.path.normpath(config_dir.path / name)}" in complaint.message


def test_a_world_writable_parent_directory_is_refused_unless_it_is_sticky(config_dir: ConfigDir) -> None:
    nested = ConfigDir(config_dir.path / "open/etc")
    nested.write("config.yaml", "")
    nested.path.parent.chmod(0o777)
    assert "is world-writable (mode 0777) without the sticky bit" in nested.errors()
    nested.path.parent.chmod(0o1777)
    assert nested.load().settings.service.name == "ductile"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_readable_by_other_users_is_a_warning(config_dir: ConfigDir, mode: int) -> None:
    """It may contain secrets."""
    config_dir.write("config.yaml", "", mode=mode)
    (complaint,) = (warning for warning in config_dir.load().warnings if warning.category == "permissions")
    assert f"is open to other users (mode 0{mode:o}); run chmod 600 {config_dir.root}" in complaint.message


def test_a_file_of_another_user_is_refused(config_dir: ConfigDir) -> None:
    """Only root and the user of the service may own files."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    config_dir.write("config.yaml", "")
    os.chown(config_dir.root, 54321, 54321)
    assert "belongs to uid 54321" in config_dir.errors()


# Environment files


def test_env_file_values_are_not_added_to_the_process_environment(config_dir: ConfigDir) -> None:
    config_dir.write(".env", "ONLY_HERE_NAME=from-file")
    settings = config_dir.load("environment_vars: {include: [.env]}\nservice: {name: '${ONLY_HERE_NAME}'}").settings
    assert settings.service.name == "from-file"
    assert "ONLY_HERE_NAME" not in os.environ


def test_the_process_environment_overrides_env_files_and_earlier_files_override_later_ones(
    config_dir: ConfigDir,
) -> None:
    config_dir.write("1.env", "A=first\nB=first")
    config_dir.write("2.env", "A=second\nB=second\nC=second")
    text = "environment_vars: {include: [1.env, 2.env]}\nplugins: {p: {config: {v: '${A} ${B} ${C}'}}}"
    assert config_dir.load(text, {"A": "process"}).settings.plugins["p"].config == {"v": "process first second"}


def test_an_included_file_may_have_its_own_env_file(config_dir: ConfigDir) -> None:
    config_dir.write("sub/.env", "NAME=sub")
    config_dir.write("sub/a.yaml", "environment_vars: {include: [.env]}\nservice: {name: '${NAME}'}")
    assert config_dir.load("include: [sub/a.yaml]").settings.service.name == "sub"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"A=1\nnonsense\n", ".env:2: is not a NAME=value line"),
        (b"1A=1", ".env:1: is not a NAME=value line"),
        (b"A B=1", ".env:1: is not a NAME=value line"),
        (b"=1", ".env:1: is not a NAME=value line"),
        (b"A=1\nB=\xff", ".env:2: is not UTF-8 text"),
        (b"A=\0", ".env:1: is not a NAME=value line"),
        (b"A=" + b"x" * (1 << 20), "larger than"),
        (None, "does not exist"),
    ],
)
def test_an_invalid_env_file_is_reported_without_its_content(
    config_dir: ConfigDir, content: bytes | None, reason: str
) -> None:
    """A line may contain a secret."""
    if content is not None:
        config_dir.write(".env", content)
    errors = config_dir.errors("environment_vars: {include: [.env]}")
    assert reason in errors
    assert "nonsense" not in errors


def test_every_loaded_file_has_a_tier(config_dir: ConfigDir) -> None:
    for name in ("webhooks.yaml", "tokens.yaml", "plugins.yaml", ".env"):
        config_dir.write(name, "")
    config_dir.write(
        "config.yaml", "include: [webhooks.yaml, tokens.yaml, plugins.yaml]\nenvironment_vars: {include: [.env]}"
    )
    config_dir.seal()
    tiers = {source.path.name: source.tier for source in config_dir.load().files}
    high = {name for name, tier in tiers.items() if tier is Tier.HIGH}
    assert (set(tiers), high) == (
        {"config.yaml", "webhooks.yaml", "tokens.yaml", "plugins.yaml", ".env"},
        {"webhooks.yaml", "tokens.yaml"},
    )


# Default locations


def test_a_directory_refers_to_its_config_file(config_dir: ConfigDir) -> None:
    assert find_config(config_dir.path, {}).path == config_dir.root
    assert find_config(config_dir.root, {}).path == config_dir.root


def test_default_locations_are_searched_in_order(config_dir: ConfigDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(config_dir.path))
    users = config_dir.write(".config/ductile/config.yaml", "")
    assert find_config(None, {}).path == users
    (config_dir.path / "named").mkdir()
    assert (
        find_config(None, {"DUCTILE_CONFIG_DIR": str(config_dir.path / "named")}).path
        == config_dir.path / "named/config.yaml"
    )


def test_a_missing_configuration_is_an_error_that_lists_the_default_locations(
    config_dir: ConfigDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/etc/ductile/config.yaml").exists():
        pytest.skip("this host has a configuration")
    monkeypatch.setenv("HOME", str(config_dir.path))
    with pytest.raises(ConfigMissing, match=r"~/\.config/ductile or /etc/ductile"):
        find_config(None, {})
