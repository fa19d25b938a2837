"""Scopes: what each one includes, and what a caller with rights over one plugin may do and see."""

import pytest

from ductile.config.scopes import SCOPES
from ductile.web.auth.auth import OPERATOR, Principal, implied


def holder(*scopes: str) -> Principal:
    return Principal("someone", implied(scopes))


@pytest.mark.parametrize(
    ("scope", "included"),
    [
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
    ],
)
def test_a_broad_scope_includes_the_finer_ones(scope: str, included: set[str]) -> None:
    """`rw` includes `ro`, and nothing includes more than it says."""
    assert implied([scope]) == {scope, *included}


@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_the_operator_may_do_everything(scope: str) -> None:
    """So may a token with `*`."""
    assert OPERATOR.may(scope)
    assert holder("*").may(scope)


@pytest.mark.parametrize(
    ("scopes", "wanted", "plugin", "may"),
    [
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
    ],
)
def test_a_scope_of_one_plugin_is_for_this_plugin(
    scopes: list[str], wanted: str, plugin: str | None, may: bool
) -> None:
    """Also where a plugin is called like a part of another scope."""
    assert holder(*scopes).may(wanted, plugin=plugin) is may


@pytest.mark.parametrize(
    ("scopes", "sees"),
    [
        ([], True),
        (["*"], True),
        (["jobs:ro"], True),
        (["plugin:catalog:ro"], True),
        (["plugin:other:ro", "plugin:ro"], True),
        (["plugin:echo:ro"], True),
        (["plugin:other:ro"], False),
        (["plugin:other:rw", "jobs:ro"], False),
    ],
)
def test_who_has_rights_over_some_plugins_alone_sees_only_these(scopes: list[str], sees: bool) -> None:
    """Every other token may know what there is."""
    assert holder(*scopes).sees("echo") is sees
