"""Questions about jobs and attempts as people write them: texts in, `Wanted` and the place in a list out. Pure.

The API and the command line ask in the same words. Complaints name the argument.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ductile.core.clock import from_text
from ductile.core.errors import UsageInvalid, did_you_mean
from ductile.core.units import shown
from ductile.ledger.reports.pagination import NEWEST, ListFilter, Page

IN_A_PAGE, MOST_IN_A_PAGE = 50, 200
LONGEST_TEXT, MOST_WORDS = 500, 20
SYNONYMS = {"pending": "queued", "ok": "succeeded", "error": "failed"}
TEXTS = ("plugin", "command", "submitted_by", "schedule_id", "pipeline", "root", "job_id")
ARGUMENTS = (*TEXTS, "status", "from", "to", "query")


def read_wanted(given: Mapping[str, str | None], statuses: Iterable[str]) -> ListFilter:
    """What is asked for under the names of `ARGUMENTS`; what is missing or empty lets everything through."""
    return ListFilter(
        status=_status(given.get("status"), statuses),
        since=_moment(given.get("from"), "from"),
        until=_moment(given.get("to"), "to"),
        words=_words(given.get("query")),
        **{name: _text(given.get(name), name) for name in TEXTS},
    )


def ends_of(page: Page[Any], limit: int) -> dict[str, Any]:
    """How much there is, where the next page begins, and how much a page has at most: less than was asked for, if
    that was more than `MOST_IN_A_PAGE`."""
    return {
        "total": page.total,
        "total_is_exact": page.is_exact,
        "next_cursor": None if page.next_before is None else cursor_text(page.next_before),
        "limit": limit,
    }


def cursor_text(before: int) -> str:
    return base64.urlsafe_b64encode(str(before).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> int:
    """Where a page begins; at the newest if nothing was given."""
    if not text:
        return NEWEST
    try:
        digits = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        digits = b""
    if not digits.isdigit() or len(digits) > len(str(NEWEST)) or cursor_text(int(digits)) != text:
        raise UsageInvalid(f"cursor: {shown(text)} is not one of ours", hint="send `next_cursor` of the page before")
    return min(int(digits), NEWEST)


def read_limit(text: str | None) -> int:
    """How many to show: never more than `MOST_IN_A_PAGE`."""
    text = text or str(IN_A_PAGE)
    if not (text.isascii() and text.isdigit() and int(text[:9])):
        raise UsageInvalid(f"limit: expected a number from 1 on, got {shown(text)}")
    return min(int(text[:9]), MOST_IN_A_PAGE)


def _text(text: str | None, name: str) -> str | None:
    if text is not None and len(text) > LONGEST_TEXT:
        raise UsageInvalid(f"{name}: longer than {LONGEST_TEXT} characters")
    return text or None


def _words(given: str | None) -> str | None:
    text = _text(given, "query")
    if text is not None and len(text.split()) > MOST_WORDS:
        raise UsageInvalid(f"query: more than {MOST_WORDS} words")
    if text is not None and not text.replace("\t", " ").isprintable():
        raise UsageInvalid("query: has characters that cannot be seen")
    return text if text is not None and text.strip() else None


def _status(text: str | None, statuses: Iterable[str]) -> str | None:
    if not text:
        return None
    known, wanted = [str(status) for status in statuses], SYNONYMS.get(text, text)
    if wanted not in known:
        close = did_you_mean(text, [*known, *SYNONYMS])
        raise UsageInvalid(f"status: there is no {shown(text)}{close}", hint=f"one of {', '.join(known)}")
    return wanted


def _moment(text: str | None, name: str) -> datetime | None:
    if not text:
        return None
    try:
        return from_text(text)
    except ValueError as error:
        raise UsageInvalid(f"{name}: {error}", hint="write 2026-03-29T02:30:00Z, and + as %2B in a query") from error
