"""Pipelines in a configuration: errors have file and line, and the doctor checks them against the plugins."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import attrs
import pytest

import ductile
from ductile.config.checks.examine import Examination
from ductile.config.load.load import load
from ductile.config.load.redaction import redact_settings
from ductile.config.snapshot import build_snapshot
from ductile.core.formats import strict_yaml
from ductile.core.formats.yaml_fields import YAML_NAME
from ductile.pipeline.language.dsl import Mode, Pipeline, PublishStep, RelayStep, ReplyStep, Signal, Step
from ductile.pipeline.language.operators import OPERATORS
from tests.config.conftest import ConfigDir

MARKED = "# here"

PROBLEMS: dict[str, tuple[str, str]] = {
    # keys and values
    "an unknown key of a pipeline": (
        """
        - name: a
          one: e  # here
          steps: [{uses: x}]
        """,
        "pipelines[0].one: unknown key (did you mean 'on'?)",
    ),
    "an unknown key of a step": (
        """
        - name: a
          on: e
          steps:
            - uses: x
            - uses: y
              wiht: {a: 1}  # here
        """,
        "pipelines[0].steps[1].wiht: unknown key (did you mean 'with'?)",
    ),
    "an unknown key deep inside": (
        """
        - name: a
          on: e
          steps:
            - split:
                - uses: x
                - steps:
                    - uses: y
                      on_error:
                        - user: z  # here
        """,
        "pipelines[0].steps[0].split[1].steps[0].on_error[0].user: unknown key (did you mean 'uses'?)",
    ),
    "an unknown key of a relay": (
        """
        - name: a
          on: e
          steps:
            - relay:
                to: lab
                event: x
                type: y  # here
        """,
        "pipelines[0].steps[0].relay.type: unknown key; known here: baggage, dedupe_key, event, to, with",
    ),
    "a pipeline without steps": (
        """
        - name: a  # here
          on: e
        """,
        "pipelines[0].steps: is missing: steps, in order",
    ),
    "an empty list of steps": (
        """
        - name: a
          on: e
          steps: []  # here
        """,
        "pipelines[0].steps: an empty list is not allowed here: it must be a list of at least one step",
    ),
    "an empty split": (
        """
        - name: a
          on: e
          steps:
            - split: []  # here
        """,
        "pipelines[0].steps[0].split: an empty list is not allowed here",
    ),
    "steps that are not a list": (
        """
        - name: a
          on: e
          steps:  # here
            uses: x
        """,
        "pipelines[0].steps: expected a list, got a mapping",
    ),
    "a name with a slash": (
        """
        - name: a/b  # here
          on: e
          steps: [{uses: x}]
        """,
        "pipelines[0].name: 'a/b' is not allowed here: it must be one line of text without '/'",
    ),
    "an id with a slash": (
        """
        - name: a
          on: e
          steps:
            - id: a/b  # here
              uses: x
        """,
        "pipelines[0].steps[0].id: 'a/b' is not allowed here",
    ),
    "an unknown signal": (
        """
        - name: a
          on-hook: job.finished  # here
          steps: [{uses: x}]
        """,
        "pipelines[0].on-hook: 'job.finished' is not one of job.completed, job.failed, job.timed_out, job.dead",
    ),
    "an unknown mode": (
        """
        - name: a
          on: e
          execution_mode: synchron  # here
          steps: [{uses: x}]
        """,
        "pipelines[0].execution_mode: 'synchron' is not one of async, synchronous (did you mean 'synchronous'?)",
    ),
    "a negative depth": (
        """
        - name: a
          on: e
          max_depth: -1  # here
          steps: [{uses: x}]
        """,
        "pipelines[0].max_depth: '-1' is not allowed here: it must be 0 or more",
    ),
    "a timeout without a unit": (
        """
        - name: a
          on: e
          timeout: 30  # here
          steps: [{uses: x}]
        """,
        "pipelines[0].timeout: '30' has no unit",
    ),
    "a condition that is not a mapping": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              if: payload.ok  # here
        """,
        "pipelines[0].steps[0].if: expected a mapping such as {path: payload.status, op: eq, value: ok}, got",
    ),
    "an event type that peers would reject": (
        """
        - name: a
          on: e
          steps:
            - relay:
                to: lab
                event: Backup Ready  # here
        """,
        "pipelines[0].steps[0].relay.event: 'Backup Ready' is not allowed here: it must be lower-case words",
    ),
    # semantics
    "a step with two types": (
        """
        - name: a
          on: e
          steps:
            - uses: x
            - uses: y  # here
              call: b
        """,
        "pipelines[0].steps[1]: needs exactly one of uses, call, relay, publish, steps, split; it has uses and call",
    ),
    "an invalid operator": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              if:
                all:
                  - {path: payload.ok, op: exists}
                  - path: payload.n
                    op: gte than  # here
                    value: 3
        """,
        "pipelines[0].steps[0].if.all[1].op: ",
    ),
    "an unclosed template": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              with:
                fine: "{payload.a}"
                bad: "{payload.b"  # here
        """,
        "pipelines[0].steps[0].with.bad: ",
    ),
    "a claim of a reserved name": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              baggage:
                web.url: payload.url
                ductile.route_depth: payload.depth  # here
        """,
        "pipelines[0].steps[0].baggage.ductile.route_depth: 'ductile.route_depth' cannot be claimed",
    ),
    "an item outside of foreach": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              foreach: payload.list
            - uses: y
              with:
                one: "{item}"  # here
        """,
        "pipelines[0].steps[1].with.one: 'item' is not available here: `item` exists only inside a step with `foreach`",
    ),
    "a call of an unknown pipeline": (
        """
        - name: archive
          on: e
          steps:
            - uses: x
            - call: arhive  # here
        """,
        "pipelines[0].steps[1].call: pipeline 'arhive' does not exist (did you mean 'archive'?)",
    ),
    "a call cycle": (
        """
        - name: a
          on: e
          steps:
            - call: b  # here
        - name: b
          on: e
          steps:
            - split:
                - call: a
        """,
        "pipelines[0].steps[0].call: pipelines call each other in a cycle: a → b → a",
    ),
    "an unknown instance": (
        """
        - name: a
          on: e
          steps:
            - relay:
                to: lap  # here
                event: backup.ready
        """,
        "pipelines[0].steps[0].relay.to: instance 'lap' does not exist (did you mean 'lab'?)",
    ),
    "an event that the instance does not allow": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              on_error:
                - relay:
                    to: lab
                    event: backup.gone  # here
        """,
        "pipelines[0].steps[0].on_error[0].relay.event: instance lab does not allow it; allowed: backup.ready",
    ),
    "a step beyond max_depth": (
        """
        - name: a
          on: e
          max_depth: 1  # here
          steps: [{uses: x}, {uses: y}]
        """,
        "pipelines[0].max_depth: 1 is too small; step 'step_2' is never reached: it is job 2 at the earliest",
    ),
}

RELAY = "instances: [{name: lab, base_url: 'https://lab', ingress_path: /i, secret_ref: t, allow: [backup.ready]}]\n"
TOKENS = "tokens: [{name: t, key: 0123456789012345678901234}]\n"
ROOTS = "plugin_roots: [plugins]\n"


def as_file(text: str) -> str:
    """Return the content of a file with these pipelines."""
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "pipelines:\n" + "\n".join(f"  {line[margin:]}" for line in lines) + "\n"


@pytest.fixture
def base_config(config_dir: ConfigDir) -> ConfigDir:
    """A configuration with a plugin, a relay instance and a directory of pipelines."""
    config_dir.plugin("echo")
    config_dir.write("tokens.yaml", TOKENS)
    config_dir.write("config.yaml", f"include: [tokens.yaml, pipelines]\n{ROOTS}{RELAY}")
    config_dir.write("pipelines/first.yaml", "pipelines: []\n")
    config_dir.seal()
    return config_dir


def test_an_error_is_reported_with_its_file_line_and_path(base_config: ConfigDir) -> None:
    failures = []
    for name, (text, expected) in PROBLEMS.items():
        content = as_file(text)
        base_config.write("pipelines/second.yaml", content)
        line = next(number for number, each in enumerate(content.splitlines(), 1) if MARKED in each)
        errors = base_config.errors().splitlines()
        if not any(error.startswith(f"pipelines/second.yaml:{line}: {expected}") for error in errors):
            failures.append((name, errors))
    assert failures == []


def test_pipelines_of_all_files_are_merged_in_order(base_config: ConfigDir) -> None:
    """They may call each other."""
    base_config.write("pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{call: b}]}]")
    base_config.write("pipelines/second.yaml", "pipelines: [{name: b, on: e, steps: [{uses: echo}]}]")
    config = base_config.load()
    assert [pipeline.name for pipeline in config.settings.pipelines] == ["a", "b"]
    assert [plan.name for plan in config.plans.for_event("e")] == ["a", "b"]
    assert list(config.plans.require("a").nodes) == ["step_1/step_1"]


def test_a_snapshot_contains_the_compiled_pipelines(base_config: ConfigDir) -> None:
    base_config.write("pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo}]}]")
    assert list(build_snapshot(base_config.examine(), {}).plans.by_name) == ["a"]


def test_a_duplicate_name_is_reported_at_both_positions(base_config: ConfigDir) -> None:
    base_config.write("pipelines/first.yaml", "pipelines:\n- {on: e, steps: [{uses: echo}],\n   name: a}")
    base_config.write("pipelines/second.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo}]}]")
    assert base_config.errors().splitlines() == [
        "pipelines/first.yaml:3: pipelines[0].name: 'a' is also the name of pipelines[1]; names must be unique",
        "pipelines/second.yaml:1: pipelines[1].name: 'a' is also the name of pipelines[0]; names must be unique",
    ]


def test_pipeline_errors_are_reported_together_with_other_errors(base_config: ConfigDir) -> None:
    base_config.write(
        "pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{call: gone}, {relay: {to: x, event: y}}]}]"
    )
    base_config.write("pipelines/second.yaml", "service: {tick_interval: 1ms}")
    errors = base_config.errors()
    assert "pipelines[0].steps[0].call" in errors
    assert "pipelines[0].steps[1].relay.to" in errors
    assert "service.tick_interval" in errors


def test_a_pipeline_error_does_not_contain_the_value_of_a_variable(base_config: ConfigDir) -> None:
    base_config.write(
        "pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo, with: {k: 'x${SECRET}'}}]}]"
    )
    errors = base_config.errors(env={"SECRET": "{hunter-2-hunter-2"})
    assert "pipelines[0].steps[0].with.k" in errors
    assert "hunter" not in errors


def test_a_webhook_with_an_unknown_pipeline_is_an_error_with_a_suggestion(base_config: ConfigDir) -> None:
    base_config.write("pipelines/first.yaml", "pipelines: [{name: deploy, on: e, steps: [{uses: echo}]}]")
    base_config.write(
        "pipelines/second.yaml",
        "webhooks: {endpoints: [{path: /a, pipeline: depoly, secret_ref: t, scheme: github}]}",
    )
    assert (
        "webhooks.endpoints[0].pipeline: pipeline 'depoly' does not exist (did you mean 'deploy'?)"
        in base_config.errors()
    )


def test_the_depth_of_calls_is_limited_by_hops(base_config: ConfigDir) -> None:
    base_config.write(
        "pipelines/first.yaml",
        "service: {limits: {hops: 1}}\npipelines: [{name: a, on: e, steps: [{call: b}]},"
        " {name: b, on: e, steps: [{call: c}]}, {name: c, on: e, steps: [{uses: echo}]}]",
    )
    assert "pipelines[0].steps: nests calls 2 levels deep; service.limits.hops allows 1" in base_config.errors()


def test_pipelines_are_shown_without_unset_keys(base_config: ConfigDir) -> None:
    text = "{name: a, on: e, steps: [{uses: echo, if: {path: payload.n, op: gt, value: 1}}]}"
    base_config.write("pipelines/first.yaml", f"pipelines: [{text}]")
    config = base_config.load()
    data = strict_yaml.load(text.encode(), source="x").data()
    assert redact_settings(config.settings, config.mask)["pipelines"] == [data]


# ── the doctor ──────────────────────────────────────────────────────────────────────────────────────────────────────


def examined(config_dir: ConfigDir, pipelines: str, more: str = "") -> Examination:
    config_dir.write("pipelines/first.yaml", f"pipelines:\n{pipelines}\n{more}")
    return config_dir.examine()


def errors(found: Examination) -> list[str]:
    return [f"{each.path}: {each.message}" for each in found.report.errors]


def warnings(found: Examination, *categories: str) -> list[str]:
    wanted = categories or ("pipelines", "hook_cycles", "event_cycles", "contracts")
    return [f"{each.path}: {each.message}" for each in found.report.warnings if each.category in wanted]


def test_steps_need_installed_plugins_and_existing_commands(base_config: ConfigDir) -> None:
    """Each step is reported once, however often it is called."""
    found = examined(
        base_config,
        "- {name: a, on: e, from_plugin: ecko, steps: [{call: b}, {call: b}, {uses: echo}]}\n"
        "- {name: b, on: e, steps: [{uses: eco}, {uses: echo.pol}, {uses: echo.poll},"
        " {relay: {to: lab, event: backup.ready}}]}",
    )
    assert errors(found) == [
        "pipelines[0].from_plugin: plugin ecko is in none of the plugin_roots (did you mean 'echo'?)",
        "pipelines[1].steps[0].uses: plugin eco is in none of the plugin_roots (did you mean 'echo'?)",
        "pipelines[1].steps[1].uses: plugin echo has no command 'pol' (did you mean 'poll'?); it has poll, handle",
    ]
    assert found.report.errors[2].mark is not None
    assert str(found.report.errors[2].mark).endswith("pipelines/first.yaml:3")


def test_a_step_may_use_an_alias(base_config: ConfigDir) -> None:
    """Also an alias with a dot in its name."""
    found = examined(
        base_config,
        "- {name: a, on: e, from_plugin: my.echo, steps: [{uses: my.echo}, {uses: my.echo.poll}]}",
        "plugins: {my.echo: {uses: echo}}",
    )
    assert errors(found) == []
    nodes = found.config.plans.require("a").nodes.values()
    assert [(node.plugin, node.command) for node in nodes] == [("my.echo", "handle"), ("my.echo", "poll")]


def test_a_disabled_plugin_or_instance_is_a_warning(base_config: ConfigDir) -> None:
    found = examined(
        base_config,
        "- {name: a, on: e, from_plugin: echo, steps: [{uses: echo}, {relay: {to: off, event: x}}]}",
        "plugins: {echo: {enabled: false}}\n"
        "instances: [{name: off, enabled: false, base_url: 'https://x', ingress_path: /i, secret_ref: t}]",
    )
    assert errors(found) == []
    assert warnings(found) == [
        "pipelines[0].steps[0].uses: plugin echo is disabled; runs that reach this step fail",
        "pipelines[0].steps[1].relay.to: instance off is disabled; runs that reach this step fail",
        "pipelines[0].from_plugin: plugin echo is disabled, so it cannot start this pipeline",
    ]


def test_a_timeout_above_max_sync_timeout_is_a_warning(base_config: ConfigDir) -> None:
    """Only for synchronous pipelines."""
    found = examined(
        base_config,
        "- {name: a, on: e, execution_mode: synchronous, timeout: 10m, steps: [{uses: echo}]}\n"
        "- {name: b, on: e, execution_mode: synchronous, timeout: 5m, steps: [{uses: echo}]}\n"
        "- {name: c, on: e, timeout: 10m, steps: [{uses: echo}]}",
    )
    assert warnings(found) == [
        "pipelines[0].timeout: 10m is longer than api.max_sync_timeout (5m); requests do not wait longer than that"
    ]


def test_a_plugin_that_no_pipeline_uses_is_a_warning(base_config: ConfigDir) -> None:
    base_config.plugin("idle")
    found = examined(base_config, "- {name: a, on: e, steps: [{uses: echo}]}", "plugins: {echo: {}, idle: {}}")
    assert warnings(found, "unused") == [
        "plugins.idle: cannot be triggered: no schedule, route, pipeline, webhook, consumer or API uses it"
    ]


HOOKS: dict[str, tuple[str, str, list[str]]] = {
    "a hook that a plugin can trigger": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        [],
    ),
    "a hook that no plugin can trigger": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}",
        "",
        ["pipelines[0].on-hook: cannot be triggered: no plugin has notify_on_complete: true"],
    ),
    "a hook that is called": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}\n- {name: a, on: e, steps: [{call: h}]}",
        "",
        [],
    ),
    "a hook whose plugin does not notify": (
        "- {name: h, on-hook: job.failed, from_plugin: echo, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0].on-hook: cannot be triggered: plugin echo does not have notify_on_complete: true"],
    ),
    "hooks of runs and alarms, which every plugin can trigger": (
        "- {name: h, on-hook: run.failed, steps: [{uses: echo}]}\n"
        "- {name: i, on-hook: run.completed, from_plugin: echo, steps: [{uses: echo}]}\n"
        "- {name: j, on-hook: schedule.late, steps: [{uses: echo}]}",
        "",
        [],
    ),
    "a hook of runs, which does not trigger itself": (
        "- {name: h, on-hook: run.failed, steps: [{uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}}",
        [],
    ),
    "a hook that reads the context": (
        "- {name: h, on-hook: job.failed, if: {path: context.x, op: exists}, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0].if: reads context.*, which is always empty here: a hook does not inherit "],
    ),
    "a hook whose first step triggers it again": (
        "- {name: h, on-hook: job.completed, steps: [{uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}}",
        ["pipelines[0]: hooks form a cycle: h → h; service.hook_max_depth stops it after 4; "],
    ),
    "a hook whose second step does not trigger it": (
        "- {name: h, on-hook: job.completed, steps: [{uses: quiet}, {uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}, quiet: {uses: echo}}",
        [],
    ),
    "a hook that from_plugin protects from itself": (
        "- {name: h, on-hook: job.completed, from_plugin: other, steps: [{uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}, other: {uses: echo, notify_on_complete: true}}",
        [],
    ),
    "two hooks that trigger each other": (
        "- {name: h, on-hook: job.completed, from_plugin: a, steps: [{uses: b}]}\n"
        "- {name: i, on-hook: job.failed, from_plugin: b, steps: [{uses: a}]}",
        "plugins: {a: {uses: echo, notify_on_complete: true}, b: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0]: hooks form a cycle: h → i → h; "],
    ),
}


def starts_match(texts: list[str], starts: list[str]) -> bool:
    """True if each text starts with the expected one, and there are no others."""
    return len(texts) == len(starts) and all(text.startswith(start) for text, start in zip(texts, starts, strict=True))


def test_a_hook_that_no_job_triggers_or_that_triggers_itself_is_a_warning(base_config: ConfigDir) -> None:
    """Hooks run after root jobs of plugins with notify_on_complete."""
    failures = []
    for name, (pipelines, more, expected) in HOOKS.items():
        found = examined(base_config, pipelines, more)
        if errors(found) or not starts_match(warnings(found), expected):
            failures.append((name, errors(found), warnings(found)))
    assert failures == []


# ── declared events ──────────────────────────────────────────────────────────────────────────────────────────────


def declare_events(config_dir: ConfigDir, name: str, events: Mapping[str, str]) -> None:
    """Create a plugin whose `handle` command declares these events and fields."""
    folder = config_dir.plugin(name)
    manifest = strict_yaml.load((folder / "manifest.yaml").read_bytes(), source="m").data()
    emit = [
        {"event": event, "values": [f"payload.{value}" for value in values.split()]} for event, values in events.items()
    ]
    manifest["commands"][1]["values"] = {"emit": emit}
    config_dir.write(f"plugins/{name}/manifest.yaml", strict_yaml.dump(manifest))


@pytest.fixture
def declared_events(base_config: ConfigDir) -> ConfigDir:
    """`fetch` and `parse` declare their events; `echo` does not."""
    declare_events(base_config, "fetch", {"fetched": "url body meta.size", "missed": "url reason"})
    declare_events(base_config, "parse", {"parsed": "items title"})
    declare_events(base_config, "free", {"any": "*"})
    return base_config


EVENT_CYCLES: dict[str, tuple[str, list[str]]] = {
    "no cycle": (
        "- {name: a, on: fetched, steps: [{uses: parse}]}\n- {name: b, on: parsed, steps: [{uses: echo}]}",
        [],
    ),
    "a pipeline that emits what starts it": (
        "- {name: a, on: fetched, steps: [{uses: echo}, {uses: fetch}]}",
        ["pipelines[0]: events may form a cycle of pipelines: a → a; service.limits.hops stops it after 20"],
    ),
    "two pipelines": (
        "- {name: a, on: fetched, steps: [{uses: parse}]}\n- {name: b, on: parsed, steps: [{uses: fetch}]}",
        ["pipelines[0]: events may form a cycle of pipelines: a → b → a; service.limits.hops stops it after 20"],
    ),
    "a cycle that from_plugin prevents": (
        "- {name: a, on: fetched, from_plugin: echo, steps: [{uses: echo}, {uses: fetch}]}",
        [],
    ),
}


def test_a_cycle_of_declared_events_is_a_warning(declared_events: ConfigDir) -> None:
    found = {
        name: warnings(examined(declared_events, pipelines), "event_cycles")
        for name, (pipelines, _) in EVENT_CYCLES.items()
    }
    assert found == {name: expected for name, (_, expected) in EVENT_CYCLES.items()}


CONTRACTS: dict[str, tuple[str, list[str]]] = {
    "an emitted field": ("{uses: fetch}, {uses: echo, with: {x: '{payload.url} {payload.reason}'}}", []),
    "a part of an emitted field": ("{uses: fetch}, {uses: echo, with: {x: '{payload.body.title}'}}", []),
    "a parent of an emitted field": ("{uses: fetch}, {uses: echo, with: {x: '{payload.meta}'}}", []),
    "the result, which always exists": ("{uses: fetch}, {uses: echo, with: {x: '{payload.result}'}}", []),
    "the whole payload": ("{uses: fetch}, {uses: echo, with: {x: '{payload}'}}", []),
    "the context": ("{uses: fetch}, {uses: echo, with: {x: '{context.what}'}}", []),
    "with": (
        "{uses: fetch}, {uses: echo, with: {x: 'at {payload.uri}'}}",
        ["pipelines[0].steps[1].with.x: no preceding step emits 'payload.uri' (did you mean 'url'?); available:"],
    ),
    "if": (
        "{uses: fetch}, {uses: echo, if: {path: payload.ok, op: exists}}",
        ["pipelines[0].steps[1].if: no preceding step emits 'payload.ok'; available:"],
    ),
    "baggage": (
        "{uses: fetch}, {uses: echo, baggage: {a.b: payload.hash, from: payload.nested, namespace: n}}",
        [
            "pipelines[0].steps[1].baggage.a.b: no preceding step emits 'payload.hash'",
            "pipelines[0].steps[1].baggage.from: no preceding step emits 'payload.nested'",
        ],
    ),
    "baggage is part of the payload for with": (
        "{uses: echo, baggage: {web.id: payload.id}}, {uses: fetch}, {uses: echo, with: {x: '{payload.web.id}'}}",
        [],
    ),
    "baggage is not part of the payload for if": (
        "{uses: echo, baggage: {web.id: payload.id}}, {uses: fetch},"
        " {uses: echo, if: {path: payload.web.id, op: exists}}",
        ["pipelines[0].steps[2].if: no preceding step emits 'payload.web.id'"],
    ),
    "foreach": (
        "{uses: fetch}, {uses: echo, foreach: payload.rows}",
        ["pipelines[0].steps[1].foreach: no preceding step emits 'payload.rows'"],
    ),
    "relay": (
        "{uses: fetch}, {relay: {to: lab, event: backup.ready, dedupe_key: payload.id, with: {a: payload.a}}}",
        [
            "pipelines[0].steps[1].relay.with.a: no preceding step emits 'payload.a'",
            "pipelines[0].steps[1].relay.dedupe_key: no preceding step emits 'payload.id'",
        ],
    ),
    "the fields of the trigger are unknown": ("{uses: fetch, with: {x: '{payload.what}'}}", []),
    "the fields of an undeclared event are unknown": ("{uses: echo}, {uses: fetch, with: {x: '{payload.what}'}}", []),
    "the fields of a wildcard are unknown": ("{uses: free}, {uses: fetch, with: {x: '{payload.what}'}}", []),
    "the fields of a relay response are unknown": (
        "{relay: {to: lab, event: backup.ready}}, {uses: fetch, with: {x: '{payload.what}'}}",
        [],
    ),
    "a skipped step passes the earlier payload on": (
        "{uses: fetch}, {uses: parse, if: {path: payload.url, op: exists}}, {uses: echo, with: {x: '{payload.url}'}}",
        [],
    ),
    "an unconditional step replaces the payload": (
        "{uses: fetch}, {uses: parse}, {uses: echo, with: {x: '{payload.url}'}}",
        ["pipelines[0].steps[2].with.x: no preceding step emits 'payload.url'"],
    ),
    "a field of one of two branches": (
        "{split: [{uses: fetch}, {uses: parse}]}, {uses: echo, with: {x: '{payload.url} {payload.title}'}}",
        [],
    ),
    "a join has the payload before the split and the results": (
        "{uses: fetch}, {join: true, split: [{uses: parse}]},"
        " {uses: echo, with: {x: '{payload.results} {payload.url}'}}",
        [],
    ),
    "a join does not have the fields of its branches": (
        "{uses: fetch}, {join: true, split: [{uses: parse}]}, {uses: echo, with: {x: '{payload.title}'}}",
        ["pipelines[0].steps[2].with.x: no preceding step emits 'payload.title'"],
    ),
    "an error step has the failure fields": (
        "{uses: echo, on_error: [{uses: fetch, with: {x: '{payload.message} {payload.input.y} {payload.error}'}}]}",
        [],
    ),
    "an error step has no other fields": (
        "{uses: echo, on_error: [{uses: fetch, with: {x: '{payload.url}'}}]}",
        ["pipelines[0].steps[0].on_error[0].with.x: no preceding step emits 'payload.url'"],
    ),
}


def test_a_path_that_no_preceding_step_emits_is_a_warning(declared_events: ConfigDir) -> None:
    """Only if all fields that reach the step are known; then the path is absent in every run."""
    failures = []
    for name, (steps, expected) in CONTRACTS.items():
        found = warnings(examined(declared_events, f"- {{name: a, on: e, steps: [{steps}]}}"), "contracts")
        if not starts_match(found, expected):
            failures.append((name, found))
    assert failures == []


def test_the_fields_of_the_trigger_are_known_with_from_plugin(declared_events: ConfigDir) -> None:
    steps = "steps: [{uses: echo, with: {x: '{payload.reason}'}}]"
    found = examined(
        declared_events,
        f"- {{name: a, on: fetched, from_plugin: fetch, {steps}}}\n"
        f"- {{name: b, on: missed, from_plugin: fetch, {steps}}}\n"
        f"- {{name: c, on: other, from_plugin: fetch, {steps}}}\n- {{name: d, on: fetched, {steps}}}",
    )
    (warning,) = warnings(found, "contracts")
    assert warning.startswith("pipelines[0].steps[0].with.x: no preceding step emits 'payload.reason'")


def test_a_called_pipeline_is_checked_with_the_payload_of_its_caller(declared_events: ConfigDir) -> None:
    found = examined(
        declared_events,
        "- {name: a, on: e, steps: [{uses: fetch}, {call: b}]}\n"
        "- {name: b, on: e, steps: [{uses: echo, with: {x: '{payload.title}'}}]}",
    )
    (warning,) = warnings(found, "contracts")
    assert warning.startswith("pipelines[1].steps[0].with.x: no preceding step emits 'payload.title'")
    assert warning.endswith(" when a calls it")


# ── the documentation ───────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(ductile.__file__).parent.parent / "docs" / "pipelines.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "cases:" not in block]  # fixtures of `pipeline test`


def test_every_example_in_the_documentation_compiles(config_dir: ConfigDir) -> None:
    config_dir.write("tokens.yaml", TOKENS)
    failures = []
    for text in EXAMPLES:
        config_dir.write("config.yaml", f"include: [tokens.yaml]\n{RELAY}{text}")
        if not load(config_dir.root, environ={}, verify=False).plans.by_name:
            failures.append(text)
    assert EXAMPLES
    assert failures == []


def test_every_keyword_operator_and_signal_is_documented() -> None:
    keys = {
        key.metadata.get(YAML_NAME, key.name)
        for shape in (Pipeline, Step, RelayStep, PublishStep, ReplyStep)
        for key in attrs.fields(shape)
    }
    words = {*keys, *OPERATORS, *get_args(Signal), *get_args(Mode), "all", "any", "not", "path", "op", "value", "item"}
    assert sorted(word for word in words if f"`{word}`" not in PAGE and f"`{word}: " not in PAGE) == []
