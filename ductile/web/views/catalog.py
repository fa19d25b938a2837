"""What can be used, as plain data: a plugin, one of its commands, a pipeline.

Knows no request. `catalog` answers with it; `system describe` tells the same of a configuration that nobody has loaded.
"""

from typing import Any
from urllib.parse import quote

from ductile.config.snapshot import ConfiguredPlugin
from ductile.pipeline.compile.plan import Plan
from ductile.plugin.manifest import Command, CommandType

TIERS = {CommandType.READ: "READ", CommandType.WRITE: "WRITE"}


def plugin_view(lane: ConfiguredPlugin) -> dict[str, Any]:
    """One plugin and everything it can be asked to do."""
    manifest = lane.plugin.manifest
    commands = [_command(command) for command in manifest.commands.values()]
    return {**about(lane), "protocol": manifest.protocol, "commands": commands}


def about(lane: ConfiguredPlugin) -> dict[str, Any]:
    """What every list says of a plugin."""
    manifest = lane.plugin.manifest
    return {"name": lane.name, "version": manifest.version, "description": manifest.description}


def _command(command: Command) -> dict[str, Any]:
    return {
        "name": command.name,
        "type": str(command.type),
        "description": command.description,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def skill_view(lane: ConfiguredPlugin, command: Command) -> dict[str, Any]:
    """How one command of a plugin is asked for."""
    return {
        "name": f"plugin.{lane.name}.{command.name}",
        "kind": "plugin",
        "description": command.description,
        "endpoint": f"POST /plugin/{lane.name}/{command.name}",
        "tier": TIERS[command.type],
        "plugin": lane.name,
        "command": command.name,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
    }


def run_view(plan: Plan) -> dict[str, Any]:
    """How one pipeline is started."""
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
