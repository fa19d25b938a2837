"""Runs and the exchange: consumers start runs for messages, and publish steps wait for replies."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.e2e.sample_plugins import FAILING, FALLIBLE, OK
from tests.e2e.service import Home, Service, Start, poll_until

CONFIG = """\
plugins: {quick: {}, echo: {uses: fallible}, failing: {}}
exchange:
  topics: {count.request: {max_deliveries: 1}}
  consumers:
    - {topic: count.request, plugin: echo}
    - {topic: fail.request, plugin: failing}
    - {topic: ship.request, pipeline: ship}
    - {topic: seen, event: page.seen, success_topic: seen.done, failure_topic: seen.failed}
    - {topic: lose.request, pipeline: lose}
    - {topic: echoing, pipeline: echoing}
    - {topic: narrow.request, pipeline: deploy, max_open: 1}
    - {topic: missed, event: page.missed, success_topic: missed.done, failure_topic: missed.failed}
    - {topic: unseen, event: page.unseen, success_topic: unseen.done, failure_topic: unseen.failed}
pipelines:
  - name: ship
    on: ship.wanted
    steps: [{id: pack, uses: quick}, {id: label, uses: echo, with: {topic: "{context.message.topic}"}}]
  - {name: echoing, on: echoing.wanted, steps: [{id: again, publish: {topic: echoing, body: again}}]}
  - {name: lose, on: page.missed, steps: [{id: lost, uses: failing}]}
  - {name: lose-too, on: page.missed, steps: [{id: lost, uses: failing}]}
  - {name: first, on: page.seen, steps: [{id: a, uses: quick}]}
  - {name: second, on: page.seen, steps: [{id: b, uses: quick}, {id: c, uses: quick}]}
  - name: deploy
    on: deploy.wanted
    steps:
      - id: ask
        publish:
          topic: approval.request
          body: "Deploy {payload.version}?"
          metadata: {version: "{payload.version}", pipeline: deploy}
          wait: {timeout: 1h}
        on_error: [{id: refused, uses: echo}]
      - {id: ship, uses: echo}
  - name: impatient
    on: impatient.wanted
    steps: [{id: ask, publish: {topic: nothing.request, wait: {timeout: 1s}}}]
  - name: tell
    on: tell.wanted
    steps: [{id: tell, publish: {topic: news}}, {id: after, uses: echo}]
