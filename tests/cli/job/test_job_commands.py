"""`ductile job` and `ductile event` without a service: lists, reasons and diagnoses read from the ledger."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.cli.job.tail import GAP, new_output
from ductile.config.files.ledger_path import find_ledger
from ductile.config.load.load import load
from ductile.config.load.secret_scan import build_mask
from ductile.core.model import (
    Breaker,
    BreakerChange,
    BreakerState,
    Evidence,
    Failed,
    Held,
    Job,
    JobStatus,
    Note,
    OutcomeCode,
    Retried,
    Skipped,
    Succeeded,
    attempts_used_up,
    cancelled,
)
from ductile.explain.diagnosis import error_pattern
from ductile.explain.truncate import truncate_to_fit
from ductile.ledger.admin import job_actions, pauses
from ductile.ledger.queue import claim
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import blocked_jobs, breakers, plugin_inits
from ductile.ledger.tables.blocked_jobs import set_block_reason
from ductile.pipeline.run.events import event_id as derived_event_id
from tests.cli.conftest import Run, imported_by
from tests.cli.history import Past, past_of

UNKNOWN_ID = "019a0000-0000-7000-8000-000000000000"
OK = '{"status": "ok", "result": "fine"}'


def ended(past: Past, outcome: Any = None, **new: Any) -> str:
    """Run a job to its end and return its id."""
    past.enqueue(**new)
    job = past.claim_one(new.get("plugin", "echo"))
    past.end(job, outcome or Succeeded(past.evidence(result=OK)))
    past.advance(seconds=1)
    return job.id


@pytest.fixture
def busy(demo: Path) -> Path:
    """Make a configuration whose ledger has several jobs in different states."""
    with past_of(demo) as past:
        for number in range(5):
            ended(past, submitted_by="api" if number % 2 else "cli")
        ended(past, Failed("disk full", past.evidence(exit_code=1, stderr="disk full\n")), plugin="other")
        past.enqueue(pipeline="nightly", step_id="first")
    return demo


# ── job list, job logs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_job_list_has_the_keys_of_the_api(run: Run, busy: Path) -> None:
    page = run("job", "list", "--config", busy, "--json").json

    assert (set(page), page["total"], page["total_is_exact"]) == (
        {"jobs", "total", "total_is_exact", "next_cursor", "limit"},
        7,
        True,
    )
    assert page["jobs"][0] | {"status": "queued", "pipeline": "nightly", "step_id": "first"} == page["jobs"][0]


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (("--plugin", "other"), 1),
        (("--status", "error"), 1),
        (("--status", "pending"), 1),
        (("--submitted-by", "api"), 2),
        (("--pipeline", "nightly"), 1),
        (("--command", "handle"), 0),
        (("--query", "disk"), 1),
        (("--from", "2999-01-01"), 0),
        (("--to", "2999-01-01"), 7),
        (("--job-id", UNKNOWN_ID), 0),
        (("--root", UNKNOWN_ID), 0),
        (("--schedule-id", "x"), 0),
    ],
)
def test_each_filter_selects_matching_jobs(run: Run, busy: Path, flags: tuple[str, ...], count: int) -> None:
    assert len(run("job", "list", "--config", busy, "--json", *flags).json["jobs"]) == count


@pytest.mark.parametrize("action", ["list", "logs"])
def test_pages_have_no_gaps_and_no_duplicates(run: Run, busy: Path, action: str) -> None:
    """Following `next_cursor` returns every row once."""
    name, key = ("jobs", "job_id") if action == "list" else ("logs", "log_id")
    seen: list[str] = []
    cursor: tuple[str, ...] | None = ()
    while cursor is not None:
        page = run("job", action, "--config", busy, "--json", "--limit", "2", *cursor).json
        seen += [row[key] for row in page[name]]
        cursor = ("--cursor", page["next_cursor"]) if page["next_cursor"] else None

    whole = run("job", action, "--config", busy, "--json").json[name]
    assert seen == [row[key] for row in whole]
    assert len(set(seen)) == len(seen) > 4


def test_attempts_have_the_keys_of_the_api_and_results_on_request(run: Run, busy: Path) -> None:
    plain = run("job", "logs", "--config", busy, "--json").json["logs"]
    full = run("job", "logs", "--config", busy, "--json", "--include-result").json["logs"]

    assert all(name == name.lower() for row in full for name in row)
    assert all("result" not in row for row in plain)
    assert full[1]["result"] == {"status": "ok", "result": "fine"}
    assert (full[0]["stderr"], full[0]["last_error"]) == ("disk full\n", "disk full")


def test_times_are_relative_and_absolute(run: Run, busy: Path) -> None:
    lines = run("job", "list", "--config", busy).stdout.splitlines()

    shown = re.compile(r"  ((?:just )?now|\w+ ago|in \w+) \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\)")
    assert len(lines) == 9
    assert all(map(shown.search, lines[1:-1]))
    assert lines[-1] == "7 jobs in total"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--status", "faild"), "did you mean 'failed'?"),
        (("--cursor", "x"), "is not valid"),
        (("--from", "yesterday"), "is not a timestamp"),
        (("--limit", "0"), "0 is not in the range"),
    ],
)
def test_an_invalid_filter_is_a_usage_error(run: Run, busy: Path, flags: tuple[str, ...], words: str) -> None:
    answer = run("job", "list", "--config", busy, *flags)

    assert (answer.exit_code, words in answer.stderr) == (2, True), answer


@pytest.mark.parametrize(
    "args",
    [
        ("job", "why", UNKNOWN_ID),
        ("job", "why", "nonsense"),
        ("job", "diagnose", UNKNOWN_ID),
        ("job", "cancel", "nonsense"),
        ("job", "tail", "nonsense"),
        ("event", "why", UNKNOWN_ID),
        ("event", "why", "--type", "unknown.type"),
    ],
)
def test_an_unknown_id_is_not_found(run: Run, busy: Path, args: tuple[str, ...]) -> None:
    answer = run(*args, "--config", busy, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_unique_prefix_and_last_stand_for_a_job_id(run: Run, demo: Path) -> None:
    """`last` is the newest root job. The log is searched too."""
    with past_of(demo) as past:
        first = ended(past)
        past.advance(hours=1)
        last = past.enqueue().job_id
        past.db.execute("DELETE FROM job_queue WHERE id = ?", (first,))

    for word, job_id in (("last", last), (last[:12], last), (first[:12].upper(), first), (last, last)):
        for command in (("job", "why"), ("job", "inspect"), ("job", "tree")):
            answer = run(*command, word, "--config", demo, "--json")
            assert answer.exit_code == 0, answer
            assert job_id in answer.stdout
    assert run("job", "why", "ffffffff-ffff", "--config", demo, "--json").json["code"] == "not_found"
    assert run("job", "why", last[:7], "--config", demo, "--json").json["code"] == "not_found"


def test_an_ambiguous_prefix_is_refused_with_the_candidates(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        ids = [past.enqueue().job_id for _ in range(2)]

    answer = run("job", "why", ids[0][:10], "--config", demo, "--json")

    assert (answer.exit_code, answer.json["code"]) == (2, "usage")
    assert all(job_id in answer.json["error"] for job_id in ids)


def test_a_remote_service_needs_complete_ids(run: Run) -> None:
    answer = run("job", "wait", "last", "--api-url", "http://127.0.0.1:1", "--json")

    assert (answer.exit_code, answer.json["code"]) == (2, "usage")


# ── job why: waiting ──────────────────────────────────────────────────────────────────────────────────────────────────


def paused(past: Past) -> str:
    with transaction(past.db):
        pauses.pause(past.db, "echo", "the disk is new", now=past.now)
    return past.enqueue().job_id


def queue_paused(past: Past) -> str:
    with transaction(past.db):
        pauses.pause(past.db, pauses.ALL_PLUGINS, "night", now=past.now)
    return past.enqueue().job_id


def retried(past: Past) -> str:
    past.enqueue()
    job = past.claim_one()
    past.end(job, Retried("no network", timedelta(minutes=5), past.evidence(exit_code=1)))
    return job.id


def key_is_held(past: Past) -> str:
    past.enqueue(dedupe_key="k")
    past.claim_one()
    job_id = past.enqueue(dedupe_key="k").job_id
    past.claim(1)
    return job_id


def blocked(past: Past) -> str:
    job_id = past.enqueue().job_id
    with transaction(past.db):
        set_block_reason(past.db, "echo", "its manifest cannot be read")
    return job_id


def unhealthy(past: Past) -> str:
    with transaction(past.db):
        plugin_inits.put(
            past.db, plugin_inits.PluginInit(plugin="echo", fingerprint="f", error="no login"), now=past.now, job_id="x"
        )
    return past.enqueue().job_id


def init_is_pending(past: Past) -> str:
    manifest = Path(past.db.execute("PRAGMA database_list").fetchone()[2]).with_name("manifest.yaml")
    manifest.write_text("commands: {poll: {}, init: {}}\n")
    past.loads("cfg", {"plugins": {"echo": {}}}, fingerprints={"echo": {"manifest_path": str(manifest)}})
    return past.enqueue().job_id


def breaker_is_open(past: Past) -> str:
    past.enqueue()
    (job,) = past.claim(1).jobs
    past.end(job, Retried("x", timedelta(), past.evidence()))
    past.advance(seconds=1)
    with transaction(past.db):
        claim.wake_due(past.db, now=past.now)
        opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3, opened_at=past.now)
        breakers.put(past.db, BreakerChange(opened, "failure_threshold"), now=past.now)
        blocked_jobs.block_command(past.db, job, Held(past.now + timedelta(hours=1), "open"), now=past.now)
    return job.id


def probe_is_out(past: Past) -> str:
    job_id = breaker_is_open(past)
    with transaction(past.db):
        state = Breaker(
            plugin="echo", command="poll", state=BreakerState.HALF_OPEN, failure_count=3, probe_job_id=UNKNOWN_ID
        )
        breakers.put(past.db, BreakerChange(state, "cooldown_elapsed"), now=past.now)
    return job_id


def plugin_is_full(past: Past) -> str:
    past.loads("cfg", {"service": {"max_workers": 4}, "plugins": {"echo": {"parallelism": 1}}})
    past.enqueue()
    past.claim_one()
    return past.enqueue().job_id


def workers_are_full(past: Past) -> str:
    past.loads("cfg", {"service": {"max_workers": 1}, "plugins": {"echo": {"parallelism": 1}, "other": {}}})
    past.enqueue(plugin="other")
    past.claim_one("other")
    return past.enqueue().job_id


def behind(past: Past) -> str:
    past.enqueue()
    past.enqueue()
    return past.enqueue().job_id


def joins_others(past: Past) -> str:
    past.enqueue(plugin="echo", join_id=UNKNOWN_ID)
    return past.enqueue(id=UNKNOWN_ID, plugin="core.join", command="handle", is_join=True).job_id


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (paused, "paused", "the disk is new"),
        (queue_paused, "queue_paused", "night"),
        (retried, "retry_time", "The previous attempt failed: no network"),
        (key_is_held, "held_key", "with the same dedupe key 'k' is running"),
        (blocked, "blocked", "its manifest cannot be read"),
        (unhealthy, "unhealthy", "its init failed: no login"),
        (init_is_pending, "initialising", "has not finished"),
        (breaker_is_open, "breaker", "open after 3 failures. The next probe is due in "),
        (probe_is_out, "breaker", f"Its probe, job {UNKNOWN_ID}, has not ended. The next probe is due in "),
        (plugin_is_full, "plugin_full", "The limit is 1"),
        (workers_are_full, "workers_full", "The only worker is busy"),
        (behind, "behind", "at position 3: 2 older jobs start first (2 of echo)"),
        (joins_others, "join", "The join waits for 1 open job"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_why_names_the_reason_that_a_job_is_queued(
    run: Run, demo: Path, make: Callable[[Past], str], code: str, words: str
) -> None:
    """The first reason is always that no service runs."""
    with past_of(demo) as past:
        job_id = make(past)

    view = run("job", "why", job_id, "--config", demo, "--json").json
    found = {reason["code"]: reason["words"] for reason in view["reasons"]}
    assert list(found) == ["service_down", code]
    assert words in found[code]
    assert words in run("job", "why", job_id, "--config", demo).stdout


def test_a_job_outside_the_queue_cannot_be_retried(run: Run, demo: Path) -> None:
    """Its payload is gone, so the next command only inspects it."""
    with past_of(demo) as past:
        job_id = ended(past, Failed("no luck", past.evidence(exit_code=1)))
        assert f"ductile job retry {job_id}" in run("job", "why", job_id, "--config", demo, "--json").json["next"]
        past.db.execute("DELETE FROM job_queue")
        past.db.commit()

    assert run("job", "why", job_id, "--config", demo, "--json").json["next"] == [f"ductile job diagnose {job_id}"]


def test_a_job_of_a_missing_plugin_is_retried_after_the_plugin_is_restored(run: Run, demo: Path) -> None:
    """Until then the service refuses the retry."""
    with past_of(demo) as past:
        job_id, disabled = past.enqueue().job_id, "plugin echo is disabled (enabled: false)"
        with transaction(past.db):
            job_actions.end_queued_jobs(past.db, "echo", disabled, now=past.now)

    following = run("job", "why", job_id, "--config", demo, "--json").json["next"]
    assert following[:2] == ["ductile plugin list", "ductile system reload"]
    assert following[-1] == f"ductile job retry {job_id}"


@pytest.mark.parametrize(("running", "waits"), [("core.relay", "echo"), ("echo", "core.relay")])
def test_relay_jobs_and_worker_slots_do_not_limit_each_other(run: Run, demo: Path, running: str, waits: str) -> None:
    """A relay job needs no worker slot."""
    with past_of(demo) as past:
        past.loads("cfg", {"service": {"max_workers": 1}, "plugins": {"echo": {}}})
        past.enqueue(plugin=running)
        past.claim_one(running)
        job_id = past.enqueue(plugin=waits).job_id

    view = run("job", "why", job_id, "--config", demo, "--json").json
    assert "workers_full" not in [reason["code"] for reason in view["reasons"]]


# ── job why: ended ────────────────────────────────────────────────────────────────────────────────────────────────────


def evidence(**values: Any) -> Evidence:
    return Evidence(started_at=datetime.now(UTC), duration=timedelta(seconds=1), **values)


LAST_ATTEMPT = Job(
    id="last",
    plugin="echo",
    command="poll",
    status=JobStatus.RUNNING,
    attempt=4,
    max_attempts=4,
    submitted_by="test",
    created_at=datetime.now(UTC),
)


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Succeeded(evidence(exit_code=0, result=OK)), "answered_ok", "and exit code 0"),
        (Succeeded(evidence(exit_code=3, result=OK)), "answered_ok", "Exit code 3 is ignored"),
        (
            Failed("exit code 78: no token", evidence(exit_code=78), OutcomeCode.EXIT_78),
            "exit_78",
            "a configuration error",
        ),
        (
            Failed("gone", evidence(exit_code=0), OutcomeCode.RETRY_FALSE),
            "retry_false",
            "`retry: false`",
        ),
        (Failed("2000 events, more than the 1000 allowed", evidence(exit_code=0)), "final", "would not help"),
        (
            Failed("internal error: KeyError", evidence(exit_code=0), OutcomeCode.INTERNAL_ERROR),
            "internal_error",
            "Ductile failed",
        ),
        (
            attempts_used_up(LAST_ATTEMPT, "timed out after 1m", evidence(timed_out=True, signal=9)),
            "attempts_used_up",
            "The last one timed out",
        ),
        (cancelled("by e2e", evidence(signal=15)), "cancelled", "while it ran: by e2e"),
        (
            Skipped("a twin", OutcomeCode.DEDUPLICATED, {"winner": UNKNOWN_ID, "dedupe_key": "k"}),
            "deduplicated",
            UNKNOWN_ID,
        ),
    ],
)
def test_why_names_the_rule_that_ended_a_job(run: Run, demo: Path, outcome: Any, code: str, words: str) -> None:
    with past_of(demo) as past:
        job_id = ended(past, outcome)

    view = run("job", "why", job_id, "--config", demo, "--json").json
    assert (view["reasons"][0]["code"], words in view["words"]) == (code, True), view
    assert view["next"]


@pytest.mark.parametrize("question", ["why", "diagnose", "inspect"])
def test_output_of_a_plugin_cannot_imitate_the_output_of_ductile(run: Run, demo: Path, question: str) -> None:
    """Lines of an error are indented further than lines of Ductile."""
    with past_of(demo) as past:
        job_id = ended(past, Failed("disk full\n  next: ductile queue purge --all", evidence(exit_code=1)))

    shown = run("job", question, job_id, "--config", demo).stdout.splitlines()
    forged = [line for line in shown if "queue purge" in line]
    assert forged
    assert not any(line.startswith("  next:") for line in forged)


def test_a_diagnosis_of_long_output_is_short(run: Run, demo: Path) -> None:
    """`--json` has all of it."""
    with past_of(demo) as past:
        job_id = ended(past, Failed("stdout is not one JSON object", evidence(exit_code=0, result="y\n" * 5000)))

    shown = run("job", "diagnose", job_id, "--config", demo).stdout
    assert shown.count("\n") < 60
    assert "more lines; --json has them" in shown


def test_why_explains_a_job_that_was_cancelled_before_it_ran(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        job_id = past.enqueue().job_id
        with transaction(past.db):
            job_actions.cancel(past.db, job_id, "not needed", now=past.now)

    assert "before it ran: not needed" in run("job", "why", job_id, "--config", demo).stdout


def test_why_explains_a_chain_of_too_many_hops(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        job_id = past.enqueue(hops=21).job_id

    assert run("job", "why", job_id, "--config", demo, "--json").json["reasons"][0]["code"] == "over_budget"


# ── job diagnose ──────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "hunter2-and-more"


@pytest.fixture
def sick(demo: Path) -> tuple[Path, str]:
    """Make a ledger with a failed job, earlier equal failures, and a success under another configuration."""
    (demo / ".env").write_text(f"MAIL={SECRET}\n")
    (demo / "plugins.yaml").write_text("plugins: {echo: {config: {address: '${MAIL}'}}}\n")
    with past_of(demo) as past:
        past.loads("cfg_old", {"plugins": {"echo": {"timeout": "1m"}}}, fingerprints={"echo": {"entrypoint_hash": "a"}})
        past.enqueue(snapshot_id="cfg_old")
        with transaction(past.db):
            past.db.execute("UPDATE job_queue SET started_config_snapshot_id = 'cfg_old'")
        past.end(past.claim_one(), Succeeded(past.evidence(result=OK)))
        past.db.execute("UPDATE job_log SET started_config_snapshot_id = 'cfg_old'")
        past.advance(minutes=1)
        others = {"mail": {"timeout": "1m"}, "sweep": {}}
        past.loads(
            "cfg_new",
            {"plugins": {"echo": {"timeout": "2m"}, **others}},
            fingerprints={"echo": {"entrypoint_hash": "b"}},
        )
        for port in (4711, 4712):
            ended(past, Failed(f"no answer from port {port}", past.evidence(exit_code=1)))
        ended(past, Failed("something else", past.evidence(exit_code=1)))
        payload = json.dumps({"password": "abc", "to": f"me with {SECRET}", "text": "x" * 100_000})
        stderr = "\n".join(f"line {number} {SECRET}" for number in range(5_000))
        notes = tuple(Note(kind="event.unmatched", data={"event_id": str(n), "type": "t" * 50}) for n in range(500))
        past.enqueue(payload=payload, snapshot_id="cfg_new")
        job = past.claim_one()
        failed = Failed("no answer from port 4713", past.evidence(exit_code=1, stderr=stderr, result="not JSON" * 999))
        past.end(job, failed, notes=notes)
    return demo, job.id


@pytest.mark.parametrize("most", [4_000, 9_000, 65_536, 10_000_000])
@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "text"])
def test_a_diagnosis_is_never_larger_than_the_limit(
    run: Run, sick: tuple[Path, str], most: int, form: tuple[str, ...]
) -> None:
    """Omitted parts are listed. Below the limit nothing is omitted."""
    home, job_id = sick
    answer = run("job", "diagnose", job_id, "--config", home, "--max-bytes", str(most), *form)

    assert answer.exit_code == 0
    assert len(answer.stdout.encode()) <= most
    is_cut = bool(answer.json["cut"]) if form else "\n  cut: " in answer.stdout
    assert is_cut is (most < 1_000_000)


def test_a_shortened_diagnosis_keeps_the_end_of_stderr_and_its_size(run: Run, sick: tuple[Path, str]) -> None:
    home, job_id = sick
    bundle = run("job", "diagnose", job_id, "--config", home, "--json").json

    assert bundle["stderr"].startswith("[cut]")
    assert bundle["stderr"].endswith("line 4999 ***")
    assert bundle["cut"]["stderr"]["kept"] < bundle["cut"]["stderr"]["of"]
    assert bundle["cut"]["stderr"]["unit"] == "characters"


def test_a_diagnosis_names_the_next_command(run: Run, sick: tuple[Path, str]) -> None:
    """The next command is not the diagnosis itself."""
    home, job_id = sick
    following = run("job", "diagnose", job_id, "--config", home, "--json").json["next"]

    assert f"ductile job retry {job_id}" in following
    assert f"ductile job diagnose {job_id}" not in following


def test_a_diagnosis_contains_no_secret(run: Run, sick: tuple[Path, str]) -> None:
    """Known secrets and values with a secret name are masked."""
    home, job_id = sick
    answer = run("job", "diagnose", job_id, "--config", home, "--json", "--max-bytes", "10000000")

    assert SECRET not in answer.stdout
    assert answer.json["request"]["payload"] | {"text": ""} == {"password": "***", "to": "me with ***", "text": ""}


def test_a_diagnosis_counts_equal_failures(run: Run, sick: tuple[Path, str]) -> None:
    """Errors that differ only in numbers are equal."""
    home, job_id = sick
    similar = run("job", "diagnose", job_id, "--config", home, "--json").json["similar_failures"]

    assert (similar["error"], similar["count"], len(similar["job_ids"])) == ("no answer from port #", 2, 2)
    assert similar["others"] == [{"error": "something else", "count": 1}]


def test_a_diagnosis_lists_changes_since_the_last_success(run: Run, sick: tuple[Path, str]) -> None:
    home, job_id = sick
    changes = run("job", "diagnose", job_id, "--config", home, "--json").json["since_last_success"]["changes"]

    assert changes["config"] == [{"path": "plugins.echo.timeout", "before": "1m", "after": "2m"}]
    assert changes["plugin"] == ["entrypoint_hash"]
    assert changes["other_plugins"] == ["mail", "sweep"], "named, not spelt out: they hardly matter to this job"


def test_a_changed_list_is_compared_by_the_names_of_its_members(run: Run, demo: Path) -> None:
    """Whole lists would be shortened at one place and look equal."""

    def pipelines(**mode: str) -> dict[str, Any]:
        return {"pipelines": [{"name": name, "on": "x" * 200, "mode": how} for name, how in mode.items()]}

    with past_of(demo) as past:
        past.loads("cfg_old", pipelines(gone="a", same="a", other="a"))
        ended(past, snapshot_id="cfg_old")
        past.db.execute("UPDATE job_log SET started_config_snapshot_id = 'cfg_old'")
        past.advance(minutes=1)
        past.loads("cfg_new", pipelines(same="a", other="b", came="a", more="a"))
        job_id = ended(past, Failed("x", past.evidence(exit_code=1)), snapshot_id="cfg_new")

    bundle = run("job", "diagnose", job_id, "--config", demo, "--json").json
    changes = {one["path"]: one for one in bundle["since_last_success"]["changes"]["config"]}
    assert list(changes) == ["pipelines[came]", "pipelines[gone]", "pipelines[more]", "pipelines[other].mode"]
    assert (changes["pipelines[came]"]["before"], changes["pipelines[gone]"]["after"]) == ("(not set)", "(not set)")
    shown = run("job", "diagnose", job_id, "--config", demo).stdout
    assert "config pipelines: added came, more; removed gone" in shown
    assert "config pipelines[other].mode: a → b" in shown


def test_a_diagnosis_shows_text_that_is_not_json_unchanged(run: Run, demo: Path) -> None:
    """An adopted ledger can contain any text."""
    with past_of(demo) as past:
        job_id = ended(past, Failed("x", past.evidence(exit_code=1)), snapshot_id="cfg")
        past.loads("cfg", {})
        past.db.execute("UPDATE config_snapshots SET plugin_fingerprints = 'x', sanitized_config = '[1]'")
        past.db.execute("UPDATE job_queue SET payload = '{broken'")

    assert run("job", "diagnose", job_id, "--config", demo, "--json").json["request"]["payload"] == "{broken"
    assert run("queue", "--config", demo).exit_code == 0


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.one_of(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=40))
    ),
    st.integers(200, 2_000),
)
def test_a_bundle_is_shortened_until_it_fits(bundle: dict[str, Any], most: int) -> None:
    """Every shortened part is listed."""
    parts = tuple(bundle)
    shown = truncate_to_fit(bundle, parts, lambda value: len(json.dumps(value)), most)

    assert len(json.dumps(shown)) <= most or all(one["kept"] == 0 for one in shown["cut"].values())
    assert {name for name in parts if shown[name] != bundle[name]} <= set(shown["cut"])


# ── event why ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_event_why_shows_the_false_condition_with_its_values(run: Run, demo: Path) -> None:
    """They come from the journal rows of the emitting job."""
    predicate = {"path": "payload.n", "op": "eq", "value": 2, "found": 1, "holds": False}
    about = {"pipeline": "big", "event_id": UNKNOWN_ID, "type": "t.done", "reason": "if is false"}
    note = Note(kind="pipeline.skipped", data={**about, "predicates": [predicate]})
    with past_of(demo) as past:
        past.enqueue()
        past.end(past.claim_one(), notes=(note,))

    text = run("event", "why", UNKNOWN_ID, "--config", demo).stdout
    assert "Pipeline big did not start: if is false (payload.n eq 2 is false: found 1)" in text
    view = run("event", "why", "--type", "t.done", "--config", demo, "--json").json
    assert [event["event_id"] for event in view["events"]] == [UNKNOWN_ID]
    assert view["events"][0]["decisions"][0]["predicates"] == [predicate]


def test_event_why_shows_the_jobs_of_an_event(run: Run, demo: Path) -> None:
    """Jobs of routes and pipelines are shown, also when only the job log has them."""
    envelope = json.dumps({"type": "t.done", "payload": {}, "event_id": UNKNOWN_ID, "source": "echo"})
    with past_of(demo) as past:
        past.enqueue(command="handle", payload=envelope, source_event_id=UNKNOWN_ID, submitted_by="route")
        past.enqueue(command="handle", payload=envelope, source_event_id=UNKNOWN_ID, pipeline="big", step_id="one")

    view = run("event", "why", UNKNOWN_ID, "--config", demo, "--json").json
    assert [job["via"] for job in view["led_to"]] == ["route", "pipeline big"]
    assert (view["type"], view["source"], view["verdict"]) == ("t.done", "echo", "matched")


def test_events_of_a_type_are_found_for_every_result(run: Run, demo: Path) -> None:
    """This includes jobs without the type: steps other than `handle`, and conditions."""
    said = [{"type": "t.done", "payload": {}}, {"type": "other", "payload": {"t.done": 1}}, {"type": "t.done"}]
    result = json.dumps({"status": "ok", "events": said})
    with past_of(demo) as past:
        past.enqueue()
        job = past.claim_one()
        past.end(job, Succeeded(past.evidence(result=result)))
        events = [derived_event_id(job.id, 1, index) for index in range(3)]
        for event_id in events[:2]:
            past.enqueue(parent_job_id=job.id, payload="{}", source_event_id=event_id, pipeline="p", step_id="one")

    view = run("event", "why", "--type", "t.done", "--config", demo, "--json").json
    assert [event["event_id"] for event in view["events"]] == events[:1]
    assert (view["events"][0]["verdict"], view["events"][0]["emitted_by"]) == ("matched", job.id)


def test_an_event_names_its_plugin_and_prints_every_fact_once(run: Run, demo: Path) -> None:
    """This includes events that led to no job."""
    result = json.dumps({"status": "ok", "events": [{"type": "t.done", "payload": {}}]})
    with past_of(demo) as past:
        past.enqueue()
        job = past.claim_one()
        event = derived_event_id(job.id, 1, 0)
        note = Note(kind="event.unmatched", data={"event_id": event, "type": "t.done"})
        past.end(job, Succeeded(past.evidence(result=result)), notes=(note,))

    view = run("event", "why", event, "--config", demo, "--json").json
    assert (view["source"], view["emitted_by"]) == ("echo", job.id)
    shown = run("event", "why", event, "--config", demo).stdout.splitlines()
    assert " t.done from echo  " in shown[0]
    assert shown[1:] == [
        "  The event led to no job. No route and no pipeline matches it.",
        f"  next: ductile job inspect {job.id}",
    ]


def test_the_only_decision_about_an_event_is_printed_once(run: Run, demo: Path) -> None:
    about = {"pipeline": "big", "event_id": UNKNOWN_ID, "type": "t.done", "reason": "if is false"}
    with past_of(demo) as past:
        past.enqueue()
        past.end(past.claim_one(), notes=(Note(kind="pipeline.skipped", data=about),))

    shown = run("event", "why", UNKNOWN_ID, "--config", demo).stdout
    assert shown.count("Pipeline big did not start") == 1


def test_a_mistyped_event_type_gets_a_suggestion(run: Run, demo: Path) -> None:
    with past_of(demo) as past:
        past.enqueue()
        past.end(
            past.claim_one(), notes=(Note(kind="event.unmatched", data={"event_id": UNKNOWN_ID, "type": "t.done"}),)
        )

    assert "did you mean 't.done'?" in run("event", "why", "--type", "t.don", "--config", demo).stderr


# ── small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "abc", "abc"),
        ("abc", "abcdef", "def"),
        ("abc", "", ""),
        ("x" * 300 + "end", "x" * 250 + "end" + "more", "more"),
        ("abc", "xyz", GAP + "xyz"),
        ("abcdef", "def", ""),
    ],
)
def test_tail_prints_only_new_output(before: str, now: str, new: str) -> None:
    """The beginning of the text may have been discarded."""
    assert new_output(before, now) == new


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("port 1", "port 22"),
        (f"job {UNKNOWN_ID} is gone", "job 01a1e4bd-ffa3-711e-abba-4499c98a29b1 is gone"),
        ("no  network", "no network"),
    ],
)
def test_errors_that_differ_in_numbers_are_the_same(one: str, other: str) -> None:
    assert error_pattern(one) == error_pattern(other)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "state: {path: elsewhere/x.db}\n",
        "state: {path: '${PLACE}/x.db'}\n",
        "state: {path: ~/x.db}\n",
        "database: {path: old.db}\n",
        "include: [more]\n",
    ],
)
def test_the_ledger_path_is_that_of_a_full_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path / "place"))
    (tmp_path / "more").mkdir(mode=0o700)
    for name, text in (("config.yaml", written), ("more/one.yaml", "state: {path: x.db}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)

    assert find_ledger(tmp_path / "config.yaml", os.environ) == load(tmp_path / "config.yaml").settings.state.path


def test_the_quick_mask_hides_the_same_secrets_as_a_full_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "outside-value")
    (tmp_path / "config.yaml").write_text(
        "plugins: {p: {config: {auth: {user: inner-value}, url: '${FROM_OUTSIDE}', other: plain-value}}}\n"
        "api: {auth: {tokens: [{name: n, token: token-value-1, scopes: ['*']}]}}\n"
    )
    (tmp_path / "config.yaml").chmod(0o600)
    text = "inner-value outside-value token-value-1 plain-value"

    assert build_mask(tmp_path / "config.yaml", os.environ)(text) == load(tmp_path / "config.yaml").mask(text)


@pytest.mark.parametrize(
    "args",
    [
        ("job", "list"),
        ("job", "logs"),
        ("job", "list", "--query", "x"),
        ("job", "why", "JOB"),
        ("job", "diagnose", "JOB"),
        ("job", "inspect", "JOB"),
        ("queue", "status"),
        ("queue", "list"),
    ],
    ids=" ".join,
)
def test_reading_commands_import_no_event_loop_no_server_and_no_cattrs(
    busy: Path, run: Run, args: tuple[str, ...]
) -> None:
    job_id = run("job", "list", "--config", busy, "--json").json["jobs"][0]["job_id"]
    words = [job_id if arg == "JOB" else arg for arg in args]

    heavy = {"trio", "quart", "hypercorn", "cattrs", "asyncio"}
    assert imported_by(*words, "--config", str(busy)).isdisjoint(heavy)


# ── job inspect ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_shows_transitions_and_configurations(run: Run, demo: Path) -> None:
    """Every transition in order, whether a reload happened in between, and missing snapshots."""
    with past_of(demo) as past:
        past.loads("cfg_1", {})
        past.loads("cfg_2", {})
        past.enqueue(snapshot_id="cfg_1")
        with transaction(past.db):
            (job,) = claim.claim(past.db, now=past.now, run_id="r", free={"echo": 1}, limit=1, snapshot_id="cfg_2").jobs
        past.end(job, Failed("disk full", past.evidence(exit_code=1)))
        lost = past.enqueue(snapshot_id="cfg_gone").job_id

    shown = run("job", "inspect", job.id, "--config", demo, "--json").json
    assert [(one["from"], one["to"]) for one in shown["transitions"]] == [
        (None, "queued"),
        ("queued", "running"),
        ("running", "failed"),
    ]
    assert shown["attempts"][0]["at"] == shown["attempts"][0]["started_at"]
    assert shown["consistency"] == {
        "latest_transition_status": "failed",
        "cached_status_matches": True,
        "attempt_facts_match": True,
        "legacy_missing_data": False,
    }
    assert (shown["config"]["enqueued"]["id"], shown["config"]["started"]["id"]) == ("cfg_1", "cfg_2")
    assert shown["config"]["crossed_reload_boundary"] is True

    config = run("job", "inspect", lost, "--config", demo, "--json").json["config"]
    assert (config["missing_snapshot_refs"], config["crossed_reload_boundary"]) == (["cfg_gone"], False)


# ── jobs that an operator ended ───────────────────────────────────────────────────────────────────────────────────────


def test_lists_show_a_cancelled_job_as_cancelled(run: Run, demo: Path) -> None:
    """Its status stays `dead`, with the outcome code beside it."""
    with past_of(demo) as past:
        job_id = past.enqueue().job_id
        with transaction(past.db):
            job_actions.cancel(past.db, job_id, "not needed", now=past.now)

    (row,) = run("job", "list", "--config", demo, "--json").json["jobs"]
    assert (row["status"], row["outcome_code"]) == ("dead", "cancelled")
    shown = run("system", "status", "--no-health", "--config", demo, "--json").json
    assert (shown["queue"]["dead"], shown["queue"]["cancelled"]) == (1, 1)
    assert shown["last_runs"][0]["outcome_code"] == "cancelled"
    assert "Use `dead`" in run("job", "list", "--status", "cancelled", "--config", demo).stderr
    assert "1 dead, 1 of them cancelled" in run("queue", "status", "--config", demo).stdout
    of_last = [("job", name, "last") for name in ("inspect", "tree", "why", "diagnose")]
    for command in (("job", "list"), ("job", "logs"), ("run", "list"), ("run", "show", "last"), *of_last):
        text = run(*command, "--config", demo).stdout.replace(",", "")
        assert "dead" not in text.lower().partition("journal")[0].split(), command
        assert "cancelled" in text.lower().split(), command
