"""Matching of routes, and decoding of paths and queries."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.errors import DuctileError
from ductile.web.messages import HTTPError, Request, WebSocket
from ductile.web.routing import Route, RouteTable, WebSocketRoute, decode_path, decode_query


async def accept(request: Request, websocket: WebSocket) -> None:
    await websocket.accept()


@pytest.fixture
def table(described: Callable[..., Route]) -> RouteTable:
    return RouteTable(
        [
            described(method="GET", path="/"),
            described(method="GET", path="/jobs"),
            described(method="GET", path="/job/{id}"),
            described(method="DELETE", path="/job/{id}"),
            described(method="GET", path="/job/{id}/tree"),
            described(method="GET", path="/job/newest"),
            described(method="POST", path="/plugin/{name}/{command}"),
            described(method="GET", path="/job/newest/{field}/raw"),
            WebSocketRoute(path="/events/ws", handler=accept),
        ]
    )


def refused(table: RouteTable, method: str, path: str) -> tuple[int, str]:
    with pytest.raises(HTTPError) as refusal:
        table.match(method, path)
    response = refusal.value.response
    return response.status, dict(response.headers).get("allow", "")


@pytest.mark.parametrize(
    ("method", "path", "template", "params"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/jobs", "/jobs", {}),
        ("HEAD", "/jobs", "/jobs", {}),
        ("GET", "/job/7", "/job/{id}", {"id": "7"}),
        ("GET", "/job/newest", "/job/newest", {}),
        ("GET", "/job/newest/tree", "/job/{id}/tree", {"id": "newest"}),
        ("GET", "/job/newest/x/raw", "/job/newest/{field}/raw", {"field": "x"}),
        ("POST", "/plugin/a b/poll", "/plugin/{name}/{command}", {"name": "a b", "command": "poll"}),
        ("WEBSOCKET", "/events/ws", "/events/ws", {}),
        ("WEBSOCKET", "/jobs", "/jobs", {}),
    ],
)
def test_the_most_literal_route_matches(
    table: RouteTable, method: str, path: str, template: str, params: dict[str, str]
) -> None:
    """A literal segment takes precedence over a `{name}`, a `{name}` matches one segment, and HEAD matches GET."""
    match = table.match(method, path)

    assert (match.route.path, match.params) == (template, params)


@pytest.mark.parametrize(
    "path", ["/nothing", "/job", "/job/", "/job//tree", "/jobs/", "//", "/plugin/a", "/plugin//x", "/job/7/tree/"]
)
def test_an_unknown_path_is_404(table: RouteTable, path: str) -> None:
    """Without redirects for trailing or double slashes."""
    assert refused(table, "GET", path)[0] == 404


def test_another_method_on_a_known_path_is_405_with_the_allowed_methods(table: RouteTable) -> None:
    assert refused(table, "POST", "/jobs") == (405, "GET, HEAD")
    assert refused(table, "PUT", "/job/7") == (405, "DELETE, GET, HEAD")
    assert refused(table, "WEBSOCKET", "/plugin/a/poll") == (405, "POST")


def test_a_plain_request_to_a_websocket_path_is_426(table: RouteTable) -> None:
    assert refused(table, "GET", "/events/ws")[0] == 426


def test_two_routes_with_the_same_method_and_path_are_an_error(described: Callable[..., Route]) -> None:
    """Otherwise the order of the routes would decide."""
    with pytest.raises(DuctileError, match=r"two routes for GET /job/\{name\}"):
        RouteTable([described(method="GET", path="/job/{id}"), described(method="GET", path="/job/{name}")])
    with pytest.raises(DuctileError, match="two routes for GET /jobs"):
        RouteTable([described(method="GET", path="/jobs"), described(method="GET", path="/jobs")])


@pytest.mark.parametrize("path", ["jobs", "/jobs/", "/job/{id", "/job/{Id}", "/a//b", "/a%20b", ""])
def test_a_path_that_could_never_match_is_refused(described: Callable[..., Route], path: str) -> None:
    """A typo in the table is an error at start, not a 404 later."""
    with pytest.raises(DuctileError, match="is not a route path"):
        RouteTable([described(method="GET", path=path)])


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/job/7", "/job/7"),
        ("/a%20b", "/a b"),
        ("/%C3%BC", "/ü"),
        ("/a+b", "/a+b"),
        ("/.well-known/x", "/.well-known/x"),
    ],
)
def test_a_path_is_decoded_once(raw: str, path: str) -> None:
    """As UTF-8. A plus is not a space."""
    assert decode_path(raw) == path


AMBIGUOUS_PATHS = (
        "/%zz", "/%2", "/%", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/%00", "/%0a", "/%7f", "/%c2%85", "/%ff",
        "/%c0%af", "/.", "/..", "/a/../b", "/a/./b", "/%2e%2e/b", "/a/%2e", "/ü", "/a b",
)  # fmt: skip


def test_an_ambiguous_path_is_refused() -> None:
    """Encoded separators, dot segments, control characters and invalid encodings never reach a handler."""
    statuses = {raw: decoding_status(raw) for raw in AMBIGUOUS_PATHS}
    assert statuses == dict.fromkeys(AMBIGUOUS_PATHS, 400)


def decoding_status(raw: str) -> int:
    try:
        decode_path(raw)
    except HTTPError as refusal:
        return refusal.response.status
    return 200


@given(st.text(alphabet="/.%2eEfF0a\\\u00fc ~", max_size=12))
def test_decoding_adds_no_segments_and_no_dot_segments(raw: str) -> None:
    try:
        path = decode_path("/" + raw)
    except HTTPError:
        return
    assert path.count("/") == 1 + raw.count("/")
    assert not {".", ".."} & set(path.split("/"))
    assert path.isprintable()


def test_query_arguments_keep_every_value() -> None:
    """In order, with repetitions and empty values."""
    assert decode_query("a=1&b=x%20y&a=2&c=") == {"a": ("1", "2"), "b": ("x y",), "c": ("",)}
    assert decode_query("") == {}


@pytest.mark.parametrize("raw", ["a=%zz", "a=%ff", "&".join(f"a{n}=1" for n in range(101)), "a=\u00fc"])
def test_an_invalid_or_too_long_query_is_refused(raw: str) -> None:
    with pytest.raises(HTTPError) as refusal:
        decode_query(raw)
    assert refusal.value.response.status == 400
