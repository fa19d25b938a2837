"""Pipelines in a configuration: what is wrong is told with file and line, and the doctor knows the plugins."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import attrs
import pytest

import ductile
from ductile.config.checks.doctor import Examination
from ductile.config.load.load import load
from ductile.config.snapshot import take_snapshot
from ductile.config.views.show import redacted
from ductile.core.formats import strict_yaml
from ductile.core.formats.yaml_fields import YAML_NAME
from ductile.pipeline.language.dsl import Mode, Pipeline, RelayStep, Signal, Step
from ductile.pipeline.language.operators import OPERATORS
from tests.config.conftest import Home

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
        "pipelines[0].steps: is missing: what is done, in this order",
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
    "steps that are no list": (
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
    "a condition that is no mapping": (
        """
        - name: a
          on: e
          steps:
            - uses: x
              if: payload.ok  # here
        """,
        "pipelines[0].steps[0].if: expected a mapping of keys to values, got a single value",
    ),
    "an event type that peers would refuse": (
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
    # what a pipeline means
    "a step of two kinds": (
        """
        - name: a
          on: e
          steps:
            - uses: x
            - uses: y  # here
              call: b
        """,
        "pipelines[0].steps[1]: needs exactly one of uses, call, relay, steps, split; it has uses and call",
    ),
    "an operator that is none": (
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
    "a template that is never closed": (
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
    "a claim into the core's own place": (
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
    "an item where there is none": (
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
        "pipelines[0].steps[1].with.one: 'item' cannot be read here: `item` exists only inside a step with `foreach`",
    ),
    "a call of nothing": (
        """
        - name: archive
          on: e
          steps:
            - uses: x
            - call: arhive  # here
        """,
        "pipelines[0].steps[1].call: there is no pipeline 'arhive' (did you mean 'archive'?)",
    ),
    "a circle of calls": (
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
        "pipelines[0].steps[0].call: pipelines call each other in a circle: a → b → a",
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
        "pipelines[0].steps[0].relay.to: there is no instance 'lap' (did you mean 'lab'?)",
    ),
    "an event that the instance does not take": (
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
        "pipelines[0].steps[0].on_error[0].relay.event: instance lab does not allow it; it allows backup.ready",
    ),
    "a step beyond max_depth": (
        """
        - name: a
          on: e
          max_depth: 1  # here
          steps: [{uses: x}, {uses: y}]
        """,
        "pipelines[0].max_depth: 1 is too little; step 'step_2' can never be reached: it is job 2 at the earliest",
    ),
}

RELAY = "instances: [{name: lab, base_url: 'https://lab', ingress_path: /i, secret_ref: t, allow: [backup.ready]}]\n"
TOKENS = "tokens: [{name: t, key: 0123456789012345678901234}]\n"
ROOTS = "plugin_roots: [plugins]\n"


def listed(text: str) -> str:
    """`text` as a file of its own."""
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "pipelines:\n" + "\n".join(f"  {line[margin:]}" for line in lines) + "\n"


@pytest.fixture
def base(home: Home) -> Home:
    """A plugin, a peer, and room for a file of pipelines."""
    home.plugin("echo")
    home.write("tokens.yaml", TOKENS)
    home.write("config.yaml", f"include: [tokens.yaml, pipelines]\n{ROOTS}{RELAY}")
    home.write("pipelines/first.yaml", "pipelines: []\n")
    home.lock()
    return home


@pytest.mark.parametrize(("text", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_wrong_is_told_with_its_file_and_line(base: Home, text: str, expected: str) -> None:
    """The line is that of the very key; the path says which pipeline and step."""
    content = listed(text)
    base.write("pipelines/second.yaml", content)
    line = next(number for number, each in enumerate(content.splitlines(), 1) if MARKED in each)
    told = base.refusal().splitlines()
    assert [each for each in told if each.startswith(f"pipelines/second.yaml:{line}: {expected}")], told


def test_pipelines_of_all_files_are_one_list(base: Home) -> None:
    """In the order in which the files are read; they may call each other."""
    base.write("pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{call: b}]}]")
    base.write("pipelines/second.yaml", "pipelines: [{name: b, on: e, steps: [{uses: echo}]}]")
    config = base.load()
    assert [pipeline.name for pipeline in config.settings.pipelines] == ["a", "b"]
    assert [plan.name for plan in config.plans.on("e")] == ["a", "b"]
    assert list(config.plans.named("a").nodes) == ["step_1/step_1"]


def test_a_snapshot_carries_the_plans(base: Home) -> None:
    """Jobs find the pipeline as it was when they were claimed."""
    base.write("pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo}]}]")
    assert list(take_snapshot(base.examine(), {}).plans.by_name) == ["a"]


def test_a_name_that_is_used_twice_is_told_at_both_places(base: Home) -> None:
    """They may be in different files."""
    base.write("pipelines/first.yaml", "pipelines:\n- {on: e, steps: [{uses: echo}],\n   name: a}")
    base.write("pipelines/second.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo}]}]")
    assert base.refusal().splitlines() == [
        "pipelines/first.yaml:3: pipelines[0].name: 'a' is also the name of pipelines[1]; names are unique",
        "pipelines/second.yaml:1: pipelines[1].name: 'a' is also the name of pipelines[0]; names are unique",
    ]


def test_pipelines_are_complained_about_together_with_the_rest(base: Home) -> None:
    """One load, all of it."""
    base.write(
        "pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{call: gone}, {relay: {to: x, event: y}}]}]"
    )
    base.write("pipelines/second.yaml", "service: {tick_interval: 1ms}")
    told = base.refusal()
    assert "pipelines[0].steps[0].call" in told
    assert "pipelines[0].steps[1].relay.to" in told
    assert "service.tick_interval" in told


def test_a_complaint_does_not_tell_what_a_variable_stands_for(base: Home) -> None:
    """It quotes what is written, and this may be a secret."""
    base.write("pipelines/first.yaml", "pipelines: [{name: a, on: e, steps: [{uses: echo, with: {k: 'x${SECRET}'}}]}]")
    told = base.refusal(env={"SECRET": "{hunter-2-hunter-2"})
    assert "pipelines[0].steps[0].with.k" in told
    assert "hunter" not in told


def test_a_webhook_may_start_a_pipeline_that_is_there(base: Home) -> None:
    """And a name that is nearly right is guessed."""
    base.write("pipelines/first.yaml", "pipelines: [{name: deploy, on: e, steps: [{uses: echo}]}]")
    base.write(
        "pipelines/second.yaml",
        "webhooks: {endpoints: [{path: /a, pipeline: depoly, secret_ref: t, scheme: github}]}",
    )
    assert "webhooks.endpoints[0].pipeline: there is no pipeline 'depoly' (did you mean 'deploy'?)" in base.refusal()


def test_calls_may_nest_as_deep_as_hops_are_allowed(base: Home) -> None:
    """The limit of the configuration counts."""
    base.write(
        "pipelines/first.yaml",
        "service: {limits: {hops: 1}}\npipelines: [{name: a, on: e, steps: [{call: b}]},"
        " {name: b, on: e, steps: [{call: c}]}, {name: c, on: e, steps: [{uses: echo}]}]",
    )
    assert "pipelines[0].steps: nests calls 2 deep; service.limits.hops allows 1" in base.refusal()


def test_pipelines_are_shown_as_they_are_written(base: Home) -> None:
    """Without the many keys that are not used."""
    text = "{name: a, on: e, steps: [{uses: echo, if: {path: payload.n, op: gt, value: 1}}]}"
    base.write("pipelines/first.yaml", f"pipelines: [{text}]")
    config = base.load()
    data = strict_yaml.load(text.encode(), source="x").data()
    assert redacted(config.settings, config.mask)["pipelines"] == [data]


# ── the doctor ──────────────────────────────────────────────────────────────────────────────────────────────────────


def examined(home: Home, pipelines: str, more: str = "") -> Examination:
    home.write("pipelines/first.yaml", f"pipelines:\n{pipelines}\n{more}")
    return home.examine()


def errors(found: Examination) -> list[str]:
    return [f"{each.path}: {each.message}" for each in found.report.errors]


def warnings(found: Examination, *categories: str) -> list[str]:
    wanted = categories or ("pipelines", "hook_cycles", "event_cycles", "contracts")
    return [f"{each.path}: {each.message}" for each in found.report.warnings if each.category in wanted]


def test_steps_need_plugins_that_are_there_and_commands_that_they_have(base: Home) -> None:
    """Each step that is written is told once, however often it is called."""
    found = examined(
        base,
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


def test_an_alias_is_a_plugin_for_a_step(base: Home) -> None:
    """Also one with a dot in its name."""
    found = examined(
        base,
        "- {name: a, on: e, from_plugin: my.echo, steps: [{uses: my.echo}, {uses: my.echo.poll}]}",
        "plugins: {my.echo: {uses: echo}}",
    )
    assert errors(found) == []
    nodes = found.config.plans.named("a").nodes.values()
    assert [(node.plugin, node.command) for node in nodes] == [("my.echo", "handle"), ("my.echo", "poll")]


def test_what_is_disabled_is_only_a_warning(base: Home) -> None:
    """An operator may switch a plugin or a peer off for a day."""
    found = examined(
        base,
        "- {name: a, on: e, from_plugin: echo, steps: [{uses: echo}, {relay: {to: off, event: x}}]}",
        "plugins: {echo: {enabled: false}}\n"
        "instances: [{name: off, enabled: false, base_url: 'https://x', ingress_path: /i, secret_ref: t}]",
    )
    assert errors(found) == []
    assert warnings(found) == [
        "pipelines[0].steps[0].uses: plugin echo is disabled; a run that comes here fails",
        "pipelines[0].steps[1].relay.to: instance off is disabled; a run that comes here fails",
        "pipelines[0].from_plugin: plugin echo is disabled; nothing can start this",
    ]


def test_nobody_waits_longer_than_the_api_lets_them(base: Home) -> None:
    """Only synchronous pipelines are waited for."""
    found = examined(
        base,
        "- {name: a, on: e, execution_mode: synchronous, timeout: 10m, steps: [{uses: echo}]}\n"
        "- {name: b, on: e, execution_mode: synchronous, timeout: 5m, steps: [{uses: echo}]}\n"
        "- {name: c, on: e, timeout: 10m, steps: [{uses: echo}]}",
    )
    assert warnings(found) == [
        "pipelines[0].timeout: 10m is longer than api.max_sync_timeout (5m); no caller waits longer than that"
    ]


def test_a_plugin_that_a_pipeline_uses_is_used(base: Home) -> None:
    """And one that none uses is not."""
    base.plugin("idle")
    found = examined(base, "- {name: a, on: e, steps: [{uses: echo}]}", "plugins: {echo: {}, idle: {}}")
    assert warnings(found, "unused") == [
        "plugins.idle: nothing starts it: no schedule, route, pipeline, webhook or API"
    ]


HOOKS: dict[str, tuple[str, str, list[str]]] = {
    "a hook that a plugin can fire": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        [],
    ),
    "a hook that no plugin can fire": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}",
        "",
        ["pipelines[0].on-hook: nothing can start it: no plugin has notify_on_complete: true"],
    ),
    "a hook that is called instead": (
        "- {name: h, on-hook: job.failed, steps: [{uses: echo}]}\n- {name: a, on: e, steps: [{call: h}]}",
        "",
        [],
    ),
    "a hook whose plugin does not notify": (
        "- {name: h, on-hook: job.failed, from_plugin: echo, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0].on-hook: nothing can start it: plugin echo does not have notify_on_complete: true"],
    ),
    "a hook that reads a context": (
        "- {name: h, on-hook: job.failed, if: {path: context.x, op: exists}, steps: [{uses: echo}]}",
        "plugins: {other: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0].if: reads context.*, which is always empty here: a hook inherits nothing from the job "],
    ),
    "a hook whose first step fires it again": (
        "- {name: h, on-hook: job.completed, steps: [{uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}}",
        ["pipelines[0]: hooks start each other in a circle: h → h; service.hook_max_depth ends it after 4; "],
    ),
    "a hook that would fire itself if it were not the second step": (
        "- {name: h, on-hook: job.completed, steps: [{uses: quiet}, {uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}, quiet: {uses: echo}}",
        [],
    ),
    "a hook that would fire itself but for from_plugin": (
        "- {name: h, on-hook: job.completed, from_plugin: other, steps: [{uses: echo}]}",
        "plugins: {echo: {notify_on_complete: true}, other: {uses: echo, notify_on_complete: true}}",
        [],
    ),
    "two hooks that fire each other": (
        "- {name: h, on-hook: job.completed, from_plugin: a, steps: [{uses: b}]}\n"
        "- {name: i, on-hook: job.failed, from_plugin: b, steps: [{uses: a}]}",
        "plugins: {a: {uses: echo, notify_on_complete: true}, b: {uses: echo, notify_on_complete: true}}",
        ["pipelines[0]: hooks start each other in a circle: h → i → h; "],
    ),
}


@pytest.mark.parametrize(("pipelines", "more", "expected"), HOOKS.values(), ids=HOOKS)
def test_hooks_are_fired_by_somebody_and_not_by_themselves(
    base: Home, pipelines: str, more: str, expected: list[str]
) -> None:
    """Hooks fire at the end of root jobs of plugins that notify."""
    found = examined(base, pipelines, more)
    assert errors(found) == []
    told = warnings(found)
    assert len(told) == len(expected)
    assert all(each.startswith(start) for each, start in zip(told, expected, strict=True)), told


# ── what manifests say ──────────────────────────────────────────────────────────────────────────────────────────────


def emitting(home: Home, name: str, events: Mapping[str, str]) -> None:
    """A plugin whose `handle` says that it emits these events with these values."""
    folder = home.plugin(name)
    manifest = strict_yaml.load((folder / "manifest.yaml").read_bytes(), source="m").data()
    emit = [
        {"event": event, "values": [f"payload.{value}" for value in values.split()]} for event, values in events.items()
    ]
    manifest["commands"][1]["values"] = {"emit": emit}
    home.write(f"plugins/{name}/manifest.yaml", strict_yaml.dump(manifest))


@pytest.fixture
def talking(base: Home) -> Home:
    """`fetch` and `parse` say what they emit; `echo` does not."""
    emitting(base, "fetch", {"fetched": "url body meta.size", "missed": "url reason"})
    emitting(base, "parse", {"parsed": "items title"})
    emitting(base, "free", {"any": "*"})
    return base


EVENT_CIRCLES: dict[str, tuple[str, list[str]]] = {
    "no circle": (
        "- {name: a, on: fetched, steps: [{uses: parse}]}\n- {name: b, on: parsed, steps: [{uses: echo}]}",
        [],
    ),
    "a pipeline that emits what starts it": (
        "- {name: a, on: fetched, steps: [{uses: echo}, {uses: fetch}]}",
        ["pipelines[0]: events may start pipelines in a circle: a → a; service.limits.hops ends it after 20"],
    ),
    "two pipelines": (
        "- {name: a, on: fetched, steps: [{uses: parse}]}\n- {name: b, on: parsed, steps: [{uses: fetch}]}",
        ["pipelines[0]: events may start pipelines in a circle: a → b → a; service.limits.hops ends it after 20"],
    ),
    "not when from_plugin forbids it": (
        "- {name: a, on: fetched, from_plugin: echo, steps: [{uses: echo}, {uses: fetch}]}",
        [],
    ),
}


@pytest.mark.parametrize(("pipelines", "expected"), EVENT_CIRCLES.values(), ids=EVENT_CIRCLES)
def test_events_that_come_back_are_noticed(talking: Home, pipelines: str, expected: list[str]) -> None:
    """As far as manifests tell."""
    assert warnings(examined(talking, pipelines), "event_cycles") == expected


CONTRACTS: dict[str, tuple[str, list[str]]] = {
    "what is emitted": ("{uses: fetch}, {uses: echo, with: {x: '{payload.url} {payload.reason}'}}", []),
    "a part of what is emitted": ("{uses: fetch}, {uses: echo, with: {x: '{payload.body.title}'}}", []),
    "what has emitted parts": ("{uses: fetch}, {uses: echo, with: {x: '{payload.meta}'}}", []),
    "the result, which is always there": ("{uses: fetch}, {uses: echo, with: {x: '{payload.result}'}}", []),
    "all of it": ("{uses: fetch}, {uses: echo, with: {x: '{payload}'}}", []),
    "the context": ("{uses: fetch}, {uses: echo, with: {x: '{context.what}'}}", []),
    "with": (
        "{uses: fetch}, {uses: echo, with: {x: 'at {payload.uri}'}}",
        ["pipelines[0].steps[1].with.x: nothing before it emits 'payload.uri' (did you mean 'url'?); it gets"],
    ),
    "if": (
        "{uses: fetch}, {uses: echo, if: {path: payload.ok, op: exists}}",
        ["pipelines[0].steps[1].if: nothing before it emits 'payload.ok'; it gets"],
    ),
    "baggage": (
        "{uses: fetch}, {uses: echo, baggage: {a.b: payload.hash, from: payload.nested, namespace: n}}",
        [
            "pipelines[0].steps[1].baggage.a.b: nothing before it emits 'payload.hash'",
            "pipelines[0].steps[1].baggage.from: nothing before it emits 'payload.nested'",
        ],
    ),
    "what is durable is found in the payload too": (
        "{uses: echo, baggage: {web.id: payload.id}}, {uses: fetch}, {uses: echo, with: {x: '{payload.web.id}'}}",
        [],
    ),
    "but not by an if": (
        "{uses: echo, baggage: {web.id: payload.id}}, {uses: fetch},"
        " {uses: echo, if: {path: payload.web.id, op: exists}}",
        ["pipelines[0].steps[2].if: nothing before it emits 'payload.web.id'"],
    ),
    "foreach": (
        "{uses: fetch}, {uses: echo, foreach: payload.rows}",
        ["pipelines[0].steps[1].foreach: nothing before it emits 'payload.rows'"],
    ),
    "relay": (
        "{uses: fetch}, {relay: {to: lab, event: backup.ready, dedupe_key: payload.id, with: {a: payload.a}}}",
        [
            "pipelines[0].steps[1].relay.with.a: nothing before it emits 'payload.a'",
            "pipelines[0].steps[1].relay.dedupe_key: nothing before it emits 'payload.id'",
        ],
    ),
    "nobody knows what the trigger brings": ("{uses: fetch, with: {x: '{payload.what}'}}", []),
    "nobody knows what a silent manifest emits": ("{uses: echo}, {uses: fetch, with: {x: '{payload.what}'}}", []),
    "nobody knows what a star is": ("{uses: free}, {uses: fetch, with: {x: '{payload.what}'}}", []),
    "nobody knows what a relay answers": (
        "{relay: {to: lab, event: backup.ready}}, {uses: fetch, with: {x: '{payload.what}'}}",
        [],
    ),
    "a bypass lets the earlier payload through": (
        "{uses: fetch}, {uses: parse, if: {path: payload.url, op: exists}}, {uses: echo, with: {x: '{payload.url}'}}",
        [],
    ),
    "without a bypass it does not come through": (
        "{uses: fetch}, {uses: parse}, {uses: echo, with: {x: '{payload.url}'}}",
        ["pipelines[0].steps[2].with.x: nothing before it emits 'payload.url'"],
    ),
    "one of two branches is enough": (
        "{split: [{uses: fetch}, {uses: parse}]}, {uses: echo, with: {x: '{payload.url} {payload.title}'}}",
        [],
    ),
    "a join has what the split was entered with, and results": (
        "{uses: fetch}, {join: true, split: [{uses: parse}]},"
        " {uses: echo, with: {x: '{payload.results} {payload.url}'}}",
        [],
    ),
    "a join does not have what its branches emitted": (
        "{uses: fetch}, {join: true, split: [{uses: parse}]}, {uses: echo, with: {x: '{payload.title}'}}",
        ["pipelines[0].steps[2].with.x: nothing before it emits 'payload.title'"],
    ),
    "an error step has the failure": (
        "{uses: echo, on_error: [{uses: fetch, with: {x: '{payload.message} {payload.input.y} {payload.error}'}}]}",
        [],
    ),
    "an error step has nothing else": (
        "{uses: echo, on_error: [{uses: fetch, with: {x: '{payload.url}'}}]}",
        ["pipelines[0].steps[0].on_error[0].with.x: nothing before it emits 'payload.url'"],
    ),
}


@pytest.mark.parametrize(("steps", "expected"), CONTRACTS.values(), ids=CONTRACTS)
def test_a_path_that_nothing_before_it_emits_is_noticed(talking: Home, steps: str, expected: list[str]) -> None:
    """Only where every way to the step is known; then it would be absent in every run."""
    told = warnings(examined(talking, f"- {{name: a, on: e, steps: [{steps}]}}"), "contracts")
    assert len(told) == len(expected), told
    assert all(each.startswith(start) for each, start in zip(told, expected, strict=True)), told


def test_the_plugin_that_alone_may_start_a_pipeline_is_asked_too(talking: Home) -> None:
    """`from_plugin` and `on` together say which event it is."""
    steps = "steps: [{uses: echo, with: {x: '{payload.reason}'}}]"
    found = examined(
        talking,
        f"- {{name: a, on: fetched, from_plugin: fetch, {steps}}}\n"
        f"- {{name: b, on: missed, from_plugin: fetch, {steps}}}\n"
        f"- {{name: c, on: other, from_plugin: fetch, {steps}}}\n- {{name: d, on: fetched, {steps}}}",
    )
    (told,) = warnings(found, "contracts")
    assert told.startswith("pipelines[0].steps[0].with.x: nothing before it emits 'payload.reason'")


def test_a_called_pipeline_is_looked_at_with_what_its_caller_brings(talking: Home) -> None:
    """Alone it may get anything."""
    found = examined(
        talking,
        "- {name: a, on: e, steps: [{uses: fetch}, {call: b}]}\n"
        "- {name: b, on: e, steps: [{uses: echo, with: {x: '{payload.title}'}}]}",
    )
    (told,) = warnings(found, "contracts")
    assert told.startswith("pipelines[1].steps[0].with.x: nothing before it emits 'payload.title'")
    assert told.endswith(" when a calls it")


# ── the documentation ───────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(ductile.__file__).parent.parent / "docs" / "pipelines.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "cases:" not in block]  # those are for `pipeline test`


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_in_the_documentation_compiles(home: Home, text: str) -> None:
    """What a reader copies works."""
    home.write("tokens.yaml", TOKENS)
    home.write("config.yaml", f"include: [tokens.yaml]\n{RELAY}{text}")
    assert load(home.root, environ={}, verify=False).plans.by_name


def test_every_keyword_operator_and_signal_is_documented() -> None:
    """docs/pipelines.md has all of the language."""
    keys = {
        key.metadata.get(YAML_NAME, key.name) for shape in (Pipeline, Step, RelayStep) for key in attrs.fields(shape)
    }
    words = {*keys, *OPERATORS, *get_args(Signal), *get_args(Mode), "all", "any", "not", "path", "op", "value", "item"}
    assert sorted(word for word in words if f"`{word}`" not in PAGE and f"`{word}: " not in PAGE) == []
