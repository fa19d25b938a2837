"""Secrets do not print, and known secrets are masked in text."""

import base64
import copy
import html
import json
import logging
import pickle
import re
from urllib.parse import quote, quote_plus

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.secret import HIDDEN, MIN_TAIL_LENGTH, Mask, Secret

CANARY = 'hunter2/+"ünter'


@frozen
class Settings:
    token: Secret


@pytest.mark.parametrize(
    "shown",
    [
        str(Secret(CANARY)),
        repr(Secret(CANARY)),
        f"{Secret(CANARY)}",
        f"{Secret(CANARY)!r}",
        f"{Secret(CANARY)!a}",
        "%s" % Secret(CANARY),  # noqa: UP031
        str([Secret(CANARY)]),
        repr({"token": Secret(CANARY)}),
        repr(Settings(Secret(CANARY))),
        str(ValueError(Secret(CANARY))),
        json.dumps({"token": Secret(CANARY)}, default=str),
        logging.LogRecord("x", 0, "x", 0, "%s %r", (Secret(CANARY), Secret(CANARY)), None).getMessage(),
    ],
)
def test_a_secret_prints_as_stars(shown: str) -> None:
    assert HIDDEN in shown
    assert "hunter2" not in shown


def test_reveal_is_the_only_access_to_the_text() -> None:
    """A secret cannot be pickled, copied or dumped as JSON, and has no public attribute."""
    secret = Secret(CANARY)
    assert secret.reveal() == CANARY
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="a secret cannot be pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="a secret cannot be pickled"):
        copy.deepcopy(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_secrets_with_equal_texts_are_equal() -> None:
    """A secret never equals the bare text."""
    assert Secret("ü\udcff") == Secret("ü\udcff")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


def test_an_empty_secret_is_false() -> None:
    assert Secret("a")
    assert not Secret("")


def test_a_fingerprint_distinguishes_secrets_without_revealing_them() -> None:
    prints = [Secret(text).fingerprint() for text in (CANARY, CANARY, "other", "")]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert {len(each) for each in prints} == {len("secretfp_blake3:") + 16}
    assert CANARY not in prints[0]


@pytest.mark.parametrize(
    "leak",
    [
        CANARY,
        f"token={CANARY}&x=1",
        f"{CANARY}{CANARY}",
        json.dumps({"token": CANARY}),
        json.dumps({"token": CANARY}, ensure_ascii=False),
        quote(CANARY, safe=""),
        CANARY.encode().hex(),
        base64.b64encode(CANARY.encode()).decode(),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
        base64.b64encode(f"me:{CANARY}".encode()).decode(),
        base64.b64encode(f"you:{CANARY}:more".encode()).decode(),
        base64.urlsafe_b64encode(f"user:{CANARY}".encode()).decode(),
    ],
)
def test_a_known_secret_is_masked_in_common_encodings(leak: str) -> None:
    """Plain, escaped for JSON or a URL, in hexadecimal, and in base64 at any offset."""
    masked = Mask([CANARY])(f"before {leak} after")
    assert HIDDEN in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert leak not in masked
    assert "hunter2" not in masked


def test_a_secret_is_masked_as_programs_quote_it_for_urls_and_html() -> None:
    """In either case of hexadecimal digits, and with any usual choice of characters that need no quoting."""
    secret = """a b/c~d!e'(f)"g"<h>&i=ü"""
    leaks = {
        "upper-case hex": secret.encode().hex().upper(),
        "path": quote(secret),
        "form value": quote_plus(secret),
        "lower-case form value": re.sub("%..", lambda found: found[0].lower(), quote_plus(secret)),
        "encodeURIComponent": quote(secret, safe="!'()*"),
        "encodeURI": quote(secret, safe=";,/?:@&=+$!'()*#"),
        "html.escape": html.escape(secret),
        "text content": html.escape(secret, quote=False),
        "numeric entities": html.escape(secret, quote=False).replace('"', "&#34;").replace("'", "&#39;"),
        "XML": html.escape(secret, quote=False).replace('"', "&quot;").replace("'", "&apos;"),
        "PHP": html.escape(secret).replace("&#x27;", "&#039;"),
        "Go template": html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;").replace("+", "&#43;"),
        "Handlebars": html.escape(secret).replace("`", "&#x60;").replace("=", "&#x3D;"),
        "Mustache": html.escape(secret).translate({96: "&#x60;", 61: "&#x3D;", 47: "&#x2F;"}).replace("x27", "39"),
        "JSON of PHP": json.dumps(secret)[1:-1].replace("/", "\\/"),
        "JSON of Go": json.dumps(secret)[1:-1].translate({38: "\\u0026", 60: "\\u003c", 62: "\\u003e"}),
    }
    shown = {name: Mask([secret])(f"-{leak}-") for name, leak in leaks.items()}
    assert {name: text for name, text in shown.items() if text != f"-{HIDDEN}-"} == {}


@given(st.text(min_size=8, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_a_secret_inside_base64_is_always_found(secret: str, before: bytes, after: bytes) -> None:
    """At any offset, for example after a user name."""
    raw = before + secret.encode("utf-8", "surrogatepass") + after
    assert HIDDEN in Mask([secret])(base64.b64encode(raw).decode())


def test_the_longer_secret_is_masked_first() -> None:
    """A secret that contains another one is masked completely."""
    assert Mask(["password", "password-and-more"])("password-and-more password") == f"{HIDDEN} {HIDDEN}"


def test_each_line_of_a_key_file_is_masked() -> None:
    """Programs print line by line."""
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nab\n-----END KEY-----\n"
    assert Mask([key])("read MIIEvQIBADANBg from disk") == f"read {HIDDEN} from disk"
    assert Mask([key])("ab") == "ab"


def test_a_truncated_secret_at_the_start_of_a_text_is_masked() -> None:
    """In all encodings."""
    mask = Mask([CANARY])
    for form in (CANARY, CANARY.encode().hex(), quote(CANARY, safe="")):
        for cut in range(1, len(form) - MIN_TAIL_LENGTH + 1):
            assert mask.mask_tail(f"{form[cut:]} and more") == f"{HIDDEN} and more"
    assert mask.mask_tail(f"more {CANARY}") == f"more {HIDDEN}"
    assert mask.mask_tail("anything else") == "anything else"


def test_a_truncated_secret_that_ends_with_another_is_masked_completely() -> None:
    mask = Mask(["prefix-of-many-letters-SHAREDPART99", "SHAREDPART99"])
    assert mask.mask_tail("of-many-letters-SHAREDPART99 boom SHAREDPART99") == f"{HIDDEN} boom {HIDDEN}"


def test_short_values_are_not_masked() -> None:
    """`admin` as a secret must not mask every log line."""
    assert Mask(["admin", "", "1234567"])("admin 1234567") == "admin 1234567"
    assert Mask(["12345678"])("12345678") == HIDDEN


def test_a_mask_without_secrets_changes_nothing() -> None:
    assert Mask()("any *** text") == "any *** text"
