"""`plugin check` finds each misbehaviour and names the failed rule."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ductile.devkit.checks.rules import LEVELS, RULES
from tests.devkit.helpers import PYTHON_PLUGIN, cli, write_fixture, write_plugin
from tests.zoo.catalogue import ZOO


def failed_rules(report: dict[str, Any], *, up_to: str = "robust") -> list[str]:
    """Return the failed rules up to a level."""
    levels = LEVELS[: LEVELS.index(up_to) + 1]
    return [rule["rule"] for rule in report["rules"] if rule["result"] == "fail" and rule["level"] in levels]


MISBEHAVING = [
    ("z01_no_output", {}, ["protocol.framing"]),
    ("z03_banner_first", {}, ["protocol.framing"]),
    ("z04_two_responses", {}, ["protocol.framing"]),
    ("z08_other_encoding", {"variant": "utf16"}, ["protocol.framing"]),
    ("z10_lone_surrogate", {"variant": "event"}, ["protocol.unicode", "robust.other_protocol"]),
    ("z17_wrong_case", {"variant": "status"}, ["protocol.fields"]),
    ("z19_bad_status", {"variant": "upper"}, ["protocol.fields"]),
    ("z20_no_result", {"variant": "blank"}, ["protocol.fields"]),
    ("z25_bad_events", {"variant": "no_type"}, ["protocol.fields"]),
    ("z26_many_events", {"events": 1_001}, ["protocol.limits"]),
    ("z35_one_byte_over", {"bytes": 10 << 20}, ["protocol.limits"]),
    ("z37_large_stderr", {}, ["robust.stderr", "robust.other_protocol"]),
    ("z40_wrong_stream", {}, ["protocol.framing"]),
    ("z45_responds_and_hangs", {}, ["protocol.deadline"]),
    ("z46_ok_but_exit_1", {}, ["protocol.exit_code", "robust.other_protocol"]),
    ("z48_ok_but_exit_78", {}, ["protocol.exit_code"]),
    ("z49_kills_itself", {"signal": "SIGSEGV"}, ["protocol.framing", "protocol.exit_code"]),
    ("z51_ignores_sigterm", {}, ["protocol.deadline", "robust.sigterm"]),
    ("z54_child_keeps_pipes", {}, ["robust.leftovers", "robust.other_protocol"]),
    ("z56_detached_daemon", {}, ["robust.leftovers", "robust.other_protocol"]),
]


@pytest.mark.parametrize(("folder", "config", "rules"), MISBEHAVING, ids=[case[0] for case in MISBEHAVING])
def test_every_misbehaving_plugin_fails_exactly_its_rules(
    folder: str, config: dict[str, Any], rules: list[str]
) -> None:
    """And no others."""
    deadline = "2s" if "protocol.deadline" in rules else "60s"
    options = ("--plugin-config", json.dumps(config), "--run-writes", "--deadline", deadline, "--json")
    done = cli("plugin", "check", ZOO / folder, *options)

    assert failed_rules(done.json) == rules
    assert done.exit_code == 1


DEFECTS = {
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
"""Rule → the code that makes an otherwise correct plugin fail it."""


@pytest.mark.parametrize("rule", DEFECTS)
def test_a_plugin_with_one_defect_fails_one_rule(tmp_path: Path, rule: str) -> None:
    """The report has the rule, the request and the advice."""
    script = PYTHON_PLUGIN % DEFECTS[rule]
    if rule == "robust.other_protocol":
        script = script.replace('if request["protocol"] != 2:', "if False:")
    plugin = write_plugin(tmp_path / "defective", script)
    (plugin / "README.md").write_text("poll, health, api_key")
    write_fixture(plugin, {"request": {"command": "poll", "payload": {}}})

    report = cli("plugin", "check", plugin, "--level", "exemplary", "--json").json

    found = [name for name in failed_rules(report, up_to="exemplary") if name != "exemplary.health"]
    assert found == [rule]
    (finding,) = [result for result in report["rules"] if result["rule"] == rule]
    assert finding["reason"].startswith("poll: ") or rule == "robust.files"
    assert finding["todo"] == RULES[rule].todo


STUBBORN = """#!/bin/sh
trap '' TERM
case $(cat) in
    *'"protocol":99'*) exit 78 ;;
    *an_additional_value* | *an_unknown_field* | *canary*) ;;
    *) sleep 4 ;;
