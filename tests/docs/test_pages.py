"""The marked blocks of every documentation page run and print what the page shows."""

from pathlib import Path

import pytest

from tests.docs.instance import run_page
from tests.docs.transcript import blocks_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if any(blocks_of(page.read_text()))]
EXECUTED = {
    "agents.md",
    "api.md",
    "configuration.md",
    "events.md",
    "exchange.md",
    "getting-started.md",
    "operations.md",
    "pipelines.md",
    "plugins.md",
    "relay.md",
    "schedules.md",
    "webhooks.md",
}
"""Pages that must have marked blocks."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert run_page(page.read_text(), tmp_path) > 0


def test_no_page_loses_its_marked_blocks() -> None:
    """A misspelled mark would silently exclude a page."""
    assert {page.name for page in PAGES} >= EXECUTED
