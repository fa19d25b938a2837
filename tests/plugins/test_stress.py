"""stress: exactly the load, latency and failure that was asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.service import Service
from tests.plugins.bundled import ask
from tests.plugins.serving import events_of, serving_all


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    aliases = {"once": {}, "thrice": {"retry": {"max_attempts": 3, "backoff_base": "10ms"}}, "large": {}}
    with serving_all(tmp_path_factory.mktemp("stress"), "stress", aliases) as running:
        yield running


def facts_of(service: Service, alias: str) -> list[dict[str, Any]]:
    return service.home.rows("SELECT fact_type, command FROM plugin_facts WHERE plugin_name = ?", alias)


def test_every_kind_of_load_runs_through_the_service(service: Service) -> None:
    """Events as many as wanted; the state is a fact, the other commands keep nothing."""
    for command, payload in (
        ("cpu", {"seconds": 0.01}),
        ("io", {"bytes": 200_000, "files": 3}),
        ("net", {"bytes": 100_000, "rounds": 2}),
        ("state", {"bytes": 1000}),
    ):
        events = events_of(service.run("once", command, {**payload, "events": 2}))
        assert [(kind, told["command"], told["index"]) for kind, told in events] == [
            ("stress.done", command, 0),
            ("stress.done", command, 1),
        ]

    assert facts_of(service, "once") == [{"fact_type": "stress.state_snapshot", "command": "state"}]


def test_failures_come_as_ordered(service: Service) -> None:
    """The first attempts fail, the next one succeeds: what a test of retries needs."""
    job = service.run("thrice", "cpu", {"seconds": 0, "fail_attempts": 2})
    assert (job["status"], job["attempt"]) == ("succeeded", 3)


def test_chance_is_the_same_whenever_it_is_repeated() -> None:
    """Drawn from job and attempt."""

    def outcome(job_id: str, rate: float) -> str:
        payload = {"seconds": 0, "fail_rate": rate}
        return str(ask("stress", "cpu", payload=payload, job_id=job_id).answer["status"])

    assert [outcome("a", 0.5) for _ in range(3)] == [outcome("a", 0.5)] * 3
    assert (outcome("a", 0), outcome("a", 1)) == ("ok", "error")
    assert {outcome(str(number), 0.5) for number in range(12)} == {"ok", "error"}


def test_a_failure_can_be_final() -> None:
    answer = ask("stress", "cpu", payload={"fail_attempts": 1, "final": True}).answer
    assert (answer["status"], answer["retry"]) == ("error", False)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"second": 1}, "unknown key payload.second"),
        ({"seconds": "1"}, "payload.seconds must be a number"),
        ({"seconds": -1}, "from 0 to 300"),
        ({"seconds": 1e9}, "from 0 to 300"),
        ({"events": 1001}, "from 0 to 1000"),
        ({"bytes": True}, "payload.bytes must be a number"),
    ],
)
def test_an_order_that_cannot_be_met_is_refused(payload: Mapping[str, Any], words: str) -> None:
    answer = ask("stress", "cpu", payload=payload).answer
    assert (answer["status"], answer["retry"]) == ("error", False)
    assert words in answer["error"]


def test_a_state_that_is_too_large_is_the_cores_to_refuse(service: Service) -> None:
    """The plugin does as told; the limit is not its own."""
    job = service.run("large", "state", {"bytes": 2_000_000})
    assert job["status"] != "succeeded"
    assert facts_of(service, "large") == []
