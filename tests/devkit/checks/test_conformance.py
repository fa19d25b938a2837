"""`plugin check` finds each misbehaviour, and names it by the rule that is broken."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ductile.devkit.checks.rules import LEVELS, RULES
from tests.devkit.kit import PYTHON, cli, write_fixture, write_plugin
from tests.zoo.catalogue import ZOO


def broken(report: dict[str, Any], *, up_to: str = "robust") -> list[str]:
    """The rules that are broken, the highest levels left out."""
    kept = LEVELS[: LEVELS.index(up_to) + 1]
    return [rule["rule"] for rule in report["rules"] if rule["result"] == "fail" and rule["level"] in kept]


ANIMALS = [
    ("z01_silent", {}, ["protocol.framing"]),
    ("z03_banner_first", {}, ["protocol.framing"]),
    ("z04_two_answers", {}, ["protocol.framing"]),
    ("z08_other_encoding", {"variant": "utf16"}, ["protocol.framing"]),
    ("z10_lone_surrogate", {"variant": "event"}, ["protocol.unicode", "robust.other_protocol"]),
    ("z17_wrong_case", {"variant": "status"}, ["protocol.fields"]),
    ("z19_bad_status", {"variant": "upper"}, ["protocol.fields"]),
    ("z20_no_result", {"variant": "blank"}, ["protocol.fields"]),
    ("z25_bad_events", {"variant": "no_type"}, ["protocol.fields"]),
    ("z26_many_events", {"events": 1_001}, ["protocol.limits"]),
    ("z35_one_byte_over", {"bytes": 10 << 20}, ["protocol.limits"]),
    ("z37_loud_stderr", {}, ["robust.stderr", "robust.other_protocol"]),
    ("z40_wrong_stream", {}, ["protocol.framing"]),
    ("z45_answers_and_hangs", {}, ["protocol.deadline"]),
    ("z46_ok_but_exit_1", {}, ["protocol.exit_code", "robust.other_protocol"]),
    ("z48_ok_but_exit_78", {}, ["protocol.exit_code"]),
    ("z49_kills_itself", {"signal": "SIGSEGV"}, ["protocol.framing", "protocol.exit_code"]),
    ("z51_ignores_sigterm", {}, ["protocol.deadline", "robust.sigterm"]),
    ("z54_child_keeps_pipes", {}, ["robust.leftovers", "robust.other_protocol"]),
    ("z56_daemon_without_traces", {}, ["robust.leftovers", "robust.other_protocol"]),
]


@pytest.mark.parametrize(("folder", "config", "rules"), ANIMALS, ids=[animal[0] for animal in ANIMALS])
def test_every_animal_breaks_the_rule_of_its_vice(folder: str, config: dict[str, Any], rules: list[str]) -> None:
    """And no other."""
    deadline = "2s" if "protocol.deadline" in rules else "60s"
    given = ("--plugin-config", json.dumps(config), "--run-writes", "--deadline", deadline, "--json")
    done = cli("plugin", "check", ZOO / folder, *given)

    assert broken(done.json) == rules
    assert done.exit_code == 1


VICES = {
    "robust.secrets": 'print("with", config, file=sys.stderr)',
    "robust.files": 'open("left.txt", "w").close()',
    "protocol.unknown_fields": 'if len(request) > 9:\n    answer = {"status": "error", "error": "what is all this?"}',
    "protocol.missing_fields": 'request["payload"]["n"] if "n" in request["payload"] else None',
    "protocol.unicode": 'str(payload)[:500].encode("ascii")',
    "robust.large_input": 'if len(str(request)) > 100_000:\n    raise MemoryError("too much")',
    "robust.other_protocol": "pass",
    "exemplary.declared_events": 'answer["events"] = [{"type": "surprise"}]',
    "exemplary.idempotent": 'answer["events"] = [{"type": "looked", "dedupe_key": str(time.time_ns())}]',
}
"""Rule → how a plugin that is otherwise without fault breaks it."""


@pytest.mark.parametrize("rule", VICES)
def test_a_plugin_with_one_vice_breaks_one_rule(tmp_path: Path, rule: str) -> None:
    """The report names it, says where it was seen and what to do about it."""
    script = PYTHON % VICES[rule]
    if rule == "robust.other_protocol":
        script = script.replace('if request["protocol"] != 2:', "if False:")
    plugin = write_plugin(tmp_path / "vicious", script)
    (plugin / "README.md").write_text("poll, health, api_key")
    write_fixture(plugin, {"request": {"command": "poll", "payload": {}}})

    report = cli("plugin", "check", plugin, "--level", "exemplary", "--json").json

    found = [name for name in broken(report, up_to="exemplary") if name != "exemplary.health"]
    assert found == [rule]
    (told,) = [one for one in report["rules"] if one["rule"] == rule]
    assert told["reason"].startswith("poll: ") or rule == "robust.files"
    assert told["todo"] == RULES[rule].todo


STUBBORN = """#!/bin/sh
trap '' TERM
case $(cat) in
    *'"protocol":99'*) exit 78 ;;
    *a_value_more* | *a_field_of_tomorrow* | *canary*) ;;
    *) sleep 4 ;;
