"""The side effect and the required scopes of every command.

Used by `system describe` and `skills`. Tests require an entry for every command, and `--dry-run` for every change.
"""

from attrs import frozen

KINDS = {
    "reads": "Reads only.",
    "writes_files": "Writes new files and changes nothing else.",
    "changes_config": "Changes the configuration on disk. The service uses it after `system reload`.",
    "changes_service": "Changes the running service: configuration, pauses, breakers, queued jobs.",
    "changes_ledger": "Replaces or repairs stored data while the service is stopped.",
    "runs_plugins": "Runs plugins, which may have side effects of their own.",
    "tries_plugins": "Runs plugins locally. Records nothing, but the plugins may have side effects.",
    "sends": "Sends a request to another program or machine.",
    "anything": "Depends on the request.",
}
"""Side effect → its meaning."""

ANY_TOKEN = "token"
SCOPES: dict[str, str | None] = {
    "GET /analytics/queue": "jobs:ro",
    "GET /audit": "system:ro",
    "GET /breaker/{plugin}": "jobs:ro",
    "GET /breakers": "jobs:ro",
    "GET /config/plan": "system:ro",
    "GET /events/ws": "events:meta:ro",
    "GET /healthz": None,
    "GET /job-logs": "jobs:logs:ro",
    "GET /job/{id}": "jobs:status:ro",
    "GET /job/{id}/tree": "jobs:tree:ro",
    "GET /jobs": "jobs:status:ro",
    "GET /plugin/{plugin}": "plugin:catalog:ro",
    "GET /plugins": ANY_TOKEN,
    "GET /queue/pauses": "jobs:status:ro",
    "GET /relay": "jobs:ro",
    "GET /run/{id}": "jobs:tree:ro",
    "GET /runs": "jobs:status:ro",
    "GET /scheduler/jobs": "jobs:ro",
    "GET /skills": ANY_TOKEN,
    "GET /system/tasks": "system:ro",
    "POST /breaker/{plugin}/reset": "system:rw",
    "POST /event/{type}": "plugin:rw",
    "POST /job/{id}/cancel": "jobs:rw",
    "POST /job/{id}/replay": "jobs:rw",
    "POST /job/{id}/retry": "jobs:rw",
    "POST /pipeline/{pipeline}": "plugin:rw",
    "POST /plugin/{plugin}/{command}": "plugin:invoke:ro",
    "POST /plugins/{plugin}/pause": "system:rw",
    "POST /plugins/{plugin}/resume": "system:rw",
    "POST /queue/pause": "system:rw",
    "POST /queue/purge": "system:rw",
    "POST /queue/resume": "system:rw",
    "POST /relay/{instance}": "plugin:rw",
    "POST /schedule/{plugin}/{id}/pause": "system:rw",
    "POST /schedule/{plugin}/{id}/resume": "system:rw",
    "POST /schedule/{plugin}/{id}/run": "plugin:invoke:ro",
    "POST /system/notify/test": "system:rw",
    "POST /system/reload": "system:rw",
    "POST /webhooks/deliveries/{id}/redeliver": "plugin:rw",
}
"""Route → the scope it requires. None: public. `ANY_TOKEN`: any valid token."""


@frozen
class Effect:
    """The side effect of a command and the routes it may request."""

    kind: str
    routes: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        """False for commands that record nothing: they read, or run plugins locally."""
        return self.kind not in ("reads", "tries_plugins")

    @property
    def scopes(self) -> list[str]:
        """The scopes a token needs with --api-url. The local socket needs no token."""
        return sorted({scope for route in self.routes if (scope := SCOPES[route]) not in (None, ANY_TOKEN)})


_READS, _EDITS, _TRIES = Effect("reads"), Effect("changes_config"), Effect("tries_plugins")
_JOB, _TREE = "GET /job/{id}", "GET /job/{id}/tree"

