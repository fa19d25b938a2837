"""Pipelines as written → pipelines as meant: ids given, conditions, templates and claims parsed, all mistakes told.

Looks at one pipeline at a time and knows no plugin: what a name stands for, and what calls what, is asked later.
`compile` is the only caller.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from attrs import define, field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.formats.yaml_fields import COMMAND
from ductile.core.units import shown
from ductile.pipeline.compile.plan import CORE, HANDLE, Relay
from ductile.pipeline.language.baggage import Claims, parse_claims
from ductile.pipeline.language.conditions import Condition, parse_condition, paths_of
from ductile.pipeline.language.dsl import Pipeline, RelayStep, Step, textual
from ductile.pipeline.language.paths import LanguageError, Path, parse_path
from ductile.pipeline.language.templates import Fixed, Template, parse_template, parse_with

CATEGORY = "pipelines"
MAX_ITEMS = 1000
SWITCH_SUFFIX, JOIN_SUFFIX = "__switch", "__join"
INTERNAL = "ductile"
"""The core's own event types begin with it and a dot."""

_T = TypeVar("_T")
_FLOW = frozenset({"payload", "context"})


@frozen(eq=False)
class PluginReference:
    """A plugin's command."""

    plugin: str
    command: str
    with_: Mapping[str, Template]
    baggage: Claims | None


@frozen(eq=False)
class Calls:
    """The steps of another pipeline."""

    pipeline: str


@frozen(eq=False)
class Sends:
    """An event for another instance."""

    relay: Relay


@frozen(eq=False)
class InTurn:
    """Steps one after the other."""

    steps: "tuple[ReadStep, ...]"


@frozen(eq=False)
class Beside:
    """Steps next to each other."""

    branches: "tuple[ReadStep, ...]"


Action = PluginReference | Calls | Sends | InTurn | Beside


@frozen(eq=False, kw_only=True)
class ReadStep:
    """A step whose every part is understood."""

    id: str
    where: str
    action: Action
    condition: Condition | None
    foreach: Path | None
    max_items: int
    join: bool
    on_error: "tuple[ReadStep, ...]"
    tolerated: bool


@frozen(eq=False)
class ReadPipeline:
    """A pipeline whose every part is understood."""

    written: Pipeline = field(repr=False)
    where: str
    condition: Condition | None
    steps: tuple[ReadStep, ...]

    @property
    def name(self) -> str:
        return self.written.name

    def calls(self) -> "Iterator[tuple[str, str]]":
        """Every call: the pipeline that is called, and where it is written."""
        for step in every(self.steps):
            if isinstance(step.action, Calls):
                yield step.action.pipeline, f"{step.where}.call"


def every(steps: tuple[ReadStep, ...]) -> Iterator[ReadStep]:
    """All of them and what is inside them, in textual order."""
    for step in steps:
        yield step
        match step.action:
            case InTurn(inner) | Beside(inner):
                yield from every(inner)
        yield from every(step.on_error)


def read(pipeline: Pipeline, where: str, names: Collection[str], complaints: list[Complaint]) -> ReadPipeline:
    """`pipeline` as it is meant. What cannot be meant is in `complaints`; then the result is only good for more."""
    reading = _Reading(names, complaints)
    reading.number(pipeline, where)
    _check_trigger(reading, pipeline, where)
    condition = reading.condition(pipeline.if_, f"{where}.if", _FLOW)
    return ReadPipeline(pipeline, where, condition, reading.steps(pipeline.steps, f"{where}.steps", in_foreach=False))


def _check_trigger(reading: "_Reading", pipeline: Pipeline, where: str) -> None:
    if (pipeline.on is None) == (pipeline.on_hook is None):
        found = "has none of them" if pipeline.on is None else "has both"
        reading.say(where, f"needs exactly one of on, on-hook; it {found}")
    if pipeline.on is not None and (pipeline.on == INTERNAL or pipeline.on.startswith(f"{INTERNAL}.")):
        reading.say(f"{where}.on", f"{shown(pipeline.on)} starts nothing: events of {INTERNAL}.* stay inside their run")


