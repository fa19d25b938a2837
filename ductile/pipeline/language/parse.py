"""Parse one pipeline: assign step ids, parse conditions, templates and claims, collect all errors.

Does not know plugins or other pipelines. `compile` resolves calls and is the only caller.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from attrs import define, field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.formats.yaml_fields import COMMAND
from ductile.core.message import ReplyTopics, default_reply_topics, timeout_topic_of
from ductile.core.model import HANDLE
from ductile.core.units import quote_text
from ductile.pipeline.language.baggage import Claims, parse_claims
from ductile.pipeline.language.conditions import Condition, parse_condition, paths_of
from ductile.pipeline.language.dsl import Pipeline, PublishStep, RelayStep, ReplyStep, Step, iter_steps
from ductile.pipeline.language.paths import LanguageError, Path, parse_path
from ductile.pipeline.language.templates import Fixed, Template, parse_template, parse_with

CATEGORY = "pipelines"
MAX_ITEMS = 1000
SWITCH_SUFFIX, JOIN_SUFFIX = "__switch", "__join"
INTERNAL = "ductile"
"""The prefix of internal event types and of reserved step ids."""

_T = TypeVar("_T")
_FLOW = frozenset({"payload", "context"})


@frozen(eq=False)
class UsesAction:
    """A plugin command to run."""

    plugin: str
    command: str
    with_: Mapping[str, Template]
    baggage: Claims | None


@frozen(eq=False)
class CallAction:
    """A call of another pipeline."""

    pipeline: str


@frozen(kw_only=True)
class Relay:
    """The event that a relay step sends."""

    to: str
    event: str
    dedupe_key: Template | None = None
    with_: Mapping[str, Template] | None = field(default=None, repr=False)
    """Templates of the remote payload; None sends the current payload."""
    baggage: Claims | None = None


@frozen(eq=False)
class RelayAction:
    """An event to send to another instance."""

    relay: Relay


@frozen(kw_only=True)
class ReplyWait:
    """The replies that a publish step waits for, and for how long."""

    topics: ReplyTopics
    timeout: timedelta


@frozen(kw_only=True)
class Publish:
    """The message that a publish step writes."""

    topic: str
    body: Template | None = field(default=None, repr=False)
    """None publishes the current payload."""
    metadata: Mapping[str, Template] = field(factory=dict, repr=False)
    wait: ReplyWait | None = None


@frozen(eq=False)
class PublishAction:
    """A message to publish."""

    publish: Publish


@frozen(eq=False)
class StepsAction:
    """Steps that run in sequence."""

    steps: "tuple[ParsedStep, ...]"


@frozen(eq=False)
class SplitAction:
    """Steps that run in parallel."""

    branches: "tuple[ParsedStep, ...]"


Action = UsesAction | CallAction | RelayAction | PublishAction | StepsAction | SplitAction


@frozen(eq=False, kw_only=True)
class ParsedStep:
    """A step with its parsed parts."""

    id: str
    where: str
    action: Action
    condition: Condition | None
    foreach: Path | None
    max_items: int
    join: bool
    on_error: "tuple[ParsedStep, ...]"
    tolerated: bool


@frozen(eq=False)
class ParsedPipeline:
    """A pipeline with its parsed parts."""

    source: Pipeline = field(repr=False)
    where: str
    condition: Condition | None
    steps: tuple[ParsedStep, ...]

    @property
    def name(self) -> str:
        return self.source.name

    def calls(self) -> "Iterator[tuple[str, str]]":
        """Yield the name of every called pipeline with the configuration path of the call."""
        for step in iter_parsed_steps(self.steps):
            if isinstance(step.action, CallAction):
                yield step.action.pipeline, f"{step.where}.call"


def iter_parsed_steps(steps: tuple[ParsedStep, ...]) -> Iterator[ParsedStep]:
    """Yield every step and nested step, in textual order."""
    for step in steps:
        yield step
        match step.action:
            case StepsAction(inner) | SplitAction(inner):
                yield from iter_parsed_steps(inner)
        yield from iter_parsed_steps(step.on_error)


def parse_pipeline(
    pipeline: Pipeline, where: str, names: Collection[str], complaints: list[Complaint]
) -> ParsedPipeline:
    """Parse `pipeline` and append its errors to `complaints`.

    After an error, the result is only useful for finding more errors.
    """
    parser = _Parser(names, complaints)
    parser.assign_ids(pipeline, where)
    _check_trigger(parser, pipeline, where)
    condition = parser.condition(pipeline.if_, f"{where}.if", _FLOW)
    return ParsedPipeline(pipeline, where, condition, parser.steps(pipeline.steps, f"{where}.steps", in_foreach=False))


def _check_trigger(parser: "_Parser", pipeline: Pipeline, where: str) -> None:
    if (pipeline.on is None) == (pipeline.on_hook is None):
        found = "has none of them" if pipeline.on is None else "has both"
        parser.report(where, f"needs exactly one of on, on-hook; it {found}")
    if pipeline.on is not None and (pipeline.on == INTERNAL or pipeline.on.startswith(f"{INTERNAL}.")):
        parser.report(f"{where}.on", f"{quote_text(pipeline.on)} cannot be a trigger: {INTERNAL}.* events are internal")


@define
class _Parser:
    """The state of parsing one pipeline."""

    names: Collection[str]
    complaints: list[Complaint]
    ids: dict[str, str] = field(factory=dict)
    """Configuration path of a step → its id."""

    def report(self, where: str, message: str) -> None:
        self.complaints.append(Complaint(message, where, category=CATEGORY))

    def assign_ids(self, pipeline: Pipeline, where: str) -> None:
        """Give every step an id: the configured one, or the next free `step_<n>`."""
        steps_by_path = list(iter_steps(pipeline.steps, f"{where}.steps"))
        taken: dict[str, str] = {}
        for path, step in steps_by_path:
            if step.id is None:
                continue
            if problem := _reserved_reason(step.id):
                self.report(f"{path}.id", f"{quote_text(step.id)} is reserved: {problem}")
            elif step.id in taken:
                self.report(f"{path}.id", f"{quote_text(step.id)} is used twice; {taken[step.id]} already uses it")
            taken.setdefault(step.id, path)
        unused = (name for number in count(1) if (name := f"step_{number}") not in taken)
        self.ids = {path: step.id or next(unused) for path, step in steps_by_path}

    def steps(self, steps: tuple[Step, ...], where: str, *, in_foreach: bool) -> tuple[ParsedStep, ...]:
        return tuple(self.step(step, f"{where}[{index}]", in_foreach=in_foreach) for index, step in enumerate(steps))

    def step(self, step: Step, where: str, *, in_foreach: bool) -> ParsedStep:
        kinds = [kind for kind in Step.EXACTLY_ONE if getattr(step, kind) is not None]
        if len(kinds) != 1:
            found = f"has {' and '.join(kinds)}" if kinds else "has none of them"
            self.report(where, f"needs exactly one of {', '.join(Step.EXACTLY_ONE)}; it {found}")
        else:
            for key, reason in _misplaced_keys(step, kinds[0]):
                self.report(f"{where}.{key}", reason)
        has_item = in_foreach or step.foreach is not None
        roots = _FLOW | {"item"} if has_item else _FLOW
        return ParsedStep(
            id=self.ids[where],
            where=where,
            action=self.action(step, where, roots),
            condition=self.condition(step.if_, f"{where}.if", roots | {"config"}, has_plugin=step.uses is not None),
            foreach=self.source(step.foreach, f"{where}.foreach", _FLOW | {"item"} if in_foreach else _FLOW),
            max_items=step.max_items or MAX_ITEMS,
            join=step.join,
            on_error=self.steps(step.on_error or (), f"{where}.on_error", in_foreach=has_item),
            tolerated=step.continue_,
        )

    def action(self, step: Step, where: str, roots: frozenset[str]) -> Action:
        if step.relay is not None:
            return RelayAction(self.relay(step.relay, f"{where}.relay", roots))
        if step.publish is not None:
            return PublishAction(self.publish(step.publish, f"{where}.publish", roots))
        if step.steps is not None:
            return StepsAction(self.steps(step.steps, f"{where}.steps", in_foreach="item" in roots))
        if step.split is not None:
            return SplitAction(self.steps(step.split, f"{where}.split", in_foreach="item" in roots))
        if step.call is not None:
            return CallAction(step.call)
        plugin, command = self.target(step.uses or "", f"{where}.uses")
        with_ = self.parsed(f"{where}.with", lambda: parse_with(step.with_ or {}, roots=roots))
        return UsesAction(plugin, command, with_ or {}, self.claims(step.baggage, f"{where}.baggage", roots))

    def target(self, text: str, where: str) -> tuple[str, str]:
        """Split `uses` into plugin and command, `handle` by default.

        A dot separates a command unless it is part of a configured name.
        """
        plugin, dot, command = text.rpartition(".")
        if text in self.names or not dot:
            return text, HANDLE
        if plugin == "core":
            self.report(
                where,
                f"{quote_text(text)} is internal to Ductile; use `if`, `foreach`, `join`, `relay` or `publish` instead",
            )
        elif not plugin or not COMMAND.allows(command):
            self.report(where, f"{quote_text(text)} is not a plugin, an alias or `plugin.command`")
        return plugin, command

    def relay(self, relay: RelayStep, where: str, roots: frozenset[str]) -> Relay:
        bare = None if relay.with_ is None else {name: _in_braces(raw) for name, raw in relay.with_.items()}
        sent = None if bare is None else self.parsed(f"{where}.with", lambda: parse_with(bare, roots=roots))
        dedupe = _in_braces(relay.dedupe_key)
        key = self.parsed(f"{where}.dedupe_key", lambda: parse_template(dedupe, roots=roots)) if dedupe else None
        if isinstance(key, Fixed):
            self.report(f"{where}.dedupe_key", "is the same for every event; use a value such as payload.id")
        baggage = self.claims(relay.baggage, f"{where}.baggage", roots)
        return Relay(to=relay.to, event=relay.event, dedupe_key=key, with_=sent, baggage=baggage)

    def publish(self, publish: PublishStep, where: str, roots: frozenset[str]) -> Publish:
        raw, body = publish.body, None
        if raw is not None:
            body = self.parsed(f"{where}.body", lambda: parse_template(raw, roots=roots))
        metadata = self.parsed(f"{where}.metadata", lambda: parse_with(publish.metadata or {}, roots=roots))
        wait = None if publish.wait is None else self.reply_wait(publish.topic, publish.wait, f"{where}.wait")
        return Publish(topic=publish.topic, body=body, metadata=metadata or {}, wait=wait)

    def reply_wait(self, topic: str, wait: ReplyStep, where: str) -> ReplyWait:
        defaults = default_reply_topics(topic)
        success = wait.success_topic or (defaults.success if defaults else None)
        failure = wait.failure_topic or (defaults.failure if defaults else None)
        for key, found in (("success_topic", success), ("failure_topic", failure)):
            if found is None:
                self.report(f"{where}.{key}", f"is required, because topic {topic} does not end in .request")
            elif found == topic:
                self.report(f"{where}.{key}", "is the topic of the message itself; a reply has another topic")
        if success is not None and success == failure:
            self.report(f"{where}.failure_topic", "is also the success_topic")
        topics = ReplyTopics(success=success or topic, failure=failure or topic, timeout=timeout_topic_of(topic))
        return ReplyWait(topics=topics, timeout=wait.timeout)

    def condition(self, raw: Any, where: str, roots: frozenset[str], *, has_plugin: bool = False) -> Condition | None:
        if raw is None:
            return None
        condition = self.parsed(where, lambda: parse_condition(raw, roots=roots))
        if condition and not has_plugin:
            for path in paths_of(condition):
                if path.root == "config":
                    self.report(
                        where,
                        f"{path} is not available here: `config` is the configuration of the plugin of a `uses` step",
                    )
        return condition

    def source(self, text: str | None, where: str, roots: frozenset[str]) -> Path | None:
        return None if text is None else self.parsed(where, lambda: parse_path(text, roots=roots))

    def claims(self, raw: Any, where: str, roots: frozenset[str]) -> Claims | None:
        return None if raw is None else self.parsed(where, lambda: parse_claims(raw, roots=roots))

    def parsed(self, where: str, parse: Callable[[], _T]) -> _T | None:
        """Return the result of `parse`; on errors, report them and return None."""
        try:
            return parse()
        except LanguageError as malformed:
            for complaint in malformed.complaints:
                self.report(_join_path(where, complaint.path), complaint.message)
            return None


def _reserved_reason(name: str) -> str | None:
    for suffix in (SWITCH_SUFFIX, JOIN_SUFFIX):
        if name.endswith(suffix):
            return f"names ending in {suffix} are generated by Ductile"
    if name == INTERNAL or name.startswith(f"{INTERNAL}."):
        return f"`{INTERNAL}` is used by Ductile itself"
    return None


def _misplaced_keys(step: Step, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that have no meaning on a step of this kind, each with a message."""
    advice = "set it inside `relay`" if kind == "relay" else "set it on the steps that need it"
    if kind == "publish":
        advice = "templates of the message are `publish.body` and `publish.metadata`"
    if kind != "uses":
        for key, value in (("with", step.with_), ("baggage", step.baggage)):
            if value is not None:
                yield key, f"is allowed only on a `uses` step; {advice}"
    if kind not in ("uses", "relay", "publish"):
        for key, is_there in (("on_error", step.on_error is not None), ("continue", step.continue_)):
            if is_there:
                yield key, "is allowed only on a `uses`, `relay` or `publish` step; set it on the steps that can fail"
    if step.on_error == () and not step.continue_:
        yield "on_error", "is empty; add steps, or set `continue: true`"
    if step.max_items is not None and step.foreach is None:
        yield "max_items", "requires `foreach`"
    if step.join and kind != "split" and step.foreach is None:
        yield "join", "requires `split` or `foreach`"


def _in_braces(raw: Any) -> Any:
    """Put braces around a bare path of a relay, so that it is parsed as a template.

    Text that resembles a path is treated as one, so that a typo is reported instead of sent as text.
    """
    if not isinstance(raw, str) or "{" in raw or "}" in raw:
        return raw
    root, dot, _ = raw.partition(".")
    is_path = root in _ROOTS or (dot and did_you_mean(root, _ROOTS))
    return f"{{{raw}}}" if is_path else raw


_ROOTS = ("payload", "context", "item", "config")


def _join_path(where: str, inner: str) -> str:
    if not inner or inner.startswith("["):
        return where + inner
    return f"{where}.{inner}"
