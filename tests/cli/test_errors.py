"""Every error, whoever says it: one code, one exit code, and what to do next."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import ductile
from ductile.cli.base.client import Busy, refusal
from ductile.cli.base.output import as_error
from ductile.core.errors import DuctileError, LedgerError, LedgerLost
from tests.cli import world
from tests.cli.conftest import Run
from tests.cli.world import World
from tests.e2e.test_reload import change

NO_JOB = "00000000-0000-7000-8000-000000000000"
NO_PLUGIN = "  - {name: no-plugin, on: other, steps: [{id: first, uses: ecko}]}\n"
SCOPED = "a token of narrow scope 0123456789"


def family() -> list[type[DuctileError]]:
    """Every class of errors in the program."""
    for module in pkgutil.walk_packages(ductile.__path__, "ductile."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_below(DuctileError), key=lambda kind: (kind.code, kind.__qualname__))


def _below(kind: type[DuctileError]) -> Iterator[type[DuctileError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _below(one)


FAMILY = family()


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__qualname__)
def test_no_class_of_errors_is_without_a_hint(kind: type[DuctileError]) -> None:
    """Where it is raised there is often a better one; an empty one does not count."""
    assert kind.hint
    assert DuctileError("no", hint="").hint == DuctileError.hint


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__qualname__)
def test_an_error_of_the_service_exits_as_one_of_the_command(kind: type[DuctileError]) -> None:
    """The answer has the code; the exit code follows from it. What a service cannot write now, it may write later."""
    expected = Busy.exit_code if kind in (LedgerError, LedgerLost) else kind.exit_code
    heard = refusal(kind.status, {"error": "no", "code": kind.code, "hint": "", "status": kind.status})

    assert (heard.code, heard.exit_code) == (kind.code, expected)
    assert as_error(heard)["hint"]


# ── walked ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    token = f'{{name: narrow, token: {SCOPED}, scopes: ["jobs:ro"]}}'
    made = world.make(tmp_path_factory.mktemp("world"), more_tokens=token, more_pipelines=NO_PLUGIN)
    yield made
    made.service.stop()


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
        ("GET", "/plugin/nobody", None),
        ("POST", "/plugin/nobody/poll", None),
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
        ("POST", "/breaker/nobody/reset", None),
        ("POST", "/queue/purge", {"other": 1}),
        ("POST", "/queue/pause", {"reason": 1}),
    ],
)
def test_no_answer_that_says_no_is_without_a_hint(made: World, method: str, path: str, body: object) -> None:
    """Whatever the API refuses, it says what to do next."""
    status, answer = made.service.ask(method, path, body)

    assert status >= 400
    assert answer["hint"], answer


def test_who_lacks_a_scope_hears_which_one_and_what_the_token_has(made: World) -> None:
    """Both are the bearer's own business; what others may do is not told."""
    status, answer = made.service.ask("POST", "/system/reload", token=SCOPED)
    assert (status, answer["code"]) == (403, "insufficient_scope")
    assert answer["hint"] == "it takes the scope system:rw; this token has jobs:ro"
    assert answer["context"] == {"needed": "system:rw", "held": ["jobs:ro"]}

    _, answer = made.service.ask("POST", "/plugin/echo/poll", token=SCOPED)
    assert answer["hint"] == ("it takes the scope plugin:invoke:ro or plugin:echo:ro; this token has jobs:ro")
    assert made.service.ask("GET", "/jobs", token="nobody's")[1]["context"] == {}


@pytest.mark.parametrize(
    "line",
    [
        f"job inspect {NO_JOB}",
        f"job why {NO_JOB}",
        f"job cancel {NO_JOB}",
        f"job retry {NO_JOB}",
        "plugin run nobody",
        "plugin run echo nothing",
        "plugin show nobody",
        "pipeline run nothing",
        "pipeline run no-plugin",
        "pipeline show nothing",
        "schedule run echo nothing",
        "config get nothing.here",
        "config set service.max_workers=many",
        "config set nothing.here=1",
        "system breaker nobody",
        "event why nothing",
        "webhook verify nothing",
    ],
)
def test_no_command_that_fails_is_without_a_hint(made: World, run: Run, line: str) -> None:
    """The same for whoever asks the command line."""
    answer = run(*line.split(), "--config", made.home.path, "--json")

    assert answer.exit_code == answer.json["exit_code"] != 0
    assert answer.json["hint"], answer.json


def test_a_configuration_that_cannot_be_used_exits_with_78_whoever_finds_out(made: World, run: Run) -> None:
    """`config check` reads it, `system reload` has the service read it; so does a moved address."""
    where = ("--config", made.home.path, "--json")
    whole = (made.home.path / "config.yaml").read_text()
    changes = {"config_invalid": ("max_workers: 4", "max_wurkers: 4"), "restart_needed": ("127.0.0.1:0", "127.0.0.1:1")}
    for code, (old, new) in changes.items():
        change(made.home, old, new)
        answers = [run("system", "reload", *where), run("system", "reload", "--dry-run", *where)]
        if "wurkers" in new:
            answers.append(run("config", "check", *where))
        made.home.write("config.yaml", whole)
        for answer in answers:
            assert (answer.exit_code, answer.json["exit_code"], answer.json["code"]) == (78, 78, code)
            assert answer.json["hint"]
