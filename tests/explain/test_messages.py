"""Why a message is not handled, who has it and how it ended, from a real ledger without the command line."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.formats import strict_json
from ductile.core.instance.lock import instance_lock
from ductile.core.message import ClaimStatus, Message, MessageUnknown, TopicRules
from ductile.explain.message import MessageExplanation, explain_message
from ductile.explain.reason import Reason
from ductile.explain.sentences import MESSAGES, sentence
from ductile.ledger.exchange import operate
from ductile.ledger.exchange.claim import set_job
from ductile.ledger.exchange.message_facts import MAX_CLAIMS_OF_MESSAGE
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot
from tests.ledger.conftest import START, db, path
from tests.ledger.exchange.conftest import BOB, TOPIC, WORKER, ExchangeDriver, exchange

__all__ = ["db", "exchange", "path"]


@pytest.fixture(autouse=True)
def service(path: Path, db: object) -> Iterator[None]:
    """A service that has the ledger open."""
    with instance_lock(path.parent, path, now=START):
        yield


def explain(exchange: ExchangeDriver, path: Path, message: Message | str, **known: Any) -> MessageExplanation:
    message_id = message if isinstance(message, str) else message.id
    return explain_message(exchange.db, path, message_id, now=exchange.now, **known)


def codes(found: MessageExplanation) -> list[str]:
    return [reason.code for reason in found.reasons]


def the_reason(found: MessageExplanation) -> Reason:
    (reason,) = found.reasons
    return reason


def test_a_message_on_a_topic_without_any_claim_names_a_similar_topic(exchange: ExchangeDriver, path: Path) -> None:
    exchange.publish()
    exchange.end(exchange.claim_one().id, topic=None)
    found = explain(exchange, path, exchange.publish(topic="review.reqest"))
    assert (the_reason(found).code, the_reason(found).data) == (
        "topic_unknown_to_workers",
        {"topic": "review.reqest", "similar": TOPIC},
    )
    assert found.next_commands == ("ductile exchange run --topic review.reqest -- COMMAND",)


def test_a_ready_message_without_a_worker_names_the_last_one(exchange: ExchangeDriver, path: Path) -> None:
    exchange.publish()
    exchange.end(exchange.claim_one().id, topic=None)
    message = exchange.publish()
    exchange.advance(minutes=3)
    reason = the_reason(explain(exchange, path, message))
    assert reason.code == "ready_no_worker"
    assert reason.words.endswith("The last claim was 3m ago (2026-02-08 09:30:00Z), by worker reviewers (host-1).")


def test_a_worker_that_waits_counts_before_its_first_claim(exchange: ExchangeDriver, path: Path) -> None:
    """Only the service knows it."""
    message = exchange.publish()
    assert codes(explain(exchange, path, message, waiting_workers=1)) == ["ready_behind"]
    assert codes(explain(exchange, path, message, waiting_workers=0)) == ["topic_unknown_to_workers"]


def test_a_message_of_a_consumer_waits_for_its_open_runs(exchange: ExchangeDriver, path: Path) -> None:
    """The configuration that was loaded last has the consumer."""
    config = strict_json.dumps({"exchange": {"consumers": [{"topic": TOPIC, "pipeline": "deploy", "max_open": 1}]}})
    loaded = StoredSnapshot(
        id="cfg_1", config_hash="a", loaded_at=exchange.now, reason="startup", sanitized_config=config
    )
    with transaction(exchange.db):
        snapshots.put(exchange.db, loaded)
    exchange.publish()
    message = exchange.publish()
    assert the_reason(explain(exchange, path, message)).words == (
        f"Nothing blocks the message. The consumer of topic {TOPIC} starts pipeline deploy for it."
    )
    exchange.claim(lease=None)
    reason = the_reason(explain(exchange, path, message))
    assert (reason.code, reason.data["open_runs"], reason.data["max_open"]) == ("consumer_full", 1, 1)


def test_a_message_of_a_consumer_whose_plugin_is_not_loaded_waits_for_it(exchange: ExchangeDriver, path: Path) -> None:
    config = strict_json.dumps({"exchange": {"consumers": [{"topic": TOPIC, "plugin": "counter"}]}})
    for number, plugins in enumerate(("{}", '{"counter": {}}')):
        loaded = StoredSnapshot(
            id=f"cfg_{number}",
            config_hash="a",
            loaded_at=exchange.advance(seconds=1),
            reason="reload",
            sanitized_config=config,
            plugin_fingerprints=plugins,
        )
        with transaction(exchange.db):
            snapshots.put(exchange.db, loaded)
        message = exchange.publish()
        expected = "ready_for_consumer" if "counter" in plugins else "consumer_unavailable"
        assert the_reason(explain(exchange, path, message)).code == expected


def test_the_follow_up_is_named_only_to_callers_that_may_read_its_topic(exchange: ExchangeDriver, path: Path) -> None:
    message, dead = exchange.publish(), exchange.publish()
    exchange.end(exchange.claim_one().id)
    for _ in range(exchange.rules(TOPIC).max_deliveries):
        exchange.release(exchange.claim_one().id)
    for one, letter in ((message, "review.done"), (dead, "review.request.dead")):
        for may_name in (True, False):
            found = explain(exchange, path, one, may_name=lambda topic, is_known=may_name: is_known or topic == TOPIC)
            assert (letter in str(found.as_data())) == may_name


def test_a_message_behind_others_has_its_place_and_an_estimate(exchange: ExchangeDriver, path: Path) -> None:
    messages = [exchange.publish() for _ in range(5)]
    for _ in range(2):
        exchange.claim()
        exchange.advance(seconds=10)
    reason = the_reason(explain(exchange, path, messages[-1]))
    assert reason.code == "ready_behind"
    assert (reason.data["ahead"], reason.data["active_claims"], reason.data["estimate_seconds"]) == (2, 2, 30.0)
    assert reason.words.endswith("By the rate of recent claims, it is claimed within about 30s.")


def test_a_message_behind_others_without_workers_has_no_estimate(exchange: ExchangeDriver, path: Path) -> None:
    for _ in range(2):
        exchange.publish()
        exchange.end(exchange.claim_one().id, topic=None)
        exchange.advance(seconds=10)
    exchange.publish()
    found = explain(exchange, path, exchange.publish())
    assert codes(found) == ["ready_no_worker", "ready_behind"]
    assert (found.reasons[1].data["ahead"], found.reasons[1].data["estimate_seconds"]) == (1, None)


def test_a_pause_of_the_topic_is_the_only_reason(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    with transaction(exchange.db):
        operate.pause_topic(exchange.db, TOPIC, "migration", now=exchange.now, actor=BOB)
    found = explain(exchange, path, message, waiting_workers=3)
    assert (the_reason(found).code, the_reason(found).data["reason"]) == ("topic_paused", "migration")
    assert found.next_commands == (f"ductile exchange resume {TOPIC}",)


def test_a_delayed_message_names_who_delayed_it(exchange: ExchangeDriver, path: Path) -> None:
    """The sender, or the worker that released it."""
    published = exchange.publish(topic="other", delay=timedelta(minutes=10))
    assert the_reason(explain(exchange, path, published)).words == (
        "The message was published with a delay by token:alice. It becomes ready in 10m (2026-02-08 09:40:00Z)."
    )
    released = exchange.publish()
    exchange.release(exchange.claim_one().id, delay=timedelta(minutes=5), reason="busy")
    delayed, returned = explain(exchange, path, released).reasons
    assert (delayed.code, delayed.data["by"], delayed.data["is_released"]) == ("delayed", BOB, True)
    assert (returned.code, returned.data["status"], returned.data["reason"]) == ("returned", "released", "busy")


def test_a_waiting_message_names_the_one_before_it(exchange: ExchangeDriver, path: Path) -> None:
    first, second = (exchange.publish(ordering_key="k") for _ in range(2))
    found = explain(exchange, path, second)
    assert (the_reason(found).code, the_reason(found).data["holder"]) == ("waits_for_key", first.id)
    assert found.next_commands == (f"ductile exchange why {first.id}",)


def test_a_claimed_message_names_its_worker_and_lease(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    claim = exchange.claim_one()
    reason = the_reason(explain(exchange, path, message))
    assert (reason.code, reason.data["claim_id"], reason.data["claimed_by"]) == ("claimed", claim.id, BOB)
    assert reason.words == (
        "Worker reviewers (host-1) claimed the message now (2026-02-08 09:30:00Z). "
        "The lease ends in 1m (2026-02-08 09:31:30Z)."
    )


def test_a_message_of_a_consumer_names_its_job(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    ((one),) = exchange.claim(lease=None)
    with transaction(exchange.db):
        set_job(exchange.db, one.claim.id, "job-1")
    found = explain(exchange, path, message)
    assert (the_reason(found).code, the_reason(found).data["job_id"]) == ("claimed_by_run", "job-1")
    assert found.next_commands == ("ductile job why job-1",)


def test_a_decided_message_has_its_end_and_follow_up(exchange: ExchangeDriver, path: Path) -> None:
    wrong = []
    for status in (ClaimStatus.COMPLETED, ClaimStatus.FAILED, ClaimStatus.TIMED_OUT):
        message = exchange.publish()
        exchange.end(exchange.claim_one().id, status, topic="review.done")
        reason = the_reason(explain(exchange, path, message))
        if (reason.code, reason.data["follow_up_topic"]) != (
            status,
            "review.done",
        ) or "review.done" not in reason.words:
            wrong.append((status, reason.code, reason.words))
    assert wrong == []


def test_a_dead_message_has_each_of_its_deliveries(exchange: ExchangeDriver, path: Path) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=2)
    message = exchange.publish()
    exchange.release(exchange.claim_one().id, reason="no GPU")
    exchange.expire(exchange.claim_one().id)
    found = explain(exchange, path, message)
    assert codes(found) == ["dead", "returned", "returned"]
    assert (found.reasons[0].data["deliveries"], found.reasons[0].data["dead_letter_topic"]) == (2, f"{TOPIC}.dead")
    assert found.reasons[1].words.startswith("Delivery 1: worker reviewers (host-1) released the message now")
    assert found.reasons[2].words.startswith("Delivery 2: the lease of worker reviewers (host-1) expired")
    assert found.next_commands == (f"ductile exchange requeue {message.id}",)


def test_an_expired_message_that_is_ready_again_has_its_last_delivery(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    exchange.expire(exchange.claim_one().id)
    assert codes(explain(exchange, path, message)) == ["ready_no_worker", "returned"]


def test_a_purged_message_names_who_purged_it(exchange: ExchangeDriver, path: Path) -> None:
    """Also after a delivery; not after it was requeued and has died of its deliveries."""
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    message = exchange.publish()
    exchange.release(exchange.claim_one().id, uncounted=True)
    with transaction(exchange.db):
        operate.purge(exchange.db, TOPIC, now=exchange.now, actor=BOB)
    reason = explain(exchange, path, message).reasons[0]
    assert (reason.code, reason.data["by"]) == ("message_purged", BOB)
    with transaction(exchange.db):
        operate.requeue(exchange.db, message.id, now=exchange.now, actor=BOB)
    exchange.expire(exchange.claim_one().id)
    assert codes(explain(exchange, path, message))[0] == "dead"


def test_a_requeued_message_names_its_state_before(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    exchange.end(exchange.claim_one().id, ClaimStatus.FAILED, topic=None)
    with transaction(exchange.db):
        operate.requeue(exchange.db, message.id, now=exchange.now, actor=BOB)
    found = explain(exchange, path, message)
    assert codes(found) == ["ready_no_worker", "requeued"]
    assert (found.reasons[1].data["was"], found.reasons[1].data["by"]) == ("failed", BOB)


def test_the_result_of_a_late_worker_is_a_reason(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    claim = exchange.claim_one()
    exchange.expire(claim.id)
    exchange.end(exchange.claim_one().id)
    exchange.advance(seconds=30)
    exchange.end(claim.id, ClaimStatus.FAILED)
    completed, late = explain(exchange, path, message).reasons
    assert (completed.code, late.code, late.data["claim_id"]) == ("completed", "late", claim.id)
    assert late.words == (
        "Worker reviewers (host-1) reported failed now (2026-02-08 09:30:30Z), 30s after its claim was expired. "
        "The result was discarded."
    )


def test_a_refused_follow_up_is_a_reason(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    for _ in range(20):
        message = exchange.publish(parent_id=message.id, topic="next")
    (one,) = exchange.claim("next", limit=100, worker=WORKER)[-1:]
    assert one.message.id == message.id
    exchange.end(one.claim.id, topic="next")
    assert codes(explain(exchange, path, message)) == ["completed", "follow_up_refused"]


def test_without_a_service_an_open_message_names_that_first(tmp_path: Path, exchange: ExchangeDriver) -> None:
    """A decided message does not."""
    message = exchange.publish()
    elsewhere = tmp_path / "elsewhere" / "state.db"
    found = explain(exchange, elsewhere, message)
    assert codes(found)[0] == "service_down"
    assert found.next_commands == ("ductile system start",)
    exchange.end(exchange.claim_one().id, topic=None)
    assert codes(explain(exchange, elsewhere, message)) == ["completed"]


def test_a_deleted_message_is_explained_from_the_journal(exchange: ExchangeDriver, path: Path) -> None:
    message = exchange.publish()
    with transaction(exchange.db):
        exchange.db.execute("DELETE FROM deliveries")
        exchange.db.execute("DELETE FROM messages")
    found = explain(exchange, path, message)
    assert (found.state, found.topic, found.conversation_id) == (None, TOPIC, message.conversation_id)
    assert (the_reason(found).code, the_reason(found).data["last"]) == ("pruned", "message.published")


def test_an_unknown_message_is_refused(exchange: ExchangeDriver, path: Path) -> None:
    with pytest.raises(MessageUnknown):
        explain(exchange, path, "0190a000-0000-7000-8000-000000000000")


def test_the_view_has_the_newest_claims(exchange: ExchangeDriver, path: Path) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=0)
    message = exchange.publish()
    for _ in range(MAX_CLAIMS_OF_MESSAGE + 5):
        exchange.release(exchange.claim_one().id)
    view = explain(exchange, path, message).as_data()
    assert (len(view["claims"]), view["deliveries"]) == (MAX_CLAIMS_OF_MESSAGE, MAX_CLAIMS_OF_MESSAGE + 5)
    assert (view["state"], view["words"]) == ("ready", view["reasons"][0]["words"])


def test_a_sentence_of_a_message_needs_only_what_its_code_has() -> None:
    """The data of a decided message without a claim, as a row of another program."""
    assert [code for code in ("completed", "failed", "timed_out", "claimed") if not sentence(code, {})] == []
    assert {"ready_behind", "dead"} < set(MESSAGES)
