"""Which plugins are discovered, which are trusted, and why others are rejected."""

import os
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from ductile.core.formats import strict_yaml
from ductile.plugin import fingerprint, registry
from ductile.plugin.registry import Discovery, Plugin, discover, resolve_aliases
from tests.plugins.bundled import build

MakePlugin = Callable[..., Path]
OTHER_UID = 54321


def reasons(found: Discovery) -> dict[str, str]:
    return {rejected.name: rejected.reason for rejected in found.rejected}


def warnings(found: Discovery) -> str:
    """Return the warnings about folders that the test created."""
    return "\n".join(str(warning) for warning in found.warnings if "/plugins" in warning.path)


# Discovery


def test_a_plugin_is_found_with_its_folder_entrypoint_and_root(root: Path, make_plugin: MakePlugin) -> None:
    folder = make_plugin("sample", entrypoint="bin/run.sh")
    found = discover([root])
    plugin = found.plugins["sample"]
    assert (plugin.folder, plugin.entrypoint, plugin.root) == (folder, folder / "bin" / "run.sh", root)
    assert (plugin.name, plugin.base, plugin.uses) == ("sample", "sample", None)
    assert (found.rejected, warnings(found), found.complaints) == ((), "", ())


def test_a_relative_root_gives_absolute_paths(
    root: Path, make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plugin("sample")
    monkeypatch.chdir(root.parent)
    assert discover([Path("plugins")]).plugins["sample"].entrypoint == root / "sample" / "run.sh"


def test_plugins_are_found_in_nested_folders_but_not_inside_a_plugin(root: Path, make_plugin: MakePlugin) -> None:
    make_plugin("a/b/c/deep")
    make_plugin("outer")
    make_plugin("outer/inner")
    assert list(discover([root]).plugins) == ["deep", "outer"]


def test_the_root_itself_may_be_a_plugin(root: Path, make_plugin: MakePlugin) -> None:
    folder = make_plugin("single")
    assert list(discover([folder]).plugins) == ["single"]


@pytest.mark.parametrize("name", [".hidden", ".git", "node_modules", "__pycache__", "a/.b/c"])
def test_hidden_and_cache_folders_are_not_searched(root: Path, make_plugin: MakePlugin, name: str) -> None:
    make_plugin(f"{name}/inner")
    found = discover([root])
    assert (found.plugins, found.rejected) == ({}, ())


def test_virtualenvs_are_not_searched(root: Path, make_plugin: MakePlugin) -> None:
    """They are identified by `pyvenv.cfg`."""
    make_plugin("env/lib/inner")
    (root / "env" / "pyvenv.cfg").touch()
    assert discover([root]).plugins == {}


def test_the_first_plugin_with_a_name_wins(tmp_path: Path, make_plugin: MakePlugin, root: Path) -> None:
    """In the order of roots, then of names. The others are warnings."""
    make_plugin("b", name="twin")
    make_plugin("a", name="twin")
    other = tmp_path / "other"
    shutil.copytree(root, other)

    found = discover([other, root])

    assert found.plugins["twin"].folder == other / "a"
    assert found.rejected == ()
    shadowed = [warning.path for warning in found.warnings if "has the same name" in warning.message]
    assert shadowed == [str(other / "b"), str(root / "a"), str(root / "b")]


def test_a_root_named_twice_or_inside_another_is_searched_once(root: Path, make_plugin: MakePlugin) -> None:
    make_plugin("group/sample")
    found = discover([root, root, root / "group", root / "." / "group" / ".."])
    assert (list(found.plugins), warnings(found), found.complaints) == (["sample"], "", ())


def test_a_root_that_cannot_be_searched_is_an_error(tmp_path: Path, root: Path, make_plugin: MakePlugin) -> None:
    """The other roots are still searched."""
    make_plugin("sample")
    (tmp_path / "file").touch()
    found = discover([tmp_path / "no", tmp_path / "file", root])
    assert list(found.plugins) == ["sample"]
    assert [complaint.path for complaint in found.complaints] == [str(tmp_path / "no"), str(tmp_path / "file")]
    assert all("plugin_roots" in complaint.message for complaint in found.complaints)


@pytest.mark.parametrize(
    "script", ["run.py", "run.sh", "run.js", "run.ts", "main.py", "main.go", "index.js", "index.ts"]
)
def test_a_folder_with_a_script_but_no_manifest_is_a_warning(root: Path, script: str) -> None:
    (root / "almost").mkdir()
    (root / "almost" / script).touch()
    assert f"{root / 'almost'}: has a {script} but no manifest.yaml" in warnings(discover([root]))


def test_a_manifest_with_the_wrong_name_is_a_warning(root: Path) -> None:
    """`manifest.yml`."""
    (root / "almost").mkdir()
    (root / "almost" / "manifest.yml").touch()
    assert "rename it to manifest.yaml" in warnings(discover([root]))


def test_a_folder_with_shared_code_is_ignored(root: Path, make_plugin: MakePlugin) -> None:
    make_plugin("sample")
    (root / "lib").mkdir()
    (root / "lib" / "oauth.py").touch()
    found = discover([root])
    assert (list(found.plugins), warnings(found)) == (["sample"], "")


def test_the_depth_of_the_search_is_limited_with_a_warning(root: Path, make_plugin: MakePlugin) -> None:
    make_plugin("1/2/3/4/5/6/7/eighth")
    make_plugin("1/2/3/4/5/6/7/8/ninth")
    found = discover([root])
    assert list(found.plugins) == ["eighth"]
    assert "more than 8 folders below the root" in warnings(found)


def test_the_number_of_searched_folders_is_limited_with_a_warning(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_FOLDERS", 10)
    for number in range(20):
        (root / f"{number:02}").mkdir()
    assert "more than 10 folders" in warnings(discover([root]))


# Rejected plugins


def _break_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").write_text("name: a\nname: b\n")


def _empty_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").write_text("")


def _fifo_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").unlink()
    os.mkfifo(folder / "manifest.yaml")


def _folder_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").unlink()
    (folder / "manifest.yaml").mkdir()


def _linked_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").rename(folder / "real.yaml")
    (folder / "manifest.yaml").symlink_to("real.yaml")


def _missing_entrypoint(folder: Path) -> None:
    (folder / "run.sh").unlink()


def _fifo_entrypoint(folder: Path) -> None:
    (folder / "run.sh").unlink()
    os.mkfifo(folder / "run.sh", 0o755)


def _folder_entrypoint(folder: Path) -> None:
    (folder / "run.sh").unlink()
    (folder / "run.sh").mkdir(0o755)


def _linked_entrypoint(folder: Path) -> None:
    (folder / "run.sh").rename(folder / "real.sh")
    (folder / "run.sh").symlink_to("real.sh")


def _entrypoint_not_executable(folder: Path) -> None:
    (folder / "run.sh").chmod(0o644)


def _writable_entrypoint(folder: Path) -> None:
    (folder / "run.sh").chmod(0o757)


def _writable_manifest(folder: Path) -> None:
    (folder / "manifest.yaml").chmod(0o646)


def _writable_folder(folder: Path) -> None:
    folder.chmod(0o777)


def _writable_sticky_folder(folder: Path) -> None:
    folder.chmod(0o1777)


def _writable_module(folder: Path) -> None:
    (folder / "helper.py").touch()
    (folder / "helper.py").chmod(0o666)


def _writable_inner_folder(folder: Path) -> None:
    (folder / "lib").mkdir()
    (folder / "lib").chmod(0o777)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_break_manifest, "manifest.yaml:2"),
        (_empty_manifest, "is empty"),
        (_fifo_manifest, "manifest.yaml: is a FIFO"),
        (_folder_manifest, "manifest.yaml: is a directory"),
        (_linked_manifest, "manifest.yaml: is a symlink"),
        (_missing_entrypoint, "run.sh: does not exist"),
        (_fifo_entrypoint, "run.sh: entrypoint is not a regular file"),
        (_folder_entrypoint, "run.sh: entrypoint is not a regular file"),
        (_linked_entrypoint, "run.sh: is a symlink"),
        (_entrypoint_not_executable, "run.sh: entrypoint is not executable; run chmod +x"),
        (_writable_entrypoint, "run.sh: file is world-writable (mode 0757)"),
        (_writable_manifest, "manifest.yaml: file is world-writable (mode 0646)"),
        (_writable_folder, "bad: folder is world-writable (mode 0777)"),
        (_writable_sticky_folder, "bad: folder is world-writable (mode 1777)"),
        (_writable_module, "helper.py: file is world-writable"),
        (_writable_inner_folder, "lib: folder is world-writable"),
    ],
)
def test_an_invalid_plugin_is_rejected_with_its_reason(
    root: Path, make_plugin: MakePlugin, damage: Callable[[Path], None], reason: str
) -> None:
    """Other plugins are not affected."""
    make_plugin("aa-good")
    bad = make_plugin("bad")
    make_plugin("zz-good")
    damage(bad)

    found = discover([root])

    assert list(found.plugins) == ["aa-good", "zz-good"]
    assert [(rejected.name, rejected.path) for rejected in found.rejected] == [("bad", bad)]
    assert reason in found.rejected[0].reason


