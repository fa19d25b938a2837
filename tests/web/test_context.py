"""How handlers read requests, and how many callers may wait."""

from collections.abc import Mapping
from typing import Any

import pytest

from ductile.web.context import BadRequest, Callers, TooManyCallers, flag_of, job_id_of, payload_of
from ductile.web.messages import Request


def a_request(body: bytes = b"", query: Mapping[str, str] | None = None) -> Request:
    arguments = {name: (value,) for name, value in (query or {}).items()}
    return Request(method="POST", path="/", body=body, query=arguments)


def test_only_so_many_callers_wait_at_once() -> None:
    """The next one is refused; whoever leaves makes room, however it leaves."""
    callers = Callers()

    with callers.one_more(2), callers.one_more(2):
        with pytest.raises(TooManyCallers), callers.one_more(2):
            pass
        assert callers.waiting == 2
    with pytest.raises(RuntimeError), callers.one_more(1):
        raise RuntimeError
    assert callers.waiting == 0


def test_a_smaller_limit_counts_from_now_on() -> None:
    """A reload may lower the limit below those who wait already."""
    callers = Callers()

    with callers.one_more(2), callers.one_more(2), pytest.raises(TooManyCallers), callers.one_more(1):
        pass


@pytest.mark.parametrize(
    ("body", "payload"),
    [(b"", None), (b" \n", None), (b"{}", None), (b'{"payload": null}', None), (b'{"payload": {"a": 1}}', {"a": 1})],
)
def test_a_payload_is_optional(body: bytes, payload: Any) -> None:
    """No body, no payload and null are the same."""
    assert payload_of(a_request(body)) == payload


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"payload": 1}', b'{"a": 1}', b"\xff", b'{"payload": NaN}'])
def test_a_body_that_is_something_else_is_refused(body: bytes) -> None:
    """400, never a guess."""
    with pytest.raises(BadRequest):
        payload_of(a_request(body))


@pytest.mark.parametrize(("query", "flag"), [({}, False), ({"async": "true"}, True), ({"async": "false"}, False)])
def test_a_flag_is_true_or_false(query: dict[str, str], flag: bool) -> None:
    """Not given is false."""
    assert flag_of(a_request(query=query), "async") is flag


@pytest.mark.parametrize("text", ["", "1", "yes", "TRUE", "maybe"])
def test_a_flag_is_nothing_else(text: str) -> None:
    """A caller that means something by it should learn that it does not."""
    with pytest.raises(BadRequest):
        flag_of(a_request(query={"async": text}), "async")


@pytest.mark.parametrize(
    "text", ["", "x", "3F0C9A52-6A57-4C0E-9D3A-0D6F3C1F2B11", "3f0c9a526a574c0e9d3a0d6f3c1f2b11", "../../etc"]
)
def test_a_job_id_is_a_uuid_in_lower_case(text: str) -> None:
    """Anything else cannot be one of ours."""
    with pytest.raises(BadRequest):
        job_id_of(Request(method="GET", path="/", params={"id": text}))
