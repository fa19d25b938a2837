"""The example plugins in Python, sh, Node and C behave the same."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, build
from tests.plugins.plugin_service import Start, events_of

NAMES = ("py-greet", "sh-greet", "node-greet", "c-greet")
NEEDS = {"node-greet": "node"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of the example plugins; c-greet is compiled."""
    folder = tmp_path_factory.mktemp("greet")
    for name in NAMES:
        shutil.copytree(PLUGINS / name, folder / name)
    build(folder / "c-greet")
    return folder


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in NEEDS and not shutil.which(NEEDS[name]):
        pytest.skip(f"needs {NEEDS[name]}")
    return name


def run_greet(folder: Path, request: Any) -> tuple[int, dict[str, Any]]:
    entrypoint = yaml.safe_load((folder / "manifest.yaml").read_text())["entrypoint"]
    stdin = request if isinstance(request, bytes) else json.dumps({"protocol": 2, "job_id": "j", **request}).encode()
    done = subprocess.run([folder / entrypoint], input=stdin, capture_output=True, check=False, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}


def test_a_greeting_is_emitted_and_stored(home: Home, start: Start, built: Path, name: str) -> None:
    home.copy_plugin(built / name)
    home.add(yaml.safe_dump({"plugins": {name: {"config": {"greeting": "Grüezi", "name": 'Zoë "Z"'}}}}))
    service = start()

    job = service.run(name)

    assert job["result"]["result"] == 'Grüezi, Zoë "Z"!'
    assert events_of(job) == [(f"{name}.greeted", {"message": 'Grüezi, Zoë "Z"!', "name": 'Zoë "Z"'})]
    (fact,) = home.rows("SELECT fact_type, fact_json FROM plugin_facts")
    assert (fact["fact_type"], json.loads(fact["fact_json"])) == (
        f"{name}.snapshot",
        {"last_greeting": 'Grüezi, Zoë "Z"!'},
    )
    assert service.run(name, "health")["status"] == "succeeded"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"name": None},
        {"name": "a\\", "greeting": '\\"{}[],:'},
        {"name": "tab\t line\n nul-free \u2028 😀", "x": [{"name": "not this one"}, "}"]},
        {"x": {"name": "nor this"}, "name": "%s%n $HOME `id` $(id) ' *"},
    ],
)
def test_configured_text_is_returned_unchanged(built: Path, name: str, config: Mapping[str, Any]) -> None:
    """With escapes, similar nested keys, and special characters of shells and printf."""
    config = dict(config) if name != "py-greet" else {key: value for key, value in config.items() if key != "x"}
    code, response = run_greet(built / name, {"command": "poll", "config": config, "state": {}})
    who, greeting = config.get("name") or "World", config.get("greeting") or "Hello"
    assert (code, response["status"]) == (0, "ok")
    assert response["events"][0]["payload"] == {"message": f"{greeting}, {who}!", "name": who}
    assert response["result"] == f"{greeting}, {who}!"


@pytest.mark.parametrize("value", [5, "", "  ", ["a"], {"b": 1}, True])
def test_a_setting_of_the_wrong_type_is_final(built: Path, name: str, value: Any) -> None:
    code, response = run_greet(built / name, {"command": "poll", "config": {"greeting": value}})
    assert (code, response["status"], response["retry"]) == (78, "error", False)
    assert "greeting" in response["error"]


def test_an_unknown_command_is_final(built: Path, name: str) -> None:
    _, response = run_greet(built / name, {"command": "sing", "config": {}})
    assert (response["status"], response["retry"]) == ("error", False)


@pytest.mark.parametrize(
    "stdin", [b"", b"{", b"nonsense", b"[]", b'{"protocol": 3}', b'{"protocol"', b'{"a\\', b"\xff\0"]
)
def test_an_unsupported_protocol_exits_with_78_without_a_response(built: Path, name: str, stdin: bytes) -> None:
    assert run_greet(built / name, stdin) == (78, {})


def test_a_deeply_nested_request_does_not_crash_a_plugin(built: Path, name: str) -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    code, _ = run_greet(
        built / name, b'{"protocol": 2, "command": "poll", "config": {}, "payload": {"x": ' + deep + b"}}"
    )
    assert code >= 0


def test_no_binary_is_bundled() -> None:
    ignored = (PLUGINS.parent / ".gitignore").read_text().splitlines()
    assert "plugins/c-greet/run" in ignored