def test_all_reasons_against_a_plugin_are_reported_at_once(root: Path, make_plugin: MakePlugin) -> None:
    bad = make_plugin("bad")
    _writable_folder(bad)
    (bad / "run.sh").chmod(0o646)
    assert reasons(discover([root]))["bad"].count("\n") == 2


def test_a_rejected_plugin_has_the_name_in_its_manifest(root: Path, make_plugin: MakePlugin) -> None:
    _missing_entrypoint(make_plugin("folder-name", name="real-name"))
    assert list(reasons(discover([root]))) == ["real-name"]


def test_an_invalid_plugin_does_not_reserve_its_name(tmp_path: Path, root: Path, make_plugin: MakePlugin) -> None:
    """A valid plugin of the same name in the second root is used."""
    make_plugin("sample")
    other = tmp_path / "other"
    shutil.copytree(root, other)
    _missing_entrypoint(root / "sample")
    found = discover([root, other])
    assert (found.plugins["sample"].folder, len(found.rejected)) == (other / "sample", 1)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_the_plugins_of_a_world_writable_root_are_rejected(root: Path, make_plugin: MakePlugin, mode: int) -> None:
    make_plugin("sample")
    root.chmod(mode)
    assert f"{root}: folder is world-writable" in reasons(discover([root]))["sample"]


