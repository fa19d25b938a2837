"""What an operator is told about the difference between two configurations."""

from pathlib import Path

import pytest

from ductile.config.views.changes import ConfigChanges, NamedChanges, changes_between
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of

BEFORE = """
plugins:
  echo: {config: {greeting: hello}, schedules: [{id: often, every: 5m}]}
  other: {}
routes: [{from: echo, event_type: said, to: other}]
pipelines: [{name: first, on: said, steps: [{uses: other}]}]
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "ductile")
    for name in ("echo", "other"):
        made.plugin(name, "#!/bin/sh\n")
    made.write("more.yaml", BEFORE)
    made.add("include: [more.yaml]\n")
    return made


def changed(home: Home, old: str, new: str, *, file: str = "more.yaml") -> ConfigChanges:
    before = snapshot_of(home)
    text = (home.path / file).read_text()
    assert old in text
    home.write(file, text.replace(old, new))
    return changes_between(before, snapshot_of(home))


def test_the_same_configuration_has_no_changes(home: Home) -> None:
    """Reading the same files again is no change."""
    found = changes_between(snapshot_of(home), snapshot_of(home))
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
    ],
)
def test_what_came_went_or_changed_is_named(home: Home, old: str, new: str, section: str, named: NamedChanges) -> None:
    """Plugins, schedules, routes and pipelines are told by name, with the keys that differ."""
    found = changed(home, old, new)
    assert dict(found.sections) == {section: named}
    assert not found.settings


def test_a_new_secret_is_a_change_that_shows_no_secret(home: Home) -> None:
    """The token of the same name has another value: told as changed, never as text."""
    found = changed(home, "e2e-token-0123456789abcdef", "another-token-0123456789ab", file="config.yaml")
    assert dict(found.sections) == {"tokens": NamedChanges(changed={"e2e": ("token",)})}
    assert "another-token" not in str(found)


def test_a_token_without_a_name_is_called_the_same_wherever_it_stands(home: Home) -> None:
    """Its word comes of the token: another one above it is all that is new, and another value is another token."""
    home.write("config.yaml", (home.path / "config.yaml").read_text().replace("name: e2e, ", ""))
    found = changed(home, "tokens:\n", "tokens:\n      - {token: another-token-0123456789ab}\n", file="config.yaml")
    (word,) = found.sections["tokens"].added
    assert dict(found.sections) == {"tokens": NamedChanges(added=(word,))}
    found = changed(home, "another-token-0123456789ab", "third-token-0123456789abcd", file="config.yaml")
    assert found.sections["tokens"].removed == (word,)


def test_everything_else_is_told_by_its_path(home: Home) -> None:
    """Settings without names of their own."""
    found = changed(home, "max_workers: 4", "max_workers: 5", file="config.yaml")
    assert found.settings == ("service.max_workers",)


def test_a_plugin_that_can_run_no_more_is_told_with_the_reason(home: Home) -> None:
    """Its waiting jobs will end, so this is worth a line of its own."""
    found = changed(home, "  other: {}", "  other: {enabled: false}")
    assert dict(found.unavailable) == {"other": "is disabled (enabled: false)"}


def test_a_plugin_that_can_run_now_is_told_with_or_without_an_entry(home: Home) -> None:
    """One that nobody configured came; one that was configured and not there has its files now."""
    home.write("more.yaml", f"{BEFORE}".replace("  other: {}", "  other: {}\n  late: {}"))
    before = snapshot_of(home)
    for name in ("late", "stranger"):
        home.plugin(name, "#!/bin/sh\n")

    found = changes_between(before, snapshot_of(home))

    assert dict(found.sections) == {"plugins": NamedChanges(added=("stranger",), changed={"late": ("files",)})}
    assert found.unsealed == ()  # nothing here is sealed


def test_new_code_of_a_plugin_is_a_change(home: Home) -> None:
    """The files of a plugin are part of what runs."""
    before = snapshot_of(home)
    home.write("plugins/echo/run", "#!/bin/sh\nexit 0\n")
    (home.path / "plugins/echo/run").chmod(0o700)
    assert changes_between(before, snapshot_of(home)).sections["plugins"] == NamedChanges(changed={"echo": ("files",)})
