"""Values that never print, and the mask that takes known ones out of text.

`reveal` is the only way to the text. Who holds secrets decides what to mask; this room only knows how.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import blake3

HIDDEN = "***"
SHORTEST_REST = 4
"""What is left of a secret at a cut is hidden from so many characters on; fewer tell nothing."""
MASKED_FROM = 8
"""Shorter values are not masked: they would blank out ordinary words."""


FINGERPRINT = "secretfp_blake3:"


class Secret:
    """Text that shows as `***` wherever it is printed, logged or dumped."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def fingerprint(self) -> str:
        """Tells two secrets apart without giving either away."""
        return f"{FINGERPRINT}{blake3.blake3(self._text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (secret._text.encode("utf-8", "surrogatepass") for secret in (self, other))
        from hmac import compare_digest  # OpenSSL with it, and few who hold secrets compare them

        return compare_digest(ours, theirs)

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        raise TypeError("a secret is not pickled")


class Mask:
    """Replaces known secret values in text, longest first, also where they are escaped or encoded."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for text in secrets if len(text) >= MASKED_FROM for form in _forms(text)}
        self._forms = sorted((form for form in forms if len(form) >= MASKED_FROM), key=len, reverse=True)

    def and_also(self, secrets: Iterable[str]) -> "Mask":
        """A mask that hides these too."""
        wider = Mask(secrets)
        wider._forms = sorted({*self._forms, *wider._forms}, key=len, reverse=True)
        return wider

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def of_tail(self, text: str) -> str:
        """The same for text that has lost its beginning, and may begin in the middle of a secret."""
        # Before anything is replaced: a secret may end with another one.
        rest = max((_rest(form, text) for form in self._forms), key=len, default="")
        return HIDDEN + self(text[len(rest) :]) if rest else self(text)

    def everywhere(self, data: Any) -> Any:
        """Plain data with every text in it masked."""
        match data:
            case str():
                return self(data)
            case dict():
                return {name: self.everywhere(value) for name, value in data.items()}
            case list():
                return [self.everywhere(value) for value in data]
        return data


def _rest(form: str, text: str) -> str:
    """The most of the end of `form` that `text` begins with, if that is worth hiding."""
    head = text[:SHORTEST_REST]
    at = form.find(head) if len(head) == SHORTEST_REST else -1
    while at != -1 and not text.startswith(form[at:]):
        at = form.find(head, at + 1)
    return form[at:] if at != -1 else ""


def _forms(text: str) -> Iterator[str]:
    """How a program that holds `text` is likely to print it."""
    raw = text.encode("utf-8", "surrogatepass")
    yield text
    yield from text.splitlines()
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield quote(raw, safe="")
    yield raw.hex()
    for before in range(3):
        standard = _inside_base64(raw, before)
        yield standard
        yield standard.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")


def _inside_base64(raw: bytes, before: int) -> str:
    """The characters that `raw` alone decides when it is encoded with `before` bytes in front of it, modulo three."""
    encoded = base64.b64encode(bytes(before) + raw).decode()
    return encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
