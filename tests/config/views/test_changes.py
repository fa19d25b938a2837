"""Differences between two configurations."""

from pathlib import Path

import pytest

from ductile.config.views.changes import ConfigChanges, NamedChanges, compare_snapshots
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of

BEFORE = """
plugins:
  echo: {config: {greeting: hello}, schedules: [{id: often, every: 5m}]}
  other: {}
routes: [{from: echo, event_type: said, to: other}]
pipelines: [{name: first, on: said, steps: [{uses: other}]}]
exchange:
  topics: {review.*: {lease: 5m}}
  consumers: [{topic: review.request, event: said}]
"""


@pytest.fixture
def config_dir(tmp_path: Path) -> Home:
    created = Home.make(tmp_path / "ductile")
    for name in ("echo", "other"):
        created.plugin(name, "#!/bin/sh\n")
    created.write("more.yaml", BEFORE)
    created.add("include: [more.yaml]\n")
    return created


def change(config_dir: Home, old: str, new: str, *, file: str = "more.yaml") -> ConfigChanges:
    before = snapshot_of(config_dir)
    text = (config_dir.path / file).read_text()
    assert old in text
    config_dir.write(file, text.replace(old, new))
    return compare_snapshots(before, snapshot_of(config_dir))


def test_the_same_configuration_has_no_changes(config_dir: Home) -> None:
    found = compare_snapshots(snapshot_of(config_dir), snapshot_of(config_dir))
    assert not found
    assert found.as_data() == {"settings": [], "unavailable": {}, "unsealed": []}


@pytest.mark.parametrize(
    ("old", "new", "section", "named"),
    [
        ("hello", "hi", "plugins", NamedChanges(changed={"echo": ("config.greeting",)})),
        ("  other: {}", "  other: {}\n  third: {uses: other}", "plugins", NamedChanges(added=("third",))),
        ("every: 5m", "every: 6m", "schedules", NamedChanges(changed={"echo/often": ("every",)})),
        ("{id: often, every: 5m}", "", "schedules", NamedChanges(removed=("echo/often",))),
        (
            "event_type: said",
            "event_type: cried",
            "routes",
            NamedChanges(("echo cried → other",), ("echo said → other",)),
        ),
        ("name: first", "name: second", "pipelines", NamedChanges(("second",), ("first",))),
        ("on: said", "on: cried", "pipelines", NamedChanges(changed={"first": ("on",)})),
        ("lease: 5m", "lease: 6m", "topics", NamedChanges(changed={"review.*": ("lease",)})),
        ("review.*:", "review.a:", "topics", NamedChanges(("review.a",), ("review.*",))),
        ("event: said", "event: cried", "consumers", NamedChanges(changed={"review.request": ("event",)})),
    ],
)
def test_added_removed_and_changed_members_are_listed_by_name(
    config_dir: Home, old: str, new: str, section: str, named: NamedChanges
) -> None:
    """Plugins, schedules, routes and pipelines, with the keys that differ."""
    found = change(config_dir, old, new)
    assert dict(found.sections) == {section: named}
    assert not found.settings


def test_a_new_secret_is_a_change_without_its_value(config_dir: Home) -> None:
    found = change(config_dir, "e2e-token-0123456789abcdef", "another-token-0123456789ab", file="config.yaml")
    assert dict(found.sections) == {"tokens": NamedChanges(changed={"e2e": ("token",)})}
    assert "another-token" not in str(found)


def test_the_label_of_an_unnamed_token_does_not_depend_on_its_position(config_dir: Home) -> None:
    """It is derived from the token, so another value is another token."""
    config_dir.write("config.yaml", (config_dir.path / "config.yaml").read_text().replace("name: e2e, ", ""))
    found = change(
        config_dir, "tokens:\n", "tokens:\n      - {token: another-token-0123456789ab}\n", file="config.yaml"
    )
    (label,) = found.sections["tokens"].added
    assert dict(found.sections) == {"tokens": NamedChanges(added=(label,))}
    found = change(config_dir, "another-token-0123456789ab", "third-token-0123456789abcd", file="config.yaml")
    assert found.sections["tokens"].removed == (label,)


def test_other_settings_are_listed_by_path(config_dir: Home) -> None:
    found = change(config_dir, "max_workers: 4", "max_workers: 5", file="config.yaml")
    assert found.settings == ("service.max_workers",)


def test_a_plugin_that_becomes_unavailable_is_listed_with_the_reason(config_dir: Home) -> None:
    """Its queued jobs will fail."""
    found = change(config_dir, "  other: {}", "  other: {enabled: false}")
    assert dict(found.unavailable) == {"other": "is disabled (enabled: false)"}


def test_a_newly_installed_plugin_is_listed_with_or_without_an_entry(config_dir: Home) -> None:
    """Without an entry it is added; with an entry its files have changed."""
    config_dir.write("more.yaml", f"{BEFORE}".replace("  other: {}", "  other: {}\n  late: {}"))
    before = snapshot_of(config_dir)
    for name in ("late", "unconfigured"):
        config_dir.plugin(name, "#!/bin/sh\n")

    found = compare_snapshots(before, snapshot_of(config_dir))

    assert dict(found.sections) == {"plugins": NamedChanges(added=("unconfigured",), changed={"late": ("files",)})}
    assert found.unsealed == ()  # nothing here is sealed


def test_a_change_of_plugin_files_is_a_change(config_dir: Home) -> None:
    before = snapshot_of(config_dir)
    config_dir.write("plugins/echo/run", "#!/bin/sh\nexit 0\n")
    (config_dir.path / "plugins/echo/run").chmod(0o700)
    assert compare_snapshots(before, snapshot_of(config_dir)).sections["plugins"] == NamedChanges(
        changed={"echo": ("files",)}
    )