esac
echo '{"status": "ok", "result": "looked"}'
"""
"""Takes its time over plain requests, whoever asks it to end."""


def test_a_plugin_that_would_answer_in_time_must_still_end_when_it_is_told(tmp_path: Path) -> None:
    """A service that stops does not wait for it."""
    plugin = write_plugin(tmp_path / "stubborn", STUBBORN)
    write_fixture(plugin, {"request": {"command": "poll", "payload": {}}})

    assert broken(cli("plugin", "check", plugin, "--deadline", "60s", "--json").json) == ["robust.sigterm"]


def test_a_plugin_without_fault_reaches_the_highest_level_it_can(tmp_path: Path) -> None:
    """Everything but `health` is there: robust holds, exemplary does not."""
    plugin = write_plugin(tmp_path / "good", PYTHON % 'answer["events"] = [{"type": "looked", "payload": {"n": 1}}]')
    (plugin / "README.md").write_text("poll and api_key")
    write_fixture(plugin, {"request": {"command": "poll"}, "expect": {"response": {"result": "looked"}}})

    report = cli("plugin", "check", plugin, "--json").json
    demanding = cli("plugin", "check", plugin, "--level", "exemplary")

    assert (report["level"], report["demanded"], report["holds"]) == ("robust", "robust", True)
    assert broken(report, up_to="exemplary") == ["exemplary.health"]
    assert (demanding.exit_code, "fail  exemplary.health" in demanding.stdout) == (1, True)
    assert "good: level robust; exemplary does not hold" in demanding.stdout
    assert {rule["rule"] for rule in report["rules"]} == set(RULES)


def test_a_writing_command_is_run_only_where_a_fixture_or_the_author_says_so(tmp_path: Path) -> None:
    """Nobody wants a check to send mail."""
    mark = tmp_path / "written"
    script = PYTHON % f'open({str(mark)!r}, "a").write("x")'
    plugin = write_plugin(tmp_path / "writer", script, manifest=MANIFEST_OF_A_WRITER)

    careful = cli("plugin", "check", plugin, "--json")
    assert not mark.exists()
    assert broken(careful.json) == ["protocol.runs"]
    assert careful.json["level"] == "manifest"

    allowed = cli("plugin", "check", plugin, "--run-writes", "--json")
    assert mark.exists()
    assert broken(allowed.json) == []


def test_the_first_level_runs_nothing(tmp_path: Path) -> None:
    """And claims no more than was looked at."""
    mark = tmp_path / "ran"
    plugin = write_plugin(tmp_path / "quiet", PYTHON % f'open({str(mark)!r}, "w").close()')

    done = cli("plugin", "check", plugin, "--level", "manifest", "--json")

    assert (done.exit_code, done.json["level"], mark.exists()) == (0, "manifest", False)


@pytest.mark.parametrize(("declared", "rules"), [("<configured event>", []), ("seen", ["exemplary.declared_events"])])
def test_an_event_that_the_configuration_names_is_declared_as_such(
    tmp_path: Path, declared: str, rules: list[str]
) -> None:
    """`<configured key>` stands for any event."""
    plugin = write_plugin(tmp_path / "named", PYTHON % 'answer["events"] = [{"type": "mine", "payload": {"n": 1}}]')
    _edit(plugin, "event: looked", f"event: {declared}")

    report = cli("plugin", "check", plugin, "--json").json

    others = ("exemplary.health", "exemplary.readme", "exemplary.fixtures")
    assert [rule for rule in broken(report, up_to="exemplary") if rule not in others] == rules


MANIFEST_OF_A_WRITER = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 0.1.0
protocol: 2
entrypoint: run
commands: [{{name: send, type: write}}]
"""


