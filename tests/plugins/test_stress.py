"""stress creates the requested load, latency and failures."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.service import Service
from tests.plugins.bundled import run_plugin
from tests.plugins.plugin_service import events_of, service_with_aliases


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    aliases = {"once": {}, "thrice": {"retry": {"max_attempts": 3, "backoff_base": "10ms"}}, "large": {}}
    with service_with_aliases(tmp_path_factory.mktemp("stress"), "stress", aliases) as running:
        yield running


def facts_of(service: Service, alias: str) -> list[dict[str, Any]]:
    return service.home.rows("SELECT fact_type, command FROM plugin_facts WHERE plugin_name = ?", alias)


def test_every_load_runs_and_emits_its_events(service: Service) -> None:
    """Only `state` stores a fact."""
    for command, options in (
        ("cpu", {"seconds": 0.01}),
        ("io", {"bytes": 200_000, "files": 3}),
        ("net", {"bytes": 100_000, "rounds": 2}),
        ("state", {"bytes": 1000}),
    ):
        events = events_of(service.run("once", command, {**options, "events": 2}))
        assert [(kind, payload["command"], payload["index"]) for kind, payload in events] == [
            ("stress.done", command, 0),
            ("stress.done", command, 1),
        ]

    assert facts_of(service, "once") == [{"fact_type": "stress.state_snapshot", "command": "state"}]


def test_the_requested_attempts_fail_and_the_next_succeeds(service: Service) -> None:
    job = service.run("thrice", "cpu", {"seconds": 0, "fail_attempts": 2})
    assert (job["status"], job["attempt"]) == ("succeeded", 3)


def test_fail_rate_is_repeatable_for_a_job_and_attempt() -> None:
    def outcome(job_id: str, rate: float) -> str:
        payload = {"seconds": 0, "fail_rate": rate}
        return str(run_plugin("stress", "cpu", payload=payload, job_id=job_id).response["status"])

    assert [outcome("a", 0.5) for _ in range(3)] == [outcome("a", 0.5)] * 3
    assert (outcome("a", 0), outcome("a", 1)) == ("ok", "error")
    assert {outcome(str(number), 0.5) for number in range(12)} == {"ok", "error"}


def test_a_failure_can_be_final() -> None:
    response = run_plugin("stress", "cpu", payload={"fail_attempts": 1, "final": True}).response
    assert (response["status"], response["retry"]) == ("error", False)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"second": 1}, "unknown key payload.second"),
        ({"seconds": "1"}, "payload.seconds must be a number"),
        ({"seconds": -1}, "from 0 to 300"),
        ({"seconds": 1e9}, "from 0 to 300"),
        ({"events": 1001}, "from 0 to 1000"),
        ({"bytes": True}, "payload.bytes must be a number"),
    ],
)
def test_an_invalid_payload_is_rejected(payload: Mapping[str, Any], message: str) -> None:
    response = run_plugin("stress", "cpu", payload=payload).response
    assert (response["status"], response["retry"]) == ("error", False)
    assert message in response["error"]


def test_the_core_rejects_a_state_that_is_too_large(service: Service) -> None:
    job = service.run("large", "state", {"bytes": 2_000_000})
    assert job["status"] != "succeeded"
    assert facts_of(service, "large") == []
