"""Which files make up a configuration: includes, their order, `.env` files, and files that are not to be trusted."""

import os
import socket
from pathlib import Path

import pytest

from ductile.config.load.load import load
from ductile.config.load.sources import MAX_INCLUDE_DEPTH, Tier, find
from ductile.core.errors import ConfigInvalid, ConfigMissing
from tests.config.conftest import Home

# Includes


def test_included_files_are_merged_deeply_in_their_order(home: Home) -> None:
    """Mappings by key, lists appended, later scalars win, a later `false` too."""
    home.write("a.yaml", "plugins: {p: {enabled: true, config: {x: 1, deep: {one: 1}}}}\nplugin_roots: [one]")
    home.write("b.yaml", "plugins: {p: {enabled: false, config: {deep: {two: 2}}}}\nplugin_roots: [two]")
    settings = home.load(
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
def test_an_empty_value_takes_nothing_away(home: Home, earlier: str, later: str, expected: int) -> None:
    """A section without content in a later file is not an order to forget."""
    home.write("later.yaml", later)
    assert home.load(f"include: [later.yaml]\n{earlier}").settings.service.max_workers == expected


def test_keys_that_the_original_left_out_of_includes_count(home: Home) -> None:
    """Every key may stand in every file; only two are bound to one."""
    home.write(
        "more.yaml",
        "service: {strict_mode: false, max_workers: 2}\napi: {max_concurrent_sync: 3}\ndatabase: {path: x.db}",
    )
    settings = home.load("include: [more.yaml]").settings
    assert (settings.service.max_workers, settings.api.max_concurrent_sync) == (2, 3)
    assert settings.state.path == home.folder / "x.db"


def test_a_directory_stands_for_its_yaml_files_in_alphabetical_order(home: Home) -> None:
    """Not for hidden files, other endings or directories below."""
    for name, roots in {"20.yaml": "b", "10.yaml": "a", ".x.yaml": "h", "30.yml": "n", "sub/40.yaml": "s"}.items():
        home.write(f"conf.d/{name}", f"plugin_roots: [{roots}]")
    config = home.load("include: [conf.d]")
    assert [root.name for root in config.settings.plugin_roots] == ["a", "b"]
    assert [source.path.name for source in config.files] == ["config.yaml", "10.yaml", "20.yaml"]


def test_relative_paths_start_at_the_file_that_names_them(home: Home) -> None:
    """A directory of files can be moved as one."""
    home.write("team/all.yaml", "include: [more/x.yaml]\nplugin_roots: [plugins]")
    home.write("team/more/x.yaml", "plugin_roots: [../other, /absolute]\nstate: {path: ledger.db}")
    settings = home.load("include: [team/all.yaml]").settings
    roots = [os.path.normpath(root) for root in settings.plugin_roots]
    assert roots == [f"{home.folder}/team/plugins", f"{home.folder}/team/other", "/absolute"]
    assert settings.state.path == home.folder / "team/more/ledger.db"


def test_a_tilde_is_the_home_of_whoever_runs_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In includes and in path values alike."""
    monkeypatch.setenv("HOME", str(home.folder))
    home.write("mine/x.yaml", "plugin_roots: [~/plugins]")
    assert home.load("include: [~/mine/x.yaml]").settings.plugin_roots == (home.folder / "plugins",)


def test_an_include_path_may_name_a_variable(home: Home) -> None:
    """Also one that an .env file sets."""
    home.write(".env", "SITE=berlin")
    home.write("berlin.yaml", "service: {name: b}")
    home.write("config.yaml", "environment_vars: {include: [.env]}\ninclude: ['${SITE}.yaml']")
    assert home.load().settings.service.name == "b"
    assert "include[0]: environment variable X is not set" in home.refusal("include: ['${X}.yaml']")


def test_a_file_that_is_reached_twice_is_read_once(home: Home) -> None:
    """A diamond is no circle."""
    home.write("a.yaml", "include: [shared.yaml]")
    home.write("b.yaml", "include: [shared.yaml, ./a.yaml]")
    home.write("shared.yaml", "plugin_roots: [one]")
    assert len(home.load("include: [a.yaml, b.yaml]").settings.plugin_roots) == 1


@pytest.mark.parametrize(
    ("files", "circle"),
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
def test_a_circle_of_includes_is_named(home: Home, files: dict[str, str], circle: str) -> None:
    """The complaint shows the way round."""
    for name, content in files.items():
        home.write(name, content)
    assert f"include[0]: includes itself: {circle}" in home.refusal()


def test_includes_are_not_nested_without_end(home: Home) -> None:
    """A long chain of files is refused, not followed until the program breaks."""
    for number in range(900):
        home.write(f"f{number}.yaml", f"include: [f{number + 1}.yaml]")
    told = home.refusal("include: [f0.yaml]")
    assert f"nested {MAX_INCLUDE_DEPTH} deep" in told
    assert told.count("\n") == 0


def test_the_number_of_files_is_bounded_for_directories_too(home: Home) -> None:
    """A directory of a million files is refused before it is read."""
    for number in range(1001):
        home.write(f"many/{number}.yaml", "")
    assert "at most 1000 files" in home.refusal("include: [many]")


def test_a_missing_include_is_told_with_where_it_was_looked_for(home: Home) -> None:
    """Index, absolute path, directory, and the rule."""
    home.write("sub/a.yaml", "include: [../b.yaml]")
    (told,) = home.complaints("include: [sub/a.yaml]")
    assert str(told) == (
        f"{home.folder}/sub/a.yaml:1: include[0]: there is no {home.folder}/b.yaml "
        f"(looked in {home.folder}; paths are relative to the file that names them)"
    )


def test_every_broken_file_is_told_and_the_good_ones_are_still_checked(home: Home) -> None:
    """One bad file never hides what is wrong in another."""
    home.write("a.yaml", "service: {max_workers: 0}")
    home.write("b.yaml", "x: [")
    home.write("c.yaml", "- a list\n")
    told = home.refusal("include: [a.yaml, b.yaml, c.yaml, d.yaml]\nnonsense: 1")
    assert "a.yaml:1: service.max_workers" in told
    assert "b.yaml:" in told
    assert "c.yaml:1: expected a mapping of keys to values at the top" in told
    assert "include[3]: there is no" in told
    assert "nonsense: unknown key" in told


def test_tokens_belong_into_tokens_yaml(home: Home) -> None:
    """Secrets are in one place, whose seal is checked always."""
    told = home.refusal("tokens: [{name: a, key: b}]")
    assert "config.yaml:1: tokens: belongs into a file called tokens.yaml" in told
    home.write("secrets.yaml", "tokens: [{name: a, key: b}]")
    assert "secrets.yaml:1: tokens: belongs into" in home.refusal("include: [secrets.yaml]")


def test_whether_symlinks_are_allowed_is_said_in_the_root_only(home: Home) -> None:
    """A file behind a link cannot permit itself."""
    home.write("a.yaml", "service: {allow_symlinks: true}")
    assert "a.yaml:1: service.allow_symlinks: counts only in the root file" in home.refusal("include: [a.yaml]")


def test_whether_symlinks_are_allowed_is_not_left_to_a_variable(home: Home) -> None:
    """It is needed before variables are known."""
    told = home.refusal("service: {allow_symlinks: '${LINKS}'}", {"LINKS": "true"})
    assert "service.allow_symlinks: must be written out" in told


# Files that are none


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
        ("a" * 5000, "there is no"),
    ],
)
def test_an_include_that_is_no_text_file_is_refused_without_hanging(
    home: Home, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is opened that can block, nothing is read that is too large."""
    os.mkfifo(home.folder / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(home.folder)
        listener.bind("socket")
    with open(home.write("huge.yaml", b""), "r+b") as huge:
        huge.truncate(50 << 20)
    home.write("binary.yaml", bytes(range(128, 256)) * 10)
    home.write("utf16.yaml", "a: 1".encode("utf-16"))
    home.write("nul.yaml", b"a: \0")
    assert reason in home.refusal(f"include: [{name}]")


def test_a_directory_member_that_is_no_file_is_refused(home: Home) -> None:
    """A FIFO in a directory of files does not hang a start either."""
    (home.folder / "conf.d/x.yaml").mkdir(parents=True, mode=0o700)
    os.mkfifo(home.folder / "conf.d/y.yaml", 0o600)
    home.folder.joinpath("conf.d").chmod(0o700)
    told = home.refusal("include: [conf.d]")
    assert "x.yaml: is a directory" in told
    assert "y.yaml: is a FIFO" in told


def test_a_root_that_is_a_directory_or_a_fifo_is_refused(home: Home) -> None:
    """The root is opened as carefully as the rest."""
    os.mkfifo(home.root, 0o600)
    assert "config.yaml:1: is a FIFO" in home.refusal()
    with pytest.raises(ConfigInvalid, match="is a directory"):
        load(home.folder, environ={})


def test_a_missing_root_says_how_to_make_one(home: Home) -> None:
    """The next step is in the hint."""
    with pytest.raises(ConfigMissing) as caught:
        home.load()
    assert "ductile config init" in caught.value.hint


def test_names_that_are_not_utf8_are_refused(home: Home) -> None:
    """They could not be sealed."""
    os.makedirs(os.fsencode(home.folder) + b"/d\xff", mode=0o700)
    other = Home(Path(os.fsdecode(os.fsencode(home.folder) + b"/d\xff")))
    assert "the name is not UTF-8" in other.refusal("service: {}")
    (home.folder / "conf.d").mkdir(mode=0o700)
    Path(os.fsdecode(os.fsencode(home.folder) + b"/conf.d/\xfe.yaml")).write_text("")
    assert "\\xfe.yaml: the name is not UTF-8" in home.refusal("include: [conf.d]")


# Links


def test_a_link_among_the_files_is_refused_unless_the_root_allows_it(home: Home, tmp_path: Path) -> None:
    """Links are told always, and refused where they are not allowed."""
    target = home.write("real/a.yaml", "service: {name: linked}")
    (home.folder / "link.yaml").symlink_to(target)
    (home.folder / "linked").symlink_to(target.parent)
    for include in ("link.yaml", "linked/a.yaml", "linked"):
        assert "is a symlink to" in home.refusal(f"include: [{include}]")
        config = home.load(f"include: [{include}]\nservice: {{allow_symlinks: yes}}")
        assert config.settings.service.name == "linked"
        assert any("is a symlink to" in warning.message for warning in config.warnings)


def test_a_linked_root_counts_as_a_link_too(home: Home) -> None:
    """The root is no exception."""
    home.write("real.yaml", "service: {name: x}")
    home.root.symlink_to("real.yaml")
    assert "is a symlink to real.yaml; set service.allow_symlinks: true" in home.refusal()
    home.write("real.yaml", "service: {allow_symlinks: true}")
    assert home.load().settings.service.allow_symlinks is True


@pytest.mark.parametrize("target", ["nowhere", "link.yaml"])
def test_a_link_that_leads_nowhere_is_refused(home: Home, target: str) -> None:
    """Dangling or circular."""
    (home.folder / "link.yaml").symlink_to(target)
    assert "link.yaml" in home.refusal("include: [link.yaml]\nservice: {allow_symlinks: yes}")


# Permissions


@pytest.mark.parametrize("name", ["config.yaml", "inc/a.yaml", ".env", "inc", "."])
def test_what_everybody_can_write_is_refused(home: Home, name: str) -> None:
    """Files, their folders, and folders on the way without the sticky bit."""
    home.write(".env", "A=1")
    home.write("inc/a.yaml", "")
    home.write("config.yaml", "include: [inc/a.yaml]\nenvironment_vars: {include: [.env]}")
    home.load()
    (home.folder / name).chmod(0o777)
    for told in home.complaints():
        assert "is world-writable" in told.message
        assert f"run chmod o-w {os.path.normpath(home.folder / name)}" in told.message


def test_a_world_writable_folder_above_is_refused_unless_it_is_sticky(home: Home) -> None:
    """Whoever can swap a parent can swap everything."""
    nested = Home(home.folder / "open/etc")
    nested.write("config.yaml", "")
    nested.folder.parent.chmod(0o777)
    assert "is world-writable (mode 0777) without the sticky bit" in nested.refusal()
    nested.folder.parent.chmod(0o1777)
    assert nested.load().settings.service.name == "ductile"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_files_that_others_can_read_are_warned_about(home: Home, mode: int) -> None:
    """They may hold secrets."""
    home.write("config.yaml", "", mode=mode)
    (told,) = (warning for warning in home.load().warnings if warning.category == "permissions")
    assert f"is open to other users (mode 0{mode:o}); run chmod 600 {home.root}" in told.message


def test_a_file_of_a_stranger_is_refused(home: Home) -> None:
    """Root and the user of the service are the only owners."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    home.write("config.yaml", "")
    os.chown(home.root, 54321, 54321)
    assert "belongs to uid 54321" in home.refusal()


# Environment files


def test_an_env_file_feeds_values_and_never_the_process(home: Home) -> None:
    """Secrets of the configuration do not reach plugins through the environment."""
    home.write(".env", "ONLY_HERE_NAME=from-file")
    settings = home.load("environment_vars: {include: [.env]}\nservice: {name: '${ONLY_HERE_NAME}'}").settings
    assert settings.service.name == "from-file"
    assert "ONLY_HERE_NAME" not in os.environ


def test_the_process_wins_over_files_and_earlier_files_over_later_ones(home: Home) -> None:
    """A value that was set once is not replaced."""
    home.write("1.env", "A=first\nB=first")
    home.write("2.env", "A=second\nB=second\nC=second")
    text = "environment_vars: {include: [1.env, 2.env]}\nplugins: {p: {config: {v: '${A} ${B} ${C}'}}}"
    assert home.load(text, {"A": "process"}).settings.plugins["p"].config == {"v": "process first second"}


def test_an_included_file_may_bring_its_own_env_file(home: Home) -> None:
    """Relative to itself."""
    home.write("sub/.env", "NAME=sub")
    home.write("sub/a.yaml", "environment_vars: {include: [.env]}\nservice: {name: '${NAME}'}")
    assert home.load("include: [sub/a.yaml]").settings.service.name == "sub"


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
def test_a_bad_env_file_is_told_without_its_content(home: Home, content: bytes | None, reason: str) -> None:
    """The line, not what is on it: it may be a secret."""
    if content is not None:
        home.write(".env", content)
    told = home.refusal("environment_vars: {include: [.env]}")
    assert reason in told
    assert "nonsense" not in told


def test_every_file_that_is_read_is_known_with_its_tier(home: Home) -> None:
    """What is loaded is what is hashed."""
    for name in ("webhooks.yaml", "tokens.yaml", "plugins.yaml", ".env"):
        home.write(name, "")
    home.write(
        "config.yaml", "include: [webhooks.yaml, tokens.yaml, plugins.yaml]\nenvironment_vars: {include: [.env]}"
    )
    home.lock()
    tiers = {source.path.name: source.tier for source in home.load().files}
    high = {name for name, tier in tiers.items() if tier is Tier.HIGH}
    assert (set(tiers), high) == (
        {"config.yaml", "webhooks.yaml", "tokens.yaml", "plugins.yaml", ".env"},
        {"webhooks.yaml", "tokens.yaml"},
    )


# Finding


def test_a_directory_means_the_config_file_in_it(home: Home) -> None:
    """`--config` takes both."""
    assert find(home.folder, {}).path == home.root
    assert find(home.root, {}).path == home.root


def test_the_usual_places_are_searched_in_order(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named directory, then the user's."""
    monkeypatch.setenv("HOME", str(home.folder))
    users = home.write(".config/ductile/config.yaml", "")
    assert find(None, {}).path == users
    (home.folder / "named").mkdir()
    assert find(None, {"DUCTILE_CONFIG_DIR": str(home.folder / "named")}).path == home.folder / "named/config.yaml"


def test_no_configuration_anywhere_says_how_to_make_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where was looked, and what to do."""
    if Path("/etc/ductile/config.yaml").exists():
        pytest.skip("this host has a configuration")
    monkeypatch.setenv("HOME", str(home.folder))
    with pytest.raises(ConfigMissing, match=r"~/\.config/ductile or /etc/ductile"):
        find(None, {})
