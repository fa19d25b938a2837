"""Scopes: what each implies, and what a caller with scopes for one plugin may do and see."""

import hashlib

import pytest

from ductile.config.scopes import SCOPES, TOPIC_RIGHTS
from ductile.core.clock import Clock
from ductile.web.auth.auth import (
    Key,
    Keyring,
    Principal,
    expand_scopes,
    local_principal,
    make_authorizer,
    require_topic,
)
from ductile.web.messages import HTTPError, Request, Response
from ductile.web.routing import Route


def principal(*scopes: str) -> Principal:
    return Principal("test", expand_scopes(scopes), "token:test")


IMPLIED: list[tuple[str, set[str]]] = [
    ("jobs:ro", {"jobs:status:ro", "jobs:result:ro", "jobs:logs:ro", "jobs:tree:ro"}),
    ("jobs:rw", {"jobs:ro", "jobs:status:ro", "jobs:result:ro", "jobs:logs:ro", "jobs:tree:ro"}),
    ("jobs:result:ro", {"jobs:status:ro"}),
    ("jobs:status:ro", set()),
    ("jobs:logs:ro", set()),
    ("jobs:tree:ro", set()),
    ("plugin:ro", {"plugin:catalog:ro", "plugin:invoke:ro"}),
    ("plugin:rw", {"plugin:ro", "plugin:catalog:ro", "plugin:invoke:ro"}),
    ("plugin:catalog:ro", set()),
    ("plugin:invoke:ro", set()),
    ("events:ro", {"events:meta:ro", "events:payload:ro"}),
    ("events:rw", {"events:ro", "events:meta:ro", "events:payload:ro"}),
    ("events:payload:ro", {"events:meta:ro"}),
    ("system:rw", {"system:ro"}),
    ("system:ro", set()),
    ("plugin:echo:rw", {"plugin:echo:ro"}),
    ("plugin:invoke:rw", set()),
    ("plugin:catalog:rw", set()),
    ("jobs:result:rw", set()),
    ("events:payload:rw", set()),
    ("exchange:ro", set()),
    ("exchange:rw", {"exchange:ro"}),
    ("exchange:review.*:rw", {"exchange:review.*:ro"}),
    ("exchange:review.*:publish", set()),
]


def test_a_broad_scope_implies_its_finer_scopes() -> None:
    """`rw` implies `ro`, and no scope implies more than its own finer scopes."""
    wrong = [
        (scope, expand_scopes([scope])) for scope, implied in IMPLIED if expand_scopes([scope]) != {scope, *implied}
    ]
    assert wrong == []


def test_the_operator_has_every_scope() -> None:
    """So has a token with `*`."""
    missing = [
        scope for scope in SCOPES if not local_principal(0).has_scope(scope) or not principal("*").has_scope(scope)
    ]
    assert missing == []


PLUGIN_CASES: list[tuple[list[str], str, str | None, bool]] = [
    (["plugin:echo:ro"], "plugin:invoke:ro", "echo", True),
    (["plugin:echo:ro"], "plugin:catalog:ro", "echo", True),
    (["plugin:echo:ro"], "plugin:ro", "echo", True),
    (["plugin:echo:ro"], "plugin:rw", "echo", False),
    (["plugin:echo:rw"], "plugin:rw", "echo", True),
    (["plugin:echo:rw"], "plugin:invoke:ro", "echo", True),
    (["plugin:echo:rw"], "plugin:rw", "other", False),
    (["plugin:echo:rw"], "plugin:rw", None, False),
    (["plugin:echo:rw"], "jobs:ro", "echo", False),
    (["plugin:catalog:ro"], "plugin:invoke:ro", "catalog", False),
    (["plugin:invoke:ro"], "plugin:catalog:ro", "invoke", False),
    (["plugin:catalog:rw"], "plugin:rw", "catalog", True),
    (["plugin:invoke:rw"], "plugin:invoke:ro", "invoke", True),
    (["plugin:invoke:rw"], "plugin:catalog:ro", "invoke", True),
    (["plugin:invoke:rw"], "plugin:invoke:ro", "echo", False),
    (["plugin:catalog:rw"], "plugin:catalog:ro", "echo", False),
    ([], "token", None, True),
    ([], "plugin:invoke:ro", "token", False),
]


def test_a_plugin_scope_applies_to_this_plugin_only() -> None:
    """Also for plugins whose name is part of another scope."""
    wrong = [
        (scopes, required, plugin)
        for scopes, required, plugin, expected in PLUGIN_CASES
        if principal(*scopes).has_scope(required, plugin=plugin) is not expected
    ]
    assert wrong == []


VISIBLE: list[tuple[list[str], bool]] = [
    ([], True),
    (["*"], True),
    (["jobs:ro"], True),
    (["plugin:catalog:ro"], True),
    (["plugin:other:ro", "plugin:ro"], True),
    (["plugin:echo:ro"], True),
    (["plugin:other:ro"], False),
    (["plugin:other:rw", "jobs:ro"], False),
]


def test_a_caller_with_scopes_for_single_plugins_sees_only_these() -> None:
    """Every other token sees all plugins."""
    wrong = [scopes for scopes, expected in VISIBLE if principal(*scopes).can_see("echo") is not expected]
    assert wrong == []


