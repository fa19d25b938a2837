"""Warnings about pipelines, based on the installed plugins and the events that their manifests declare.

Errors about unknown plugins and commands are reported by `doctor`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from attrs import frozen

from ductile.config.load.load import Config
from ductile.core.errors import Complaint
from ductile.core.units import format_duration
from ductile.pipeline.compile.graph import find_cycles, format_cycle
from ductile.pipeline.compile.plan import Plan, PlanNode
from ductile.pipeline.language.conditions import paths_of
from ductile.pipeline.language.dsl import Step, iter_steps
from ductile.pipeline.run.route import SIGNALS
from ductile.plugin.manifest import Emission
from ductile.plugin.registry import Plugin

MAX_REPORTED_CYCLES = 20
_REFERENCE = re.compile(r"(?:payload|context|item)(?:\.[\w-]+)*", re.ASCII)
_WITH_DOLLAR = re.compile(rf"\$\{{({_REFERENCE.pattern})\}}", re.ASCII)
_DOUBLED = re.compile(r"\{\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*\}\}", re.ASCII)


def declared_emissions(node: PlanNode, plugins: Mapping[str, Plugin]) -> tuple[Emission, ...]:
    """Return the events that the manifest declares for the node's command."""
    plugin = plugins.get(node.plugin)
    command = plugin.manifest.commands.get(node.command) if plugin else None
    return command.values.emit if command else ()


@frozen
class PipelineChecks:
    """The checks of all pipelines of a configuration."""

    config: Config
    plugins: Mapping[str, Plugin]

    def warnings(self) -> Iterator[Complaint]:
        for plan in self.config.plans.by_name.values():
            yield from self._disabled(plan)
            yield from self._timeouts(plan)
            yield from self._hook(plan)
        yield from self._hook_cycles()
        yield from self._event_cycles()

    def _disabled(self, plan: Plan) -> Iterator[Complaint]:
        """Yield a warning for each step that uses a disabled plugin or instance."""
        settings = self.config.settings
        disabled = {name for name, entry in settings.plugins.items() if not entry.enabled}
        disabled_instances = {instance.name for instance in settings.instances if not instance.enabled}
        for node in plan.own_nodes:
            if node.kind == "uses" and node.plugin in disabled:
                message = f"plugin {node.plugin} is disabled; runs that reach this step fail"
                yield self._complaint(message, f"{node.where}.uses", "pipelines")
            if node.relay and node.relay.to in disabled_instances:
                message = f"instance {node.relay.to} is disabled; runs that reach this step fail"
                yield self._complaint(message, f"{node.where}.relay.to", "pipelines")
        if plan.from_plugin in disabled:
            message = f"plugin {plan.from_plugin} is disabled, so it cannot start this pipeline"
            yield self._complaint(message, f"{plan.where}.from_plugin", "pipelines")

    def _timeouts(self, plan: Plan) -> Iterator[Complaint]:
        limit = self.config.settings.api.max_sync_timeout
        if plan.execution_mode == "synchronous" and plan.timeout > limit:
            message = (
                f"{format_duration(plan.timeout)} is longer than api.max_sync_timeout ({format_duration(limit)}); "
                "requests do not wait longer than that"
            )
            yield self._complaint(message, f"{plan.where}.timeout", "pipelines")

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hook(self, plan: Plan) -> Iterator[Complaint]:
        if plan.hook is None:
            return
        if plan.condition and any(path.root == "context" for path in paths_of(plan.condition)):
            message = (
                "reads context.*, which is always empty here: a hook does not inherit the context of the finished job"
            )
            yield self._complaint(message, f"{plan.where}.if", "pipelines")
        needs_notice = plan.hook in SIGNALS and plan.name not in self._called()
        if needs_notice and not any(plan.accepts_source(name) for name in self._notifying()):
            subject = f"plugin {plan.from_plugin} does not have" if plan.from_plugin else "no plugin has"
            message = f"cannot be triggered: {subject} notify_on_complete: true"
            yield self._complaint(message, f"{plan.where}.on-hook", "pipelines")

    def _called(self) -> set[str]:
        plans = self.config.plans.by_name.values()
        return {node.pipeline for plan in plans for node in plan.nodes.values() if node.call_depth}

    def _hook_cycles(self) -> Iterator[Complaint]:
        """Hooks of jobs fire for root jobs, which are the first jobs of a run. Hook runs fire no hooks of runs."""
        hooks = [plan for signal, plans in self.config.plans.by_hook.items() if signal in SIGNALS for plan in plans]
        successors = {
            plan.name: [
                other.name
                for other in hooks
                if any(
                    node.min_depth == 1 and node.plugin in self._notifying() and other.accepts_source(node.plugin)
                    for node in plan.nodes.values()
                )
            ]
            for plan in hooks
        }
        depth = self.config.settings.service.hook_max_depth
        advice = (
            f"service.hook_max_depth stops it after {depth}; use from_plugin or a plugin without notify_on_complete"
        )
        yield from self._cycles(successors, f"hooks form a cycle: {{cycle}}; {advice}", "hook_cycles")

    def _notifying(self) -> list[str]:
        return [name for name, entry in self.config.settings.plugins.items() if entry.notify_on_complete]

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _event_cycles(self) -> Iterator[Complaint]:
        plans = self.config.plans
        successors = {
            plan.name: list(
                dict.fromkeys(
                    other.name
                    for node in plan.nodes.values()
                    for emission in declared_emissions(node, self.plugins)
                    for other in plans.for_event(emission.event)
                    if other.accepts_source(node.plugin)
                )
            )
            for plan in plans.by_name.values()
        }
        advice = f"service.limits.hops stops it after {self.config.settings.service.limits.hops}"
        message = f"events may form a cycle of pipelines: {{cycle}}; {advice}"
        yield from self._cycles(successors, message, "event_cycles")

    def _cycles(self, successors: Mapping[str, Iterable[str]], message: str, category: str) -> Iterator[Complaint]:
        for cycle in islice(find_cycles(successors), MAX_REPORTED_CYCLES):
            where = self.config.plans.require(cycle[0]).where
            yield self._complaint(message.format(cycle=format_cycle(cycle)), where, category)

    def _complaint(self, message: str, path: str, category: str) -> Complaint:
        return self.config.complaint(message, path, category)