esac
echo '{"status": "ok", "result": "looked"}'
"""
"""Takes four seconds for unchanged requests and ignores SIGTERM."""


def test_a_plugin_must_exit_on_sigterm_even_if_it_would_finish_in_time(tmp_path: Path) -> None:
    """A service that stops does not wait for it."""
    plugin = write_plugin(tmp_path / "stubborn", STUBBORN)
    write_fixture(plugin, {"request": {"command": "poll", "payload": {}}})

    assert failed_rules(cli("plugin", "check", plugin, "--deadline", "60s", "--json").json) == ["robust.sigterm"]


def test_a_correct_plugin_reaches_its_highest_level(tmp_path: Path) -> None:
    """Without `health` that is robust, not exemplary."""
    plugin = write_plugin(
        tmp_path / "good", PYTHON_PLUGIN % 'answer["events"] = [{"type": "looked", "payload": {"n": 1}}]'
    )
    (plugin / "README.md").write_text("poll and api_key")
    write_fixture(plugin, {"request": {"command": "poll"}, "expect": {"response": {"result": "looked"}}})

    report = cli("plugin", "check", plugin, "--json").json
    demanding = cli("plugin", "check", plugin, "--level", "exemplary")

    assert (report["level"], report["demanded"], report["holds"]) == ("robust", "robust", True)
    assert failed_rules(report, up_to="exemplary") == ["exemplary.health"]
    assert (demanding.exit_code, "fail  exemplary.health" in demanding.stdout) == (1, True)
    assert "good: level robust; exemplary failed" in demanding.stdout
    assert {rule["rule"] for rule in report["rules"]} == set(RULES)


def test_a_writing_command_runs_only_with_a_fixture_or_run_writes(tmp_path: Path) -> None:
    """A check must not have side effects by default."""
    mark = tmp_path / "written"
    script = PYTHON_PLUGIN % f'open({str(mark)!r}, "a").write("x")'
    plugin = write_plugin(tmp_path / "writer", script, manifest=WRITER_MANIFEST)

    careful = cli("plugin", "check", plugin, "--json")
    assert not mark.exists()
    assert failed_rules(careful.json) == ["protocol.runs"]
    assert careful.json["level"] == "manifest"

    allowed = cli("plugin", "check", plugin, "--run-writes", "--json")
    assert mark.exists()
    assert failed_rules(allowed.json) == []


def test_the_manifest_level_runs_nothing(tmp_path: Path) -> None:
    """The report does not claim a higher level."""
    mark = tmp_path / "ran"
    plugin = write_plugin(tmp_path / "quiet", PYTHON_PLUGIN % f'open({str(mark)!r}, "w").close()')

    done = cli("plugin", "check", plugin, "--level", "manifest", "--json")

    assert (done.exit_code, done.json["level"], mark.exists()) == (0, "manifest", False)


@pytest.mark.parametrize(("declared", "rules"), [("<configured event>", []), ("seen", ["exemplary.declared_events"])])
def test_a_configurable_event_type_is_declared_with_a_placeholder(
    tmp_path: Path, declared: str, rules: list[str]
) -> None:
    """`<configured key>` matches any event."""
    plugin = write_plugin(
        tmp_path / "named", PYTHON_PLUGIN % 'answer["events"] = [{"type": "mine", "payload": {"n": 1}}]'
    )
    _edit(plugin, "event: looked", f"event: {declared}")

    report = cli("plugin", "check", plugin, "--json").json

    others = ("exemplary.health", "exemplary.readme", "exemplary.fixtures")
    assert [rule for rule in failed_rules(report, up_to="exemplary") if rule not in others] == rules


WRITER_MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 0.1.0
protocol: 2
entrypoint: run
commands: [{{name: send, type: write}}]
"""


def test_missing_required_configuration_must_fail_without_retry(tmp_path: Path) -> None:
    """Exit code 78 passes; an ordinary error fails the rule."""
    needs = "config_keys: {required: [path]}"
    loose = WRITER_MANIFEST.replace("type: write", "type: read") + needs.replace("{", "{{").replace("}", "}}")
    for name, script, rules in (
        ("sorry", 'if not config.get("path"): sys.exit(78)', []),
        ("again", 'config["path"]', ["robust.configuration"]),
    ):
        plugin = write_plugin(tmp_path / name, PYTHON_PLUGIN % script, manifest=loose)
        write_fixture(plugin, {"request": {"command": "send", "config": {"path": "/"}}})
        assert failed_rules(cli("plugin", "check", plugin, "--json").json) == rules


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
def test_an_invalid_or_incomplete_manifest_fails_the_manifest_level(tmp_path: Path, change: Any, rule: str) -> None:
    """A plugin that cannot be loaded is not run."""
    plugin = write_plugin(tmp_path / "odd", PYTHON_PLUGIN % "")
    change(plugin)

    done = cli("plugin", "check", plugin, "--json")

    assert done.exit_code == 1
    assert rule in failed_rules(done.json, up_to="manifest")
    assert done.json["level"] is None


def _edit(folder: Path, old: str, new: str) -> None:
    manifest = folder / "manifest.yaml"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))


@pytest.mark.parametrize("target", ["manifest", "entrypoint"])
def test_a_plugin_that_modifies_its_own_files_fails(tmp_path: Path, target: str) -> None:
    """Its seal would break at every run."""
    plugin = tmp_path / "saw"
    shutil.copytree(ZOO / "z65_deletes_its_own_files", plugin)
    config = json.dumps({"target": target, "disposable": True})

    report = cli("plugin", "check", plugin, "--run-writes", "--plugin-config", config, "--json").json

    (finding,) = [result for result in report["rules"] if result["rule"] == "robust.files"]
    assert (finding["result"], "files changed in its own folder: " in finding["reason"]) == ("fail", True)


def test_the_plugin_in_the_documentation_is_robust(tmp_path: Path) -> None:
    """The example in docs/plugins.md passes the check."""
    text = (ZOO.parents[1] / "docs" / "plugins.md").read_text()
    manifest, script = (re.findall(rf"```{lang}\n(.*?)```", text, re.DOTALL)[0] for lang in ("yaml", "python"))
    plugin = write_plugin(tmp_path / "disk", "")
    (plugin / "manifest.yaml").write_text(manifest)
    (plugin / "run.py").write_text(script)
    (plugin / "run.py").chmod(0o755)

    done = cli("plugin", "check", plugin, "--plugin-config", '{"path": "/"}', "--json")

    assert (failed_rules(done.json), done.json["level"]) == ([], "robust")


def test_the_documentation_explains_every_rule() -> None:
    """With the text of the report."""
    text = (ZOO.parents[1] / "docs" / "plugins.md").read_text()

    assert [name for name, rule in RULES.items() if f"| `{name}` | {rule.requirement} |" not in text] == []


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """One JSON object, with a code."""
    done = cli("plugin", "check", tmp_path / "nothing", "--json")

    assert (done.exit_code, done.json["code"]) == (1, "not_found")
