"""Every typical configuration mistake is reported at its line, with a suggestion that fixes it."""

from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.core.errors import Complaint, ConfigInvalid
from tests.config.conftest import ConfigDir
from tests.config.mistakes import BASE, MISTAKES, TOKENS, Mistake

POLL = "  - name: poll\n    type: write\n"


def report(config_dir: ConfigDir, mistake: Mistake) -> tuple[Complaint, ...]:
    """Return the errors, or the warnings, of the configuration with this mistake."""
    config_dir.write("config.yaml", BASE + mistake.text)
    try:
        found = examine(load(config_dir.root, environ={}, verify=False)).report
    except ConfigInvalid as invalid:
        return () if mistake.is_warning else invalid.complaints
    return found.warnings if mistake.is_warning else found.errors


def test_each_mistake_is_reported_at_its_line_with_a_suggestion(config_dir: ConfigDir) -> None:
    manifest = config_dir.plugin("echo") / "manifest.yaml"
    declared = manifest.read_text().replace(POLL, f"{POLL}    values: {{emit: [{{event: echo.poll}}]}}\n")
    config_dir.write("plugins/echo/manifest.yaml", declared.replace("required: []", "optional: [message, mode]"))
    config_dir.plugin("notify", commands="handle", required="channel")
    config_dir.write("tokens.yaml", TOKENS)
    failures = []
    for mistake in MISTAKES:
        found = report(config_dir, mistake)
        place = f"{config_dir.root}:{mistake.line}"
        if not any(str(complaint.mark) == place and mistake.suggestion in str(complaint) for complaint in found):
            failures.append(f"{mistake.name}, line {mistake.line}: {[*map(str, found)]}")
    assert failures == []
    assert len(MISTAKES) >= 24


def test_a_variable_with_a_typo_is_reported_with_the_name_that_is_set(config_dir: ConfigDir) -> None:
    config_dir.plugin("echo")
    text = "plugin_roots: [plugins]\nplugins: {echo: {config: {url: '${SERVICE_ULR}'}}}\n"
    errors = [str(complaint) for complaint in config_dir.complaints(text, env={"SERVICE_URL": "x", "HOME": "/"})]
    assert [error for error in errors if "did you mean 'SERVICE_URL'?" in error] == errors
    assert errors


def test_own_keys_of_a_plugin_that_are_no_typo_are_not_reported(config_dir: ConfigDir) -> None:
    """A plugin may accept keys that its manifest does not declare."""
    manifest = config_dir.plugin("echo") / "manifest.yaml"
    config_dir.write("plugins/echo/manifest.yaml", manifest.read_text().replace("required: []", "optional: [message]"))
    config_dir.plugin("free")
    entries = "plugins: {echo: {config: {extra: 1, message: hi}}, free: {config: {schedules: [], mesage: hi}}}\n"
    warnings = config_dir.examine(f"plugin_roots: [plugins]\n{entries}").report.warnings
    assert [warning for warning in warnings if ".config" in warning.path] == []


def test_a_manifest_without_an_entrypoint_is_reported_at_its_file(config_dir: ConfigDir) -> None:
    manifest = config_dir.plugin("echo") / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("entrypoint: run.sh\n", ""))
    found = config_dir.examine("plugin_roots: [plugins]\nplugins:\n  echo: {}\n").report.errors
    assert [(str(complaint.mark), complaint.path) for complaint in found] == [(f"{config_dir.root}:3", "plugins.echo")]
    assert str(manifest) in found[0].message
    assert "entrypoint" in found[0].message


def test_events_that_may_come_from_a_plugin_without_declarations_are_not_reported(config_dir: ConfigDir) -> None:
    """Only a likely typo is."""
    config_dir.plugin("echo")
    config_dir.plugin("silent")
    config_dir.write("tokens.yaml", TOKENS)
    text = BASE + "plugins: {echo: {}, silent: {}}\npipelines: [{name: a, on: anything.else, steps: [{uses: echo}]}]\n"
    config_dir.write("config.yaml", text)
    warnings = examine(load(config_dir.root, environ={}, verify=False)).report.warnings
    assert [warning for warning in warnings if warning.path.endswith(".on")] == []


def test_events_of_webhooks_consumers_peers_and_alarms_are_declared(config_dir: ConfigDir) -> None:
    """Also an event type that contains a header, and one in the configuration of a plugin. Others may come by API."""
    manifest = config_dir.plugin("echo") / "manifest.yaml"
    declared = manifest.read_text().replace(POLL, f"{POLL}    values: {{emit: [{{event: echo.poll}}]}}\n")
    config_dir.write("plugins/echo/manifest.yaml", declared)
    config_dir.write("tokens.yaml", TOKENS)
    endpoint = "{path: /h, scheme: github, secret_ref: hook, event: 'github.{header.X-GitHub-Event}'}"
    config_dir.write(
        "config.yaml",
        f"{BASE}plugins: {{echo: {{config: {{event_type: done}}}}}}\nwebhooks: {{endpoints: [{endpoint}]}}\n"
        "exchange: {consumers: [{topic: a, event: echo.wanted}, {topic: b, pipeline: p8}]}\n"
        "remote_ingress: {peers: [{name: lab, secret_ref: hook, accept: [lab.done]}]}\npipelines:\n"
        + "".join(
            f"  - {{name: p{number}, on: {event}, steps: [{{uses: echo}}]}}\n"
            for number, event in enumerate(
                (
                    "github.push",
                    "lab.done",
                    "schedule.late",
                    "echo.poll",
                    "done",
                    "sent.by.api",
                    "echo.finished",
                    "echo.wanted",
                    "echo.other",
                )
            )
        ),
    )
    warnings = examine(load(config_dir.root, environ={}, verify=False)).report.warnings
    assert [warning.path for warning in warnings if warning.path.endswith(".on")] == ["pipelines[6].on"]


def test_literal_braces_that_are_no_reference_are_not_reported(config_dir: ConfigDir) -> None:
    config_dir.plugin("echo")
    config_dir.write("tokens.yaml", TOKENS)
    values = ("'{{\"a\": 1}}'", "{text: null}", "{payload.text: x}", "'{payload.text}'", "{a: {}}")
    steps = "".join(f"      - {{uses: echo, with: {{message: {value}}}}}\n" for value in values)
    config_dir.write("config.yaml", f"{BASE}pipelines:\n  - name: a\n    on: x.y\n    steps:\n{steps}")
    warnings = examine(load(config_dir.root, environ={}, verify=False)).report.warnings
    assert [warning for warning in warnings if ".with" in warning.path] == []
