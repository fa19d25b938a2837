"""What handlers see and return."""

import json

import pytest

from ductile.core.errors import LedgerFull, NotFound
from ductile.web.messages import HTTPError, Request, error_response, json_response


def test_every_error_has_the_one_json_shape() -> None:
    """An API client can rely on error, code, status, hint and context being there, whatever went wrong."""
    response = error_response(NotFound("no job 7", hint="list them", context={"id": "7"}))

    assert response.status == 404
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": "no job 7",
        "code": "not_found",
        "status": 404,
        "hint": "list them",
        "context": {"id": "7"},
    }


def test_json_answers_cannot_be_read_as_anything_else_by_a_browser() -> None:
    """Each JSON answer says its type, forbids sniffing, caching and any active content."""
    assert dict(json_response({}).headers) == {
        "content-type": "application/json",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'",
    }


def test_unavailable_says_when_to_come_back() -> None:
    """Senders of webhooks understand 503 with Retry-After and deliver again."""
    assert "retry-after" in dict(error_response(LedgerFull()).headers)
    assert "retry-after" not in dict(error_response(NotFound()).headers)


def test_an_argument_given_twice_is_refused_and_not_picked_from() -> None:
    """Two values for one question have no right answer."""
    request = Request(method="GET", path="/", query={"wait": ("1s", "2s"), "limit": ("5",)})

    assert request.argument("limit") == "5"
    assert request.argument("absent") is None
    with pytest.raises(HTTPError) as refused:
        request.argument("wait")
    assert refused.value.response.status == 400


def test_a_repeated_header_reads_as_one_list() -> None:
    """Several fields of one name mean the same as one field with commas."""
    request = Request(method="GET", path="/", headers={"accept": ("a", "b")})

    assert request.header("accept") == "a, b"
    assert request.header("absent") is None