@pytest.mark.parametrize(("mode", "usable"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_above_the_root_must_not_let_other_users_replace_it(
    root: Path, make_plugin: MakePlugin, mode: int, usable: bool
) -> None:
    """The sticky bit is sufficient."""
    make_plugin("sample")
    root.parent.chmod(mode)
    try:
        found = discover([root])
    finally:
        root.parent.chmod(0o700)
    assert bool(found.plugins) is usable
    assert usable or "without the sticky bit" in reasons(found)["sample"]


def test_a_plugin_of_another_user_is_rejected(root: Path, make_plugin: MakePlugin) -> None:
    """Only root and the user of the service are trusted."""
    folder = make_plugin("sample")
    if os.geteuid() == 0:
        os.chown(folder / "run.sh", OTHER_UID, -1)
        assert "belongs to uid 54321" in reasons(discover([root]))["sample"]
    else:
        assert discover([root]).plugins["sample"].fingerprint.entrypoint_path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("script", "warning"),
    [
        (b"#!/bin/sh\n", ""),
        (b"#! /bin/sh -e\n", ""),
        (b"\x7fELF...", ""),
        (b"#!/bin/sh\r\necho\r\n", "carriage return"),
        (b"echo hi\n", "no `#!` line"),
        (b"", "no `#!` line"),
        (b"#!/no/such/interpreter\n", "'/no/such/interpreter'"),
        (b"#!\n", "does not exist"),
        (b"#!\xff\n", "does not exist"),
    ],
)
def test_an_entrypoint_that_cannot_start_is_a_warning(
    root: Path, make_plugin: MakePlugin, script: bytes, warning: str
) -> None:
    """The interpreter may be installed later."""
    make_plugin("sample", script=script)
    found = discover([root])
    assert list(found.plugins) == ["sample"]
    assert warning in warnings(found)
    assert bool(warning) == bool(warnings(found))


# Symlinks


def test_linked_folders_are_rejected_unless_symlinks_are_allowed(
    tmp_path: Path, root: Path, make_plugin: MakePlugin
) -> None:
    make_plugin(".store/real", name="linked")
    (root / "link").symlink_to(".store/real")

    refused, allowed = discover([root]), discover([root], allow_symlinks=True)

    assert list(reasons(refused)) == ["link"]
    assert "allow_symlinks" in reasons(refused)["link"]
    assert allowed.plugins["linked"].entrypoint == root / "link" / "run.sh"
    assert f"{root / 'link'}: is a symlink to .store/real" in warnings(allowed)


def test_a_symlink_that_is_not_a_plugin_is_a_warning(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (root / "lib").symlink_to(tmp_path / "lib")
    found = discover([root])
    assert (found.rejected, f"{root / 'lib'}: is not searched" in warnings(found)) == ((), True)


def test_a_symlink_out_of_the_roots_is_always_rejected(tmp_path: Path, root: Path, make_plugin: MakePlugin) -> None:
    """Unless it leads into another root."""
    folder = make_plugin("sample")
    outside = tmp_path / "outside"
    folder.rename(outside)
    (root / "link").symlink_to(outside)
    assert "outside the plugin roots" in reasons(discover([root], allow_symlinks=True))["sample"]
    assert list(discover([root, outside], allow_symlinks=True).plugins) == ["sample"]


def test_a_linked_entrypoint_out_of_the_roots_is_rejected(tmp_path: Path, root: Path, make_plugin: MakePlugin) -> None:
    folder = make_plugin("sample")
    (folder / "run.sh").rename(tmp_path / "outside.sh")
    (folder / "run.sh").symlink_to(tmp_path / "outside.sh")
    assert "outside the plugin roots" in reasons(discover([root], allow_symlinks=True))["sample"]


def test_a_linked_entrypoint_inside_the_roots_is_accepted_if_symlinks_are_allowed(
    root: Path, make_plugin: MakePlugin
) -> None:
    folder = make_plugin("sample")
    (root / "lib").mkdir()
    (folder / "run.sh").rename(root / "lib" / "shared.sh")
    (folder / "run.sh").symlink_to("../lib/shared.sh")
    plugin = discover([root], allow_symlinks=True).plugins["sample"]
    assert plugin.fingerprint.entrypoint_resolved_path == Path(os.path.realpath(root / "lib" / "shared.sh"))


def test_a_cycle_of_symlinks_is_searched_once(root: Path, make_plugin: MakePlugin) -> None:
    make_plugin("group/sample")
    (root / "group" / "again").symlink_to(root)
    (root / "self").symlink_to("self")
    assert list(discover([root], allow_symlinks=True).plugins) == ["sample"]


def test_a_linked_root_is_rejected_unless_symlinks_are_allowed(
    tmp_path: Path, root: Path, make_plugin: MakePlugin
) -> None:
    make_plugin("sample")
    (tmp_path / "alias").symlink_to(root)
    assert "is a symlink" in reasons(discover([tmp_path / "alias"]))["sample"]
    assert list(discover([tmp_path / "alias"], allow_symlinks=True).plugins) == ["sample"]


def test_a_symlink_that_changes_during_the_search_never_leads_out_of_the_roots(
    tmp_path: Path, root: Path, make_plugin: MakePlugin
) -> None:
    inside = make_plugin(".store/sample", version="inside")
    outside = tmp_path / "outside"
    shutil.copytree(inside, outside)
    manifest = (outside / "manifest.yaml").read_text()
    (outside / "manifest.yaml").write_text(manifest.replace("inside", "outside"))
    (root / "link").symlink_to(inside)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for target in (outside, inside):
                os.symlink(target, root / ".new")
                os.rename(root / ".new", root / "link")

    flipping = threading.Thread(target=flip)
    flipping.start()
    accepted: set[str] = set()
    rejected = 0
    try:
        while not accepted or rejected < 50:
            found = discover([root], allow_symlinks=True)
            accepted |= {plugin.manifest.version for plugin in found.plugins.values()}
            rejected += len(found.rejected)
    finally:
        stop.set()
        flipping.join()

    assert accepted == {"inside"}


# Fingerprints


def test_the_fingerprint_covers_manifest_entrypoint_and_every_other_file(root: Path, make_plugin: MakePlugin) -> None:
    """Except caches and hidden files."""
    from blake3 import blake3

    folder = make_plugin("sample")
    for name in ("helper.py", "lib/inner.py", ".hidden", "__pycache__/x.pyc", "old.pyc", "env/pyvenv.cfg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)

    found = discover([root]).plugins["sample"].fingerprint

    assert (found.name, found.manifest_path, found.entrypoint_path) == (
        "sample",
        folder / "manifest.yaml",
        folder / "run.sh",
    )
    assert found.manifest_hash == blake3((folder / "manifest.yaml").read_bytes()).hexdigest()
    assert found.entrypoint_hash == blake3(b"#!/bin/sh\n").hexdigest()
    assert found.files == {name: blake3(name.encode()).hexdigest() for name in ("helper.py", "lib/inner.py")}
    assert found.manifest_resolved_path == Path(os.path.realpath(folder / "manifest.yaml"))


def test_any_changed_byte_changes_the_fingerprint(root: Path, make_plugin: MakePlugin) -> None:
    """Without a change it stays the same."""
    folder = make_plugin("sample")
    (folder / "helper.py").write_text("a")

    def current() -> fingerprint.PluginFingerprint:
        return discover([root]).plugins["sample"].fingerprint

    fingerprints = [current()]
    assert current() == fingerprints[0]
    for name in ("helper.py", "run.sh", "manifest.yaml"):
        with (folder / name).open("a") as file:
            file.write("# more\n")
        fingerprints.append(current())
    (folder / "new.py").touch()
    fingerprints.append(current())
    assert all(one != other for one, other in pairwise(fingerprints))


def test_the_fingerprint_covers_the_target_of_a_symlink(root: Path, make_plugin: MakePlugin) -> None:
    """The symlink is not followed."""
    folder = make_plugin("sample")
    (folder / "data").symlink_to("one")
    before = discover([root])
    (folder / "data").unlink()
    (folder / "data").symlink_to("two")
    after = discover([root])
    assert before.plugins["sample"].fingerprint.files != after.plugins["sample"].fingerprint.files
    assert "data: is a symlink to one" in warnings(before)


def test_a_file_that_cannot_be_hashed_is_a_warning(root: Path, make_plugin: MakePlugin) -> None:
    folder = make_plugin("sample")
    os.mkfifo(folder / "pipe")
    found = discover([root])
    assert found.plugins["sample"].fingerprint.files == {}
    assert "pipe: has no fingerprint: is a FIFO" in warnings(found)


@pytest.mark.parametrize(("bound", "value"), [("MAX_FILES", 3), ("MAX_BYTES", 3), ("MAX_DEPTH", 0)])
def test_a_fingerprint_is_limited_with_a_warning(
    root: Path, make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    folder = make_plugin("sample")
    for number in range(4):
        (folder / f"{number}").write_text("x")
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    monkeypatch.setattr(fingerprint, bound, value)
    found = discover([root])
    assert "0" in found.plugins["sample"].fingerprint.files
    assert len(found.plugins["sample"].fingerprint.files) < 5
    assert "fingerprint" in warnings(found)


def test_file_names_that_are_not_utf8_have_a_printable_key(root: Path, make_plugin: MakePlugin) -> None:
    """A seal is UTF-8 text."""
    folder = make_plugin("sample")
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xff")).touch()
    (folder / "b\nc").touch()
    assert list(discover([root]).plugins["sample"].fingerprint.files) == ["a\\xff", "b\\x0ac"]


# Recheck


@pytest.fixture
def plugin(root: Path, make_plugin: MakePlugin) -> Plugin:
    make_plugin("sample")
    return discover([root]).plugins["sample"]


def test_an_unchanged_plugin_passes_the_recheck(plugin: Plugin) -> None:
    assert [finding for finding in plugin.recheck() if finding.path.is_relative_to(plugin.root)] == []


@pytest.mark.parametrize(
    "damage",
    [
        _missing_entrypoint,
        _fifo_entrypoint,
        _folder_entrypoint,
        _linked_entrypoint,
        _linked_manifest,
        _entrypoint_not_executable,
        _writable_entrypoint,
        _writable_manifest,
        _writable_folder,
    ],
)
def test_a_plugin_that_becomes_untrusted_after_loading_is_refused(
    plugin: Plugin, damage: Callable[[Path], None]
) -> None:
    damage(plugin.folder)
    assert any(finding.is_refusal for finding in plugin.recheck())


def test_a_folder_replaced_by_a_symlink_is_refused(plugin: Plugin, tmp_path: Path) -> None:
    plugin.folder.rename(tmp_path / "elsewhere")
    plugin.folder.symlink_to(tmp_path / "elsewhere")
    assert any(finding.is_refusal for finding in plugin.recheck())


def test_a_plugin_replaced_by_a_copy_may_start(plugin: Plugin) -> None:
    """As in a deployment that renames folders."""
    shutil.copytree(plugin.folder, plugin.root / "new")
    plugin.folder.rename(plugin.root / "old")
    (plugin.root / "new").rename(plugin.folder)
    assert not any(finding.is_refusal for finding in plugin.recheck())


def test_a_parent_folder_that_becomes_world_writable_is_refused(plugin: Plugin) -> None:
    plugin.root.parent.chmod(0o777)
    try:
        findings = plugin.recheck()
    finally:
        plugin.root.parent.chmod(0o700)
    assert plugin.root.parent in [finding.path for finding in findings if finding.is_refusal]


def test_a_plugin_behind_a_symlink_is_fully_rechecked(root: Path, make_plugin: MakePlugin) -> None:
    """A changed symlink is followed."""
    make_plugin(".store/one", name="sample")
    make_plugin(".store/two", name="sample")
    (root / "link").symlink_to(".store/one")
    plugin = discover([root], allow_symlinks=True).plugins["sample"]
    (root / "link").unlink()
    (root / "link").symlink_to(".store/two")
    assert not any(finding.is_refusal for finding in plugin.recheck())
    (root / "link").unlink()
    (root / "link").symlink_to("/bin")
    assert any(finding.is_refusal for finding in plugin.recheck())


# Aliases


@pytest.fixture
def plugins(root: Path, make_plugin: MakePlugin) -> dict[str, Plugin]:
    make_plugin("mail")
    make_plugin("fetch")
    return dict(discover([root]).plugins)


def test_an_alias_is_the_base_plugin_under_another_name(plugins: dict[str, Plugin]) -> None:
    """The fingerprint has the name of the alias."""
    named = resolve_aliases(plugins, {"work-mail": "mail"})
    alias = named.plugins["work-mail"]
    assert (alias.name, alias.base, alias.uses) == ("work-mail", "mail", "mail")
    assert alias.fingerprint == attrs.evolve(plugins["mail"].fingerprint, name="work-mail")
    assert alias.entrypoint == plugins["mail"].entrypoint
    assert (set(named.plugins), named.complaints) == ({"mail", "fetch", "work-mail"}, ())


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a"), ("c", "a", "b")])
def test_aliases_of_aliases_work_in_any_order(plugins: dict[str, Plugin], order: tuple[str, ...]) -> None:
    uses = {"a": "mail", "b": "a", "c": "b"}
    named = resolve_aliases(plugins, {alias: uses[alias] for alias in order})
    assert {name: named.plugins[name].base for name in uses} == dict.fromkeys(uses, "mail")
    assert named.plugins["c"].uses == "b"
    assert named.complaints == ()


@pytest.mark.parametrize(
    ("uses", "path", "message"),
    [
        ({"a": "a"}, "plugins.a.uses", "aliases form a cycle: a → a"),
        ({"a": "b", "b": "a"}, "plugins.a.uses", "aliases form a cycle: a → b → a"),
        ({"x": "a", "a": "b", "b": "a"}, "plugins.x.uses", "aliases form a cycle: x → a → b → a"),
        ({"mail": "fetch"}, "plugins.mail.uses", "'mail' is already the name of the plugin at"),
        ({"a": "mial"}, "plugins.a.uses", "no plugin or alias is named 'mial' (did you mean 'mail'?)"),
        ({"a": "zzzzzz"}, "plugins.a.uses", "no plugin or alias is named 'zzzzzz'"),
        ({"a": "b", "b": "nothing"}, "plugins.a.uses", "no plugin or alias is named 'nothing'"),
    ],
)
def test_an_invalid_alias_is_reported_with_its_key(
    plugins: dict[str, Plugin], uses: dict[str, str], path: str, message: str
) -> None:
    """Other aliases are not affected."""
    named = resolve_aliases(plugins, {**uses, "good": "mail"})
    assert next(str(c) for c in named.complaints if c.path == path).startswith(f"{path}: {message}")
    assert set(named.plugins) == {"mail", "fetch", "good"}


def test_an_alias_of_a_rejected_plugin_reports_the_reason(root: Path, make_plugin: MakePlugin) -> None:
    _missing_entrypoint(make_plugin("mail"))
    found = discover([root])
    named = resolve_aliases(found.plugins, {"a": "mail"}, rejected=found.rejected)
    assert "plugin 'mail' is not usable" in named.complaints[0].message
    assert "run.sh: does not exist" in named.complaints[0].message


def test_a_very_long_chain_of_aliases_is_followed(plugins: dict[str, Plugin]) -> None:
    uses = {f"a{number}": f"a{number - 1}" for number in range(1, 300)} | {"a0": "mail"}
    assert resolve_aliases(plugins, uses).plugins["a299"].base == "mail"


# Bundled plugins


@pytest.mark.process
def test_the_bundled_plugins_are_accepted_without_warnings(tmp_path: Path) -> None:
    """The one in C is built first."""
    bundled = tmp_path / "plugins"
    shutil.copytree(Path(__file__).parents[2] / "plugins", bundled)
    build(bundled / "c-greet")
    manifests = list(bundled.rglob("manifest.yaml"))
    for path in manifests:
        manifest = strict_yaml.load(path.read_bytes(), source=str(path)).data()
        assert manifest["name"] == path.parent.name
    found = discover([bundled])
    assert len(found.plugins) == len(manifests) > 10
    assert found.rejected == ()
    assert [warning for warning in found.warnings if str(bundled) in str(warning)] == []