TOPIC_CASES: list[tuple[str, str, str]] = [
    ("*", "review.request", "ro publish claim"),
    ("exchange:rw", "review.request", "ro publish claim"),
    ("exchange:ro", "review.request", "ro"),
    ("exchange:*:publish", "review.request", "publish"),
    ("exchange:*:rw", "review.request", "ro publish claim"),
    ("exchange:review.request:rw", "review.request", "ro publish claim"),
    ("exchange:review.request:claim", "review.request", "claim"),
    ("exchange:review.request:rw", "review.requests", ""),
    ("exchange:review.request:rw", "review.request.dead", ""),
    ("exchange:review.*:ro", "review.request", "ro"),
    ("exchange:review.*:publish", "review.request.dead", "publish"),
    ("exchange:review.*:rw", "review", ""),
    ("exchange:review.*:rw", "reviewer.request", ""),
    ("exchange:review.*:rw", "review.*", "ro publish claim"),
    ("exchange:review.*:rw", "review.late.*", "ro publish claim"),
    ("exchange:review.request:rw", "review.*", ""),
    ("exchange:review.*:rw", "*", ""),
    ("exchange:ro:claim", "ro", "claim"),
    ("exchange:rw:claim", "review.request", ""),
    ("exchange:review.request:admin", "review.request", ""),
    ("exchange::rw", "review.request", ""),
    ("exchange:r*:rw", "review.request", ""),
    ("exchange:publish", "review.request", ""),
    ("exchange", "review.request", ""),
    ("plugin:review.request:rw", "review.request", ""),
    ("system:rw", "review.request", ""),
    ("", "review.request", ""),
]


def test_a_topic_scope_gives_its_right_on_its_topics_only() -> None:
    """`a.*` is every topic below `a`. A pattern that is asked for stands for all its topics."""
    wrong = []
    for scope, topic, expected in TOPIC_CASES:
        rights = " ".join(right for right in TOPIC_RIGHTS if principal(scope).may_use_topic(topic, right))
        if rights != expected:
            wrong.append((scope, topic, rights))
    assert wrong == []


def test_rights_of_several_scopes_are_added() -> None:
    caller = principal("exchange:review.*:ro", "exchange:deploy.request:publish", "exchange:review.request:claim")
    assert caller.topic_patterns("ro") == {"review.*"}
    assert caller.may_use_topic("review.request", "claim")
    assert not caller.may_use_topic("deploy.request", "ro")


ROUTE_CASES: list[tuple[str, str, str, bool]] = [
    ("exchange:rw", "exchange:*:publish", "*", True),
    ("exchange:ro", "exchange:*:publish", "*", False),
    ("exchange:review.*:ro", "exchange:ro", "*", False),
    ("exchange:review.*:ro", "exchange:ro", "review.request", True),
    ("exchange:review.*:claim", "exchange:rw", "review.request", False),
    ("exchange:review.*:rw", "exchange:rw", "review.request", True),
    ("exchange:review.*:rw", "exchange:rw", "deploy.request", False),
]


def test_a_topic_scope_does_not_replace_the_scope_for_all_topics() -> None:
    wrong = [
        (scope, required, topic)
        for scope, required, topic, expected in ROUTE_CASES
        if principal(scope).has_scope(required, topic=topic) is not expected
    ]
    assert wrong == []


async def no_handler(request: Request) -> Response:
    raise AssertionError("the authorizer does not call it")


def authorize(scope: str, route_scope: str, path: str, **params: str) -> Request | Response:
    """Send a request with a token that has only `scope` to a route."""
    keys = (Key(hashlib.sha256(b"secret").digest(), principal(scope)),)
    route = Route(method="POST", path=path, handler=no_handler, scope=route_scope)
    request = Request(
        method="POST", path=path, headers={"authorization": ("Bearer secret",)}, peer="127.0.0.1", params=params
    )
    return make_authorizer(lambda: Keyring(keys), Clock())(route, request)


def is_admitted(scope: str, route_scope: str, path: str, **params: str) -> bool:
    return isinstance(authorize(scope, route_scope, path, **params), Request)


def test_a_right_on_some_topic_admits_to_routes_that_name_no_topic() -> None:
    """If the path names a topic, the right must be on it. A route that needs every right admits no such token."""
    messages, pause = "/exchange/messages", "/exchange/topics/{topic}/pause"
    assert is_admitted("exchange:review.*:publish", "exchange:*:publish", messages)
    assert not is_admitted("exchange:review.*:ro", "exchange:*:publish", messages)
    assert not is_admitted("exchange:review.*:rw", "exchange:rw", messages)
    assert is_admitted("exchange:review.*:rw", "exchange:rw", pause, topic="review.request")
    assert not is_admitted("exchange:review.*:rw", "exchange:rw", pause, topic="deploy.request")
    assert not is_admitted("exchange:review.*:publish", "exchange:*:publish", pause, topic="deploy.request")


def test_a_handler_refuses_a_topic_and_names_the_scope_for_it() -> None:
    admitted = authorize("exchange:review.*:publish", "exchange:*:publish", "/exchange/messages")
    assert isinstance(admitted, Request)
    require_topic(admitted, "review.request", "publish")
    with pytest.raises(HTTPError) as refused:
        require_topic(admitted, "deploy.request", "publish")
    assert refused.value.response.status == 403
    body = refused.value.response.body
    assert isinstance(body, bytes)
    assert b"Required scope: exchange:*:publish or exchange:deploy.request:publish." in body