def test_required_configuration_must_be_missed_for_good(tmp_path: Path) -> None:
    """A plugin that would be tried again and again without it breaks a rule; 78 keeps it."""
    needs = "config_keys: {required: [path]}"
    loose = MANIFEST_OF_A_WRITER.replace("type: write", "type: read") + needs.replace("{", "{{").replace("}", "}}")
    for name, script, rules in (
        ("sorry", 'if not config.get("path"): sys.exit(78)', []),
        ("again", 'config["path"]', ["robust.configuration"]),
    ):
        plugin = write_plugin(tmp_path / name, PYTHON % script, manifest=loose)
        write_fixture(plugin, {"request": {"command": "send", "config": {"path": "/"}}})
        assert broken(cli("plugin", "check", plugin, "--json").json) == rules


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda folder: (folder / "run").chmod(0o644), "manifest.accepted"),
        (lambda folder: folder.chmod(0o777), "manifest.accepted"),
        (lambda folder: (folder / "manifest.yaml").write_text("name: [}"), "manifest.accepted"),
        (lambda folder: _edit(folder, "version: 0.1.0", "versoin: 0.1.0"), "manifest.known_keys"),
        (lambda folder: _edit(folder, "version: 0.1.0\n", ""), "manifest.version"),
        (lambda folder: _edit(folder, "type: read, ", ""), "manifest.types"),
    ],
)
def test_a_manifest_that_is_wrong_or_incomplete_stops_at_the_first_level(
    tmp_path: Path, change: Any, rule: str
) -> None:
    """What cannot be loaded is not run."""
    plugin = write_plugin(tmp_path / "odd", PYTHON % "")
    change(plugin)

    done = cli("plugin", "check", plugin, "--json")

    assert done.exit_code == 1
    assert rule in broken(done.json, up_to="manifest")
    assert done.json["level"] is None


def _edit(folder: Path, old: str, new: str) -> None:
    manifest = folder / "manifest.yaml"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))


@pytest.mark.parametrize("victim", ["manifest", "entrypoint"])
def test_a_plugin_that_changes_itself_is_found_out(tmp_path: Path, victim: str) -> None:
    """Its seal would break at every run."""
    plugin = tmp_path / "saw"
    shutil.copytree(ZOO / "z65_saws_off_its_branch", plugin)
    config = json.dumps({"victim": victim, "expendable": True})

    report = cli("plugin", "check", plugin, "--run-writes", "--plugin-config", config, "--json").json

    (told,) = [one for one in report["rules"] if one["rule"] == "robust.files"]
    assert (told["result"], "changed in its own folder: " in told["reason"]) == ("fail", True)


def test_the_plugin_in_the_documentation_is_robust(tmp_path: Path) -> None:
    """Nobody learns bad habits from it."""
    text = (ZOO.parents[1] / "docs" / "plugins.md").read_text()
    manifest, script = (re.findall(rf"```{lang}\n(.*?)```", text, re.DOTALL)[0] for lang in ("yaml", "python"))
    plugin = write_plugin(tmp_path / "disk", "")
    (plugin / "manifest.yaml").write_text(manifest)
    (plugin / "run.py").write_text(script)
    (plugin / "run.py").chmod(0o755)

    done = cli("plugin", "check", plugin, "--plugin-config", '{"path": "/"}', "--json")

    assert (broken(done.json), done.json["level"]) == ([], "robust")


def test_the_documentation_explains_every_rule() -> None:
    """In the words of the report."""
    text = (ZOO.parents[1] / "docs" / "plugins.md").read_text()

    assert [name for name, rule in RULES.items() if f"| `{name}` | {rule.asks} |" not in text] == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """One JSON object, with a code."""
    done = cli("plugin", "check", tmp_path / "nothing", "--json")

    assert (done.exit_code, done.json["code"]) == (1, "not_found")
