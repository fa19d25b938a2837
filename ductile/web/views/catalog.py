"""Plugins, commands and pipelines as JSON data, for the API and for `ductile system describe`.

Pure. Does not know requests or scopes.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict
from urllib.parse import quote

from ductile.config.snapshot import ConfiguredPlugin
from ductile.core.formats.json_schema import Count
from ductile.pipeline.compile.plan import Plan
from ductile.plugin.manifest import Command, CommandType

Tier = Literal["READ", "WRITE"]
ManifestSchema = Annotated[Any, "As declared in the manifest"]
TIERS: dict[CommandType, Tier] = {CommandType.READ: "READ", CommandType.WRITE: "WRITE"}


class CommandView(TypedDict):
    name: str
    type: CommandType
    description: str
    idempotent: bool
    retry_safe: bool
    input_schema: ManifestSchema | None
    output_schema: ManifestSchema | None


class PluginSummaryView(TypedDict):
    name: str
    version: str
    description: str


class PluginView(PluginSummaryView):
    protocol: int
    commands: list[CommandView]


class SkillView(TypedDict):
    """A plugin command or a pipeline, with the request that runs it."""

    name: Annotated[str, "plugin.X.Y or pipeline.N"]
    kind: Literal["plugin", "pipeline"]
    description: str
    endpoint: Annotated[str, "Method and path of the request that runs it"]
    tier: Tier
    plugin: NotRequired[str]
    command: NotRequired[str]
    idempotent: NotRequired[bool]
    retry_safe: NotRequired[bool]
    pipeline: NotRequired[str]
    trigger: NotRequired[str]
    execution_mode: NotRequired[str]
    timeout_secs: NotRequired[Count]


def plugin_view(configured: ConfiguredPlugin) -> PluginView:
    """Return a plugin with all its commands."""
    manifest = configured.plugin.manifest
    commands = [_command_view(command) for command in manifest.commands.values()]
    return {**plugin_summary(configured), "protocol": manifest.protocol, "commands": commands}


def plugin_summary(configured: ConfiguredPlugin) -> PluginSummaryView:
    """Return the fields that every list of plugins shows."""
    manifest = configured.plugin.manifest
    return {"name": configured.name, "version": manifest.version, "description": manifest.description}


def _command_view(command: Command) -> CommandView:
    return {
        "name": command.name,
        "type": command.type,
        "description": command.description,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def skill_view(configured: ConfiguredPlugin, command: Command) -> SkillView:
    """Return a plugin command as a skill, with its endpoint."""
    return {
        "name": f"plugin.{configured.name}.{command.name}",
        "kind": "plugin",
        "description": command.description,
        "endpoint": f"POST /plugin/{configured.name}/{command.name}",
        "tier": TIERS[command.type],
        "plugin": configured.name,
        "command": command.name,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
    }


def pipeline_view(plan: Plan) -> SkillView:
    """Return a pipeline as a skill, with its endpoint."""
    trigger = plan.on or plan.hook or ""
    return {
        "name": f"pipeline.{plan.name}",
        "kind": "pipeline",
        "description": f"{len(plan.nodes)} steps, on {trigger}",
        "endpoint": f"POST /pipeline/{quote(plan.name, safe='')}",
        "tier": TIERS[CommandType.WRITE],
        "pipeline": plan.name,
        "trigger": trigger,
        "execution_mode": plan.execution_mode,
        "timeout_secs": int(plan.timeout.total_seconds()),
    }