# ── braces of references ──────────────────────────────────────────────────────────────────────────────────────────────


def find_wrong_braces(config: Config) -> Iterator[Complaint]:
    """Yield a warning for each value that is probably meant as a reference."""
    for index, pipeline in enumerate(config.settings.pipelines):
        for path, step in iter_steps(pipeline.steps, f"pipelines[{index}].steps"):
            for key, value in _templates(step):
                for where, message in _wrong_braces(value, f"{path}.{key}"):
                    yield config.complaint(message, where, "pipelines")


def _templates(step: Step) -> Iterator[tuple[str, Any]]:
    yield "with", step.with_
    if step.relay is not None:
        yield "relay.with", step.relay.with_
    if step.publish is not None:
        yield "publish.body", step.publish.body
        yield "publish.metadata", step.publish.metadata


def _wrong_braces(value: Any, where: str) -> Iterator[tuple[str, str]]:
    match value:
        case dict() if len(value) == 1 and _is_bare_reference(*value.items()):
            name, key = where.rpartition(".")[2], next(iter(value))
            yield where, f'is a mapping with the key {key}; put quotes around a reference: {name}: "{{{key}}}"'
        case dict():
            for name, member in value.items():
                yield from _wrong_braces(member, f"{where}.{name}")
        case list():
            for index, item in enumerate(value):
                yield from _wrong_braces(item, f"{where}[{index}]")
        case str() if found := _DOUBLED.search(value):
            yield where, f"has double braces, which are literal text; {_with_single_braces(found[1])}"
        case str() if found := _WITH_DOLLAR.fullmatch(value):
            yield where, f"has a '$', which is literal text here; {_with_single_braces(found[1])}"


def _is_bare_reference(member: tuple[str, Any]) -> bool:
    """True for the only member of `{payload.text}`, which YAML reads as a mapping with a key and no value."""
    name, value = member
    return value is None and _REFERENCE.fullmatch(name) is not None


def _with_single_braces(path: str) -> str:
    """Return the advice. Quotes only a path, because other text may come from the environment and be secret."""
    example = path if _REFERENCE.fullmatch(path) else "payload.text"
    return f'write a reference with single braces, such as "{{{example}}}"'
