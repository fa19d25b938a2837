"""Typical configuration mistakes, each with the line to report and the suggestion to make.

The wrong line of a configuration ends with `#!`, which is a comment in YAML.
"""

from attrs import frozen

MARK = "#!"
BASE = """\
plugin_roots: [plugins]
include:
  - tokens.yaml
"""
TOKENS = "tokens: [{name: hook, key: 0123456789abcdef01234567}]\n"


@frozen
class Mistake:
    """A configuration with one mistake, appended to BASE."""

    name: str
    text: str
    suggestion: str
    """Text that the message must contain."""
    is_warning: bool = False

    @property
    def line(self) -> int:
        """The line number of the mistake in the complete file."""
        lines = (BASE + self.text).splitlines()
        return next(number for number, line in enumerate(lines, start=1) if MARK in line)


def _step(line: str, *, more: str = "") -> str:
    return f"pipelines:\n  - name: deploy\n    on: echo.poll\n    steps:\n      - uses: echo\n{line}{more}"


def _schedule(line: str) -> str:
    return f"plugins:\n  echo:\n    schedules:\n      - id: nightly\n        {line} #!\n"


MISTAKES = (
    Mistake("typo in a top-level key", "plugin:  #!\n  echo: {}\n", "did you mean 'plugins'?"),
    Mistake("typo in a service key", "service:\n  max_worker: 4 #!\n", "did you mean 'max_workers'?"),
    Mistake("typo in a plugin key", "plugins:\n  echo:\n    enable: true #!\n", "did you mean 'enabled'?"),
    Mistake("typo in a schedule key", _schedule("every: 1h\n        time_zone: UTC"), "did you mean 'timezone'?"),
    Mistake("typo in a step key", _step("        wiht: {a: 1} #!\n"), "did you mean 'with'?"),
    Mistake(
        "typo in an endpoint key",
        "webhooks:\n  endpoints:\n    - path: /hook/a\n      plugin: echo\n      scheme: github\n"
        "      secret: hook #!\n",
        "did you mean 'secret_ref'?",
    ),
    Mistake("service key at the top", "max_workers: 4 #!\n", "did you mean 'service.max_workers'?"),
    Mistake(
        "trigger beside the schedules",
        "plugins:\n  echo:\n    every: 1h #!\n",
        "did you mean 'plugins.echo.schedules[].every'?",
    ),
    Mistake("tokens beside auth", "api:\n  tokens: [] #!\n", "did you mean 'api.auth.tokens'?"),
    Mistake("pipeline key in a step", _step("        on: echo.poll #!\n"), "did you mean 'pipelines[0].on'?"),
    Mistake("setting of a plugin beside its config", "plugins:\n  echo:\n    message: hi #!\n", "belong below config"),
    Mistake("value for a plugin beside with", _step("        message: hi #!\n"), "belong below with"),
    Mistake(
        "typo in a plugin's own key",
        "plugins:\n  echo:\n    config:\n      mesage: hi #!\n",
        "did you mean 'message'?",
        is_warning=True,
    ),
    Mistake(
        "schedules below config",
        "plugins:\n  echo:\n    config:\n      schedules: [{every: 1h}] #!\n",
        "did you mean 'plugins.echo.schedules'?",
        is_warning=True,
    ),
    Mistake(
        "timeout of an unknown command",
        "plugins:\n  echo:\n    timeouts:\n      pol: 30s #!\n",
        "did you mean 'poll'?",
        is_warning=True,
    ),
    Mistake(
        "mapping instead of a list",
        "plugins:\n  echo:\n    schedules: #!\n      every: 1h\n",
        "begin each item with '- '",
    ),
    Mistake("text instead of a number", "service:\n  max_workers: many #!\n", "not a whole number"),
    Mistake("text instead of a list", "plugins:\n  echo:\n    schedules: hourly #!\n", "expected a list"),
    Mistake("list instead of a mapping", "plugins: #!\n  - echo\n", "expected a mapping"),
    Mistake("text instead of true or false", "plugins:\n  echo:\n    enabled: maybe #!\n", "is not true or false"),
    Mistake("duplicate key", "plugins:\n  echo:\n    enabled: true\n    enabled: false #!\n", "duplicate"),
    Mistake("tab as indentation", "plugins:\n\techo: {} #!\n", "spaces"),
    Mistake("wrong indentation", "plugins:\n  echo:\n    enabled: true\n   schedules: [] #!\n", "indent"),
    Mistake("missing colon", "plugins:\n  echo: #!\n    enabled true\n", "check for a missing ':'"),
    Mistake("missing quotes around a colon", "plugins:\n  echo:\n    config:\n      message: note: this #!\n", "quot"),
    Mistake("unclosed quote", 'plugins:\n  echo:\n    config:\n      message: "open #!\n', "quot"),
    Mistake("value that begins with an asterisk", _schedule("cron: * * * * *"), "quot"),
    Mistake("cron line with four fields", _schedule("cron: '0 4 * *'"), "five fields"),
    Mistake("cron hour out of range", _schedule("cron: '0 24 * * *'"), "the hour must be 0-23"),
    Mistake("duration without unit", _schedule("every: 10"), "such as"),
    Mistake("unknown duration", _schedule("every: ten minutes"), "such as"),
    Mistake(
        "unknown time zone", _schedule("every: 1h\n        timezone: Europe/Berln"), "did you mean 'Europe/Berlin'?"
    ),
    Mistake("unknown weekday", _schedule("every: 1h\n        not_on: [fryday]"), "did you mean 'friday'?"),
    Mistake(
        "two kinds of schedule",
        "plugins:\n  echo:\n    schedules:\n      - {id: n, every: 1h, cron: '0 4 * * *'} #!\n",
        "exactly one of every, cron, at, after",
    ),
    Mistake(
        "schedule of an unknown plugin", "plugins:\n  ehco: #!\n    schedules: [{every: 1h}]\n", "did you mean 'echo'?"
    ),
    Mistake("schedule of an unknown command", _schedule("every: 1h\n        command: pol"), "did you mean 'poll'?"),
    Mistake("step with an unknown plugin", _step("", more="      - uses: ehco #!\n"), "did you mean 'echo'?"),
    Mistake("step with an unknown command", _step("", more="      - uses: echo.handel #!\n"), "did you mean 'handle'?"),
    Mistake(
        "route to an unknown plugin",
        "routes:\n  - from: echo\n    event_type: echo.poll\n    to: ehco #!\n",
        "did you mean 'echo'?",
    ),
    Mistake(
        "route of an unknown event",
        "plugins: {sink: {uses: echo}}\nroutes:\n  - from: echo\n    event_type: echo.pol #!\n    to: sink\n",
        "did you mean 'echo.poll'?",
        is_warning=True,
    ),
    Mistake(
        "webhook for an unknown plugin",
        "webhooks:\n  endpoints:\n    - path: /hook/a\n      scheme: github\n"
        "      secret_ref: hook\n      plugin: ehco #!\n",
        "did you mean 'echo'?",
    ),
    Mistake(
        "webhook without a secret",
        "webhooks:\n  endpoints:\n    - path: /hook/a #!\n      plugin: echo\n      scheme: github\n",
        "secret_ref",
    ),
    Mistake(
        "webhook with an unknown secret",
        "webhooks:\n  endpoints:\n    - path: /hook/a\n      plugin: echo\n      scheme: github\n"
        "      secret_ref: hok #!\n",
        "did you mean 'hook'?",
    ),
    Mistake(
        "typo in an exchange key",
        "exchange:\n  max_deliverys: 3 #!\n",
        "did you mean 'max_deliveries'?",
    ),
    Mistake(
        "consumer with an unknown plugin",
        "exchange:\n  consumers:\n    - topic: deploy.request\n      plugin: ehco #!\n",
        "did you mean 'echo'?",
    ),
    Mistake(
        "consumer with an unknown command",
        "exchange:\n  consumers:\n    - topic: deploy.request\n      plugin: echo\n      command: pol #!\n",
        "did you mean 'poll'?",
    ),
    Mistake(
        "consumer with an unknown pipeline",
        "exchange:\n  consumers:\n    - topic: deploy.request\n      pipeline: deplo #!\n"
        "pipelines: [{name: deploy, on: echo.poll, steps: [{uses: echo}]}]\n",
        "did you mean 'deploy'?",
    ),
    Mistake(
        "consumer of a pattern of topics",
        "exchange:\n  consumers:\n    - topic: deploy.* #!\n      plugin: echo\n",
        "one topic, not a pattern",
    ),
    Mistake(
        "two consumers of one topic",
        "exchange:\n  consumers:\n    - {topic: deploy.request, plugin: echo}\n"
        "    - {topic: deploy.request, event: deploy.wanted} #!\n",
        "used twice",
    ),
    Mistake("body size above the maximum", "exchange:\n  max_body_size: 1GB #!\n", "1 byte to 64MB"),
    Mistake(
        "unknown scope of a topic",
        "api:\n  auth:\n    tokens:\n      - token: 0123456789abcdef01234567\n"
        "        scopes: ['exchange:review.*:write'] #!\n",
        "did you mean 'exchange:review.*:rw'?",
        is_warning=True,
    ),
    Mistake(
        "unknown signature scheme",
        "webhooks:\n  endpoints:\n    - path: /hook/a\n      plugin: echo\n      secret_ref: hook\n"
        "      scheme: githb #!\n",
        "did you mean 'github'?",
    ),
    Mistake(
        "two endpoints on one path",
        "webhooks:\n  endpoints:\n"
        "    - {path: /hook/a, name: a, plugin: echo, scheme: github, secret_ref: hook}\n"
        "    - {path: /hook/a, name: b, plugin: echo, scheme: github, secret_ref: hook} #!\n",
        "used twice",
    ),
    Mistake(
        "webhook path without a slash",
        "webhooks:\n  endpoints:\n    - plugin: echo\n      scheme: github\n"
        "      secret_ref: hook\n      path: hook/a #!\n",
        "/",
    ),
    Mistake("listen address without a port", "api:\n  listen: localhost #!\n", "such as 127.0.0.1:8080"),
    Mistake("listen address with an unknown port", "api:\n  listen: 127.0.0.1:99999 #!\n", "65535"),
    Mistake(
        "unknown scope",
        "api:\n  auth:\n    tokens:\n      - token: 0123456789abcdef01234567\n        scopes: [job:read] #!\n",
        "did you mean 'jobs:ro'?",
        is_warning=True,
    ),
    Mistake(
        "missing secret variable",
        "plugins:\n  echo:\n    config:\n      token: ${NO_SUCH_VARIABLE} #!\n",
        "NO_SUCH_VARIABLE is not set; set it in the environment or in a file of environment_vars.include",
    ),
    Mistake("typo in an include", "  - token.yaml #!\n", "did you mean 'tokens.yaml'?"),
    Mistake("missing include", "  - other.yaml #!\n", "relative to the file that contains them"),
    Mistake("notifications to a plugin that has no entry", "notify:\n  to: notfy #!\n", "did you mean 'notify'?"),
    Mistake("missing plugin root", "plugin_root: plugins #!\n", "did you mean 'plugin_roots'?"),
    Mistake(
        "short name of an execution mode",
        "pipelines:\n  - name: deploy\n    on: echo.poll\n    execution_mode: sync #!\n    steps: [{uses: echo}]\n",
        "did you mean 'synchronous'?",
    ),
    Mistake(
        "unquoted braces",
        _step("        with:\n          message: {payload.text} #!\n"),
        'message: "{payload.text}"',
        is_warning=True,
    ),
    Mistake(
        "unquoted double braces",
        _step("        with:\n          message: {{ payload.text }} #!\n"),
        "put quotes around text with braces",
    ),
    Mistake(
        "double braces",
        _step('        with:\n          message: "{{ payload.text }}" #!\n'),
        '"{payload.text}"',
        is_warning=True,
    ),
    Mistake(
        "dollar braces",
        _step('        with:\n          message: "${payload.text}" #!\n'),
        '"{payload.text}"',
        is_warning=True,
    ),
    Mistake(
        "text as a condition",
        _step("        if: payload.status == 'ok' #!\n"),
        "such as {path: payload.status, op: eq, value: ok}",
    ),
    Mistake(
        "hook as an event",
        "pipelines:\n  - name: deploy\n    on: run.failed #!\n    steps: [{uses: echo}]\n",
        "use on-hook: run.failed",
        is_warning=True,
    ),
    Mistake(
        "typo in item",
        _step("        foreach: payload.items\n        with:\n          message: '{itm}' #!\n"),
        "did you mean 'item'?",
    ),
    Mistake(
        "typo in payload", _step("        with:\n          message: '{paylod.text}' #!\n"), "did you mean 'payload'?"
    ),
    Mistake(
        "value without a root", _step("        with:\n          message: '{text}' #!\n"), "did you mean 'payload.text'?"
    ),
    Mistake(
        "unknown operator",
        _step("        if: {path: payload.status, op: equals, value: ok} #!\n"),
        "did you mean 'eq'?",
    ),
    Mistake(
        "step without an action",
        "pipelines:\n  - name: deploy\n    on: echo.poll\n    steps:\n      - id: first #!\n",
        "exactly one of",
    ),
    Mistake(
        "split without steps",
        "pipelines:\n  - name: deploy\n    on: echo.poll\n    steps:\n      - split: [] #!\n",
        "split",
    ),
    Mistake("pipeline without steps", "pipelines:\n  - name: deploy #!\n    on: echo.poll\n", "steps"),
    Mistake(
        "call of an unknown pipeline",
        "pipelines:\n  - name: deploy\n    on: echo.poll\n    steps:\n      - call: deplo #!\n",
        "did you mean 'deploy'?",
    ),
    Mistake(
        "cycle of calls",
        "pipelines:\n  - name: first\n    on: echo.poll\n    steps:\n      - call: second #!\n"
        "  - {name: second, on: echo.other, steps: [{call: first}]}\n",
        "first → second → first",
    ),
    Mistake(
        "two pipelines of one name",
        "pipelines:\n  - {name: deploy, on: echo.poll, steps: [{uses: echo}]}\n"
        "  - {name: deploy, on: echo.poll, steps: [{uses: echo}]} #!\n",
        "names must be unique",
    ),
    Mistake(
        "pipeline without a trigger",
        "pipelines:\n  - name: deploy #!\n    steps: [{uses: echo}]\n",
        "exactly one of on, on-hook",
    ),
    Mistake(
        "pipeline for an unknown event",
        "pipelines:\n  - name: deploy\n    on: echo.pol #!\n    steps: [{uses: echo}]\n",
        "did you mean 'echo.poll'?",
        is_warning=True,
    ),
)