EFFECTS = {
    "api": Effect("anything"),
    "completion": _READS,
    "config backup": Effect("writes_files"),
    "config check": _READS,
    "config diff": _READS,
    "config get": _READS,
    "config history": _READS,
    "config init": Effect("writes_files"),
    "config import crontab": _EDITS,
    "config lock": _EDITS,
    "config pipeline add": _EDITS,
    "config pipeline remove": _EDITS,
    "config pipeline show": _READS,
    "config plan": Effect("reads", ("GET /config/plan",)),
    "config plugin list": _READS,
    "config plugin set": _EDITS,
    "config plugin show": _READS,
    "config restore": _EDITS,
    "config route add": _EDITS,
    "config route list": _READS,
    "config route remove": _EDITS,
    "config schema": _READS,
    "config scope add": _EDITS,
    "config scope remove": _EDITS,
    "config scope set": _EDITS,
    "config scope validate": _READS,
    "config set": _EDITS,
    "config show": _READS,
    "config token create": _EDITS,
    "config token delete": _EDITS,
    "config token inspect": _READS,
    "config token list": _READS,
    "config token rehash": _EDITS,
    "config webhook add": _EDITS,
    "config webhook list": _READS,
    "event send": Effect("runs_plugins", ("POST /event/{type}",)),
    "event why": _READS,
    "job cancel": Effect("changes_service", ("GET /jobs", "POST /job/{id}/cancel")),
    "job diagnose": _READS,
    "job export": Effect("writes_files"),
    "job inspect": Effect("reads", (_JOB,)),
    "job list": Effect("reads", ("GET /events/ws", "GET /jobs")),
    "job logs": Effect("reads", ("GET /job-logs",)),
    "job replay": Effect("runs_plugins", ("GET /jobs", "POST /job/{id}/replay", _TREE)),
    "job retry": Effect("runs_plugins", ("GET /jobs", "POST /job/{id}/retry")),
    "job tail": Effect("reads", (_JOB, "GET /job-logs")),
    "job tree": Effect("reads", (_TREE,)),
    "job wait": Effect("reads", (_JOB, _TREE)),
    "job why": _READS,
    "logs": Effect("reads", ("GET /events/ws",)),
    "pipeline dry-run": _TRIES,
    "pipeline list": _READS,
    "pipeline run": Effect("runs_plugins", ("POST /pipeline/{pipeline}", _TREE)),
    "pipeline show": _READS,
    "pipeline test": _READS,
    "pipeline visualize": _READS,
    "plugin add": Effect("writes_files"),
    "plugin check": _TRIES,
    "plugin list": Effect("reads", ("GET /plugins",)),
    "plugin lock": _EDITS,
    "plugin new": Effect("writes_files"),
    "plugin pause": Effect("changes_service", ("POST /plugins/{plugin}/pause",)),
    "plugin resume": Effect("changes_service", ("POST /plugins/{plugin}/resume",)),
    "plugin run": Effect("runs_plugins", ("POST /plugin/{plugin}/{command}", _JOB)),
    "plugin show": _READS,
    "plugin test": _TRIES,
    "queue list": _READS,
    "queue pause": Effect("changes_service", ("POST /plugins/{plugin}/pause", "POST /queue/pause")),
    "queue purge": Effect("changes_service", ("POST /queue/purge",)),
    "queue resume": Effect("changes_service", ("POST /plugins/{plugin}/resume", "POST /queue/resume")),
    "queue status": _READS,
    "relay list": Effect("reads", ("GET /relay",)),
    "relay send": Effect("sends", ("POST /relay/{instance}", _JOB)),
    "run list": Effect("reads", ("GET /runs",)),
    "run show": Effect("reads", ("GET /run/{id}",)),
    "schedule agenda": _READS,
    "schedule list": Effect("reads", ("GET /scheduler/jobs",)),
    "schedule next": _READS,
    "schedule pause": Effect("changes_service", ("POST /schedule/{plugin}/{id}/pause",)),
    "schedule resume": Effect("changes_service", ("POST /schedule/{plugin}/{id}/resume",)),
    "schedule run": Effect("runs_plugins", ("POST /schedule/{plugin}/{id}/run", _JOB)),
    "schedule simulate": _READS,
    "schedule why": _READS,
    "system audit": Effect("reads", ("GET /audit",)),
    "system backup": Effect("writes_files"),
    "system breaker": Effect("reads", ("GET /breaker/{plugin}",)),
    "system describe": Effect("reads", ("GET /plugin/{plugin}", "GET /plugins", "GET /skills")),
    "system doctor": Effect("changes_ledger"),
    "system notify test": Effect("runs_plugins", ("POST /system/notify/test", _JOB)),
    "system plugin-facts": _READS,
    "system reload": Effect("changes_service", ("POST /system/reload",)),
    "system reset": Effect("changes_service", ("POST /breaker/{plugin}/reset",)),
    "system restore": Effect("changes_ledger"),
    "system scheduler": _READS,
    "system selfcheck": _READS,
    "system skills": Effect("reads", ("GET /plugin/{plugin}", "GET /plugins", "GET /skills")),
    "system start": Effect("runs_plugins"),
    "system status": Effect("reads", ("GET /healthz", "POST /system/reload")),
    "system storage compact": Effect("changes_ledger"),
    "system storage show": _READS,
    "system tasks": Effect("reads", ("GET /system/tasks",)),
    "system watch": Effect(
        "reads",
        (
            "GET /analytics/queue",
            "GET /breakers",
            "GET /events/ws",
            "GET /healthz",
            "GET /queue/pauses",
            "GET /scheduler/jobs",
        ),
    ),
    "version": _READS,
    "webhook deliveries": _READS,
    "webhook inspect": _READS,
    "webhook list": _READS,
    "webhook receipts": _READS,
    "webhook redeliver": Effect("runs_plugins", ("POST /webhooks/deliveries/{id}/redeliver",)),
    "webhook send": Effect("sends"),
    "webhook verify": _READS,
}
"""Command → its side effect. Aliases are not listed."""
