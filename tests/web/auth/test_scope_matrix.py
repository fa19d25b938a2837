"""Every scope against every route and method of a running service, as declared in the OpenAPI document."""

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
    "exchange:ro": {"exchange:ro"},
    "exchange:rw": {"exchange:rw", "exchange:ro", "exchange:*:publish", "exchange:*:claim"},
    "exchange:elsewhere.*:ro": {"exchange:ro"},
    "exchange:elsewhere.*:publish": {"exchange:*:publish"},
    "exchange:elsewhere.*:claim": {"exchange:*:claim"},
    "system:ro": {"system:ro"},
    "system:rw": {"system:rw", "system:ro"},
}
"""The scopes that a token with only this scope has, written independently of the code."""
ALSO_NEEDED = {
    "/exchange/messages/{id}/requeue": "system:rw",
    "/exchange/topics/{topic}/pause": "system:rw",
    "/exchange/topics/{topic}/resume": "system:rw",
    "/exchange/topics/{topic}/purge": "system:rw",
}
"""The second scope of operations that need two."""
ARGUMENTS = {"dry_run": "true", "limit": "1"}
"""Query arguments that are sent to every operation that has them."""
pytestmark = pytest.mark.service
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def token_of(scope: str) -> str:
    return f"token-of-{scope.replace(':', '-').replace('*', 'all') or 'none'}-0123456789"


@frozen
class Operation:
    """An operation of the OpenAPI document."""

    method: str
    path: str
    scope: str | None
    statuses: frozenset[int]
    arguments: frozenset[str]

    @property
    def url(self) -> str:
        """A URL of an object that does not exist, as a dry run where possible."""
        path = self.path.replace("{id}", "00000000-0000-4000-8000-000000000000").replace("{", "").replace("}", "")
        return f"{path}?{'&'.join(f'{name}={value}' for name, value in ARGUMENTS.items() if name in self.arguments)}"


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
            frozenset(parameter["name"] for parameter in about["parameters"] if parameter["in"] == "query"),
        )
        for path, item in document["paths"].items()
        for method, about in item.items()
    ]
    assert {("POST", "/plugin/{plugin}/{command}"), ("GET", "/events"), ("POST", "/system/reload")} <= {
        (operation.method, operation.path) for operation in found
    }
    return found


def send(service: Service, operation: Operation, token: str | None, method: str = "") -> tuple[int, Any]:
    """Return the status and the headers, without reading a stream."""
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connection.request(method or operation.method, operation.url, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers


def test_every_scope_grants_exactly_its_operations(service: Service, operations: list[Operation]) -> None:
    """Other operations are 403; granted operations return a documented status."""
    wrong = []
    for operation in operations:
        if 101 in operation.statuses:
            continue
        for scope, granted in GRANTS.items():
            status, _ = send(service, operation, token_of(scope))
            may = operation.scope is None or operation.scope == "token" or operation.scope in granted
            may = may and ALSO_NEEDED.get(operation.path, operation.scope) in {operation.scope, *granted}
            if (status == 403) is may or (status != 403 and status not in operation.statuses):
                wrong.append((operation.method, operation.path, scope, status))
    assert wrong == []


def test_every_route_but_the_public_ones_requires_a_valid_token(service: Service, operations: list[Operation]) -> None:
    """401 without a token and with an invalid one."""
    wrong = []
    for operation in operations:
        for token in (None, "wrong-token-0123456789"):
            status, _ = send(service, operation, token)
            expected = 426 if 101 in operation.statuses else 401 if operation.scope else None
            if (expected is None and status in (401, 403)) or (expected is not None and status != expected):
                wrong.append((operation.method, operation.path, token, status))
    assert wrong == []
    assert sorted(operation.path for operation in operations if operation.scope is None) == ["/", "/healthz"]


def test_every_other_method_is_405_with_the_allowed_methods(service: Service, operations: list[Operation]) -> None:
    """The `Allow` header has every method of the path."""
    allowed: dict[str, set[str]] = {}
    for operation in operations:
        allowed.setdefault(operation.path, set()).add(operation.method)
    wrong = []
    for operation in {operation.path: operation for operation in operations}.values():
        for method in set(METHODS) - allowed[operation.path]:
            status, headers = send(service, operation, TOKEN, method)
            if status != 405 or allowed[operation.path] - set(headers["allow"].split(", ")):
                wrong.append((method, operation.path, status, headers["allow"]))
    assert wrong == []
