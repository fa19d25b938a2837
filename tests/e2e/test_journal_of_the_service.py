"""The journal of the service itself: start, stop, and stops without a record."""

import json
import os
import pwd
import signal
from typing import Any

from tests.e2e.commands import ductile_json
from tests.e2e.sample_plugins import OK, BlockingPlugin
from tests.e2e.service import Home, Start

SCHEDULE = """\
plugins:
  blocking: {parallelism: 1, schedules: [{id: default, cron: "0 0 1 1 *", command: poll}]}
"""
EMITS = """#!/bin/sh
cat >/dev/null
echo '{"status": "ok", "result": "emitted", "events": [{"type": "made", "payload": {}}]}'
"""
ME = f"uid:{os.getuid()}({pwd.getpwuid(os.getuid()).pw_name})"


def entries(home: Home, pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return kind, actor and data of the journal rows whose kind matches the pattern."""
    rows = home.rows("SELECT kind, actor, data FROM journal WHERE kind GLOB ? ORDER BY seq", pattern)
    return [(row["kind"], row["actor"], json.loads(row["data"])) for row in rows]


def test_start_and_stop_are_journalled_with_their_actor(home: Home, start: Start) -> None:
    """The stop has its reason. A clean stop is not reported as recovered at the next start."""
    home.plugin("ok", OK)
    service = start()
    service.signal(signal.SIGINT)
    service.wait()
    start().stop()

    found = entries(home, "system.*")

    assert [(kind, actor) for kind, actor, _ in found] == [
        ("system.started", ME),
        ("system.stopped", "signal:SIGINT"),
        ("system.started", ME),
        ("system.stopped", "signal:SIGTERM"),
    ]
    assert found[1][2]["reason"] == "signal"
    assert found[0][2].keys() >= {"version", "pid", "run_id", "config_hash"}


def test_an_unclean_stop_is_journalled_at_the_next_start(home: Home, start: Start) -> None:
    """With the last time at which the dead service wrote anything, and only once."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    service.kill()
    (last,) = home.rows("SELECT MAX(at) AS at FROM journal")
    start().stop()
    start().stop()

    found = entries(home, "system.*")

    assert [kind for kind, _, _ in found] == [
        "system.started",
        "system.recovered",
        "system.started",
        "system.stopped",
        "system.started",
        "system.stopped",
    ]
    assert found[1][2] == {"run_id": found[0][2]["run_id"], "since": last["at"], "jobs": 0, "job_ids": []}


def test_every_act_is_journalled_with_its_actor(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """Acts on jobs, the queue, schedules and the configuration."""
    home.add(SCHEDULE)
    service = start()
    job_id, queued = service.post("blocking"), service.post("blocking")
    requests = (
        (f"/job/{queued}/cancel", "job.cancel_requested"),
        (f"/job/{queued}/retry", "job.requeued"),
        (f"/job/{job_id}/replay", "job.enqueued"),
        ("/plugins/blocking/pause", "queue.paused"),
        ("/plugins/blocking/resume", "queue.resumed"),
        ("/schedule/blocking/default/pause", "scheduler.status_changed"),
        ("/schedule/blocking/default/resume", "scheduler.status_changed"),
        ("/schedule/blocking/default/run", "job.enqueued"),
        ("/queue/purge", "queue.purged"),
        ("/system/reload", "config.reloaded"),
    )
    for path, _ in requests:
        status, answer = service.ask("POST", path, {"plugin": "*"} if path == "/queue/purge" else None)
        assert status in (200, 202), (path, answer)
    home.add("unknown_key: 1\n")
    service.ask("POST", "/system/reload")
    service.signal(signal.SIGHUP)
    service.wait_for_log("not reloaded")

    rows = home.rows("SELECT kind, actor FROM journal WHERE actor = 'token:e2e' ORDER BY seq")
    expected = ["job.enqueued", "job.enqueued", *(kind for _, kind in requests), "config.reload_refused"]
    assert [row["kind"] for row in rows] == expected


def test_a_job_has_the_actor_of_its_root(home: Home, start: Start) -> None:
    """Token, local user or producer; in the queue, the log, the API and the command line."""
    home.plugin("ok", OK)
    home.plugin("emits", EMITS)
    home.add("routes: [{from: emits, event_type: made, to: ok}]\n")
    service = start()
    root = service.run("emits")
    local = ductile_json(home, "plugin", "run", "emits", "poll")
    for job_id in (root["job_id"], local["job_id"]):
        service.ask("GET", f"/job/{job_id}/tree?wait=30s")

    shown = ductile_json(home, "job", "inspect", root["job_id"])
    listed = service.ask("GET", "/jobs")[1]["jobs"]

    assert root["actor"] == shown["actor"] == shown["journal"][0]["actor"] == "token:e2e"
    assert sorted((job["plugin"], job["actor"]) for job in listed) == sorted(
        (plugin, actor) for plugin in ("emits", "ok") for actor in ("token:e2e", ME)
    )
    assert home.rows("SELECT DISTINCT actor FROM job_log ORDER BY actor") == [{"actor": "token:e2e"}, {"actor": ME}]


def test_the_audit_is_the_same_over_http_and_on_the_command_line(home: Home, start: Start) -> None:
    """Filtered by actor and time, in pages. A uid selects the user with any name."""
    home.plugin("ok", OK)
    service = start()
    service.ask("POST", "/queue/pause")
    ductile_json(home, "queue", "resume")

    whole = service.ask("GET", "/audit")[1]
    _, page = service.ask("GET", "/audit?limit=1")
    _, rest = service.ask("GET", f"/audit?limit=2&cursor={page['next_cursor']}")

    assert [(act["actor"], act["kind"]) for act in whole["acts"]] == [
        (ME, "queue.resumed"),
        ("token:e2e", "queue.paused"),
        (ME, "system.started"),
    ]
    assert page["acts"] + rest["acts"] == whole["acts"]
    assert rest["next_cursor"] is None
    assert ductile_json(home, "system", "audit") == whole
    by_me = service.ask("GET", f"/audit?actor=uid:{os.getuid()}")[1]
    assert by_me["acts"] == [act for act in whole["acts"] if act["actor"] == ME]
    assert ductile_json(home, "system", "audit", "--since", "0s")["acts"] == []


def test_refused_requests_are_journalled_per_caller(home: Home, start: Start) -> None:
    """Counted, with the reasons, and never with the rejected token."""
    home.replace("tokens:\n", 'tokens:\n      - {name: reader, token: reader-token-0123456789, scopes: ["jobs:ro"]}\n')
    service = start()
    for _ in range(3):
        service.ask("GET", "/jobs", token="wrong-token-0123456789")
    service.ask("POST", "/system/reload", token="reader-token-0123456789")
    service.stop()

    counts: dict[str, int] = {}
    for _, actor, data in entries(home, "auth.refused"):
        counts[actor] = counts.get(actor, 0) + data["count"]
    reasons = {reason for _, _, data in entries(home, "auth.refused") for reason in data["why"]}

    assert counts == {"address:127.0.0.1": 3, "token:reader": 1}
    assert reasons == {"invalid token", "scope system:rw missing"}


def test_an_edit_of_the_configuration_is_journalled_with_its_actor(home: Home, start: Start) -> None:
    """Once, when the service loads it, with what it changed; also if the service was stopped during the edit."""
    home.plugin("ok", OK)
    home.seal()
    service = start()
    ductile_json(home, "config", "plugin", "set", "ok", "parallelism", "2")
    service.ask("POST", "/system/reload")
    service.ask("POST", "/system/reload")
    service.stop()
    ductile_json(home, "config", "set", "service.max_workers=3")
    start().stop()
    service = start()

    edits = entries(home, "config.edited")
    acts = service.ask("GET", f"/audit?actor=uid:{os.getuid()}")[1]["acts"]

    assert [(actor, data["config"]) for _, actor, data in edits] == [
        (ME, []),
        (ME, ["plugins.ok"]),
        (ME, ["service.max_workers"]),
    ]
    audited = [act["data"] for act in acts if act["kind"] == "config.edited"]
    assert audited == [data for _, _, data in reversed(edits)]
    assert len({data["sealed_at"] for _, _, data in edits}) == 3


def test_a_seal_without_an_actor_is_not_journalled(home: Home, start: Start) -> None:
    """Such as one of the original."""
    home.plugin("ok", OK)
    home.seal()
    seal = home.path / ".checksums"
    lines = seal.read_text().splitlines(keepends=True)
    home.write(".checksums", "".join(line for line in lines if not line.startswith("sealed_by:")))
    start().stop()

    assert entries(home, "config.edited") == []
