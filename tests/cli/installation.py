"""A configuration with one entry of every kind, a ledger with jobs, and a running service."""

import json
from datetime import UTC, datetime
from pathlib import Path

from attrs import define

import ductile
from ductile.cli.webhook.deliveries import post_delivery
from ductile.web.webhooks.signing import sign_delivery
from tests.cli.plugboard import make_plugboard
from tests.e2e.service import Home, Service

ECHO = Path(ductile.__file__).parent.parent / "plugins" / "echo"
SECRET = "a secret of the tests 0123456789"
CONFIG = """\
include: [tokens.yaml, webhooks.yaml]
plugins:
  echo:
    schedules: [{id: nightly, cron: "30 2 * * *", timezone: UTC}]
  failing: {retry: {max_attempts: 1}}
notify: {to: echo, on: [queue.stuck]}
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


EXAMPLES = {
    "api": "/healthz",
    "completion": "bash",
    "config backup": "--output {scratch}/config.tar.gz",
    "config check": "",
    "config diff": "",
    "config history": "--limit 2",
    "config get": "service.max_workers",
    "config import crontab": "/dev/null",
    "config init": "--config-dir {scratch}/new --demo",
    "config lock": "--dry-run",
    "config pipeline add": "{pipeline} --dry-run",
    "config pipeline remove": "two-steps --dry-run",
    "config pipeline show": "two-steps",
    "config plan": "",
    "config plugin list": "",
    "config plugin set": "echo parallelism 2 --dry-run",
    "config plugin show": "echo",
    "config restore": "{archive} --dry-run --config-dir {scratch}/restored",
    "config route add": "--from echo --event x --to failing --dry-run",
    "config route list": "",
    "config route remove": "--from echo --event never --to failing --dry-run",
    "config schema": "",
    "config scope add": "reader plugin:ro --dry-run",
    "config scope remove": "reader jobs:ro --dry-run",
    "config scope set": "reader plugin:ro --dry-run",
    "config scope validate": "jobs:ro",
    "config set": "service.max_workers=3 --dry-run",
    "config show": "",
    "config token create": "--name writer --scopes plugin:rw --dry-run",
    "config token delete": "reader --dry-run",
    "config token inspect": "reader",
    "config token list": "",
    "config token rehash": "reader --dry-run",
    "config webhook add": "--path /other --plugin echo --secret-ref line --dry-run",
    "config webhook list": "",
    "event send": "start --dry-run",
    "event why": "{event}",
    "exchange check": "--conversation-id {message}",
    "exchange claim": "review.request",
    "exchange complete": "{claim} done",
    "exchange extend": "{claim}",
    "exchange fail": "{claim} broken",
    "exchange import": "{plugboard} --dry-run",
    "exchange inspect": "--message {message}",
    "exchange notify": "--once",
    "exchange pause": "review.request --dry-run",
    "exchange publish": "review.request hello",
    "exchange purge": "review.request --dry-run",
    "exchange read": "--topic review.*",
    "exchange release": "{claim}",
    "exchange reply": "{message} 'looks good'",
    "exchange request": "review.request --body hello --dry-run",
    "exchange requeue": "{failed_message} --dry-run",
    "exchange resume": "review.request --dry-run",
    "exchange run": "--topic review.request --once -- cat",
    "exchange serve": "{scratch} --dry-run",
    "exchange topics": "",
    "exchange why": "{message}",
    "job cancel": "{queued} --dry-run",
    "job diagnose": "{dead}",
    "job export": "{job} --fixture",
    "job inspect": "{job}",
    "job list": "--limit 2",
    "job logs": "--limit 2",
    "job replay": "{job} --dry-run",
    "job retry": "{dead} --dry-run",
    "job tail": "{job}",
    "job tree": "{job} --wait",
    "job wait": "{job} --tree",
    "job why": "{dead}",
    "logs": "--limit 3",
    "pipeline dry-run": "two-steps",
    "pipeline list": "",
    "pipeline run": "two-steps --wait",
    "pipeline show": "two-steps",
    "pipeline test": "{cases}",
    "pipeline visualize": "two-steps",
    "plugin add": "fetch --dry-run",
    "plugin check": "{plugin} --level manifest",
    "plugin list": "",
    "plugin lock": "echo --dry-run",
    "plugin new": "fresh --dir {scratch}",
    "plugin pause": "failing --dry-run",
    "plugin resume": "failing --dry-run",
    "plugin run": "echo --wait",
    "plugin show": "echo",
    "plugin test": "{plugin}",
    "queue list": "",
    "queue pause": "--dry-run",
    "queue purge": "--all --dry-run",
    "queue resume": "--dry-run",
    "queue status": "",
    "relay list": "",
    "relay send": "lab --event a.b --dry-run",
    "run list": "--limit 2",
    "run show": "{job}",
    "schedule agenda": "--from 2026-01-02 --to 2027-01-01",
    "schedule list": "",
    "schedule next": "echo nightly",
    "schedule pause": "echo nightly --dry-run",
    "schedule resume": "echo nightly --dry-run",
    "schedule run": "echo nightly --wait",
    "schedule simulate": "echo nightly --to 2030-01-03T00:00:00Z --from 2030-01-01T00:00:00Z",
    "schedule why": "echo nightly --at 2026-01-02T02:30:00Z",
    "system audit": "",
    "system backup": "--to {scratch}/all.tar.gz",
    "system breaker": "echo",
    "system describe": "",
    "system doctor": "--no-health",
    "system notify test": "--dry-run",
    "system plugin-facts": "echo",
    "system reload": "--dry-run",
    "system reset": "echo --dry-run",
    "system restore": "{archive} --dry-run --config-dir {scratch}/elsewhere",
    "system scheduler": "",
    "system selfcheck": "",
    "system skills": "",
    "system start": "--dry-run --config {idle}",
    "system status": "",
    "system storage compact": "--dry-run --config {idle}",
    "system storage show": "",
    "system tasks": "",
    "system watch": "--once",
    "version": "",
    "webhook deliveries": "",
    "webhook inspect": "1",
    "webhook list": "",
    "webhook receipts": "",
    "webhook redeliver": "1",
    "webhook send": "hook --payload-file {body} --dry-run",
    "webhook verify": "hook --payload-file {body} -H 'X-Signature-256: {signature}'",
}
"""Command → arguments that succeed in these tests."""


@define
class Installation:
    """The service, and the ids and paths that commands need."""

    home: Home
    service: Service
    names: dict[str, str]


def make_installation(directory: Path, *, more_tokens: str = "", more_pipelines: str = "") -> Installation:
    """Start the service and run a few jobs."""
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
    post_delivery(
        f"{service.urls[1]}/hook",
        b"{}",
        sign_delivery("hmac-sha256", SECRET, b"{}", now=datetime.now(UTC), header="X-Signature-256"),
    )
    with home.read_ledger() as db:
        (event,) = db.execute("SELECT json_extract(data, '$.event_id') FROM journal WHERE kind LIKE 'event.%' LIMIT 1")
    (directory / "body.json").write_text("{}")
    (directory / "cases.yaml").write_text("cases: [{pipeline: two-steps, payload: {}}]\n")
    (directory / "pipeline.yaml").write_text("{name: third, on: third, steps: [{uses: echo}]}\n")
    message = publish(service)
    names = {
        "message": message,
        "claim": message,
        "failed_message": fail_message(service),
        "plugboard": str(make_plugboard(directory / "plugboard.db", {"id": "1", "topic": "a.request", "body": "hi"})),
        "job": job["job_id"],
        "dead": dead["job_id"],
        "queued": service.post("failing"),
        "event": event[0],
        "body": str(directory / "body.json"),
        "cases": str(directory / "cases.yaml"),
        "pipeline": str(directory / "pipeline.yaml"),
    }
    return Installation(home, service, names)


def publish(service: Service, topic: str = "other.request") -> str:
    """Publish a message and return its id."""
    status, published = service.ask("POST", "/exchange/messages", {"topic": topic, "body": "please"})
    assert status == 201, published
    return str(published["message_id"])


def claim(service: Service, topic: str) -> str:
    """Publish a message, claim the oldest one of its topic and return the id of the claim."""
    publish(service, topic)
    _, answer = service.ask("POST", "/exchange/claims", {"topic": topic, "worker_group": "tests"})
    return str(answer["claims"][0]["claim_id"])


def fail_message(service: Service) -> str:
    """Publish a message that a worker fails, and return its id."""
    status, ended = service.ask("POST", f"/exchange/claims/{claim(service, 'failing.request')}/fail", {})
    assert status == 200, ended
    return str(ended["claim"]["message_id"])
