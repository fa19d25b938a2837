"""Every scope against every route and method of a running service: what the description says is what holds."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import frozen

from tests.e2e.service import TOKEN, Home, Service

JOBS = {"jobs:status:ro", "jobs:result:ro", "jobs:logs:ro", "jobs:tree:ro"}
PLUGINS = {"plugin:catalog:ro", "plugin:invoke:ro"}
EVENTS = {"events:meta:ro", "events:payload:ro"}
GRANTS: dict[str, set[str]] = {
    "": set(),
    "plugin:ro": {"plugin:ro", *PLUGINS},
    "plugin:rw": {"plugin:rw", "plugin:ro", *PLUGINS},
    "plugin:catalog:ro": {"plugin:catalog:ro"},
    "plugin:invoke:ro": {"plugin:invoke:ro"},
    "plugin:elsewhere:rw": set(),
    "jobs:ro": {"jobs:ro", *JOBS},
    "jobs:rw": {"jobs:rw", "jobs:ro", *JOBS},
    "jobs:status:ro": {"jobs:status:ro"},
    "jobs:result:ro": {"jobs:result:ro", "jobs:status:ro"},
    "jobs:logs:ro": {"jobs:logs:ro"},
    "jobs:tree:ro": {"jobs:tree:ro"},
    "events:ro": {"events:ro", *EVENTS},
    "events:rw": {"events:rw", "events:ro", *EVENTS},
    "events:meta:ro": {"events:meta:ro"},
    "events:payload:ro": EVENTS,
    "system:ro": {"system:ro"},
    "system:rw": {"system:rw", "system:ro"},
}
"""What a token with this scope alone may use, written down once more by hand."""
TRIED = {"dry_run": "true", "limit": "1"}
"""Arguments that are given wherever they can be."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def token_of(scope: str) -> str:
    return f"token-of-{scope.replace(':', '-') or 'nobody'}-0123456789"


@frozen
class Operation:
    """One operation of the description."""

    method: str
    path: str
    scope: str | None
    statuses: frozenset[int]
    arguments: frozenset[str]

    @property
    def url(self) -> str:
        """Names nothing that exists, and only says what it would change."""
        nobody = self.path.replace("{id}", "00000000-0000-4000-8000-000000000000").replace("{", "").replace("}", "")
        return f"{nobody}?{'&'.join(f'{name}={value}' for name, value in TRIED.items() if name in self.arguments)}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = Home.make(Path(tmp_path_factory.mktemp("matrix")) / "ductile")
    home.plugin("look", "#!/bin/sh\ncat >/dev/null\necho '{}'\n", commands="poll: {type: read}, handle: {type: write}")
    tokens = [f'{{name: "t{n}", token: {token_of(scope)}, scopes: [{scope}]}}' for n, scope in enumerate(GRANTS)]
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("tokens:\n", "tokens:\n      - " + "\n      - ".join(tokens) + "\n"))
    running = home.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def operations(service: Service) -> list[Operation]:
    _, document = service.ask("GET", "/openapi.json")
    found = [
        Operation(
            method.upper(),
            path,
            about.get("x-required-scope"),
            frozenset(map(int, about["responses"])),
            frozenset(one["name"] for one in about["parameters"] if one["in"] == "query"),
        )
        for path, item in document["paths"].items()
        for method, about in item.items()
    ]
    assert {("POST", "/plugin/{plugin}/{command}"), ("GET", "/events"), ("POST", "/system/reload")} <= {
        (operation.method, operation.path) for operation in found
    }
    return found


def asked(service: Service, operation: Operation, token: str | None, method: str = "") -> tuple[int, Any]:
    """The status and the headers; what a stream says is not waited for."""
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connection.request(method or operation.method, operation.url, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers


def test_every_scope_may_use_exactly_what_it_grants(service: Service, operations: list[Operation]) -> None:
    """403 for everything else; whoever is let in gets an answer that the description knows."""
    wrong = []
    for operation in operations:
        if 101 in operation.statuses:
            continue
        for scope, granted in GRANTS.items():
            status, _ = asked(service, operation, token_of(scope))
            may = operation.scope is None or operation.scope == "token" or operation.scope in granted
            if (status == 403) is may or (status != 403 and status not in operation.statuses):
                wrong.append((operation.method, operation.path, scope, status))
    assert wrong == []


def test_nobody_is_let_in_without_a_token(service: Service, operations: list[Operation]) -> None:
    """401 without one, with a wrong one, and for all routes but the open ones."""
    wrong = []
    for operation in operations:
        for token in (None, "wrong-token-0123456789"):
            status, _ = asked(service, operation, token)
            expected = 426 if 101 in operation.statuses else 401 if operation.scope else None
            if (expected is None and status in (401, 403)) or (expected is not None and status != expected):
                wrong.append((operation.method, operation.path, token, status))
    assert wrong == []
    assert sorted(operation.path for operation in operations if operation.scope is None) == ["/", "/healthz"]


def test_every_other_method_is_refused_with_those_that_are_allowed(
    service: Service, operations: list[Operation]
) -> None:
    """405 with `Allow`, whoever asks."""
    allowed: dict[str, set[str]] = {}
    for operation in operations:
        allowed.setdefault(operation.path, set()).add(operation.method)
    wrong = []
    for operation in {operation.path: operation for operation in operations}.values():
        for method in set(METHODS) - allowed[operation.path]:
            status, headers = asked(service, operation, TOKEN, method)
            if status != 405 or allowed[operation.path] - set(headers["allow"].split(", ")):
                wrong.append((method, operation.path, status, headers["allow"]))
    assert wrong == []
