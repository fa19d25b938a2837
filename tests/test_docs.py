"""The documentation covers all commands, keys, routes and journal kinds, and its links have targets."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import click
import pytest

import ductile

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ductile.__file__).parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").rglob("*.md")])
KIND = re.compile(r"(?:job|event|scheduler)\.[a-z_]+")
NOT_KINDS = {"job.dead", "job.run"}
"""A signal for hook pipelines, and a module of the command line."""


def test_the_generated_pages_are_up_to_date() -> None:
    """docs/cli.md and docs/configuration.md match the code."""
    result = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr


def test_flags_are_documented_with_their_defaults_and_ranges() -> None:
    """docs/cli.md has the same values as `--help`."""
    from ductile.cli import ductile as root
    from ductile.cli.agents.describe import actions

    page = (ROOT / "docs" / "cli.md").read_text()
    checked: set[str] = set()
    for name, command in actions(root):
        (chapter,) = re.findall(rf"^## ductile {name}(?: [^a-z\n]*)?\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        for option in command.params:
            if isinstance(option, click.Option) and (extra := option.get_help_extra(click.Context(command))):
                (row,) = [line for line in chapter.splitlines() if line.startswith(f"| `{option.opts[0]}")]
                assert [part for part in extra.values() if str(part) not in row] == [], f"{name}: {row}"
                checked.update(extra)

    assert {"default", "range"} <= checked


def test_every_configuration_key_and_section_has_a_description() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|.*\| *(.*?) *\|$", page, re.MULTILINE)
    sections = re.findall(r"^### (.*)\n\n(.*)$", page.partition("## Keys\n")[2], re.MULTILINE)

    assert len(rows) > 100
    assert [name for name, meaning in rows if len(meaning) < 4] == []
    assert [name for name, about in sections if not about or about.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_targets_of_relative_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings: lower case, hyphens for blanks, other punctuation omitted."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_anchors_of_links_exist(page: Path) -> None:
    """Each one is a heading of the linked page."""
    links = re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", page.read_text())
    targets = [(page.parent / name if name else page, anchor) for name, anchor in links if "://" not in name]

    assert [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)] == []


def test_the_documentation_site_builds_without_warnings(tmp_path: Path) -> None:
    """The site includes the pages of the bundled plugins."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "scripts/mkdocs.yml", "-d", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(build, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "pipelines.html").exists()
    assert (tmp_path / "bundled" / "echo" / "index.html").exists()


def test_every_route_is_documented() -> None:
    """docs/api.md has the path and method of each route."""
    text = (ROOT / "docs" / "api.md").read_text()
    modules = [path.read_text() for package in ("web", "relay") for path in sorted((PACKAGE / package).rglob("*.py"))]
    routes = re.findall(r'method="([A-Z]+)",\s*path="([^"]+)"', "".join(modules))

    assert routes
    assert [f"{method} {path}" for method, path in routes if f"`{method} {path}`" not in text] == []


def journal_kinds() -> set[str]:
    """Return every kind that is written to the journal."""
    return {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("event_types.py", "event_format.py")  # these also have names that exist only in the stream
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KIND.fullmatch(node.value)
    } - NOT_KINDS


def test_every_kind_of_journal_entry_is_documented() -> None:
    """docs/database.md has each kind."""
    text = (ROOT / "docs" / "database.md").read_text()
    kinds = journal_kinds()

    assert {"job.started", "event.unmatched"} <= kinds
    assert sorted(kind for kind in kinds if f"`{kind}`" not in text) == []


def test_every_exit_code_of_an_error_is_documented() -> None:
    """It is in the table of docs/cli.md."""
    from ductile.core.errors import DuctileError

    def error_classes(cls: type[DuctileError]) -> Iterator[type[DuctileError]]:
        yield cls
        for subclass in cls.__subclasses__():
            yield from error_classes(subclass)

    table = (ROOT / "docs" / "cli.md").read_text()
    assert sorted({cls.exit_code for cls in error_classes(DuctileError) if f"| {cls.exit_code} |" not in table}) == []


@pytest.mark.parametrize("page", ["security.md", "webhooks.md"])
def test_documented_secret_lengths_match_the_code(page: str) -> None:
    """The length of generated secrets, and the length below which `config check` warns."""
    from ductile.config.checks.examine import MIN_SECRET_LENGTH
    from ductile.config.edit.token_edit import KEY_BYTES

    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert f"{KEY_BYTES} random bytes" in text
    assert f"shorter than {MIN_SECRET_LENGTH} characters" in text


def test_the_keys_in_the_hardening_section_are_current() -> None:
    """A legacy key would be a warning, which fails `config check --strict`."""
    from ductile.config.sections.settings import PluginEntry

    text = (ROOT / "docs" / "security.md").read_text()
    (named,) = re.findall(r"^\d\. Set `(\w+)` and `(\w+)` for every plugin", text, re.MULTILINE)
    assert set(named) <= {field.name for field in attrs.fields(PluginEntry)}


def project_files() -> Iterator[Path]:
    """Yield the files of the project, without those that builds and runs create."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    for folder in ("ductile", "plugins", "tests", "scripts", "docs", ".ci"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_no_file_contains_a_path_of_a_machine_or_a_package_host() -> None:
    pattern = re.compile(rb"(?:^|[^A-Za-z0-9_.-])/(?:root|work|farm)/|pypi\.|files\.pythonhosted")
    files = list(project_files())

    assert ROOT / "README.md" in files
    assert [str(path) for path in files if path.name != "test_docs.py" and pattern.search(path.read_bytes())] == []
