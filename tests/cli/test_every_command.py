"""Rules that every command keeps, held against the commands themselves: none can be forgotten."""

import hashlib
import hmac
import io
import json
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import ductile.cli
from ductile.cli import SHORT_FORMS
from ductile.cli.agents.describe import actions
from ductile.cli.agents.error_codes import EXIT_CODES
from ductile.cli.agents.side_effects import EFFECTS, KINDS, SCOPES
from ductile.ledger.storage.open_file import create
from tests.cli import world
from tests.cli.conftest import Answer, Run
from tests.cli.world import World

ROOT = ductile.cli.ductile
ACTIONS = dict(actions(ROOT))
ERROR = {"error", "code", "exit_code", "hint", "context"}
NO_JOB = "00000000-0000-7000-8000-000000000000"

EXAMPLES = {
    "api": "/healthz",
    "completion": "bash",
    "config backup": "--output {scratch}/config.tar.gz",
    "config check": "",
    "config get": "service.max_workers",
    "config init": "--config-dir {scratch}/new --demo",
    "config lock": "--dry-run",
    "config plan": "",
    "config plugin list": "",
    "config plugin set": "echo parallelism 2 --dry-run",
    "config plugin show": "echo",
    "config restore": "{archive} --dry-run --config-dir {scratch}/restored",
    "config route add": "--from echo --event x --to failing --dry-run",
    "config route list": "",
    "config route remove": "--from echo --event never --to failing --dry-run",
    "config schema": "",
    "config scope add": "reader plugin:ro --dry-run",
    "config scope remove": "reader jobs:ro --dry-run",
    "config scope set": "reader plugin:ro --dry-run",
    "config scope validate": "jobs:ro",
    "config set": "service.max_workers=3 --dry-run",
    "config show": "",
    "config token create": "--name writer --scopes plugin:rw --dry-run",
    "config token delete": "reader --dry-run",
    "config token inspect": "reader",
    "config token list": "",
    "config token rehash": "reader --dry-run",
    "config webhook add": "--path /other --plugin echo --secret-ref line --dry-run",
    "config webhook list": "",
    "event why": "{event}",
    "job cancel": "{queued} --dry-run",
    "job diagnose": "{dead}",
    "job export": "{job} --fixture",
    "job inspect": "{job}",
    "job list": "--limit 2",
    "job logs": "--limit 2",
    "job replay": "{job} --dry-run",
    "job retry": "{dead} --dry-run",
    "job tail": "{job}",
    "job tree": "{job} --wait",
    "job wait": "{job} --tree",
    "job why": "{dead}",
    "logs": "--limit 3",
    "pipeline dry-run": "two-steps",
    "pipeline list": "",
    "pipeline run": "two-steps --wait",
    "pipeline show": "two-steps",
    "pipeline test": "{cases}",
    "pipeline visualize": "two-steps",
    "plugin add": "fetch --dry-run",
    "plugin check": "{plugin} --level manifest",
    "plugin list": "",
    "plugin lock": "echo --dry-run",
    "plugin new": "fresh --dir {scratch}",
    "plugin pause": "failing --dry-run",
    "plugin resume": "failing --dry-run",
    "plugin run": "echo --wait",
    "plugin show": "echo",
    "plugin test": "{plugin}",
    "queue list": "",
    "queue pause": "--dry-run",
    "queue purge": "--all --dry-run",
    "queue resume": "--dry-run",
    "queue status": "",
    "relay list": "",
    "relay send": "lab --event a.b --dry-run",
    "schedule list": "",
    "schedule next": "echo nightly",
    "schedule pause": "echo nightly --dry-run",
    "schedule resume": "echo nightly --dry-run",
    "schedule run": "echo nightly --wait",
    "schedule simulate": "echo nightly --to 2030-01-03T00:00:00Z --from 2030-01-01T00:00:00Z",
    "schedule why": "echo nightly --at 2026-01-02T02:30:00Z",
    "system backup": "--to {scratch}/all.tar.gz",
    "system breaker": "echo",
    "system describe": "",
    "system doctor": "--no-health",
    "system plugin-facts": "echo",
    "system reload": "--dry-run",
    "system reset": "echo --dry-run",
    "system restore": "{archive} --dry-run --config-dir {scratch}/elsewhere",
    "system scheduler": "",
    "system selfcheck": "",
    "system skills": "",
    "system start": "--dry-run --config {idle}",
    "system status": "",
    "system storage compact": "--dry-run --config {idle}",
    "system storage show": "",
    "system tasks": "",
    "system watch": "--once",
    "version": "",
    "webhook list": "",
    "webhook receipts": "",
    "webhook send": "hook --payload-file {body} --dry-run",
    "webhook verify": "hook --payload-file {body} -H 'X-Signature-256: {signature}'",
}
"""For every command what works in the world of these tests."""

