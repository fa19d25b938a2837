"""Which route answers, and who is told that none does."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.errors import DuctileError
from ductile.web.messages import Channel, HTTPError, Request
from ductile.web.routes import ChannelRoute, Route, Table, decode_path, decode_query


async def converse(request: Request, channel: Channel) -> None:
    await channel.accept()


@pytest.fixture
def table(described: Callable[..., Route]) -> Table:
    return Table(
        [
            described(method="GET", path="/"),
            described(method="GET", path="/jobs"),
            described(method="GET", path="/job/{id}"),
            described(method="DELETE", path="/job/{id}"),
            described(method="GET", path="/job/{id}/tree"),
            described(method="GET", path="/job/newest"),
            described(method="POST", path="/plugin/{name}/{command}"),
            described(method="GET", path="/job/newest/{field}/raw"),
            ChannelRoute(path="/events/ws", handler=converse),
        ]
    )


def refused(table: Table, method: str, path: str) -> tuple[int, str]:
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
def test_the_most_literal_route_answers(
    table: Table, method: str, path: str, template: str, params: dict[str, str]
) -> None:
    """A written segment wins over a `{name}`; a `{name}` stands for exactly one segment; HEAD is answered as GET."""
    match = table.match(method, path)

    assert (match.route.path, match.params) == (template, params)


@pytest.mark.parametrize(
    "path", ["/nothing", "/job", "/job/", "/job//tree", "/jobs/", "//", "/plugin/a", "/plugin//x", "/job/7/tree/"]
)
def test_unknown_path_is_404(table: Table, path: str) -> None:
    """No redirect, no guess: a path is in the table or it is not."""
    assert refused(table, "GET", path)[0] == 404


def test_known_path_with_another_method_is_405_with_what_is_allowed(table: Table) -> None:
    """The client learns what it may do there."""
    assert refused(table, "POST", "/jobs") == (405, "GET, HEAD")
    assert refused(table, "PUT", "/job/7") == (405, "DELETE, GET, HEAD")
    assert refused(table, "WEBSOCKET", "/plugin/a/poll") == (405, "POST")


def test_plain_request_for_a_websocket_path_is_told_to_upgrade(table: Table) -> None:
    """426 says how to come back."""
    assert refused(table, "GET", "/events/ws")[0] == 426


def test_two_routes_for_one_question_cannot_be_built(described: Callable[..., Route]) -> None:
    """Otherwise the order of a list would silently decide who answers."""
    with pytest.raises(DuctileError, match=r"two routes answer GET /job/\{name\}"):
        Table([described(method="GET", path="/job/{id}"), described(method="GET", path="/job/{name}")])
    with pytest.raises(DuctileError, match="two routes answer GET /jobs"):
        Table([described(method="GET", path="/jobs"), described(method="GET", path="/jobs")])


@pytest.mark.parametrize("path", ["jobs", "/jobs/", "/job/{id", "/job/{Id}", "/a//b", "/a%20b", ""])
def test_a_path_that_could_never_match_is_refused(described: Callable[..., Route], path: str) -> None:
    """A typing mistake in the table shows at start, not as a 404."""
    with pytest.raises(DuctileError, match="is not a route path"):
        Table([described(method="GET", path=path)])


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
    """Percent-encoding is undone exactly once, as UTF-8; a plus is a plus."""
    assert decode_path(raw) == path


@pytest.mark.parametrize(
    "raw",
    [
        "/%zz", "/%2", "/%", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/%00", "/%0a", "/%7f", "/%c2%85", "/%ff",
        "/%c0%af", "/.", "/..", "/a/../b", "/a/./b", "/%2e%2e/b", "/a/%2e", "/ü", "/a b",
    ],
)  # fmt: skip
def test_a_path_with_two_readings_is_refused(raw: str) -> None:
    """Hidden separators, dot segments, control characters and broken encodings never reach a handler."""
    with pytest.raises(HTTPError) as refusal:
        decode_path(raw)
    assert refusal.value.response.status == 400


@given(st.text(alphabet="/.%2eEfF0a\\\u00fc ~", max_size=12))
def test_no_accepted_path_can_climb_or_split(raw: str) -> None:
    """Whatever is accepted has as many segments as were written, and none of them is a dot segment."""
    try:
        path = decode_path("/" + raw)
    except HTTPError:
        return
    assert path.count("/") == 1 + raw.count("/")
    assert not {".", ".."} & set(path.split("/"))
    assert path.isprintable()


def test_query_arguments_keep_every_value() -> None:
    """Order and repetition survive; an empty value is a value."""
    assert decode_query("a=1&b=x%20y&a=2&c=") == {"a": ("1", "2"), "b": ("x y",), "c": ("",)}
    assert decode_query("") == {}


@pytest.mark.parametrize("raw", ["a=%zz", "a=%ff", "&".join(f"a{n}=1" for n in range(101)), "a=\u00fc"])
def test_a_broken_or_endless_query_is_refused(raw: str) -> None:
    """A query is read completely or not at all."""
    with pytest.raises(HTTPError) as refusal:
        decode_query(raw)
    assert refusal.value.response.status == 400
