"""Reading of requests, and the limit of waiting callers."""

from collections.abc import Mapping

import pytest

from ductile.web.context import BadRequest, TooManyCallers, WaitingCallers, read_flag, read_job_id, read_payload
from ductile.web.messages import Request


def make_request(body: bytes = b"", query: Mapping[str, str] | None = None) -> Request:
    arguments = {name: (value,) for name, value in (query or {}).items()}
    return Request(method="POST", path="/", body=body, query=arguments)


def test_the_number_of_waiting_callers_is_limited() -> None:
    """A slot is freed when its caller ends, also with an exception."""
    callers = WaitingCallers()

    with callers.slot(2), callers.slot(2):
        with pytest.raises(TooManyCallers), callers.slot(2):
            pass
        assert callers.waiting == 2
    with pytest.raises(RuntimeError), callers.slot(1):
        raise RuntimeError
    assert callers.waiting == 0


def test_a_lower_limit_applies_to_new_callers() -> None:
    """A reload can lower the limit below the number of waiting callers."""
    callers = WaitingCallers()

    with callers.slot(2), callers.slot(2), pytest.raises(TooManyCallers), callers.slot(1):
        pass


def test_a_payload_is_optional() -> None:
    """No body, no payload and null are equivalent."""
    for body in (b"", b" \n", b"{}", b'{"payload": null}'):
        assert read_payload(make_request(body)) is None
    assert read_payload(make_request(b'{"payload": {"a": 1}}')) == {"a": 1}


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"payload": 1}', b'{"a": 1}', b"\xff", b'{"payload": NaN}'])
def test_an_invalid_body_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_payload(make_request(body))


@pytest.mark.parametrize(("query", "flag"), [({}, False), ({"async": "true"}, True), ({"async": "false"}, False)])
def test_a_flag_is_true_or_false(query: dict[str, str], flag: bool) -> None:
    """An absent flag is false."""
    assert read_flag(make_request(query=query), "async") is flag


@pytest.mark.parametrize("text", ["", "1", "yes", "TRUE", "maybe"])
def test_any_other_flag_value_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_flag(make_request(query={"async": text}), "async")


@pytest.mark.parametrize(
    "text", ["", "x", "3F0C9A52-6A57-4C0E-9D3A-0D6F3C1F2B11", "3f0c9a526a574c0e9d3a0d6f3c1f2b11", "../../etc"]
)
def test_a_job_id_must_be_a_lower_case_uuid(text: str) -> None:
    with pytest.raises(BadRequest):
        read_job_id(Request(method="GET", path="/", params={"id": text}))