UNKNOWN = {
    "config get": "no.such.key",
    "config plugin show": "nobody",
    "config show": "plugin:nobody",
    "config scope add": "nobody jobs:ro --dry-run",
    "config scope remove": "nobody jobs:ro --dry-run",
    "config scope set": "nobody jobs:ro --dry-run",
    "config token delete": "nobody --dry-run",
    "config token inspect": "nobody",
    "config token rehash": "nobody --dry-run",
    "event why": "nothing",
    "job cancel": NO_JOB,
    "job diagnose": NO_JOB,
    "job export": f"{NO_JOB} --fixture",
    "job inspect": NO_JOB,
    "job replay": NO_JOB,
    "job retry": NO_JOB,
    "job tail": NO_JOB,
    "job tree": NO_JOB,
    "job wait": NO_JOB,
    "job why": NO_JOB,
    "logs": "nobody",
    "pipeline dry-run": "nothing",
    "pipeline run": "nothing",
    "pipeline show": "nothing",
    "pipeline visualize": "nothing",
    "plugin add": "nothing",
    "plugin check": "nobody",
    "plugin lock": "nobody",
    "plugin pause": "nobody",
    "plugin resume": "nobody",
    "plugin run": "nobody",
    "plugin show": "nobody",
    "plugin test": "nobody",
    "relay send": "nowhere --event a.b",
    "schedule next": "nobody nightly",
    "schedule pause": "nobody nightly",
    "schedule resume": "echo never",
    "schedule run": "echo never",
    "schedule simulate": "nobody",
    "schedule why": "echo never --at 2026-01-02T02:30:00Z",
    "system breaker": "nobody",
    "system describe": "nothing",
    "system plugin-facts": "nobody",
    "system reset": "nobody",
    "webhook receipts": "nothing",
    "webhook send": "nothing --payload-file {body}",
    "webhook verify": "nothing --payload-file {body}",
}
"""For every command that takes a name or an id one that is not there."""
NAMES_NOTHING = {
    "api": "an endpoint: the service says what there is not",
    "completion": "a shell",
    "config plugin set": "a place, which need not be there",
    "config restore": "a file",
    "config scope validate": "a scope, which need not be anywhere",
    "config set": "a place, which need not be there",
    "pipeline test": "a file",
    "plugin new": "what is not there yet",
    "system restore": "a file",
}
"""Commands whose argument is no name or id, and what it is."""
RUNS_PLUGINS_HERE = ("plugin check", "plugin test", "system status")
"""Commands that end what their plugins leave behind, and with it every other child of their process."""
MAKES_A_PLACE = ("config backup", "config init", "config restore", "system restore")
"""Commands for whose --config there need not be a configuration that can be used."""
REPORTS = ("system status", "system selfcheck", "system doctor")
"""Commands that tell what is wrong with a configuration as their result."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = world.make(tmp_path_factory.mktemp("world"))
    yield made
    made.service.stop()


def words(template: str, names: dict[str, str]) -> list[str]:
    return [word.format_map(names) for word in shlex.split(template)]


def takes(command: click.Command, flag: str) -> bool:
    return any(flag in parameter.opts for parameter in command.params)


def in_world(name: str, made: World) -> list[str]:
    command = ACTIONS[name]
    return ["--config", str(made.home.path)] if takes(command, "--config") else []


# ── form ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*ACTIONS, *SHORT_FORMS])
def test_help_has_an_example_that_can_be_typed(name: str, run: Run) -> None:
    """A person or an agent learns a command from its own help, by any of the ways to ask for it."""
    answer = run(*name.split(), "--help")

    assert answer.exit_code == 0
    assert f"Example: ductile {name}" in " ".join(answer.stdout.split())
    assert run("help", *name.split()).stdout.split() == answer.stdout.split()


@pytest.mark.parametrize("name", ACTIONS)
def test_flags_are_what_the_side_effect_asks_for(name: str) -> None:
    """All speak JSON and say more with -v; what changes something can be tried first. `effects` says which does."""
    assert name in EFFECTS, "say in ductile/cli/effects.py what it does"
    command, effect = ACTIONS[name], EFFECTS[name]

    assert effect.kind in KINDS
    assert takes(command, "--json")
    assert takes(command, "-v")
    assert not effect.is_change or takes(command, "--dry-run")


def test_the_tables_name_commands_that_exist() -> None:
    """What is gone is gone from the tables, too."""
    assert set(EFFECTS) == set(ACTIONS)
    assert set(EXAMPLES) == set(ACTIONS)
    assert set(UNKNOWN) <= set(ACTIONS)


@pytest.mark.parametrize("name", ACTIONS)
def test_every_command_is_documented(name: str) -> None:
    """docs/cli.md has a chapter for it."""
    page = Path(__file__).parents[2] / "docs" / "cli.md"

    assert re.search(rf"^## ductile {name}( |$)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in ACTIONS if EXAMPLES.get(name)])
def test_flags_may_stand_anywhere(name: str) -> None:
    """Before, between and after the arguments: all the same."""
    command, args = ACTIONS[name], shlex.split(re.sub(r"[{}]", "", EXAMPLES[name]))

    def parsed(given: list[str]) -> dict[str, Any]:
        return command.make_context(name, list(given), resilient_parsing=False).params

    flag = ["--json"] if "--json" not in args else []
    expected = parsed([*args, *flag])
    assert parsed([*flag, *args]) == expected
    if not any(arg.startswith("-") for arg in args):
        for at in range(len(args)):
            assert parsed([*args[:at], *flag, *args[at:]]) == expected


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", EXAMPLES)
def test_success_is_json_and_asks_only_what_is_declared(name: str, made: World, run: Run, tmp_path: Path) -> None:
    """stdout is JSON, all else is on stderr; the routes that a command asks are those that it needs scopes for."""
    answer = example(name, "--json", "-v", made=made, run=run, scratch=tmp_path)

    assert answer.exit_code == 0, answer
    for text in answer.stdout.splitlines() if name == "logs" else [answer.stdout]:
        json.loads(text)
    assert re.search(rf"^ductile {name}: \d+ ms$", answer.stderr, re.MULTILINE), "-v says how long it took"
    asked = re.findall(r"^asked: (\S+ [^?\s]+)", answer.stderr, re.MULTILINE)
    declared = [re.compile(re.sub(r"\{\w+\}", "[^/]+", route)) for route in EFFECTS[name].routes]
    if name != "api":
        assert [one for one in asked if not any(route.fullmatch(one) for route in declared)] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_success_is_told_in_words(name: str, made: World, run: Run, tmp_path: Path) -> None:
    """Without --json there is text for people, and nothing on stderr but what is to be known."""
    answer = example(name, made=made, run=run, scratch=tmp_path)

    assert answer.exit_code == 0, answer
    assert answer.stdout or answer.stderr
    assert not answer.stderr.startswith("error")


def example(name: str, *flags: str, made: World, run: Run, scratch: Path) -> Answer:
    """What the command of the table answers in the world of these tests."""
    args = words(EXAMPLES[name], names_for(name, made, run, scratch))
    config = [] if "--config" in args or "--config-dir" in args else in_world(name, made)
    line = [*name.split(), *args, *config, *flags]
    return run_alone(*line) if name in RUNS_PLUGINS_HERE else run(*line)


def run_alone(*args: str) -> Answer:
    """In a process of its own."""
    done = subprocess.run([sys.executable, "-m", "ductile", *args], capture_output=True, text=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def names_for(name: str, made: World, run: Run, scratch: Path) -> dict[str, str]:
    """What the placeholders stand for, made where an example needs it."""
    names = made.names | {"scratch": str(scratch)}
    if "{idle}" in EXAMPLES[name]:
        names["idle"] = f"{scratch}/idle"
        run("config", "init", "--demo", "--config-dir", names["idle"])
        if name == "system storage compact":
            create(Path(names["idle"]) / "data" / "state.db")
    if "{plugin}" in EXAMPLES[name]:
        names["plugin"] = f"{scratch}/made"
        run("plugin", "new", "made", "--dir", scratch)
    if "{archive}" in EXAMPLES[name]:
        names["archive"] = f"{scratch}/made.tar.gz"
        flag = {"config restore": "--output", "system restore": "--to"}[name]
        run(name.split()[0], "backup", flag, names["archive"], "--config", made.home.path)
    if name == "webhook verify":
        names["signature"] = hmac.new(world.SECRET.encode(), b"{}", hashlib.sha256).hexdigest()
    return names


def test_declared_scopes_are_those_of_the_routes(made: World) -> None:
    """What `system describe` says about scopes is what the service asks for."""
    _, document = made.service.ask("GET", "/openapi.json")
    wanted = {
        f"{method.upper()} {path}": about.get("x-required-scope")
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }

    assert {route: wanted[route] for route in SCOPES} == SCOPES
    assert set(SCOPES) == {route for effect in EFFECTS.values() for route in effect.routes}


@pytest.mark.parametrize("name", ACTIONS)
def test_wrong_usage_is_a_json_error(name: str, run: Run) -> None:
    """A flag that is none: exit 2, in the one shape."""
    answer = run(*name.split(), "--frobnicate", "--json")

    assert (answer.exit_code, answer.json["code"], set(answer.json)) == (2, "usage", ERROR)


@pytest.mark.parametrize(
    "name", [name for name in ACTIONS if takes(ACTIONS[name], "--config") and name not in MAKES_A_PLACE]
)
@pytest.mark.parametrize("text", [None, "service: [oh", "frobnicate: 1"])
def test_a_configuration_that_cannot_be_used_is_a_json_error(
    name: str, text: str | None, run: Run, made: World, tmp_path: Path
) -> None:
    """Missing, unreadable or wrong: one JSON object on stdout, never a traceback; exit 78 where it is needed."""
    directory = tmp_path / "broken"
    if text is not None:
        directory.mkdir(mode=0o700)
        (directory / "config.yaml").write_text(text)
        (directory / "config.yaml").chmod(0o600)
    args = re.sub(r"--config(-dir)? \S+", "", EXAMPLES[name])
    names = made.names | {"signature": "0", "plugin": "nobody", "scratch": str(tmp_path)}
    answer = run(*name.split(), *words(args, names), "--config", directory, "--json")

    if name in REPORTS and "code" not in answer.json:
        assert (answer.exit_code, answer.json["healthy"]) == (1, False)
    elif answer.exit_code != 0 or text != "frobnicate: 1":
        assert answer.exit_code in (1, 69, 75, 78), answer
        assert set(answer.json) >= ERROR, answer


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_there_is_not_found(name: str, made: World, run: Run) -> None:
    """Exit 1 with `not_found`, whatever is named."""
    answer = run(*name.split(), *words(UNKNOWN[name], made.names), *in_world(name, made), "--json")

    assert (answer.exit_code, answer.json.get("code")) == (1, "not_found"), answer
    assert set(answer.json) == ERROR


@pytest.mark.parametrize("name", ACTIONS)
def test_every_command_that_names_something_is_asked_for_what_is_not_there(name: str) -> None:
    """The table above is complete."""
    names_something = any(isinstance(parameter, click.Argument) for parameter in ACTIONS[name].params)

    assert not names_something or name in UNKNOWN or name in NAMES_NOTHING


# ── anything ────────────────────────────────────────────────────────────────────────────────────────────────────────

JUNK = (
    "",
    "-",
    "--",
    "0",
    "-1",
    "nobody",
    "{}",
    "[1",
    "a=b",
    "é\u202e",
    "/nonexistent",
    "x" * 300,
    "*",
    "../..",
    "@",
    NO_JOB,
)
MOST_SECONDS = 60


def random_lines(seed: int, count: int) -> Iterator[list[str]]:
    """Command lines: half of them any words, half a command with flags it has and values it may not want."""
    dice = random.Random(seed)
    flags = sorted(
        {flag for one in ACTIONS.values() for parameter in one.params for flag in parameter.opts if flag[0] == "-"}
    )
    every_word = [*{word for name in ACTIONS for word in name.split()}, *flags, *JUNK]
    every_word.sort()
    for _ in range(count):
        if dice.random() < 0.3:
            yield [dice.choice(every_word) for _ in range(dice.randint(0, 6))]
            continue
        name = dice.choice(sorted(ACTIONS))
        line = name.split()
        for parameter in ACTIONS[name].params:
            if isinstance(parameter, click.Argument) and dice.random() < 0.8:
                line.append(dice.choice(JUNK))
            elif isinstance(parameter, click.Option) and dice.random() < 0.25:
                line += [parameter.opts[0], *([] if parameter.is_flag else [dice.choice(JUNK)])]
        yield line


@pytest.mark.parametrize("part", range(5))
def test_no_command_line_gives_a_traceback(
    part: int, run: Run, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is typed, the answer is an exit code of ours, and soon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(demo))
    monkeypatch.setattr("ductile.runtime.run", lambda *_args, **_more: None)  # a service would go on
    monkeypatch.setattr("sys.stdin", io.StringIO())
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it takes too long"))
    for line in random_lines(part, 100):
        if "--follow" in line or ("-f" in line and line[0] != "api"):
            continue  # goes on until it is told to stop
        signal.alarm(MOST_SECONDS)
        try:
            answer = run(*line)
        except BaseException as error:
            raise AssertionError(f"ductile {shlex.join(line)}") from error
        finally:
            signal.alarm(0)
        assert answer.exit_code in EXIT_CODES, line
        assert "Traceback" not in answer.stderr, line
