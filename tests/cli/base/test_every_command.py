"""Rules for every command, checked against the commands themselves."""

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
from ductile.cli.agents.side_effects import EFFECTS, KINDS, SCOPES
from ductile.cli.base.error_codes import EXIT_CODES
from ductile.ledger.storage.open_file import create
from tests.cli.conftest import Answer, Run, failures
from tests.cli.installation import EXAMPLES, SECRET, Installation, make_installation

ROOT = ductile.cli.ductile
ACTIONS = dict(actions(ROOT))
ERROR = {"error", "code", "exit_code", "hint", "context"}
NO_JOB = "00000000-0000-7000-8000-000000000000"

UNKNOWN = {
    "config diff": "cfg_missing",
    "config get": "no.such.key",
    "config pipeline remove": "missing --dry-run",
    "config pipeline show": "missing",
    "config plugin show": "missing",
    "config show": "plugin:missing",
    "config scope add": "missing jobs:ro --dry-run",
    "config scope remove": "missing jobs:ro --dry-run",
    "config scope set": "missing jobs:ro --dry-run",
    "config token delete": "missing --dry-run",
    "config token inspect": "missing",
    "config token rehash": "missing --dry-run",
    "event why": "nothing",
    "exchange complete": f"{NO_JOB} done",
    "exchange extend": NO_JOB,
    "exchange fail": NO_JOB,
    "exchange import": "/nonexistent",
    "exchange release": NO_JOB,
    "exchange reply": f"{NO_JOB} hello",
    "exchange requeue": NO_JOB,
    "exchange why": NO_JOB,
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
    "logs": "missing",
    "pipeline dry-run": "nothing",
    "pipeline run": "nothing",
    "pipeline show": "nothing",
    "pipeline visualize": "nothing",
    "plugin add": "nothing",
    "plugin check": "missing",
    "plugin lock": "missing",
    "plugin pause": "missing",
    "plugin resume": "missing",
    "plugin run": "missing",
    "plugin show": "missing",
    "plugin test": "missing",
    "relay send": "nowhere --event a.b",
    "run show": NO_JOB,
    "schedule next": "missing nightly",
    "schedule pause": "missing nightly",
    "schedule resume": "echo never",
    "schedule run": "echo never",
    "schedule simulate": "missing",
    "schedule why": "echo never --at 2026-01-02T02:30:00Z",
    "system breaker": "missing",
    "system describe": "nothing",
    "system plugin-facts": "missing",
    "system reset": "missing",
    "webhook deliveries": "nothing",
    "webhook inspect": "999",
    "webhook receipts": "nothing",
    "webhook redeliver": "999",
    "webhook send": "nothing --payload-file {body}",
    "webhook verify": "nothing --payload-file {body}",
}
"""Command with a name or id → arguments with one that does not exist."""
NAMES_NOTHING = {
    "api": "an endpoint: the service reports unknown ones",
    "completion": "a shell",
    "config import crontab": "a file",
    "config pipeline add": "a file",
    "config plugin set": "a path, which need not exist",
    "config restore": "a file",
    "config scope validate": "a scope, which no token needs to have",
    "config set": "a path, which need not exist",
    "exchange claim": "a topic, which need not have messages",
    "exchange pause": "a topic, which need not have messages",
    "exchange publish": "a topic, which need not have messages",
    "exchange purge": "a topic, which need not have messages",
    "exchange request": "a topic, which need not have messages",
    "exchange resume": "a topic, which need not have messages",
    "exchange run": "a command of the host",
    "exchange serve": "a directory",
    "event send": "an event type: one without a pipeline is reported as unmatched",
    "pipeline test": "a file",
    "plugin new": "a new name",
    "system restore": "a file",
}
"""Command whose argument is not the name of something that exists → what it is."""
RUNS_PLUGINS_HERE = ("exchange run", "plugin check", "plugin test", "system status")
"""Commands that end leftover processes of plugins, and with them every child of their own process."""
NEEDS_NO_CONFIG = ("config backup", "config init", "config restore", "system restore")
"""Commands whose --config need not be a usable configuration."""
REPORTS = ("system status", "system selfcheck", "system doctor")
"""Commands that report an invalid configuration as their result."""
NOT_FOUND = ("not_found", "message_unknown", "claim_unknown")
PRINTS_ID_AND_BODY = ("exchange publish", "exchange request")
"""Commands of Plugboard: --json prints the identifiers to stderr as JSON; stdout is the id or the reply alone."""
VERDICTS = ("system status", "system doctor")
"""Commands that exit with 1 because the failed jobs of the installation need attention."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = make_installation(tmp_path_factory.mktemp("installation"))
    yield installation
    installation.service.stop()


def words(template: str, names: dict[str, str]) -> list[str]:
    return [word.format_map(names) for word in shlex.split(template)]


def takes(command: click.Command, flag: str) -> bool:
    return any(flag in parameter.opts for parameter in command.params)


def with_flags(args: list[str], flags: list[str]) -> list[str]:
    """Add the flags of Ductile; what follows `--` belongs to another program."""
    end = args.index("--") if "--" in args else len(args)
    return [*args[:end], *flags, *args[end:]]


def config_flags(name: str, installation: Installation) -> list[str]:
    command = ACTIONS[name]
    return ["--config", str(installation.home.path)] if takes(command, "--config") else []


# ── form ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_help_text_has_an_example(run: Run) -> None:
    """`ductile NOUN ACTION --help` and `ductile help NOUN ACTION` print the same."""

    def check(name: str) -> None:
        answer = run(*name.split(), "--help")
        assert answer.exit_code == 0
        assert f"Example: ductile {name}" in " ".join(answer.stdout.split())
        assert run("help", *name.split()).stdout.split() == answer.stdout.split()

    assert failures([*ACTIONS, *SHORT_FORMS], check) == []


def test_every_command_has_json_and_verbose_and_every_change_a_dry_run() -> None:
    """`side_effects` declares which commands change something."""

    def check(name: str) -> None:
        assert name in EFFECTS, "add it to ductile/cli/agents/side_effects.py"
        command, effect = ACTIONS[name], EFFECTS[name]
        assert effect.kind in KINDS
        assert takes(command, "--json")
        assert takes(command, "-v")
        assert not effect.has_dry_run or takes(command, "--dry-run")

    assert failures(ACTIONS, check) == []


def test_the_tables_list_existing_commands() -> None:
    assert set(EFFECTS) == set(ACTIONS)
    assert set(EXAMPLES) == set(ACTIONS)
    assert set(UNKNOWN) <= set(ACTIONS)


def test_every_command_is_documented() -> None:
    """docs/cli.md has a section for it."""
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()

    assert [name for name in ACTIONS if not re.search(rf"^## ductile {name}( |$)", page, re.MULTILINE)] == []


def test_flags_may_precede_arguments() -> None:
    """The parameters are the same wherever --json appears."""

    def check(name: str) -> None:
        command, args = ACTIONS[name], shlex.split(re.sub(r"[{}]", "", EXAMPLES[name]))

        def parsed(line: list[str]) -> dict[str, Any]:
            return command.make_context(name, list(line), resilient_parsing=False).params

        flag = ["--json"] if "--json" not in args else []
        expected = parsed(with_flags(args, flag))
        assert parsed([*flag, *args]) == expected
        if not any(arg.startswith("-") for arg in args):
            for at in range(len(args)):
                assert parsed([*args[:at], *flag, *args[at:]]) == expected

    assert failures([name for name in ACTIONS if EXAMPLES.get(name)], check) == []


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(600)
def test_json_output_is_valid_and_only_declared_routes_are_requested(
    installation: Installation, run: Run, tmp_path: Path
) -> None:
    """stdout has only JSON. `system describe` derives the scopes of a command from its declared routes."""

    def check(name: str) -> None:
        answer = example(name, "--json", "-v", installation=installation, run=run, scratch=scratch_for(name, tmp_path))
        assert answer.exit_code == int(name in VERDICTS), answer
        for text in json_texts(name, answer):
            json.loads(text)
        assert re.search(rf"^ductile {name}: \d+ ms$", answer.stderr, re.MULTILINE), "-v prints the duration"
        requests = re.findall(r"^request: (\S+ [^?\s]+)", answer.stderr, re.MULTILINE)
        declared = [re.compile(re.sub(r"\{\w+\}", "[^/]+", route)) for route in EFFECTS[name].routes]
        if name != "api":
            assert [line for line in requests if not any(route.fullmatch(line) for route in declared)] == []

    assert failures(EXAMPLES, check) == []


@pytest.mark.timeout(600)
def test_every_command_prints_text_without_json(installation: Installation, run: Run, tmp_path: Path) -> None:
    def check(name: str) -> None:
        answer = example(name, installation=installation, run=run, scratch=scratch_for(name, tmp_path))
        assert answer.exit_code == int(name in VERDICTS), answer
        assert answer.stdout or answer.stderr
        assert not answer.stderr.startswith("error")

    assert failures(EXAMPLES, check) == []


def json_texts(name: str, answer: Answer) -> list[str]:
    """Return the texts of the output that must be JSON."""
    if name in PRINTS_ID_AND_BODY:
        return [line for line in answer.stderr.splitlines() if line.startswith("{")][:1] or [""]
    return answer.stdout.splitlines() if name == "logs" else [answer.stdout]


def scratch_for(name: str, tmp_path: Path) -> Path:
    folder = tmp_path / name.replace(" ", "-")
    folder.mkdir()
    return folder


def example(name: str, *flags: str, installation: Installation, run: Run, scratch: Path) -> Answer:
    """Run the example of the command."""
    args = words(EXAMPLES[name], names_for(name, installation, run, scratch))
    config = [] if "--config" in args or "--config-dir" in args else config_flags(name, installation)
    line = [*name.split(), *with_flags(args, [*config, *flags])]
    return run_in_subprocess(*line) if name in RUNS_PLUGINS_HERE else run(*line)


def run_in_subprocess(*args: str) -> Answer:
    """Run the command in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "ductile", *args], capture_output=True, text=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def names_for(name: str, installation: Installation, run: Run, scratch: Path) -> dict[str, str]:
    """Return the placeholders of an example, and create what it needs."""
    names = installation.names | {"scratch": str(scratch)}
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
        run(name.split()[0], "backup", flag, names["archive"], "--config", installation.home.path)
    if name in ("exchange claim", "exchange run"):
        run("exchange", "publish", "review.request", "please", "--config", installation.home.path)
    if "{claim}" in EXAMPLES[name]:
        config = ("--config", installation.home.path)
        run("exchange", "publish", "claimed.request", "please", *config)
        (claim,) = run("exchange", "claim", "claimed.request", "--json", *config).json["claims"]
        names["claim"] = claim["claim_id"]
    if name == "webhook verify":
        names["signature"] = hmac.new(SECRET.encode(), b"{}", hashlib.sha256).hexdigest()
    return names


