"""Convert HTML to plain text or simple Markdown: headings, paragraphs, lists, links and code, without scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SKIPPED = {"title", "script", "style", "template", "noscript", "svg"}
_BLOCKS = {
    "p",
    "div",
    "section",
    "article",
    "header",
    "footer",
    "nav",
    "main",
    "aside",
    "ul",
    "ol",
    "table",
    "tr",
    "blockquote",
    "dl",
    "dt",
    "dd",
}
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}


def title_of(html: str) -> str:
    """Return the title of the page from its first 64 KiB; empty if it has none."""
    from html import unescape

    found = re.search(r"<title[^>]{0,200}>([^<]{0,1000})", html[:65536], re.IGNORECASE)
    return " ".join(unescape(found[1]).split()) if found else ""


def convert(html: str, *, markdown: bool) -> str:
    """Return the text of the page. Accepts invalid HTML."""
    page = _Page(markdown=markdown)
    page.feed(html)
    page.close()
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(page.pieces))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


class _Page(HTMLParser):
    def __init__(self, *, markdown: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.markdown = markdown
        self.pieces: list[str] = []
        self.skipped = ""
        self.preformatted = 0
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        if self.skipped:
            return
        if tag in _SKIPPED:
            self.skipped = tag
        elif tag == "br":
            self.pieces.append("\n")
        elif tag in _BLOCKS:
            self.pieces.append("\n\n")
        elif re.fullmatch("h[1-6]", tag):
            self.pieces.append("\n\n" + ("#" * int(tag[1]) + " " if self.markdown else ""))
        elif tag == "li":
            self.pieces.append("\n- ")
        elif tag == "pre":
            self.preformatted += 1
            self.pieces.append("\n\n```\n" if self.markdown else "\n\n")
        elif tag == "a":
            self.links.append(dict(attrs).get("href") or "")
            self._mark("[")
        elif tag in _MARKS and not self.preformatted:
            self._mark(_MARKS[tag])

    def handle_endtag(self, tag: str) -> None:
        if self.skipped:
            self.skipped = "" if tag == self.skipped else self.skipped
        elif tag in _BLOCKS or re.fullmatch("h[1-6]", tag):
            self.pieces.append("\n\n")
        elif tag == "pre" and self.preformatted:
            self.preformatted -= 1
            self.pieces.append("\n```\n\n" if self.markdown else "\n\n")
        elif tag == "a" and self.links:
            self._mark(f"]({self.links.pop()})")
        elif tag in _MARKS and not self.preformatted:
            self._mark(_MARKS[tag])

    def handle_data(self, data: str) -> None:
        if not self.skipped:
            self.pieces.append(data if self.preformatted else re.sub(r"\s+", " ", data))

    def _mark(self, text: str) -> None:
        if self.markdown:
            self.pieces.append(text)
