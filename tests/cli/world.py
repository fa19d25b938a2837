"""A configuration with one of everything, a ledger with a past, and the service that runs it."""

import json
from pathlib import Path

from attrs import define

import ductile
from tests.e2e.service import Home, Service

ECHO = Path(ductile.__file__).parent.parent / "plugins" / "echo"
SECRET = "a secret of the tests 0123456789"
CONFIG = """\
include: [tokens.yaml, webhooks.yaml]
plugins:
  echo:
    schedules: [{id: nightly, cron: "30 2 * * *", timezone: UTC}]
  failing: {retry: {max_attempts: 1}}
routes: [{from: echo, event_type: never, to: failing}]
pipelines:
  - {name: two-steps, on: start, steps: [{id: first, uses: echo}, {id: second, uses: echo}]}
instances:
  - {name: lab, base_url: "http://127.0.0.1:9", ingress_path: /ingest/peer/home, secret_ref: line, allow: [a.b]}
"""
TOKENS = f"""\
tokens:
  - {{name: line, key: "{SECRET}"}}
  - {{name: reader, key: "another {SECRET}", scopes_file: scopes/reader.json, scopes_hash: "blake3:0"}}
"""
WEBHOOKS = """\
webhooks:
  listen: localhost:0
  endpoints: [{name: hook, path: /hook, plugin: echo, secret_ref: line, signature_header: X-Signature-256}]
"""
FAILING = """#!/bin/sh
cat > /dev/null
echo "the disk is on fire" >&2
echo '{"status": "error", "error": "no luck", "retry": false}'
"""


@define
class World:
    """The service, and what there is to ask it about."""

    home: Home
    service: Service
    names: dict[str, str]


def make(directory: Path, *, more_tokens: str = "", more_pipelines: str = "") -> World:
    """The service is ready and has done a few things."""
    home = Home.make(directory / "home")
    if more_tokens:
        home.add(f"      - {more_tokens}\n")
    home.copy_plugin(ECHO)
    home.plugin("failing", FAILING)
    home.write("tokens.yaml", TOKENS)
    home.write("webhooks.yaml", WEBHOOKS)
    (home.path / "scopes").mkdir(mode=0o700)
    home.write("scopes/reader.json", json.dumps({"scopes": ["jobs:ro"]}))
    home.add(CONFIG.replace("instances:", f"{more_pipelines}instances:"))
    home.seal()
    service = home.start()
    job = service.run("echo", "poll", {"message": "hi"})
    dead = service.run("failing")
    service.ask("POST", "/plugins/failing/pause", {})
    with home.read_ledger() as db:
        (event,) = db.execute("SELECT json_extract(data, '$.event_id') FROM journal WHERE kind LIKE 'event.%' LIMIT 1")
    (directory / "body.json").write_text("{}")
    (directory / "cases.yaml").write_text("cases: [{pipeline: two-steps, payload: {}}]\n")
    names = {
        "job": job["job_id"],
        "dead": dead["job_id"],
        "queued": service.post("failing"),
        "event": event[0],
        "body": str(directory / "body.json"),
        "cases": str(directory / "cases.yaml"),
    }
    return World(home, service, names)