def test_declared_scopes_are_those_of_the_routes(installation: Installation) -> None:
    """`system describe` reports the scopes that the service requires."""
    _, document = installation.service.ask("GET", "/openapi.json")
    wanted = {
        f"{method.upper()} {path}": about.get("x-required-scope")
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }

    assert {route: wanted[route] for route in SCOPES} == SCOPES
    assert set(SCOPES) == {route for effect in EFFECTS.values() for route in effect.routes}


def test_an_unknown_flag_is_a_json_error(run: Run) -> None:
    def check(name: str) -> None:
        answer = run(*name.split(), "--frobnicate", "--json")
        assert (answer.exit_code, answer.json["code"], set(answer.json)) == (2, "usage", ERROR)

    assert failures(ACTIONS, check) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", [None, "service: [oh", "frobnicate: 1"], ids=["missing", "unreadable", "invalid"])
def test_an_unusable_configuration_is_a_json_error(
    text: str | None, run: Run, installation: Installation, tmp_path: Path
) -> None:
    """One JSON object on stdout, never a traceback; exit 78 where the configuration is needed."""
    directory = tmp_path / "broken"
    if text is not None:
        directory.mkdir(mode=0o700)
        (directory / "config.yaml").write_text(text)
        (directory / "config.yaml").chmod(0o600)

    def check(name: str) -> None:
        args = re.sub(r"--config(-dir)? \S+", "", EXAMPLES[name])
        names = installation.names | {"signature": "0", "plugin": "missing", "scratch": str(tmp_path)}
        flags = ["--config", str(directory), "--json"]
        answer = run(*name.split(), *with_flags(words(args, names), flags))
        if name in REPORTS and "code" not in answer.json:
            assert (answer.exit_code, answer.json["healthy"]) == (1, False)
        elif answer.exit_code != 0 or text != "frobnicate: 1":
            assert answer.exit_code in (1, 69, 75, 78), answer
            assert set(answer.json) >= ERROR, answer

    needs_config = [name for name in ACTIONS if takes(ACTIONS[name], "--config") and name not in NEEDS_NO_CONFIG]
    assert failures(needs_config, check) == []


def test_an_unknown_name_is_not_found(installation: Installation, run: Run) -> None:
    def check(name: str) -> None:
        answer = run(
            *name.split(), *words(UNKNOWN[name], installation.names), *config_flags(name, installation), "--json"
        )
        assert (answer.exit_code, answer.json.get("code") in NOT_FOUND) == (1, True), answer
        assert set(answer.json) == ERROR

    assert failures(UNKNOWN, check) == []


def test_the_table_of_unknown_names_is_complete() -> None:
    """Every command with an argument is in it, or its argument is no name."""

    def has_argument(name: str) -> bool:
        return any(isinstance(parameter, click.Argument) for parameter in ACTIONS[name].params)

    assert [name for name in ACTIONS if has_argument(name) and name not in {*UNKNOWN, *NAMES_NOTHING}] == []


# ── random command lines ──────────────────────────────────────────────────────────────────────────────────────────────

JUNK = (
    "",
    "-",
    "--",
    "0",
    "-1",
    "missing",
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
MAX_SECONDS = 60


def random_lines(seed: int, count: int) -> Iterator[list[str]]:
    """Yield command lines: some of random words, some a command with its flags and random values."""
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
def test_random_command_lines_give_no_traceback(
    part: int, run: Run, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one ends with a documented exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(demo))
    monkeypatch.setattr("ductile.runtime.run", lambda *_args, **_more: None)  # a real service would not return
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it takes too long"))
    for line in random_lines(part, 100):
        if "--follow" in line or ("-f" in line and line[0] != "api"):
            continue  # runs until a signal
        signal.alarm(MAX_SECONDS)
        try:
            answer = run(*line)
        except BaseException as error:
            raise AssertionError(f"ductile {shlex.join(line)}") from error
        finally:
            signal.alarm(0)
        assert answer.exit_code in EXIT_CODES, line
        assert "Traceback" not in answer.stderr, line
