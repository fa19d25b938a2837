"""Preflight: the request, environment and limits of an attempt, and jobs that cannot run."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.model import Dead, Job, OutcomeCode
from ductile.engine.preflight import Block, Postpone, Ready, Refuse, preflight
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.streams import Caps
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_job, snapshot_of

SCRIPT = "#!/bin/sh\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "ductile")
    made.plugin("echo", SCRIPT)
    return made


def prepare(home: Home, job: Job | None = None, *, state: str = "{}") -> Ready | Refuse | Postpone | Block:
    return preflight(snapshot_of(home), job or a_job(), state_json=state, instance="instance-1", now=NOW)


def ready(home: Home, job: Job | None = None, *, state: str = "{}") -> Ready:
    found = prepare(home, job, state=state)
    assert isinstance(found, Ready), found
    return found


def request_of(home: Home, job: Job | None = None, *, state: str = "{}") -> Any:
    raw = ready(home, job, state=state).request
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    return json.loads(raw)


def test_the_request_has_the_job_the_command_and_the_deadline(home: Home) -> None:
    """Protocol 2 with the attempt number; the deadline comes from the timeout of the command."""
    home.add("plugins:\n  echo: {config: {colour: blue}, timeouts: {poll: 90s}}\n")
    job = a_job(attempt=2, max_attempts=3, payload='{"n": 9007199254740993}')
    assert request_of(home, job, state='{"seen": 1}') == {
        "protocol": 2,
        "job_id": job.id,
        "command": "poll",
        "attempt": 2,
        "max_attempts": 3,
        "deadline_at": "2026-02-08T09:31:30.000000Z",
        "config": {"colour": "blue"},
        "state": {"seen": 1},
        "payload": {"n": 9007199254740993},
    }


def test_a_handle_job_gets_its_event_under_both_names(home: Home) -> None:
    """Old plugins read `payload`, new ones `event`. A job without a payload has neither."""
    event = '{"type": "made", "payload": {"n": 1}}'
    request = request_of(home, a_job(command="handle", payload=event))
    assert request["event"] == request["payload"] == json.loads(event)
    assert {"event", "payload"}.isdisjoint(request_of(home))


def test_the_environment_is_that_of_the_plugin_and_the_two_markers(home: Home) -> None:
    """Recovery finds a process by the markers. The environment of the host is not included."""
    environment = ready(home).environment
    assert environment["DUCTILE_JOB_ID"] == a_job().id
    assert environment["DUCTILE_INSTANCE"] == "instance-1"
    assert "SECRET_OF_THE_HOST" not in environment


def test_an_attempt_has_the_configured_policy(home: Home) -> None:
    """Timeout, backoff, caps, grace and limits come from the configuration of the claim."""
    config = home.path / "config.yaml"
    config.write_text(
        config.read_text().replace(
            "service:\n", "service:\n  kill_grace: 250ms\n  limits: {stdout: 1KB, stderr: 2KB, events: 5}\n"
        )
    )
    home.add(
        "plugins:\n  echo:\n    timeouts: {poll: 7s}\n    retry: {backoff_base: 3s}\n    ignore_exit_code: true\n"
        "    limits: {memory: 64MB, cpu: 1500ms}\n"
    )
    found = ready(home)
    assert found.policy.timeout == timedelta(seconds=7)
    assert found.policy.backoff_base == timedelta(seconds=3)
    assert found.policy.ignore_exit_code
    assert (found.policy.limits.stdout_bytes, found.policy.limits.events) == (1024, 5)
    assert found.caps == Caps(stdout=1024, stderr=2048)
    assert found.grace == timedelta(milliseconds=250)
    assert found.limits == ResourceLimits(address_space=64 << 20, cpu_seconds=2)


def test_a_plugin_without_limits_is_spawned_directly(home: Home) -> None:
    """The shell that sets limits is used only if limits are configured."""
    assert ready(home).limits is None


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_job(plugin="missing"), "plugin 'missing' does not exist"),
        (a_job(command="dance"), "plugin echo has no command 'dance'"),
        (a_job(plugin="off"), "plugin off is disabled (enabled: false)"),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_the_reason(home: Home, job: Job, reason: str) -> None:
    """A missing or disabled plugin, or an unknown command."""
    home.plugin("off", SCRIPT)
    home.add("plugins:\n  off: {enabled: false}\n")
    assert prepare(home, job) == Refuse(Dead(reason, code=OutcomeCode.PLUGIN_UNAVAILABLE))


def test_a_plugin_that_is_no_longer_trusted_is_postponed(home: Home) -> None:
    """Permissions can change after the load. The job is retried as the policy says."""
    home.add("plugins:\n  echo: {retry: {backoff_base: 3s}}\n")
    snapshot = snapshot_of(home)
    entrypoint = home.path / "plugins" / "echo" / "run"
    entrypoint.chmod(0o777)
    found = preflight(snapshot, a_job(), state_json="{}", instance="i", now=NOW)
    assert isinstance(found, Postpone)
    assert str(entrypoint) in found.error
    assert found.policy.backoff_base == timedelta(seconds=3)


def test_a_plugin_that_was_changed_after_it_was_loaded_is_blocked_under_strict_mode_only(home: Home) -> None:
    """Without it, editing a plugin of a running service is allowed. The attempt stores what has changed."""
    snapshot = snapshot_of(home)
    home.replace("service:\n", "service:\n  strict_mode: true\n")
    home.add("plugins: {echo: {}}\n")
    home.seal()
    strict = snapshot_of(home)
    entrypoint = home.path / "plugins" / "echo" / "run"
    entrypoint.write_text("#!/bin/sh\necho other\n")
    found = preflight(snapshot, a_job(), state_json="{}", instance="i", now=NOW)
    assert isinstance(found, Ready)
    assert (list(found.files.changed), found.warnings) == (["run"], ())
    blocked = preflight(strict, a_job(), state_json="{}", instance="i", now=NOW)
    assert isinstance(blocked, Block)
    assert (
        blocked.error == "plugin echo is not started under service.strict_mode: files differ from the loaded ones: run"
    )
