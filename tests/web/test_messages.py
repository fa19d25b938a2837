"""Requests, responses and the JSON shape of errors."""

import json

import pytest

from ductile.core.errors import LedgerError, LedgerFull, NotFound
from ductile.web.messages import HTTPError, Request, error_response, json_response


def test_every_error_has_the_same_json_members() -> None:
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


def test_json_responses_forbid_sniffing_caching_and_active_content() -> None:
    assert dict(json_response({}).headers) == {
        "content-type": "application/json",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'",
    }


def test_a_503_has_a_retry_after_header() -> None:
    """Webhook senders repeat a delivery after a 503 with Retry-After."""
    assert "retry-after" in dict(error_response(LedgerFull()).headers)
    assert "retry-after" not in dict(error_response(NotFound()).headers)


def test_a_client_does_not_see_the_path_of_the_ledger() -> None:
    """Whatever characters the path has."""
    for path in ("/srv/ductile/ductile.db", "/srv/a: b/ductile.db", "/srv/a\n: b/ductile.db"):
        body = error_response(LedgerError("cannot be synced: EIO", path=path)).body
        assert isinstance(body, bytes)
        assert json.loads(body)["error"] == "cannot be synced: EIO"


def test_a_repeated_argument_is_refused() -> None:
    request = Request(method="GET", path="/", query={"wait": ("1s", "2s"), "limit": ("5",)})

    assert request.argument("limit") == "5"
    assert request.argument("absent") is None
    with pytest.raises(HTTPError) as refused:
        request.argument("wait")
    assert refused.value.response.status == 400


def test_repeated_headers_are_joined_with_commas() -> None:
    request = Request(method="GET", path="/", headers={"accept": ("a", "b")})

    assert request.header("accept") == "a, b"
    assert request.header("absent") is None
