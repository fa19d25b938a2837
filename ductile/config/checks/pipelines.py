"""The doctor's look at pipelines: plans held against the plugins that are really there and what these say they emit.

Warnings only: what is worth a look but may be meant. Called by `check`, which owns the errors about unknown names.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from attrs import frozen

from ductile.config.load.load import Config
from ductile.core.errors import Complaint
from ductile.core.units import format_duration
from ductile.pipeline.compile.graph import circles, way
from ductile.pipeline.compile.plan import Plan, PlanNode
from ductile.pipeline.language.conditions import paths_of
from ductile.plugin.manifest import Emission
from ductile.plugin.registry import Plugin

MOST_CIRCLES = 20


def emissions(node: PlanNode, plugins: Mapping[str, Plugin]) -> tuple[Emission, ...]:
    """What the manifest says the node's command emits; nothing if it does not say."""
    plugin = plugins.get(node.plugin)
    command = plugin.manifest.commands.get(node.command) if plugin else None
    return command.values.emit if command else ()


@frozen
class Workflows:
    """All pipelines of a configuration, beside the plugins it can use."""

    config: Config
    plugins: Mapping[str, Plugin]

    def warnings(self) -> Iterator[Complaint]:
        for plan in self.config.plans.by_name.values():
            yield from self._idle(plan)
            yield from self._waiting(plan)
            yield from self._hook(plan)
        yield from self._hook_circles()
        yield from self._event_circles()

    def _idle(self, plan: Plan) -> Iterator[Complaint]:
        """Steps that cannot run for now, because the operator says so."""
        settings = self.config.settings
        disabled = {name for name, entry in settings.plugins.items() if not entry.enabled}
        closed = {instance.name for instance in settings.instances if not instance.enabled}
        for node in plan.own_nodes:
            if node.kind == "uses" and node.plugin in disabled:
                message = f"plugin {node.plugin} is disabled; a run that comes here fails"
                yield self._say(message, f"{node.where}.uses", "pipelines")
            if node.relay and node.relay.to in closed:
                message = f"instance {node.relay.to} is disabled; a run that comes here fails"
                yield self._say(message, f"{node.where}.relay.to", "pipelines")
        if plan.from_plugin in disabled:
            message = f"plugin {plan.from_plugin} is disabled; nothing can start this"
            yield self._say(message, f"{plan.where}.from_plugin", "pipelines")

    def _waiting(self, plan: Plan) -> Iterator[Complaint]:
        longest = self.config.settings.api.max_sync_timeout
        if plan.execution_mode == "synchronous" and plan.timeout > longest:
            message = (
                f"{format_duration(plan.timeout)} is longer than api.max_sync_timeout ({format_duration(longest)}); "
                "no caller waits longer than that"
            )
            yield self._say(message, f"{plan.where}.timeout", "pipelines")

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hook(self, plan: Plan) -> Iterator[Complaint]:
        if plan.hook is None:
            return
        if plan.condition and any(path.root == "context" for path in paths_of(plan.condition)):
            message = "reads context.*, which is always empty here: a hook inherits nothing from the job that ended"
            yield self._say(message, f"{plan.where}.if", "pipelines")
        if plan.name not in self._called() and not any(plan.takes_from(name) for name in self._notifying()):
            who = f"plugin {plan.from_plugin} does not have" if plan.from_plugin else "no plugin has"
            message = f"nothing can start it: {who} notify_on_complete: true"
            yield self._say(message, f"{plan.where}.on-hook", "pipelines")

    def _called(self) -> set[str]:
        plans = self.config.plans.by_name.values()
        return {node.pipeline for plan in plans for node in plan.nodes.values() if node.call_depth}

    def _hook_circles(self) -> Iterator[Complaint]:
        """Hooks fire for root jobs, which are the first ones of a run."""
        hooks = [plan for plans in self.config.plans.by_hook.values() for plan in plans]
        following = {
            plan.name: [
                other.name
                for other in hooks
                if any(
                    node.nearest == 1 and node.plugin in self._notifying() and other.takes_from(node.plugin)
                    for node in plan.nodes.values()
                )
            ]
            for plan in hooks
        }
        most = self.config.settings.service.hook_max_depth
        advice = f"service.hook_max_depth ends it after {most}; use a plugin without notify_on_complete, or from_plugin"
        yield from self._circles(following, f"hooks start each other in a circle: {{way}}; {advice}", "hook_cycles")

    def _notifying(self) -> list[str]:
        return [name for name, entry in self.config.settings.plugins.items() if entry.notify_on_complete]

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _event_circles(self) -> Iterator[Complaint]:
        plans = self.config.plans
        following = {
            plan.name: list(
                dict.fromkeys(
                    other.name
                    for node in plan.nodes.values()
                    for emission in emissions(node, self.plugins)
                    for other in plans.on(emission.event)
                    if other.takes_from(node.plugin)
                )
            )
            for plan in plans.by_name.values()
        }
        advice = f"service.limits.hops ends it after {self.config.settings.service.limits.hops}"
        message = f"events may start pipelines in a circle: {{way}}; {advice}"
        yield from self._circles(following, message, "event_cycles")

    def _circles(self, following: Mapping[str, Iterable[str]], message: str, category: str) -> Iterator[Complaint]:
        for circle in islice(circles(following), MOST_CIRCLES):
            where = self.config.plans.named(circle[0]).where
            yield self._say(message.format(way=way(circle)), where, category)

    def _say(self, message: str, path: str, category: str) -> Complaint:
        return self.config.complaint(message, path, category)
