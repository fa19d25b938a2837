"""Which modules commands import: help imports only click, reading commands no event loop and no server."""

import hashlib
import hmac
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ductile.cli import MODULES, NOUNS
from ductile.cli.agents.side_effects import EFFECTS
from tests.cli.conftest import imported_by
from tests.cli.installation import EXAMPLES, SECRET, Installation, make_installation
from tests.e2e.service import Home

HEAVY = ("trio", "quart", "hypercorn", "quart_trio", "cattrs", "yaml", "sqlite3", "croniter", "asyncio")


def group_of(noun: str) -> Any:
    return import_module(f"ductile.cli.{MODULES[noun]}").group


@pytest.mark.parametrize(
    "args", [("--help",), ("version",), ("version", "--json"), *((noun, "--help") for noun in NOUNS)]
)
def test_help_and_version_import_nothing_heavy(args: tuple[str, ...]) -> None:
    assert imported_by(*args).isdisjoint(HEAVY)


def test_config_check_imports_no_event_loop_and_no_server(demo: Path) -> None:
    allowed = {"yaml", "cattrs", "croniter"}
    assert imported_by("config", "check", "--config", str(demo)).isdisjoint(set(HEAVY) - allowed)


@pytest.mark.parametrize("noun", [noun for noun in NOUNS if hasattr(group_of(noun), "modules")])
def test_an_action_does_not_import_the_modules_of_other_actions(noun: str) -> None:
    group = group_of(noun)
    modules = {f"ductile.cli.{command.rpartition('.')[0]}" for command in group.modules.values()}
    own = next(action for action in group.commands if action not in group.modules)
    assert imported_by(noun, own, "--help").isdisjoint(modules)


# ── reading commands ──────────────────────────────────────────────────────────────────────────────────────────────────

EVENT_LOOP_AND_SERVER = {"trio", "quart", "hypercorn"}
ONLY_WITH_SERVICE = ("job tail", "job wait", "system tasks", "system watch")
READING = [name for name, effect in EFFECTS.items() if effect.kind == "reads"]
"""As they are tried here nothing is followed: `--follow` and `system watch` without `--once` need an event loop."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    there = make_installation(tmp_path_factory.mktemp("start-up"))
    yield there
    there.service.kill()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    there = make_installation(tmp_path_factory.mktemp("stopped"))
    there.service.kill()
    return there


Words = Callable[[str, Installation], list[str]]


@pytest.fixture
def words_of(monkeypatch: pytest.MonkeyPatch) -> Words:
    """Return the command line of the example of a command, and set the configuration."""

    def words(command: str, there: Installation) -> list[str]:
        monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(there.home.path))
        example = EXAMPLES[command].replace("--wait", "")
        if command == "system status":
            example = "--no-health"  # `health` commands run under an event loop, as jobs do
        signature = hmac.new(SECRET.encode(), b"{}", hashlib.sha256).hexdigest()
        return [*command.split(), *shlex.split(example.format_map({**there.names, "signature": signature}))]

    return words


@pytest.mark.parametrize("command", READING)
def test_reading_commands_need_no_event_loop_while_a_service_runs(
    running: Installation, words_of: Words, command: str
) -> None:
    """A reading command imports neither Trio nor the HTTP server."""
    assert imported(words_of(command, running)).isdisjoint(EVENT_LOOP_AND_SERVER)


@pytest.mark.parametrize("command", [name for name in READING if name not in ONLY_WITH_SERVICE])
def test_reading_without_a_service_needs_no_event_loop(stopped: Installation, words_of: Words, command: str) -> None:
    """The same holds where the command reads the ledger and the files itself."""
    assert imported(words_of(command, stopped)).isdisjoint(EVENT_LOOP_AND_SERVER)


def imported(words: list[str]) -> set[str]:
    """Return the modules that a command imports. The failed jobs of the installation need attention."""
    return imported_by(*words, exit_code=int(words[:2] == ["system", "status"]))


@pytest.mark.parametrize("command", ["relay list", "schedule list", "system breaker", "job tree"])
def test_reading_commands_print_the_same_with_and_without_a_service(
    tmp_path: Path, words_of: Words, command: str
) -> None:
    there = make_installation(tmp_path)
    try:
        beside = printed_by(*words_of(command, there), "--json")
    finally:
        there.service.kill()
    assert printed_by(*words_of(command, there), "--json") == beside


def printed_by(*args: str) -> str:
    script = "from ductile.cli import main; main()"
    return subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=True).stdout


def test_the_exceptions_are_reading_commands() -> None:
    assert set(ONLY_WITH_SERVICE) <= set(READING)


def test_a_ready_service_uses_the_default_garbage_collection(tmp_path: Path) -> None:
    """Short commands raise the threshold."""
    script = (
        "import gc, os, sys; usual = gc.get_threshold()\n"
        "from ductile import __main__; from ductile.cli.base import output\n"
        "def note(text):\n"
        "    print(gc.isenabled(), gc.get_threshold() == usual, file=sys.stderr, flush=True); os._exit(0)\n"
        "output.note = note; __main__.main()"
    )
    home = Home.make(tmp_path / "home")
    command = [sys.executable, "-c", script, "system", "start", "--config", str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "True True", done.stderr


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252:strict", "utf-8"])
def test_output_is_utf8_in_every_locale(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "config.yaml").write_text("service: {name: grüße ☃ 日本 😀}\n", encoding="utf-8")
    command = [sys.executable, "-m", "ductile", "config", "get", "service.name", "--config", str(tmp_path)]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    for more in ([], ["--json"]):
        done = subprocess.run([*command, *more], env=environ, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "grüße ☃ 日本 😀" in done.stdout.decode()


def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "ductile", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        # Tests that run in the background have it ignored, and a command keeps to that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
