"""Fixtures as authors, exporters and strangers write them."""

import re
from pathlib import Path

import pytest

from ductile.authoring.fixtures import read_fixture
from ductile.errors import DuctileError
from tests.authoring.kit import PYTHON, cli, write_fixture, write_plugin


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "", "empty, expected one JSON value"),
        ("a.json", "[]", "a fixture must be an object"),
        ("a.json", "{}", "request must be an object"),
        ("a.json", '{"request": {}}', "request.command is missing"),
        ("a.json", '{"request": {"command": 5}}', "request.command is missing"),
        ("a.json", '{"request": {"command": "poll"}, "expects": {}}', "did you mean 'expect'"),
        ("a.json", '{"request": {"command": "poll", "confg": {}}}', "did you mean 'config'"),
        ("a.json", '{"request": {"command": "poll", "config": []}}', "request.config must be an object"),
        ("a.json", '{"request": {"command": "poll", "attempt": true}}', "request.attempt is a number from 1"),
        ("a.json", '{"request": {"command": "poll"}, "match": "fuzzy"}', "match is `partial` or `exact`"),
        ("a.json", '{"request": {"command": "poll"}, "deadline": "soon"}', "deadline"),
        ("a.json", '{"request": {"command": "poll"}, "deadline": "0s"}', "is no time at all"),
        ("a.json", '{"request": {"command": "poll", "event": {"type": "x"}}}', "request.event is for `handle`"),
        ("a.json", '{"request": {"command": "handle", "event": {"payload": "x"}}}', "request.event.payload must be"),
        ("a.json", '{"request": {"command": "poll"}, "files": {"../x": ""}}', "does not lie below"),
        ("a.json", '{"request": {"command": "poll"}, "files": {"/etc/x": ""}}', "does not lie below"),
        ("a.json", '{"request": {"command": "poll"}, "files": {"x": 5}}', "must be text"),
        ("a.json", '{"request": 1, "request": 2}', "duplicate key"),
        ("a.json", "[" * 100_000, "nested deeper than"),
        ("a.json", f'{{"x": "{"x" * (1 << 20)}"}}', "1048576"),
        ("a.yaml", "request: {command: poll", "a.yaml"),
        ("a.yaml", "request: !!python/object:os.system {}", "a.yaml"),
        ("a.yaml", "request: &a [x]", "request must be an object"),
    ],
)
def test_a_fixture_that_cannot_be_meant_is_refused_with_its_reason(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    """Bad JSON, bad YAML, unknown keys, wrong kinds, paths that lead elsewhere, too much of anything."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(DuctileError) as refused:
        read_fixture(path)

    assert says in str(refused.value)


def test_a_fixture_may_be_yaml(tmp_path: Path) -> None:
    """With everything a fixture can say."""
    path = tmp_path / "all.yaml"
    path.write_text(
        "name: all\nrequest: {command: poll, config: {a: 1}, state: {b: 2}, payload: {c: 3}, attempt: 2}\n"
        "files: {in/a.txt: hello}\ndeadline: 3s\nmatch: exact\nexpect: {verdict: succeeded}\n"
    )

    fixture = read_fixture(path)

    assert (fixture.name, fixture.command, fixture.attempt, fixture.is_exact) == ("all", "poll", 2, True)
    assert (fixture.config, fixture.state, fixture.payload) == ({"a": 1}, {"b": 2}, {"c": 3})
    assert fixture.deadline.total_seconds() == 3


def test_a_fixture_that_expects_nothing_in_particular_expects_success(tmp_path: Path) -> None:
    """Otherwise it would hold whatever the plugin does."""
    path = tmp_path / "bare.yaml"
    path.write_text("request: {command: poll}\n")

    assert read_fixture(path).expect == {"verdict": "succeeded"}


def test_the_fixture_in_the_documentation_can_be_read(tmp_path: Path) -> None:
    """It says what it seems to say."""
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    (written,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "\nrequest:" in block]
    path = tmp_path / "shown.yaml"
    path.write_text(written)

    assert read_fixture(path).files == {"data/one.txt": "hello"}


@pytest.mark.parametrize("files", [{"a": "", "a/b": ""}, {"x" * 300: ""}])
def test_files_that_cannot_be_written_fail_the_fixture(tmp_path: Path, files: dict[str, str]) -> None:
    """With a reason, not with a traceback."""
    plugin = write_plugin(tmp_path / "disk", PYTHON % "")
    write_fixture(plugin, {"request": {"command": "poll"}, "files": files})

    done = cli("plugin", "test", plugin, "--json")

    assert done.exit_code == 1
    assert done.json["fixtures"][0]["holds"] is False


def test_a_fixture_brings_its_own_files(tmp_path: Path) -> None:
    """`${dir}` is a fresh directory with them, in the request and in what is expected."""
    reads = 'path = config["path"]\nanswer["result"] = f"{path}: {open(path).read()}"'
    plugin = write_plugin(tmp_path / "reader", PYTHON % reads)
    expect = {"response": {"result": "${dir}/in/a.txt: hello"}}
    request = {"command": "poll", "config": {"path": "${dir}/in/a.txt"}}
    write_fixture(plugin, {"request": request, "files": {"in/a.txt": "hello"}, "expect": expect})

    done = cli("plugin", "test", plugin)

    assert (done.exit_code, done.stdout) == (0, "pass  poll\nreader: 1 of 1 fixtures hold\n")


def test_a_failing_and_an_unreadable_fixture_do_not_hide_the_others(tmp_path: Path) -> None:
    """Each is told with what differs; the exit code says that not all hold."""
    plugin = write_plugin(tmp_path / "disk", PYTHON % "print('a word', file=sys.stderr)")
    write_fixture(plugin, {"request": {"command": "poll"}, "expect": {"response": {"result": "saw"}}}, "a.json")
    write_fixture(plugin, "request: [", "b.yaml")
    write_fixture(plugin, {"request": {"command": "poll"}, "expect": {"verdict": "succeeded"}}, "c.json")
    write_fixture(plugin, {"request": {"command": "pol"}, "expect": {"verdict": "dead"}}, "d.json")

    done = cli("plugin", "test", plugin, "--json")

    told = {one["file"]: (one["holds"], one["differences"]) for one in done.json["fixtures"]}
    assert (done.exit_code, done.json["holds"]) == (1, False)
    assert told["a.json"] == (False, ['response.result: expected "saw", found "looked"'])
    assert told["b.yaml"][0] is False
    assert told["c.json"] == told["d.json"] == (True, [])
    assert "stderr: a word" in cli("plugin", "test", plugin).stdout


def test_a_plugin_without_fixtures_has_not_passed(tmp_path: Path) -> None:
    """Nothing was tried, so nothing holds."""
    plugin = write_plugin(tmp_path / "disk", PYTHON % "")

    done = cli("plugin", "test", plugin)

    assert done.exit_code == 1
    assert "no fixtures" in done.stdout
