"""MkDocs hooks: add the READMEs of the bundled plugins, which are outside `docs/`, to the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BUNDLED = "bundled"
"""The folder of these pages in the site. `plugins` is the page about writing plugins."""
READMES = sorted([ROOT / "plugins" / "README.md", *(ROOT / "plugins").glob("*/README.md")])
SOURCE_LINK = re.compile(r"\[([^]]*)\]\([^):]*/\w+\.(?:sh|py|js)\)")
"""A link to a source file, which the site does not contain."""


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each README below `plugins/`."""
    for readme in READMES:
        name = f"{BUNDLED}/{readme.relative_to(ROOT / 'plugins')}"
        files.append(File.generated(config, name, abs_src_path=str(readme)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links between `docs/` and `plugins/` to the paths of the site."""
    if not page.file.src_uri.startswith(BUNDLED):
        return markdown.replace("](../plugins/", f"]({BUNDLED}/")
    return SOURCE_LINK.sub(r"\1", markdown).replace("../docs/", "../")
