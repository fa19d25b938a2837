"""Plugins, commands and pipelines as JSON data, for the API and for `ductile system describe`.

Pure. Does not know requests or scopes.
"""

from typing import Any
from urllib.parse import quote

from ductile.config.snapshot import ConfiguredPlugin
from ductile.pipeline.compile.plan import Plan
from ductile.plugin.manifest import Command, CommandType

TIERS = {CommandType.READ: "READ", CommandType.WRITE: "WRITE"}


def plugin_view(configured: ConfiguredPlugin) -> dict[str, Any]:
    """Return a plugin with all its commands."""
    manifest = configured.plugin.manifest
    commands = [_command_view(command) for command in manifest.commands.values()]
    return {**plugin_summary(configured), "protocol": manifest.protocol, "commands": commands}


def plugin_summary(configured: ConfiguredPlugin) -> dict[str, Any]:
    """Return the fields that every list of plugins shows."""
    manifest = configured.plugin.manifest
    return {"name": configured.name, "version": manifest.version, "description": manifest.description}


def _command_view(command: Command) -> dict[str, Any]:
    return {
        "name": command.name,
        "type": str(command.type),
        "description": command.description,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def skill_view(configured: ConfiguredPlugin, command: Command) -> dict[str, Any]:
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


def pipeline_view(plan: Plan) -> dict[str, Any]:
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
