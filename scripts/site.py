"""Hooks of mkdocs: the pages of the bundled plugins, which lie beside their code, are part of the site too."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PLACE = "bundled"
"""Their folder in the site; `plugins` is the page about writing them."""
PLUGINS = sorted([ROOT / "plugins" / "README.md", *(ROOT / "plugins").glob("*/README.md")])
CODE = re.compile(r"\[([^]]*)\]\([^):]*/\w+\.(?:sh|py|js)\)")
"""A link to a program, which the site does not have."""


def on_files(files: Files, config: Any) -> Files:
    """The site has a page for each README below plugins/."""
    for page in PLUGINS:
        name = f"{PLACE}/{page.relative_to(ROOT / 'plugins')}"
        files.append(File.generated(config, name, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between docs/ and plugins/ lead to where the pages are in the site."""
    if not page.file.src_uri.startswith(PLACE):
        return markdown.replace("](../plugins/", f"]({PLACE}/")
    return CODE.sub(r"\1", markdown).replace("../docs/", "../")
