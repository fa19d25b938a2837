"""The rules of `plugin check`: names, levels, requirements and advice.

Rule names are stable, because scripts refer to them. The static and dynamic checks decide the results.
"""

from collections.abc import Sequence

from attrs import define, field, frozen

LEVELS = ("manifest", "protocol", "robust", "exemplary")
"""In ascending order. The level of a rule is the first part of its name."""


@frozen
class PluginRule:
    """A requirement and the advice for a plugin that fails it."""

    requirement: str
    todo: str


RULES = {
    "manifest.accepted": PluginRule("the manifest is valid and the files are trusted", "fix the reported error"),
    "manifest.known_keys": PluginRule("the manifest has only known keys", "remove the key, or prefix it with `x-`"),
    "manifest.version": PluginRule("the manifest has a version", "add a version, such as `version: 0.1.0`"),
    "manifest.types": PluginRule(
        "every command declares whether it reads or writes", "add `type: read` or `type: write`"
    ),
    "protocol.runs": PluginRule(
        "at least one command can be run safely, and it starts",
        "add a fixture for each command, or run write commands with --run-writes",
    ),
    "protocol.deadline": PluginRule("it responds before its deadline", "limit every wait by `deadline_at`"),
    "protocol.framing": PluginRule(
        "stdout is one JSON object and nothing else",
        "write everything but the response to stderr; encode the response as UTF-8",
    ),
    "protocol.fields": PluginRule(
        "the response has the fields and types of the protocol", "see docs/plugins.md, The response"
    ),
    "protocol.limits": PluginRule("the response is within the limits", "return fewer events or a smaller state"),
    "protocol.exit_code": PluginRule(
        "an ok response exits with 0, and no signal ends the process",
        "exit with 0 after a response, and with 78 for invalid configuration",
    ),
    "protocol.unknown_fields": PluginRule(
        "unknown fields do not change the result", "ignore unknown fields of the request"
    ),
    "protocol.missing_fields": PluginRule(
        "it responds if payload, event and context are absent", "treat an absent field as empty"
    ),
    "protocol.unicode": PluginRule("it responds to any characters in the payload", "read and write UTF-8; escape JSON"),
    "robust.large_input": PluginRule(
        "it responds to a request of 2 MiB", "read all of stdin, without limits on arguments or lines"
    ),
    "robust.sigterm": PluginRule("it exits soon after SIGTERM", "do not ignore SIGTERM; stop child processes too"),
    "robust.secrets": PluginRule(
        "it does not output secrets of its configuration",
        "never write configuration values to responses, logs or stderr",
    ),
    "robust.leftovers": PluginRule("no process outlives it", "wait for every child before exiting"),
    "robust.files": PluginRule(
        "it leaves no files in its working directory or its own directory", "write only to configured paths"
    ),
    "robust.stderr": PluginRule("stderr is within the limit", "write less to stderr"),
    "robust.configuration": PluginRule(
        "without its required configuration it fails without retry", "exit with 78, or respond with `retry: false`"
    ),
    "robust.other_protocol": PluginRule(
        "it rejects an unsupported protocol version", "write a message to stderr and exit with 78"
    ),
    "robust.fixtures": PluginRule("its fixtures pass", "run `ductile plugin test` to see the differences"),
    "exemplary.described": PluginRule(
        "the plugin and each command have a description", "add a one-line description to each"
    ),
    "exemplary.readme": PluginRule(
        "README.md names every command and every configuration key", "document the missing names in README.md"
    ),
    "exemplary.health": PluginRule(
        "it has a `health` command", "add a `health` command of type read that checks the configuration"
    ),
    "exemplary.contract": PluginRule(
        "each command declares what it emits or returns", "declare `values.emit` or `output_schema`"
    ),
    "exemplary.declared_events": PluginRule("it emits only declared events", "add the event to `values.emit`"),
    "exemplary.output_schema": PluginRule(
        "its events match its output_schema", "fix the schema or the payload of the event"
    ),
    "exemplary.fixtures": PluginRule("each command has a fixture", "add fixtures/<command>.json"),
    "exemplary.idempotent": PluginRule(
        "an idempotent command returns the same response for the same job_id",
        "derive events and dedupe keys from the request, or declare `idempotent: false`",
    ),
}


@frozen(kw_only=True)
class RuleResult:
    """The result of one rule."""

    rule: str
    result: str
    """pass, fail or skip."""
    reason: str

    @property
    def level(self) -> str:
        return self.rule.partition(".")[0]


@define
class Findings:
    """The findings so far, by rule."""

    _by_rule: dict[str, list[str]] = field(factory=dict)

    def add(self, rule: str, problem: str | None) -> None:
        """Record that the rule was checked, with the problem found or None."""
        problems = self._by_rule.setdefault(rule, [])
        if problem is not None and problem not in problems:
            problems.append(problem)

    def results(self) -> list[RuleResult]:
        """Return one result per rule, in the order of RULES."""
        return [self._result(rule) for rule in RULES]

    def _result(self, rule: str) -> RuleResult:
        if rule not in self._by_rule:
            return RuleResult(rule=rule, result="skip", reason="not checked")
        problems = self._by_rule[rule]
        if problems:
            return RuleResult(rule=rule, result="fail", reason="; ".join(problems))
        return RuleResult(rule=rule, result="pass", reason=RULES[rule].requirement)


def level_reached(rule_results: Sequence[RuleResult]) -> str | None:
    """Return the highest level that was checked and passed, together with all levels below it."""
    reached = None
    for level in LEVELS:
        results = {rule.result for rule in rule_results if rule.level == level}
        if "fail" in results or "pass" not in results:
            break
        reached = level
    return reached
