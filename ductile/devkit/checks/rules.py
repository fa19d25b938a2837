"""The rules of `plugin check`: their names, their levels, what each asks and what to do about it.

Names are stable: scripts and people refer to them. How a rule is found kept or broken is not known here.
"""

from collections.abc import Sequence

from attrs import define, field, frozen

LEVELS = ("manifest", "protocol", "robust", "exemplary")
"""Each includes those before it; the first part of a rule's name is its level."""


@frozen
class PluginRule:
    """What a plugin must do, and how to get there."""

    asks: str
    todo: str


RULES = {
    "manifest.accepted": PluginRule(
        "the manifest is valid and the files are trusted", "put right what the reason says"
    ),
    "manifest.known_keys": PluginRule("the manifest has only known keys", "remove the key, or begin it with `x-`"),
    "manifest.version": PluginRule("the manifest has a version", "write for example `version: 0.1.0`"),
    "manifest.types": PluginRule(
        "every command says whether it reads or writes", "write `type: read` or `type: write`"
    ),
    "protocol.runs": PluginRule(
        "there is something to run safely, and it starts",
        "write a fixture for each command, or allow writing commands with --run-writes",
    ),
    "protocol.deadline": PluginRule("it answers before its deadline", "bound every wait by `deadline_at`"),
    "protocol.framing": PluginRule(
        "stdout is one JSON object and nothing else", "print everything but the answer to stderr; answer in UTF-8"
    ),
    "protocol.fields": PluginRule(
        "the answer has the fields and types of the protocol", "see docs/plugins.md, The answer"
    ),
    "protocol.limits": PluginRule("the answer keeps the limits", "return less: fewer events, a smaller state"),
    "protocol.exit_code": PluginRule(
        "an ok answer exits with 0, nothing dies by a signal", "exit 0 with an answer; 78 for wrong configuration"
    ),
    "protocol.unknown_fields": PluginRule(
        "fields it does not know change nothing", "ignore unknown fields of the request"
    ),
    "protocol.missing_fields": PluginRule(
        "it answers when payload, event and context are absent", "treat an absent field as empty"
    ),
    "protocol.unicode": PluginRule("it answers whatever characters a payload has", "read and write UTF-8; escape JSON"),
    "robust.large_input": PluginRule(
        "it answers a request of 2 MiB", "read all of stdin, without arguments or line limits"
    ),
    "robust.sigterm": PluginRule("it ends soon after SIGTERM", "do not ignore SIGTERM; end children too"),
    "robust.secrets": PluginRule(
        "secrets of its configuration do not come back", "never put configuration values into answers, logs or stderr"
    ),
    "robust.leftovers": PluginRule("no process outlives it", "wait for every child before exiting"),
    "robust.files": PluginRule(
        "it leaves no files in its working or own directory", "write where the configuration says"
    ),
    "robust.stderr": PluginRule("stderr keeps below what is kept of it", "say less on stderr"),
    "robust.configuration": PluginRule(
        "without its required configuration it fails for good", "exit with 78, or answer with `retry: false`"
    ),
    "robust.other_protocol": PluginRule("it refuses a protocol it does not speak", "say so on stderr and exit with 78"),
    "robust.fixtures": PluginRule("its fixtures hold", "run `ductile plugin test` to see the differences"),
    "exemplary.described": PluginRule("the plugin and each command have a description", "write one line each"),
    "exemplary.readme": PluginRule(
        "README.md names every command and every configuration key", "describe what is missing in README.md"
    ),
    "exemplary.health": PluginRule(
        "it has a command `health`", "declare `health`, type read: can it work as configured?"
    ),
    "exemplary.contract": PluginRule(
        "each command says what it emits or returns", "declare `values.emit` or `output_schema`"
    ),
    "exemplary.declared_events": PluginRule("it emits only events that it declares", "list the event in `values.emit`"),
    "exemplary.output_schema": PluginRule(
        "what it emits fits its output_schema", "correct the schema or the payload of the event"
    ),
    "exemplary.fixtures": PluginRule("each command has a fixture", "write fixtures/<command>.json"),
    "exemplary.idempotent": PluginRule(
        "asked twice with one job_id, a command that says it is idempotent answers alike",
        "derive events and dedupe keys from the request, or declare `idempotent: false`",
    ),
}


@frozen(kw_only=True)
class Judgement:
    """What was found about one rule."""

    rule: str
    result: str
    """pass, fail or skip."""
    reason: str

    @property
    def level(self) -> str:
        return self.rule.partition(".")[0]


@define
class Notebook:
    """What was seen so far: for each rule that was looked at, every complaint."""

    _seen: dict[str, list[str]] = field(factory=dict)

    def note(self, rule: str, complaint: str | None) -> None:
        """The rule was looked at, and was kept if there is nothing to complain about."""
        complaints = self._seen.setdefault(rule, [])
        if complaint is not None and complaint not in complaints:
            complaints.append(complaint)

    def judgements(self) -> list[Judgement]:
        """One for each rule, in order."""
        return [self._judgement(rule) for rule in RULES]

    def _judgement(self, rule: str) -> Judgement:
        if rule not in self._seen:
            return Judgement(rule=rule, result="skip", reason="nothing to look at")
        complaints = self._seen[rule]
        if complaints:
            return Judgement(rule=rule, result="fail", reason="; ".join(complaints))
        return Judgement(rule=rule, result="pass", reason=RULES[rule].asks)


def level_reached(judgements: Sequence[Judgement]) -> str | None:
    """The highest level that was looked at and of which no rule, and none below it, is broken."""
    reached = None
    for level in LEVELS:
        results = {judgement.result for judgement in judgements if judgement.level == level}
        if "fail" in results or "pass" not in results:
            break
        reached = level
    return reached
