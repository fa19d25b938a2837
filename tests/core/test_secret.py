"""Secrets do not show, and known ones are taken out of text."""

import base64
import copy
import json
import logging
import pickle
from urllib.parse import quote

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.secret import HIDDEN, SHORTEST_REST, Mask, Secret

CANARY = 'hunter2/+"ünter'


@frozen
class Holder:
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
        repr(Holder(Secret(CANARY))),
        str(ValueError(Secret(CANARY))),
        json.dumps({"token": Secret(CANARY)}, default=str),
        logging.LogRecord("x", 0, "x", 0, "%s %r", (Secret(CANARY), Secret(CANARY)), None).getMessage(),
    ],
)
def test_a_secret_shows_as_stars(shown: str) -> None:
    """However it gets into a text, its own text does not."""
    assert HIDDEN in shown
    assert "hunter2" not in shown


def test_reveal_is_the_only_way_to_the_text() -> None:
    """It cannot be pickled, copied into another process, dumped as JSON or listed as an attribute."""
    secret = Secret(CANARY)
    assert secret.reveal() == CANARY
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="a secret is not pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="a secret is not pickled"):
        copy.deepcopy(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_secrets_are_equal_when_their_texts_are() -> None:
    """They can be compared and used in sets, but never equal the bare text."""
    assert Secret("ü\udcff") == Secret("ü\udcff")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


def test_an_empty_secret_is_false() -> None:
    """`if secret` asks whether there is one."""
    assert Secret("a")
    assert not Secret("")


def test_a_fingerprint_tells_secrets_apart_without_giving_them_away() -> None:
    """Equal for equal texts, of one length, and nothing of the text is in it."""
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
def test_a_known_secret_is_masked_in_the_forms_programs_print(leak: str) -> None:
    """As it is, escaped for JSON or a URL, in hexadecimal, and in base64 wherever it begins."""
    masked = Mask([CANARY])(f"before {leak} after")
    assert HIDDEN in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert leak not in masked
    assert "hunter2" not in masked


@given(st.text(min_size=8, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_a_secret_inside_base64_is_always_found(secret: str, before: bytes, after: bytes) -> None:
    """No prefix, such as a user name, shifts it out of sight."""
    raw = before + secret.encode("utf-8", "surrogatepass") + after
    assert HIDDEN in Mask([secret])(base64.b64encode(raw).decode())


def test_the_longer_secret_is_masked_first() -> None:
    """One that contains another leaves no rest of itself behind."""
    assert Mask(["password", "password-and-more"])("password-and-more password") == f"{HIDDEN} {HIDDEN}"


def test_each_line_of_a_key_file_is_masked() -> None:
    """Programs print line by line."""
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nab\n-----END KEY-----\n"
    assert Mask([key])("read MIIEvQIBADANBg from disk") == f"read {HIDDEN} from disk"
    assert Mask([key])("ab") == "ab"


def test_what_a_cut_leaves_of_a_secret_is_masked() -> None:
    """Text that has lost its beginning may begin with the end of one, also of an encoded one."""
    mask = Mask([CANARY])
    for form in (CANARY, CANARY.encode().hex(), quote(CANARY, safe="")):
        for cut in range(1, len(form) - SHORTEST_REST + 1):
            assert mask.of_tail(f"{form[cut:]} and more") == f"{HIDDEN} and more"
    assert mask.of_tail(f"more {CANARY}") == f"more {HIDDEN}"
    assert mask.of_tail("anything else") == "anything else"


def test_a_cut_secret_that_ends_with_another_one_is_masked_as_a_whole() -> None:
    mask = Mask(["prefix-of-many-letters-SHAREDPART99", "SHAREDPART99"])
    assert mask.of_tail("of-many-letters-SHAREDPART99 boom SHAREDPART99") == f"{HIDDEN} boom {HIDDEN}"


def test_short_values_are_not_masked() -> None:
    """`admin` as a secret must not blank out every log line."""
    assert Mask(["admin", "", "1234567"])("admin 1234567") == "admin 1234567"
    assert Mask(["12345678"])("12345678") == HIDDEN


def test_a_mask_without_secrets_changes_nothing() -> None:
    """What is not known is not touched."""
    assert Mask()("any *** text") == "any *** text"