"""

WANTED = '{"version": "9"}'
ASKED = "SELECT id FROM messages WHERE topic = 'approval.request'"


@pytest.fixture
def service(home: Home, start: Start) -> Service:
    for name, script in (("quick", OK), ("fallible", FALLIBLE), ("failing", FAILING)):
        home.plugin(name, script)
    home.add(CONFIG)
    return start()


def publish(service: Service, topic: str, body: str = "{}", **fields: Any) -> str:
    status, published = service.ask("POST", "/exchange/messages", {"topic": topic, "body": body, **fields})
    assert status == 201, published
    return str(published["message_id"])


def messages(home: Home, conversation_id: str) -> list[dict[str, Any]]:
    return home.rows("SELECT * FROM messages WHERE conversation_id = ? ORDER BY seq", conversation_id)


def reply_to(home: Home, message_id: str) -> dict[str, Any]:
    """Wait for the second message of the conversation and return it."""
    return dict(poll_until(lambda: messages(home, message_id)[1:])[0])


def run_pipeline(service: Service, name: str, **payload: Any) -> str:
    status, run = service.ask("POST", f"/pipeline/{name}", {"payload": payload})
    assert status == 202, run
    return str(run["job_id"])


def asked(home: Home, job_id: str, topic: str = "approval.request") -> dict[str, Any]:
    """Wait for the message of a publish step of the run and return it."""
    sql = "SELECT * FROM messages WHERE topic = ? AND source_job_id IN (SELECT id FROM job_queue WHERE root_job_id = ?)"
    return dict(poll_until(lambda: home.rows(sql, topic, job_id))[0])


def ended(service: Service, job_id: str) -> dict[str, dict[str, Any]]:
    """Wait for the end of the run and return its jobs by step."""
    status, tree = service.ask("GET", f"/job/{job_id}/tree?wait=30s")
    assert status == 200, tree
    return {node.get("step_id") or node["plugin"]: node for node in tree}


def test_a_message_starts_a_plugin_whose_result_is_the_reply(service: Service, home: Home) -> None:
    request = publish(
        service, "count.request", '{"words": 3, "message": "mine"}', producer="ada", metadata={"lang": "en"}
    )
    reply = reply_to(home, request)
    assert (reply["topic"], json.loads(reply["body"])) == ("count.done", {"message": "mine", "words": 3})
    (job,) = home.rows("SELECT payload FROM job_queue WHERE submitted_by = 'exchange'")
    about = json.loads(job["payload"])["message"]
    assert (about["id"], about["topic"], about["producer"], about["metadata"]) == (
        request,
        "count.request",
        "ada",
        {"lang": "en"},
    )
    (claim,) = home.rows("SELECT * FROM claims")
    assert (claim["status"], claim["follow_up_id"], claim["lease_until"]) == ("completed", reply["id"], None)
    assert service.job(claim["job_id"])["submitted_by"] == "exchange"
    assert reply["source_job_id"] == claim["job_id"]


def test_a_failed_run_publishes_its_error_on_the_failure_topic(service: Service, home: Home) -> None:
    reply = reply_to(home, publish(service, "fail.request", "not JSON"))
    assert (reply["topic"], "no luck" in reply["body"]) == ("fail.failed", True)
    assert home.rows("SELECT status FROM claims") == [{"status": "failed"}]


def test_a_result_that_is_too_large_for_a_message_fails_it(home: Home, start: Start) -> None:
    home.plugin("fallible", FALLIBLE)
    home.add(
        "plugins: {fallible: {}}\nexchange: {max_body_size: 100, consumers: [{topic: a.request, plugin: fallible}]}\n"
    )
    service = start()
    reply = reply_to(home, publish(service, "a.request", "x" * 95))
    assert (reply["topic"], "more than exchange.max_body_size allows" in reply["body"]) == ("a.failed", True)


def test_a_message_starts_a_pipeline_and_its_last_result_is_the_reply(service: Service, home: Home) -> None:
    reply = reply_to(home, publish(service, "ship.request", '{"box": 7}'))
    body = json.loads(reply["body"])
    assert (reply["topic"], body["box"], body["topic"]) == ("ship.done", 7, "ship.request")


def test_an_event_consumer_waits_for_every_pipeline_it_starts(service: Service, home: Home) -> None:
    request = publish(service, "seen", "hello")
    assert reply_to(home, request)["topic"] == "seen.done"
    steps = home.rows("SELECT step_id, status FROM job_queue WHERE plugin = 'quick' ORDER BY step_id")
    assert [(row["step_id"], row["status"]) for row in steps] == [(step, "succeeded") for step in "abc"]


def test_an_event_that_starts_nothing_fails_the_message(service: Service, home: Home) -> None:
    reply = reply_to(home, publish(service, "unseen", "hello"))
    assert (reply["topic"], "no pipeline starts for event type page.unseen" in reply["body"]) == ("unseen.failed", True)


@pytest.mark.parametrize("topic", ["fail.request", "lose.request", "unseen", "missed"])
def test_a_requeued_message_starts_another_run(service: Service, home: Home, topic: str) -> None:
    request = publish(service, topic)
    reply_to(home, request)
    assert service.ask("POST", f"/exchange/messages/{request}/requeue", {})[0] == 200
    assert poll_until(lambda: messages(home, request)[2:])
    claims = home.rows("SELECT status, job_id FROM claims WHERE message_id = ?", request)
    assert [claim["status"] for claim in claims] == ["failed", "failed"]
    assert len({claim["job_id"] for claim in claims}) == 2


def test_messages_over_max_open_are_for_other_workers(service: Service, home: Home) -> None:
    """The reply is awaited, so the one run of the consumer stays open."""
    publish(service, "narrow.request", WANTED)
    poll_until(lambda: home.rows("SELECT 1 FROM claims WHERE topic = 'narrow.request'"))
    wanted = {"topic": "narrow.request", "worker_group": "others", "wait": "60s"}
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(service.ask, "POST", "/exchange/claims", wanted)
        poll_until(lambda: home.rows(ASKED))
        second = publish(service, "narrow.request", WANTED)
        (claim,) = worker.result()[1]["claims"]
    assert claim["message_id"] == second
    third = publish(service, "narrow.request", WANTED)
    publish(service, "approval.done", "yes", parent_id=home.rows(ASKED)[0]["id"])
    poll_until(lambda: home.rows("SELECT 1 FROM claims WHERE message_id = ? AND worker_group = 'ductile'", third))


def test_a_crash_neither_loses_a_message_of_a_consumer_nor_repeats_its_reply(
    service: Service, home: Home, start: Start
) -> None:
    requests = [publish(service, "ship.request", f'{{"box": {box}}}') for box in range(5)]
    service.signal(signal.SIGKILL)
    service.wait()
    start()
    for box, request in enumerate(requests):
        assert json.loads(reply_to(home, request)["body"])["box"] == box
        assert len(messages(home, request)) == 2
    assert home.rows("SELECT COUNT(*) AS claims FROM claims") == [{"claims": 5}]


def test_a_step_publishes_a_message_and_continues(service: Service, home: Home) -> None:
    root = run_pipeline(service, "tell", headline="rain")
    jobs = ended(service, root)
    message = asked(home, root, "news")
    assert json.loads(message["body"]) == {"headline": "rain"}
    assert (message["producer"], message["published_by"]) == ("tell", "service")
    payload = json.loads(service.job(jobs["after"]["job_id"])["result"]["result"])
    assert (payload["headline"], payload["message"]["id"]) == ("rain", message["id"])
    assert service.job(jobs["tell"]["job_id"])["outcome_code"] == "published"


def test_a_step_waits_for_the_reply_and_passes_it_on(service: Service, home: Home) -> None:
    """A person approves; the service is restarted while the step waits."""
    root = run_pipeline(service, "deploy", version="1.2")
    request = asked(home, root)
    assert (request["body"], json.loads(request["metadata_json"])["version"]) == ("Deploy 1.2?", "1.2")
    poll_until(lambda: home.rows("SELECT 1 FROM job_queue WHERE step_id = 'ask' AND status = 'queued'"))
    publish(service, "approval.done", "of another conversation")
    publish(service, "approval.chatter", "which one?", parent_id=request["id"])
    publish(service, "approval.done", '{"by": "ada"}', parent_id=request["id"])
    jobs = ended(service, root)
    payload = json.loads(service.job(jobs["ship"]["job_id"])["result"]["result"])
    assert (payload["version"], payload["result"]) == ("1.2", '{"by": "ada"}')
    assert (payload["reply"]["topic"], payload["reply"]["data"]) == ("approval.done", {"by": "ada"})
    assert service.job(jobs["ask"]["job_id"])["outcome_code"] == "replied"


def test_a_waiting_step_survives_a_crash_and_publishes_once(service: Service, home: Home, start: Start) -> None:
    root = run_pipeline(service, "deploy", version="2")
    request = asked(home, root)
    service.signal(signal.SIGKILL)
    service.wait()
    service = start()
    publish(service, "approval.done", "yes", conversation_id=request["conversation_id"])
    assert ended(service, root)["ship"]["status"] == "succeeded"
    assert home.rows("SELECT COUNT(*) AS n FROM messages WHERE topic = 'approval.request'") == [{"n": 1}]


@pytest.mark.parametrize("topic", ["count.request", "ship.request", "seen"])
def test_a_run_for_a_message_that_is_nested_too_deeply_ends(service: Service, home: Home, topic: str) -> None:
    """A job can have fewer levels than a message. A deep body is text for the run; deep metadata ends it."""
    deepest: dict[str, Any] = {}
    for _ in range(63):
        deepest = {"a": deepest}
    done = reply_to(home, publish(service, topic, json.dumps(deepest)))
    assert done["topic"].endswith(".done"), done["body"]
    failed = reply_to(home, publish(service, topic, metadata=deepest))
    assert "the run cannot start: metadata" in failed["body"]


def test_a_pipeline_that_answers_itself_ends_at_the_hop_limit(service: Service, home: Home) -> None:
    publish(service, "echoing")
    (refused,) = poll_until(lambda: home.rows("SELECT data, actor FROM journal WHERE kind = 'message.refused'"))
    assert (json.loads(refused["data"])["code"], refused["actor"]) == ("hops_exceeded", "service")
    assert home.rows("SELECT COUNT(*) AS n, MAX(hops) AS hops FROM messages") == [{"n": 21, "hops": 20}]


def test_a_crash_after_a_step_has_published_does_not_repeat_the_message(home: Home, start: Start) -> None:
    """The service dies between the message and the record of the job."""
    home.plugin("quick", OK)
    home.add("plugins: {quick: {}}\npipelines: [{name: tell, on: a, steps: [{id: tell, publish: {topic: news}}]}]\n")
    service = start(environ={"DUCTILE_FAILPOINT": "record.before"})
    with suppress(ConnectionError):  # it may die before it answers
        run_pipeline(service, "tell")
    service.wait()
    (message,) = home.rows("SELECT id, source_job_id FROM messages")
    job = start().job(message["source_job_id"], wait="30s")
    assert (job["status"], job["result"]["message"]["id"]) == ("succeeded", message["id"])
    assert home.rows("SELECT COUNT(*) AS n FROM messages") == [{"n": 1}]


def test_a_reply_on_the_failure_topic_fails_the_step(service: Service, home: Home) -> None:
    root = run_pipeline(service, "deploy", version="3")
    publish(service, "approval.failed", "not on a Friday", parent_id=asked(home, root)["id"])
    jobs = ended(service, root)
    job = service.job(jobs["ask"]["job_id"])
    assert (job["status"], job["outcome_code"]) == ("failed", "reply_failed")
    assert "not on a Friday" in job["last_error"]
    assert jobs["refused"]["status"] == "succeeded"
    assert "ship" not in jobs


def test_a_step_without_a_reply_fails_when_its_time_is_over(service: Service) -> None:
    jobs = ended(service, run_pipeline(service, "impatient"))
    job = service.job(jobs["ask"]["job_id"])
    assert (job["status"], job["outcome_code"]) == ("failed", "no_reply")


def test_a_retried_step_publishes_again(service: Service, home: Home) -> None:
    root = run_pipeline(service, "deploy", version="4")
    first = asked(home, root)
    publish(service, "approval.failed", "later", parent_id=first["id"])
    job_id = ended(service, root)["ask"]["job_id"]
    assert service.ask("POST", f"/job/{job_id}/retry", {})[0] == 202
    count = "SELECT id FROM messages WHERE topic = 'approval.request' ORDER BY seq"
    second = poll_until(lambda: home.rows(count)[1:])[0]["id"]
    publish(service, "approval.done", "now", parent_id=second)
    assert poll_until(lambda: service.job(job_id)["status"] == "succeeded")


def test_a_cancelled_step_ends_its_wait(service: Service, home: Home) -> None:
    root = run_pipeline(service, "deploy", version="5")
    request = asked(home, root)
    poll_until(lambda: home.rows("SELECT 1 FROM job_queue WHERE step_id = 'ask' AND status = 'queued'"))
    job_id = request["source_job_id"]
    assert service.ask("POST", f"/job/{job_id}/cancel", {"reason": "no longer needed"})[0] in (200, 202)
    assert service.job(job_id, wait="10s")["outcome_code"] == "cancelled"
    publish(service, "approval.done", "yes", parent_id=request["id"])
    assert service.job(job_id)["outcome_code"] == "cancelled"


def test_the_reason_of_a_waiting_step_is_explained(service: Service, home: Home) -> None:
    root = run_pipeline(service, "deploy", version="6")
    job_id = asked(home, root)["source_job_id"]
    poll_until(lambda: home.rows("SELECT 1 FROM job_queue WHERE step_id = 'ask' AND status = 'queued'"))
    status, why = service.ask("GET", f"/job/{job_id}/why")
    assert status == 200
    assert "waits for a reply on approval.done or approval.failed" in json.dumps(why)
