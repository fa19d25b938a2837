"""Reading of requests, and the limit of waiting callers."""

from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from ductile.web.auth.auth import Principal, local_principal
from ductile.web.caller_limits.held_connections import MAX_HELD, MAX_HELD_PER_PEER, HeldConnections, TooManyWaits
from ductile.web.context import BadRequest, TooManyCallers, WaitingCallers, read_flag, read_job_id, read_payload
from ductile.web.messages import Request
from ductile.web.server.limits import ConnectionLimits, max_local_connections


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


def waiting_request(token: str, peer: str = "192.0.2.1") -> Request:
    return Request(method="GET", path="/", peer=peer, principal=Principal(token, frozenset(), f"token:{token}"))


def test_waiting_requests_are_limited_per_caller() -> None:
    """Another caller still may wait. The local caller has no limit of its own."""
    held, first, second = HeldConnections(), waiting_request("first"), waiting_request("second")
    local = Request(method="GET", path="/", peer="unix", principal=local_principal(0))

    with held.wait(first, 2), held.wait(first, 2), held.wait(second, 2):
        with pytest.raises(TooManyWaits), held.wait(first, 2):
            pass
        with held.wait(local, 1), held.wait(local, 1):
            pass
    with held.wait(first, 1):
        pass


def test_streams_and_waits_of_one_address_leave_connections_free() -> None:
    """Also with many callers. Requests of other addresses may wait."""
    held = HeldConnections()
    with ExitStack() as slots:
        for number in range(MAX_HELD_PER_PEER):
            slots.enter_context(held.wait(waiting_request(f"token-{number}"), 1))
        assert held.is_full("192.0.2.1")
        with pytest.raises(TooManyWaits), held.wait(waiting_request("other"), 1):
            pass
        with held.wait(waiting_request("other", "192.0.2.2"), 1):
            pass
    assert not held.is_full("192.0.2.1")
    assert ConnectionLimits().connections_per_peer > MAX_HELD_PER_PEER


def test_programs_on_the_local_socket_do_not_use_up_the_waits_of_others() -> None:
    """And the reverse. Their own limit leaves connections of the socket free."""
    held = HeldConnections(max_local=2)
    local = Request(method="GET", path="/", peer="unix", principal=local_principal(0))
    with held.wait(local, 1), held.wait(local, 1):
        with pytest.raises(TooManyWaits), held.wait(local, 1):
            pass
        with ExitStack() as slots:
            for number in range(MAX_HELD):
                peer = f"192.0.2.{number}"
                slots.enter_context(held.wait(waiting_request(f"token-{number}", peer), 1))
            assert held.is_full("192.0.2.200")
    with held.wait(local, 1):
        pass
    assert HeldConnections().max_local < max_local_connections()