@define
class _Reading:
    """One pass over one pipeline."""

    names: Collection[str]
    complaints: list[Complaint]
    ids: dict[str, str] = field(factory=dict)
    """Where a step is written → its id."""

    def say(self, where: str, message: str) -> None:
        self.complaints.append(Complaint(message, where, category=CATEGORY))

    def number(self, pipeline: Pipeline, where: str) -> None:
        """Every step has an id: its own, or the next `step_<n>` that nobody took."""
        places = list(textual(pipeline.steps, f"{where}.steps"))
        taken: dict[str, str] = {}
        for place, step in places:
            if step.id is None:
                continue
            if problem := _reserved(step.id):
                self.say(f"{place}.id", f"{shown(step.id)} is reserved: {problem}")
            elif step.id in taken:
                self.say(f"{place}.id", f"{shown(step.id)} is used twice; {taken[step.id]} has it already")
            taken.setdefault(step.id, place)
        fresh = (name for number in count(1) if (name := f"step_{number}") not in taken)
        self.ids = {place: step.id or next(fresh) for place, step in places}

    def steps(self, steps: tuple[Step, ...], where: str, *, in_foreach: bool) -> tuple[ReadStep, ...]:
        return tuple(self.step(step, f"{where}[{index}]", in_foreach=in_foreach) for index, step in enumerate(steps))

    def step(self, step: Step, where: str, *, in_foreach: bool) -> ReadStep:
        kinds = [kind for kind in Step.EXACTLY_ONE if getattr(step, kind) is not None]
        if len(kinds) != 1:
            found = f"has {' and '.join(kinds)}" if kinds else "has none of them"
            self.say(where, f"needs exactly one of {', '.join(Step.EXACTLY_ONE)}; it {found}")
        else:
            for key, reason in _misplaced(step, kinds[0]):
                self.say(f"{where}.{key}", reason)
        has_item = in_foreach or step.foreach is not None
        roots = _FLOW | {"item"} if has_item else _FLOW
        return ReadStep(
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
            return Sends(self.relay(step.relay, f"{where}.relay", roots))
        if step.steps is not None:
            return InTurn(self.steps(step.steps, f"{where}.steps", in_foreach="item" in roots))
        if step.split is not None:
            return Beside(self.steps(step.split, f"{where}.split", in_foreach="item" in roots))
        if step.call is not None:
            return Calls(step.call)
        plugin, command = self.target(step.uses or "", f"{where}.uses")
        with_ = self.parsed(f"{where}.with", lambda: parse_with(step.with_ or {}, roots=roots))
        return PluginReference(plugin, command, with_ or {}, self.claims(step.baggage, f"{where}.baggage", roots))

    def target(self, text: str, where: str) -> tuple[str, str]:
        """A plugin or alias means its `handle`; a dot that is not part of such a name comes before a command."""
        plugin, dot, command = text.rpartition(".")
        if text in self.names or not dot:
            return text, HANDLE
        if plugin == CORE:
            self.say(where, f"{shown(text)} is a part of Ductile; write `if`, `foreach`, `join` or `relay` instead")
        elif not plugin or not COMMAND.allows(command):
            self.say(where, f"{shown(text)} is not a plugin, an alias or plugin.command")
        return plugin, command

    def relay(self, relay: RelayStep, where: str, roots: frozenset[str]) -> Relay:
        bare = None if relay.with_ is None else {name: _in_braces(raw) for name, raw in relay.with_.items()}
        sent = None if bare is None else self.parsed(f"{where}.with", lambda: parse_with(bare, roots=roots))
        dedupe = _in_braces(relay.dedupe_key)
        key = self.parsed(f"{where}.dedupe_key", lambda: parse_template(dedupe, roots=roots)) if dedupe else None
        if isinstance(key, Fixed):
            self.say(f"{where}.dedupe_key", "is the same for every event; name a value such as payload.id")
        baggage = self.claims(relay.baggage, f"{where}.baggage", roots)
        return Relay(to=relay.to, event=relay.event, dedupe_key=key, with_=sent, baggage=baggage)

    def condition(self, raw: Any, where: str, roots: frozenset[str], *, has_plugin: bool = False) -> Condition | None:
        if raw is None:
            return None
        condition = self.parsed(where, lambda: parse_condition(raw, roots=roots))
        if condition and not has_plugin:
            for path in paths_of(condition):
                if path.root == "config":
                    self.say(where, f"{path} cannot be read here: `config` is that of the plugin of a `uses` step")
        return condition

    def source(self, text: str | None, where: str, roots: frozenset[str]) -> Path | None:
        return None if text is None else self.parsed(where, lambda: parse_path(text, roots=roots))

    def claims(self, raw: Any, where: str, roots: frozenset[str]) -> Claims | None:
        return None if raw is None else self.parsed(where, lambda: parse_claims(raw, roots=roots))

    def parsed(self, where: str, parse: Callable[[], _T]) -> _T | None:
        """What `parse` makes of it; None when it complains, which is then told."""
        try:
            return parse()
        except LanguageError as malformed:
            for complaint in malformed.complaints:
                self.say(_below(where, complaint.path), complaint.message)
            return None


def _reserved(name: str) -> str | None:
    for suffix in (SWITCH_SUFFIX, JOIN_SUFFIX):
        if name.endswith(suffix):
            return f"names that end in {suffix} are given by Ductile"
    if name == INTERNAL or name.startswith(f"{INTERNAL}."):
        return f"{INTERNAL} is the core's own name"
    return None


def _misplaced(step: Step, kind: str) -> Iterator[tuple[str, str]]:
    """Keys that mean nothing on a step of this kind, and what to do instead."""
    own = "; a relay has its own inside `relay`" if kind == "relay" else "; put it on the steps that need it"
    if kind != "uses":
        for key, value in (("with", step.with_), ("baggage", step.baggage)):
            if value is not None:
                yield key, f"works on a `uses` step only{own}"
    if kind not in ("uses", "relay"):
        for key, is_there in (("on_error", step.on_error is not None), ("continue", step.continue_)):
            if is_there:
                yield key, "works on a `uses` or `relay` step only; put it on the steps that may fail"
    if step.on_error == () and not step.continue_:
        yield "on_error", "has no steps; write some, or `continue: true`"
    if step.max_items is not None and step.foreach is None:
        yield "max_items", "works with `foreach` only"
    if step.join and kind != "split" and step.foreach is None:
        yield "join", "has nothing to wait for: it works on a `split`, or with `foreach`"


def _in_braces(raw: Any) -> Any:
    """A relay may name a value by its bare path; written in braces it is an ordinary template.

    What is nearly such a path is treated as one, so that a typing mistake is told and not sent.
    """
    if not isinstance(raw, str) or "{" in raw or "}" in raw:
        return raw
    root, dot, _ = raw.partition(".")
    is_path = root in _ROOTS or (dot and did_you_mean(root, _ROOTS))
    return f"{{{raw}}}" if is_path else raw


_ROOTS = ("payload", "context", "item", "config")


def _below(where: str, inner: str) -> str:
    if not inner or inner.startswith("["):
        return where + inner
    return f"{where}.{inner}"
