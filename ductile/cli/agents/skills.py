"""`ductile system skills`: what there is and how to use it, in Markdown short enough for a language model to read.

The same facts as `system describe`, in one line each.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ductile.cli.base import options, output

COMMON = {"--config", "--config-dir", "--api-url", "--api-key", "--json", "--verbose"}
"""Flags that are not worth repeating on every line."""

GUIDE = """\
# Ductile {version}

An automation runtime. Plugins are programs that run once per job; pipelines chain them; schedules, webhooks, the API
and commands start them. Every job, every event and every decision not to act is on record.

## How to work with it

1. Find out: `ductile system status --json` (`running`, `healthy`), then this page; `ductile system describe NOUN ACTION
   --json` has every flag of a command, without NOUN ACTION all there is (large).
2. Trigger: `ductile plugin run PLUGIN --command COMMAND --payload '{{…}}' --json`, or
   `ductile pipeline run PIPELINE --payload '{{…}}' --json`. The answer has `job_id`.
3. Wait: `ductile job wait JOB_ID --tree --json`. Exit 0: the whole run succeeded. Without `--tree` it is that one job,
   which may succeed although its run fails.
4. Ask why: `ductile job why JOB_ID --json` (waiting or ended; of a run that failed, `next` leads to the job that failed
   it), `ductile event why EVENT_ID --json` (routed or not),
   `ductile schedule why PLUGIN SCHEDULE_ID --json` (fired or not; `--at` asks for an earlier slot).
5. Diagnose: `ductile job diagnose JOB_ID --json`: request, response, stderr, what changed, what to do next; bounded.
6. Act: `ductile job retry JOB_ID`, `ductile job replay JOB_ID --patch '{{…}}'`, `ductile job cancel JOB_ID`.
7. Change the configuration: edit or `ductile config set`, then `config check`, `config lock`, `config plan`,
   `system reload`. Reload rather than restart.

## Rules

- Every command takes `--json` and `-v`, and where it matters `--config DIR` (which configuration). Those with
  `remote=1` take `--api-url URL --api-key KEY` (another service); the others, `job why` among them, work on its machine
  alone. From elsewhere ask `GET /job/ID`, `/job-logs?job_id=ID`, `/events?since=0&job=ID`, `/scheduler/jobs`,
  `/analytics/queue`, `/healthz`, with `ductile api`. With `--json` an error is
  `{{"error", "code", "exit_code", "hint", "context"}}`: branch on `code`, follow `hint`. Flags may stand anywhere.
  Nothing ever asks a question.
- `mut=1` changes something. Try it with `--dry-run` first: it checks for real and changes nothing.
- `tier=WRITE` may act on the outside world. With `mut=0` (`effect=tries_plugins`) it is a rehearsal: nothing is
  recorded or changed here, but plugins may run, and what they do they do.
- Of plugin commands, `idem=1`: twice is like once. `retry=1`: safe to try again.
- Exit 75: try again later. Exit 69: the service does not run; reading commands still work. Exit 78: the configuration
  is wrong, `ductile config check` says where.
- Over HTTP (`--api-url`, or curl) a token with the scope is needed; on this machine the local socket needs none. An
  `Idempotency-Key` header makes a repeated POST give the first answer.
- Secrets are masked in what is shown. Do not put secrets into payloads: payloads are stored.
"""


@click.command("skills")
@options.config
@options.service
@options.as_json
def skills(as_json: bool, **where: Any) -> None:
    """Tell a language model in Markdown what there is and how to use it: commands, plugins, pipelines, rules.

    --json prints the same as `system describe --json`.

    Example: ductile system skills
    """
    from ductile.cli.agents.describe import description

    output.show(description(where), as_json=as_json, human=_lines)


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    yield from GUIDE.format(version=shown["version"]).splitlines()
    yield ""
    yield "## Commands"
    yield ""
    yield from map(_command_line, shown["commands"])
    yield ""
    yield f"Short forms: {', '.join(f'`{name}` = `{action}`' for name, action in shown['short_forms'].items())}."
    yield ""
    yield "## Plugins"
    yield ""
    yield from [_plugin_line(plugin, one) for plugin in shown["plugins"] for one in plugin["commands"]] or ["none"]
    yield ""
    yield "## Pipelines"
    yield ""
    yield from [_pipeline_line(pipeline) for pipeline in shown["pipelines"]] or ["none"]


def _command_line(one: Mapping[str, Any]) -> str:
    from ductile.cli.agents.side_effects import Effect

    usage = " ".join([one["command"], *(_placeholder(argument) for argument in one["arguments"])])
    effect = Effect(one["side_effect"])
    names = [next(flag for flag in option["flags"] if flag.startswith("--")) for option in one["options"]]
    flags = " ".join(name for name in names if name not in COMMON)
    remote = f"remote={int('--api-url' in names)}"
    tier = f"tier={'READ' if effect.kind == 'reads' else 'WRITE'} mut={int(effect.is_change)}"
    return f'- `{usage}` {tier} effect={effect.kind} {remote} flags="{flags}" d={_quoted(one["summary"])}'


def _placeholder(argument: Mapping[str, Any]) -> str:
    name = argument["name"].upper()
    return name if argument["required"] else f"[{name}]"


def _plugin_line(plugin: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    parts = [f"- `{plugin['name']}.{one['name']}` m=POST p=/plugin/{plugin['name']}/{one['name']}"]
    is_write = one["type"] == "write"
    parts.append(f"tier={one['type'].upper()} mut={int(is_write)}")
    parts.append(f"idem={int(one['idempotent'])} retry={int(one['retry_safe'])}")
    parts += [f"in={_schema(one['input_schema'])}"] if one["input_schema"] else []
    parts += [f"out={_schema(one['output_schema'])}"] if one["output_schema"] else []
    parts += [f"d={_quoted(one['description'])}"] if one["description"] else []
    return " ".join(parts)


def _schema(schema: Mapping[str, Any]) -> str:
    """A compact schema as `{name: type}`, a JSON Schema as it is."""
    if all(isinstance(kind, str) for kind in schema.values()) and "type" not in schema:
        return "{" + ", ".join(f"{name}: {kind}" for name, kind in sorted(schema.items())) + "}"
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _pipeline_line(one: Mapping[str, Any]) -> str:
    mode = "sync" if one["execution_mode"].startswith("sync") else "async"
    timeout = f" timeout={one['timeout_secs']}s" if mode == "sync" else ""
    path = one["endpoint"].removeprefix("POST ")
    return f"- `{one['name']}` m=POST p={path} trigger={_quoted(one['trigger'])} mode={mode}{timeout}"


def _quoted(text: str) -> str:
    """On one line, whatever a manifest says."""
    return json.dumps(" ".join(text.split()), ensure_ascii=False)
