"""Explanations of jobs, diagnoses and events as values, from a real ledger without the command line."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ductile.core.instance.lock import instance_lock
from ductile.core.model import Failed, Note, Retried
from ductile.core.secret import Mask
from ductile.explain.diagnosis import diagnose_job
from ductile.explain.event import event_type_why, explain_event
from ductile.explain.job import JobExplanation, explain_job
from ductile.explain.reason import Reason
from ductile.explain.waiting import read_queue_conditions, waiting_reasons
from ductile.ledger.admin.job_actions import cancel, count_purgeable, end_queued_jobs, purge, retry
from ductile.ledger.admin.pauses import pause
from ductile.ledger.reports import job_details, wait_reasons
from ductile.ledger.reports.pagination import NEWEST
from ductile.ledger.storage.connections import transaction
from tests.cli.history import Past
from tests.ledger.conftest import LedgerDriver, db, ledger, path

__all__ = ["db", "ledger", "path"]

EVENT = "019a0000-0000-7000-8000-000000000000"


@pytest.fixture
def service(path: Path, ledger: LedgerDriver) -> Iterator[None]:
    """A service that has the ledger open."""
    with instance_lock(path.parent, path, now=ledger.now):
        yield


def explain(ledger: LedgerDriver, path: Path, job_id: str) -> JobExplanation:
    return explain_job(ledger.db, path, job_details.job(ledger.db, job_id))


def codes(explanation: JobExplanation) -> list[str]:
    return [reason.code for reason in explanation.reasons]


@pytest.mark.usefixtures("service")
def test_a_job_that_nothing_blocks_is_ready(ledger: LedgerDriver, path: Path) -> None:
    job_id = ledger.enqueue().job_id

    assert codes(explain(ledger, path, job_id)) == ["ready"]


@pytest.mark.usefixtures("service")
def test_a_running_job_that_is_cancelled_is_ending(ledger: LedgerDriver, path: Path) -> None:
    ledger.enqueue()
    job = ledger.claim_one()
    with transaction(ledger.db):
        cancel(ledger.db, job.id, "not needed", now=ledger.now)

    (reason,) = explain(ledger, path, job.id).reasons
    assert (reason.code, reason.data["reason"], "not needed" in reason.words) == ("ending", "not needed", True)


@pytest.mark.usefixtures("service")
def test_the_first_job_of_an_open_run_names_the_run(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(ledger.new(plugin="next"))

    explanation = explain(ledger, path, root.id)
    assert codes(explanation) == ["answered_ok", "run_open"]
    assert explanation.next_commands == (f"ductile job wait {root.id} --tree",)


def test_a_job_whose_plugin_is_gone_leads_to_the_plugins(ledger: LedgerDriver, path: Path) -> None:
    """By the code of the outcome, whatever the text of the error."""
    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        end_queued_jobs(ledger.db, "echo", "removed", now=ledger.now)

    assert explain(ledger, path, job_id).next_commands[:2] == ("ductile plugin list", "ductile system reload")


def test_the_last_attempt_is_compared_without_the_sentence_about_attempts(ledger: LedgerDriver, path: Path) -> None:
    """The same error counts as the same failure, whether or not another attempt followed it."""
    for max_attempts in (2, 1):
        ledger.enqueue(max_attempts=max_attempts)
        job = ledger.claim_one()
        ledger.end(job, Retried(f"port {max_attempts} is closed", timedelta(hours=1), ledger.evidence(exit_code=1)))

    bundle = diagnose_job(ledger.db, path, job.id, Mask())
    assert (bundle["code"], bundle["similar_failures"]["error"]) == ("attempts_used_up", "port # is closed")
    assert bundle["similar_failures"]["count"] == 1


def test_a_job_that_an_operator_ended_is_no_similar_failure(ledger: LedgerDriver, path: Path) -> None:
    for _ in range(2):
        job_id = ledger.enqueue().job_id
        with transaction(ledger.db):
            cancel(ledger.db, job_id, "not needed", now=ledger.now)
    similar = diagnose_job(ledger.db, path, job_id, Mask())["similar_failures"]
    assert (similar["count"], similar["others"]) == (0, [])


def test_a_diagnosis_leads_to_the_diagnosis_of_the_job_that_failed_the_run(ledger: LedgerDriver, path: Path) -> None:
    root = ledger.fan_out(ledger.new(plugin="next", max_attempts=1))
    child = ledger.claim_one("next")
    ledger.end(child, Retried("no luck", timedelta(0)))

    assert diagnose_job(ledger.db, path, root.id, Mask())["next"][0] == f"ductile job diagnose {child.id}"
    assert explain(ledger, path, root.id).next_commands[0] == f"ductile job why {child.id}"


def test_an_event_without_a_job_names_the_decision(ledger: LedgerDriver) -> None:
    """The first decision that is more than that nothing matched."""
    ledger.enqueue()
    about = {"event_id": EVENT, "type": "t.done", "source": "webhook:/hook"}
    notes = (
        Note(kind="event.unmatched", data=about),
        Note(kind="pipeline.skipped", data={**about, "pipeline": "big", "reason": "if is false"}),
    )
    ledger.end(ledger.claim_one(), notes=notes)

    found = explain_event(ledger.db, EVENT)
    assert (found.verdict, found.reason.code, found.as_data()["decision"]) == (
        "unmatched",
        "event_unmatched",
        "pipeline.skipped",
    )
    assert [decision.reason.code for decision in found.decisions] == ["event.unmatched", "pipeline.skipped"]
    assert found.source == "webhook:/hook"


def test_a_job_names_its_events_that_led_to_no_job(ledger: LedgerDriver, path: Path) -> None:
    """One reason for each type, with the first event and the decision against it."""
    ledger.enqueue()
    job = ledger.claim_one()
    small = {"event_id": EVENT, "type": "order.placed"}
    notes = (
        Note(kind="event.unmatched", data={"event_id": "e-1", "type": "t.done"}),
        Note(kind="event.unmatched", data={"event_id": "e-2", "type": "t.done"}),
        Note(kind="pipeline.skipped", data={**small, "pipeline": "big", "reason": "if is false"}),
        Note(kind="event.unmatched", data=small),
    )
    ledger.end(job, notes=notes)

    found = [one for one in explain(ledger, path, job.id).reasons if one.code == "event_without_job"]
    assert [(one.data["event_id"], one.data["count"]) for one in found] == [("e-1", 2), (EVENT, 1)]
    assert [one.words for one in found] == [
        "Event t.done (the first of 2) led to no job. No route and no pipeline matches it.",
        "Event order.placed led to no job. Pipeline big did not start: if is false",
    ]


@pytest.mark.usefixtures("service")
def test_a_job_that_a_limit_ended_names_its_key_while_it_waits_for_a_retry(ledger: LedgerDriver, path: Path) -> None:
    ledger.enqueue()
    job = ledger.claim_one()
    data = {"limit_key": "service.limits.stdout"}
    ledger.end(job, Retried("output limit", timedelta(seconds=30), ledger.evidence(), data))

    (reason,) = explain(ledger, path, job.id).reasons
    assert (reason.code, reason.data["limit_key"]) == ("retry_time", "service.limits.stdout")
    assert reason.words.endswith("output limit (limit: service.limits.stdout)")


def test_a_hook_of_jobs_names_the_plugins_that_emit_it(ledger: LedgerDriver, path: Path) -> None:
    """It needs `notify_on_complete`, so a hook of another plugin never starts."""
    config = {
        "plugins": {"backup": {"notify_on_complete": True}, "other": {}},
        "pipelines": [{"name": "tell", "on-hook": "job.failed"}, {"name": "all", "on-hook": "run.failed"}],
    }
    Past(ledger.db).loads("cfg_1", config)

    assert event_type_why(ledger.db, path, "job.failed", limit=5).get("emitters") == ["backup"]
    assert "emitters" not in event_type_why(ledger.db, path, "run.failed", limit=5)


def test_a_duplicate_event_names_the_job_it_duplicates(ledger: LedgerDriver) -> None:
    winner = ledger.enqueue(dedupe_key="k", source_event_id="first", dedupe_ttl=timedelta(hours=1)).job_id
    ledger.end(ledger.claim_one())
    ledger.enqueue(dedupe_key="k", source_event_id=EVENT)

    found = explain_event(ledger.db, EVENT)
    assert found.verdict == "duplicate"
    assert f"job {winner} already succeeded with this dedupe key" in found.reason.words


@pytest.mark.usefixtures("service")
def test_a_started_job_tells_how_long_it_was_queued_and_why(ledger: LedgerDriver, path: Path) -> None:
    ledger.enqueue()
    ledger.advance(seconds=90)
    job = ledger.claim_one()
    waited = explain(ledger, path, job.id).reasons[1]
    assert (waited.code, waited.data["waited_for"]) == ("waited", ["busy"])
    assert waited.words.startswith("Attempt 1 was queued for 1m30s, because all workers (service.max_workers)")

    ledger.end(job)
    assert "waited" in codes(explain(ledger, path, job.id))


@pytest.mark.usefixtures("service")
def test_a_queued_job_has_its_position_what_runs_and_an_estimate(ledger: LedgerDriver, path: Path) -> None:
    """The estimate is the duration of recent jobs. There is none without any, or if the running job takes longer."""
    Past(ledger.db).loads("cfg", {"service": {"max_workers": 4}, "plugins": {"echo": {"parallelism": 1}}})
    ledger.enqueue()
    running = ledger.claim_one()
    ledger.enqueue()
    last = ledger.enqueue().job_id
    place = next(one for one in explain(ledger, path, last).reasons if one.code == "behind")
    assert (place.data["position"], place.data["ahead_by_plugin"]) == (2, {"echo": 1})
    assert [one["job_id"] for one in place.data["running_now"]] == [running.id]
    assert "estimate_seconds" not in place.data

    ledger.end(running)
    ledger.claim_one()

    def place_after(seconds: float) -> Reason:
        waiting = wait_reasons.waiting(ledger.db, last)
        assert waiting is not None
        at, queue = ledger.now + timedelta(seconds=seconds), read_queue_conditions(ledger.db, path)
        return next(one for one in waiting_reasons(ledger.db, waiting, queue, now=at) if one.code == "behind")

    place = place_after(0.5)
    assert (place.data["position"], place.data["estimate_seconds"]) == (1, 1.0)
    assert "estimate_seconds" not in place_after(1.5).data
    assert place.words.startswith("The job is next. Running now: echo.poll (job ")


@pytest.mark.usefixtures("service")
def test_an_act_of_an_operator_names_its_actor(ledger: LedgerDriver, path: Path) -> None:
    """Who cancelled, purged, retried, replayed and paused."""
    cancelled, purged, retried = (ledger.enqueue(plugin=name).job_id for name in ("one", "two", "three"))
    running = ledger.claim_one("three")
    ledger.end(running, Failed("no"))
    with transaction(ledger.db):
        cancel(ledger.db, cancelled, "wrong host", now=ledger.now, actor="token:ci")
        up_to = count_purgeable(ledger.db, "two", NEWEST).up_to
        purge(ledger.db, "two", up_to, "moved", now=ledger.now, actor="token:ci")
        retry(ledger.db, retried, now=ledger.now, actor="token:ci")
        pause(ledger.db, "three", "moved", now=ledger.now, actor="token:ci")
    copy = ledger.enqueue(plugin="four", replay_of=cancelled, actor="token:ci").job_id

    found = {
        reason.code: (reason.data.get("actor"), "token:ci" in reason.words)
        for job_id in (cancelled, purged, retried, copy)
        for reason in explain(ledger, path, job_id).reasons
    }
    for code in ("cancelled", "purged", "retried", "paused", "replayed"):
        assert found[code] == ("token:ci", True), code


@pytest.mark.usefixtures("service")
def test_a_job_that_is_being_stopped_names_the_actor(ledger: LedgerDriver, path: Path) -> None:
    ledger.enqueue()
    job = ledger.claim_one()
    with transaction(ledger.db):
        cancel(ledger.db, job.id, "not needed", now=ledger.now, actor="uid:1000(ann)")

    (reason,) = explain(ledger, path, job.id).reasons
    assert "by uid:1000(ann)" in reason.words


def test_a_diagnosis_names_the_actors(ledger: LedgerDriver, path: Path) -> None:
    job_id = ledger.enqueue(actor="token:web").job_id
    with transaction(ledger.db):
        cancel(ledger.db, job_id, "wrong host", now=ledger.now, actor="token:ci")

    bundle = diagnose_job(ledger.db, path, job_id, Mask())
    acts = {row["kind"]: row.get("actor") for row in bundle["journal"]}
    assert (bundle["actor"], acts["job.cancel_requested"]) == ("token:web", "token:ci")
