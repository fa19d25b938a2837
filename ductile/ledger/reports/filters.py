"""Parse the arguments of lists: texts to `ListFilter`, cursor and limit. Pure.

The API and the command line share the argument names. Errors name the argument.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypedDict

from ductile.core.clock import from_text
from ductile.core.errors import UsageInvalid, did_you_mean
from ductile.core.formats.json_schema import Count, Keywords
from ductile.core.statuses import ENDED_BY_OPERATOR, JobStatus
from ductile.core.units import quote_text
from ductile.ledger.reports.pagination import NEWEST, ListFilter, Page

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 200
MAX_TEXT_CHARACTERS, MAX_WORDS = 500, 20
SYNONYMS = {"pending": "queued", "ok": "succeeded", "error": "failed"}
TEXT_ARGUMENTS = ("plugin", "command", "submitted_by", "schedule_id", "pipeline", "root", "job_id")
ARGUMENTS = (*TEXT_ARGUMENTS, "status", "from", "to", "query")


class PageFields(TypedDict):
    """What every list response has besides its items."""

    total: Annotated[Count, "Matching items, or the number counted so far"]
    total_is_exact: Annotated[bool, "False if there may be more than `total`"]
    next_cursor: Annotated[str, "Value for ?cursor= of the next page; null on the last page"] | None
    limit: Annotated[int, "Maximum number of items in a page", Keywords(minimum=1, maximum=MAX_PAGE_SIZE)]


def parse_filter(arguments: Mapping[str, str | None], statuses: Iterable[str]) -> ListFilter:
    """Parse the filters in `arguments`, by the names in `ARGUMENTS`. Missing and empty ones match everything."""
    return ListFilter(
        status=_status(arguments.get("status"), statuses),
        since=parse_moment(arguments.get("from"), "from"),
        until=parse_moment(arguments.get("to"), "to"),
        words=_words(arguments.get("query")),
        **{name: parse_text(arguments.get(name), name) for name in TEXT_ARGUMENTS},
    )


def page_fields(page: Page[Any], limit: int) -> PageFields:
    """Return the fields of a list response: total, next cursor and the effective limit, at most MAX_PAGE_SIZE."""
    return {
        "total": page.total,
        "total_is_exact": page.is_exact,
        "next_cursor": None if page.next_before is None else format_cursor(page.next_before),
        "limit": limit,
    }


def format_cursor(before: int) -> str:
    return base64.urlsafe_b64encode(str(before).encode()).decode().rstrip("=")


def parse_cursor(text: str | None) -> int:
    """Parse the position of a page; the newest row without a cursor."""
    if not text:
        return NEWEST
    try:
        digits = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        digits = b""
    if not digits.isdigit() or len(digits) > len(str(NEWEST)) or format_cursor(int(digits)) != text:
        raise UsageInvalid(
            f"cursor: {quote_text(text)} is not valid", hint="Send the `next_cursor` of the previous page."
        )
    return min(int(digits), NEWEST)


def parse_limit(text: str | None) -> int:
    """Parse the page size; larger values are reduced to MAX_PAGE_SIZE."""
    text = text or str(DEFAULT_PAGE_SIZE)
    if not (text.isascii() and text.isdigit() and int(text[:9])):
        raise UsageInvalid(f"limit: expected a number of at least 1, got {quote_text(text)}")
    return min(int(text[:9]), MAX_PAGE_SIZE)


def parse_text(text: str | None, name: str) -> str | None:
    if text is not None and len(text) > MAX_TEXT_CHARACTERS:
        raise UsageInvalid(f"{name}: longer than {MAX_TEXT_CHARACTERS} characters")
    return text or None


def _words(value: str | None) -> str | None:
    text = parse_text(value, "query")
    if text is not None and len(text.split()) > MAX_WORDS:
        raise UsageInvalid(f"query: more than {MAX_WORDS} words")
    if text is not None and not text.replace("\t", " ").isprintable():
        raise UsageInvalid("query: contains non-printable characters")
    return text if text is not None and text.strip() else None


def _status(text: str | None, statuses: Iterable[str]) -> str | None:
    if not text:
        return None
    known, wanted = [str(status) for status in statuses], SYNONYMS.get(text, text)
    if wanted not in known:
        close, hint = did_you_mean(text, [*known, *SYNONYMS]), f"Use one of: {', '.join(known)}."
        if text in ENDED_BY_OPERATOR and JobStatus.DEAD in known:
            hint = f"Use `dead`: {text} is the `outcome_code` of dead jobs that an operator ended."
        raise UsageInvalid(f"status: unknown status {quote_text(text)}{close}", hint=hint)
    return wanted


def parse_moment(text: str | None, name: str) -> datetime | None:
    """Parse a time in RFC 3339; None if there is none."""
    if not text:
        return None
    try:
        return from_text(text)
    except ValueError as error:
        raise UsageInvalid(
            f"{name}: {error}", hint="Use the form 2026-03-29T02:30:00Z. In a query string, write + as %2B."
        ) from error
