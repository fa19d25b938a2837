"""Errors of commands and of the API: codes, exit codes and hints."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import ductile
from ductile.cli.base.client import Busy, error_from_response
from ductile.cli.base.output import error_data
from ductile.core.errors import DuctileError, LedgerError, LedgerLost
from tests.cli.conftest import Run, failures
from tests.cli.installation import Installation, make_installation

NO_JOB = "00000000-0000-7000-8000-000000000000"
NO_PLUGIN = "  - {name: no-plugin, on: other, steps: [{id: first, uses: ecko}]}\n"
SCOPED = "a token of narrow scope 0123456789"


def error_classes() -> list[type[DuctileError]]:
    """Return every error class of the program."""
    for module in pkgutil.walk_packages(ductile.__path__, "ductile."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_below(DuctileError), key=lambda kind: (kind.code, kind.__qualname__))


def _below(kind: type[DuctileError]) -> Iterator[type[DuctileError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _below(one)


ERROR_CLASSES = error_classes()


def test_every_error_class_has_a_hint() -> None:
    """An empty hint of a single error falls back to that of its class."""
    assert [kind.__qualname__ for kind in ERROR_CLASSES if not kind.hint] == []
    assert DuctileError("no", hint="").hint == DuctileError.hint


def test_an_error_response_has_the_exit_code_of_its_class() -> None:
    """Except ledger errors: the service may recover."""

    def check(kind: type[DuctileError]) -> None:
        expected = Busy.exit_code if kind in (LedgerError, LedgerLost) else kind.exit_code
        error = error_from_response(kind.status, {"error": "no", "code": kind.code, "hint": "", "status": kind.status})
        assert (error.code, error.exit_code) == (kind.code, expected)
        assert error_data(error)["hint"]

    assert failures(ERROR_CLASSES, check) == []


# ── commands and responses ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    token = f'{{name: narrow, token: {SCOPED}, scopes: ["jobs:ro"]}}'
    installation = make_installation(
        tmp_path_factory.mktemp("installation"), more_tokens=token, more_pipelines=NO_PLUGIN
    )
    yield installation
    installation.service.stop()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/nothing", None),
        ("POST", "/healthz", None),
        ("BREW", "/healthz", None),
        ("GET", "/healthz%ff", None),
        ("GET", "/jobs?limit=%ff", None),
        ("GET", "/jobs?limit=1&limit=2", None),
        ("GET", "/jobs?limit=many", None),
        ("GET", "/jobs?status=unknown", None),
        ("GET", "/events/ws", None),
        ("GET", "/job/nothing", None),
        ("GET", f"/job/{NO_JOB}", None),
        ("GET", f"/job/{NO_JOB}/tree", None),
        ("GET", f"/job/{NO_JOB}?wait=soon", None),
        ("POST", f"/job/{NO_JOB}/cancel", None),
        ("POST", f"/job/{NO_JOB}/retry", None),
        ("POST", f"/job/{NO_JOB}/replay", None),
        ("GET", "/plugin/missing", None),
        ("POST", "/plugin/missing/poll", None),
        ("POST", "/plugin/echo/nothing", None),
        ("POST", "/plugin/echo/poll", {"payload": 1}),
        ("POST", "/plugin/echo/poll", {"other": 1}),
        ("POST", "/plugin/echo/poll", b"{"),
        ("POST", "/plugin/echo/poll", b"x" * 2_000_000),
        ("POST", "/plugin/echo/poll?dry_run=maybe", None),
        ("POST", "/pipeline/nothing", None),
        ("POST", "/pipeline/no-plugin", None),
        ("POST", "/schedule/echo/nothing/run", None),
        ("POST", "/relay/nowhere", {"type": "a.b"}),
        ("POST", "/breaker/missing/reset", None),
        ("POST", "/queue/purge", {"other": 1}),
        ("POST", "/queue/pause", {"reason": 1}),
    ],
)
def test_every_error_response_has_a_hint(installation: Installation, method: str, path: str, body: object) -> None:
    status, answer = installation.service.ask(method, path, body)

    assert status >= 400
    assert answer["hint"], answer


def test_a_missing_scope_is_named_with_the_scopes_of_the_token(installation: Installation) -> None:
    status, answer = installation.service.ask("POST", "/system/reload", token=SCOPED)
    assert (status, answer["code"]) == (403, "insufficient_scope")
    assert answer["hint"] == "Required scope: system:rw. Scopes of this token: jobs:ro."
    assert answer["context"] == {"needed": "system:rw", "held": ["jobs:ro"]}

    _, answer = installation.service.ask("POST", "/plugin/echo/poll", token=SCOPED)
    assert answer["hint"] == ("Required scope: plugin:invoke:ro or plugin:echo:ro. Scopes of this token: jobs:ro.")
    assert installation.service.ask("GET", "/jobs", token="invalid")[1]["context"] == {}


@pytest.mark.parametrize(
    "line",
    [
        f"job inspect {NO_JOB}",
        f"job why {NO_JOB}",
        f"job cancel {NO_JOB}",
        f"job retry {NO_JOB}",
        "plugin run missing",
        "plugin run echo nothing",
        "plugin show missing",
        "pipeline run nothing",
        "pipeline run no-plugin",
        "pipeline show nothing",
        "schedule run echo nothing",
        "config get nothing.here",
        "config set service.max_workers=many",
        "config set nothing.here=1",
        "system breaker missing",
        "event why nothing",
        "webhook verify nothing",
    ],
)
def test_every_failing_command_has_a_hint(installation: Installation, run: Run, line: str) -> None:
    answer = run(*line.split(), "--config", installation.home.path, "--json")

    assert answer.exit_code == answer.json["exit_code"] != 0
    assert answer.json["hint"], answer.json


def test_an_invalid_configuration_exits_78_in_every_command(installation: Installation, run: Run) -> None:
    """`config check` reads it, `system reload` asks the service."""
    where = ("--config", installation.home.path, "--json")
    whole = (installation.home.path / "config.yaml").read_text()
    changes = {"config_invalid": ("max_workers: 4", "max_wurkers: 4"), "restart_needed": ("127.0.0.1:0", "127.0.0.1:1")}
    for code, (old, new) in changes.items():
        installation.home.replace(old, new)
        answers = [run("system", "reload", *where), run("system", "reload", "--dry-run", *where)]
        if "wurkers" in new:
            answers.append(run("config", "check", *where))
        installation.home.write("config.yaml", whole)
        for answer in answers:
            assert (answer.exit_code, answer.json["exit_code"], answer.json["code"]) == (78, 78, code)
            assert answer.json["hint"]
