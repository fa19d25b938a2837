"""Secret values that never print, and the mask that removes known secrets from text.

`Secret.reveal` is the only access to the text. The callers decide which secrets to mask.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import blake3

HIDDEN = "***"
MIN_TAIL_LENGTH = 4
"""A truncated secret at the start of a text is masked from this many characters on."""
MIN_SECRET_LENGTH = 8
"""Shorter values are not masked: they would match ordinary words."""
FINGERPRINT = "secretfp_blake3:"


class Secret:
    """Text that prints, logs and serialises as `***`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def fingerprint(self) -> str:
        """Return a hash prefix that distinguishes secrets without revealing them."""
        return f"{FINGERPRINT}{blake3.blake3(self._text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (secret._text.encode("utf-8", "surrogatepass") for secret in (self, other))
        from hmac import compare_digest  # imports OpenSSL, which most callers do not need

        return compare_digest(ours, theirs)

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        raise TypeError("a secret cannot be pickled")


class Mask:
    """A filter that replaces known secrets in text, longest first, including escaped and encoded forms."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for text in secrets if len(text) >= MIN_SECRET_LENGTH for form in _forms(text)}
        self._forms = sorted((form for form in forms if len(form) >= MIN_SECRET_LENGTH), key=len, reverse=True)

    def with_secrets(self, secrets: Iterable[str]) -> "Mask":
        """Return a mask that also hides `secrets`."""
        wider = Mask(secrets)
        wider._forms = sorted({*self._forms, *wider._forms}, key=len, reverse=True)
        return wider

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def mask_tail(self, text: str) -> str:
        """Mask text whose beginning was cut off, so that it may start in the middle of a secret."""
        # Before other replacements: a secret may end with another secret.
        rest = max((_rest(form, text) for form in self._forms), key=len, default="")
        return HIDDEN + self(text[len(rest) :]) if rest else self(text)

    def mask_data(self, data: Any) -> Any:
        """Mask every string in plain JSON-like data."""
        match data:
            case str():
                return self(data)
            case dict():
                return {name: self.mask_data(value) for name, value in data.items()}
            case list():
                return [self.mask_data(value) for value in data]
        return data


def _rest(form: str, text: str) -> str:
    """Return the longest end of `form` that `text` starts with, if it has at least `MIN_TAIL_LENGTH` characters."""
    head = text[:MIN_TAIL_LENGTH]
    at = form.find(head) if len(head) == MIN_TAIL_LENGTH else -1
    while at != -1 and not text.startswith(form[at:]):
        at = form.find(head, at + 1)
    return form[at:] if at != -1 else ""


def _forms(text: str) -> Iterator[str]:
    """Yield the encodings in which programs are likely to print `text`."""
    raw = text.encode("utf-8", "surrogatepass")
    yield text
    yield from text.splitlines()
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    for escapes in _JSON_ESCAPES:
        yield json.dumps(text)[1:-1].translate(escapes)
    for safe in _URL_SAFE_CHARACTERS:
        quoted = quote(raw, safe=safe)
        for escaped in (quoted, _ESCAPE.sub(lambda found: found[0].lower(), quoted)):
            yield escaped
            yield escaped.replace("%20", "+")
    for entities in _HTML_ENTITIES:
        yield text.translate(entities)
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):
        standard = _inside_base64(raw, before)
        yield standard
        yield standard.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
_URL_SAFE_CHARACTERS = ("", "/", "!'()*", ";,/?:@&=+$!'()*#")
"""What encoders leave unquoted: nothing more, paths, `encodeURIComponent` and `encodeURI` of JavaScript."""
_ESCAPE = re.compile("%..")
_JSON_ESCAPES = (str.maketrans({"/": "\\/"}), str.maketrans({one: f"\\u{ord(one):04x}" for one in "&<>"}))
"""What encoders also escape in JSON: those of PHP, and those of Go."""
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_HTML_QUOTES: tuple[dict[str, str], ...] = (
    {},
    {'"': "&quot;", "'": "&#x27;"},
    {'"': "&#34;", "'": "&#39;"},
    {'"': "&quot;", "'": "&#39;"},
    {'"': "&quot;", "'": "&apos;"},
    {'"': "&quot;", "'": "&#039;"},
    {'"': "&#34;", "'": "&#39;", "+": "&#43;"},
    {'"': "&quot;", "'": "&#x27;", "`": "&#x60;"},
    {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"},
    {'"': "&quot;", "'": "&#39;", "`": "&#x60;", "=": "&#x3D;", "/": "&#x2F;"},
)
"""How encoders write quotes: Python, numeric, JavaScript, XML, PHP, Go templates, Underscore, Handlebars, Mustache."""
_HTML_ENTITIES = tuple(str.maketrans(_HTML | quotes) for quotes in _HTML_QUOTES)


def _inside_base64(raw: bytes, before: int) -> str:
    """Return the base64 characters that depend on `raw` alone when `before` bytes (modulo 3) precede it."""
    encoded = base64.b64encode(bytes(before) + raw).decode()
    return encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
