"""The pages of the documentation, followed by somebody who types what they show and reads what is printed."""

from pathlib import Path

import pytest

from tests.docs.instance import follow
from tests.docs.transcript import blocks_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if any(blocks_of(page.read_text()))]
FOLLOWED = {
    "agents.md",
    "api.md",
    "configuration.md",
    "events.md",
    "getting-started.md",
    "operations.md",
    "pipelines.md",
    "plugins.md",
    "relay.md",
    "schedules.md",
    "webhooks.md",
}
"""Pages that tell their reader to type something."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    """Its commands, in its order, in a demo of its own; its output, but for numbers and ids."""
    assert follow(page.read_text(), tmp_path) > 0


def test_no_page_has_lost_its_examples() -> None:
    """A mark that is spelled wrongly would silently take a page out of the tests."""
    assert {page.name for page in PAGES} >= FOLLOWED
